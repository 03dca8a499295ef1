package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

const (
	metadataTopic    = "__cluster_metadata"
	observerMaxWait  = 500 * time.Millisecond
	observerMaxBytes = 1 << 20
	observerBackoff  = 20 * time.Millisecond
)

// metadataTopicID is the reserved id of the metadata topic.
var metadataTopicID = [16]byte{15: 1}

// observer follows the metadata log over Fetch and FetchSnapshot (KIP-595,
// KIP-630) and hands committed batches to apply, in order.
type observer struct {
	opts    *Options
	apply   func(batches []record.Batch, highWatermark int64) error
	restore func(snapshot []byte, endOffset int64, lastEpoch int32) error
	logger  *slog.Logger

	state  *observerState
	addrs  map[int32]string            // where each controller was last said to be
	leads  atomic.Pointer[knownLeader] // what the controller channel reads
	asking string                      // address of conn
	conn   *wire.Conn
}

// knownLeader is what the controller channel needs to know of the leader.
type knownLeader struct {
	leader
	addr       string
	superseded chan struct{} // closed when something else is known
}

func newObserver(opts *Options, apply func([]record.Batch, int64) error, restore func([]byte, int64, int32) error) *observer {
	o := &observer{opts: opts, apply: apply, restore: restore, logger: opts.Logger, state: newObserverState(), addrs: map[int32]string{}}
	for _, c := range opts.Controllers {
		if c.ID >= 0 {
			o.addrs[c.ID] = c.Addr
		}
	}
	o.leads.Store(&knownLeader{leader: leader{id: noLeader, epoch: -1}, superseded: make(chan struct{})})
	return o
}

// leaderAddr is where the active controller listens, "" while nobody said so, and a
// channel that is closed when that has changed.
func (o *observer) leaderAddr() (addr string, changed <-chan struct{}) {
	known := o.leads.Load()
	return known.addr, known.superseded
}

// run fetches until ctx ends. It returns an error only when going on could build
// an image that differs from the quorum's; the process must then end.
func (o *observer) run(ctx context.Context) error {
	defer o.disconnect()
	var last string
	for ctx.Err() == nil {
		err := o.fetch(ctx)
		var fatal *errObserver
		switch {
		case err == nil:
			last = ""
			continue
		case errors.As(err, &fatal):
			return err
		case ctx.Err() != nil:
			return nil
		}
		if reason := err.Error(); reason != last {
			last = reason
			o.logger.Debug("metadata fetch failed, asking again", "cause", reason)
		}
		select {
		case <-ctx.Done():
		case <-time.After(observerBackoff):
		}
	}
	return nil
}

func (o *observer) disconnect() {
	if o.conn != nil {
		o.conn.Close()
		o.conn = nil
	}
}

// connect keeps a connection to the leader, or to any controller while none is known.
func (o *observer) connect(ctx context.Context) (*wire.Conn, error) {
	addr, known := o.addrs[o.state.leader.id], o.state.leader.id != noLeader
	if !known || addr == "" {
		if len(o.opts.Controllers) == 0 {
			return nil, errors.New("no controller is configured: set controller.quorum.voters or controller.quorum.bootstrap.servers")
		}
		if o.conn != nil && !known {
			o.disconnect()
		}
		addr = anyOf(o.opts.Controllers)
	}
	if o.conn != nil && o.asking == addr {
		return o.conn, nil
	}
	o.disconnect()
	attempt, cancel := context.WithTimeout(ctx, o.opts.QuorumRequestTimeout)
	defer cancel()
	conn, err := wire.Dial(attempt, o.opts.Dial, addr, wire.DialOptions{ClientID: "observer"})
	if err != nil {
		o.leaderLost()
		return nil, err
	}
	o.conn, o.asking = conn, addr
	return conn, nil
}

func (o *observer) leaderLost() {
	o.state.forgetLeader()
	o.publishLeader()
}

func (o *observer) request(ctx context.Context, req kmsg.Request, wait time.Duration) (kmsg.Response, error) {
	conn, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	attempt, cancel := context.WithTimeout(ctx, wait+o.opts.QuorumRequestTimeout)
	defer cancel()
	resp, err := conn.Request(attempt, req)
	if err != nil {
		o.disconnect()
		o.leaderLost()
		return nil, err
	}
	return resp, nil
}

func (o *observer) fetch(ctx context.Context) error {
	resp, err := o.request(ctx, o.fetchRequest(), observerMaxWait)
	if err != nil {
		return err
	}
	answer := resp.(*kmsg.FetchResponse)
	if answer.ErrorCode != 0 {
		err := kerr.ErrorForCode(answer.ErrorCode)
		if errors.Is(err, kerr.ClusterAuthorizationFailed) {
			return fatalf("this node may not fetch the metadata log: %v", err)
		}
		return fmt.Errorf("fetching the metadata log: %w", err)
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return errors.New("fetching the metadata log: the answer does not hold exactly one partition")
	}
	partition := &answer.Topics[0].Partitions[0]
	for _, e := range answer.Brokers {
		o.addrs[e.NodeID] = net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
	}
	if err := o.learn(partition.CurrentLeader.LeaderID, partition.CurrentLeader.LeaderEpoch); err != nil {
		return err
	}
	if partition.ErrorCode != 0 {
		return o.partitionError(partition.ErrorCode)
	}
	switch {
	case partition.DivergingEpoch.Epoch >= 0:
		return o.state.truncate(partition.DivergingEpoch.Epoch, partition.DivergingEpoch.EndOffset)
	case partition.SnapshotID.EndOffset >= 0 && partition.SnapshotID.Epoch >= 0:
		return o.download(ctx, partition.SnapshotID.EndOffset, partition.SnapshotID.Epoch)
	}
	if err := o.state.append(partition.RecordBatches); err != nil {
		return err
	}
	return o.advance(partition.HighWatermark)
}

func (o *observer) advance(highWatermark int64) error {
	if highWatermark < 0 {
		return nil
	}
	return o.apply(o.state.advance(highWatermark), highWatermark)
}

func (o *observer) learn(id, epoch int32) error {
	if err := o.state.learn(leader{id: id, epoch: epoch}); err != nil {
		return err
	}
	o.publishLeader()
	return nil
}

func (o *observer) publishLeader() {
	next := &knownLeader{leader: o.state.leader, superseded: make(chan struct{})}
	if next.id != noLeader {
		next.addr = o.addrs[next.id]
	}
	old := o.leads.Load()
	if old.leader == next.leader && old.addr == next.addr {
		return
	}
	o.leads.Store(next)
	close(old.superseded)
	o.logger.Info("quorum leader", "leader", next.id, "quorum_epoch", next.epoch, "address", next.addr)
}

func (o *observer) partitionError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch {
	case errors.Is(err, kerr.InvalidRequest):
		return fatalf("the controller calls the fetch invalid: %v", err)
	case errors.Is(err, kerr.FencedLeaderEpoch), errors.Is(err, kerr.NotLeaderForPartition):
		if addr := o.addrs[o.state.leader.id]; o.state.leader.id != noLeader && addr != "" && addr != o.asking {
			return nil // the answer named another as the leader: ask it at once
		}
		o.disconnect()
		if errors.Is(err, kerr.NotLeaderForPartition) {
			o.leaderLost() // the one that was asked is not it, and does not say who is: any controller may know
		}
	case errors.Is(err, kerr.UnknownLeaderEpoch):
		return errStaleAnswer
	}
	return fmt.Errorf("fetching the metadata log: %w", err)
}

func (o *observer) fetchRequest() *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ClusterID = &o.opts.ClusterID
	req.ReplicaState.ID = o.opts.NodeID
	req.ReplicaID = o.opts.NodeID
	req.MaxWaitMillis = int32(observerMaxWait.Milliseconds())
	req.MinBytes = 0
	req.MaxBytes = observerMaxBytes
	req.SessionEpoch = -1
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.CurrentLeaderEpoch = o.state.leader.epoch
	partition.FetchOffset = o.state.end.endOffset
	partition.LastFetchedEpoch = o.state.end.lastEpoch
	partition.LogStartOffset = -1
	partition.ReplicaDirectoryID = o.opts.MetadataDirID
	partition.HighWatermark = o.state.highWatermark
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = metadataTopic, metadataTopicID
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return req
}

// download fetches a whole snapshot and restarts the log behind it. It is given
// up, and the next fetch decides anew, when the leader changes or the answer is
// not the piece that was asked for.
func (o *observer) download(ctx context.Context, endOffset int64, epoch int32) error {
	var snapshot []byte
	started := o.state.leader.epoch
	for {
		req := kmsg.NewPtrFetchSnapshotRequest()
		req.ClusterID = &o.opts.ClusterID
		req.ReplicaID, req.MaxBytes = o.opts.NodeID, observerMaxBytes
		partition := kmsg.NewFetchSnapshotRequestTopicPartition()
		partition.CurrentLeaderEpoch = o.state.leader.epoch
		partition.SnapshotID.EndOffset, partition.SnapshotID.Epoch = endOffset, epoch
		partition.Position = int64(len(snapshot))
		topic := kmsg.NewFetchSnapshotRequestTopic()
		topic.Topic = metadataTopic
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)

		resp, err := o.request(ctx, req, 0)
		if err != nil {
			return err
		}
		answer := resp.(*kmsg.FetchSnapshotResponse)
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			return fmt.Errorf("fetching a metadata snapshot: %w", err)
		}
		if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
			return errors.New("fetching a metadata snapshot: the answer does not hold exactly one partition")
		}
		piece := &answer.Topics[0].Partitions[0]
		if err := o.learn(piece.CurrentLeader.LeaderID, piece.CurrentLeader.LeaderEpoch); err != nil {
			return err
		}
		if piece.ErrorCode != 0 {
			return o.partitionError(piece.ErrorCode)
		}
		if piece.SnapshotID.EndOffset != endOffset || piece.SnapshotID.Epoch != epoch || piece.Position != int64(len(snapshot)) ||
			len(piece.Bytes) == 0 || o.state.leader.epoch != started {
			return errors.New("fetching a metadata snapshot: not the piece that was asked for, starting over")
		}
		snapshot = append(snapshot, piece.Bytes...)
		if int64(len(snapshot)) >= piece.Size {
			break
		}
	}
	if err := o.restore(snapshot, endOffset, epoch); err != nil {
		return err
	}
	o.logger.Info("metadata image restored from a snapshot", "end_offset", endOffset, "epoch", epoch, "bytes", len(snapshot))
	return o.state.restart(endOffset, epoch)
}
