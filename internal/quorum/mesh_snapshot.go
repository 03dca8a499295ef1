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

// download is the beginning of a snapshot: a transfer that broke off goes on from there.
type download struct {
	id    SnapshotID
	bytes []byte
}

// fetchSnapshot completes a message that brings a snapshot with the file, piece by piece from the leader that sent it.
func (m *Mesh) fetchSnapshot(ctx context.Context, from Identity, self []byte, message *pb.Message) error {
	place, err := snapshotPlace(message)
	if err != nil {
		return fmt.Errorf("%w: snapshot: %w", ErrInvalidRequest, err)
	}
	if place.EndOffset == 0 {
		return nil
	}
	// Where the leader is it says itself: a controller that is to become a voter does not know it otherwise.
	one, err := decodeVoters(self)
	if err != nil || len(one) != 1 || one[0].VoterID != from.NodeID || one[0].VoterDirectoryID != from.DirectoryID {
		return fmt.Errorf("%w: the leader does not say where it is", ErrInvalidRequest)
	}
	leader := one[0]
	id, key := place.snapshotID(), RaftID(from.NodeID, from.DirectoryID)
	m.mu.Lock()
	addr, d := m.address(leader), m.downloads[key]
	delete(m.downloads, key)
	m.mu.Unlock()
	if d.id != id {
		d = download{id: id}
	}
	whole, err := m.fetchPieces(ctx, addr, int32(message.GetTerm()), &d)
	if err != nil || !whole {
		m.mu.Lock()
		m.downloads[key] = d
		m.mu.Unlock()
		return errors.Join(err, ctx.Err())
	}
	data := message.GetSnapshot().GetData()
	message.Snapshot.Data = append(data[:len(data):len(data)], d.bytes...)
	return nil
}

func (m *Mesh) fetchPieces(ctx context.Context, addr string, epoch int32, d *download) (whole bool, err error) {
	conn, err := m.dial(ctx, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	for {
		piece, err := m.fetchPiece(ctx, conn, epoch, d)
		if err != nil {
			return false, err
		}
		d.bytes = append(d.bytes, piece.Bytes...)
		if int64(len(d.bytes)) >= piece.Size {
			return true, nil
		}
		if len(piece.Bytes) == 0 {
			return false, errors.New("the leader sends an empty piece of its snapshot")
		}
	}
}

func (m *Mesh) fetchPiece(ctx context.Context, conn *wire.Conn, epoch int32, d *download) (*kmsg.FetchSnapshotResponseTopicPartition, error) {
	req := kmsg.NewPtrFetchSnapshotRequest()
	req.ClusterID, req.ReplicaID, req.MaxBytes = &m.o.Identity.ClusterID, m.o.Identity.NodeID, snapshotPiece
	partition := kmsg.NewFetchSnapshotRequestTopicPartition()
	partition.CurrentLeaderEpoch, partition.Position = epoch, int64(len(d.bytes))
	partition.SnapshotID.EndOffset, partition.SnapshotID.Epoch = d.id.EndOffset, d.id.Epoch
	topic := kmsg.NewFetchSnapshotRequestTopic()
	topic.Topic, topic.Partitions = TopicName, append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	resp, err := conn.Request(limited, req)
	if err != nil {
		return nil, err
	}
	answer := resp.(*kmsg.FetchSnapshotResponse)
	if answer.ErrorCode != 0 {
		return nil, fmt.Errorf("FetchSnapshot is answered with error code %d", answer.ErrorCode)
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return nil, errors.New("the answer to FetchSnapshot does not hold exactly one partition")
	}
	piece := &answer.Topics[0].Partitions[0]
	if piece.ErrorCode != 0 {
		d.bytes = nil // the snapshot may be gone, or the leadership over: begin anew
		return nil, fmt.Errorf("FetchSnapshot of %s from byte %d is answered with error code %d", d.id, partition.Position, piece.ErrorCode)
	}
	if piece.SnapshotID.EndOffset != d.id.EndOffset || piece.SnapshotID.Epoch != d.id.Epoch || piece.Position != int64(len(d.bytes)) {
		return nil, errors.New("not the piece of the snapshot that was asked for")
	}
	return piece, nil
}
