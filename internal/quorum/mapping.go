package quorum

import (
	"errors"
	"fmt"
	"math"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Each entry of raft's log is one batch of the metadata log, on every voter the same bytes at the same offsets.
//
//	raft                                  metadata log
//	index                                 number of the batch
//	term                                  leader epoch of the batch
//	normal entry                          data batch; the entry's data is the batch with base offset 0 and epoch -1
//	empty normal entry                    LeaderChange, leader -1, no voters
//	membership change whose context is    that Voters record; type and data in a tagged field
//	  the body of a Voters record
//	any other membership change           LeaderChange, leader -1; type and data in a tagged field
//
// Base offset and epoch of a batch lie outside its CRC, so a data batch is stored as proposed but for these two
// fields. Control batches take one offset, and the timestamp of the batch before them (0 if there is none): there
// is nothing else that all voters know. A Voters record is written only where the membership it names was given,
// since Kafka's readers refuse an empty one; joint configurations that raft leaves by itself have no such name.

// EntryError says that bytes are not an entry as this package writes them.
type EntryError struct {
	Index uint64
	Err   error
}

func (e *EntryError) Error() string { return fmt.Sprintf("raft entry %d: %v", e.Index, e.Err) }
func (e *EntryError) Unwrap() error { return e.Err }

// encodeEntry is the batch for an entry that begins at offset, after a batch of that timestamp.
func encodeEntry(e *pb.Entry, offset, timestamp int64) (record.Batch, error) {
	b, err := encodeAt(e, offset, timestamp)
	if err != nil {
		return nil, &EntryError{Index: e.GetIndex(), Err: err}
	}
	return b, nil
}

// checkEntry says whether an entry can be a batch.
func checkEntry(e *pb.Entry) error {
	switch {
	case e.GetTerm() > math.MaxInt32:
		return fmt.Errorf("term %d is larger than any leader epoch", e.GetTerm())
	case e.GetType() == pb.EntryNormal && len(e.GetData()) > 0:
		return checkProposal(e.GetData())
	case e.GetType() == pb.EntryNormal:
		return nil
	case e.GetType() != pb.EntryConfChange && e.GetType() != pb.EntryConfChangeV2:
		return fmt.Errorf("entry type %d", e.GetType())
	}
	_, err := change(e)
	return err
}

func encodeAt(e *pb.Entry, offset, timestamp int64) (record.Batch, error) {
	if err := checkEntry(e); err != nil {
		return nil, err
	}
	epoch := int32(e.GetTerm())
	if e.GetType() == pb.EntryNormal {
		if len(e.GetData()) == 0 {
			return controlBatch(offset, epoch, timestamp, leaderChange(nil)), nil
		}
		b := record.Batch(e.GetData()).Clone()
		b.SetBaseOffset(offset)
		b.SetPartitionLeaderEpoch(epoch)
		return b, nil
	}
	raft := raftTag(append([]byte{byte(e.GetType())}, e.GetData()...))
	if voters, ok := outcome(e); ok {
		return controlBatch(offset, epoch, timestamp, &metadata.Voters{Voters: voters, Unknown: raft}), nil
	}
	return controlBatch(offset, epoch, timestamp, leaderChange(raft)), nil
}

// checkProposal says whether data can be a normal entry: one whole data batch, not yet placed in a log.
func checkProposal(data []byte) error {
	b := record.Batch(data)
	if err := b.VerifyCRC(); err != nil {
		return err
	}
	switch {
	case b.IsControl():
		return errors.New("a control batch cannot be proposed")
	case b.BaseOffset() != 0 || b.PartitionLeaderEpoch() != record.NoLeaderEpoch:
		return fmt.Errorf("batch has a place already (offset %d, epoch %d)", b.BaseOffset(), b.PartitionLeaderEpoch())
	case b.LastOffsetDelta() < 0 || b.LastOffsetDelta() == math.MaxInt32:
		return fmt.Errorf("batch has last offset delta %d", b.LastOffsetDelta())
	}
	return nil
}

// change reads the membership change in an entry.
func change(e *pb.Entry) (pb.ConfChangeI, error) {
	if e.GetType() == pb.EntryConfChange {
		c := &pb.ConfChange{}
		return c, proto.Unmarshal(e.GetData(), c)
	}
	c := &pb.ConfChangeV2{}
	return c, proto.Unmarshal(e.GetData(), c)
}

// outcome is the voters a membership change leads to, if it says so in its context.
func outcome(e *pb.Entry) ([]Voter, bool) {
	c, err := change(e)
	if err != nil || len(c.AsV2().GetContext()) == 0 {
		return nil, false
	}
	voters, err := decodeVoters(c.AsV2().GetContext())
	return voters, err == nil && len(voters) > 0
}

// decodeEntry is the entry a batch was made from. The batch is not kept.
func decodeEntry(b record.Batch, index uint64) (*pb.Entry, error) {
	e, err := decodeBatch(b, index)
	if err != nil {
		return nil, &EntryError{Index: index, Err: err}
	}
	return e, nil
}

func decodeBatch(b record.Batch, index uint64) (*pb.Entry, error) {
	if err := b.VerifyCRC(); err != nil {
		return nil, err
	}
	e := &pb.Entry{Term: new(uint64(b.PartitionLeaderEpoch())), Index: new(index), Type: pb.EntryNormal.Enum()}
	if !b.IsControl() {
		data := b.Clone()
		data.SetBaseOffset(0)
		data.SetPartitionLeaderEpoch(record.NoLeaderEpoch)
		e.Data = data
		return e, nil
	}
	c, err := onlyControl(b)
	if err != nil {
		return nil, err
	}
	var tags metadata.Tags
	switch c := c.(type) {
	case *metadata.LeaderChange:
		tags = c.Unknown
	case *metadata.Voters:
		tags = c.Unknown
	default:
		return nil, fmt.Errorf("control record of type %d is no entry of raft's", c.ControlType())
	}
	payload, ok := raftPayload(tags)
	if !ok {
		if c.ControlType() == metadata.ControlVoters {
			return nil, errors.New("a Voters record without raft's part was not written by this quorum")
		}
		return e, nil
	}
	if len(payload) == 0 {
		return nil, errShort
	}
	kind := pb.EntryType(payload[0])
	if kind != pb.EntryConfChange && kind != pb.EntryConfChangeV2 {
		return nil, fmt.Errorf("raft entry type %d in a control record", kind)
	}
	e.Type = kind.Enum()
	if len(payload) > 1 {
		e.Data = append([]byte(nil), payload[1:]...)
	}
	return e, nil
}
