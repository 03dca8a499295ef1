package record

import "iter"

// Stamp is a record's place and time, all that a lookup by time wants to know.
type Stamp struct {
	Offset    int64
	Timestamp int64 // ms, as TimestampOf has it
}

// Stamps walks the records of b like Records, but passes over keys, values and headers: its memory does not
// depend on how large a record is. A fault is an InvalidRecordError and comes last.
func (b Batch) Stamps(limits Limits) iter.Seq2[Stamp, error] {
	return func(yield func(Stamp, error) bool) {
		count := b.Count()
		if count == 0 && len(b.Payload()) == 0 {
			return
		}
		if count < 0 {
			yield(Stamp{}, invalidBatch("record count %d", count))
			return
		}
		w := walkers.Get().(*walker)
		defer w.close()
		if err := w.src.open(b, limits.MaxDecompressed); err != nil {
			yield(Stamp{}, err)
			return
		}
		offset, base := b.BaseOffset(), b.BaseTimestamp()
		stamped, appendTime := b.TimestampType() == LogAppendTime, b.MaxTimestamp()
		var head recordHead
		for i := range count {
			reason := w.src.head(&head)
			if reason == "" {
				_, reason = w.src.skipBody(head.left)
			}
			if reason != "" {
				yield(Stamp{}, w.src.malformed(i, reason))
				return
			}
			s := Stamp{Offset: offset + int64(head.offsetDelta), Timestamp: base + head.timestampDelta}
			if stamped {
				s.Timestamp = appendTime
			}
			if !yield(s, nil) {
				return
			}
		}
		if !w.src.end() {
			yield(Stamp{}, w.src.malformed(-1, reasonMore))
		}
	}
}
