package quorum

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// raftPayloadTag is the tagged field in which a control record carries what only raft knows: the entry's type (one
// byte) and its data. Kafka's readers skip it.
const raftPayloadTag = 1000

// maxControlBytes bounds what a compressed control batch, which nobody should write, may unpack to.
const maxControlBytes = 8 << 20

// controlRecord is rec with its type, for record.NewControlBatch.
func controlRecord(rec metadata.ControlRecord) record.ControlRecord {
	return record.ControlRecord{Type: record.ControlType(rec.ControlType()), Value: metadata.AppendControl(nil, rec)}
}

// controlBatch is a batch of one control record with its place in the log.
func controlBatch(offset int64, epoch int32, timestamp int64, rec metadata.ControlRecord) record.Batch {
	b := record.NewControlBatch(timestamp, controlRecord(rec))
	b.SetBaseOffset(offset)
	b.SetPartitionLeaderEpoch(epoch)
	return b
}

// onlyControl reads a control batch that must hold exactly one record and take one offset.
func onlyControl(b record.Batch) (metadata.ControlRecord, error) {
	if b.Count() != 1 || b.LastOffsetDelta() != 0 {
		return nil, fmt.Errorf("control batch of %d records and %d offsets, raft writes one", b.Count(), b.LastOffsetDelta()+1)
	}
	it := record.NewRecordIterator(b, record.Limits{MaxDecompressed: maxControlBytes})
	defer it.Close()
	if !it.Next() {
		return nil, it.Err()
	}
	kind, err := metadata.ParseControlKey(it.Record().Key)
	if err != nil {
		return nil, err
	}
	found, err := metadata.DecodeControl(kind, it.Record().Value)
	if err != nil {
		return nil, err
	}
	it.Next()
	return found, it.Err()
}

// leaderChange is a LeaderChange that names nobody: a control record has to be the same on every voter, and raft's
// empty entry does not say who leads.
func leaderChange(unknown metadata.Tags) *metadata.LeaderChange {
	return &metadata.LeaderChange{LeaderID: -1, Unknown: unknown}
}

// raftTag makes the tagged field with raft's part.
func raftTag(payload []byte) metadata.Tags {
	return metadata.Tags{{Number: raftPayloadTag, Value: payload}}
}

// raftPayload is raft's part among the tagged fields of a control record; ok is false if it has none.
func raftPayload(tags metadata.Tags) (payload []byte, ok bool) {
	i := slices.IndexFunc(tags, func(t metadata.Tag) bool { return t.Number == raftPayloadTag })
	if i < 0 {
		return nil, false
	}
	return tags[i].Value, true
}

// encodeVoters is the body of a Voters control record, which is also how a membership change names its outcome.
func encodeVoters(voters []Voter) []byte {
	return metadata.AppendControl(nil, &metadata.Voters{Voters: voters})
}

func decodeVoters(body []byte) ([]Voter, error) {
	rec, err := metadata.DecodeControl(metadata.ControlVoters, body)
	if err != nil {
		return nil, err
	}
	return rec.(*metadata.Voters).Voters, nil
}
