package record

import (
	"fmt"
	"io"
)

// rebuild compresses the records of a validated batch with another codec, or not at all. Each record is
// passed on as it is but for its deltas: they count from the first record's timestamp.
func rebuild(b Batch, info Info, target Codec, opts *ValidateOptions) (Info, error) {
	w := walkers.Get().(*walker)
	defer w.close()
	if err := w.src.open(b, opts.MaxDecompressed); err != nil {
		return Info{}, err
	}
	out := outBuf{b: make([]byte, HeaderSize, len(b))}
	if opts.MaxMessageBytes >= 0 {
		out.max = max(opts.MaxMessageBytes, HeaderSize)
	}
	h := header{
		baseOffset:      b.BaseOffset(),
		leaderEpoch:     b.PartitionLeaderEpoch(),
		attributes:      byte(target) | byte(b.Attributes())&(flagTransactional|flagControl),
		lastOffsetDelta: b.LastOffsetDelta(),
		baseTimestamp:   b.BaseTimestamp(),
		maxTimestamp:    info.MaxTimestamp,
		producerID:      b.ProducerID(),
		producerEpoch:   b.ProducerEpoch(),
		baseSequence:    b.BaseSequence(),
		count:           b.Count(),
	}
	if opts.TimestampType == LogAppendTime {
		h.attributes |= flagLogAppendTime
	}
	err := w.copyRecords(b, target, opts.Level, &out, &h)
	if err == errOutputFull {
		return Info{}, &TooLargeError{Size: len(out.b), Max: opts.MaxMessageBytes, Rebuilt: true}
	}
	if err != nil {
		return Info{}, err
	}
	info.Batch, info.Rebuilt = finishBatch(out.b, &h), true
	return info, nil
}

// copyRecords passes the records of b, which w.src stands at the start of, to out in another codec, and
// sets h's base timestamp. The error is errOutputFull when out is.
func (w *walker) copyRecords(b Batch, target Codec, level int, out *outBuf, h *header) error {
	if target == None {
		return w.copyInto(out, b, h)
	}
	comp, err := newCompressor(target, level, out)
	if err != nil {
		return err
	}
	defer comp.release()
	if err := w.copyInto(comp, b, h); err != nil {
		return err
	}
	return comp.Close()
}

func (w *walker) copyInto(to io.Writer, b Batch, h *header) error {
	var head recordHead
	var fixed []byte
	shift := int64(0) // from the old base timestamp to the new
	for i := range b.Count() {
		if reason := w.src.head(&head); reason != "" {
			return w.src.malformed(i, reason)
		}
		if i == 0 {
			shift = head.timestampDelta
			h.baseTimestamp = b.BaseTimestamp() + shift
		}
		r := Record{TimestampDelta: head.timestampDelta - shift, OffsetDelta: head.offsetDelta}
		length := 1 + sizeVarlong(r.TimestampDelta) + sizeVarint(r.OffsetDelta) + head.left
		fixed = appendVarint(fixed[:0], int32(length))
		fixed = append(fixed, 0)
		fixed = appendVarlong(fixed, r.TimestampDelta)
		fixed = appendVarint(fixed, r.OffsetDelta)
		if _, err := to.Write(fixed); err != nil {
			return err
		}
		whole, err := w.src.copyTo(to, head.left)
		if err != nil {
			return err
		}
		if !whole {
			return w.src.malformed(i, fmt.Sprintf("%s the second time", reasonOverrun))
		}
	}
	return nil
}
