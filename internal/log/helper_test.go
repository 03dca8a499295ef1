package log

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

const ts0 = int64(1700000000000)

// failer is what *testing.T and *rapid.T have in common.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Error(...any)
	Errorf(string, ...any)
}

// tester is a log in a file system in memory, with a clock that tests move.
type tester struct {
	t      failer
	fs     vfs.FS
	mem    *vfs.Mem
	dir    string
	cfg    Config
	now    time.Time
	log    *Log
	mu     sync.Mutex
	events []Event
	topic  [16]byte
}

func newTester(t failer, cfg Config) *tester {
	m := vfs.NewMem()
	x := &tester{t: t, fs: m, mem: m, dir: "/data/t-0", cfg: cfg, now: time.UnixMilli(ts0), topic: topicID}
	m.SetClock(func() time.Time { return x.now })
	if err := m.MkdirAll("/data", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *tester) options() Options {
	return Options{FS: x.fs, Dir: x.dir, Topic: "t", Config: x.cfg, RecoveryPoint: -1, LogStart: -1, HighWatermark: -1,
		Now: func() time.Time { return x.now }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), TopicID: x.topic,
		OnEvent: func(e Event) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.events = append(x.events, e)
		}}
}

func (x *tester) open(change ...func(*Options)) *tester {
	x.t.Helper()
	o := x.options()
	for _, c := range change {
		c(&o)
	}
	l, err := Open(o)
	if err != nil {
		x.t.Fatalf("open: %v", err)
	}
	x.log = l
	return x
}

func clean(o *Options) { o.Clean = true }

func recoverFrom(point int64) func(*Options) { return func(o *Options) { o.RecoveryPoint = point } }
func startAt(offset int64) func(*Options)    { return func(o *Options) { o.LogStart = offset } }

// crash drops the log without closing it and goes on with what a crash leaves.
func (x *tester) crash(loss vfs.Loss, seed uint64) *tester {
	x.mem = x.mem.CrashClone(loss, seed)
	x.fs = x.mem
	return x
}

// fork is another tester on what a crash at this instant would leave; x goes on.
func (x *tester) fork(loss vfs.Loss, seed uint64) *tester {
	y := &tester{t: x.t, dir: x.dir, cfg: x.cfg, now: x.now, topic: x.topic, mem: x.mem.CrashClone(loss, seed)}
	y.fs = y.mem
	return y
}

func (x *tester) close() *tester {
	x.t.Helper()
	if err := x.log.Close(); err != nil {
		x.t.Fatalf("close: %v", err)
	}
	return x
}

func (x *tester) count(kind EventKind) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, e := range x.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// batch is a batch of n records of about size bytes in all, with timestamp ts.
func batch(n, size int, ts int64) record.Batch {
	b := record.NewBuilder(record.BuilderOptions{})
	each := max((size-record.HeaderSize)/n-10, 0)
	for i := range n {
		if err := b.Append(ts, nil, bytes.Repeat([]byte{byte('a' + i%26)}, each), nil); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// exactly is a one-record batch of exactly size bytes.
func exactly(size int, ts int64) record.Batch {
	for v := max(size-90, 0); ; v++ {
		b := record.NewBuilder(record.BuilderOptions{})
		if err := b.Append(ts, nil, bytes.Repeat([]byte{'x'}, v), nil); err != nil {
			panic(err)
		}
		if out := b.Bytes(); len(out) >= size {
			return out
		}
	}
}

// idempotent is a batch of n records of producer pid.
func idempotent(pid int64, e int16, seq int32, n int, txn bool) record.Batch {
	b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: pid, Epoch: e, BaseSequence: seq}, Transactional: txn})
	for i := range n {
		if err := b.Append(ts0+int64(i), nil, []byte(fmt.Sprint(seq)), nil); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func marker(pid int64, e int16, commit bool, coordinatorEpoch int32) record.Batch {
	return record.NewEndTxnBatch(record.EndTxnMarker{Commit: commit, ProducerID: pid, ProducerEpoch: e, CoordinatorEpoch: coordinatorEpoch}, ts0)
}

// append appends b as the leader of epoch 0 and moves the high watermark to the end.
func (x *tester) append(b record.Batch) AppendInfo {
	x.t.Helper()
	info, err := x.try(b, 0, AppendOptions{TxnVerified: true})
	if err != nil {
		x.t.Fatalf("append: %v", err)
	}
	return info
}

func (x *tester) try(b record.Batch, epoch int32, o AppendOptions) (AppendInfo, error) {
	info, err := x.log.AppendAsLeader(b.Clone(), epoch, o)
	if err == nil {
		x.log.SetHighWatermark(info.LastOffset + 1)
	}
	return info, err
}

// end appends a transaction marker.
func (x *tester) end(b record.Batch) AppendInfo {
	x.t.Helper()
	info, err := x.log.AppendAsLeader(b, 0, AppendOptions{Origin: OriginCoordinator})
	if err != nil {
		x.t.Fatalf("marker: %v", err)
	}
	return info
}

func (x *tester) leo() int64 {
	v := x.log.View()
	defer v.Release()
	return v.EndOffset
}

// aborted is all that the log tells of aborted transactions.
func (x *tester) aborted() []AbortedTxn {
	v := x.log.View()
	defer v.Release()
	return v.AbortedTxns(v.LogStartOffset, v.EndOffset)
}

func (x *tester) file(name string) []byte {
	x.t.Helper()
	data, err := vfs.ReadFile(x.fs, x.dir+"/"+name)
	if err != nil {
		x.t.Fatal(err)
	}
	return data
}

func (x *tester) exists(name string) bool {
	_, err := x.fs.Stat(x.dir + "/" + name)
	return err == nil
}

func (x *tester) put(name string, data []byte) {
	x.t.Helper()
	if err := vfs.WriteFileAtomic(x.fs, x.dir+"/"+name, data); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tester) remove(name string) {
	x.t.Helper()
	if err := x.fs.Remove(x.dir + "/" + name); err != nil {
		x.t.Fatal(err)
	}
}

// offsets reads the whole log from its start and returns the base offset of each batch, checking CRCs and order.
func (x *tester) offsets() []int64 {
	x.t.Helper()
	v := x.log.View()
	defer v.Release()
	var out []int64
	for _, b := range readAll(x.t, v) {
		out = append(out, b.BaseOffset())
	}
	return out
}

func readAll(t failer, v *View) []record.Batch {
	t.Helper()
	var out []record.Batch
	last, lastEpoch := int64(-1), int32(-1)
	for o := v.LogStartOffset; o < v.EndOffset; {
		d, err := v.Read(o, v.EndOffset, 1<<20, true)
		if err != nil {
			t.Fatalf("read %d: %v", o, err)
		}
		if d.Length == 0 {
			break
		}
		data, err := d.ReadAll(nil)
		if err != nil {
			t.Fatalf("read %d: %v", o, err)
		}
		for b, err := range record.Batches(data) {
			if err == nil {
				err = b.VerifyCRC()
			}
			if err != nil {
				t.Fatalf("batch after %d: %v", last, err)
			}
			if b.BaseOffset() <= last || b.PartitionLeaderEpoch() < lastEpoch {
				t.Fatalf("batch %d epoch %d after %d epoch %d", b.BaseOffset(), b.PartitionLeaderEpoch(), last, lastEpoch)
			}
			last, lastEpoch = b.LastOffset(), b.PartitionLeaderEpoch()
			o = last + 1
			out = append(out, b)
		}
	}
	return out
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// batchA is two records k1=v1 and k2=v2 as a producer sends them.
var batchA = record.Batch(unhex(`0000000000000000 00000047 ffffffff 02 6702d0b7 0000 00000001 0000018bcfe56800 0000018bcfe56805
	ffffffffffffffff ffff ffffffff 00000002 14 00 00 00 04 6b31 04 7631 00 14 00 0a 02 04 6b32 04 7632 00`))
