package log

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

const modelRetention = 1000 * time.Millisecond

// cleanModel is all that ever was in a compacted log, and what must be left of it.
type cleanModel struct {
	t *rapid.T
	x *tester
	f *vfs.Fault

	batches  map[int64]record.Batch // as appended, by base offset
	aborted  map[int64]bool         // by base offset of a data batch
	open     map[int64][]int64      // base offsets of batches whose transaction is open, by producer
	sequence map[int64]int32
	last     map[int64]record.Batch // of each idempotent producer
	covered  map[int64]time.Time    // when a pass may first have covered the tombstone at an offset
	horizon  map[int64]time.Time    // when one did so for certain
	reached  int64                  // below it some pass may have dropped what is superseded
	cleaned  int64                  // the checkpoint as it is on disk
	point    int64
	epoch    int32
}

func (m *cleanModel) append(b record.Batch) int64 {
	defer m.uncompacted()()
	info, err := m.x.log.AppendAsLeader(b.Clone(), m.epoch, AppendOptions{TxnVerified: true})
	if err != nil {
		m.t.Fatalf("append: %v", err)
	}
	m.x.log.SetHighWatermark(info.LastOffset + 1)
	return info.BaseOffset
}

// uncompacted is how keyless records can have come into the log: before it was compacted.
func (m *cleanModel) uncompacted() (back func()) {
	c := m.x.cfg
	c.Cleanup = CleanupDelete
	m.x.log.SetConfig(c)
	return func() { m.x.log.SetConfig(m.x.cfg) }
}

// note keeps the batch as it is in the log.
func (m *cleanModel) note(b record.Batch, base int64) {
	b = b.Clone()
	b.SetBaseOffset(base)
	b.SetPartitionLeaderEpoch(m.epoch)
	m.batches[base] = b
}

func (m *cleanModel) records() (batch record.BuilderOptions, list []kv) {
	n := rapid.IntRange(1, 5).Draw(m.t, "records")
	for range n {
		r := kv{key: rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", ""}).Draw(m.t, "key"), value: "-"}
		if rapid.IntRange(0, 3).Draw(m.t, "tombstone") > 0 || r.key == "" {
			r.value = fmt.Sprint(len(m.batches))
		}
		list = append(list, r)
	}
	return record.BuilderOptions{Codec: rapid.SampledFrom([]record.Codec{record.None, record.None, record.LZ4, record.Snappy}).Draw(m.t, "codec")}, list
}

// table is what a reader ends up with who reads all that ever was, in the order of offsets.
func (m *cleanModel) table() map[string]string {
	out := map[string]string{}
	for _, base := range slices.Sorted(maps.Keys(m.batches)) {
		if b := m.batches[base]; !b.IsControl() && !m.aborted[base] {
			for r := range b.Records(record.Limits{}) {
				switch {
				case r.Key == nil:
				case r.Value == nil:
					delete(out, string(r.Key))
				default:
					out[string(r.Key)] = string(r.Value)
				}
			}
		}
	}
	return out
}

func (m *cleanModel) plain() {
	o, list := m.records()
	b := keyed(m.x.now.UnixMilli(), o, list...)
	m.note(b, m.append(b))
}

func (m *cleanModel) produce(pid int64, transactional bool) {
	o, list := m.records()
	o.Producer, o.Transactional = &record.Producer{ID: pid, BaseSequence: m.sequence[pid]}, transactional
	b := keyed(m.x.now.UnixMilli(), o, list...)
	base := m.append(b)
	m.note(b, base)
	m.sequence[pid] += int32(len(list))
	m.last[pid] = b
	if transactional {
		m.open[pid] = append(m.open[pid], base)
	}
}

func (m *cleanModel) end(pid int64) {
	if len(m.open[pid]) == 0 {
		m.t.Skip("no transaction is open")
	}
	commit := rapid.Bool().Draw(m.t, "commit")
	b := record.NewEndTxnBatch(record.EndTxnMarker{Commit: commit, ProducerID: pid}, m.x.now.UnixMilli())
	info, err := m.x.log.AppendAsLeader(b.Clone(), m.epoch, AppendOptions{Origin: OriginCoordinator})
	if err != nil {
		m.t.Fatalf("marker: %v", err)
	}
	m.x.log.SetHighWatermark(info.LastOffset + 1)
	m.note(b, info.BaseOffset)
	for _, base := range m.open[pid] {
		m.aborted[base] = !commit
	}
	delete(m.open, pid)
}

// pass cleans, and now and then the machine dies on the way.
func (m *cleanModel) pass() {
	d, _, err := m.x.log.Dirtiness(m.x.now)
	if err != nil {
		m.t.Fatal(err)
	}
	if d.FirstDirty >= d.Uncleanable {
		m.t.Skip("nothing is dirty")
	}
	size := rapid.SampledFrom([]int64{4, 7, 1 << 16}).Draw(m.t, "slots") * offsetMapEntrySize
	var image *tester
	if rapid.IntRange(0, 3).Draw(m.t, "crash") == 0 {
		if err := m.x.log.Flush(); err != nil {
			m.t.Fatal(err)
		}
		m.save()
		at := rapid.IntRange(0, 60).Draw(m.t, "operation")
		loss := rapid.SampledFrom([]vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}).Draw(m.t, "loss")
		seed := rapid.Uint64().Draw(m.t, "seed")
		m.f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: at, Before: func() { image = m.x.fork(loss, seed) }})
	}
	r, err := m.x.log.clean(d, cleanOptions{now: m.x.now, mapBytes: size, mapLoad: 0.9, throttle: func(int) error { return nil }})
	m.f.Clear()
	if err != nil {
		m.t.Fatalf("clean: %v", err)
	}
	if image != nil {
		m.x = image
		m.reopen()
		m.cover(d.Uncleanable, false)
		m.check("after a crash")
		return
	}
	m.cover(r.To, true)
	m.check("after a pass")
	m.checkCompacted(r, d)
	if rapid.Bool().Draw(m.t, "checkpoint") {
		m.save()
	}
}

func (m *cleanModel) save() { m.cleaned, m.point = m.x.log.cleanedTo.Load(), m.x.log.RecoveryPoint() }

func (m *cleanModel) reopen() {
	m.f = m.x.onFault()
	hw := int64(0)
	for base, b := range m.batches {
		hw = max(hw, base+int64(b.LastOffsetDelta())+1)
	}
	m.x.open(recoverFrom(m.point), func(o *Options) { o.CleanedTo, o.HighWatermark = m.cleaned, hw })
	m.x.log.SetHighWatermark(hw)
	if m.x.leo() != hw {
		m.t.Fatalf("the log ends at %d, want %d", m.x.leo(), hw)
	}
}

func (m *cleanModel) restart() {
	if rapid.Bool().Draw(m.t, "clean") {
		m.x.close()
		m.save()
	} else {
		if err := m.x.log.Flush(); err != nil {
			m.t.Fatal(err)
		}
		m.save()
		m.x.crash(vfs.LoseUnsynced, 0)
	}
	m.reopen()
	m.check("after a restart")
}

// cover notes when a pass up to end first saw the tombstones that are whole batches below it. certain is false when
// nobody knows how far the pass has come.
func (m *cleanModel) cover(end int64, certain bool) {
	m.reached = max(m.reached, end)
	for base, b := range m.batches {
		if b.LastOffset() >= end || b.IsControl() || m.aborted[base] {
			continue
		}
		for r := range b.Records(record.Limits{}) {
			if offset := b.OffsetOf(r); r.Value == nil && m.covered[offset].IsZero() {
				m.covered[offset] = m.x.now
			}
			if offset := b.OffsetOf(r); r.Value == nil && certain && m.horizon[offset].IsZero() {
				m.horizon[offset] = m.x.now
			}
		}
	}
}

// inLog walks the batches that are there.
func (m *cleanModel) inLog(fn func(b record.Batch)) {
	v := m.x.log.View()
	defer v.Release()
	next := int64(-1)
	for i, seg := range v.list.segs {
		s := &batchScanner{file: seg.file, end: v.state(i).size}
		for {
			b, err := s.next()
			if err != nil {
				break
			}
			if b.BaseOffset() < next || b.BaseOffset() < seg.base {
				m.t.Fatalf("offset %d after %d, segment %d", b.BaseOffset(), next, seg.base)
			}
			next = b.NextOffset()
			fn(b)
		}
	}
	if next > v.EndOffset {
		m.t.Fatalf("offset %d in a log that ends at %d", next, v.EndOffset)
	}
}

// check holds the log to what never changes: the table of committed values, whatever is left being as it was written,
// markers as long as there is something of their transaction, and producers' last sequences.
func (m *cleanModel) check(when string) {
	if got, want := m.x.table(), m.table(); !maps.Equal(got, want) {
		m.t.Fatalf("%s: %v, want %v", when, got, want)
	}
	unended := map[int64]int64{} // by producer, the first batch without a marker behind it
	m.inLog(func(b record.Batch) {
		was := m.batches[b.BaseOffset()]
		if was == nil || was.LastOffset() != b.LastOffset() || was.PartitionLeaderEpoch() != b.PartitionLeaderEpoch() || was.ProducerID() != b.ProducerID() ||
			was.BaseSequence() != b.BaseSequence() || was.IsTransactional() != b.IsTransactional() || was.IsControl() != b.IsControl() {
			m.t.Fatalf("%s: batch at %d is no longer what it was", when, b.BaseOffset())
		}
		switch {
		case b.IsControl():
			delete(unended, b.ProducerID())
			return
		case b.IsTransactional() && m.open[b.ProducerID()] == nil:
			unended[b.ProducerID()] = b.BaseOffset()
		}
		old := map[int64]string{}
		for r := range was.Records(record.Limits{}) {
			old[was.OffsetOf(r)] = fmt.Sprintf("%s=%s %t %d", r.Key, r.Value, r.Value == nil, was.TimestampOf(r))
		}
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				m.t.Fatalf("%s: %v", when, err)
			}
			if got := fmt.Sprintf("%s=%s %t %d", r.Key, r.Value, r.Value == nil, b.TimestampOf(r)); old[b.OffsetOf(r)] != got {
				m.t.Fatalf("%s: record %d is %s, was %s", when, b.OffsetOf(r), got, old[b.OffsetOf(r)])
			}
		}
	})
	for pid, base := range unended {
		m.t.Fatalf("%s: the marker for producer %d's batch at %d is gone", when, pid, base)
	}
	defer m.uncompacted()()
	for pid, b := range m.last {
		info, err := m.x.log.AppendAsLeader(b.Clone(), m.epoch, AppendOptions{TxnVerified: true})
		if err != nil || !info.Duplicate {
			m.t.Fatalf("%s: a retry of producer %d's last batch: %+v, %v", when, pid, info, err)
		}
	}
}

// checkCompacted holds what a pass has gone over to what compaction promises.
func (m *cleanModel) checkCompacted(r CleanResult, d Dirtiness) {
	newest, superseded := map[string]int64{}, map[string]int64{}
	for base, b := range m.batches {
		if b.IsControl() || m.aborted[base] {
			continue
		}
		for rec := range b.Records(record.Limits{}) {
			if rec.Key == nil {
				continue
			}
			offset, key := b.OffsetOf(rec), string(rec.Key)
			if offset < r.To {
				newest[key] = max(newest[key], offset+1)
			}
			if offset < m.reached {
				superseded[key] = max(superseded[key], offset)
			}
		}
	}
	present := map[int64]bool{}
	ends := false
	m.inLog(func(b record.Batch) {
		ends = ends || b.NextOffset() == d.Uncleanable
		if b.IsControl() {
			return
		}
		for rec := range b.Records(record.Limits{}) {
			offset := b.OffsetOf(rec)
			switch since := m.horizon[offset]; {
			case offset >= r.To:
			case m.aborted[b.BaseOffset()]:
				m.t.Fatalf("aborted record %d is still there", offset)
			case rec.Value == nil && !since.IsZero() && m.x.now.Sub(since) >= modelRetention:
				m.t.Fatalf("tombstone %d is still there; covered since %v, now %v", offset, since, m.x.now)
			case rec.Key == nil:
				m.t.Fatalf("keyless record %d is still there", offset)
			case newest[string(rec.Key)] != offset+1:
				m.t.Fatalf("record %d of key %s is still there, %d is newer", offset, rec.Key, newest[string(rec.Key)]-1)
			}
			present[offset] = true
		}
	})
	if !ends && d.Uncleanable > 0 {
		m.t.Fatalf("no batch ends at %d", d.Uncleanable)
	}
	for base, b := range m.batches {
		if b.IsControl() || m.aborted[base] {
			continue
		}
		for rec := range b.Records(record.Limits{}) {
			offset := b.OffsetOf(rec)
			if rec.Key == nil && offset >= m.reached && !present[offset] {
				m.t.Fatalf("record %d, which no pass has come to, is gone", offset)
			}
			if rec.Key == nil || superseded[string(rec.Key)] != offset || offset >= r.To {
				continue
			}
			since := m.covered[offset]
			if must := rec.Value != nil || since.IsZero() || m.x.now.Sub(since) < modelRetention; must && !present[offset] {
				m.t.Fatalf("record %d, the newest of key %s, is gone; covered since %v, now %v", offset, rec.Key, since, m.x.now)
			}
		}
	}
}

// Random batches (keyed, keyless, null, compressed, idempotent, transactional), passes with maps of any size, crashes in
// the middle of them and restarts: the last committed value of a key never changes, offsets rise, no aborted record comes
// back, the log's end stays, tombstones can be read for delete.retention.ms after the pass that first covered them, and
// retries stay duplicates.
func TestS070_compaction_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := &cleanModel{t: rt, batches: map[int64]record.Batch{}, aborted: map[int64]bool{}, open: map[int64][]int64{},
			sequence: map[int64]int32{}, last: map[int64]record.Batch{}, covered: map[int64]time.Time{}, horizon: map[int64]time.Time{}}
		m.x = newTester(rt, Config{Cleanup: CleanupCompact, SegmentBytes: 600, IndexIntervalBytes: 200, DeleteRetentionMs: modelRetention.Milliseconds(),
			SegmentMs: math.MaxInt64, SegmentIndexBytes: 10240, MaxMessageBytes: 1 << 20, CompressionType: "producer", TimestampBeforeMaxMs: math.MaxInt64,
			TimestampAfterMaxMs: math.MaxInt64, FlushMessages: math.MaxInt64, FlushMs: math.MaxInt64, RetentionMs: -1, RetentionBytes: -1,
			FileDeleteDelayMs: 60_000, MaxCompactionLagMs: math.MaxInt64, ProducerExpirationMs: math.MaxInt64, TxnVerificationStrict: true})
		m.f = m.x.onFault()
		m.x.open(recoverFrom(0))
		pids := func() int64 { return rapid.Int64Range(1, 3).Draw(rt, "pid") }
		rt.Repeat(map[string]func(*rapid.T){
			"plain":       func(*rapid.T) { m.plain() },
			"idempotent":  func(*rapid.T) { m.produce(10+pids(), false) },
			"transaction": func(*rapid.T) { m.produce(20+pids(), true) },
			"end": func(*rapid.T) {
				if open := slices.Sorted(maps.Keys(m.open)); len(open) > 0 {
					m.end(rapid.SampledFrom(open).Draw(rt, "open"))
				}
			},
			"pass":    func(*rapid.T) { m.pass() },
			"restart": func(*rapid.T) { m.restart() },
			"time": func(*rapid.T) {
				m.x.now = m.x.now.Add(rapid.SampledFrom([]time.Duration{1, 300, 1000}).Draw(rt, "ms") * time.Millisecond)
			},
			"epoch": func(*rapid.T) { m.epoch++ },
		})
	})
}
