package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/wire"
)

// FollowOptions say how this broker fetches from leaders: the settings replica.fetch.*.
type FollowOptions struct {
	Listener         string // by which brokers reach each other
	MaxWait          time.Duration
	MinBytes         int32
	MaxBytes         int32 // per partition
	ResponseMaxBytes int32
	SocketTimeout    time.Duration // replica.socket.timeout.ms, beside MaxWait
}

// Leader makes an endpoint of another broker, as replica.Options.Leader wants it.
func (b *Broker) Leader(id int32, o FollowOptions) replica.Leader {
	return &leaderEndpoint{broker: b, id: id, o: o}
}

// leaderEndpoint copies partitions from another broker over one connection, with a fetch session (KIP-227): what has not
// changed since the last request is not said again.
type leaderEndpoint struct {
	broker *Broker
	id     int32
	o      FollowOptions

	conn    *wire.Conn
	session int32 // 0: none yet
	epoch   int32 // of the next request in the session
	told    map[followedKey]replica.FollowQuery
}

type followedKey struct {
	topic     metadata.UUID
	partition int32
}

var errLeaderUnknown = errors.New("it is not registered, or has no listener for brokers")

func (l *leaderEndpoint) connect(ctx context.Context) error {
	if l.conn != nil {
		select {
		case <-l.conn.Done():
			l.Close()
		default:
			return nil
		}
	}
	registration, ok := l.broker.Image().Broker(l.id)
	if !ok {
		return errLeaderUnknown
	}
	endpoint, ok := registration.Endpoint(l.o.Listener)
	if !ok {
		return errLeaderUnknown
	}
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	addr := net.JoinHostPort(endpoint.Host, strconv.Itoa(int(endpoint.Port)))
	conn, err := wire.Dial(limited, l.broker.opts.Dial, addr, wire.DialOptions{ClientID: fmt.Sprintf("broker-%d-fetcher", l.broker.opts.NodeID)})
	if err != nil {
		return err
	}
	l.conn = conn
	return nil
}

// Close drops the connection, and with it the session.
func (l *leaderEndpoint) Close() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	l.beginAnew()
}

// beginAnew makes the next request one for a new session. It names the old one, if the leader may still keep that, which
// ends it: it would take a place from others until it is old.
func (l *leaderEndpoint) beginAnew() { l.epoch, l.told = 0, nil }

// forgetSession is beginAnew where the leader has no session of ours.
func (l *leaderEndpoint) forgetSession() { l.session, l.epoch, l.told = 0, 0, nil }

func (l *leaderEndpoint) request(ctx context.Context, req kmsg.Request, wait time.Duration) (kmsg.Response, error) {
	if err := l.connect(ctx); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, wait+l.o.SocketTimeout)
	defer cancel()
	resp, err := l.conn.Request(limited, req)
	if err != nil {
		l.Close() // an answer that is not waited for would hold up the next
		return nil, err
	}
	return resp, nil
}

// Fetch is replica.Leader's.
func (l *leaderEndpoint) Fetch(ctx context.Context, asked []replica.FollowQuery) ([]replica.Followed, error) {
	if err := l.connect(ctx); err != nil {
		return nil, err
	}
	resp, err := l.request(ctx, l.fetchRequest(asked), l.o.MaxWait)
	if err != nil {
		return nil, err
	}
	return l.take(resp.(*kmsg.FetchResponse))
}

// take is what an answer says, of the session too.
func (l *leaderEndpoint) take(answer *kmsg.FetchResponse) ([]replica.Followed, error) {
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		l.beginAnew()
		switch {
		case errors.Is(err, kerr.FetchSessionIDNotFound):
			l.forgetSession()
			return nil, nil // the next request begins a new one
		case errors.Is(err, kerr.InvalidFetchSessionEpoch), errors.Is(err, kerr.FetchSessionTopicIDError):
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %w", replica.ErrLeaderFailed, err)
	}
	if l.session = answer.SessionID; l.session == 0 {
		l.forgetSession() // the leader keeps none for us
	}
	var out []replica.Followed
	for i := range answer.Topics {
		t := &answer.Topics[i]
		for k := range t.Partitions {
			p := &t.Partitions[k]
			f := replica.Followed{TopicID: t.TopicID, Partition: p.Partition, HighWatermark: p.HighWatermark, LogStart: p.LogStartOffset, Records: p.RecordBatches}
			f.Err = followError(p.ErrorCode)
			if f.Diverging = p.DivergingEpoch.Epoch >= 0; f.Diverging {
				f.DivergingEpoch = replica.OffsetAndEpoch{Offset: p.DivergingEpoch.EndOffset, Epoch: p.DivergingEpoch.Epoch}
			}
			out = append(out, f)
		}
	}
	return out, nil
}

// fetchRequest is the next request: all of asked where there is no session, else what has changed.
func (l *leaderEndpoint) fetchRequest(asked []replica.FollowQuery) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = l.broker.opts.NodeID, l.broker.opts.NodeID, l.broker.Epoch()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(l.o.MaxWait.Milliseconds()), l.o.MinBytes, l.o.ResponseMaxBytes
	req.SessionID, req.SessionEpoch = l.session, l.epoch
	l.epoch++
	if l.epoch <= 0 {
		l.epoch = 1
	}
	told := make(map[followedKey]replica.FollowQuery, len(asked))
	for _, q := range asked {
		key := followedKey{q.TopicID, q.Partition}
		told[key] = q
		if before, ok := l.told[key]; ok && before == q {
			continue
		}
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != [16]byte(q.TopicID) {
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = q.Topic, q.TopicID
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.FetchOffset, p.LastFetchedEpoch = q.Partition, q.CurrentLeaderEpoch, q.FetchOffset, q.LastFetchedEpoch
		p.LogStartOffset, p.PartitionMaxBytes = q.LogStart, l.o.MaxBytes
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	var gone []followedKey
	for key := range l.told {
		if _, ok := told[key]; !ok {
			gone = append(gone, key)
		}
	}
	slices.SortFunc(gone, func(a, b followedKey) int {
		return cmp.Or(slices.Compare(a.topic[:], b.topic[:]), cmp.Compare(a.partition, b.partition))
	})
	for _, key := range gone {
		if n := len(req.ForgottenTopics); n == 0 || req.ForgottenTopics[n-1].TopicID != [16]byte(key.topic) {
			t := kmsg.NewFetchRequestForgottenTopic()
			t.Topic, t.TopicID = l.told[key].Topic, key.topic
			req.ForgottenTopics = append(req.ForgottenTopics, t)
		}
		t := &req.ForgottenTopics[len(req.ForgottenTopics)-1]
		t.Partitions = append(t.Partitions, key.partition)
	}
	l.told = told
	return req
}

// Offset is replica.Leader's.
func (l *leaderEndpoint) Offset(ctx context.Context, q replica.FollowQuery, timestamp int64) (replica.OffsetAndEpoch, error) {
	unknown := replica.OffsetAndEpoch{Offset: replica.NoOffset, Epoch: replica.NoEpoch}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = l.broker.opts.NodeID
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.Timestamp = q.Partition, q.CurrentLeaderEpoch, timestamp
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic, t.Partitions = q.Topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := l.request(ctx, req, 0)
	if err != nil {
		return unknown, fmt.Errorf("%w: %w", replica.ErrLeaderFailed, err)
	}
	answer := resp.(*kmsg.ListOffsetsResponse)
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return unknown, fmt.Errorf("%w: its answer to ListOffsets does not hold exactly one partition", replica.ErrLeaderFailed)
	}
	one := &answer.Topics[0].Partitions[0]
	return known(one.Offset, one.LeaderEpoch), followError(one.ErrorCode)
}

// EndOffset is replica.Leader's.
func (l *leaderEndpoint) EndOffset(ctx context.Context, q replica.FollowQuery, epoch int32) (replica.OffsetAndEpoch, error) {
	unknown := replica.OffsetAndEpoch{Offset: replica.NoOffset, Epoch: replica.NoEpoch}
	if epoch < 0 {
		return unknown, nil // nobody knows where that ends; some brokers would answer nonsense to -2
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = l.broker.opts.NodeID
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = q.Partition, q.CurrentLeaderEpoch, epoch
	t := kmsg.NewOffsetForLeaderEpochRequestTopic()
	t.Topic, t.Partitions = q.Topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := l.request(ctx, req, 0)
	if err != nil {
		return unknown, fmt.Errorf("%w: %w", replica.ErrLeaderFailed, err)
	}
	answer := resp.(*kmsg.OffsetForLeaderEpochResponse)
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return unknown, fmt.Errorf("%w: its answer to OffsetForLeaderEpoch does not hold exactly one partition", replica.ErrLeaderFailed)
	}
	one := &answer.Topics[0].Partitions[0]
	return known(one.EndOffset, one.LeaderEpoch), followError(one.ErrorCode)
}

// known is an offset and an epoch of an answer, in which every negative number is unknown.
func known(offset int64, epoch int32) replica.OffsetAndEpoch {
	return replica.OffsetAndEpoch{Offset: max(offset, replica.NoOffset), Epoch: max(epoch, replica.NoEpoch)}
}

// followError is what a leader's code for a partition means to its follower.
func followError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.OffsetOutOfRange):
		return replica.ErrOffsetOutOfRange
	case errors.Is(err, kerr.CorruptMessage), errors.Is(err, kerr.InvalidRecord):
		return fmt.Errorf("%w: %w", replica.ErrCorrupt, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return replica.ErrUnknownTopicOrPartition
	case errors.Is(err, kerr.UnknownTopicID):
		return replica.ErrUnknownTopicID
	case errors.Is(err, kerr.InconsistentTopicID):
		return replica.ErrInconsistentTopicID
	case errors.Is(err, kerr.NotLeaderForPartition):
		return replica.ErrNotLeaderOrFollower
	case errors.Is(err, kerr.FencedLeaderEpoch):
		return replica.ErrFencedLeaderEpoch
	case errors.Is(err, kerr.UnknownLeaderEpoch):
		return replica.ErrUnknownLeaderEpoch
	case errors.Is(err, kerr.OffsetMovedToTieredStorage):
		return replica.ErrOffsetMovedToTieredStorage
	}
	return fmt.Errorf("%w: %w", replica.ErrLeaderFailed, err)
}
