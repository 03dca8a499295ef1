package storage

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/vfs"
)

// smallConfig makes a segment of a few batches.
func smallConfig(c log.Config) log.Config {
	c.SegmentBytes, c.IndexIntervalBytes = 400, 100
	c.FileDeleteDelayMs, c.MinCleanableRatio, c.DeleteRetentionMs = 1000, 0.01, 1000
	return c
}

// smallWorkload is a node's life with all that a log can be asked for.
func smallWorkload(w *world) error {
	t := w.part("t", smallConfig(log.Config{RetentionMs: 60000}))
	s := w.part("s", smallConfig(log.Config{FlushMessages: 1, RetentionMs: -1}))
	c := w.part("c", smallConfig(log.Config{Cleanup: log.CleanupCompact}))
	f := w.part("f", smallConfig(log.Config{FlushMessages: 4, RetentionMs: -1}))
	d := w.part("d", smallConfig(log.Config{}))
	do := func(steps ...func() error) error {
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
			if w.watchful {
				if err := w.look(); err != nil {
					return err
				}
			}
		}
		w.drain()
		return w.look()
	}
	up := func(loss vfs.Loss) func() error {
		return func() error {
			if _, err := w.start(); err != nil {
				return err
			}
			return w.settle(loss)
		}
	}
	createAll := func() error {
		return errors.Join(w.create(t), w.create(s), w.create(c), w.create(f), w.create(d))
	}
	return errors.Join(do(up(vfs.LoseNothing), createAll),
		do(
			func() error {
				return errors.Join(w.produce(t, 2, -1, false), w.produce(t, 1, 1, false), w.produce(t, 3, 1, false))
			},
			func() error { return errors.Join(w.produce(s, 1, -1, false), w.produce(s, 2, 2, true)) },
			func() error { return errors.Join(w.replicate(f, 4), w.produce(d, 2, -1, false)) },
			func() error {
				return errors.Join(w.produce(c, 2, -1, false), w.produce(c, 2, 3, true), w.produce(c, 2, -1, false), w.decide(c, 3, false))
			}),
		do(
			func() error { return w.flush(t) },
			w.checkpoint,
			func() error { return errors.Join(w.lead(t), w.lead(s)) },
			func() error { return errors.Join(w.produce(t, 2, 1, false), w.produce(t, 2, -1, false)) },
			func() error {
				return errors.Join(w.produce(s, 2, 2, true), w.decide(s, 2, false), w.produce(s, 1, 2, true))
			},
			func() error { return w.truncate(t, 2) },
			func() error { return w.truncate(f, 3) },
			func() error { return errors.Join(w.lead(t), w.produce(t, 3, 1, false), w.replicate(f, 2)) },
			func() error { return w.decide(s, 2, true) },
			func() error { return errors.Join(w.fetch(t), w.fetch(s)) }),
		do(
			func() error { return w.deleteRecords(t, 3) },
			func() error { w.now = w.now.Add(70 * time.Second); return w.produce(t, 2, -1, false) },
			func() error { return w.retain(t) },
			func() error {
				return errors.Join(w.produce(c, 2, -1, false), w.produce(c, 3, -1, false), w.produce(c, 2, -1, false))
			},
			w.compact,
			func() error { return w.delete(d) },
			func() error { w.now = w.now.Add(70 * time.Second); return w.housekeep() },
			w.compact,
			w.checkpoint),
		do(
			func() error { w.lose(vfs.LoseNothing, 0); return nil },
			up(vfs.LoseNothing), createAll,
			func() error {
				return errors.Join(w.produce(t, 2, 1, false), w.produce(s, 1, -1, false), w.replicate(f, 2))
			}),
		do(
			func() error { w.lose(vfs.LoseSome, 3); return nil },
			up(vfs.LoseSome), createAll,
			func() error {
				return errors.Join(w.produce(t, 2, 1, false), w.produce(c, 1, -1, false), w.produce(s, 1, -1, false))
			},
			func() error { w.stop(); return nil },
			up(vfs.LoseNothing), createAll,
			func() error { return errors.Join(w.produce(t, 1, -1, false), w.produce(s, 1, 5, false)) },
			func() error { w.stop(); return nil }))
}

// failures are the ways in which an operation can go wrong.
func failures(o vfs.Operation) map[string]*vfs.Failure {
	eio := &vfs.Failure{Err: syscall.EIO}
	full := &vfs.Failure{Err: syscall.ENOSPC}
	switch o.Kind {
	case vfs.OpWrite:
		return map[string]*vfs.Failure{"short write": {Err: syscall.ENOSPC, Short: o.Bytes / 2}, "write error": {Err: syscall.EIO, Short: o.Bytes / 3},
			"write error after all": {Err: syscall.EIO, Short: o.Bytes}, "full": full, "full from there on": full, "dead from there on": eio}
	case vfs.OpCreate, vfs.OpMkdir:
		return map[string]*vfs.Failure{"error": eio, "full": full, "full from there on": full, "dead from there on": eio}
	case vfs.OpRename, vfs.OpTruncate:
		return map[string]*vfs.Failure{"error": eio, "full": full, "dead from there on": eio}
	case vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove:
		return map[string]*vfs.Failure{"error": eio, "dead from there on": eio}
	default:
		return map[string]*vfs.Failure{"error": eio}
	}
}

// changes says whether an operation changes something: a crash between two others leaves nothing new.
func changes(k vfs.OpKind) bool {
	return k != vfs.OpRead && k != vfs.OpStat && k != vfs.OpReadDir && k != vfs.OpOpen
}

// needsRoom says whether a full disk refuses the operation.
func needsRoom(k vfs.OpKind) bool { return k == vfs.OpWrite || k == vfs.OpCreate || k == vfs.OpMkdir }

// At every single file operation of a node's life each failure that it can have is injected once, and a crash: what is
// open goes on as if the failed call had not been, and what opens afterwards holds all that was acknowledged, each
// offset once (A10, P1, P2, P6, P7, P8).
func TestFaultAtEveryOperation(t *testing.T) {
	t.Parallel()
	began := time.Now()
	pool := newPool()
	kinds := newHistogram()

	// One life shows which operations there are; the machine crashes at each.
	var ops []vfs.Operation
	w := newWorld(1)
	w.watchful = true
	w.watch = func(o vfs.Operation) *vfs.Failure {
		n := len(ops)
		ops = append(ops, o)
		if !changes(o.Kind) || n%stride != 0 {
			return nil
		}
		parts, now := w.snapshot(), w.now
		for _, image := range []struct {
			loss vfs.Loss
			seed uint64
			name string
		}{{vfs.LoseNothing, 0, "kill"}, {vfs.LoseUnsynced, 0, "power loss"}, {vfs.LoseSome, uint64(2 * n), "power loss, torn"},
			{vfs.LoseAny, uint64(2*n + 1), "power loss, torn, names in no order"}} {
			mem := w.mem.CrashClone(image.loss, image.seed)
			kinds.add(image.name)
			pool.run(func() error {
				if err := examine(mem, parts, image.loss, now); err != nil {
					return fmt.Errorf("%s before operation %d, %v: %w", image.name, n, o, err)
				}
				return nil
			})
		}
		return nil
	}
	if err := smallWorkload(w); err != nil {
		t.Fatal(err)
	}
	for n, o := range ops {
		if n%stride != 0 {
			continue
		}
		for name, failure := range failures(o) {
			kinds.add(o.Kind.String() + ": " + name)
			pool.run(func() error {
				if err := failAt(n, o, name, failure); err != nil {
					return fmt.Errorf("%s at operation %d, %v: %w", name, n, o, err)
				}
				return nil
			})
		}
	}
	errs := pool.wait()
	for i, err := range errs {
		if i == 5 {
			t.Errorf("and %d more", len(errs)-i)
			break
		}
		t.Error(err)
	}
	total := kinds.total()
	t.Logf("%d operations, %d points visited in %v:\n%s", len(ops), total, time.Since(began).Round(time.Millisecond), kinds)
	if total < 1000 && stride == 1 {
		t.Errorf("only %d points", total)
	}
}

// failAt lives the life of the small workload with one failure at its n-th operation.
func failAt(n int, o vfs.Operation, name string, failure *vfs.Failure) error {
	w := newWorld(1)
	defer func() { w.end() }()
	at := 0
	lasting := name == "full from there on" || name == "dead from there on"
	w.watch = func(now vfs.Operation) *vfs.Failure {
		at++
		switch {
		case at-1 < n:
			return nil
		case at-1 == n:
			return failure
		case !lasting || failure.Err == syscall.ENOSPC && !needsRoom(now.Kind):
			return nil
		}
		return &vfs.Failure{Err: failure.Err}
	}
	if err := smallWorkload(w); err != nil {
		return err
	}
	if at <= n {
		return fmt.Errorf("the operation did not come: %d of them", at)
	}
	w.watch = nil
	parts := w.snapshot()
	for seed, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseSome} {
		if err := examine(w.mem.CrashClone(loss, uint64(seed+n)), parts, loss, w.now); err != nil {
			return fmt.Errorf("reopened: %w", err)
		}
	}
	return nil
}

// pool runs checks on as many goroutines as there are processors.
type pool struct {
	work chan func() error
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func newPool() *pool {
	p := &pool{work: make(chan func() error, 64)}
	for range runtime.GOMAXPROCS(0) {
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			for f := range p.work {
				if err := f(); err != nil {
					p.mu.Lock()
					p.errs = append(p.errs, err)
					p.mu.Unlock()
				}
			}
		}()
	}
	return p
}

func (p *pool) run(f func() error) { p.work <- f }

func (p *pool) wait() []error {
	close(p.work)
	p.wg.Wait()
	return p.errs
}
