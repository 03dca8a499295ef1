package quorum

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
	pb "go.etcd.io/raft/v3/raftpb"
)

// snapshotPiece is how much of a snapshot is asked for at a time: controller.quorum.fetch.snapshot.max.bytes' default.
const snapshotPiece = 1 << 20

// Download is the file of a snapshot on its way here, piece by piece from the leader: a transfer that broke off goes on
// from where it was.
type Download struct {
	id    SnapshotID
	bytes []byte
}

// NewDownload begins, or goes on with before (nil: none), the transfer of the file that a message with a snapshot lacks. It
// is nil where there is none.
func NewDownload(message *pb.Message, before *Download) (*Download, error) {
	place, err := snapshotPlace(message)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: snapshot: %w", ErrInvalidRequest, err)
	case place.EndOffset == 0:
		return nil, nil
	case before != nil && before.id == place.snapshotID():
		return before, nil
	}
	return &Download{id: place.snapshotID()}, nil
}

// Request asks the leader of that epoch for the next piece.
func (d *Download) Request(self Identity, epoch int32) *kmsg.FetchSnapshotRequest {
	req := kmsg.NewPtrFetchSnapshotRequest()
	req.ClusterID, req.ReplicaID, req.MaxBytes = &self.ClusterID, self.NodeID, snapshotPiece
	partition := kmsg.NewFetchSnapshotRequestTopicPartition()
	partition.CurrentLeaderEpoch, partition.Position = epoch, int64(len(d.bytes))
	partition.SnapshotID.EndOffset, partition.SnapshotID.Epoch = d.id.EndOffset, d.id.Epoch
	topic := kmsg.NewFetchSnapshotRequestTopic()
	topic.Topic, topic.Partitions = TopicName, append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return req
}

// Take takes the answer to Request, and says whether the file is whole now.
func (d *Download) Take(answer *kmsg.FetchSnapshotResponse) (whole bool, err error) {
	if answer.ErrorCode != 0 {
		return false, fmt.Errorf("FetchSnapshot is answered with error code %d", answer.ErrorCode)
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return false, errors.New("the answer to FetchSnapshot does not hold exactly one partition")
	}
	piece, position := &answer.Topics[0].Partitions[0], int64(len(d.bytes))
	if piece.ErrorCode != 0 {
		d.bytes = nil // the snapshot may be gone, or the leadership over: begin anew
		return false, fmt.Errorf("FetchSnapshot of %s from byte %d is answered with error code %d", d.id, position, piece.ErrorCode)
	}
	if piece.SnapshotID.EndOffset != d.id.EndOffset || piece.SnapshotID.Epoch != d.id.Epoch || piece.Position != position {
		return false, errors.New("not the piece of the snapshot that was asked for")
	}
	d.bytes = append(d.bytes, piece.Bytes...)
	if int64(len(d.bytes)) >= piece.Size {
		return true, nil
	}
	if len(piece.Bytes) == 0 {
		return false, errors.New("the leader sends an empty piece of its snapshot")
	}
	return false, nil
}

// Complete puts the whole file into the message.
func (d *Download) Complete(message *pb.Message) {
	data := message.GetSnapshot().GetData()
	message.Snapshot.Data = append(data[:len(data):len(data)], d.bytes...)
}

// fetchSnapshot completes a message that brings a snapshot with the file, piece by piece from the leader that sent it.
func (m *Mesh) fetchSnapshot(ctx context.Context, from Identity, st Statement, message *pb.Message) error {
	key := RaftID(from.NodeID, from.DirectoryID)
	m.mu.Lock()
	before := m.downloads[key]
	m.mu.Unlock()
	d, err := NewDownload(message, before)
	if err != nil || d == nil {
		return err
	}
	// Where the leader is it says itself: a controller that is to become a voter does not know it otherwise.
	leader, ok := st.Who(from)
	if !ok {
		return fmt.Errorf("%w: the leader does not say where it is", ErrInvalidRequest)
	}
	m.mu.Lock()
	addr := m.address(leader)
	delete(m.downloads, key)
	m.mu.Unlock()
	if err := m.fetchPieces(ctx, addr, int32(message.GetTerm()), d); err != nil {
		m.mu.Lock()
		m.downloads[key] = d
		m.mu.Unlock()
		return errors.Join(err, ctx.Err())
	}
	d.Complete(message)
	return nil
}

func (m *Mesh) fetchPieces(ctx context.Context, addr string, epoch int32, d *Download) error {
	conn, err := m.dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		whole, err := m.fetchPiece(ctx, conn, epoch, d)
		if err != nil || whole {
			return err
		}
	}
}

func (m *Mesh) fetchPiece(ctx context.Context, conn *wire.Conn, epoch int32, d *Download) (whole bool, err error) {
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	resp, err := conn.Request(limited, d.Request(m.o.Identity, epoch))
	if err != nil {
		return false, err
	}
	return d.Take(resp.(*kmsg.FetchSnapshotResponse))
}
