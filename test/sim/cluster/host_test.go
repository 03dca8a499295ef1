package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/cli"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/vfs"
)

// host is one machine: its disks, and the process that runs on it, if any.
type host struct {
	w  *world
	id int

	mu    sync.Mutex
	disks *vfs.Mem
	life  *life
	lives int
	down  bool      // on purpose: somebody will start it again
	loss  time.Time // when what was not synced was lost last
}

// life is one process, from its start to its end.
type life struct {
	h      *host
	number int
	net    *attachment
	fault  *vfs.Fault
	ctx    context.Context
	cancel context.CancelFunc
	began  time.Time
	node   atomic.Pointer[cli.Node]
	ready  atomic.Bool
	ended  chan struct{}
	// stopping is closed when a stop that somebody asked for is over; nil while nobody has. h.mu guards it.
	stopping chan struct{}

	circling sync.Mutex
	circles  map[*replica.Partition]int // how often in a row a partition's log was found to differ

	broken   atomic.Pointer[brokenDisk]
	lagging  atomic.Int64 // nanoseconds that its fetchers hold each answer back: a slow disk of a follower
	failures atomic.Int64 // writes that were failed
	rotten   atomic.Int32 // in how many of a thousand answers to its fetchers something is wrong
}

// brokenDisk is what is wrong with a disk: operations on names that contain part fail.
type brokenDisk struct {
	part  string
	kind  vfs.OpKind // vfs.OpAny: all that change something
	err   error
	short bool // writes put down a part
}

// nodeConfig is what every node is configured with; times are shorter than the defaults, so that more happens.
func (w *world) nodeConfig(id int) *config.Broker {
	set := []string{
		fmt.Sprintf("node.id=%d", id), "cluster.id=simulatedsimulatedsim1", "http.listen=",
		"log.dirs=/d1,/d2", "metadata.log.dir=/meta",
		"controller.quorum.election.timeout.ms=4000", "controller.quorum.request.timeout.ms=4000",
		"initial.broker.registration.timeout.ms=1000000000", "broker.heartbeat.interval.ms=1500", "broker.session.timeout.ms=6000",
		"metadata.max.idle.interval.ms=5000", "replica.lag.time.max.ms=8000", "replica.fetch.wait.max.ms=2500", "replica.socket.timeout.ms=5000",
		"offsets.topic.num.partitions=1", "offsets.topic.replication.factor=3", "offsets.commit.timeout.ms=3000",
		"auto.create.topics.enable=false", "log.cleaner.enable=false", "min.insync.replicas=2", "group.initial.rebalance.delay.ms=200",
		"group.min.session.timeout.ms=1000", "log.initial.task.delay.ms=1000", "log.dir.reserve.bytes=0", "log.segment.delete.delay.ms=1000",
		"leader.imbalance.check.interval.seconds=20", "replica.high.watermark.checkpoint.interval.ms=5000",
	}
	var voters []string
	for v := 1; v <= w.controllers; v++ {
		voters = append(voters, fmt.Sprintf("%d@n%d:9093", v, v))
	}
	set = append(set, "controller.quorum.voters="+strings.Join(voters, ","))
	if id <= w.controllers {
		set = append(set, "process.roles=broker,controller", fmt.Sprintf("listeners=PLAINTEXT://n%d:9092,CONTROLLER://n%d:9093", id, id))
	} else {
		set = append(set, "process.roles=broker", fmt.Sprintf("listeners=PLAINTEXT://n%d:9092", id))
	}
	set = append(set, "controller.listener.names=CONTROLLER")
	c, _, err := config.Parse(config.Sources{Set: set})
	if err != nil {
		panic(err)
	}
	return c
}

// start begins a process on the machine's disks.
func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = false
	if h.life != nil {
		return
	}
	h.w.net.powerOn(h.id)
	h.lives++
	l := &life{h: h, number: h.lives, net: h.w.net.attach(h.id), fault: vfs.NewFault(h.disks), began: time.Now(), ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.fault.Watch(l.operation)
	h.life = l
	h.w.running.Go(func() { l.run(h.w.nodeConfig(h.id)) })
}

// operation fails what the broken disk fails.
func (l *life) operation(op vfs.Operation) *vfs.Failure {
	b := l.broken.Load()
	if b == nil || !strings.Contains(op.Name, b.part) {
		return nil
	}
	switch op.Kind {
	case vfs.OpRead, vfs.OpStat, vfs.OpReadDir, vfs.OpOpen:
		return nil
	}
	if b.kind != vfs.OpAny && op.Kind != b.kind {
		return nil
	}
	f := &vfs.Failure{Err: b.err}
	if b.short && op.Kind == vfs.OpWrite {
		f.Short = op.Bytes * int(l.failures.Add(1)%3) / 2 // nothing, a part, or all of it
	}
	return f
}

func (l *life) run(c *config.Broker) {
	h := l.h
	defer close(l.ended)
	logger := slog.New(h.w.lines.handler(h.id, l.number))
	n, err := cli.StartNode(l.ctx, c, logger, cli.Seams{
		FS: l.fault, Listen: l.net.listen, Dial: l.net.dial, Leader: l.leader, Follow: l.followed,
	})
	if err == nil {
		l.node.Store(n)
		if err = n.Ready(l.ctx); err == nil {
			l.ready.Store(true)
			err = n.Wait(l.ctx)
		}
	}
	if l.ctx.Err() == nil {
		h.w.lines.say("node %d ends by itself: %v", h.id, err)
		h.w.endedByItself.Add(1)
		go h.crash(l, vfs.LoseNothing, false, time.Second)
		<-l.ctx.Done()
	}
	h.mu.Lock()
	stopping := l.stopping
	h.mu.Unlock()
	if stopping != nil {
		<-stopping
	} else if n != nil {
		n.Kill()
	}
}

// crash ends a process at once; what its disks have lost is decided by loss. It is started again after a while.
func (h *host) crash(l *life, loss vfs.Loss, off bool, pause time.Duration) bool {
	h.mu.Lock()
	if l == nil || h.life != l {
		h.mu.Unlock()
		return false
	}
	l.net.cutOff(off)
	h.disks = h.disks.CrashClone(loss, h.w.seed+uint64(h.lives)*7919)
	if loss != vfs.LoseNothing {
		h.loss = time.Now()
	}
	h.life = nil
	h.down = true
	h.mu.Unlock()
	l.cancel()
	h.w.after(pause, h.start)
	return true
}

// stop ends a process as an operator does, and starts another after a while.
func (h *host) stop(pause time.Duration) {
	h.mu.Lock()
	l := h.life
	if l == nil || !l.ready.Load() || h.down {
		h.mu.Unlock()
		return
	}
	h.down = true
	l.stopping = make(chan struct{})
	h.mu.Unlock()
	l.node.Load().Stop()
	close(l.stopping)
	h.mu.Lock()
	if h.life != l {
		h.mu.Unlock()
		return // it crashed meanwhile
	}
	l.net.cutOff(false)
	h.life = nil
	h.mu.Unlock()
	l.cancel()
	<-l.ended
	h.w.after(pause, h.start)
}

func (h *host) lost() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.loss
}

func (h *host) now() *life {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.life
}

// node is what runs on the machine now, nil if nothing does that has its parts.
func (h *host) node() *cli.Node {
	if l := h.now(); l != nil {
		return l.node.Load()
	}
	return nil
}

// followed counts what followers do. No leader ever sends what lies below their logs' end, or in an epoch below.
func (l *life) followed(e replica.FollowEvent) {
	l.h.w.coverage.followed(e)
	l.circling.Lock()
	if e.Cut == nil && !e.Answer.Diverging && e.Step == replica.FollowAppend {
		delete(l.circles, e.Partition)
	} else if e.Cut != nil {
		if l.circles == nil {
			l.circles = map[*replica.Partition]int{}
		}
		if l.circles[e.Partition]++; l.circles[e.Partition] > 200 {
			l.h.w.fail(fmt.Errorf("node %d, %s-%d: told %d times without end that its history differs, last at (%d, %d)", l.h.id, e.Partition.Topic(), e.Partition.ID(), l.circles[e.Partition], e.Leader.Epoch, e.Leader.Offset))
		}
	}
	l.circling.Unlock()
	var offset *log.UnexpectedOffsetError
	var epoch *log.UnexpectedEpochError
	if errors.As(e.Err, &offset) || errors.As(e.Err, &epoch) {
		l.h.w.fail(fmt.Errorf("node %d, %s-%d: %w", l.h.id, e.Partition.Topic(), e.Partition.ID(), e.Err))
	}
}

// leader stands between this node's fetchers and their leaders: what they read is late, or has errors that Stele nodes
// among themselves do not give each other.
func (l *life) leader(id int32, inner replica.Leader) replica.Leader {
	return &badLeader{Leader: inner, l: l, rng: rand.New(rand.NewPCG(l.h.w.seed, uint64(l.h.id)<<32|uint64(l.number)<<16|uint64(id)))}
}

type badLeader struct {
	replica.Leader
	l   *life
	rng *rand.Rand
}

func (b *badLeader) Fetch(ctx context.Context, asked []replica.FollowQuery) ([]replica.Followed, error) {
	answers, err := b.Leader.Fetch(ctx, asked)
	if late := time.Duration(b.l.lagging.Load()); late > 0 {
		timer := time.NewTimer(late)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if rotten := int(b.l.rotten.Load()); rotten > 0 {
		for i := range answers {
			if b.rng.IntN(1000) < rotten {
				b.spoil(&answers[i], asked)
			}
		}
	}
	return answers, err
}

// spoil makes something wrong with an answer that a follower must bear without harm.
func (b *badLeader) spoil(a *replica.Followed, asked []replica.FollowQuery) {
	if a.Err != nil || a.Diverging {
		return
	}
	switch b.rng.IntN(7) {
	case 6: // as a leader sends whose reign has just begun anew
		for _, q := range asked {
			if q.TopicID == a.TopicID && q.Partition == a.Partition && len(a.Records) > batchHeader {
				a.Records = append([]byte(nil), a.Records...)
				binary.BigEndian.PutUint32(a.Records[12:], uint32(q.CurrentLeaderEpoch)+1)
			}
		}
	case 0, 1, 2:
		if len(a.Records) > batchHeader {
			// Only bytes that the checksum covers: base offset and epoch are the leader's word alone.
			size := min(len(a.Records), 12+int(binary.BigEndian.Uint32(a.Records[8:])))
			a.Records = append([]byte(nil), a.Records...)
			a.Records[21+b.rng.IntN(size-21)] ^= 1 << b.rng.IntN(8)
		}
	case 3:
		a.Err, a.Records = fmt.Errorf("%w: as said by the leader", replica.ErrCorrupt), nil
	case 4:
		a.Err, a.Records = replica.ErrOffsetMovedToTieredStorage, nil
	case 5:
		a.Err, a.Records = fmt.Errorf("%w: something unknown", replica.ErrLeaderFailed), nil
	}
}
