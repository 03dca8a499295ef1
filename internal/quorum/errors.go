package quorum

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/controller"
)

// Errors of requests, named as Kafka's. The server has the table of their codes.
var (
	// ErrNotController: this node does not lead the quorum, or not any more, or its records did not get committed
	// while it did; they may still be.
	ErrNotController = controller.ErrNotController
	// ErrNotLeaderOrFollower: the metadata log's leader is another node.
	ErrNotLeaderOrFollower = errors.New("not the leader of the metadata log")
	// ErrBrokerNotAvailable: this node is shutting down.
	ErrBrokerNotAvailable = errors.New("node is shutting down")
	// ErrInconsistentClusterID: the request names another cluster.
	ErrInconsistentClusterID = errors.New("request is for another cluster")
	// ErrInvalidRequest: a field of the request has a value it cannot have.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrUnknownTopicOrPartition: only __cluster_metadata-0 is served here.
	ErrUnknownTopicOrPartition = errors.New("not the metadata log")
	// ErrSnapshotNotFound: there is no such snapshot, or no more.
	ErrSnapshotNotFound = errors.New("snapshot not found")
	// ErrPositionOutOfRange: the position is not inside the snapshot.
	ErrPositionOutOfRange = errors.New("position is not inside the snapshot")
	// ErrClosed: the host was closed.
	ErrClosed = errors.New("quorum host is closed")
)

// FencedLeaderEpochError says that the asker's leader epoch is over.
type FencedLeaderEpochError struct{ Asked, Current int32 }

func (e *FencedLeaderEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is fenced, it is %d now", e.Asked, e.Current)
}

// UnknownLeaderEpochError says that the asker knows of a later leader epoch than we do.
type UnknownLeaderEpochError struct{ Asked, Current int32 }

func (e *UnknownLeaderEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is not known here, it is %d", e.Asked, e.Current)
}

// PanicError says that a request's own code panicked (Kafka's UNKNOWN_SERVER_ERROR). Nothing was changed.
type PanicError struct{ Value any }

func (e *PanicError) Error() string { return fmt.Sprintf("request panicked: %v", e.Value) }

// NoRoomError says that a request waited in vain, Err how, while the disk of the metadata log was full.
type NoRoomError struct {
	Dir string
	Err error
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("the disk of the metadata log in %s is full; changes go on by themselves when there is room: %v", e.Dir, e.Err)
}

func (e *NoRoomError) Unwrap() error { return e.Err }
