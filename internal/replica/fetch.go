package replica

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// FetchPartition is one partition of a Fetch.
type FetchPartition struct {
	Topic              string
	TopicID            metadata.UUID // zero: the topic is named only by Topic
	Partition          int32
	CurrentLeaderEpoch int32 // negative: absent
	FetchOffset        int64
	LastFetchedEpoch   int32 // negative: absent
	LogStartOffset     int64 // of a follower's log, -1 otherwise
	MaxBytes           int
}

// FetchRequest asks for records of several partitions, in order.
type FetchRequest struct {
	ReplicaID    int32
	ReplicaEpoch int64 // broker epoch of a follower, -1 not supplied
	Version      int16
	// MinBytes, unless reached, makes the fetch wait for up to MaxWait. MaxBytes bounds the answer, except that its first
	// batch always is whole.
	MinBytes, MaxBytes int
	MaxWait            time.Duration
	Isolation          Isolation
	RackID             string // of a consumer, "" unknown
	Partitions         []FetchPartition
}

// followerFetchVersion is the first version of Fetch in which consumers know how to read from a follower (KIP-392).
const followerFetchVersion = 11

// FetchedPartition is the answer for one partition. Beside an error all offsets are -1.
type FetchedPartition struct {
	Topic     string
	TopicID   metadata.UUID
	Partition int32
	Err       error

	HighWatermark, LastStableOffset, LogStartOffset int64
	// HasDiverging: DivergingEpoch is where this log and the fetcher's history part; there are no records then.
	HasDiverging   bool
	DivergingEpoch OffsetAndEpoch
	// PreferredReadReplica is the broker to ask instead, -1 none.
	PreferredReadReplica int32
	// Records are raw batches; Length 0 when there are none. They begin with the batch that holds the fetch offset, and
	// the last may be cut. Valid until the result is released.
	Records log.Data
	// AbortedTxns lists the aborted transactions among the records; nil unless read_committed.
	AbortedTxns []log.AbortedTxn

	view      *log.View
	throttled bool          // the leader's side of its replication
	held      bool          // and there are records that may not be given yet
	traffic   *topicTraffic // nil when the partition is not here
}

// FetchResult is the answer to a Fetch. Release it once its bytes have been sent, or dropped.
type FetchResult struct {
	Partitions []FetchedPartition
}

// Release lets go of the logs. Records must not be used after it; once more does nothing.
func (r *FetchResult) Release() {
	for i := range r.Partitions {
		f := &r.Partitions[i]
		if f.view != nil {
			f.view.Release()
			f.view, f.Records = nil, log.Data{}
		}
	}
}

// bytes is how much there is to send.
func (r *FetchResult) bytes() (n int) {
	for i := range r.Partitions {
		n += r.Partitions[i].Records.Length
	}
	return n
}

// Fetch reads all partitions. It answers at once when there are MinBytes, or an error, divergence or preferred replica
// in some partition; otherwise it waits for more, no longer than MaxWait, and until ctx is done.
// No log is held while it waits.
func (m *Manager) Fetch(ctx context.Context, req FetchRequest) *FetchResult {
	res := m.fetch(ctx, req)
	consumer := req.ReplicaID < 0
	for i := range res.Partitions {
		f := &res.Partitions[i]
		if f.throttled && !consumer {
			m.leaderRate.took(f.Records.Length, m.now())
		}
		m.traffic.all.fetched(f, consumer)
		if f.traffic != nil {
			f.traffic.fetched(f, consumer)
		}
	}
	return res
}

func (m *Manager) fetch(ctx context.Context, req FetchRequest) *FetchResult {
	req.MaxBytes = min(req.MaxBytes, m.o.FetchMaxBytes)
	req.MinBytes = min(req.MinBytes, req.MaxBytes)
	res := &FetchResult{Partitions: make([]FetchedPartition, len(req.Partitions))}
	deadline := m.now().Add(req.MaxWait)
	if m.readAll(&req, res) || req.MaxWait <= 0 || len(req.Partitions) == 0 || !m.purgatory.enter() {
		return res
	}
	defer m.purgatory.leave()

	woken := newSignal()
	watches := m.watchFetch(&req, woken)
	defer func() {
		for i := range watches {
			watches[i].remove()
		}
	}()
	timer := time.NewTimer(until(m.now(), deadline))
	defer timer.Stop()
	for expired := false; ; {
		// Read after the watches are in place, and again after each wake: nothing is missed.
		res.Release()
		if m.readAll(&req, res) || expired {
			return res
		}
		res.Release()
		if held := m.heldFor(res); held > 0 {
			// What there is may not be given yet, and would wake this fetch again and again.
			if held = min(held, until(m.now(), deadline)); !pauseFor(ctx, held) {
				return res
			}
			expired = !m.now().Before(deadline)
			continue
		}
		select {
		case <-woken:
		case <-timer.C:
			expired = true
		case <-ctx.Done():
			return res
		}
	}
}

// heldFor is how long a fetch of a follower has to wait because of the leader's rate, zero when that holds nothing back.
func (m *Manager) heldFor(res *FetchResult) time.Duration {
	if !slices.ContainsFunc(res.Partitions, func(f FetchedPartition) bool { return f.held }) {
		return 0
	}
	return max(time.Millisecond, m.leaderRate.pause(m.now()))
}

// pauseFor waits; it is false when ctx has ended.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watchFetch registers woken with every partition of req that is here.
func (m *Manager) watchFetch(req *FetchRequest, woken signal) []watch {
	kind := boundHighWatermark
	switch {
	case req.ReplicaID >= 0 || req.ReplicaID == FutureReplicaID:
		kind = boundEnd
	case req.Isolation == ReadCommitted:
		kind = boundLastStable
	}
	watches := make([]watch, len(req.Partitions))
	for i := range req.Partitions {
		in := &req.Partitions[i]
		if p, err := m.find(in.Topic, in.TopicID, in.Partition); err == nil {
			watches[i] = watch{kind: kind, offset: in.FetchOffset, waiter: woken}
			p.wait.add(&watches[i])
		}
	}
	return watches
}

// readAll fills res. done is true when there is enough to answer, or a reason to.
func (m *Manager) readAll(req *FetchRequest, res *FetchResult) (done bool) {
	now := m.now()
	left, minOne := req.MaxBytes, true
	for i := range req.Partitions {
		out := &res.Partitions[i]
		m.readPartition(req, &req.Partitions[i], out, left, minOne, now)
		if out.Records.Length > 0 {
			minOne = false
			left = max(0, left-out.Records.Length)
		}
		if out.Err != nil || out.HasDiverging || out.PreferredReadReplica >= 0 {
			done = true
		}
	}
	return done || res.bytes() >= req.MinBytes
}

// unanswered is the answer as it is beside an error.
func (in *FetchPartition) unanswered() FetchedPartition {
	return FetchedPartition{Topic: in.Topic, TopicID: in.TopicID, Partition: in.Partition, PreferredReadReplica: -1,
		HighWatermark: NoOffset, LastStableOffset: NoOffset, LogStartOffset: NoOffset}
}

// readPartition fills out, reading at most left bytes (or one batch, if minOne).
func (m *Manager) readPartition(req *FetchRequest, in *FetchPartition, out *FetchedPartition, left int, minOne bool, now time.Time) {
	*out = in.unanswered()
	p, err := m.find(in.Topic, in.TopicID, in.Partition)
	if err != nil {
		out.Err = err
		return
	}
	out.traffic, out.throttled = p.traffic, p.leaderThrottled.Load()
	if err := p.read(req, in, out, min(left, in.MaxBytes), minOne, now); err != nil {
		if out.view != nil {
			out.view.Release()
		}
		*out = in.unanswered()
		out.traffic = p.traffic
		out.Err = p.failedIO(err)
		m.tellEpoch("Fetch", req.ReplicaID, err)
	}
}

// leaderHolds says whether a follower has to wait for records because its throttled partition has used up its rate. Those
// in sync never wait.
func (p *Partition) leaderHolds(role *Role, follower int32, now time.Time) bool {
	return p.leaderThrottled.Load() && !slices.Contains(role.ISR, follower) && p.m.leaderRate.pause(now) > 0
}

func (p *Partition) read(req *FetchRequest, in *FetchPartition, out *FetchedPartition, maxBytes int, minOne bool, now time.Time) error {
	role, v := p.roleAndView()
	out.view = v
	q := FetchQuery{
		ReplicaID: req.ReplicaID, CurrentLeaderEpoch: in.CurrentLeaderEpoch, FetchOffset: in.FetchOffset,
		LastFetchedEpoch: in.LastFetchedEpoch, Isolation: req.Isolation, MayReadFollower: req.Version >= followerFetchVersion,
	}
	if err := role.CheckFetchRole(q); err != nil {
		return err
	}
	pos := positionsOf(v)
	if id, ok := p.preferred(req, in, role, pos); ok {
		out.PreferredReadReplica = id
		out.HighWatermark, out.LastStableOffset, out.LogStartOffset = pos.HighWatermark, pos.LastStable, pos.LogStart
		v.Release()
		out.view = nil
		return nil
	}
	d, err := role.CheckFetchOffset(q, pos, v.Epochs)
	if err != nil {
		return err
	}
	out.HighWatermark, out.LastStableOffset, out.LogStartOffset = pos.HighWatermark, pos.LastStable, pos.LogStart
	if d.Diverging {
		out.HasDiverging, out.DivergingEpoch = true, d.DivergingEpoch
	} else {
		if out.held = !d.AtEnd && q.fromFollower() && p.leaderHolds(role, req.ReplicaID, now); !d.AtEnd && !out.held {
			if out.Records, err = v.Read(in.FetchOffset, d.Bound, maxBytes, minOne); err != nil {
				return err
			}
		}
		if req.Isolation == ReadCommitted && !q.isReplica() {
			if out.AbortedTxns, err = aborted(v, in.FetchOffset, out.Records); err != nil {
				return err
			}
		}
		if q.fromFollower() {
			f := FollowerFetch{ReplicaID: req.ReplicaID, BrokerEpoch: req.ReplicaEpoch, FetchOffset: in.FetchOffset,
				LogStart: in.LogStartOffset, LeaderEnd: pos.End, At: now}
			if err := p.followerFetched(f, role); err != nil {
				return err
			}
		}
	}
	if out.Records.Length == 0 {
		v.Release()
		out.view = nil
	}
	return nil
}

// preferred is the replica that a consumer should ask instead of this leader, if there is one and it knows how to.
func (p *Partition) preferred(req *FetchRequest, in *FetchPartition, role *Role, pos Positions) (id int32, ok bool) {
	if !p.m.o.RackAware || req.RackID == "" || req.ReplicaID != ConsumerID || req.Version < followerFetchVersion || role.Kind != RoleLeader {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.PreferredReadReplica(req.RackID, in.FetchOffset, pos, p.m.broker)
}

// aborted lists the aborted transactions that may touch the records, by first offset, as readers meet them; never nil.
func aborted(v *log.View, offset int64, d log.Data) ([]log.AbortedTxn, error) {
	if d.Length == 0 {
		return []log.AbortedTxn{}, nil
	}
	end, err := v.UpperBound(d)
	if err != nil {
		return nil, err
	}
	list := v.AbortedTxns(offset, end)
	slices.SortStableFunc(list, func(a, b log.AbortedTxn) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return list, nil
}
