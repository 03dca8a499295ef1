package log

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// ScanPartition calls fn for each batch in the directory of a partition that no process has open, in order; the batch
// is valid during the call. Nothing is changed. Bytes that are no batch end the walk: torn says where, and is for
// recovery to judge. Files that wait for deletion or belong to a cleaner's pass that was not finished are not read.
func ScanPartition(fsys vfs.FS, dir string, fn func(record.Batch) error) (torn *CorruptError, err error) {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if base, ok := fileOffset(name); !ok || name != logName(base) {
			continue
		}
		err := ScanSegment(fsys, filepath.Join(dir, name), func(_ int64, b record.Batch) error { return fn(b) })
		if errors.As(err, &torn) {
			return torn, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// OpenTransaction is a transaction that a partition holds records of and no marker.
type OpenTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// OpenTransactions are the undecided transactions in the directory of a partition that no process has open, by first
// offset. It reads the newest producer snapshot and the headers of the batches after it, and changes nothing.
func OpenTransactions(fsys vfs.FS, dir string) ([]OpenTransaction, error) {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return nil, err
	}
	var p producers
	from := int64(0)
	for _, name := range slices.Backward(names) {
		at := snapshotOffset(name)
		if at < 0 {
			continue
		}
		data, err := vfs.ReadFile(fsys, filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if found, err := parseSnapshot(data); err == nil {
			p, from = found, at
			break
		}
	}
	var bases []int64
	for _, name := range names {
		if base, ok := fileOffset(name); ok && strings.HasSuffix(name, ".log") && name == logName(base) {
			bases = append(bases, base)
		}
	}
	for i, base := range bases {
		if i+1 < len(bases) && bases[i+1] <= from {
			continue
		}
		if err := feedProducers(fsys, dir, base, from, &p); err != nil {
			return nil, err
		}
	}
	var open []OpenTransaction
	for _, t := range p.open {
		open = append(open, OpenTransaction{t.producerID, t.first})
	}
	return open, nil
}

// feedProducers lets p follow the batches of a segment from offset from on. Where the index says nonsense, all of the
// segment is read.
func feedProducers(fsys vfs.FS, dir string, base, from int64, p *producers) error {
	f, err := fsys.OpenFile(filepath.Join(dir, logName(base)), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	start := int64(0)
	if data, err := vfs.ReadFile(fsys, filepath.Join(dir, indexName(base))); err == nil {
		if entries, err := parseOffsetIndex(data, size); err == nil {
			for _, e := range entries {
				if base+int64(e.rel) < from {
					start = int64(e.pos)
				}
			}
		}
	}
	if start > 0 && !wholeBatchAt(f, start, size) {
		start = 0
	}
	r := newHeaderReader(f, size)
	defer r.close()
	for pos := start; ; {
		b, err := r.header(pos)
		if err == io.EOF || errors.Is(err, errTorn) {
			return nil // what is torn recovery cuts
		}
		if err != nil {
			return err
		}
		length := int64(b.Length())
		if b.LastOffset() >= from && b.HasProducerID() {
			if b.IsControl() {
				if b, err = readBatch(f, pos, int(length), nil); err != nil {
					return err
				}
			}
			p.appended(b, 0)
		}
		pos += length
	}
}

// wholeBatchAt says whether an undamaged batch begins at that position.
func wholeBatchAt(f vfs.File, pos, size int64) bool {
	r := newHeaderReader(f, size)
	defer r.close()
	header, err := r.header(pos)
	if err != nil {
		return false
	}
	b, err := readBatch(f, pos, header.Length(), nil)
	return err == nil && b.VerifyCRC() == nil
}

// ParseCheckpoint reads a checkpoint file of a data directory: an offset for each partition.
func ParseCheckpoint(data []byte) (map[TopicPartition]int64, error) { return parseCheckpoint(data) }

// ParsePartitionDir is the partition that a directory of that name holds; ok is false where the name is none, or that
// of a log that waits for deletion, stands apart, or is a future copy.
func ParsePartitionDir(name string) (tp TopicPartition, ok bool) {
	tp, suffix, ok := parseDirName(name)
	return tp, ok && suffix == ""
}
