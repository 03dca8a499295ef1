package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
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

// Verify checks a partition's directory that no process has open: every batch's bytes, that offsets rise and epochs
// never fall, that indexes, producer snapshots and the epoch checkpoint agree with the batches, and that
// records have a topic id. The error is the disk's; what is wrong with the content is in the answer.
func Verify(fsys vfs.FS, dir string) ([]Problem, error) {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return nil, err
	}
	v := &verifier{fs: fsys, dir: dir, nextOffset: -1, lastEpoch: record.NoLeaderEpoch}
	for _, n := range names {
		o, ok := fileOffset(n)
		switch {
		case ok && n == logName(o):
			if err := v.segment(o); err != nil {
				return v.problems, err
			}
		case ok && strings.HasSuffix(n, ".snapshot"):
			if err := v.snapshot(n); err != nil {
				return v.problems, err
			}
		}
	}
	if err := v.epochs(); err != nil {
		return v.problems, err
	}
	return v.problems, v.topicID()
}

type verifier struct {
	fs         vfs.FS
	dir        string
	problems   []Problem
	nextOffset int64
	firstSeen  int64
	lastEpoch  int32
	seen       epoch.Cache // as the batches tell it
	batches    int
}

func (v *verifier) found(file string, offset int64, format string, args ...any) {
	v.problems = append(v.problems, Problem{file, offset, fmt.Sprintf(format, args...)})
}

// segment checks one segment and its indexes.
func (v *verifier) segment(base int64) error {
	name := logName(base)
	ends := map[int64]int64{} // position of each batch -> its last offset
	times := map[int64]int64{}
	largest := record.NoTimestamp
	if base < v.nextOffset {
		v.found(name, base, "segment begins below the end %d of the one before", v.nextOffset)
	}
	v.nextOffset = max(v.nextOffset, base)
	size := int64(0)
	err := ScanSegment(v.fs, filepath.Join(v.dir, name), func(pos int64, b record.Batch) error {
		v.batch(name, b)
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
	return v.indexes(base, size, ends, times)
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
		v.firstSeen = b.BaseOffset()
	}
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
	name = txnName(base)
	if data, err = v.read(name); err != nil {
		return err
	}
	if _, err := parseTxnIndex(data, base); err != nil {
		v.found(name, -1, "%v", err)
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

func (v *verifier) snapshot(name string) error {
	data, err := v.read(name)
	if err != nil {
		return err
	}
	if _, err := parseSnapshot(data); err != nil {
		v.found(name, -1, "%v", err)
	}
	return nil
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
