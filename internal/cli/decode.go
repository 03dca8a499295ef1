package cli

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// decoder turns a record of an internal topic into a name and something that prints
// as JSON. What it cannot read it says, and never fails.
type decoder func(b record.Batch, r *record.Record) (name string, value any)

// undecoded is a record that its decoder could not read.
type undecoded struct {
	Error string `json:"error"`
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// decoderFor chooses by the name of the partition's directory; nil for topics whose
// records mean nothing to us.
func decoderFor(path string) decoder {
	absolute, err := filepath.Abs(path)
	if err != nil {
		absolute = path
	}
	switch dir := filepath.Base(filepath.Dir(absolute)); {
	case strings.HasPrefix(dir, "__consumer_offsets-"):
		return decodeGroup
	case strings.HasPrefix(dir, "__transaction_state-"):
		return decodeTransaction
	case strings.HasPrefix(dir, "__cluster_metadata-"), strings.HasSuffix(absolute, ".checkpoint"):
		return decodeMetadata
	}
	return nil
}

func decodeGroup(_ record.Batch, r *record.Record) (string, any) {
	if len(r.Key) >= 2 {
		// Kafka has a schema for each of the others, and its names for the fields are those that people know.
		if typ := int16(binary.BigEndian.Uint16(r.Key)); typ > 2 {
			return decodeKeptGroup(typ, r)
		}
	}
	rec, err := group.DecodeRecord(r.Key, r.Value)
	var unknown *group.UnknownRecordTypeError
	if errors.As(err, &unknown) {
		return decodeKeptGroup(unknown.Type, r)
	}
	if err != nil {
		return "unknown", undecoded{err.Error(), r.Key, r.Value}
	}
	if commit, ok := rec.(*group.OffsetCommitRecord); ok {
		return "OffsetCommit", shownCommit(commit)
	}
	return "GroupMetadata", rec
}

// shownCommit is a commit with its topic's id as everybody writes it.
func shownCommit(c *group.OffsetCommitRecord) object {
	out := object{{"Group", c.Group}, {"Topic", c.Topic}, {"Partition", c.Partition}}
	if c.Value == nil {
		return append(out, member{"Value", nil})
	}
	return append(out, member{"Value", object{
		{"Offset", c.Value.Offset}, {"LeaderEpoch", c.Value.LeaderEpoch}, {"Metadata", c.Value.Metadata}, {"CommitTimestamp", c.Value.CommitTimestamp},
		{"ExpireTimestamp", c.Value.ExpireTimestamp}, {"TopicID", metadata.UUID(c.Value.TopicID)},
	}})
}

func decodeMetadata(_ record.Batch, r *record.Record) (string, any) {
	rec, version, err := metadata.DecodeRecord(r.Value)
	if err != nil {
		return "unknown", undecoded{err.Error(), r.Key, r.Value}
	}
	return metadata.RecordName(rec), struct {
		Version int16           `json:"version"`
		Record  metadata.Record `json:"record"`
	}{version, rec}
}

func decodeControl(b record.Batch, r *record.Record) (string, any) {
	kind, err := record.ParseControlKey(r.Key)
	if err != nil {
		return "unknown", undecoded{err.Error(), r.Key, r.Value}
	}
	if kind == record.Abort || kind == record.Commit {
		marker, _, err := record.ParseEndTxnMarker(b)
		if err != nil {
			return kind.String(), undecoded{err.Error(), r.Key, r.Value}
		}
		return kind.String(), marker
	}
	rec, err := metadata.DecodeControl(metadata.ControlType(kind), r.Value)
	if err != nil {
		return kind.String(), undecoded{err.Error(), r.Key, r.Value}
	}
	return kind.String(), rec
}
