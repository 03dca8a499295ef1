package record

import "sync"

// MaxRecordErrors is how many refused records of one batch are listed; a compressed batch may hold many
// millions.
const MaxRecordErrors = 1000

// Origin says who wrote a batch that is to be appended.
type Origin int8

const (
	// FromClient batches are held to every rule.
	FromClient Origin = iota
	// FromCoordinator batches are the broker's own: control and plain records of coordinators and the
	// metadata log, which need not begin at offset 0, nor carry sequence numbers.
	FromCoordinator
)

// ValidateOptions are the rules a topic has, and the circumstances of one append.
type ValidateOptions struct {
	Origin Origin
	// ProduceVersion is the version of the Produce request, where there is one: zstd is refused below 7.
	// 0 checks nothing (a server that has called CheckProduceVersion).
	ProduceVersion int16

	Now             int64         // ms
	TimestampType   TimestampType // message.timestamp.type
	BeforeMaxMs     int64         // message.timestamp.before.max.ms
	AfterMaxMs      int64         // message.timestamp.after.max.ms
	MaxMessageBytes int           // max.message.bytes; negative: no limit
	Compact         bool          // cleanup.policy has compact: every record needs a key
	MaxDecompressed int64         // bytes of records out of a compressed batch; 0 means 2^31-1

	// Convert says that compression.type is not "producer"; Codec and Level are then what it names.
	Convert bool
	Codec   Codec
	Level   int
}

// Info describes a batch that may be appended.
type Info struct {
	// Batch is what to append: the batch that was validated, corrected in place, or a new one.
	Batch   Batch
	Rebuilt bool // Batch is new: it was compressed with another codec

	Count           int32
	LastOffsetDelta int32
	// MaxTimestamp is the largest timestamp, -1 if no record has one, and
	// OffsetDeltaOfMaxTimestamp says which record is the first to have it, -1 if none.
	MaxTimestamp              int64
	OffsetDeltaOfMaxTimestamp int32
}

// Per-record messages.
const (
	messageNoKey     = "Compacted topic cannot accept message without key."
	messageTimestamp = "Timestamp is outside the range allowed by message.timestamp.before.max.ms and message.timestamp.after.max.ms."
	messageType      = "Invalid timestamp type: producers must not set LogAppendTime."
)

// walker validates the records of one batch.
type walker struct {
	src    source
	errors []RecordError
	// badTime says that one of errors is about a timestamp.
	badTime bool
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// ValidateForAppend holds a batch to the rules for appending, in Kafka's order, and prepares it. The
// batch's bytes are corrected where they lie (attributes, largest timestamp, CRC) unless it has to be
// compressed anew; they are unchanged when there is an error. Base offset and leader epoch are left to the
// caller. An uncompressed batch costs no allocation.
//
// Errors: UnsupportedCodecError, InvalidRecordError, TooLargeError, CorruptError, InvalidTimestampError.
func ValidateForAppend(b Batch, opts ValidateOptions) (Info, error) {
	if err := checkHeader(b, &opts); err != nil {
		return Info{}, err
	}
	w := walkers.Get().(*walker)
	info, err := w.validate(b, &opts)
	w.close()
	if err != nil {
		return Info{}, err
	}
	target := b.Codec()
	if opts.Convert && !(b.IsControl() && target == None) {
		target = opts.Codec
	}
	if target != b.Codec() {
		return rebuild(b, info, target, &opts)
	}
	if opts.TimestampType != b.TimestampType() || info.MaxTimestamp != b.MaxTimestamp() {
		b.SetMaxTimestamp(opts.TimestampType, info.MaxTimestamp)
	}
	info.Batch = b
	return info, nil
}

// checkHeader is all that can be said without looking at the records.
func checkHeader(b Batch, opts *ValidateOptions) error {
	client := opts.Origin == FromClient
	if len(b) < atLastOffsetDelta {
		return corrupt("%d bytes are fewer than a header's %d", len(b), HeaderSize)
	}
	if opts.ProduceVersion > 0 {
		if err := CheckProduceVersion(b, opts.ProduceVersion); err != nil {
			return err
		}
	}
	if client && b.BaseOffset() != 0 {
		return invalidBatch("base offset of a produced batch must be 0, not %d", b.BaseOffset())
	}
	if opts.MaxMessageBytes >= 0 && len(b) > opts.MaxMessageBytes {
		return &TooLargeError{Size: len(b), Max: opts.MaxMessageBytes}
	}
	if err := b.VerifyCRC(); err != nil {
		return err
	}
	if !client {
		return nil
	}
	count, delta := b.Count(), b.LastOffsetDelta()
	switch {
	case delta < 0:
		return invalidBatch("last offset delta %d is negative", delta)
	case count <= 0:
		return invalidBatch("record count %d is not positive", count)
	case int64(count) != int64(delta)+1:
		return invalidBatch("record count %d does not agree with last offset delta %d", count, delta)
	case b.IsControl():
		return invalidBatch("clients cannot write control records")
	case b.HasDeleteHorizon():
		return invalidBatch("clients cannot set a delete horizon")
	case b.ProducerID() >= 0 && b.BaseSequence() < 0:
		return invalidBatch("producer id %d without a sequence number", b.ProducerID())
	}
	return nil
}

// validate walks the records once, decompressing as it goes, and looks at no more of each than its structure,
// its deltas and whether it has a key.
func (w *walker) validate(b Batch, opts *ValidateOptions) (Info, error) {
	info := Info{
		Count:                     b.Count(),
		LastOffsetDelta:           b.LastOffsetDelta(),
		MaxTimestamp:              NoTimestamp,
		OffsetDeltaOfMaxTimestamp: -1,
	}
	if info.Count < 0 {
		return info, invalidBatch("record count %d", info.Count)
	}
	if info.Count > 0 || len(b.Payload()) > 0 {
		if err := w.src.open(b, opts.MaxDecompressed); err != nil {
			return info, err
		}
	}
	base := b.BaseTimestamp()
	stamped := b.TimestampType() == LogAppendTime // the whole batch has one timestamp, and not from its records
	stampedOK := stamped && opts.TimestampType == CreateTime && b.MaxTimestamp() != NoTimestamp
	stampedMessage := messageType
	if stampedOK {
		stampedOK = opts.timestampOK(b.MaxTimestamp())
		stampedMessage = messageTimestamp
	}
	src := &w.src
	var head recordHead
	for i := int32(0); i < info.Count; i++ {
		nullKey, ok := src.quick(&head)
		if !ok {
			reason := src.head(&head)
			if reason == "" {
				nullKey, reason = src.skipBody(head.left)
			}
			if reason != "" {
				return info, src.malformed(i, reason)
			}
		}
		if head.offsetDelta != i && !mutantDeltasUnchecked {
			return info, src.malformed(i, "offset deltas do not count from 0")
		}
		ts := base + head.timestampDelta
		switch {
		case nullKey && opts.Compact:
			w.refuse(i, messageNoKey, false)
		case stamped:
			if !stampedOK {
				w.refuse(i, stampedMessage, true)
			}
		case opts.TimestampType == CreateTime && !opts.timestampOK(ts):
			w.refuse(i, messageTimestamp, true)
		}
		if ts > info.MaxTimestamp {
			info.MaxTimestamp, info.OffsetDeltaOfMaxTimestamp = ts, i
		}
	}
	if !src.end() {
		return info, src.malformed(-1, reasonMore)
	}
	if opts.TimestampType == LogAppendTime {
		info.MaxTimestamp, info.OffsetDeltaOfMaxTimestamp = opts.Now, 0
	}
	return info, w.refusal()
}

// timestampOK says whether a record may be created at ts, in ms. No time at all is fine.
func (o *ValidateOptions) timestampOK(ts int64) bool {
	if ts == NoTimestamp {
		return true
	}
	return ts >= 0 && o.Now-ts <= o.BeforeMaxMs && ts-o.Now <= o.AfterMaxMs
}

func (w *walker) refuse(index int32, message string, time bool) {
	w.badTime = w.badTime || time
	if len(w.errors) < MaxRecordErrors {
		w.errors = append(w.errors, RecordError{Index: index, Message: message})
	}
}

// refusal is the error of a batch with refused records; nil if there is none.
func (w *walker) refusal() error {
	if len(w.errors) == 0 {
		return nil
	}
	if w.badTime {
		return &InvalidTimestampError{Records: w.errors}
	}
	return &InvalidRecordError{Index: w.errors[0].Index, Reason: w.errors[0].Message, Records: w.errors}
}

func (w *walker) close() {
	w.src.close()
	w.src.err = nil
	w.errors, w.badTime = nil, false
	walkers.Put(w)
}
