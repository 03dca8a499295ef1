package consumer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stelelog/stele/internal/record"
)

// batchesOf makes n batches of records of 100 bytes with a header each.
func batchesOf(n, records int, codec record.Codec) (all []byte) {
	value := make([]byte, 100)
	for i := range n {
		b := record.NewBuilder(record.BuilderOptions{BaseOffset: int64(i * records), Codec: codec})
		for j := range records {
			value[j%100]++
			if err := b.Append(int64(1000+j), []byte("key"), value, []record.Header{{Key: []byte("h"), Value: []byte("v")}}); err != nil {
				panic(err)
			}
		}
		batch := b.Bytes()
		batch.SetPartitionLeaderEpoch(3)
		all = append(all, batch...)
	}
	return all
}

// fetchOf is a Fetch of what a broker answered, as Poll makes it.
func fetchOf(b []byte) *Fetch {
	c := &Consumer{}
	p := &partition{tp: tp0, m: newMachine(tp0, &tuning{})}
	f := &Fetch{c: c}
	void := new(atomic.Bool)
	chunks, _, _, _, err := read(b, 0, nil, false, true)
	if err != nil {
		panic(err)
	}
	for _, ch := range chunks {
		f.parts = append(f.parts, &Batch{c: c, p: p, void: void, chunk: ch})
	}
	return f
}

func TestRecordsCostNoAllocation(t *testing.T) {
	// A walk over batches, plain and compressed, allocates nothing for a record: the count is the same for ten times as many.
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Snappy} {
		few, many := batchesOf(4, 100, codec), batchesOf(4, 1000, codec)
		allocations := func(b []byte) float64 {
			return testing.AllocsPerRun(20, func() {
				n := 0
				for r := range fetchOf(b).Records() {
					n += len(r.Value) + len(r.Headers)
				}
				if n == 0 {
					t.Error("nothing was read")
				}
			})
		}
		if a, b := allocations(few), allocations(many); b > a+20 {
			t.Errorf("%v: %v allocations for 400 records, %v for 4000", codec, a, b)
		}
	}
}

func TestRecordsAreWhatWasWritten(t *testing.T) {
	// Offsets, epochs, times, keys, values and headers come as they were written; a clone lasts.
	t.Parallel()
	var kept []*Record
	for r := range fetchOf(batchesOf(2, 3, record.Zstd)).Records() {
		kept = append(kept, r.Clone())
	}
	if len(kept) != 6 {
		t.Fatalf("%d records", len(kept))
	}
	for i, r := range kept {
		v, ok := r.Header("h")
		if r.Offset != int64(i) || r.LeaderEpoch != Known[int32](3) || r.Timestamp.UnixMilli() != int64(1000+i%3) || string(r.Key) != "key" || len(r.Value) != 100 || !ok || string(v) != "v" || r.Next() != (Position{int64(i) + 1, Known[int32](3)}) {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	if _, ok := kept[0].Header("other"); ok {
		t.Error("a header that is not there")
	}
}

func TestPollRecordsAreBounded(t *testing.T) {
	// A batch is split by offsets, so that no part holds more records than asked, gaps included, and the parts together hold all.
	t.Parallel()
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: 100})
	for _, delta := range []int32{0, 1, 2, 7, 8, 20, 21, 22, 23, 40} {
		if err := b.AppendAt(delta, 1, nil, fmt.Append(nil, delta), nil); err != nil {
			t.Fatal(err)
		}
	}
	b.SetLastOffsetDelta(50)
	chunks, next, _, _, err := read(b.Bytes(), 90, nil, false, true)
	if err != nil || next != 151 || len(chunks) != 1 {
		t.Fatalf("%v, next %d, %d chunks", err, next, len(chunks))
	}
	rest, seen := chunks[0], 0
	for at := int64(90); ; {
		n := rest.count()
		front := rest
		if n > 3 {
			front, rest = rest.split(3)
		}
		if front.from != at {
			t.Fatalf("a part begins at %d, want %d", front.from, at)
		}
		at = front.to
		part := &Batch{c: &Consumer{}, p: &partition{tp: tp0}, void: new(atomic.Bool), chunk: front}
		part.taken.Store(front.from)
		got := 0
		for range part.Records() {
			got++
		}
		if got > 3 {
			t.Errorf("a part of %d records", got)
		}
		seen += got
		if n <= 3 {
			if at != 151 {
				t.Errorf("the parts end at %d", at)
			}
			break
		}
	}
	if seen != 10 {
		t.Errorf("%d records in all", seen)
	}
}

func TestDamageIsNamedAndPassedByNothing(t *testing.T) {
	// A batch with a wrong checksum is an error that names its offset; what comes before it is read, and the position stays before it until a Seek.
	t.Parallel()
	s := script(t, 1)
	s.set(func() { s.logs[0].elect(1, 5, []reign{{5, 0}}, 300) })
	s.answer[1] = s.damage(100)
	r := s.read(func(o *Options) { reset(o, Earliest) })
	if got := r.upTo(100); len(got) != 100 {
		t.Errorf("%d records before the damage", len(got))
	}
	for range 2 {
		var corrupt *CorruptRecordError
		if err := r.fails(); !errors.As(err, &corrupt) || corrupt.Offset != 100 || corrupt.TopicPartition != tp0 {
			t.Fatalf("error %v", err)
		}
	}
	if pos, err := r.Position(t.Context(), tp0); err != nil || pos.Offset != 100 {
		t.Errorf("position %v, %v", pos, err)
	}
	if err := r.Seek(tp0, Position{Offset: 200}); err != nil {
		t.Fatal(err)
	}
	if got := r.upTo(300); got[0] != "200@5" {
		t.Errorf("after the damage: %s", got[0])
	}
}

func BenchmarkRecords(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.LZ4} {
		b.Run(codec.String(), func(b *testing.B) {
			bytes := batchesOf(100, 160, codec)
			b.SetBytes(100 * 160 * 100)
			b.ReportAllocs()
			records := 0
			for b.Loop() {
				for r := range fetchOf(bytes).Records() {
					records += len(r.Value) / 100
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}

func TestWhatNobodyIsShownIsPassed(t *testing.T) {
	// Markers, records of aborted transactions and batches that compaction has emptied are passed, with read_committed; nothing else is.
	t.Parallel()
	data := func(at int64, id int64, empty bool) record.Batch {
		o := record.BuilderOptions{}
		if id > 0 {
			o.Producer, o.Transactional = &record.Producer{ID: id}, true
		}
		b := record.NewBuilder(o)
		if err := b.Append(1, nil, []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
		batch := b.Bytes()
		if empty {
			batch = record.EmptyBatch(batch)
		}
		batch.SetBaseOffset(at)
		return batch
	}
	marker := func(at int64, id int64, commit bool) record.Batch {
		b := record.NewEndTxnBatch(record.EndTxnMarker{ProducerID: id, Commit: commit}, 1)
		b.SetBaseOffset(at)
		return b
	}
	for name, c := range map[string]struct {
		batches []record.Batch
		aborted []abortedTransaction
		want    string // shown or passed, by batch
	}{
		"a record":            {[]record.Batch{data(5, 0, false)}, nil, "s"},
		"emptied":             {[]record.Batch{data(5, 0, true), data(6, 1, true)}, nil, "pp"},
		"markers":             {[]record.Batch{marker(5, 1, true), marker(6, 2, false)}, nil, "pp"},
		"aborted":             {[]record.Batch{data(5, 1, false), data(6, 1, false)}, []abortedTransaction{{1, 3}}, "pp"},
		"another's":           {[]record.Batch{data(5, 1, false), data(6, 2, false)}, []abortedTransaction{{1, 3}}, "ps"},
		"the next is shown":   {[]record.Batch{data(5, 1, false), marker(6, 1, false), data(7, 1, false)}, []abortedTransaction{{1, 3}}, "pps"},
		"not begun yet":       {[]record.Batch{data(5, 1, false), data(6, 1, false)}, []abortedTransaction{{1, 6}}, "sp"},
		"the first was below": {[]record.Batch{data(4, 0, false), data(5, 0, false)}, nil, "s"},
	} {
		var bytes []byte
		for _, b := range c.batches {
			bytes = append(bytes, b...)
		}
		got := ""
		chunks, next, _, _, err := read(bytes, 5, c.aborted, true, true)
		for _, ch := range chunks {
			if ch.skip {
				got += "p"
			} else {
				got += "s"
			}
		}
		if end := c.batches[len(c.batches)-1].NextOffset(); err != nil || got != c.want || next != end {
			t.Errorf("%s: %s up to %d, %v; want %s up to %d", name, got, next, err, c.want, end)
		}
	}
}
