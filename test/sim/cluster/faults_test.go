package cluster

import (
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// disturb does one thing to the cluster, by the seed's word.
func (w *world) disturb() {
	w.faults++
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	l := h.now()
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.crash(h, l)
	case n < 26:
		pause := w.upTo(8 * time.Second)
		w.lines.say("stop node %d, pause %s", h.id, pause)
		w.running.Go(func() { h.stop(pause) })
	case n < 40:
		other := w.rng.IntN(len(w.hosts) + 1)
		w.lines.say("connections between %d and %d are cut", h.id, other)
		w.net.reset(h.id, other)
	case n < 55:
		w.split(h)
	case n < 62:
		by, d := w.upTo(1500*time.Millisecond), w.upTo(15*time.Second)
		w.lines.say("node %d is slow by %s for %s", h.id, by, d)
		w.net.delay(h.id, by)
		w.after(d, func() { w.net.delay(h.id, 0) })
	case n < 70:
		w.freeze(h)
	case n < 76:
		w.breakDisk(h, l)
	case n < 84:
		if l == nil {
			return
		}
		by, d := w.upTo(12*time.Second), w.upTo(20*time.Second)
		w.lines.say("fetchers of node %d are slow by %s for %s", h.id, by, d)
		l.lagging.Store(int64(by))
		w.after(d, func() { l.lagging.Store(0) })
	case n < 90:
		if l == nil {
			return
		}
		w.lines.say("fetchers of node %d read bad answers", h.id)
		l.rotten.Store(int32(30 + w.rng.IntN(300)))
		w.after(w.upTo(20*time.Second), func() { l.rotten.Store(0) })
	default:
		// nothing: time to recover
	}
}

func (w *world) upTo(d time.Duration) time.Duration {
	return d/20 + time.Duration(w.rng.Int64N(int64(d)))
}

// downNow is how many machines have no process that is ready.
func (w *world) downNow() (n int) {
	for _, h := range w.hosts {
		if l := h.now(); l == nil || !l.ready.Load() {
			n++
		}
	}
	return n
}

func (w *world) crash(h *host, l *life) {
	all := w.rng.IntN(12) == 0 // now and then the power of all fails
	if !all && w.downNow() >= 2 {
		return
	}
	loss := []vfs.Loss{vfs.LoseNothing, vfs.LoseNothing, vfs.LoseNothing, vfs.LoseNothing, vfs.LoseSome, vfs.LoseUnsynced}[w.rng.IntN(6)]
	off := loss != vfs.LoseNothing && w.rng.IntN(2) == 0
	if all && w.rng.IntN(2) == 0 {
		loss = vfs.LoseNothing
	}
	for _, one := range w.hosts {
		if one != h && !all {
			continue
		}
		pause := w.upTo(10 * time.Second)
		if was := one.now(); loss != vfs.LoseNothing && was != nil && was.ready.Load() && w.rng.IntN(2) == 0 {
			epoch := was.node.Load().BrokerEpoch()
			w.running.Go(func() { w.ghost(one, was, epoch) })
		}
		if one.crash(one.now(), loss, off, pause) {
			w.lines.say("crash node %d, loss %d, machine off %v, pause %s", one.id, loss, off, pause)
			w.crashes++
		}
	}
}

// split blocks ways from or to a host.
func (w *world) split(h *host) {
	d := w.upTo(20 * time.Second)
	for _, other := range append(w.hosts, &host{id: clientHost}) {
		if other.id == h.id || w.rng.IntN(2) == 0 {
			continue
		}
		how := w.rng.IntN(3)
		if how != 1 {
			w.lines.say("from %d to %d is blocked for %s", h.id, other.id, d)
			w.after(d, w.net.block(h.id, other.id))
		}
		if how != 2 {
			w.lines.say("from %d to %d is blocked for %s", other.id, h.id, d)
			w.after(d, w.net.block(other.id, h.id))
		}
	}
}

// freeze stops all that a host says and hears, as if its process did not run.
func (w *world) freeze(h *host) {
	d := w.upTo(15 * time.Second)
	w.lines.say("node %d is paused for %s", h.id, d)
	for _, other := range append(w.hosts, &host{id: clientHost}) {
		if other.id != h.id {
			w.after(d, w.net.block(h.id, other.id))
			w.after(d, w.net.block(other.id, h.id))
		}
	}
}

// breakDisk makes operations fail; what is not repaired in place is so by the next start.
func (w *world) breakDisk(h *host, l *life) {
	if l == nil || w.downNow() >= 2 {
		return
	}
	b := &brokenDisk{part: []string{"/d1", "/d2", "/d1", "/d2", "/meta"}[w.rng.IntN(5)]}
	d := w.upTo(12 * time.Second)
	switch w.rng.IntN(3) {
	case 0: // no room for a while: writes are taken back
		b.kind, b.err, b.short = vfs.OpWrite, syscall.ENOSPC, true
	case 1:
		b.kind, b.err, b.short = vfs.OpWrite, syscall.EIO, true
	case 2:
		b.kind, b.err = vfs.OpSync, syscall.EIO
	}
	w.lines.say("disk %s of node %d fails for %s: %s %v", b.part, h.id, d, b.kind, b.err)
	l.broken.Store(b)
	w.after(d, func() {
		l.broken.Store(nil)
		if b.err == syscall.EIO {
			h.crash(l, vfs.LoseNothing, false, w.pauseOf(h.id))
		}
	})
}

func (w *world) pauseOf(id int) time.Duration { return time.Duration(id) * time.Second }

// ghost has the last fetches of a process that is dead arrive when another one runs in its place, with an older log: they
// must count for nothing (KIP-903).
func (w *world) ghost(h *host, was *life, epoch int64) {
	c := w.newClient("ghost", uint64(was.number)<<8|uint64(h.id))
	defer c.close()
	var l *life
	for l = h.now(); l == nil || l == was || !l.ready.Load(); l = h.now() {
		select {
		case <-w.quiet:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
	l.lagging.Store(int64(4 * time.Second))
	w.after(5*time.Second, func() { l.lagging.Store(0) })
	for range 3 {
		for _, q := range w.ledByOthers(h) {
			req := kmsg.NewPtrFetchRequest()
			req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = int32(h.id), int32(h.id), epoch
			req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 10, 0, 1<<16, -1
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID, t.Partitions = q.topic, q.id, append(t.Partitions, q.partition)
			req.Topics = append(req.Topics, t)
			if resp, err := c.ask(w.load, q.leader, 2*time.Second, req); err == nil {
				if r := resp.(*kmsg.FetchResponse); len(r.Topics) == 1 && len(r.Topics[0].Partitions) == 1 && r.Topics[0].Partitions[0].ErrorCode == 0 {
					w.ghostsServed.Add(1)
				}
			}
		}
		time.Sleep(300 * time.Millisecond)
	}
}

type ghostFetch struct {
	topic     string
	id        metadata.UUID
	leader    int
	partition kmsg.FetchRequestTopicPartition
}

// ledByOthers is what a follower on h that lacks nothing would ask.
func (w *world) ledByOthers(h *host) (out []ghostFetch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.decided.topics {
		for _, p := range t.partitions {
			if t.deleted || p.leader < 1 || int(p.leader) == h.id || !slices.Contains(p.replicas, int32(h.id)) {
				continue
			}
			n := w.hosts[p.leader-1].node()
			if n == nil || n.Replicas() == nil {
				continue
			}
			one, err := n.Replicas().PartitionByID(t.id, p.id)
			if err != nil {
				continue
			}
			q := ghostFetch{topic: t.name, id: t.id, leader: int(p.leader), partition: kmsg.NewFetchRequestTopicPartition()}
			q.partition.Partition, q.partition.CurrentLeaderEpoch, q.partition.LastFetchedEpoch = p.id, p.leaderEpoch, p.leaderEpoch
			q.partition.FetchOffset, q.partition.LogStartOffset, q.partition.PartitionMaxBytes = one.Positions().End, one.Positions().LogStart, 1<<16
			out = append(out, q)
		}
	}
	return out
}
