package control

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// batch is a batch of the metadata log that somebody has held to be committed, and what the cluster is after it.
type batch struct {
	raw   record.Batch
	image *metadata.Image
}

// checker knows the truth: the metadata log as whoever committed each offset first had it.
type checker struct {
	w     *world
	truth []batch
	end   int64
	image *metadata.Image
	// first is the first committed offset of each leader epoch, leaders who led in it.
	first   map[int32]int64
	leaders map[int32]int32
	// leads is who leads a partition in an epoch.
	leads map[lead]int32
	// claims wait for the end of the step, late ones, of a process that ended in it, until the truth has come so far.
	claims, late []claim
	voters       []metadata.VotersEntry // as of the last change that was committed
	blocks       map[int64]bool         // starts of blocks of producer ids that were given out
	looks        int
}

// claim is to be checked where the truth has come up to an offset.
type claim struct {
	end   int64
	check func()
}

type lead struct {
	topic     metadata.UUID
	partition int32
	epoch     int32
}

func newChecker(w *world) *checker {
	return &checker{w: w, image: metadata.EmptyImage(), first: map[int32]int64{}, leaders: map[int32]int32{}, leads: map[lead]int32{}, blocks: map[int64]bool{}}
}

// after looks at a controller after its turn.
func (k *checker) after(s *server) {
	st := s.core.Status()
	if st.Leading {
		if other, ok := k.leaders[st.LeaderEpoch]; ok && other != s.id {
			k.w.fail("controllers %d and %d both lead in epoch %d", other, s.id, st.LeaderEpoch)
		}
		k.leaders[st.LeaderEpoch] = s.id
		if s.term != st.LeaderEpoch {
			k.w.count("elections")
			k.w.note("controller %d leads in epoch %d", s.id, st.LeaderEpoch)
			k.complete(s)
		}
		s.term = st.LeaderEpoch
	}
	if st.HighWatermark > s.seen {
		k.committed(s, st.HighWatermark)
	}
	claims := k.claims
	k.claims = nil
	for _, c := range claims {
		c.check()
	}
	k.late = slices.DeleteFunc(k.late, func(c claim) bool {
		if c.end <= k.end {
			c.check()
		}
		return c.end <= k.end
	})
}

// ended is for a process that has ended in the middle of its turn: nobody may have seen yet what it had committed.
func (k *checker) ended() {
	k.late = append(k.late, k.claims...)
	k.claims = nil
}

// committed compares what a controller holds as committed with the truth, and lengthens that.
func (k *checker) committed(s *server, highWatermark int64) {
	view := s.core.Log().View()
	defer view.Release()
	if view.LogStartOffset > s.seen || s.seen < 0 {
		// It has just started, or was brought here by a snapshot.
		s.seen = view.LogStartOffset
		k.sameImage(fmt.Sprintf("controller %d", s.id), s.core.Committed())
	}
	err := batches(view, s.seen, highWatermark, func(b record.Batch) {
		k.take(s, b)
	})
	if err != nil {
		k.w.fail("controller %d: %v", s.id, err)
		return
	}
	s.seen = highWatermark
	if k.looks++; k.looks%500 == 0 {
		k.sameImage(fmt.Sprintf("controller %d", s.id), s.core.Committed())
	}
}

// take takes one batch that a controller holds as committed.
func (k *checker) take(s *server, b record.Batch) {
	if b.BaseOffset() < k.end {
		if i, ok := k.find(b.BaseOffset()); !ok || !bytes.Equal(k.truth[i].raw, b) {
			k.w.fail("controller %d has committed another batch at offset %d, of epoch %d", s.id, b.BaseOffset(), b.PartitionLeaderEpoch())
		}
		return
	}
	if b.BaseOffset() != k.end {
		k.w.fail("controller %d has committed a batch at offset %d, the truth ends at %d", s.id, b.BaseOffset(), k.end)
		return
	}
	b = b.Clone()
	before, delta := k.image, metadata.NewDelta(k.image)
	if b.IsControl() {
		k.control(b)
	} else {
		offset := b.BaseOffset()
		for value := range values(b) {
			rec, _, err := metadata.DecodeRecord(value)
			if err == nil {
				err = delta.Replay(rec, offset)
			}
			if err != nil {
				k.w.fail("the record at offset %d: %v", offset, err)
				return
			}
			offset++
		}
	}
	k.image = delta.Apply(b.LastOffset(), b.PartitionLeaderEpoch())
	k.truth, k.end = append(k.truth, batch{b, k.image}), b.NextOffset()
	if _, ok := k.first[b.PartitionLeaderEpoch()]; !ok {
		k.first[b.PartitionLeaderEpoch()] = b.BaseOffset()
	}
	k.w.mark("committed", b.BaseOffset(), int64(b.PartitionLeaderEpoch()), int64(b.CRC()))
	k.w.counts["batches committed"]++
	k.cluster(before, k.image, delta)
}

// control follows changes of the voters.
func (k *checker) control(b record.Batch) {
	it := record.NewRecordIterator(b, record.Limits{})
	defer it.Close()
	for it.Next() {
		kind, err := metadata.ParseControlKey(it.Record().Key)
		if err != nil || kind != metadata.ControlVoters {
			continue
		}
		rec, err := metadata.DecodeControl(kind, it.Record().Value)
		if err != nil {
			k.w.fail("voters at offset %d: %v", b.BaseOffset(), err)
			return
		}
		k.voters = rec.(*metadata.Voters).Voters
		k.w.count("voter changes")
		k.w.note("%d voters from offset %d on", len(k.voters), b.BaseOffset())
	}
}

// cluster checks what must hold of the cluster after a batch.
func (k *checker) cluster(before, after *metadata.Image, delta *metadata.Delta) {
	for id, change := range delta.Topics {
		topic, ok := after.TopicByID(id)
		if !ok {
			continue
		}
		for number := range change.Partitions {
			p, ok := topic.Partition(number)
			if !ok {
				continue
			}
			k.oneLeader(id, p)
			broker, known := after.Broker(p.Leader)
			if p.Leader != metadata.NoLeader && (!known || broker.Fenced || !slices.Contains(p.ISR, p.Leader)) {
				k.w.fail("%s-%d is led by %d, which is fenced, unknown or not in sync (%v)", topic.Name, number, p.Leader, p.ISR)
			}
			old, ok := before.TopicByID(id)
			if !ok {
				continue
			}
			was, ok := old.Partition(number)
			if !ok {
				continue
			}
			if p.LeaderEpoch < was.LeaderEpoch || p.PartitionEpoch <= was.PartitionEpoch || p.Leader != was.Leader && p.LeaderEpoch == was.LeaderEpoch {
				k.w.fail("%s-%d: epochs %d/%d with leader %d follow %d/%d with leader %d", topic.Name, number, p.LeaderEpoch, p.PartitionEpoch, p.Leader, was.LeaderEpoch, was.PartitionEpoch, was.Leader)
			}
			// A move that ends with the leader's own word lets a replica in and makes it the leader at once.
			clean := was.Reassigning() || p.Leader == was.Leader || slices.Contains(was.ISR, p.Leader) || slices.Contains(was.ELR, p.Leader)
			if p.Leader != metadata.NoLeader && !clean && p.RecoveryState != metadata.Recovering {
				k.w.fail("%s-%d: %d is elected, which was not in sync (%v) nor eligible (%v), as if nothing could be lost", topic.Name, number, p.Leader, was.ISR, was.ELR)
			}
		}
	}
	for id := range delta.Brokers {
		if b, ok := after.Broker(id); ok && !b.Fenced {
			continue
		}
		for _, topic := range after.Topics().All() {
			for _, p := range topic.Partitions().All() {
				if p.Leader == id {
					k.w.fail("%s-%d is led by %d, which is fenced or gone", topic.Name, p.ID, id)
				}
			}
		}
	}
}

// oneLeader is P3.
func (k *checker) oneLeader(topic metadata.UUID, p *metadata.Partition) {
	at := lead{topic, p.ID, p.LeaderEpoch}
	if other, ok := k.leads[at]; ok && other != p.Leader {
		k.w.fail("P3: %s-%d is led by %d and by %d in epoch %d", topic, p.ID, other, p.Leader, p.LeaderEpoch)
	}
	k.leads[at] = p.Leader
}

// complete demands that a new leader has all that was ever committed.
func (k *checker) complete(s *server) {
	view := s.core.Log().View()
	defer view.Release()
	if view.EndOffset < k.end {
		k.w.fail("controller %d leads with a log that ends at %d, up to %d is committed", s.id, view.EndOffset, k.end)
		return
	}
	err := batches(view, view.LogStartOffset, k.end, func(b record.Batch) { k.take(s, b) })
	if err != nil {
		k.w.fail("controller %d: %v", s.id, err)
	}
}

// find is the batch that begins at an offset.
func (k *checker) find(offset int64) (int, bool) {
	i := sort.Search(len(k.truth), func(i int) bool { return k.truth[i].raw.BaseOffset() >= offset })
	return i, i < len(k.truth) && k.truth[i].raw.BaseOffset() == offset
}

// imageAt is the cluster before an offset, which must be between two batches; nil if it is not, or not committed.
func (k *checker) imageAt(end int64) *metadata.Image {
	if end == 0 {
		return metadata.EmptyImage()
	}
	i := sort.Search(len(k.truth), func(i int) bool { return k.truth[i].raw.NextOffset() >= end })
	if i == len(k.truth) || k.truth[i].raw.NextOffset() != end {
		return nil
	}
	return k.truth[i].image
}

// sameImage demands that an image is the truth at its offset.
func (k *checker) sameImage(whose string, img *metadata.Image) {
	want := k.imageAt(img.Offset() + 1)
	if img.Offset() >= k.end {
		return // nobody else has it yet; what it holds is compared by and by
	}
	if want == nil {
		k.w.fail("the image of %s ends at offset %d, in the middle of a batch", whose, img.Offset())
		return
	}
	if want.InTransaction() {
		return // what is shown stands before it
	}
	a, err1 := img.Encoded()
	b, err2 := want.Encoded()
	if err1 != nil || err2 != nil || !slices.EqualFunc(a, b, bytes.Equal) {
		k.w.fail("the image of %s at offset %d is not what the log up to there comes to (%d records, %d; %v, %v)", whose, img.Offset(), len(a), len(b), err1, err2)
	}
}

// batches walks the batches of a view between two offsets.
func batches(view *log.View, from, to int64, f func(record.Batch)) error {
	for from < to {
		data, err := view.Read(from, to, 1<<20, true)
		if err != nil {
			return err
		}
		raw := make([]byte, data.Length)
		if data.Length > 0 {
			if n, err := data.File.ReadAt(raw, data.Position); n < len(raw) {
				return err
			}
		}
		start := from
		for b := range split(raw) {
			if b.NextOffset() <= from || b.BaseOffset() >= to {
				continue
			}
			if b.BaseOffset() != from {
				return fmt.Errorf("a batch at offset %d where %d was expected", b.BaseOffset(), from)
			}
			from = b.NextOffset()
			f(b)
		}
		if from == start {
			return fmt.Errorf("no batch at offset %d", from)
		}
	}
	return nil
}

// split yields the whole batches in bytes.
func split(raw []byte) func(func(record.Batch) bool) {
	return func(yield func(record.Batch) bool) {
		for len(raw) >= record.HeaderSize {
			size := record.Batch(raw).Length()
			if size < record.HeaderSize || size > len(raw) {
				return
			}
			if !yield(record.Batch(raw[:size:size])) {
				return
			}
			raw = raw[size:]
		}
	}
}

// values yields the values of a batch's records.
func values(b record.Batch) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		it := record.NewRecordIterator(b, record.Limits{})
		defer it.Close()
		for it.Next() {
			if !yield(it.Record().Value) {
				return
			}
		}
	}
}
