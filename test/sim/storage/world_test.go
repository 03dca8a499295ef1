package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

const dataDir = "/data"

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// world is one node's disk, the logs on it, and the ledger. It belongs to one goroutine.
type world struct {
	rng   *rand.Rand
	mem   *vfs.Mem
	dirs  *log.Dirs // nil while the node is down
	clean *log.Cleaner
	life  *bool // false once this life of the node is over
	now   time.Time
	queue []func() // what appends have left behind
	parts []*part
	ts    int64
	token int
	// watch sees every file operation of the living node, but for those of the checker.
	watch    func(vfs.Operation) *vfs.Failure
	checking bool
	failed   map[log.TopicPartition]error
	watchful bool // look at everything after every step
	// threads is how many logs are recovered, and closed, at a time. More than one makes the order of operations another each time:
	// only where no fault is injected, whose outcome does not depend on it.
	threads int
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0xd15c)), mem: vfs.NewMem(), now: time.UnixMilli(1700000000000)}
	w.mem.SetClock(func() time.Time { return w.now })
	return w
}

func (w *world) part(topic string, cfg log.Config) *part {
	p := &part{tp: log.TopicPartition{Topic: topic}, cfg: cfg, nextSeq: map[int64]int32{}}
	p.id[0], p.id[1] = byte(len(w.parts)+1), 7
	w.parts = append(w.parts, p)
	return p
}

// options are those of a node on fsys.
func options(fsys vfs.FS, threads int, now func() time.Time, background func(func())) log.DirsOptions {
	return log.DirsOptions{FS: fsys, Paths: []string{dataDir}, RecoveryThreads: max(threads, 1), Now: now, Logger: discard, Background: background}
}

// judge keeps the partitions that are not known to be deleted.
func judge(parts []*part) func(log.TopicPartition, [16]byte) log.Verdict {
	return func(tp log.TopicPartition, id [16]byte) log.Verdict {
		for _, p := range parts {
			if p.tp == tp && !p.deleted {
				return log.Verdict{Keep: id == p.id, Config: p.cfg, Reason: "topic id", TopicID: p.id}
			}
		}
		return log.Verdict{Reason: "not ours"}
	}
}

// start starts the node. up is false when that failed, as it may only with a failing disk.
func (w *world) start() (up bool, err error) {
	alive := true
	w.life = &alive
	f := vfs.NewFault(w.mem)
	f.Watch(func(o vfs.Operation) *vfs.Failure {
		if !alive || w.watch == nil || w.checking {
			return nil
		}
		return w.watch(o)
	})
	w.queue = nil
	d, err := log.OpenDirs(options(f, w.threads, func() time.Time { return w.now }, func(work func()) { w.queue = append(w.queue, work) }))
	if err != nil {
		return false, nil
	}
	failed, err := d.Load(context.Background(), judge(w.parts))
	w.failed = failed
	if err != nil {
		alive = false
		d.Abandon()
		return false, nil
	}
	w.dirs = d
	w.clean = log.NewCleaner(d, log.DefaultCleanerOptions())
	w.drain()
	return true, nil
}

// drain runs what appends have left behind.
func (w *world) drain() {
	for len(w.queue) > 0 {
		work := w.queue[0]
		w.queue = w.queue[1:]
		work()
	}
	w.acknowledge()
}

// acknowledge tells producers what flushes in the background have made durable.
func (w *world) acknowledge() {
	for _, p := range w.parts {
		l, ok := w.log(p)
		if !ok || p.unsure {
			continue
		}
		v := l.View()
		ackEnd := v.AckEnd
		v.Release()
		for i := len(p.entries) - 1; i >= 0 && !p.entries[i].acked; i-- {
			p.entries[i].acked = p.entries[i].last < ackEnd
		}
		if p.cfg.FlushMessages == 1 {
			p.synced = max(p.synced, min(ackEnd, p.end))
		}
		l.SetHighWatermark(min(ackEnd, p.end))
	}
}

// lose ends the node: killed (the kernel keeps what was written), or without power.
func (w *world) lose(loss vfs.Loss, seed uint64) {
	mem := w.mem
	if loss != vfs.LoseNothing {
		mem = w.mem.CrashClone(loss, seed)
		for _, p := range w.parts {
			p.unsure = true
		}
	}
	w.end()
	w.mem = mem
}

func (w *world) end() {
	if w.dirs == nil {
		return
	}
	*w.life = false
	w.dirs.Abandon()
	w.dirs, w.queue = nil, nil
}

// stop stops the node cleanly, as far as its disk lets it.
func (w *world) stop() {
	if w.dirs == nil {
		return
	}
	w.drain()
	_ = w.dirs.Close(context.Background(), 42)
	*w.life = false
	w.dirs, w.queue = nil, nil
}

// settle checks every open log and takes what is there as what was.
func (w *world) settle(loss vfs.Loss) error {
	if w.dirs == nil {
		return nil
	}
	w.checking = true
	defer func() { w.checking = false }()
	for _, p := range w.parts {
		l, ok := w.dirs.Log(p.tp.Topic, p.tp.Partition)
		if !ok && p.deleting {
			if _, err := w.mem.Stat(filepath.Join(dataDir, p.tp.String())); err != nil {
				p.deleted = true
			}
		}
		if !ok || l.Err() != nil {
			continue
		}
		p.deleting = p.deleting && p.deleted
		if p.deleted {
			return fmt.Errorf("%s was deleted and is back", p.tp)
		}
		p.created = true
		v := l.View()
		end := v.EndOffset
		v.Release()
		l.SetHighWatermark(end)
		v = l.View()
		f, err := p.check(v, loss)
		v.Release()
		if l.Err() != nil {
			continue // the disk failed while we looked
		}
		if err != nil {
			return err
		}
		p.resolve(f)
	}
	return nil
}

// look checks every log that is in use, as it is.
func (w *world) look() error {
	if w.dirs == nil {
		return nil
	}
	w.checking = true
	defer func() { w.checking = false }()
	for _, p := range w.parts {
		l, ok := w.log(p)
		if !ok || p.unsure {
			continue
		}
		v := l.View()
		f, err := p.check(v, vfs.LoseNothing)
		v.Release()
		if l.Err() != nil {
			continue
		}
		if err == nil && f.end != p.end {
			err = fmt.Errorf("%s ends at %d, owed is %d", p.tp, f.end, p.end)
		}
		if err != nil {
			return err
		}
		p.claim(l)
	}
	return nil
}

// claim takes the log by its word about what is on disk.
func (p *part) claim(l *log.Log) {
	v := l.View()
	defer v.Release()
	// A log start that was raised and is not on record yet says nothing about what lies below it.
	if start := v.LogStartOffset; l.Err() == nil && (start <= p.logStart || l.RecoveryPoint() > start) {
		p.synced = max(p.synced, min(l.RecoveryPoint(), p.end))
	}
}

// log is the partition's log, while it can be used.
func (w *world) log(p *part) (*log.Log, bool) {
	if w.dirs == nil || p.deleted || p.deleting {
		return nil, false
	}
	l, ok := w.dirs.Log(p.tp.Topic, p.tp.Partition)
	return l, ok && l.Err() == nil
}

func (w *world) create(p *part) error {
	if w.dirs == nil || p.deleted || p.deleting {
		return nil
	}
	if l, ok := w.dirs.Log(p.tp.Topic, p.tp.Partition); ok && l != nil {
		return nil
	}
	p.creating = true
	l, err := w.dirs.Create(p.tp, p.id, p.cfg, "", !p.created)
	if err != nil {
		return nil // nothing is owed
	}
	if !p.created {
		p.created = true
		return nil
	}
	// It was here before and could not be loaded.
	v := l.View()
	defer v.Release()
	f, err := p.check(v, vfs.LoseNothing)
	if l.Err() != nil {
		return nil
	}
	if err == nil {
		p.resolve(f)
	}
	return err
}

// stamp gives timestamps that go up and down.
func (w *world) stamp() int64 {
	w.ts += int64(w.rng.IntN(2000)) - 800
	return w.now.UnixMilli() + w.ts%500
}

// build makes a batch of n records, and its entry but for the offsets.
func (w *world) build(n int, key func(int) string, null bool, prod *record.Producer, txn bool) (record.Batch, entry) {
	b := record.NewBuilder(record.BuilderOptions{Producer: prod, Transactional: txn})
	e := entry{pid: -1, txn: txn}
	if prod != nil {
		e.pid, e.seq = prod.ID, prod.BaseSequence
	}
	for i := range n {
		w.token++
		r := owedRecord{token: fmt.Sprint(w.token), key: key(i), null: null}
		var value []byte
		if !null {
			value = bytes.Repeat([]byte{byte('a' + w.token%26)}, 20+w.token%20)
			r.value = string(value)
		}
		if err := b.Append(w.stamp(), []byte(r.key), value, []record.Header{{Key: []byte("n"), Value: []byte(r.token)}}); err != nil {
			panic(err)
		}
		e.records = append(e.records, r)
	}
	out := b.Bytes()
	e.crc = out.CRC()
	return out, e
}

// place gives an entry its offsets.
func (e *entry) place(base int64, epoch int32, n int) {
	e.base, e.last, e.epoch = base, base+int64(n)-1, epoch
	for i := range e.records {
		e.records[i].offset = base + int64(i)
	}
}

// append appends a batch as the leader.
func (w *world) append(p *part, b record.Batch, e entry, n int, o log.AppendOptions) error {
	l, ok := w.log(p)
	if !ok {
		if l != nil {
			if info, err := l.AppendAsLeader(b, p.epoch, o); err == nil {
				return fmt.Errorf("%s: a log that has failed took a batch at %d", p.tp, info.BaseOffset)
			}
		}
		return nil
	}
	e.place(p.end, p.epoch, n)
	p.entries = append(p.entries, e)
	info, err := l.AppendAsLeader(b, p.epoch, o)
	mine := &p.entries[len(p.entries)-1]
	switch {
	case err == nil:
		if info.Duplicate || info.BaseOffset != mine.base || info.LastOffset != mine.last {
			return fmt.Errorf("%s: given offsets %d-%d, duplicate %v; the log ended at %d", p.tp, info.BaseOffset, info.LastOffset, info.Duplicate, p.end)
		}
		mine.acked, p.ghosts = !info.Held, nil
		p.end = mine.last + 1
		if e.pid >= 0 && !e.marker {
			p.nextSeq[e.pid] = e.seq + int32(n)
		}
		if info.Held {
			break // until its flush is done
		}
		if p.cfg.FlushMessages == 1 {
			p.synced = p.end
		}
		l.SetHighWatermark(p.end)
	case l.Err() == nil:
		if errors.Is(err, log.ErrOutOfOrderSequence) && (p.compacts() || !p.hasDataOf(e.pid, l)) {
			// As in Kafka: what is known of the producer is a marker, its data was deleted.
			p.entries, p.nextSeq[e.pid] = p.entries[:len(p.entries)-1], 0
			return nil
		}
		var se *log.StorageError
		if !errors.As(err, &se) || se.Offline {
			return fmt.Errorf("%s: refused with %w, and goes on", p.tp, err)
		}
		p.entries = p.entries[:len(p.entries)-1]
		v := l.View()
		defer v.Release()
		if v.EndOffset != p.end {
			return fmt.Errorf("%s: after a refused append the end is %d, was %d: %w", p.tp, v.EndOffset, p.end, err)
		}
	}
	p.claim(l)
	return nil
}

// hasDataOf says whether a batch of the producer can still be read.
func (p *part) hasDataOf(pid int64, l *log.Log) bool {
	v := l.View()
	defer v.Release()
	for _, e := range p.entries[:len(p.entries)-1] {
		if e.pid == pid && !e.marker && e.last >= v.LogStartOffset {
			return true
		}
	}
	return false
}

// produce appends a batch of n records of a producer: pid -1 plain, else idempotent, and in a transaction with txn.
func (w *world) produce(p *part, n int, pid int64, txn bool) error {
	var prod *record.Producer
	if pid >= 0 {
		prod = &record.Producer{ID: pid, BaseSequence: p.nextSeq[pid]}
	}
	null := p.compacts() && w.rng.IntN(6) == 0
	b, e := w.build(n, func(int) string { return fmt.Sprintf("k%d", w.rng.IntN(6)) }, null, prod, txn)
	return w.append(p, b, e, n, log.AppendOptions{TxnVerified: true, Deferred: p.cfg.FlushMessages < 100 && !p.compacts() && w.rng.IntN(3) == 0})
}

// decide ends a producer's transaction.
func (w *world) decide(p *part, pid int64, commit bool) error {
	b := record.NewEndTxnBatch(record.EndTxnMarker{Commit: commit, ProducerID: pid}, w.now.UnixMilli())
	e := entry{pid: pid, marker: true, commit: commit, txn: true, crc: b.CRC()}
	return w.append(p, b, e, 1, log.AppendOptions{Origin: log.OriginCoordinator})
}

// replicate appends several batches at once, as a follower does.
func (w *world) replicate(p *part, batches int) error {
	l, ok := w.log(p)
	if !ok {
		return nil
	}
	from := len(p.entries)
	var data []byte
	end := p.end
	for i := range batches {
		n := 1 + (w.token+i)%3
		b, e := w.build(n, func(i int) string { return fmt.Sprint("k", i) }, false, nil, false)
		if i > 0 && w.rng.IntN(4) == 0 {
			p.epoch++
		}
		e.place(end, p.epoch, n)
		b.SetBaseOffset(e.base)
		b.SetPartitionLeaderEpoch(e.epoch)
		data = append(data, b...)
		p.entries = append(p.entries, e)
		end = e.last + 1
	}
	_, err := l.AppendAsFollower(data, math.MaxInt32)
	if l.Err() != nil {
		if err == nil {
			return fmt.Errorf("%s: acknowledged, and failed: %w", p.tp, l.Err())
		}
		return nil
	}
	v := l.View()
	at := v.EndOffset
	v.Release()
	if err == nil && at != end {
		return fmt.Errorf("%s ends at %d after batches up to %d", p.tp, at, end)
	}
	p.drop(at)
	for i := from; i < len(p.entries); i++ {
		p.entries[i].acked, p.ghosts = true, nil
	}
	if len(p.entries) > from && p.entries[len(p.entries)-1].last+1 != at || len(p.entries) == from && at != p.end {
		return fmt.Errorf("%s ends at %d, which is no batch's end: %w", p.tp, at, err)
	}
	p.end = at
	l.SetHighWatermark(at)
	p.claim(l)
	return nil
}

// lead makes the node leader of the next epoch.
func (w *world) lead(p *part) error {
	l, ok := w.log(p)
	if !ok {
		return nil
	}
	p.epoch++
	start, err := l.BecomeLeader(p.epoch)
	if err == nil && start != p.end {
		return fmt.Errorf("%s: epoch %d starts at %d, the end is %d", p.tp, p.epoch, start, p.end)
	}
	return nil
}

// truncate cuts the log before the i-th newest batch.
func (w *world) truncate(p *part, back int) error {
	l, ok := w.log(p)
	if !ok || len(p.entries) == 0 {
		return nil
	}
	e := p.entries[max(len(p.entries)-back, 0)]
	x := max(e.base, p.logStart)
	if x > e.base || e.base < max(p.mayStart, p.cleaned) {
		return nil // no replica is asked for that
	}
	p.doubt(x)
	err := l.TruncateTo(x, "test")
	if l.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: truncation to %d failed, and the log goes on: %w", p.tp, x, err)
	}
	p.drop(x)
	p.end, p.ghosts = x, nil
	p.nextSeq = map[int64]int32{}
	for _, e := range p.entries {
		if e.pid >= 0 && !e.marker {
			p.nextSeq[e.pid] = e.seq + int32(len(e.records))
		}
	}
	return nil
}

// deleteRecords raises the log start.
func (w *world) deleteRecords(p *part, x int64) error {
	l, ok := w.log(p)
	if !ok || x <= p.logStart || x > p.end {
		return nil
	}
	p.mayStart = max(p.mayStart, x)
	err := l.AdvanceLogStart(x, "test")
	if err == nil {
		p.logStart = x
	}
	return nil
}

// retain deletes by retention.
func (w *world) retain(p *part) error {
	l, ok := w.log(p)
	if !ok {
		return nil
	}
	before := p.mayStart
	p.mayStart = p.end
	_, err := l.Retain(w.now)
	if l.Err() != nil {
		return nil
	}
	v := l.View()
	defer v.Release()
	if v.LogStartOffset < p.logStart || v.LogStartOffset > p.end {
		return fmt.Errorf("%s: retention moved the log start from %d to %d, end %d", p.tp, p.logStart, v.LogStartOffset, p.end)
	}
	if err == nil {
		p.logStart = max(p.logStart, v.Segments()[0].BaseOffset)
	}
	p.mayStart = max(before, v.LogStartOffset)
	return nil
}

func (w *world) flush(p *part) error {
	l, ok := w.log(p)
	if !ok {
		return nil
	}
	if err := l.Flush(); err == nil {
		p.synced, p.ghosts = p.end, nil
	} else if l.Err() == nil {
		return fmt.Errorf("%s: a failed flush, and it goes on: %w", p.tp, err)
	}
	return nil
}

func (w *world) delete(p *part) error {
	if _, ok := w.log(p); !ok {
		return nil
	}
	p.deleting = true
	if err := w.dirs.Delete(p.tp); err == nil {
		p.deleted = true
	}
	return nil
}

// fetch reads a log as consumers do; the disk may fail under it.
func (w *world) fetch(p *part) error {
	l, ok := w.log(p)
	if !ok {
		return nil
	}
	v := l.View()
	defer v.Release()
	_, err := readAll(v, v.LogStartOffset, v.EndOffset)
	_, _, err2 := v.MaxTimestamp(v.EndOffset)
	_, _, err3 := v.OffsetForTime(w.now.UnixMilli(), v.EndOffset)
	if err := errors.Join(err, err2, err3); err != nil && l.Err() == nil {
		return fmt.Errorf("%s: a read failed, and the log goes on: %w", p.tp, err)
	}
	return nil
}

func (w *world) checkpoint() error {
	if w.dirs != nil {
		_ = w.dirs.CheckpointPositions()
		_ = w.dirs.CheckpointHighWatermarks()
	}
	return nil
}

func (w *world) compact() error {
	if w.dirs == nil {
		return nil
	}
	for _, p := range w.parts {
		if p.compacts() {
			p.cleaned = p.end
		}
	}
	_, _ = w.clean.CleanOne(context.Background())
	return nil
}

func (w *world) housekeep() error {
	if w.dirs != nil {
		w.dirs.Housekeep(w.now)
	}
	return nil
}

// snapshot is the ledger at one instant.
func (w *world) snapshot() []*part {
	out := make([]*part, len(w.parts))
	for i, p := range w.parts {
		out[i] = p.clone()
	}
	return out
}

// recoverers is how many logs are recovered at a time after a crash that left parts: one, or several at once.
func recoverers(parts []*part) int {
	n := int64(0)
	for _, p := range parts {
		n += p.end
	}
	return []int{1, 4, 2}[n%3]
}

// examine opens what a crash has left and checks it against the ledger; then whether the node can go on with it.
func examine(mem *vfs.Mem, parts []*part, loss vfs.Loss, now time.Time) error {
	w := &world{rng: rand.New(rand.NewPCG(1, 2)), mem: mem, now: now, token: 1 << 20, threads: recoverers(parts)}
	mem.SetClock(func() time.Time { return w.now }) // and not of the world it was copied from, which goes on
	for _, p := range parts {
		c := p.clone()
		c.unsure = c.unsure || loss != vfs.LoseNothing
		w.parts = append(w.parts, c)
	}
	if up, err := w.start(); !up {
		return fmt.Errorf("the node does not start: %w", errors.Join(err, errors.New("no fault was injected")))
	}
	defer w.end()
	for _, p := range w.parts {
		l, ok := w.dirs.Log(p.tp.Topic, p.tp.Partition)
		switch {
		case ok && l.Err() != nil:
			return l.Err()
		case ok, p.deleted, p.deleting:
			continue
		case p.created:
			return fmt.Errorf("%s is gone, or could not be opened", p.tp)
		}
	}
	if err := w.settle(loss); err != nil {
		return err
	}
	for _, p := range w.parts {
		if l, ok := w.dirs.Log(p.tp.Topic, p.tp.Partition); ok && !p.deleted {
			if err := follow(l, p); err != nil {
				return err
			}
			p.epoch++
			if err := errors.Join(w.retry(p), w.produce(p, 2, -1, false)); err != nil {
				return err
			}
		}
	}
	if err := w.look(); err != nil {
		return fmt.Errorf("after one more append: %w", err)
	}
	w.stop()
	for _, p := range w.parts {
		dir := filepath.Join(dataDir, p.tp.String())
		if _, err := mem.Stat(dir); err != nil {
			continue
		}
		problems, err := log.Verify(mem, dir)
		if err != nil {
			return err
		}
		for _, problem := range problems {
			if problem.Offset < 0 || problem.Offset >= p.logStart {
				return fmt.Errorf("%s after a clean stop: %v", p.tp, problem)
			}
		}
	}
	if up, err := w.start(); !up {
		return fmt.Errorf("the node does not start after a clean stop: %v", err)
	}
	return w.look()
}

// retry sends a producer's last batch again: it must be recognised (P11).
func (w *world) retry(p *part) error {
	l, ok := w.log(p)
	if !ok || p.compacts() {
		return nil
	}
	v := l.View()
	defer v.Release()
	for i := len(p.entries) - 1; i >= 0; i-- {
		e := p.entries[i]
		if e.pid < 0 || e.marker || e.txn || e.base < v.LogStartOffset {
			continue
		}
		b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: e.pid, BaseSequence: e.seq}})
		for range e.records {
			if err := b.Append(w.now.UnixMilli(), []byte("again"), nil, nil); err != nil {
				return err
			}
		}
		info, err := l.AppendAsLeader(b.Bytes(), p.epoch, log.AppendOptions{})
		if err != nil || !info.Duplicate || info.BaseOffset != e.base {
			return fmt.Errorf("%s: a retry of %d-%d: %+v %w", p.tp, e.base, e.last, info, err)
		}
		return nil
	}
	return nil
}

// follow replicates a log from its start: the follower sees rising offsets and has the same in the end (A10).
func follow(leader *log.Log, p *part) error {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("/f", 0o755); err != nil {
		return err
	}
	v := leader.View()
	defer v.Release()
	f, err := log.Open(log.Options{FS: mem, Dir: "/f/" + p.tp.String(), Topic: p.tp.Topic, Config: p.cfg, RecoveryPoint: -1, LogStart: -1,
		HighWatermark: -1, CleanedTo: -1, Logger: discard})
	if err != nil {
		return err
	}
	defer f.Close()
	batches, err := readAll(v, v.LogStartOffset, v.EndOffset)
	if err != nil {
		return err
	}
	start := v.LogStartOffset
	if len(batches) > 0 {
		start = min(start, batches[0].BaseOffset()) // the log start may lie inside a batch
	}
	if err := f.TruncateFullyAndStartAt(start, "new"); err != nil {
		return err
	}
	for len(batches) > 0 {
		n := min(len(batches), 3)
		var data []byte
		for _, b := range batches[:n] {
			data = append(data, b...)
		}
		if _, err := f.AppendAsFollower(data, math.MaxInt32); err != nil {
			return fmt.Errorf("%s: a follower that starts at %d: %w", p.tp, v.LogStartOffset, err)
		}
		batches = batches[n:]
	}
	fv := f.View()
	defer fv.Release()
	if fv.EndOffset != v.EndOffset && !p.compacts() {
		return fmt.Errorf("%s: a follower ends at %d, the leader at %d", p.tp, fv.EndOffset, v.EndOffset)
	}
	return nil
}
