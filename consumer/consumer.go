package consumer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Consumer reads partitions. Poll and Records belong to one goroutine at a time; all other methods may be called by any.
type Consumer struct {
	o      Options
	t      tuning
	log    *slog.Logger
	client *kgo.Client

	ctx    context.Context // of all that runs in the background
	cancel context.CancelFunc
	wg     sync.WaitGroup

	polling atomic.Bool
	polled  chan struct{} // a Poll has ended
	wake    chan struct{} // for the loop that asks
	ready   chan struct{} // for Poll
	jobs    chan job      // of a rebalance, to be done inside Poll
	// committer is taken while a commit is under way, so that an older one cannot overtake a newer one.
	committer chan struct{}

	mu           sync.Mutex // over all below; never held over IO or a callback
	closed       bool
	parts        map[TopicPartition]*partition
	turn         []TopicPartition // whose records Poll returns next
	cluster      cluster
	refreshing   refresher
	fetchers     map[int32]*fetcher
	versions     map[int32]int16 // OffsetForLeaderEpoch's newest, by node
	subscription subscription
	member       *membership
	group        *group
	out          *Fetch        // what the last Poll returned
	changes      chan struct{} // closed when a position may have changed
	buffered     int64         // bytes that no Poll has returned
	events       []ResetEvent
	raised       []error
	stats        Stats
	warned       map[TopicPartition]bool // of epoch-less commits
	idleSince    time.Time               // since when no Poll runs
	lastCommit   time.Time
	committing   bool
}

// Stats counts what happened since New.
type Stats struct {
	Records int64 // handed to the program
	Resets  map[Cause]int64
	// Transient counts how often an offset within the log was refused for a while.
	Transient int64
	// CommitsWithoutEpoch counts partitions committed by offset alone: their next owner cannot check it.
	CommitsWithoutEpoch int64
	Rebalances          int64
}

// Stats is a copy of the counters.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Resets = maps.Clone(s.Resets)
	return s
}

// New makes a consumer. It connects when it is first used.
func New(o Options) (*Consumer, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Consumer{
		o: o, log: o.Logger,
		wake: make(chan struct{}, 1), ready: make(chan struct{}, 1), jobs: make(chan job), polled: make(chan struct{}, 1), committer: make(chan struct{}, 1),
		parts: map[TopicPartition]*partition{}, cluster: newCluster(), fetchers: map[int32]*fetcher{}, versions: map[int32]int16{},
		warned: map[TopicPartition]bool{}, idleSince: time.Now(), lastCommit: time.Now(),
		changes: make(chan struct{}), stats: Stats{Resets: map[Cause]int64{}},
	}
	c.t = tuning{
		policy: o.Reset, group: o.GroupID, commits: o.GroupID != "",
		retryBackoff: o.RetryBackoff, retryBackoffMax: o.RetryBackoffMax, requestTimeout: o.RequestTimeout,
		metadataMaxAge: o.MetadataMaxAge, transientLimit: 30 * time.Second, lastEpoch: o.CheckOnFetch,
	}
	c.subscription = subscription{topics: slices.Clone(o.Topics), pattern: o.TopicPattern}
	// Commits name topics by name, which offsets without topic ids need.
	versions := kversion.Tip()
	versions.SetMaxKeyVersion(keyOffsetCommit, 9)
	versions.SetMaxKeyVersion(keyOffsetFetch, 9)
	options := []kgo.Opt{
		kgo.SeedBrokers(o.BootstrapServers...), kgo.ClientID(o.ClientID), kgo.SoftwareNameAndVersion("stele-consumer", "1"),
		kgo.MaxVersions(versions), kgo.RequestTimeoutOverhead(o.RequestTimeout), kgo.RetryTimeout(o.RequestTimeout),
		kgo.DisableClientMetrics(), kgo.BrokerMaxReadBytes(max(100<<20, o.FetchMaxBytes/2*3)),
	}
	if o.TLS != nil {
		options = append(options, kgo.DialTLSConfig(o.TLS))
	}
	if o.Dialer != nil {
		options = append(options, kgo.Dialer(o.Dialer))
	}
	if len(o.SASL) > 0 {
		options = append(options, kgo.SASL(o.SASL...))
	}
	var err error
	if c.client, err = kgo.NewClient(options...); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.subscribed() {
		c.group = newGroup(c)
	}
	c.wg.Go(c.ask)
	return c, nil
}

const (
	keyOffsetCommit = 8
	keyOffsetFetch  = 9
	keyOffsetEpoch  = 23
)

func (c *Consumer) subscribed() bool { return len(c.o.Topics) > 0 || c.o.TopicPattern != nil }

// Assign sets the partitions to read, each from its committed offset if there is a group and it has one, else by the
// reset policy, or from where Seek says. Those that stay keep their positions. It is not for a consumer with a
// subscription.
func (c *Consumer) Assign(partitions ...TopicPartition) error {
	if c.subscribed() {
		return errors.New("consumer: Assign and a subscription exclude each other")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.own(partitions)
	return nil
}

// own makes the partitions those of this consumer, and no others.
func (c *Consumer) own(partitions []TopicPartition) {
	c.settle()
	keep := map[TopicPartition]bool{}
	for _, tp := range partitions {
		keep[tp] = true
		if c.parts[tp] != nil {
			continue
		}
		p := &partition{tp: tp, m: newMachine(tp, &c.t)}
		c.parts[tp] = p
		c.turn = append(c.turn, tp)
		if t := c.cluster.topics[tp.Topic]; t == nil || t.partitions[tp.Partition] == (leaderAndEpoch{}) {
			c.refreshing.wanted = true
		}
		c.teach(p, time.Now())
	}
	for tp, p := range c.parts {
		if !keep[tp] {
			c.drop(p)
			delete(c.parts, tp)
		}
	}
	c.turn = slices.DeleteFunc(c.turn, func(tp TopicPartition) bool { return !keep[tp] })
	c.tick()
}

// Assignment is the partitions that belong to this consumer now, in order.
func (c *Consumer) Assignment() []TopicPartition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedKeys(c.parts)
}

// Pause stops reading partitions; what was fetched of them is kept. Partitions that are not assigned are passed over.
func (c *Consumer) Pause(partitions ...TopicPartition) { c.pause(true, partitions) }

// Resume goes on with paused partitions.
func (c *Consumer) Resume(partitions ...TopicPartition) { c.pause(false, partitions) }

func (c *Consumer) pause(paused bool, partitions []TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tp := range partitions {
		if p := c.parts[tp]; p != nil {
			p.paused = paused
		}
	}
	c.tick()
	signal(c.ready)
}

// Paused is the paused partitions, in order.
func (c *Consumer) Paused() []TopicPartition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(sortedKeys(c.parts), func(tp TopicPartition) bool { return !c.parts[tp].paused })
}

// Seek sets the position of a partition. One with an epoch is checked before it is read from.
func (c *Consumer) Seek(tp TopicPartition, to Position) error {
	if to.Offset < 0 {
		return errors.New("consumer: Seek to a negative offset")
	}
	return c.seek(tp, func(m *machine, now time.Time) effects { return m.seek(to, now) })
}

// SeekToBeginning sets the positions of partitions to the log start; it is looked up when they are next read.
func (c *Consumer) SeekToBeginning(partitions ...TopicPartition) error {
	return c.seekAll(Earliest, partitions)
}

// SeekToEnd sets the positions of partitions to the end; it is looked up when they are next read.
func (c *Consumer) SeekToEnd(partitions ...TopicPartition) error {
	return c.seekAll(Latest, partitions)
}

// SeekToNearest mends a position: after a LogTruncationError it goes to where the histories part, or to the log start
// where that is not known; after an OffsetOutOfRangeError to the end of the log that it was beyond. A position that is
// good stays.
func (c *Consumer) SeekToNearest(tp TopicPartition) error {
	return c.seek(tp, func(m *machine, now time.Time) effects { return m.seekNearest(now) })
}

func (c *Consumer) seekAll(policy ResetPolicy, partitions []TopicPartition) error {
	for _, tp := range partitions {
		if err := c.seek(tp, func(m *machine, _ time.Time) effects { return m.seekByPolicy(policy) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *Consumer) seek(tp TopicPartition, to func(*machine, time.Time) effects) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.parts[tp]
	if p == nil {
		return &NotAssignedError{[]TopicPartition{tp}}
	}
	c.settle()
	c.follow(p, to(p.m, time.Now()))
	if p.m.outdated() {
		c.refreshing.wanted = true
	}
	c.tick()
	return nil
}

// Close commits what was consumed, unless DisableAutoCommit says otherwise, tells OnRevoked, leaves the group and ends
// all that runs. ctx bounds the talk with brokers; a Poll under way returns ErrClosed. It must not be called in a callback.
// The error is that of the commit.
func (c *Consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.settle()
	c.closed = true
	c.mu.Unlock()
	signal(c.ready)
	ctx, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
	defer cancel()
	for c.polling.Load() && ctx.Err() == nil { // callbacks run on one goroutine at a time
		select {
		case <-c.polled:
		case <-ctx.Done():
		}
	}
	err := c.leave(ctx)
	c.cancel()
	c.wg.Wait()
	c.client.Close()
	return err
}

// leave gives the partitions back.
func (c *Consumer) leave(ctx context.Context) (err error) {
	if c.group != nil {
		return c.group.leave(ctx)
	}
	if c.o.GroupID != "" && !c.o.DisableAutoCommit {
		err = c.commitConsumed(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own(nil)
	return err
}

// tick makes the loop that asks look again, and the fetchers.
func (c *Consumer) tick() {
	close(c.changes)
	c.changes = make(chan struct{})
	signal(c.wake)
	for _, f := range c.fetchers {
		signal(f.wake)
	}
}

// signal wakes whoever waits at a channel of one place.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// raise makes the next Poll return an error.
func (c *Consumer) raise(err error) {
	c.raised = append(c.raised, err)
	signal(c.ready)
}

// follow does what follows from an event of a partition.
func (c *Consumer) follow(p *partition, eff effects) {
	if eff.discard {
		c.discard(p)
	}
	if eff.refresh {
		c.refreshing.wanted = true
	}
	if eff.raise != nil {
		c.raise(eff.raise)
	}
	for _, ev := range eff.events {
		c.stats.Resets[ev.Cause]++
		c.report(ev)
		c.events = append(c.events, ev)
	}
	if len(eff.events) > 0 || p.m.err != nil {
		signal(c.ready)
	}
}

// report logs an event. What the program asked for is no warning, nor the beginning of a partition that no group reads.
func (c *Consumer) report(ev ResetEvent) {
	level := slog.LevelWarn
	if ev.Cause == CauseSeek || ev.Cause == CauseNoCommit && ev.Group == "" {
		level = slog.LevelInfo
	}
	args := []any{"topic", ev.Topic, "partition", ev.Partition, "from", ev.From.String(), "to", ev.To.String(), "cause", string(ev.Cause), "policy", ev.Policy.String(),
		"log_start", ev.LogStart.String(), "log_end", ev.LogEnd.String(), "leader", ev.Leader, "leader_epoch", ev.LeaderEpoch.String()}
	if ev.Group != "" {
		args = append(args, "group", ev.Group)
	}
	if ev.Divergent.known {
		args = append(args, "divergent", ev.Divergent.String(), "at_most", ev.AtMost)
	}
	if ev.Skipped > 0 {
		args = append(args, "skipped", ev.Skipped)
	}
	if ev.Repeated > 0 {
		args = append(args, "repeated", ev.Repeated)
	}
	text := "position reset"
	switch {
	case ev.Cause == CauseSeek:
		text = "position set"
	case !ev.Moved():
		text = "position kept"
	}
	c.log.Log(c.ctx, level, text, args...)
}
