package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// Problem is something that Verify found wrong in a partition's directory.
type Problem struct {
	File   string // name in the directory
	Offset int64  // -1: not about an offset
	Text   string
}

func (p Problem) String() string {
	if p.Offset < 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s: offset %d: %s", p.File, p.Offset, p.Text)
}

// Report is what a check of a partition's directory found.
type Report struct {
	Problems []Problem
	// Start is the first offset that is there, End the one behind the last batch; both -1 without any segment.
	Start, End int64
	// Batches is how many were read.
	Batches int
}

// Verify checks a partition's directory that no process has open: every batch's bytes, that offsets rise and epochs
// never fall, that indexes, producer snapshots and the epoch checkpoint agree with the batches, and that
// records have a topic id. The error is the disk's; what is wrong with the content is in the answer.
func Verify(fsys vfs.FS, dir string) ([]Problem, error) {
	report, err := VerifyPartition(fsys, dir)
	return report.Problems, err
}

// VerifyPartition is Verify that also tells what is there.
func VerifyPartition(fsys vfs.FS, dir string) (Report, error) {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return Report{}, err
	}
	v := &verifier{fs: fsys, dir: dir, nextOffset: -1, firstSeen: -1, lastEpoch: record.NoLeaderEpoch}
	if err := v.readLogStart(); err != nil {
		return Report{}, err
	}
	for _, n := range names {
		if at := snapshotOffset(n); at >= 0 {
			v.snapshots = append(v.snapshots, at)
		}
	}
	for _, n := range names {
		if o, ok := fileOffset(n); ok && n == logName(o) {
			if err := v.segment(o); err != nil {
				return v.report(), err
			}
		}
	}
	if err := v.snapshotsTo(math.MaxInt64); err != nil {
		return v.report(), err
	}
	if err := v.epochs(); err != nil {
		return v.report(), err
	}
	err = v.topicID()
	return v.report(), err
}

type verifier struct {
	fs         vfs.FS
	dir        string
	problems   []Problem
	nextOffset int64
	start      int64 // of the first segment
	segments   int
	logStart   int64 // that the checkpoint beside the directory names, 0 if it names none
	firstSeen  int64 // offset of the first batch, or the log start if that is higher
	lastEpoch  int32
	seen       epoch.Cache // as the batches tell it
	batches    int
	// gaps: offsets are missing between batches or in them, as compaction leaves them.
	gaps      bool
	producers producers // as the batches tell it
	snapshots []int64   // that are still to be compared with it, by offset
}

func (v *verifier) report() Report {
	r := Report{Problems: v.problems, Start: -1, End: v.nextOffset, Batches: v.batches}
	if v.segments > 0 {
		r.Start = v.start
	}
	return r
}

// readLogStart finds the partition's log start in the data directory that it lies in.
func (v *verifier) readLogStart() error {
	tp, ok := ParsePartitionDir(filepath.Base(v.dir))
	if !ok {
		return nil
	}
	data, err := vfs.ReadFile(v.fs, filepath.Join(filepath.Dir(v.dir), LogStartCheckpoint))
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if starts, err := parseCheckpoint(data); err == nil {
		v.logStart = starts[tp]
	}
	return nil
}

func (v *verifier) found(file string, offset int64, format string, args ...any) {
	v.problems = append(v.problems, Problem{file, offset, fmt.Sprintf(format, args...)})
}

// segment checks one segment and its indexes.
func (v *verifier) segment(base int64) error {
	name := logName(base)
	if v.segments++; v.segments == 1 {
		v.start = base
	}
	ends := map[int64]int64{} // position of each batch -> its last offset
	markers := map[int64]bool{}
	var aborted []txnEntry
	times := map[int64]int64{}
	largest := record.NoTimestamp
	if base < v.nextOffset {
		v.found(name, base, "segment begins below the end %d of the one before", v.nextOffset)
	}
	v.nextOffset = max(v.nextOffset, base)
	size := int64(0)
	err := ScanSegment(v.fs, filepath.Join(v.dir, name), func(pos int64, b record.Batch) error {
		if err := v.snapshotsTo(b.BaseOffset()); err != nil {
			return err
		}
		v.batch(name, b)
		// What lies below the log start is forgotten by a start, or still known.
		if b.BaseOffset() >= v.logStart {
			if e, ok := v.producers.appended(b, 0); ok {
				aborted = append(aborted, e)
			}
		}
		if b.IsControl() {
			markers[b.LastOffset()] = true
		}
		if b.LastOffset()-base > 1<<31-1 {
			v.found(name, b.BaseOffset(), "too far from the segment's base")
		}
		largest = max(largest, b.MaxTimestamp())
		ends[pos], times[b.LastOffset()] = b.LastOffset(), largest
		size = pos + int64(len(b))
		return nil
	})
	var ce *CorruptError
	if errors.As(err, &ce) {
		v.found(name, v.nextOffset, "at position %d: %v", ce.Offset, ce.Err)
	} else if err != nil {
		return err
	}
	if err := v.indexes(base, size, ends, times); err != nil {
		return err
	}
	return v.transactions(base, markers, aborted)
}

// batch checks one batch's place in the log, and its records.
func (v *verifier) batch(name string, b record.Batch) {
	if b.BaseOffset() < v.nextOffset {
		v.found(name, b.BaseOffset(), "batch begins below the end %d of the one before", v.nextOffset)
	}
	if b.LastOffset() < b.BaseOffset() {
		v.found(name, b.BaseOffset(), "batch ends at %d", b.LastOffset())
	}
	if e := b.PartitionLeaderEpoch(); e < v.lastEpoch {
		v.found(name, b.BaseOffset(), "leader epoch falls from %d to %d", v.lastEpoch, e)
	} else if e > v.lastEpoch {
		v.lastEpoch = e
		if next, _, err := v.seen.Assign(e, b.BaseOffset()); err == nil {
			v.seen = next
		}
	}
	last := int64(-1)
	for r, err := range b.Records(record.Limits{}) {
		if err != nil {
			v.found(name, b.BaseOffset(), "%v", err)
			break
		}
		if o := b.OffsetOf(r); o <= last || o < b.BaseOffset() || o > b.LastOffset() {
			v.found(name, o, "record out of order in the batch %d-%d", b.BaseOffset(), b.LastOffset())
			break
		}
		last = b.OffsetOf(r)
	}
	if v.batches == 0 {
		v.firstSeen = max(b.BaseOffset(), v.logStart)
	}
	v.gaps = v.gaps || v.batches > 0 && b.BaseOffset() != v.nextOffset || b.LastOffsetDelta() != b.Count()-1
	v.batches++
	v.nextOffset = max(v.nextOffset, b.NextOffset())
}

func (v *verifier) indexes(base, size int64, ends, times map[int64]int64) error {
	name := indexName(base)
	data, err := v.read(name)
	if err != nil {
		return err
	}
	entries, err := parseOffsetIndex(data, size)
	if err != nil {
		v.found(name, -1, "%v", err)
	}
	for _, e := range entries {
		if last, ok := ends[int64(e.pos)]; !ok {
			v.found(name, base+int64(e.rel), "no batch begins at position %d", e.pos)
		} else if last > base+int64(e.rel) {
			v.found(name, base+int64(e.rel), "the batch at position %d ends at %d", e.pos, last)
		}
	}
	name = timeName(base)
	if data, err = v.read(name); err != nil {
		return err
	}
	// Zeros are room that Kafka makes for entries to come, and which a start does not trust.
	for len(data) >= timeEntrySize && bytes.Count(data[len(data)-timeEntrySize:], []byte{0}) == timeEntrySize {
		data = data[:len(data)-timeEntrySize]
	}
	stamps, err := parseTimeIndex(data)
	if err != nil {
		v.found(name, -1, "%v", err)
	}
	for _, e := range stamps {
		if t, ok := times[base+int64(e.rel)]; !ok {
			v.found(name, base+int64(e.rel), "no batch ends there")
		} else if t > e.timestamp {
			v.found(name, base+int64(e.rel), "a record up to there is of %d, later than %d", t, e.timestamp)
		}
	}
	return nil
}

// transactions compares a segment's index of aborted transactions with its markers.
func (v *verifier) transactions(base int64, markers map[int64]bool, aborted []txnEntry) error {
	name := txnName(base)
	data, err := v.read(name)
	if err != nil {
		return err
	}
	entries, err := parseTxnIndex(data, base)
	if err != nil {
		v.found(name, -1, "%v", err)
		return nil
	}
	if v.gaps {
		return nil // compaction may have taken markers, and transactions' first records
	}
	for _, e := range entries {
		if !markers[e.lastOffset] {
			v.found(name, e.lastOffset, "no marker is there, which an aborted transaction of producer %d should end with", e.producerID)
		}
	}
	for _, want := range aborted {
		if !slices.ContainsFunc(entries, func(e txnEntry) bool {
			return e.producerID == want.producerID && e.firstOffset <= want.firstOffset && e.lastOffset == want.lastOffset
		}) {
			v.found(name, want.lastOffset, "the aborted transaction of producer %d from offset %d is not in it", want.producerID, want.firstOffset)
		}
	}
	return nil
}

// read reads a file; a missing one is empty, since all but logs can be rebuilt.
func (v *verifier) read(name string) ([]byte, error) {
	data, err := vfs.ReadFile(v.fs, filepath.Join(v.dir, name))
	if isNotExist(err) || err == io.EOF {
		return nil, nil
	}
	return data, err
}

// snapshotsTo compares the producer snapshots up to an offset with what the batches before them tell.
func (v *verifier) snapshotsTo(offset int64) error {
	for len(v.snapshots) > 0 && v.snapshots[0] <= offset {
		at := v.snapshots[0]
		v.snapshots = v.snapshots[1:]
		name := snapshotName(at)
		data, err := v.read(name)
		if err != nil {
			return err
		}
		p, err := parseSnapshot(data)
		if err != nil {
			v.found(name, -1, "%v", err)
			continue
		}
		// What lies beyond the end, or below the first batch, a start drops or takes on trust.
		if at <= v.nextOffset {
			v.compare(name, at, &p)
		}
	}
	return nil
}

// compare says where a snapshot contradicts the batches below it. A producer that is not in it may have expired.
func (v *verifier) compare(name string, at int64, p *producers) {
	for id, st := range p.byID {
		if last, ok := st.lastBatch(); ok && last.lastOffset >= at {
			v.found(name, last.lastOffset, "producer %d has its last batch at or above the snapshot's own offset", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.producers.byID)) {
		want, got := v.producers.byID[id], p.byID[id]
		if got == nil {
			continue
		}
		w, wok := want.lastBatch()
		g, gok := got.lastBatch()
		switch {
		case got.epoch < want.epoch:
			v.found(name, -1, "producer %d has epoch %d, its batches %d", id, got.epoch, want.epoch)
		case got.epoch == want.epoch && wok && (!gok || g.lastOffset < w.lastOffset || !v.gaps && (g.lastOffset != w.lastOffset || g.lastSequence != w.lastSequence)):
			v.found(name, w.lastOffset, "producer %d has its last batch there, with sequence %d; the snapshot says offset %d, sequence %d", id, w.lastSequence, g.lastOffset, g.lastSequence)
		case !v.gaps && want.txnFirstOffset != got.txnFirstOffset && (got.txnFirstOffset < 0 || got.txnFirstOffset >= v.firstSeen):
			v.found(name, want.txnFirstOffset, "producer %d has an open transaction since offset %d, the snapshot says %d (-1: none)", id, want.txnFirstOffset, got.txnFirstOffset)
		}
	}
}

// epochs compares the checkpoint with the batches: each epoch that a batch has must begin there, or before it.
func (v *verifier) epochs() error {
	data, err := v.read(epoch.CheckpointName)
	if err != nil {
		return err
	}
	c, err := epoch.Parse(data)
	if err != nil {
		v.found(epoch.CheckpointName, -1, "%v", err)
		return nil
	}
	for _, e := range v.seen.Entries() {
		got, ok := c.ForOffset(e.StartOffset)
		if ok && got == e.Epoch {
			continue
		}
		if first, any := c.Earliest(); !any || !ok && e.StartOffset < first.StartOffset {
			continue // below the log start, perhaps: the bytes go with the segment
		}
		v.found(epoch.CheckpointName, e.StartOffset, "batches have leader epoch %d, the checkpoint says %v", e.Epoch, c)
	}
	return nil
}

// topicID reads partition.metadata; without it, or with a damaged one, nobody can tell whose the records are.
func (v *verifier) topicID() error {
	_, err := ReadPartitionMetadata(v.fs, v.dir)
	var disk *fs.PathError
	switch {
	case err == nil || v.batches == 0:
		return nil
	case isNotExist(err):
		v.found(PartitionMetadataName, -1, "is missing")
	case errors.As(err, &disk):
		return err
	default:
		v.found(PartitionMetadataName, -1, "%v", strings.TrimPrefix(err.Error(), PartitionMetadataName+": "))
	}
	return nil
}
