package storage

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// life is a long random life of a node: all of it follows from its seed.
type life struct {
	*world
	flush  int64 // flush.messages of every partition; 0: each has its own
	counts *histogram

	faults    int
	countdown int          // until the armed failure strikes, -1: none is armed
	lasting   *vfs.Failure // what all operations end in that it fits

	aim    string // where the machine is to die, "" nowhere
	aimAt  int    // at which operation of that kind
	loss   vfs.Loss
	struck *death

	held []heldView
}

// death is what a crash in the middle of a step has left.
type death struct {
	mem   *vfs.Mem
	parts []*part
	at    vfs.Operation
}

// heldView is a reader that takes its time.
type heldView struct {
	l    *log.Log
	v    *log.View
	crcs []uint32
}

func newLife(seed uint64, flush int64) *life {
	k := &life{world: newWorld(seed), flush: flush, counts: newHistogram(), countdown: -1}
	k.watch = k.see
	size := func() int32 { return int32(450 + k.rng.IntN(1500)) }
	k.add("a", log.Config{SegmentBytes: size(), FlushMessages: 1, RetentionMs: 300000})
	k.add("b", log.Config{SegmentBytes: size(), RetentionMs: 300000, RetentionBytes: 6000})
	k.add("c", log.Config{SegmentBytes: size(), Cleanup: log.CleanupCompact, FlushMessages: int64(1 + 20*k.rng.IntN(2))})
	k.add("d", log.Config{SegmentBytes: size(), Cleanup: log.CleanupCompactDelete, RetentionMs: 300000})
	k.add("e", log.Config{SegmentBytes: size(), FlushMessages: 7, RetentionMs: -1})
	k.add("f", log.Config{SegmentBytes: size(), Preallocate: true, RetentionMs: 300000, FlushMessages: int64(1 + 30*k.rng.IntN(2))})
	return k
}

func (k *life) add(topic string, c log.Config) *part {
	c.IndexIntervalBytes = int32(1 + k.rng.IntN(600))
	c.FileDeleteDelayMs, c.MinCleanableRatio, c.DeleteRetentionMs = 20000, 0.01, 100000
	if k.flush != 0 {
		c.FlushMessages = k.flush
	}
	p := k.part(topic, c)
	p.nextSeq = map[int64]int32{}
	return p
}

// classOf says which kind of moment an operation is, for the aim.
func classOf(o vfs.Operation) (classes []string) {
	if !changes(o.Kind) {
		return nil
	}
	has := func(s string) bool { return strings.Contains(o.Name, s) || strings.Contains(o.To, s) }
	switch {
	case has("-checkpoint") && !has("leader-epoch"):
		classes = append(classes, "checkpoint")
	case has("leader-epoch-checkpoint"):
		classes = append(classes, "epoch checkpoint")
	case has(".cleaned"), has(".swap"):
		classes = append(classes, "cleaner swap")
	case o.Kind == vfs.OpCreate && strings.HasSuffix(o.Name, ".log"), o.Kind == vfs.OpSync && strings.HasSuffix(o.Name, "index"), has(".snapshot"):
		classes = append(classes, "roll")
	case o.Kind == vfs.OpWrite && strings.HasSuffix(o.Name, ".log"):
		classes = append(classes, "append")
	case o.Kind == vfs.OpSync && strings.HasSuffix(o.Name, ".log"):
		classes = append(classes, "flush")
	case o.Kind == vfs.OpTruncate:
		classes = append(classes, "truncation")
	case has(".deleted"), has("-delete"):
		classes = append(classes, "deletion")
	}
	if o.Kind == vfs.OpRename {
		classes = append(classes, "rename")
	}
	return append(classes, "anything")
}

// see decides what becomes of an operation.
func (k *life) see(o vfs.Operation) *vfs.Failure {
	if k.aim != "" && k.struck == nil && slices.Contains(classOf(o), k.aim) {
		if k.aimAt--; k.aimAt < 0 {
			k.counts.add(k.aim)
			k.struck = &death{k.mem.CrashClone(k.loss, k.rng.Uint64()), k.snapshot(), o}
		}
	}
	if k.lasting != nil && (k.lasting.Err != syscall.ENOSPC || needsRoom(o.Kind)) {
		k.faults++
		return k.lasting
	}
	if k.countdown < 0 {
		return nil
	}
	if k.countdown--; k.countdown >= 0 {
		return nil
	}
	all := failures(o)
	names := slices.Sorted(maps.Keys(all))
	name := names[k.rng.IntN(len(names))]
	k.faults++
	k.counts.add("fault: " + o.Kind.String())
	if strings.HasSuffix(name, "from there on") {
		k.lasting = &vfs.Failure{Err: all[name].Err}
	}
	return all[name]
}

func (k *life) chance(percent int) bool { return k.rng.IntN(100) < percent }

// pick is a partition that the node has.
func (k *life) pick() *part { return k.parts[k.rng.IntN(len(k.parts))] }

// step does one random thing.
func (k *life) step() error {
	p := k.pick()
	follower := p.tp.Topic == "e"
	k.now = k.now.Add(time.Duration(k.rng.IntN(3000)) * time.Millisecond)
	switch n := k.rng.IntN(100); {
	case n < 45 && follower:
		return k.replicate(p, 1+k.rng.IntN(5))
	case n < 22:
		return k.produce(p, 1+k.rng.IntN(5), -1, false)
	case n < 33:
		return k.produce(p, 1+k.rng.IntN(5), 1+int64(k.rng.IntN(3)), false)
	case n < 45:
		return k.produce(p, 1+k.rng.IntN(3), 10+int64(k.rng.IntN(3)), true)
	case n < 55:
		open := slices.Sorted(maps.Keys(openTxns(p.entries)))
		if len(open) == 0 || follower {
			return nil
		}
		return k.decide(p, open[k.rng.IntN(len(open))], k.chance(50))
	case n < 58 && !follower:
		return k.lead(p)
	case n < 64:
		return k.truncate(p, 1+k.rng.IntN(8))
	case n < 68:
		l, ok := k.log(p)
		if !ok {
			return nil
		}
		v := l.View()
		defer v.Release()
		if v.LastStableOffset <= p.logStart {
			return nil
		}
		return k.deleteRecords(p, p.logStart+k.rng.Int64N(v.LastStableOffset-p.logStart)+1)
	case n < 73:
		k.now = k.now.Add(time.Duration(k.rng.IntN(60)) * time.Second)
		return k.retain(p)
	case n < 80:
		return k.compact()
	case n < 83:
		return k.flushOne(p)
	case n < 87:
		return k.checkpoint()
	case n < 89:
		return k.housekeep()
	case n < 92:
		return k.hold(p)
	case n < 94:
		return k.fetch(p)
	case n < 95:
		return k.renew(p)
	default:
		k.drain()
		return nil
	}
}

func (k *life) flushOne(p *part) error { return k.world.flush(p) }

// renew deletes a partition, and makes another one of that name once it is gone for sure.
func (k *life) renew(p *part) error {
	if !p.deleted {
		return k.delete(p)
	}
	i := slices.Index(k.parts, p)
	n := &part{tp: p.tp, id: p.id, cfg: p.cfg, nextSeq: map[int64]int32{}}
	n.id[2]++
	k.parts[i] = n
	return k.create(n)
}

// hold has a reader keep what it sees, and lets the eldest go: its bytes must be what they were.
func (k *life) hold(p *part) error {
	k.checking = true
	defer func() { k.checking = false }()
	if l, ok := k.log(p); ok && len(k.held) < 4 {
		v := l.View()
		batches, err := readAll(v, v.LogStartOffset, v.EndOffset)
		if err != nil {
			return fmt.Errorf("%s: %w", p.tp, err)
		}
		k.held = append(k.held, heldView{l, v, crcs(batches)})
		return nil
	}
	return k.letGo()
}

func crcs(batches []record.Batch) (out []uint32) {
	for _, b := range batches {
		out = append(out, b.CRC())
	}
	return out
}

func (k *life) letGo() error {
	if len(k.held) == 0 {
		return nil
	}
	h := k.held[0]
	k.held = k.held[1:]
	defer h.v.Release()
	batches, err := readAll(h.v, h.v.LogStartOffset, h.v.EndOffset)
	if h.l.Err() != nil || errors.Is(err, log.ErrClosed) {
		return nil
	}
	if err != nil || !slices.Equal(crcs(batches), h.crcs) {
		return fmt.Errorf("%s: the bytes under a reader have changed: %w", h.l.Topic(), err)
	}
	return nil
}

// boot starts the node, however often that takes, and checks what is there.
func (k *life) boot(loss vfs.Loss, faults bool) error {
	k.held = nil
	for try := 0; ; try++ {
		k.lasting, k.countdown = nil, -1
		if faults && try < 3 && k.chance(40) {
			k.countdown = k.rng.IntN(150)
		}
		up, err := k.start()
		if err != nil {
			return err
		}
		if k.struck != nil { // it died while it started
			k.takeOver()
			loss = k.loss
			continue
		}
		if up && k.allOpen() {
			break
		}
		if try > 5 {
			return fmt.Errorf("the node does not start on a sound disk: %v", k.failed)
		}
		k.lose(vfs.LoseNothing, 0)
	}
	k.countdown = -1
	if err := k.settle(loss); err != nil {
		return err
	}
	for _, p := range k.parts {
		if err := k.create(p); err != nil {
			return err
		}
	}
	return k.look()
}

// allOpen says whether every log that the disk holds is open.
func (k *life) allOpen() bool {
	for _, p := range k.parts {
		if p.created && !p.deleted && !p.deleting {
			if l, ok := k.dirs.Log(p.tp.Topic, p.tp.Partition); !ok || l.Err() != nil {
				return false
			}
		}
	}
	return true
}

// takeOver goes on with what the crash has left.
func (k *life) takeOver() {
	d := k.struck
	k.struck, k.aim, k.held = nil, "", nil
	k.end()
	k.mem, k.parts = d.mem, d.parts
	for _, p := range k.parts {
		p.unsure = p.unsure || k.loss != vfs.LoseNothing
	}
}

// broken says whether the directory has failed.
func (k *life) broken() bool { return k.dirs == nil || len(k.dirs.Offline()) > 0 || !k.allOpen() }

// reopen ends this life of the node in one way or another, and begins the next.
func (k *life) reopen(faults bool) error {
	if k.chance(30) {
		k.counts.add("clean stop")
		k.stop()
		if k.struck != nil {
			k.takeOver()
			return k.boot(k.loss, faults)
		}
		return k.boot(vfs.LoseNothing, faults)
	}
	loss := []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome, vfs.LoseAny}[k.rng.IntN(4)]
	k.counts.add([]string{"kill", "power loss", "power loss, torn", "power loss, torn, names in no order"}[loss])
	k.lose(loss, k.rng.Uint64())
	return k.boot(loss, faults)
}

// run lives on until it has seen so many failures and steps.
func (k *life) run(faults, steps int) error {
	if err := k.boot(vfs.LoseNothing, false); err != nil {
		return err
	}
	for n := 0; n < steps || k.faults < faults; n++ {
		if faults > 0 && k.countdown < 0 && k.lasting == nil && k.chance(15) {
			k.countdown = k.rng.IntN(12)
		}
		err := k.step()
		if k.chance(40) {
			k.drain()
		}
		if err == nil && n%lookEvery == 0 {
			err = k.look()
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		switch {
		case k.lasting != nil && k.lasting.Err == syscall.ENOSPC && k.chance(20):
			k.lasting = nil // somebody made room
		case k.broken() && k.chance(40), k.chance(2):
			if err := k.reopen(faults > 0); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
		}
	}
	k.lasting, k.countdown = nil, -1
	for len(k.held) > 0 && !k.broken() {
		if err := k.letGo(); err != nil {
			return err
		}
	}
	parts := k.snapshot()
	return examine(k.mem.CrashClone(vfs.LoseSome, k.rng.Uint64()), parts, vfs.LoseSome, k.now)
}

// lookEvery is after how many steps everything is looked at.
var lookEvery = 20
