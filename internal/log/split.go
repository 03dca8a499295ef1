package log

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// overflowError says that a segment holds offsets which its indexes cannot express: brokers of older versions, and
// compaction by them, have left such segments.
type overflowError struct {
	base, offset int64
}

func (e *overflowError) Error() string {
	return fmt.Sprintf("segment %s holds offset %d, too far from its base", logName(e.base), e.offset)
}

// overflows says whether a batch that ends at last is too far from the base of its segment.
func overflows(base, last int64) bool { return last-base > math.MaxInt32 }

// split writes the batches of the segment at base to new segments, each of which begins where the next batch did not fit
// into the one before, and puts those in its place, by the steps of a swap: a crash leaves the old or the new. The
// log is not open yet.
func (l *Log) split(base int64) error {
	old, err := l.o.FS.OpenFile(l.path(logName(base)), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	size, err := old.Size()
	if err != nil {
		return err
	}
	info, err := l.o.FS.Stat(l.path(logName(base)))
	if err != nil {
		return err
	}
	aborted := map[int64]txnEntry{}
	txns, _, err := l.readTxnIndex(base) // what it does not tell is found again when the log is opened
	if err != nil {
		return err
	}
	for _, e := range txns {
		aborted[e.lastOffset] = e
	}
	w := &cleanedWriter{l: l, dir: l.o.Dir, limit: math.MaxInt32}
	defer w.close()
	s := &batchScanner{file: old, end: size}
	for {
		b, err := s.next()
		if err == io.EOF {
			break
		}
		if errors.Is(err, errTorn) && w.cur != nil {
			// Whether it goes is for recovery to say.
			if err := w.copyRest(old, s.pos, size); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return err
		}
		if w.cur == nil || overflows(w.cur.base, b.LastOffset()) {
			// As nextBase has it, so that no gap between segments passes for a loss.
			first := base
			if w.cur != nil {
				first = w.state.end
			}
			if overflows(first, b.LastOffset()) {
				first = b.BaseOffset()
			}
			if err := w.next(first); err != nil {
				return err
			}
		}
		entry, indexed := aborted[b.LastOffset()]
		if err := w.add(b, entry, indexed); err != nil {
			return err
		}
	}
	if err := w.finish(info.ModTime()); err != nil {
		return err
	}
	total, last := int64(0), w.done[len(w.done)-1]
	for _, seg := range w.done {
		n, err := seg.file.Size()
		if err != nil {
			return err
		}
		total += n
	}
	if total != size {
		return &CorruptError{Dir: l.o.Dir, Segment: logName(base), Offset: base, Err: fmt.Errorf("%d bytes became %d when it was split", size, total)}
	}
	if err := l.renameCleaned(w.done, cleanedSuffix, swapSuffix); err != nil {
		return err
	}
	if err := l.retireReplaced([]*segment{{base: base}}); err != nil {
		return err
	}
	if err := l.renameCleaned(w.done, swapSuffix, ""); err != nil {
		return err
	}
	l.event(Event{Kind: EventRebuilt, From: base, To: last.base, Bytes: size, Cause: fmt.Sprintf("%s split into %d segments: its offsets were too far apart",
		logName(base), len(w.done))})
	return nil
}

// copyRest appends the bytes [from, to) of f to the segment that is being written.
func (w *cleanedWriter) copyRest(f io.ReaderAt, from, to int64) error {
	if err := w.flush(); err != nil {
		return err
	}
	for buf := make([]byte, min(to-from, cleanedBufSize)); from < to; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if n == 0 && err != nil {
			return err
		}
		if _, err := w.cur.file.WriteAt(buf[:n], w.at); err != nil {
			return err
		}
		from, w.at = from+int64(n), w.at+int64(n)
	}
	return nil
}
