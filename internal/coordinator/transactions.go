package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/shard"
	"github.com/stelelog/stele/internal/txn"
)

// TransactionTopic is the internal topic that holds transactional ids.
const TransactionTopic = "__transaction_state"

// TransactionOptions of a Transactions.
type TransactionOptions struct {
	Config txn.Config
	// CommitTimeout is how long a request waits for its record to be replicated. Zero: 30 s.
	CommitTimeout time.Duration
	// ProducerID waits until producer ids are at hand. A request that found none is tried again afterwards.
	ProducerID func(ctx context.Context) error
	// WriteMarkers writes markers to partitions that a broker leads, and says what became of each, in their order. It
	// waits until they are replicated there, or ctx ends.
	WriteMarkers func(ctx context.Context, broker int32, markers []Marker) [][]MarkerOutcome
	Logger       *slog.Logger
	Now          func() time.Time // nil: time.Now
}

// Transactions is this broker's transaction coordinator: the shards of those partitions of __transaction_state that it
// leads. All methods may be called concurrently; what a request's method promises is as with Runtime.
type Transactions struct {
	*host[*txn.Shard, *txn.Record]
	opts    TransactionOptions
	level   atomic.Int32 // of transaction.version
	markers *markerSender
}

// NewTransactions makes a coordinator without shards. Close ends it.
func NewTransactions(opts TransactionOptions) *Transactions {
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = 30 * time.Second
	}
	t := &Transactions{opts: opts}
	t.host = newHost(kind[*txn.Shard, *txn.Record]{
		topic: TransactionTopic, make: func() *txn.Shard { return txn.NewShard(opts.Config) },
		encode: txn.EncodeRecord, decode: txn.DecodeRecord, timeout: opts.CommitTimeout,
		before: func(s *txn.Shard) { s.SetLevel(int16(t.level.Load())) },
		after: func(r *runner[*txn.Shard, *txn.Record]) {
			if markers := r.shard.TakeMarkers(); len(markers) > 0 {
				t.markers.send(r, markers)
			}
		},
	}, opts.Logger, opts.Now)
	t.markers = newMarkerSender(t.host, opts.WriteMarkers)
	return t
}

// Close unloads every shard, stops sending markers, and waits for both.
func (t *Transactions) Close() {
	t.host.Close()
	t.markers.close()
}

// Apply follows the cluster metadata, as Runtime's does.
func (t *Transactions) Apply(brokerID int32, replicas *replica.Manager, img *metadata.Image, delta *metadata.Delta) {
	level, _ := img.Features().Get(metadata.FeatureTransaction)
	t.level.Store(int32(level))
	t.apply(brokerID, replicas, img, delta)
	t.markers.poke()
}

// withProducerID asks again for as long as all that is wrong is that no producer id is at hand.
func withProducerID[T any](ctx context.Context, t *Transactions, ask func() (T, error, error)) (T, error) {
	for {
		reply, answer, err := ask()
		if err != nil || !errors.Is(answer, txn.ErrNoProducerID) || t.opts.ProducerID == nil {
			return reply, err
		}
		if t.opts.ProducerID(ctx) != nil {
			return reply, nil // the producer asks again
		}
	}
}

// InitProducerID answers one InitProducerId with a transactional id.
func (t *Transactions) InitProducerID(ctx context.Context, req txn.InitRequest) (*txn.InitReply, error) {
	if err := t.opts.Config.Validate(req); err != nil {
		return (&txn.InitReply{}).Failed(err).(*txn.InitReply), nil
	}
	return withProducerID(ctx, t, func() (*txn.InitReply, error, error) {
		reply, err := ask[*txn.InitReply](ctx, t.host, req.ID, func(s *txn.Shard, now time.Time, to shard.ReplyTo) txn.Effects {
			return s.InitProducerID(now, to, req)
		})
		if err != nil {
			return nil, nil, err
		}
		return reply, reply.Err, nil
	})
}

// AddPartitions answers AddPartitionsToTxn and AddOffsetsToTxn, for one transaction.
func (t *Transactions) AddPartitions(ctx context.Context, req txn.AddRequest) (*txn.AddReply, error) {
	if req.ID == "" {
		return &txn.AddReply{Err: txn.ErrInvalidRequest}, nil // whether or not a shard is loaded
	}
	return ask[*txn.AddReply](ctx, t.host, req.ID, func(s *txn.Shard, now time.Time, to shard.ReplyTo) txn.Effects {
		return s.AddPartitions(now, to, req)
	})
}

// EndTxn answers one EndTxn, once the transaction is decided.
func (t *Transactions) EndTxn(ctx context.Context, req txn.EndRequest) (*txn.EndReply, error) {
	if req.ID == "" {
		return (&txn.EndReply{}).Failed(txn.ErrInvalidRequest).(*txn.EndReply), nil
	}
	return withProducerID(ctx, t, func() (*txn.EndReply, error, error) {
		reply, err := ask[*txn.EndReply](ctx, t.host, req.ID, func(s *txn.Shard, now time.Time, to shard.ReplyTo) txn.Effects {
			return s.EndTxn(now, to, req)
		})
		if err != nil {
			return nil, nil, err
		}
		return reply, reply.Err, nil
	})
}

// Describe shows one transactional id.
func (t *Transactions) Describe(ctx context.Context, id string) (txn.Description, error) {
	one, err := t.shardOf(id)
	if err != nil {
		return txn.Description{}, err
	}
	return read(ctx, one, func(s *txn.Shard, _ time.Time) txn.Description { return s.Describe(id) })
}

// List lists the transactional ids of every shard here. A shard that is just leaving counts as empty; one that is loading
// is an error, since the list would be short.
func (t *Transactions) List(ctx context.Context, f txn.Filter) ([]txn.Listed, error) {
	if t.isClosed() {
		return nil, shard.ErrCoordinatorNotAvailable
	}
	var listed []txn.Listed
	for _, one := range t.all() {
		part, err := read(ctx, one, func(s *txn.Shard, now time.Time) []txn.Listed { return s.List(now, f) })
		switch {
		case err == nil:
			listed = append(listed, part...)
		case errors.Is(err, shard.ErrNotCoordinator):
		default:
			return nil, err
		}
	}
	return listed, nil
}

// Stats counts what the shards here hold and did; those that load or leave are left out.
func (t *Transactions) Stats(ctx context.Context) (sum txn.Stats, loaded int) {
	sum.IDs = map[string]int{}
	for _, one := range t.all() {
		st, err := read(ctx, one, func(s *txn.Shard, _ time.Time) txn.Stats { return s.Stats() })
		if err != nil {
			continue
		}
		loaded++
		for state, n := range st.IDs {
			sum.IDs[state] += n
		}
		sum.Commits += st.Commits
		sum.Aborts += st.Aborts
		sum.TimedOut += st.TimedOut
		sum.Markers += st.Markers
	}
	return sum, loaded
}
