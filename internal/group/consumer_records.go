package group

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
)

// Record types of consumer groups (KIP-848).
const (
	recordTypeConsumerMetadata          = 3
	recordTypeConsumerPartitionMetadata = 4
	recordTypeConsumerMember            = 5
	recordTypeConsumerTarget            = 6
	recordTypeConsumerTargetMember      = 7
	recordTypeConsumerCurrent           = 8
	recordTypeConsumerRegex             = 16
)

// A ConsumerGroupRecord sets, or with a nil Value removes, the epoch of a consumer group.
type ConsumerGroupRecord struct {
	Group string
	Value *ConsumerGroupValue
}

// A ConsumerGroupValue is the epoch of a group, and what the topics its members subscribe to looked like then.
type ConsumerGroupValue struct {
	Epoch        int32
	MetadataHash int64 // 0: of no topic, or written before 4.1
}

// A ConsumerPartitionsRecord is what versions up to 4.0 remembered of topics. Its value is not read, and only its
// tombstone is ever written.
type ConsumerPartitionsRecord struct {
	Group   string
	Present bool
}

// A ConsumerMemberRecord sets, or with a nil Value removes, what a member of a consumer group has said of itself.
type ConsumerMemberRecord struct {
	Group, Member string
	Value         *ConsumerMemberValue
}

// A ConsumerMemberValue is what a member subscribes to, and who it is.
type ConsumerMemberValue struct {
	InstanceID         *string
	RackID             *string
	ClientID           string
	ClientHost         string
	Topics             []string // sorted, without repeats
	Regex              *string  // nil or "": none
	RebalanceTimeoutMs int32
	Assignor           *string
	Classic            *ClassicMember // nil: it speaks the consumer protocol
}

// A ClassicMember is what a member of a consumer group that speaks the classic protocol has said beside.
type ClassicMember struct {
	SessionTimeoutMs int32
	Protocols        []ClassicProtocol
}

// A ClassicProtocol is one of its assignors with the subscription that it goes with.
type ClassicProtocol struct {
	Name     string
	Metadata []byte
}

// A ConsumerTargetRecord sets, or with a nil Value removes, the epoch of a group's target assignment.
type ConsumerTargetRecord struct {
	Group string
	Value *ConsumerTargetValue
}

// A ConsumerTargetValue says for which group epoch the target was worked out, and when.
type ConsumerTargetValue struct {
	Epoch     int32
	Timestamp int64 // milliseconds; 0: not known, and then the next one need not wait
}

// A ConsumerTargetMemberRecord sets, or with a nil Value removes, what one member is to get.
type ConsumerTargetMemberRecord struct {
	Group, Member string
	Value         *ConsumerTargetMemberValue
}

// A ConsumerTargetMemberValue is the partitions of one member in the target assignment.
type ConsumerTargetMemberValue struct{ Partitions []TopicPartitions }

// A ConsumerCurrentRecord sets, or with a nil Value removes, what one member has.
type ConsumerCurrentRecord struct {
	Group, Member string
	Value         *ConsumerCurrentValue
}

// A ConsumerCurrentValue is what one member has, and how far it is on its way to the target.
type ConsumerCurrentValue struct {
	Epoch, PreviousEpoch int32
	State                int8
	Assigned, Revoking   []TopicPartitions
}

// States of a member's assignment, as they are written.
const (
	memberStable     int8 = 0
	memberUnrevoked  int8 = 1
	memberUnreleased int8 = 2
)

// TopicPartitions are partitions of one topic, sorted. Epochs, unless nil, are as many: in which epoch of the member
// each was assigned to it.
type TopicPartitions struct {
	TopicID    [16]byte
	Partitions []int32
	Epochs     []int32
}

// A ConsumerRegexRecord sets, or with a nil Value removes, the topics that a regular expression of a group matched.
type ConsumerRegexRecord struct {
	Group, Regex string
	Value        *ConsumerRegexValue
}

// A ConsumerRegexValue is the topics that matched.
type ConsumerRegexValue struct {
	Topics    []string // sorted
	Version   int64    // offset of the metadata image
	Timestamp int64    // milliseconds
}

func appendConsumerKey(w *recordWriter, typ int16, parts ...string) {
	w.int16(typ)
	for _, part := range parts {
		w.string(part)
	}
}

func (c *ConsumerGroupRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerMetadata, c.Group)
}

func (c *ConsumerGroupRecord) appendValue(w *recordWriter) (tombstone bool) {
	if c.Value == nil {
		return true
	}
	w.beginFlexible()
	w.int32(c.Value.Epoch)
	w.taggedInt64(c.Value.MetadataHash)
	return false
}

func (c *ConsumerPartitionsRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerPartitionMetadata, c.Group)
}

func (c *ConsumerPartitionsRecord) appendValue(*recordWriter) (tombstone bool) { return true }

func (c *ConsumerMemberRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerMember, c.Group, c.Member)
}

func (c *ConsumerMemberRecord) appendValue(w *recordWriter) (tombstone bool) {
	v := c.Value
	if v == nil {
		return true
	}
	w.beginFlexible()
	w.nullableString(v.InstanceID)
	w.nullableString(v.RackID)
	w.string(v.ClientID)
	w.string(v.ClientHost)
	w.strings(v.Topics)
	w.nullableString(v.Regex)
	w.int32(v.RebalanceTimeoutMs)
	w.nullableString(v.Assignor)
	if v.Classic == nil {
		w.onlyTag(recordWriter{buf: []byte{0}}) // Kafka spells out a struct that is not there
		return false
	}
	body := recordWriter{flexible: true, buf: []byte{1}}
	body.int32(v.Classic.SessionTimeoutMs)
	body.arrayLen(len(v.Classic.Protocols))
	for _, p := range v.Classic.Protocols {
		body.string(p.Name)
		body.bytes(p.Metadata)
		body.noTags()
	}
	body.noTags()
	w.onlyTag(body)
	return false
}

func (c *ConsumerTargetRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerTarget, c.Group)
}

func (c *ConsumerTargetRecord) appendValue(w *recordWriter) (tombstone bool) {
	if c.Value == nil {
		return true
	}
	w.beginFlexible()
	w.int32(c.Value.Epoch)
	w.taggedInt64(c.Value.Timestamp)
	return false
}

func (c *ConsumerTargetMemberRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerTargetMember, c.Group, c.Member)
}

func (c *ConsumerTargetMemberRecord) appendValue(w *recordWriter) (tombstone bool) {
	if c.Value == nil {
		return true
	}
	w.beginFlexible()
	w.topicPartitions(c.Value.Partitions)
	w.noTags()
	return false
}

func (c *ConsumerCurrentRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerCurrent, c.Group, c.Member)
}

func (c *ConsumerCurrentRecord) appendValue(w *recordWriter) (tombstone bool) {
	v := c.Value
	if v == nil {
		return true
	}
	w.beginFlexible()
	w.int32(v.Epoch)
	w.int32(v.PreviousEpoch)
	w.buf = append(w.buf, byte(v.State))
	w.topicPartitions(v.Assigned)
	w.topicPartitions(v.Revoking)
	w.noTags()
	return false
}

func (c *ConsumerRegexRecord) appendKey(w *recordWriter) {
	appendConsumerKey(w, recordTypeConsumerRegex, c.Group, c.Regex)
}

func (c *ConsumerRegexRecord) appendValue(w *recordWriter) (tombstone bool) {
	v := c.Value
	if v == nil {
		return true
	}
	w.beginFlexible()
	w.strings(v.Topics)
	w.int64(v.Version)
	w.int64(v.Timestamp)
	w.noTags()
	return false
}

// beginFlexible begins a value of version 0 in the flexible encoding, which all of consumer groups have.
func (w *recordWriter) beginFlexible() {
	w.int16(0)
	w.flexible = true
}

func (w *recordWriter) strings(list []string) {
	w.arrayLen(len(list))
	for _, s := range list {
		w.string(s)
	}
}

// onlyTag ends a struct with one tagged field, of tag 0.
func (w *recordWriter) onlyTag(body recordWriter) {
	w.tooLong = w.tooLong || body.tooLong
	w.buf = kbin.AppendUvarint(append(w.buf, 1, 0), uint32(len(body.buf)))
	w.buf = append(w.buf, body.buf...)
}

// taggedInt64 ends a struct with tag 0, left out at its default 0.
func (w *recordWriter) taggedInt64(i int64) {
	if i == 0 {
		w.noTags()
		return
	}
	var body recordWriter
	body.int64(i)
	w.onlyTag(body)
}

func (w *recordWriter) topicPartitions(topics []TopicPartitions) {
	w.arrayLen(len(topics))
	for _, t := range topics {
		w.buf = append(w.buf, t.TopicID[:]...)
		w.int32s(t.Partitions)
		if t.Epochs == nil {
			w.noTags()
			continue
		}
		body := recordWriter{flexible: true}
		body.int32s(t.Epochs)
		w.onlyTag(body)
	}
}

func (w *recordWriter) int32s(list []int32) {
	w.arrayLen(len(list))
	for _, i := range list {
		w.int32(i)
	}
}

// decodeConsumerRecord reads a record of a consumer group; r stands behind the type in the key. done is false for
// another type.
func decodeConsumerRecord(typ int16, r *kbin.Reader, value []byte) (rec Record, done bool, err error) {
	group := func() string { return r.String() }
	v := &valueReader{typ: typ, present: value != nil}
	v.Src = value
	switch typ {
	case recordTypeConsumerMetadata:
		c := &ConsumerGroupRecord{Group: group()}
		if v.begin() {
			c.Value = &ConsumerGroupValue{Epoch: v.Int32()}
			v.tags(func(body *kbin.Reader) { c.Value.MetadataHash = body.Int64() })
		}
		rec = c
	case recordTypeConsumerPartitionMetadata:
		rec = &ConsumerPartitionsRecord{Group: group(), Present: value != nil}
		return rec, true, nil
	case recordTypeConsumerMember:
		c := &ConsumerMemberRecord{Group: group(), Member: r.String()}
		if v.begin() {
			c.Value = v.member()
		}
		rec = c
	case recordTypeConsumerTarget:
		c := &ConsumerTargetRecord{Group: group()}
		if v.begin() {
			c.Value = &ConsumerTargetValue{Epoch: v.Int32()}
			v.tags(func(body *kbin.Reader) { c.Value.Timestamp = body.Int64() })
		}
		rec = c
	case recordTypeConsumerTargetMember:
		c := &ConsumerTargetMemberRecord{Group: group(), Member: r.String()}
		if v.begin() {
			c.Value = &ConsumerTargetMemberValue{Partitions: v.topicPartitions()}
			v.tags(nil)
		}
		rec = c
	case recordTypeConsumerCurrent:
		c := &ConsumerCurrentRecord{Group: group(), Member: r.String()}
		if v.begin() {
			c.Value = &ConsumerCurrentValue{Epoch: v.Int32(), PreviousEpoch: v.Int32(), State: v.Int8(), Assigned: v.topicPartitions(), Revoking: v.topicPartitions()}
			v.tags(nil)
		}
		rec = c
	case recordTypeConsumerRegex:
		c := &ConsumerRegexRecord{Group: group(), Regex: r.String()}
		if v.begin() {
			c.Value = &ConsumerRegexValue{Topics: v.strings(), Version: v.Int64(), Timestamp: v.Int64()}
			v.tags(nil)
		}
		rec = c
	default:
		return nil, false, nil
	}
	return rec, true, v.err()
}

// A valueReader reads a value of version 0 in the flexible encoding.
type valueReader struct {
	kbin.Reader
	typ     int16
	present bool
	version int16
	bad     string
}

// begin says whether there is a value to read.
func (v *valueReader) begin() bool {
	v.version = -1
	if !v.present {
		return false
	}
	version := v.Int16()
	if !v.Ok() {
		v.bad = "value is shorter than its version"
		return false
	}
	if v.version = version; version != 0 {
		v.bad = "unknown version"
		return false
	}
	return true
}

func (v *valueReader) err() error {
	if v.bad == "" && v.present && !v.Ok() {
		v.bad = "value ends early"
	}
	if v.bad == "" {
		return nil
	}
	return &CorruptRecordError{Type: v.typ, Version: v.version, Reason: v.bad}
}

// tags walks the tagged fields at the end; known, unless nil, is for tag 0.
func (v *valueReader) tags(known func(body *kbin.Reader)) { readTagZero(&v.Reader, known) }

func readTagZero(r *kbin.Reader, known func(body *kbin.Reader)) {
	readTags(r, func(tag uint32, body *kbin.Reader) {
		if tag == 0 && known != nil {
			known(body)
		}
	})
}

func (v *valueReader) strings() []string {
	var list []string
	for n := v.CompactArrayLen(); n > 0 && v.Ok(); n-- {
		list = append(list, v.CompactString())
	}
	return list
}

func (v *valueReader) member() *ConsumerMemberValue {
	m := &ConsumerMemberValue{
		InstanceID: v.CompactNullableString(), RackID: v.CompactNullableString(),
		ClientID: v.CompactString(), ClientHost: v.CompactString(),
		Topics: v.strings(), Regex: v.CompactNullableString(), RebalanceTimeoutMs: v.Int32(), Assignor: v.CompactNullableString(),
	}
	v.tags(func(body *kbin.Reader) {
		if body.Uvarint() == 0 {
			return
		}
		classic := &ClassicMember{SessionTimeoutMs: body.Int32()}
		for n := body.CompactArrayLen(); n > 0 && body.Ok(); n-- {
			p := ClassicProtocol{Name: body.CompactString(), Metadata: append([]byte{}, body.CompactBytes()...)}
			readTagZero(body, nil)
			classic.Protocols = append(classic.Protocols, p)
		}
		readTagZero(body, nil)
		m.Classic = classic
	})
	return m
}

// topicPartitions gives topics in the order of their ids, and partitions in theirs.
func (v *valueReader) topicPartitions() []TopicPartitions {
	var topics []TopicPartitions
	for n := v.CompactArrayLen(); n > 0 && v.Ok(); n-- {
		t := TopicPartitions{TopicID: v.Uuid(), Partitions: readInt32s(&v.Reader)}
		v.tags(func(body *kbin.Reader) {
			if epochs := readInt32s(body); len(epochs) == len(t.Partitions) {
				t.Epochs = epochs
			}
		})
		t.sort()
		topics = append(topics, t)
	}
	slices.SortStableFunc(topics, func(a, b TopicPartitions) int { return bytes.Compare(a.TopicID[:], b.TopicID[:]) })
	return topics
}

func readInt32s(r *kbin.Reader) []int32 {
	n := r.CompactArrayLen()
	if n < 0 || int64(n)*4 > int64(len(r.Src)) {
		if n > 0 {
			r.Span(math.MaxInt32) // more than there is
		}
		return nil
	}
	list := make([]int32, n)
	for i := range list {
		list[i] = r.Int32()
	}
	return list
}

func (t *TopicPartitions) sort() {
	if slices.IsSorted(t.Partitions) {
		return
	}
	order := make([]int, len(t.Partitions))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.Partitions[a], t.Partitions[b]) })
	partitions, epochs := make([]int32, len(order)), make([]int32, len(order))
	for to, from := range order {
		partitions[to] = t.Partitions[from]
		if t.Epochs != nil {
			epochs[to] = t.Epochs[from]
		}
	}
	if t.Epochs != nil {
		t.Epochs = epochs
	}
	t.Partitions = partitions
}
