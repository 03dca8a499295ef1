package consumer

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Codes that positions depend on.
const (
	codeNone                    int16 = 0
	codeOffsetOutOfRange        int16 = 1
	codeCorruptMessage          int16 = 2
	codeUnknownLeaderEpoch      int16 = 75
	codeFetchSessionNotFound    int16 = 70
	codeInvalidFetchSession     int16 = 71
	codeFetchSessionTopicID     int16 = 106
	codeUnknownMemberID         int16 = 25
	codeIllegalGeneration       int16 = 22
	codeRebalanceInProgress     int16 = 27
	codeFencedInstanceID        int16 = 82
	codeMemberIDRequired        int16 = 79
	codeFencedMemberEpoch       int16 = 110
	codeUnreleasedInstanceID    int16 = 111
	codeStaleMemberEpoch        int16 = 113
	codeUnstableOffsetCommit    int16 = 88
	codeUnknownTopicOrPartition int16 = 3
)

// retriable says that a failure passes, with newer metadata or by itself: the position is kept.
func retriable(code int16) bool {
	switch code {
	case 3, 5, 6, 7, 9, 13, 14, 15, 16, 56, 74, 75, 78, 88, 100, 103:
		return true
	}
	return false
}

// codeError is the error that a code stands for.
func codeError(code int16) error {
	err := kerr.ErrorForCode(code)
	if err == nil {
		return errors.New("no error")
	}
	return err
}
