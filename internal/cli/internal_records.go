package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// Records of internal topics that this version keeps and does not work with are shown by their schemas alone, in the
// words of Kafka's own dump tool.
//
// A schema is fields, each "name:type" with a space between. A type is i8, i16, i32, i64, s (string), by (bytes),
// u (uuid), [fields or a type] (an array), {fields} (a struct); ? after it makes it nullable, @n a tagged field.

type schemaKind uint8

const (
	schemaInt8 schemaKind = iota
	schemaInt16
	schemaInt32
	schemaInt64
	schemaString
	schemaBytes
	schemaUUID
	schemaArray
	schemaStruct
)

type schemaField struct {
	name     string
	kind     schemaKind
	nullable bool
	tag      int           // -1: not tagged
	fields   []schemaField // of a struct, or of an array of structs
	elem     *schemaField  // of an array of something else
}

// schemaParser reads schemas, which are constants of this file: what it does not understand is a mistake here.
type schemaParser struct{ rest string }

func parseSchema(text string) []schemaField {
	p := &schemaParser{text}
	fields := p.fields("")
	if p.rest != "" {
		panic("cli: schema " + text)
	}
	return fields
}

func (p *schemaParser) fields(end string) (fields []schemaField) {
	for p.rest != "" && (end == "" || !strings.HasPrefix(p.rest, end)) {
		name, rest, _ := strings.Cut(p.rest, ":")
		p.rest = rest
		f := p.typ()
		f.name = name
		fields = append(fields, f)
		p.rest = strings.TrimPrefix(p.rest, " ")
	}
	p.rest = strings.TrimPrefix(p.rest, end)
	return fields
}

var schemaWords = []struct {
	word string
	kind schemaKind
}{{"i8", schemaInt8}, {"i16", schemaInt16}, {"i32", schemaInt32}, {"i64", schemaInt64}, {"by", schemaBytes}, {"s", schemaString}, {"u", schemaUUID}}

func (p *schemaParser) typ() schemaField {
	f := schemaField{tag: -1}
	switch {
	case strings.HasPrefix(p.rest, "{"):
		p.rest = p.rest[1:]
		f.kind, f.fields = schemaStruct, p.fields("}")
	case strings.HasPrefix(p.rest, "["):
		p.rest = p.rest[1:]
		f.kind = schemaArray
		if inner, _, _ := strings.Cut(p.rest, "]"); strings.Contains(inner, ":") {
			f.fields = p.fields("]")
		} else {
			elem := p.typ()
			f.elem, p.rest = &elem, strings.TrimPrefix(p.rest, "]")
		}
	default:
		for _, w := range schemaWords {
			if strings.HasPrefix(p.rest, w.word) {
				f.kind, p.rest = w.kind, p.rest[len(w.word):]
				break
			}
		}
	}
	if strings.HasPrefix(p.rest, "?") {
		f.nullable, p.rest = true, p.rest[1:]
	}
	if strings.HasPrefix(p.rest, "@") {
		f.tag, p.rest = int(p.rest[1]-'0'), p.rest[2:]
	}
	return f
}

// object is a JSON object with its members in order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schemaReader takes values off a record. After the first fault bad names the field and everything reads as zero.
type schemaReader struct {
	b        []byte
	flexible bool
	bad      string
}

func (r *schemaReader) take(n int, field string) []byte {
	if r.bad != "" || n < 0 || n > len(r.b) {
		if r.bad == "" {
			r.bad = field
		}
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *schemaReader) number(size int, field string) int64 {
	b := r.take(size, field)
	if b == nil {
		return 0
	}
	switch size {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b)))
	}
	return int64(binary.BigEndian.Uint64(b))
}

func (r *schemaReader) uvarint(field string) int {
	v, n := binary.Uvarint(r.b)
	if r.bad != "" || n <= 0 || v > math.MaxInt32 {
		if r.bad == "" {
			r.bad = field
		}
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// length of a string (of 2 bytes where not flexible), of bytes or an array (of 4); -1 is null.
func (r *schemaReader) length(fixed int, field string) int {
	if r.flexible {
		return r.uvarint(field) - 1
	}
	return int(r.number(fixed, field))
}

func (r *schemaReader) value(f *schemaField) any {
	switch f.kind {
	case schemaInt8:
		return r.number(1, f.name)
	case schemaInt16:
		return r.number(2, f.name)
	case schemaInt32:
		return r.number(4, f.name)
	case schemaInt64:
		return r.number(8, f.name)
	case schemaUUID:
		var id metadata.UUID
		copy(id[:], r.take(len(id), f.name))
		return id
	case schemaString, schemaBytes:
		n := r.length(2+2*int(f.kind-schemaString), f.name)
		if n < 0 && f.nullable {
			return nil
		}
		if b := r.take(n, f.name); f.kind == schemaBytes {
			return b
		} else {
			return string(b)
		}
	case schemaArray:
		n := r.length(4, f.name)
		if n < 0 && f.nullable {
			return nil
		}
		if n < 0 || n > len(r.b) { // each element takes a byte or more
			r.take(-1, f.name)
			return nil
		}
		out := make([]any, 0, n)
		for i := 0; i < n && r.bad == ""; i++ {
			if f.elem != nil {
				out = append(out, r.value(f.elem))
			} else {
				out = append(out, r.structure(f.fields))
			}
		}
		return out
	}
	if f.nullable && f.tag < 0 && r.number(1, f.name) < 0 || f.nullable && f.tag >= 0 && r.uvarint(f.name) == 0 {
		return nil
	}
	return r.structure(f.fields)
}

// structure reads fields and, where flexible, the tagged ones behind them. Tagged fields that are not there are not
// shown, but for structs, as Kafka's tool does it.
func (r *schemaReader) structure(fields []schemaField) object {
	values := make([]any, len(fields))
	shown := make([]bool, len(fields))
	for i := range fields {
		if fields[i].tag < 0 {
			values[i], shown[i] = r.value(&fields[i]), true
		} else {
			shown[i] = fields[i].kind == schemaStruct
		}
	}
	var unknown []int
	if r.flexible {
		for n := r.uvarint("tags"); n > 0 && r.bad == ""; n-- {
			tag, size := r.uvarint("tag"), r.uvarint("size of tag")
			sub := schemaReader{b: r.take(size, "tagged field"), flexible: true}
			known := false
			for i := range fields {
				if fields[i].tag == tag {
					values[i], shown[i], known = sub.value(&fields[i]), true, true
				}
			}
			if !known {
				unknown = append(unknown, tag)
			}
			if sub.bad != "" {
				r.bad = sub.bad
			}
		}
	}
	out := object{}
	for i := range fields {
		if shown[i] {
			out = append(out, member{fields[i].name, values[i]})
		}
	}
	if unknown != nil {
		out = append(out, member{"unknownTags", unknown})
	}
	return out
}

// keptRecord is a kind of record that is kept and shown, and not worked with.
type keptRecord struct {
	name       string
	key, value []schemaField
	flexible   int16 // the lowest flexible version of the value
	versions   int16 // the highest version known; -1: the value is not decoded
}

func kept(name, key, value string) keptRecord {
	k := keptRecord{name: name, key: parseSchema(key), versions: -1}
	if value != "" {
		k.value, k.versions = parseSchema(value), 0
	}
	return k
}

const (
	ofGroup       = "groupId:s"
	ofMember      = "groupId:s memberId:s"
	assignment    = "[topicId:u partitions:[i32]]"
	assignedSince = "[topicId:u partitions:[i32] assignmentEpochs:[i32]?@0]"
)

// keptGroupRecords are the records of __consumer_offsets by the type in their keys, but for those of classic groups.
var keptGroupRecords = map[int16]keptRecord{
	3: kept("ConsumerGroupMetadata", ofGroup, "epoch:i32 metadataHash:i64@0"),
	4: kept("ConsumerGroupPartitionMetadata", ofGroup, "topics:[topicId:u topicName:s numPartitions:i32 partitionMetadata:[partition:i32 racks:[s]]]"),
	5: kept("ConsumerGroupMemberMetadata", ofMember, "instanceId:s? rackId:s? clientId:s clientHost:s subscribedTopicNames:[s] subscribedTopicRegex:s? rebalanceTimeoutMs:i32 serverAssignor:s? "+
		"classicMemberMetadata:{sessionTimeoutMs:i32 supportedProtocols:[name:s metadata:by]}?@0"),
	6:  kept("ConsumerGroupTargetAssignmentMetadata", ofGroup, "assignmentEpoch:i32 assignmentTimestamp:i64@0"),
	7:  kept("ConsumerGroupTargetAssignmentMember", ofMember, "topicPartitions:"+assignment),
	8:  kept("ConsumerGroupCurrentMemberAssignment", ofMember, "memberEpoch:i32 previousMemberEpoch:i32 state:i8 assignedPartitions:"+assignedSince+" partitionsPendingRevocation:"+assignedSince),
	9:  kept("ShareGroupPartitionMetadata", ofGroup, ""),
	10: kept("ShareGroupMemberMetadata", ofMember, ""),
	11: kept("ShareGroupMetadata", ofGroup, ""),
	12: kept("ShareGroupTargetAssignmentMetadata", ofGroup, ""),
	13: kept("ShareGroupTargetAssignmentMember", ofMember, ""),
	14: kept("ShareGroupCurrentMemberAssignment", ofMember, ""),
	15: kept("ShareGroupStatePartitionMetadata", ofGroup, ""),
	16: kept("ConsumerGroupRegularExpression", "groupId:s regularExpression:s", "topics:[s] version:i64 timestamp:i64"),
	17: kept("StreamsGroupMetadata", ofGroup, ""),
	19: kept("StreamsGroupMemberMetadata", ofMember, ""),
	20: kept("StreamsGroupTargetAssignmentMetadata", ofGroup, ""),
	21: kept("StreamsGroupTargetAssignmentMember", ofMember, ""),
	22: kept("StreamsGroupCurrentMemberAssignment", ofMember, ""),
	23: kept("StreamsGroupTopology", ofGroup, ""),
}

// transactionRecord is the one kind of record in __transaction_state.
var transactionRecord = keptRecord{
	name: "TransactionMetadata", key: parseSchema("transactionalId:s"), flexible: 1, versions: 1,
	value: parseSchema("producerId:i64 previousProducerId:i64@0 nextProducerId:i64@1 producerEpoch:i16 nextProducerEpoch:i16@3 transactionTimeoutMs:i32 transactionStatus:i8 " +
		"transactionPartitions:[topic:s partitionIds:[i32]]? transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64 clientTransactionVersion:i16@2"),
}

var transactionStates = []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}

func decodeTransaction(_ record.Batch, r *record.Record) (string, any) {
	if len(r.Key) < 2 || binary.BigEndian.Uint16(r.Key) != 0 {
		return "unknown", undecoded{Error: "a key of no kind that __transaction_state is known to have; the record is kept as it is", Key: r.Key, Value: r.Value}
	}
	name, shown, err := transactionRecord.show(r.Key, r.Value)
	if err != nil {
		return name, undecoded{err.Error(), r.Key, r.Value}
	}
	if value, ok := shown[len(shown)-1].value.(object); ok {
		for i, m := range value {
			if state, ok := m.value.(int64); ok && m.name == "transactionStatus" && state >= 0 && int(state) < len(transactionStates) {
				value[i].value = transactionStates[state]
			}
		}
	}
	return name, shown
}

// decodeKeptGroup shows a record of a group that is not classic.
func decodeKeptGroup(typ int16, r *record.Record) (string, any) {
	kind, ok := keptGroupRecords[typ]
	if !ok {
		return "unknown", undecoded{Error: fmt.Sprintf("a key of type %d, which this version does not know; the record is kept as it is", typ), Key: r.Key, Value: r.Value}
	}
	name, shown, err := kind.show(r.Key, r.Value)
	if err != nil {
		return name, undecoded{err.Error(), r.Key, r.Value}
	}
	return name, shown
}

// show decodes key and value; of a tombstone the value is null.
func (k keptRecord) show(key, value []byte) (string, object, error) {
	r := schemaReader{b: key[2:]}
	shown := object{{"key", r.structure(k.key)}}
	if r.bad != "" || len(r.b) > 0 {
		return k.name, nil, fmt.Errorf("key of %s ends at %s, %d bytes are left over", k.name, r.bad, len(r.b))
	}
	if value == nil {
		return k.name, append(shown, member{"value", nil}), nil
	}
	r = schemaReader{b: value}
	version := int16(r.number(2, "version"))
	shown = append(shown, member{"version", version})
	if k.versions < 0 {
		return k.name, append(shown, member{"undecoded", value}), nil
	}
	if r.bad != "" || version < 0 || version > k.versions {
		return k.name, nil, fmt.Errorf("%s of version %d, known are 0 to %d; the record is kept as it is", k.name, version, k.versions)
	}
	r.flexible = version >= k.flexible
	decoded := r.structure(k.value)
	if r.bad != "" || len(r.b) > 0 {
		return k.name, nil, fmt.Errorf("%s of version %d: bad %s, %d bytes left over", k.name, version, r.bad, len(r.b))
	}
	return k.name, append(shown, member{"value", decoded}), nil
}
