package log

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// model is what a log should be: its batches, and what of that a crash may not take.
type model struct {
	batches   []modelBatch
	logStart  int64
	end       int64
	hw        int64
	epoch     int32
	durable   int64 // everything below was synced
	nextPoint int64 // the recovery point in the checkpoint
	nextStart int64 // the log start in the checkpoint
}

type modelBatch struct {
	base, last int64
	epoch      int32
	crc        uint32
	pid        int64
	seq, n     int32
}

// machine runs random operations on a log and on its model.
type machine struct {
	t *rapid.T
	x *tester
	f *vfs.Fault
	m model
}

func (k *machine) options() func(*Options) {
	return func(o *Options) {
		o.RecoveryPoint, o.LogStart, o.HighWatermark = k.m.nextPoint, k.m.nextStart, k.m.hw
		o.SavePositions = func() error { k.save(); return nil }
	}
}

// save is what writing the checkpoints does.
func (k *machine) save() {
	k.m.nextPoint = k.x.log.RecoveryPoint()
	k.m.nextStart = -1
	if s, ok := k.x.log.LogStartToSave(); ok {
		k.m.nextStart = s
	}
}

func (k *machine) append() {
	n := int32(rapid.IntRange(1, 5).Draw(k.t, "records"))
	pid := rapid.Int64Range(1, 3).Draw(k.t, "pid")
	b := idempotent(pid, 0, k.nextSequence(pid), int(n), false)
	failing := rapid.IntRange(0, 9).Draw(k.t, "fault") == 0
	if failing {
		k.f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Short: rapid.IntRange(0, len(b)).Draw(k.t, "short")})
	}
	info, err := k.x.log.AppendAsLeader(b, k.m.epoch, AppendOptions{})
	k.f.Clear()
	if failing {
		if err == nil {
			k.t.Fatal("a failed write was acknowledged")
		}
		return
	}
	if err != nil || info.Duplicate || info.BaseOffset != k.m.end {
		k.t.Fatalf("append: %+v, %v; want offset %d", info, err, k.m.end)
	}
	k.m.batches = append(k.m.batches, modelBatch{info.BaseOffset, info.LastOffset, k.m.epoch, b.CRC(), pid, b.BaseSequence(), n})
	k.m.end = info.LastOffset + 1
}

func (k *machine) nextSequence(pid int64) int32 {
	for _, st := range k.x.log.ProducerStates() {
		if st.ProducerID == pid && st.LastSequence >= 0 {
			return st.LastSequence + 1
		}
	}
	return 0
}

// retry sends the newest batch again: it must be recognised.
func (k *machine) retry() {
	if len(k.m.batches) == 0 {
		return
	}
	last := k.m.batches[len(k.m.batches)-1]
	info, err := k.x.log.AppendAsLeader(idempotent(last.pid, 0, last.seq, int(last.n), false), k.m.epoch, AppendOptions{})
	if err != nil || !info.Duplicate || info.BaseOffset != last.base {
		k.t.Fatalf("retry of %+v: %+v, %v", last, info, err)
	}
}

func (k *machine) truncate() {
	at := rapid.Int64Range(max(k.m.logStart-2, 0), k.m.end+2).Draw(k.t, "truncate")
	if err := k.x.log.TruncateTo(at, "model"); err != nil {
		k.t.Fatal(err)
	}
	v := k.x.log.View()
	defer v.Release()
	k.cutModel(at, v)
}

func (k *machine) cutModel(at int64, v *View) {
	m := &k.m
	if at >= m.end {
		return
	}
	for len(m.batches) > 0 && m.batches[len(m.batches)-1].last >= at {
		m.batches = m.batches[:len(m.batches)-1]
	}
	m.end = v.EndOffset
	if m.end > at || len(m.batches) > 0 && m.end <= m.batches[len(m.batches)-1].last {
		k.t.Fatalf("truncation to %d ended at %d", at, m.end)
	}
	m.logStart, m.hw, m.durable = v.LogStartOffset, min(m.hw, m.end), min(m.durable, m.end)
	if m.hw < m.logStart {
		m.hw = m.logStart
	}
}

func (k *machine) moveHighWatermark() {
	k.m.hw = rapid.Int64Range(k.m.logStart, k.m.end).Draw(k.t, "hw")
	k.x.log.SetHighWatermark(k.m.hw)
}

func (k *machine) moveLogStart() {
	at := rapid.Int64Range(k.m.logStart, k.m.hw).Draw(k.t, "log start")
	if err := k.x.log.AdvanceLogStart(at, "model"); err != nil {
		k.t.Fatal(err)
	}
	k.m.logStart = at
	k.forget()
}

// forget drops the model's batches that lie wholly below the log start.
func (k *machine) forget() {
	for len(k.m.batches) > 0 && k.m.batches[0].last < k.m.logStart {
		k.m.batches = k.m.batches[1:]
	}
}

func (k *machine) retain() {
	if _, err := k.x.log.Retain(k.x.now); err != nil {
		k.t.Fatal(err)
	}
	v := k.x.log.View()
	defer v.Release()
	if v.LogStartOffset < k.m.logStart || v.LogStartOffset > k.m.hw {
		k.t.Fatalf("retention moved the log start from %d to %d, hw %d", k.m.logStart, v.LogStartOffset, k.m.hw)
	}
	k.m.logStart = v.LogStartOffset
	k.forget()
	k.x.log.DeleteDue(k.x.now.Add(time.Hour))
}

func (k *machine) flush() {
	if err := k.x.log.Flush(); err != nil {
		k.t.Fatal(err)
	}
	k.m.durable = k.m.end
}

func (k *machine) newLeader() {
	k.m.epoch += rapid.Int32Range(1, 2).Draw(k.t, "epochs")
	if start, err := k.x.log.BecomeLeader(k.m.epoch); err != nil || start != k.m.end {
		k.t.Fatalf("leader of %d from %d, %v; end %d", k.m.epoch, start, err, k.m.end)
	}
}

func (k *machine) restart() {
	if err := k.x.log.Close(); err != nil {
		k.t.Fatal(err)
	}
	problems, err := Verify(k.x.fs, k.x.dir)
	for _, p := range problems {
		// What lies below the log start is not synced, and may be torn by a crash.
		if base, ok := fileOffset(p.File); !ok || base >= k.m.logStart {
			k.t.Fatalf("verify: %v", p)
		}
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.save()
	k.m.durable = k.m.end
	k.x.open(k.options(), clean)
}

func (k *machine) crash() {
	loss := rapid.SampledFrom([]vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}).Draw(k.t, "loss")
	seed := rapid.Uint64().Draw(k.t, "seed")
	k.x.mem = k.x.mem.CrashClone(loss, seed)
	k.f = vfs.NewFault(k.x.mem)
	k.x.fs = k.f
	k.x.open(k.options())
	v := k.x.log.View()
	defer v.Release()
	if v.EndOffset < k.m.durable || loss == vfs.LoseNothing && v.EndOffset != k.m.end {
		k.t.Fatalf("crash %d left the end at %d of %d, durable %d", loss, v.EndOffset, k.m.end, k.m.durable)
	}
	for len(k.m.batches) > 0 && k.m.batches[len(k.m.batches)-1].last >= v.EndOffset {
		k.m.batches = k.m.batches[:len(k.m.batches)-1]
	}
	if v.LogStartOffset > k.m.logStart && v.LogStartOffset > v.EndOffset {
		k.t.Fatalf("log [%d,%d)", v.LogStartOffset, v.EndOffset)
	}
	// Retention that was not synced, or not yet checkpointed, may have to be done again: then older batches are back.
	if v.LogStartOffset < k.m.logStart {
		if err := k.x.log.AdvanceLogStart(min(k.m.logStart, v.EndOffset), "again"); err != nil {
			k.x.log.SetHighWatermark(v.EndOffset)
			if err := k.x.log.AdvanceLogStart(min(k.m.logStart, v.EndOffset), "again"); err != nil {
				k.t.Fatal(err)
			}
		}
	}
	w := k.x.log.View()
	defer w.Release()
	k.m.end, k.m.logStart, k.m.hw = w.EndOffset, w.LogStartOffset, w.HighWatermark
	k.m.durable = min(k.m.durable, k.m.end)
	k.forget()
	if e, ok := w.Epochs.Latest(); ok && e.Epoch > k.m.epoch {
		k.t.Fatalf("epochs %v, the newest leader was %d", w.Epochs, k.m.epoch)
	}
}

// check compares log and model.
func (k *machine) check() {
	v := k.x.log.View()
	defer v.Release()
	m := &k.m
	if v.LogStartOffset != m.logStart || v.EndOffset != m.end || v.HighWatermark != m.hw {
		k.t.Fatalf("log [%d,%d) hw %d, want [%d,%d) hw %d", v.LogStartOffset, v.EndOffset, v.HighWatermark, m.logStart, m.end, m.hw)
	}
	if v.LogStartOffset > v.HighWatermark || v.HighWatermark > v.EndOffset || v.LastStableOffset > v.HighWatermark {
		k.t.Fatalf("P2: start %d hw %d lso %d end %d", v.LogStartOffset, v.HighWatermark, v.LastStableOffset, v.EndOffset)
	}
	if k.x.log.RecoveryPoint() > v.EndOffset {
		k.t.Fatalf("recovery point %d above the end %d", k.x.log.RecoveryPoint(), v.EndOffset)
	}
	got := readAll(k.t, v)
	if len(got) != len(m.batches) {
		k.t.Fatalf("%d batches, want %d: %v", len(got), len(m.batches), describe(got))
	}
	for i, b := range got {
		want := m.batches[i]
		if b.BaseOffset() != want.base || b.LastOffset() != want.last || b.PartitionLeaderEpoch() != want.epoch || b.CRC() != want.crc {
			k.t.Fatalf("batch %d is %d-%d epoch %d, want %+v", i, b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), want)
		}
		if e, ok := v.Epochs.ForOffset(max(b.BaseOffset(), v.LogStartOffset)); !ok || e != want.epoch {
			k.t.Fatalf("epochs %v, batch at %d has %d", v.Epochs, want.base, want.epoch)
		}
	}
}

func describe(bs []record.Batch) (out []string) {
	for _, b := range bs {
		out = append(out, fmt.Sprintf("%d-%d", b.BaseOffset(), b.LastOffset()))
	}
	return out
}

// Random appends, rolls, failures, truncations, retention, flushes, restarts and crashes leave the log as a list of
// batches would be: P1, P2, P7 and P8.
func TestLogAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		x := newTester(rt, Config{SegmentBytes: int32(rapid.SampledFrom([]int{150, 400, 2000}).Draw(rt, "segment.bytes")),
			IndexIntervalBytes: int32(rapid.SampledFrom([]int{1, 200, 4096}).Draw(rt, "interval")), RetentionMs: -1})
		k := &machine{t: rt, x: x, m: model{nextStart: -1}}
		k.f = x.onFault()
		x.open(k.options())
		steps := map[string]func(){
			"append": k.append, "more": k.append, "again": k.append, "retry": k.retry, "truncate": k.truncate, "hw": k.moveHighWatermark,
			"start": k.moveLogStart, "retain": k.retain, "flush": k.flush, "leader": k.newLeader, "restart": k.restart, "crash": k.crash,
			"checkpoint": k.save,
		}
		names := []string{"append", "more", "again", "retry", "truncate", "hw", "start", "retain", "flush", "leader", "restart", "crash",
			"checkpoint"}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			steps[rapid.SampledFrom(names).Draw(rt, "step")]()
			k.check()
		}
	})
}
