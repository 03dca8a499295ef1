//go:build interop

package differential

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// odd changes a few fields of a request, so that it can still be laid out: other names, ids of nobody, numbers that make
// no sense, empty and null, and the same entry twice.
func (l *lane) odd(req kmsg.Request) kmsg.Request {
	out := (&ids{}).copy(req)
	for range 1 + l.rng.IntN(2) {
		var fields []place
		fieldsOf(reflect.ValueOf(out).Elem(), "", &fields)
		if len(fields) == 0 {
			return out
		}
		l.bend(out.Key(), fields[l.rng.IntN(len(fields))])
	}
	return out
}

// copy is a deep copy that leaves symbols alone.
func (s *ids) copy(req kmsg.Request) kmsg.Request {
	return deep(reflect.ValueOf(req).Elem()).Addr().Interface().(kmsg.Request)
}

func deep(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(deep(v.Elem()).Addr())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := out.Field(i); f.CanSet() && v.Type().Field(i).Name != "UnknownTags" {
				f.Set(deep(v.Field(i)))
			}
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(deep(v.Index(i)))
			}
		}
	}
	return out
}

type place struct {
	name  string
	value reflect.Value
}

func fieldsOf(v reflect.Value, name string, found *[]place) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i).Name
			if field == "Version" || field == "UnknownTags" {
				continue
			}
			fieldsOf(v.Field(i), field, found)
		}
	case reflect.Slice:
		*found = append(*found, place{name, v})
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				fieldsOf(v.Index(i), name, found)
			}
		}
	default:
		*found = append(*found, place{name, v})
	}
}

var strangeNames = []string{"", ".", "..", "nobody-made-this", "a b", "umlaut-\u00fc", "\u65e5\u672c\u8a9e", "emoji-\U0001f642", "slash/slash", "__consumer_offsets", "__transaction_state", "__cluster_metadata", strings.Repeat("x", 249), strings.Repeat("x", 250), "colon:colon", "UPPER"}

// strangeName picks one. Where a group or topic of that name may come into being, it is one that no other lane uses.
func (l *lane) strangeName(key int16, field string) string {
	name := pick(l, strangeNames...)
	if strings.HasPrefix(name, "__") && slices.Contains([]int16{1, 2, 20, 23, 37}, key) {
		// What all lanes write is not compared; without its topic, or with one that has grown, a coordinator would not know its groups.
		name = "no-such-topic"
	}
	if strings.HasPrefix(field, "Group") && name != "" {
		return name + "-" + strings.ReplaceAll(l.name, "/", ".")
	}
	if (key == 3 || key == 19) && validTopic.MatchString(name) && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "__") {
		name = strings.ReplaceAll(l.name, "/", ".") + "-" + name
		name = name[:min(len(name), 249)]
	}
	return name
}

// left alone: what would make a server wait, or say too much.
var leftAlone = map[string]bool{"MaxWaitMillis": true, "TimeoutMillis": true, "RebalanceTimeoutMillis": true, "TransactionTimeoutMillis": false}

func (l *lane) bend(key int16, p place) {
	if leftAlone[p.name] {
		return
	}
	v := p.value
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int8:
		v.SetInt(pick[int64](l, -1, 0, 1, 2, 3, 5, 9, 127, -128))
	case reflect.Int16:
		v.SetInt(pick[int64](l, -2, -1, 0, 1, 2, 3, 32767, -32768))
	case reflect.Int32:
		huge := pick[int64](l, 1<<31-1, 1000000)
		switch {
		case key == 19:
			huge = 20000 // more partitions than one request may ask for
		case key == 37:
			huge = 9 // there, no bound protects a server
		}
		v.SetInt(pick(l, -2, -1, 0, 1, 2, 7, huge, -1<<31))
	case reflect.Int64:
		v.SetInt(pick[int64](l, -7, -6, -5, -4, -3, -2, -1, 0, 1, 3, 1000, 1<<62, -1<<63, 1<<63-1))
	case reflect.Float64:
		v.SetFloat(pick(l, -1, 0, 0.5, 1e300))
	case reflect.String:
		v.SetString(l.strangeName(key, p.name))
	case reflect.Pointer:
		if !v.IsNil() && l.chance(40) {
			v.SetZero()
			return
		}
		if v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.ValueOf(ptr(l.strangeName(key, p.name))))
		}
	case reflect.Array:
		var id [16]byte
		switch l.rng.IntN(3) {
		case 0:
			copy(id[:], "no such topic id")
		case 1:
			id[15] = 1
		}
		v.Set(reflect.ValueOf(id))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if key == 0 {
				v.SetBytes(pick(l, []byte{}, []byte{0}, bytes.Repeat([]byte{0}, 61), v.Bytes()[:v.Len()/2])) // for null, see producePlay
				return
			}
			v.SetBytes(pick(l, nil, []byte{}, []byte{0}, bytes.Repeat([]byte{0}, 61), v.Bytes()[:v.Len()/2]))
			return
		}
		switch l.rng.IntN(4) {
		case 0:
			v.SetZero()
		case 1:
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		default:
			if n := v.Len(); n > 0 {
				v.Set(reflect.Append(v, deep(v.Index(l.rng.IntN(n)))))
			}
		}
	}
}

// damage is one way to break the bytes of a request. It returns the bytes to send.
type damage struct {
	name   string
	stub   bool // not a whole frame
	shifts bool // what follows is read as something else
	apply  func(l *lane, b []byte, req kmsg.Request, counts []int, at float64) []byte
}

// body is where a request's own bytes begin in its frame.
func body(b []byte, req kmsg.Request) int {
	client := clientID
	head := wire.AppendRequestHeader(nil, req.Key(), req.GetVersion(), 0, &client, req.IsFlexible())
	return 4 + len(head)
}

func resize(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

var damages = []damage{
	{"cut short", false, false, func(l *lane, b []byte, req kmsg.Request, _ []int, at float64) []byte {
		from := body(b, req)
		return resize(b[:from+int(at*float64(len(b)-from))])
	}},
	{"cut in the header", false, false, func(l *lane, b []byte, req kmsg.Request, _ []int, at float64) []byte {
		return resize(b[:4+int(at*float64(body(b, req)-4))])
	}},
	{"trailing bytes", false, false, func(l *lane, b []byte, req kmsg.Request, _ []int, at float64) []byte {
		return resize(append(b, make([]byte, 1+int(at*20))...))
	}},
	{"a count beyond the bytes", false, true, func(l *lane, b []byte, req kmsg.Request, counts []int, at float64) []byte {
		return l.miscount(b, req, counts, at, 0x7ffffff0)
	}},
	{"a negative count", false, true, func(l *lane, b []byte, req kmsg.Request, counts []int, at float64) []byte {
		return l.miscount(b, req, counts, at, 0xfffffff0)
	}},
	{"a count too high by one", false, true, func(l *lane, b []byte, req kmsg.Request, counts []int, at float64) []byte {
		return l.miscount(b, req, counts, at, 1)
	}},
	{"a count of null", false, true, func(l *lane, b []byte, req kmsg.Request, counts []int, at float64) []byte {
		return l.miscount(b, req, counts, at, 0xffffffff)
	}},
	{"a frame that does not end", true, false, func(l *lane, b []byte, req kmsg.Request, _ []int, at float64) []byte {
		return b[:4+int(at*float64(len(b)-4))]
	}},
	{"an unknown version", false, false, func(l *lane, b []byte, req kmsg.Request, _ []int, at float64) []byte {
		return b // the caller changes the version
	}},
}

// miscount changes the last byte, or the whole, of the count of a string or collection.
func (l *lane) miscount(b []byte, req kmsg.Request, counts []int, at float64, to uint32) []byte {
	if len(counts) == 0 {
		return resize(b[:body(b, req)])
	}
	pos := body(b, req) + counts[int(at*float64(len(counts)))]
	if pos >= len(b) {
		return resize(b[:len(b)-1])
	}
	flexible := req.IsFlexible()
	switch {
	case to == 1:
		b[pos]++
	case flexible && to == 0xffffffff:
		b[pos] = 0
	case flexible:
		// A varint of five bytes in the place of one.
		v := binary.AppendUvarint(nil, uint64(to))
		b = append(b[:pos:pos], append(v, b[pos+1:]...)...)
	case pos >= body(b, req)+3 && b[pos-1] == 0 && b[pos-2] == 0 && b[pos-3] == 0:
		binary.BigEndian.PutUint32(b[pos-3:], to)
	case pos >= 1:
		binary.BigEndian.PutUint16(b[pos-1:], uint16(to>>16))
		if to == 0xffffffff {
			binary.BigEndian.PutUint16(b[pos-1:], 0xffff)
		}
	}
	return resize(b)
}

// countsOf finds the last byte of each count in a request's body, by letting each collection and string grow by one.
func countsOf(req kmsg.Request) (at []int) {
	whole := req.AppendTo(nil)
	grown := (&ids{}).copy(req)
	var fields []place
	fieldsOf(reflect.ValueOf(grown).Elem(), "", &fields)
	for _, p := range fields {
		v := p.value
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Slice:
			v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
		default:
			continue
		}
		other := grown.AppendTo(nil)
		v.Set(was)
		if len(other) == len(whole) {
			continue // not in this version
		}
		for i := range min(len(whole), len(other)) {
			if whole[i] != other[i] {
				at = append(at, i)
				break
			}
		}
	}
	return at
}

// malformed sends a damaged request to both servers.
func (l *lane) malformed(version int16, req kmsg.Request) sent {
	switch req := req.(type) { // where a shifted byte could ask for a thousand partitions
	case *kmsg.CreatePartitionsRequest:
		req.Topics[0].Topic = "no-such-topic"
	case *kmsg.CreateTopicsRequest:
		req.ValidateOnly = true
	}
	d := damages[l.rng.IntN(len(damages)-1)]
	at := l.rng.Float64()
	if d.stub && !l.chance(25) {
		d = damages[0]
	}
	resolved := l.resolved(req, version)
	if d.shifts {
		// Both get the same bytes, with ids of nobody: ids of their own would not be read alike in another place.
		for i := range resolved {
			resolved[i] = newIDs().resolve(reflect.ValueOf(req).Elem()).Addr().Interface().(kmsg.Request)
		}
	}
	how := (*side).raw
	if d.stub {
		how = (*side).stub
	}
	l.damage = d.name
	defer func() { l.damage = "" }()
	return l.bytes(version, req, true, func(i int) []byte {
		b := frame(resolved[i], version, 77, &clientID)
		return d.apply(l, b, resolved[i], countsOf(resolved[i]), at)
	}, how)
}
