//go:build interop

package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// pairs remembers which id of Kafka's answers stands where which id of Stele's does. Both name the same thing as long as
// each is only ever seen together with the other: that is what numbering both by their first appearance comes to.
type pairs struct {
	mu           sync.Mutex
	kafka, stele map[string]string
}

func (p *pairs) same(kind, kafka, stele string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	kafka, stele = kind+kafka, kind+stele
	left, knownLeft := p.kafka[kafka]
	right, knownRight := p.stele[stele]
	if !knownLeft && !knownRight {
		p.kafka[kafka], p.stele[stele] = stele, kafka
		return true
	}
	return left == stele && right == kafka
}

// idFields are fields that each server numbers by itself; the value names the kind of thing.
var idFields = map[string]string{
	"MemberID": "member", "LeaderID": "member", "ClusterID": "cluster", "ProducerID": "producer", "SessionID": "session",
	"Port": "port", "LogDir": "directory", "Dir": "directory",
}

// times are fields that hold a server's clock when it was its turn to choose.
var times = map[string]bool{"LogAppendTimeMillis": true, "LogAppendTime": true, "Timestamp": true, "LastFetchTimestamp": true, "LastCaughtUpTimestamp": true, "LastTimestamp": true, "MaxTimestamp": true, "FirstTimestamp": true}

// unordered are collections whose order Kafka leaves to a hash table. The fields name an element.
var unordered = map[string]bool{}

type comparison struct {
	key, version int16
	started      time.Time
	pairs        *pairs
	found        []Finding
	elements     [][2]any
}

func (c *comparison) report(path, kafka, stele string) {
	f := Finding{Key: c.key, Version: c.version, Path: path, Kafka: kafka, Stele: stele}
	if n := len(c.elements); n > 0 {
		f.KafkaElement, f.SteleElement = c.elements[n-1][0], c.elements[n-1][1]
		f.KafkaAnswer, f.SteleAnswer = c.elements[0][0], c.elements[0][1]
	}
	c.found = append(c.found, f)
}

// answers compares two outcomes.
func (c *comparison) answers(kafka, stele outcome) {
	if kafka.fate != stele.fate {
		c.report("(fate)", describe(kafka), describe(stele))
		return
	}
	if kafka.resp != nil && stele.resp != nil {
		for _, o := range []outcome{kafka, stele} {
			if f, ok := o.resp.(*kmsg.FetchResponse); ok {
				f.Topics = joined(f.Topics)
			}
		}
		c.values("", "", reflect.ValueOf(kafka.resp).Elem(), reflect.ValueOf(stele.resp).Elem())
	}
}

// joined puts a topic's partitions together: Kafka begins a second entry of a topic where it lists what it refused.
func joined(topics []kmsg.FetchResponseTopic) (out []kmsg.FetchResponseTopic) {
	type name struct {
		topic string
		id    [16]byte
	}
	at := map[name]int{}
	for _, t := range topics {
		i, ok := at[name{t.Topic, t.TopicID}]
		if !ok {
			at[name{t.Topic, t.TopicID}] = len(out)
			out = append(out, t)
			continue
		}
		out[i].Partitions = append(out[i].Partitions[:len(out[i].Partitions):len(out[i].Partitions)], t.Partitions...)
	}
	return out
}

func describe(o outcome) string {
	s := string(o.fate)
	if o.fate == unreadable && o.why != nil {
		s += ": " + o.why.Error()
	}
	if o.resp != nil {
		if code := topError(o.resp); code != 0 {
			s += fmt.Sprintf(", error %d", code)
		} else if codes := nestedErrors(o.resp); len(codes) > 0 {
			s += fmt.Sprintf(", errors %v", slices.Compact(slices.Sorted(slices.Values(codes))))
		}
	}
	return s
}

func (c *comparison) values(path, field string, kafka, stele reflect.Value) {
	switch kafka.Kind() {
	case reflect.Pointer:
		if kafka.IsNil() || stele.IsNil() {
			if kafka.IsNil() != stele.IsNil() {
				c.report(path, text(kafka), text(stele))
			}
			return
		}
		c.values(path, field, kafka.Elem(), stele.Elem())
	case reflect.Struct:
		c.elements = append(c.elements, [2]any{kafka.Interface(), stele.Interface()})
		refused := refusedByOne(kafka, stele)
		for i := range kafka.NumField() {
			name := kafka.Type().Field(i).Name
			if refused && name != "ErrorCode" {
				continue
			}
			switch name {
			case "Version":
				continue
			case "UnknownTags":
				k, s := kafka.Field(i).Interface().(kmsg.Tags), stele.Field(i).Interface().(kmsg.Tags)
				if k.Len() != s.Len() {
					c.report(join(path, name), fmt.Sprint(k.Len()), fmt.Sprint(s.Len()))
				}
				continue
			}
			c.values(join(path, name), name, kafka.Field(i), stele.Field(i))
		}
		c.elements = c.elements[:len(c.elements)-1]
	case reflect.Slice:
		if kafka.Type().Elem().Kind() == reflect.Uint8 {
			c.bytes(path, field, kafka, stele)
			return
		}
		if kafka.IsNil() != stele.IsNil() && kafka.Len() == 0 && stele.Len() == 0 {
			c.report(path, text(kafka), text(stele))
			return
		}
		c.slices(path+"[]", kafka, stele)
	case reflect.Array:
		zero := reflect.Zero(kafka.Type()).Interface()
		if k, s := kafka.Interface(), stele.Interface(); k != s && (k == zero || s == zero || !c.pairs.same("uuid", fmt.Sprint(k), fmt.Sprint(s))) {
			c.report(path, fmt.Sprintf("%x", k), fmt.Sprintf("%x", s))
		}
	default:
		k, s := text(kafka), text(stele)
		if kind := idFields[field]; kind != "" && !unset(kafka, kind) && !unset(stele, kind) {
			if !c.pairs.same(kind, k, s) {
				c.report(path, kind+" "+k, kind+" "+s)
			}
			return
		}
		if k == s || c.near(path, field, kafka, stele) {
			return
		}
		c.report(path, k, s)
	}
}

// refusedByOne says that one side answers with an error and the other with none. The code is the difference then; all
// else that is said follows from it.
func refusedByOne(kafka, stele reflect.Value) bool {
	k, s := kafka.FieldByName("ErrorCode"), stele.FieldByName("ErrorCode")
	return k.IsValid() && (k.Int() == 0) != (s.Int() == 0)
}

// unset values of ids are compared as they are. Producers are numbered from 0, all else from 1.
func unset(v reflect.Value, kind string) bool {
	switch v.Kind() {
	case reflect.String:
		return v.Len() == 0
	case reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int() < 0 || v.Int() == 0 && kind != "producer"
	}
	return false
}

// near says that both values are a clock's reading during the run, or a position of the metadata log.
func (c *comparison) near(path, field string, kafka, stele reflect.Value) bool {
	switch kafka.Kind() {
	case reflect.Int64, reflect.Int32:
	default:
		return false
	}
	if times[field] {
		since := c.started.Add(-time.Minute).UnixMilli()
		return kafka.Int() > since && stele.Int() > since
	}
	if n := len(c.elements); c.key == 35 && field == "Size" && textOf(c.elements[n-2][0], "Topic") == "__consumer_offsets" {
		return kafka.Int() > 0 && stele.Int() > 0 // each coordinator's own way of writing
	}
	position := field == "FinalizedFeaturesEpoch" || field == "TotalBytes" || field == "UsableBytes" ||
		c.key == 55 && (field == "LogEndOffset" || field == "HighWatermark" || field == "LeaderEpoch")
	return position && kafka.Int() > 0 && stele.Int() > 0
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func text(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "null"
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		return fmt.Sprintf("%q", v.String())
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprint(v.Int()) // kmsg's enumerations have names, which are of no use here
	case reflect.Slice:
		if v.IsNil() {
			return "null"
		}
	}
	b, err := json.Marshal(v.Interface())
	s := string(b)
	if err != nil {
		s = fmt.Sprintf("%+v", v.Interface())
	}
	if len(s) > 400 {
		s = s[:400] + "..."
	}
	return s
}

// names are the fields that tell the elements of a collection apart.
var names = []string{"Topic", "MemberID", "TopicID", "Partition", "Group", "Name", "ResourceType", "ResourceName", "Key", "NodeID", "ApiKey", "InstanceID", "ClientID", "ProducerID",
	"EntityType", "ReplicaID", "Feature", "ConfigName", "Source", "PrincipalType"}

// number is a name for an id that both sides agree on, once both have been seen together.
func (p *pairs) number(side int, kind, id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if side == 1 {
		if kafka, ok := p.stele[kind+id]; ok {
			return kafka
		}
	}
	return kind + id
}

func (c *comparison) nameOf(v reflect.Value, side int) string {
	if v.Kind() != reflect.Struct {
		return text(v)
	}
	var s strings.Builder
	for _, name := range names {
		f := v.FieldByName(name)
		if !f.IsValid() {
			continue
		}
		switch {
		case name == "Source" && v.FieldByName("IsSensitive").IsValid():
			continue // of a setting, where it comes from is no part of its name
		case name == "TopicID" && v.FieldByName("Topic").IsValid() && !v.FieldByName("Topic").IsZero():
			continue // the name is enough
		case name == "TopicID" && !f.IsZero():
			fmt.Fprintf(&s, "%s=%s ", name, c.pairs.number(side, "uuid", fmt.Sprint(f.Interface())))
			continue
		case name == "ProducerID":
			fmt.Fprintf(&s, "%s=%s ", name, c.pairs.number(side, "producer", text(f)))
			continue
		case name == "MemberID":
			fmt.Fprintf(&s, "%s=%s ", name, c.pairs.number(side, "member", text(f)))
			continue
		}
		fmt.Fprintf(&s, "%s=%s ", name, text(f))
	}
	if parts := v.FieldByName("Entity"); parts.IsValid() {
		// What a quota is for.
		fmt.Fprint(&s, slices.Sorted(slices.Values(c.namesOf(parts, side))))
	}
	return s.String()
}

func (c *comparison) slices(path string, kafka, stele reflect.Value) {
	left, right := c.namesOf(kafka, 0), c.namesOf(stele, 1)
	if slices.Equal(left, right) {
		for i := range kafka.Len() {
			c.values(path, "", kafka.Index(i), stele.Index(i))
		}
		return
	}
	if slices.Equal(slices.Sorted(slices.Values(left)), slices.Sorted(slices.Values(right))) {
		if !unordered[fmt.Sprintf("%d %s", c.key, path)] {
			c.report(path+" (order)", strings.Join(left, ", "), strings.Join(right, ", "))
		}
		c.aligned(path, left, right, kafka, stele)
		return
	}
	alone := [2][]reflect.Value{}
	for i, name := range left {
		if !slices.Contains(right, name) {
			alone[0] = append(alone[0], kafka.Index(i))
		}
	}
	for i, name := range right {
		if !slices.Contains(left, name) {
			alone[1] = append(alone[1], stele.Index(i))
		}
	}
	if kafka.Len()-len(alone[0]) != stele.Len()-len(alone[1]) {
		c.report(path+" (count)", fmt.Sprint(kafka.Len()), fmt.Sprint(stele.Len()))
	}
	c.aligned(path, left, right, kafka, stele)
	if len(alone[0]) == len(alone[1]) && (strings.Contains(strings.Join(left, ""), "TopicID=uuid") || strings.Contains(strings.Join(left, ""), "MemberID=")) {
		c.anonymous(path, alone)
		return
	}
	for _, v := range alone[0] {
		c.extra(path, v, true)
	}
	for _, v := range alone[1] {
		c.extra(path, v, false)
	}
}

// anonymous compares elements that only ids tell apart which have not been seen together yet. What else they hold pairs
// them; where that is the same for several it stays open which belongs to which, and there is nothing to compare.
func (c *comparison) anonymous(path string, alone [2][]reflect.Value) {
	rest := func(v reflect.Value) string {
		blank := reflect.New(v.Type()).Elem()
		blank.Set(v)
		for _, name := range []string{"TopicID", "MemberID"} {
			if f := blank.FieldByName(name); f.IsValid() {
				f.SetZero()
			}
		}
		return text(blank)
	}
	count := [2]map[string]int{{}, {}}
	for side, vs := range alone {
		slices.SortStableFunc(vs, func(a, b reflect.Value) int { return strings.Compare(rest(a), rest(b)) })
		for _, v := range vs {
			count[side][rest(v)]++
		}
	}
	for i, k := range alone[0] {
		s := alone[1][i]
		if r := rest(k); r == rest(s) && count[0][r] > 1 && count[0][r] == count[1][r] {
			continue
		}
		c.values(path, "", k, s)
	}
}

// extra reports an element that only one of the answers has.
func (c *comparison) extra(path string, v reflect.Value, kafka bool) {
	pair, k, s := [2]any{v.Interface(), nil}, text(v), "(absent)"
	if !kafka {
		pair, k, s = [2]any{nil, v.Interface()}, s, k
	}
	c.elements = append(c.elements, pair)
	c.report(path, k, s)
	c.elements = c.elements[:len(c.elements)-1]
}

func (c *comparison) aligned(path string, left, right []string, kafka, stele reflect.Value) {
	used := make([]bool, len(right))
	for i, name := range left {
		for j, other := range right {
			if name == other && !used[j] {
				used[j] = true
				c.values(path, "", kafka.Index(i), stele.Index(j))
				break
			}
		}
	}
}

func (c *comparison) namesOf(v reflect.Value, side int) []string {
	s := make([]string, v.Len())
	for i := range s {
		s[i] = c.nameOf(v.Index(i), side)
	}
	return s
}

func (c *comparison) bytes(path, field string, kafka, stele reflect.Value) {
	if kafka.IsNil() != stele.IsNil() {
		c.report(path, text(kafka), text(stele))
		return
	}
	if bytes.Equal(kafka.Bytes(), stele.Bytes()) {
		return
	}
	if field != "RecordBatches" {
		c.report(path, fmt.Sprintf("%x", kafka.Bytes()), fmt.Sprintf("%x", stele.Bytes()))
		return
	}
	left, right := split(kafka.Bytes()), split(stele.Bytes())
	if len(left) != len(right) {
		c.report(path+".(batches)", fmt.Sprint(len(left), " in ", kafka.Len(), " bytes"), fmt.Sprint(len(right), " in ", stele.Len(), " bytes"))
	}
	for i := range min(len(left), len(right)) {
		c.batch(path, left[i], right[i])
	}
}

// split cuts what was fetched into whole batches and, last, what is left.
func split(b []byte) (found []record.Batch) {
	for one, err := range record.Batches(b) {
		if err != nil {
			break
		}
		found = append(found, one)
	}
	return found
}

// batch compares two batches by what they mean: a recompressed batch may have other bytes.
func (c *comparison) batch(path string, kafka, stele record.Batch) {
	if bytes.Equal(kafka, stele) {
		return
	}
	field := func(name string, k, s any) {
		if k != s {
			c.report(path+"."+name, fmt.Sprint(k), fmt.Sprint(s))
		}
	}
	stamp := func(name string, k, s int64) {
		if k != s && !c.near("", "Timestamp", reflect.ValueOf(k), reflect.ValueOf(s)) {
			c.report(path+"."+name, fmt.Sprint(k), fmt.Sprint(s))
		}
	}
	field("BaseOffset", kafka.BaseOffset(), stele.BaseOffset())
	field("PartitionLeaderEpoch", kafka.PartitionLeaderEpoch(), stele.PartitionLeaderEpoch())
	field("Magic", kafka.Magic(), stele.Magic())
	field("Attributes", kafka.Attributes(), stele.Attributes())
	field("LastOffsetDelta", kafka.LastOffsetDelta(), stele.LastOffsetDelta())
	stamp("BaseTimestamp", kafka.BaseTimestamp(), stele.BaseTimestamp())
	stamp("MaxTimestamp", kafka.MaxTimestamp(), stele.MaxTimestamp())
	if kafka.ProducerID() >= 0 && stele.ProducerID() >= 0 {
		if !c.pairs.same("producer", fmt.Sprint(kafka.ProducerID()), fmt.Sprint(stele.ProducerID())) {
			field("ProducerID", kafka.ProducerID(), stele.ProducerID())
		}
	} else {
		field("ProducerID", kafka.ProducerID(), stele.ProducerID())
	}
	field("ProducerEpoch", kafka.ProducerEpoch(), stele.ProducerEpoch())
	field("BaseSequence", kafka.BaseSequence(), stele.BaseSequence())
	field("Count", kafka.Count(), stele.Count())
	left, right := unpacked(kafka), unpacked(stele)
	if len(left) != len(right) {
		c.report(path+".(records)", fmt.Sprint(len(left)), fmt.Sprint(len(right)))
		return
	}
	for i := range left {
		if left[i] != right[i] {
			c.report(path+".(record)", left[i], right[i])
		}
	}
}

func unpacked(b record.Batch) (found []string) {
	it := record.NewRecordIterator(b, record.Limits{MaxDecompressed: 64 << 20})
	defer it.Close()
	for it.Next() {
		r := it.Record()
		stamp := int64(0)
		if b.TimestampType() == record.CreateTime && !b.IsControl() { // a marker's is the server's own, as its header says
			stamp = b.TimestampOf(r)
		}
		found = append(found, fmt.Sprintf("%d %d %q %q %q", b.OffsetOf(r), stamp, r.Key, r.Value, r.Headers))
	}
	if err := it.Err(); err != nil {
		found = append(found, err.Error())
	}
	return found
}

// topError is the error of an answer as a whole, 0 when it has none.
func topError(resp kmsg.Response) int16 {
	if resp == nil {
		return 0
	}
	v := reflect.ValueOf(resp).Elem().FieldByName("ErrorCode")
	if !v.IsValid() {
		return 0
	}
	return int16(v.Int())
}

// nestedErrors are the errors of the entries of an answer.
func nestedErrors(resp kmsg.Response) (codes []int16) {
	v := reflect.ValueOf(resp).Elem()
	for i := range v.NumField() {
		collectErrors(v.Field(i), &codes)
	}
	return codes
}

func collectErrors(v reflect.Value, codes *[]int16) {
	switch v.Kind() {
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				collectErrors(v.Index(i), codes)
			}
		}
	case reflect.Struct:
		nested := len(*codes)
		for i := range v.NumField() {
			collectErrors(v.Field(i), codes)
		}
		// The innermost error decides; an entry with entries of its own has one only if those are none.
		if code := v.FieldByName("ErrorCode"); code.IsValid() && (len(*codes) == nested || code.Int() != 0) {
			*codes = append(*codes, int16(code.Int()))
		}
	}
}

// successful says that an answer has no error as a whole and at least one entry without one, if it has entries with
// errors at all.
func successful(o outcome) bool {
	if o.fate != answered {
		return false
	}
	if code := topError(o.resp); code != 0 {
		// The first half of a join: here is your member id, come again with it.
		return o.resp.Key() == 11 && code == 79
	}
	codes := nestedErrors(o.resp)
	return len(codes) == 0 || slices.Contains(codes, 0)
}
