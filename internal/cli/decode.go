package cli

import (
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
	case strings.HasPrefix(dir, "__cluster_metadata-"):
		return decodeMetadata
	}
	return nil
}

func decodeGroup(_ record.Batch, r *record.Record) (string, any) {
	rec, err := group.DecodeRecord(r.Key, r.Value)
	if err != nil {
		return "unknown", undecoded{err.Error(), r.Key, r.Value}
	}
	if _, ok := rec.(*group.OffsetCommitRecord); ok {
		return "OffsetCommit", rec
	}
	return "GroupMetadata", rec
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
