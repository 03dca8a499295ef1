package replica

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
)

// How followers pause after an error that passes by itself: first shortly, since a leader often has only not heard yet
// that it is one, then longer, up to FetchBackoff.
const firstBackoff = 20 * time.Millisecond

// newcomersInterval is the least time between two interruptions of a waiting fetch for partitions that were added.
const newcomersInterval = 50 * time.Millisecond

// fetchers are the goroutines that copy partitions from their leaders, a few for each leader.
type fetchers struct {
	m       *Manager
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc

	mu    sync.Mutex
	all   map[fetcherKey]*fetcher
	of    map[*Partition]*fetcher
	ended bool
}

type fetcherKey struct {
	leader int32
	index  uint32
}

func newFetchers(m *Manager) *fetchers {
	f := &fetchers{m: m, all: map[fetcherKey]*fetcher{}, of: map[*Partition]*fetcher{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// follow makes a partition be copied from its leader, from where its log ends; whatever copied it before does so no
// more. It is called when the partition has its role.
func (f *fetchers) follow(p *Partition, role *Role) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !mutantTwoFetchers {
		f.forgetLocked(p)
	}
	if f.ended || role.Leader < 0 || f.m.o.Leader == nil {
		return
	}
	key := fetcherKey{role.Leader, fetcherIndex(p, f.m.o.Fetchers)}
	if mutantTwoFetchers {
		key.index = uint32(role.LeaderEpoch)
	}
	one := f.all[key]
	if one == nil {
		one = &fetcher{m: f.m, key: key, parts: map[*Partition]*following{}, wake: make(chan struct{}, 1)}
		f.all[key] = one
		f.running.Go(func() { f.run(one) })
	}
	f.of[p] = one
	one.add(p)
}

// forget ends the copying of a partition.
func (f *fetchers) forget(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(p)
}

func (f *fetchers) forgetLocked(p *Partition) {
	if one := f.of[p]; one != nil {
		one.remove(p)
		delete(f.of, p)
	}
}

func (f *fetchers) close() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
}

// failed is how many partitions are not copied any more because of an error here, until their leader epoch rises
// (Kafka's FailedPartitionsCount).
func (f *fetchers) failed() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		n += one.failed()
	}
	return n
}

func fetcherIndex(p *Partition, n int) uint32 {
	h := fnv.New32a()
	h.Write([]byte(p.topic))
	h.Write([]byte{byte(p.id), byte(p.id >> 8), byte(p.id >> 16), byte(p.id >> 24)})
	return h.Sum32() % uint32(n)
}

// run lets one fetcher go on until it has no partitions left.
func (f *fetchers) run(one *fetcher) {
	leader := f.m.o.Leader(one.key.leader)
	defer leader.Close()
	for f.ctx.Err() == nil {
		if one.round(f.ctx, leader) {
			continue
		}
		f.mu.Lock()
		if one.empty() {
			delete(f.all, one.key)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

// fetcher copies some of the partitions of one leader. Its goroutine alone changes their logs, under their roles.
type fetcher struct {
	m   *Manager
	key fetcherKey

	mu       sync.Mutex
	parts    map[*Partition]*following
	wake     chan struct{} // holds a token when parts has changed
	interval time.Duration // the pause after the last failure of the leader as a whole
	trouble  string        // of the leader as a whole, as it was logged
	turn     int           // which partition is asked for first
	broken   time.Time     // when a waiting fetch was interrupted last
}

// following is how one partition is doing.
type following struct {
	pause   time.Duration // after the last error
	until   time.Time     // asked for again then
	stopped bool          // until the leader epoch rises
	failed  bool          // and that because of an error here
	trouble string        // the last error, as it was logged
	inSync  bool          // the last answer left nothing below the leader's high watermark: no quota holds it back
}

func (f *fetcher) add(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts[p] = &following{}
	f.notify()
}

func (f *fetcher) remove(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.parts, p)
	f.notify()
}

func (f *fetcher) notify() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.parts) == 0
}

func (f *fetcher) failed() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.parts {
		if s.failed {
			n++
		}
	}
	return n
}

// asked is a query and whose it is.
type asked struct {
	p *Partition
	s *following
}

// queries are what to ask now, and when there is more if nothing comes in between (zero: never).
func (f *fetcher) queries(now time.Time) (qs []FollowQuery, of []asked, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.wake: // whatever was added is asked for now
	default:
	}
	held := f.m.followerRate.pause(now)
	for p, s := range f.parts {
		switch {
		case s.stopped:
		case held > 0 && !s.inSync && p.followerThrottled.Load() && !s.until.After(now.Add(held)):
			if due := now.Add(held); next.IsZero() || due.Before(next) {
				next = due
			}
		case s.until.After(now):
			if next.IsZero() || s.until.Before(next) {
				next = s.until
			}
		default:
			of = append(of, asked{p, s})
		}
	}
	slices.SortFunc(of, func(a, b asked) int {
		return comparePartitions(a.p, b.p)
	})
	if n := len(of); n > 0 {
		// An answer may be filled by the first partitions: each gets its turn.
		f.turn = (f.turn + 1) % n
		of = append(of[f.turn:n:n], of[:f.turn]...)
	}
	kept := of[:0]
	for _, a := range of {
		if q, ok := a.p.followQuery(f.key.leader); ok {
			qs = append(qs, q)
			kept = append(kept, a)
		}
	}
	return qs, kept, next
}

// round asks once and does what the answer says. It reports false when there was nothing to ask and the fetcher may
// have become idle.
func (f *fetcher) round(ctx context.Context, leader Leader) (more bool) {
	now := f.m.now()
	qs, of, next := f.queries(now)
	if len(qs) == 0 {
		f.idle(ctx, next)
		return false
	}
	fetching, interrupt := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.interruptForNewcomers(fetching, interrupt, next)
	}()
	answers, err := leader.Fetch(fetching, qs)
	interrupted := fetching.Err() != nil
	interrupt()
	<-done
	if err != nil {
		if !interrupted {
			f.leaderFailed(ctx, err)
		}
		return true
	}
	f.interval, f.trouble = 0, ""
	f.take(ctx, leader, qs, of, answers)
	return true
}

// idle waits until there may be something to ask.
func (f *fetcher) idle(ctx context.Context, next time.Time) {
	if next.IsZero() {
		select {
		case <-ctx.Done():
		case <-f.wake:
		}
		return
	}
	timer := time.NewTimer(until(f.m.now(), next))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-f.wake:
	case <-timer.C:
	}
}

// interruptForNewcomers ends a fetch that waits when partitions were added that it does not ask for, or the pause of one
// is over.
func (f *fetcher) interruptForNewcomers(ctx context.Context, interrupt func(), next time.Time) {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(until(f.m.now(), next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return
	case <-due:
	case <-f.wake:
	}
	// Many come at a time.
	pause := time.NewTimer(max(time.Millisecond, newcomersInterval-time.Since(f.broken)))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		f.notify()
	case <-pause.C:
		f.broken = time.Now()
		interrupt()
	}
}

// leaderFailed pauses after the leader could not be asked at all.
func (f *fetcher) leaderFailed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if reason := err.Error(); reason != f.trouble {
		f.trouble = reason
		f.m.o.Logger.Info("leader not reached, asking again", "leader", f.key.leader, "cause", reason)
	}
	f.interval = min(max(2*f.interval, firstBackoff), f.m.o.FetchBackoff)
	f.idle(ctx, f.m.now().Add(f.interval))
}

// take does what the answers say.
func (f *fetcher) take(ctx context.Context, leader Leader, qs []FollowQuery, of []asked, answers []Followed) {
	index := make(map[topicIDPartition]int, len(qs))
	for i := range qs {
		index[topicIDPartition{qs[i].TopicID, qs[i].Partition}] = i
	}
	var flushing []*Partition
	for i := range answers {
		k, ok := index[topicIDPartition{answers[i].TopicID, answers[i].Partition}]
		if !ok {
			continue
		}
		if of[k].p.followerThrottled.Load() {
			f.m.followerRate.took(len(answers[i].Records), f.m.now())
		}
		step, err := of[k].p.takeFollowed(qs[k], &answers[i])
		if step == FollowRange {
			step, err = f.outOfRange(ctx, leader, qs[k], of[k].p)
		}
		f.m.tellFollow(FollowEvent{Partition: of[k].p, Answer: answers[i].FollowAnswer, Step: step, Err: err})
		f.settle(of[k], step, err)
		if step == FollowAppend {
			pos := of[k].p.Positions()
			f.setInSync(of[k].s, answers[i].HighWatermark >= 0 && pos.End >= answers[i].HighWatermark)
			if pos.AckEnd < pos.End {
				flushing = append(flushing, of[k].p)
			}
		}
	}
	awaitFlushes(ctx, flushing)
}

func (f *fetcher) setInSync(s *following, inSync bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.inSync = inSync
}

// awaitFlushes waits until all that was appended is as durable as flush.messages asks for: the next fetch tells the leader
// that this replica has it. The flushes of one answer run side by side.
func awaitFlushes(ctx context.Context, all []*Partition) {
	if len(all) == 0 {
		return
	}
	woken := newSignal()
	watches := make([]watch, len(all))
	defer func() {
		for i := range watches {
			watches[i].remove()
		}
	}()
	for i, p := range all {
		watches[i] = watch{kind: boundAny, waiter: woken}
		p.wait.add(&watches[i])
	}
	for ctx.Err() == nil && slices.ContainsFunc(all, func(p *Partition) bool {
		pos := p.Positions()
		return p.Err() == nil && p.Role().Kind == RoleFollower && pos.AckEnd < pos.End
	}) {
		select {
		case <-woken:
		case <-ctx.Done():
		}
	}
}

// settle notes how a partition is doing after an answer.
func (f *fetcher) settle(a asked, step FollowStep, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := a.s
	switch step {
	case FollowBackoff, FollowTiered:
		s.pause = min(max(2*s.pause, firstBackoff), f.m.o.FetchBackoff)
		s.until = f.m.now().Add(s.pause)
	case FollowStop:
		s.stopped = true
	case FollowFail:
		s.stopped, s.failed = true, true
	default:
		s.pause, s.until, s.trouble = 0, time.Time{}, ""
		return
	}
	reason := "unknown"
	if err != nil {
		reason = err.Error()
	}
	if reason == s.trouble {
		return
	}
	s.trouble = reason
	role, pos := a.p.Role(), a.p.Positions()
	line := []any{"topic", a.p.topic, "partition", a.p.id, "leader", f.key.leader, "leaderEpoch", role.LeaderEpoch, "endOffset", pos.End, "cause", reason}
	switch {
	case step == FollowFail:
		f.m.o.Logger.Error("following failed: not tried again before the leader epoch rises", line...)
	case step == FollowStop:
		f.m.o.Logger.Info("following stopped until metadata brings the new leader epoch", line...)
	default:
		f.m.o.Logger.Debug("follower backs off", line...)
	}
}

// outOfRange asks the leader for its range, and does what that means.
func (f *fetcher) outOfRange(ctx context.Context, leader Leader, q FollowQuery, p *Partition) (FollowStep, error) {
	latest, earliest, err := askRange(ctx, leader, q)
	if err != nil {
		step := Follow(q.FollowPosition, q.FollowPosition, FollowAnswer{Err: err})
		if step == FollowRange || step == FollowAppend {
			step = FollowBackoff
		}
		return step, err
	}
	return p.takeRange(q, latest, earliest)
}

// askRange asks where a leader's log ends and, if that is not below the position, where it begins; -1 is unknown.
func askRange(ctx context.Context, leader Leader, q FollowQuery) (latest, earliest int64, err error) {
	last, err := leader.Offset(ctx, q, LatestTimestamp)
	if err != nil || last.Offset < q.FetchOffset {
		return last.Offset, NoOffset, err
	}
	first, err := leader.Offset(ctx, q, EarliestTimestamp)
	return last.Offset, first.Offset, err
}

// followQuery is what a fetcher of leader asks for this partition now; ok is false when it follows somebody else.
func (p *Partition) followQuery(leader int32) (q FollowQuery, ok bool) {
	if p.Err() != nil {
		return q, false
	}
	role, v := p.roleAndView()
	defer v.Release()
	if role.Kind != RoleFollower || role.Leader != leader {
		return q, false
	}
	q = FollowQuery{Topic: p.topic, TopicID: p.topicID, Partition: p.id, LogStart: v.LogStartOffset}
	q.FetchOffset, q.CurrentLeaderEpoch, q.LastFetchedEpoch = v.EndOffset, role.LeaderEpoch, NoEpoch
	if latest, known := v.Epochs.Latest(); known {
		q.LastFetchedEpoch = latest.Epoch
	}
	return q, true
}

// takeFollowed does what a leader's answer to q says, unless the partition has moved on since.
func (p *Partition) takeFollowed(q FollowQuery, a *Followed) (step FollowStep, err error) {
	now, ok := p.followQuery(p.Role().Leader)
	if !ok {
		return FollowIgnore, nil
	}
	if mutantTwoFetchers {
		now.FollowPosition = q.FollowPosition
	}
	switch step = Follow(q.FollowPosition, now.FollowPosition, a.FollowAnswer); step {
	case FollowAppend:
		return p.appendFollowed(q, a)
	case FollowTruncate:
		return p.truncateFollowed(q, a.DivergingEpoch)
	default:
		return step, a.Err
	}
}

// asFollower runs f while the partition cannot change its role, if it still follows as q says. cut: f may move the end
// back, which is news to everybody who waits.
func (p *Partition) asFollower(q FollowQuery, cut bool, f func() error) (FollowStep, error) {
	p.roleMu.RLock()
	role := p.role.Load()
	if p.Err() != nil || role.Kind != RoleFollower || role.LeaderEpoch != q.CurrentLeaderEpoch {
		p.roleMu.RUnlock()
		return FollowIgnore, nil
	}
	err := f()
	p.roleMu.RUnlock()
	if cut {
		p.wait.all()
	} else {
		p.moved()
	}
	if err == nil {
		return FollowAppend, nil
	}
	err = p.failedIO(err)
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) {
		return FollowBackoff, err // on the way here, or at the leader: never appended, perhaps sound the next time
	}
	if log.IsFull(err) {
		return FollowBackoff, err // it was taken back, and there may be room the next time
	}
	return FollowFail, err
}

// storeFollowed appends records that the leader sent. What does not continue the log is never appended: one log's
// history is then not the other's, and both ends are in the error.
func (p *Partition) storeFollowed(q FollowQuery, records []byte) error {
	_, err := p.log().AppendAsFollowerDeferred(records, q.CurrentLeaderEpoch)
	var offset *log.UnexpectedOffsetError
	var epoch *log.UnexpectedEpochError
	switch {
	case errors.As(err, &epoch):
	case errors.As(err, &offset):
		pos := p.Positions()
		first := record.Batch(records)
		if pos.LogStart == pos.End && first.BaseOffset() < pos.End && first.LastOffset() >= pos.End {
			// An empty log that begins inside of the leader's first batch takes the whole of it.
			if err := p.log().TruncateFullyAndStartAt(first.BaseOffset(), "the leader's first batch begins earlier"); err != nil {
				return err
			}
			if _, err = p.log().AppendAsFollowerDeferred(records, q.CurrentLeaderEpoch); err == nil {
				return nil
			}
		}
	default:
		return err
	}
	return fmt.Errorf("asked from offset %d in leader epoch %d, last epoch %d, the leader sent %s; this log has %s: %w",
		q.FetchOffset, q.CurrentLeaderEpoch, q.LastFetchedEpoch, describeSent(records), p.describeLog(), err)
}

// evidenceBatches is how many batches and epochs a line about differing logs names.
const evidenceBatches = 8

// describeSent lists the batches that a leader sent, by offsets and epoch.
func describeSent(records []byte) string {
	var all []string
	more := 0
	for b, err := range record.Batches(records) {
		if err != nil {
			break
		}
		if len(all) == evidenceBatches {
			more++
			continue
		}
		all = append(all, fmt.Sprintf("%d-%d epoch %d", b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch()))
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("and %d batches more", more))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// describeLog says where the log stands, and the latest of its epochs with the offsets at which they begin.
func (p *Partition) describeLog() string {
	v := p.log().View()
	defer v.Release()
	entries := v.Epochs.Entries()
	var epochs []string
	for _, e := range entries[max(0, len(entries)-evidenceBatches):] {
		epochs = append(epochs, fmt.Sprintf("%d:%d", e.Epoch, e.StartOffset))
	}
	return fmt.Sprintf("log start %d, high watermark %d, end offset %d, epochs {%s}", v.LogStartOffset, v.HighWatermark, v.EndOffset, strings.Join(epochs, ", "))
}

// appendFollowed appends what the leader sent, then takes over its high watermark, then its log start.
func (p *Partition) appendFollowed(q FollowQuery, a *Followed) (FollowStep, error) {
	ahead := false
	step, err := p.asFollower(q, false, func() error {
		if len(a.Records) > 0 {
			if err := p.storeFollowed(q, a.Records); err != nil {
				return err
			}
			ahead = p.Positions().End == q.FetchOffset
		}
		if a.HighWatermark >= 0 {
			p.log().SetHighWatermark(FollowerHighWatermark(a.HighWatermark, p.Positions()))
		}
		if start, ok := FollowerLogStart(a.LogStart, p.Positions()); ok {
			return p.log().AdvanceLogStart(start, "the leader's log start")
		}
		return nil
	})
	if ahead && err == nil && step == FollowAppend {
		return FollowBackoff, errAhead // the leader is not to be asked without a pause until metadata comes
	}
	return step, err
}

// errAhead: all that the leader sent is of a later leader epoch than this broker knows (KAFKA-18723), or one cut batch.
var errAhead = errors.New("the leader sends records of a leader epoch that is not known here yet")

// truncateFollowed cuts the log where it leaves the leader's history.
func (p *Partition) truncateFollowed(q FollowQuery, diverging OffsetAndEpoch) (FollowStep, error) {
	return p.asFollower(q, true, func() error {
		v := p.log().View()
		pos, epochs := positionsOf(v), v.Epochs
		v.Release()
		cut := TruncationFor(diverging, epochs, pos.HighWatermark, pos.End)
		p.m.tellFollow(FollowEvent{Partition: p, Answer: FollowAnswer{Diverging: true}, Step: FollowTruncate, Leader: diverging, Cut: &cut})
		p.tellCut(q, pos, cut.To, diverging)
		return p.log().TruncateTo(cut.To, "the leader's history differs")
	})
}

// tellCut says what a truncation takes, before it does. One below the high watermark takes records that were
// acknowledged: it follows an unclean election, or the loss of a disk.
func (p *Partition) tellCut(q FollowQuery, pos Positions, to int64, leader OffsetAndEpoch) {
	if to >= pos.End {
		return
	}
	p.m.events.offsetsCut(pos, to)
	line := []any{"topic", p.topic, "partition", p.id, "leader", p.Role().Leader, "leaderEpoch", q.CurrentLeaderEpoch, "from", pos.End, "to", to,
		"highWatermark", pos.HighWatermark, "lastEpoch", q.LastFetchedEpoch, "leadersEpoch", leader.Epoch, "leadersEndOffset", leader.Offset,
		"cause", "the leader's history differs"}
	if to < pos.HighWatermark {
		p.m.o.Logger.Warn("truncating below the high watermark: records that were acknowledged are lost", line...)
		return
	}
	p.m.o.Logger.Info("truncating", line...)
}

// takeRange goes on after the leader said that the position is outside of its log.
func (p *Partition) takeRange(q FollowQuery, latest, earliest int64) (FollowStep, error) {
	var wait error
	step, err := p.asFollower(q, true, func() error {
		pos := p.Positions()
		switch step, to := OutOfRange(pos.End, latest, earliest); step {
		case RangeTruncate:
			p.m.events.offsetsCut(pos, to)
			p.m.o.Logger.Warn("the leader's log ends before this one: truncating", "topic", p.topic, "partition", p.id, "from", pos.End, "to", to,
				"highWatermark", pos.HighWatermark, "leaderEpoch", q.CurrentLeaderEpoch, "cause", "unclean election")
			return p.log().TruncateTo(to, "the leader's log ends earlier")
		case RangeStartOver:
			p.m.o.Logger.Info("the leader's log begins after this one ends: starting over", "topic", p.topic, "partition", p.id, "from", pos.End, "to", to,
				"leaderEpoch", q.CurrentLeaderEpoch, "cause", "too far behind")
			return p.log().TruncateFullyAndStartAt(to, "the leader's log begins later")
		case RangeUnknown:
			wait = errRangeUnknown
		case RangeGoOn:
			wait = errInRange
		}
		return nil
	})
	if wait != nil && err == nil && step == FollowAppend {
		return FollowBackoff, wait
	}
	return step, err
}

// errInRange: the leader's log has moved meanwhile, or it has lost what it knew of its epochs (T10), and the same is
// answered for ever.
var errInRange = errors.New("the leader says that the position is out of a range that holds it")

var errRangeUnknown = errors.New("the leader does not say where its log begins and ends")

func comparePartitions(a, b *Partition) int {
	if a.topic != b.topic {
		if a.topic < b.topic {
			return -1
		}
		return 1
	}
	return int(a.id) - int(b.id)
}
