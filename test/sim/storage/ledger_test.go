package storage

import (
	"fmt"
	"maps"
	"slices"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// part is one partition, and what is owed to those who wrote it.
type part struct {
	tp  log.TopicPartition
	id  [16]byte
	cfg log.Config

	creating, created, deleting, deleted bool

	entries []entry // in the order of offsets, all that the log may hold
	// ghosts are batches that a killed node had cut off, or never acknowledged: until something is appended in their place
	// a loss of power may bring them back.
	ghosts []entry
	end    int64 // the end offset
	// unsure says that a crash has taken an unknown part of what was not synced, and the log was not opened since.
	unsure   bool
	logStart int64 // readers were promised that nothing below comes back
	mayStart int64 // nothing above was deleted
	synced   int64 // everything below survives a loss of power
	cleaned  int64 // records below may be gone for the sake of others below: nothing there is cut off
	epoch    int32
	nextSeq  map[int64]int32
}

// entry is one batch.
type entry struct {
	base, last int64
	epoch      int32
	crc        uint32
	// acked batches were acknowledged, or seen in the log by a later life of it; others may be there or not.
	acked   bool
	records []owedRecord

	pid    int64 // -1 none
	seq    int32
	txn    bool
	marker bool
	commit bool
}

// owedRecord is a record: token tells it from all others ever written.
type owedRecord struct {
	offset int64
	token  string
	key    string
	value  string
	null   bool
}

func (p *part) compacts() bool { return p.cfg.Cleanup.Compacts() }

func (p *part) clone() *part {
	c := *p
	c.entries, c.ghosts = slices.Clone(p.entries), slices.Clone(p.ghosts)
	c.nextSeq = maps.Clone(p.nextSeq)
	return &c
}

// doubt says that the entries from offset x on may be gone.
func (p *part) doubt(x int64) {
	for i := range p.entries {
		if p.entries[i].last >= x {
			p.entries[i].acked = false
		}
	}
	p.synced = min(p.synced, x)
}

// drop forgets the entries from offset x on: they must never be seen again.
func (p *part) drop(x int64) {
	n := len(p.entries)
	for n > 0 && p.entries[n-1].last >= x {
		n--
	}
	p.entries = p.entries[:n:n]
}

// need is the least end offset that the log may have after a loss.
func (p *part) need(loss vfs.Loss) int64 {
	if loss != vfs.LoseNothing || p.unsure {
		return p.synced
	}
	end := p.synced
	for _, e := range p.entries {
		if e.acked {
			end = max(end, e.last+1)
		}
	}
	return end
}

// found is what a log was found to hold.
type found struct {
	start, end, lso int64
	batches         []record.Batch
	present         map[int64]bool // last offsets
	risen           []entry        // ghosts among them
}

// resolve makes what was found the truth from now on.
func (p *part) resolve(f *found) {
	kept, ghosts := p.entries[:0:0], p.ghosts
	for _, e := range p.entries {
		switch {
		case len(f.risen) > 0 && e.last >= f.risen[0].base:
		case e.last < f.end && (e.acked || f.present[e.last] || e.last < f.start):
			e.acked = true
			kept = append(kept, e)
		default:
			ghosts = append(ghosts, e)
		}
	}
	for _, e := range f.risen {
		e.acked = true
		kept = append(kept, e)
	}
	p.entries, p.ghosts = kept, ghosts
	p.end, p.unsure = f.end, false
	p.synced = min(p.synced, p.end)
	p.mayStart = max(p.logStart, f.start) // what retention deleted may come back
	p.nextSeq = map[int64]int32{}
	for _, e := range p.entries {
		if e.pid >= 0 && !e.marker {
			p.nextSeq[e.pid] = e.seq + int32(len(e.records))
		}
	}
}

// openTxns are the producers with an undecided transaction, and its first offset.
func openTxns(entries []entry) map[int64]int64 {
	open := map[int64]int64{}
	for _, e := range entries {
		switch {
		case e.marker:
			delete(open, e.pid)
		case e.txn:
			if _, ok := open[e.pid]; !ok {
				open[e.pid] = e.base
			}
		}
	}
	return open
}

// check compares a log's view with the ledger: P1, P2, P6, P7, P8. p is not changed.
func (p *part) check(v *log.View, loss vfs.Loss) (*found, error) {
	f := &found{start: v.LogStartOffset, end: v.EndOffset, lso: v.LastStableOffset, present: map[int64]bool{}}
	fail := func(format string, args ...any) (*found, error) {
		return f, fmt.Errorf("%s: %s\n  log [%d,%d) lso %d, owed [%d..%d,%d) synced %d unsure %v\n  owed %v\n  found %v", p.tp, fmt.Sprintf(format, args...),
			f.start, f.end, f.lso, p.logStart, p.mayStart, p.end, p.synced, p.unsure, p.describe(), describe(f.batches))
	}
	if v.LogStartOffset > v.HighWatermark || v.HighWatermark > v.EndOffset || v.LastStableOffset > v.HighWatermark {
		return fail("P2: start %d, high watermark %d, last stable %d, end %d", v.LogStartOffset, v.HighWatermark, v.LastStableOffset, v.EndOffset)
	}
	var err error
	if f.batches, err = readAll(v, v.LogStartOffset, v.EndOffset); err != nil {
		return fail("%v", err)
	}
	if f.start < p.logStart || f.start > max(p.mayStart, p.logStart) {
		return fail("log start %d", f.start)
	}
	if need := p.need(loss); f.end < need {
		return fail("the end is %d, at least %d is owed", f.end, need)
	}
	byLast := map[int64]*entry{}
	for i := range p.entries {
		byLast[p.entries[i].last] = &p.entries[i]
	}
	last, lastEpoch := int64(-1), int32(-1)
	for _, b := range f.batches {
		if b.BaseOffset() <= last || b.PartitionLeaderEpoch() < lastEpoch {
			return fail("P1: batch %d epoch %d after %d epoch %d", b.BaseOffset(), b.PartitionLeaderEpoch(), last, lastEpoch)
		}
		last, lastEpoch = b.LastOffset(), b.PartitionLeaderEpoch()
		e, ok := byLast[b.LastOffset()]
		if !ok || !p.is(e, b) {
			if ghost := p.ghost(b); ghost != nil && p.unsure && (!ok || !e.acked) {
				e, ok = ghost, true
				f.risen = append(f.risen, *ghost)
			}
		}
		if !ok || !p.is(e, b) {
			return fail("P7: the batch at %d-%d, epoch %d, is not one that was given these offsets: %+v", b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), e)
		}
		if epoch, ok := v.Epochs.ForOffset(max(b.BaseOffset(), f.start)); !ok || epoch != e.epoch {
			return fail("epochs %s, batch %d has %d", v.Epochs, b.BaseOffset(), e.epoch)
		}
		f.present[b.LastOffset()] = true
	}
	if last >= f.end {
		return fail("a batch ends at %d", last)
	}
	if e, ok := v.Epochs.Latest(); ok && (e.StartOffset > f.end || e.Epoch > p.epoch) {
		return fail("epochs %s, the newest leader was %d", v.Epochs, p.epoch)
	}
	var there []entry // as far as the log goes
	for _, e := range append(slices.Clip(p.entries), f.risen...) {
		if e.last >= f.end || len(f.risen) > 0 && e.base >= f.risen[0].base && !slices.ContainsFunc(f.risen, func(r entry) bool { return r.crc == e.crc }) {
			continue
		}
		if !p.compacts() && !f.present[e.last] && e.last >= f.start {
			if !e.acked || p.unsure && e.last >= p.synced {
				continue
			}
			return fail("P8: the batch at %d-%d is missing", e.base, e.last)
		}
		if e.acked || f.present[e.last] {
			there = append(there, e)
		}
	}
	if p.unsure && len(f.risen) == 0 { // what a crash has left must still be a prefix
		gone := false
		for _, e := range p.entries {
			if p.compacts() || e.last < f.start {
				continue
			}
			if gone && f.present[e.last] {
				return fail("P8: a hole before the batch at %d-%d", e.base, e.last)
			}
			gone = gone || !f.present[e.last]
		}
	}
	if err := p.checkReaders(v, f, there); err != nil {
		return fail("%v", err)
	}
	if err := checkTimes(v, f); err != nil {
		return fail("%v", err)
	}
	return f, nil
}

// is says whether the batch is the entry's, as far as compaction lets us know.
func (p *part) is(e *entry, b record.Batch) bool {
	return e.epoch == b.PartitionLeaderEpoch() && (p.compacts() || e.crc == b.CRC() && e.base == b.BaseOffset())
}

func (p *part) ghost(b record.Batch) *entry {
	for i := range p.ghosts {
		if p.ghosts[i].last == b.LastOffset() && p.is(&p.ghosts[i], b) {
			return &p.ghosts[i]
		}
	}
	return nil
}

// checkReaders reads the log as a consumer with isolation.level=read_committed.
func (p *part) checkReaders(v *log.View, f *found, there []entry) error {
	if v.HighWatermark == v.EndOffset {
		lso, known := f.end, f.end
		for _, first := range openTxns(there) {
			lso = min(lso, max(first, f.start))
		}
		// What began below the log start may be forgotten.
		i := 0
		for i < len(there) && there[i].last < f.start {
			i++
		}
		for _, first := range openTxns(there[i:]) {
			known = min(known, max(first, f.start))
		}
		if f.lso != lso && f.lso != known {
			return fmt.Errorf("last stable offset %d, the first open transaction is at %d", f.lso, lso)
		}
	}
	outcome := map[int64]bool{} // last offset of a batch -> aborted
	for i, e := range there {
		if !e.txn || e.marker {
			continue
		}
		for _, m := range there[i+1:] {
			if m.marker && m.pid == e.pid {
				outcome[e.last] = !m.commit
				break
			}
		}
	}
	var want []owedRecord
	for _, e := range there {
		if e.marker || outcome[e.last] {
			continue
		}
		for _, r := range e.records {
			if r.offset >= f.start && r.offset < f.lso {
				want = append(want, r)
			}
		}
	}
	got, err := committed(v, f)
	if err != nil {
		return err
	}
	if !p.compacts() {
		if !slices.Equal(got, want) {
			return fmt.Errorf("P6: a consumer sees %v\n  owed are %v", got, want)
		}
		return nil
	}
	owed := map[int64]owedRecord{}
	state := map[string]owedRecord{}
	for _, r := range want {
		owed[r.offset] = r
		state[r.key] = r
	}
	seen := map[string]owedRecord{}
	for _, r := range got {
		if owed[r.offset] != r {
			return fmt.Errorf("P6: a consumer sees %v; owed at that offset is %v", r, owed[r.offset])
		}
		seen[r.key] = r
	}
	for k, w := range state {
		if g, ok := seen[k]; g != w && !(w.null && !ok) {
			return fmt.Errorf("key %s is %v, owed is %v; consumers see %v", k, g, w, got)
		}
	}
	return nil
}

// committed is what a read_committed consumer is given.
func committed(v *log.View, f *found) (out []owedRecord, err error) {
	aborted := v.AbortedTxns(f.start, f.lso)
	slices.SortFunc(aborted, func(a, b log.AbortedTxn) int { return int(a.FirstOffset - b.FirstOffset) })
	ignored := map[int64]bool{}
	for _, b := range f.batches {
		if b.BaseOffset() >= f.lso {
			break
		}
		for len(aborted) > 0 && aborted[0].FirstOffset <= b.LastOffset() {
			ignored[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		if b.IsControl() {
			m, ok, err := record.ParseEndTxnMarker(b)
			if err != nil {
				return nil, err
			}
			if ok && !m.Commit {
				delete(ignored, m.ProducerID)
			}
			continue
		}
		if b.IsTransactional() && ignored[b.ProducerID()] {
			continue
		}
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				return nil, err
			}
			if o := b.OffsetOf(r); o >= f.start && o < f.lso {
				rec := owedRecord{offset: o, key: string(r.Key), value: string(r.Value), null: r.Value == nil}
				if len(r.Headers) == 1 {
					rec.token = string(r.Headers[0].Value)
				}
				out = append(out, rec)
			}
		}
	}
	return out, nil
}

// checkTimes compares answers to lookups by time with what the records say.
func checkTimes(v *log.View, f *found) error {
	type stamp struct{ ts, offset int64 }
	var stamps []stamp
	largest := stamp{-1, -1}
	for _, b := range f.batches {
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				return err
			}
			if s := (stamp{b.TimestampOf(r), b.OffsetOf(r)}); s.offset >= f.start {
				stamps = append(stamps, s)
				if s.ts > largest.ts {
					largest = s
				}
			}
		}
	}
	got, ok, err := v.MaxTimestamp(f.end)
	for _, b := range f.batches {
		if err == nil && !ok && b.MaxTimestamp() > largest.ts {
			return nil // compaction took the latest record, and left its batch
		}
	}
	if err != nil || ok != (len(stamps) > 0) || ok && (got.Offset != largest.offset || got.Timestamp != largest.ts) {
		return fmt.Errorf("largest timestamp: %+v %v %v, is %v of %v", got, ok, err, largest, v.Segments())
	}
	for i := 0; i < len(stamps); i += max(len(stamps)/8, 1) {
		ts := stamps[i].ts
		at := slices.IndexFunc(stamps, func(s stamp) bool { return s.ts >= ts })
		if got, ok, err := v.OffsetForTime(ts, f.end); err != nil || !ok || got.Offset != stamps[at].offset {
			return fmt.Errorf("lookup of time %d: %+v %v %v, is %v", ts, got, ok, err, stamps[at])
		}
	}
	return nil
}

// readAll reads [from, to) as a fetch does.
func readAll(v *log.View, from, to int64) (out []record.Batch, err error) {
	for o := from; o < to; {
		d, err := v.Read(o, to, 1000, true)
		if err != nil {
			return out, fmt.Errorf("read at %d: %w", o, err)
		}
		if d.Length == 0 {
			return out, nil // compaction took the rest
		}
		data, err := d.ReadAll(nil)
		if err != nil {
			return out, fmt.Errorf("read at %d: %w", o, err)
		}
		n := len(out)
		for b, err := range record.Batches(data) {
			if err == nil {
				err = b.VerifyCRC()
			}
			if err != nil {
				return out, fmt.Errorf("the batch after %d: %w", o, err)
			}
			o = b.LastOffset() + 1
			out = append(out, b)
		}
		if len(out) == n {
			return out, fmt.Errorf("read at %d: no whole batch in %d bytes", o, len(data))
		}
	}
	return out, nil
}

func (p *part) describe() (out []string) {
	for _, e := range p.entries {
		s := fmt.Sprintf("%d-%d", e.base, e.last)
		if !e.acked {
			s += "?"
		}
		if e.marker {
			s += fmt.Sprintf("m%d", e.pid)
		} else if e.txn {
			s += fmt.Sprintf("t%d", e.pid)
		}
		out = append(out, s)
	}
	return out
}

func describe(batches []record.Batch) (out []string) {
	for _, b := range batches {
		out = append(out, fmt.Sprintf("%d-%d", b.BaseOffset(), b.LastOffset()))
	}
	return out
}
