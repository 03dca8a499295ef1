package metadata

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// The codec is driven by the record structs: their fields, in wire order, with a `kafka` tag for what the
// Go type does not say:
//
//	since=n    the field exists from record version n on; below it has its default
//	tag=n      the field stands in the tag section under n, and only when it differs from its default
//	nullable   a nil slice is null, apart from an empty one (a *string is nullable by its type)
//	default=x  the default where it is not the zero value
//
// Every struct, nested ones too, ends with its tag section. Tags that a version does not know are kept in
// the struct's Unknown field and written back.

// Tag is one tagged field as it stands on the wire.
type Tag struct {
	Number uint32
	Value  []byte
}

// Tags are the tagged fields of a struct that its schema does not name, in rising order.
type Tags []Tag

type kind uint8

const (
	kindBool kind = iota
	kindInt8
	kindInt16
	kindUint16
	kindInt32
	kindInt64
	kindFloat64
	kindString
	kindNullableString
	kindBytes
	kindUUID
	kindArray
	kindStruct
)

type fieldPlan struct {
	name     string
	index    int
	kind     kind
	since    int16
	tag      int // -1 when the field is not tagged
	nullable bool
	def      reflect.Value
	elem     *fieldPlan // of arrays
	sub      *structPlan
}

type structPlan struct {
	fields  []fieldPlan // untagged, in wire order
	tagged  []fieldPlan // by tag
	unknown int         // index of the Unknown field
	minSize int         // least bytes of one value at version 0, for the check of array counts
}

var (
	uuidType = reflect.TypeFor[UUID]()
	tagsType = reflect.TypeFor[Tags]()
)

func planOf(t reflect.Type) *structPlan {
	p := &structPlan{unknown: -1, minSize: 1}
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Type == tagsType {
			p.unknown = i
			continue
		}
		f := fieldPlan{name: sf.Name, index: i, tag: -1}
		f.setKind(sf.Type)
		f.def = reflect.Zero(sf.Type)
		for option := range strings.SplitSeq(sf.Tag.Get("kafka"), ",") {
			key, value, _ := strings.Cut(option, "=")
			n, _ := strconv.Atoi(value)
			switch key {
			case "":
			case "since":
				f.since = int16(n)
			case "tag":
				f.tag = n
			case "nullable":
				f.nullable = true
			case "default":
				f.def = reflect.New(sf.Type).Elem()
				if f.kind == kindBool {
					f.def.SetBool(value == "true")
				} else {
					f.def.SetInt(int64(n))
				}
			default:
				panic("metadata: unknown option " + key + " of " + t.Name() + "." + sf.Name)
			}
		}
		if f.tag >= 0 {
			p.tagged = append(p.tagged, f)
			continue
		}
		p.fields = append(p.fields, f)
		if f.since == 0 {
			p.minSize += f.minSize()
		}
	}
	if p.unknown < 0 {
		panic("metadata: " + t.Name() + " has no field for unknown tags")
	}
	slices.SortFunc(p.tagged, func(a, b fieldPlan) int { return a.tag - b.tag })
	return p
}

func (f *fieldPlan) setKind(t reflect.Type) {
	switch {
	case t == uuidType:
		f.kind = kindUUID
	case t.Kind() == reflect.Bool:
		f.kind = kindBool
	case t.Kind() == reflect.Int8:
		f.kind = kindInt8
	case t.Kind() == reflect.Int16:
		f.kind = kindInt16
	case t.Kind() == reflect.Uint16:
		f.kind = kindUint16
	case t.Kind() == reflect.Int32:
		f.kind = kindInt32
	case t.Kind() == reflect.Int64:
		f.kind = kindInt64
	case t.Kind() == reflect.Float64:
		f.kind = kindFloat64
	case t.Kind() == reflect.String:
		f.kind = kindString
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.String:
		f.kind = kindNullableString
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		f.kind = kindBytes
	case t.Kind() == reflect.Slice:
		f.kind = kindArray
		f.elem = &fieldPlan{name: f.name, tag: -1}
		f.elem.setKind(t.Elem())
	case t.Kind() == reflect.Struct:
		f.kind = kindStruct
		f.sub = planOf(t)
	default:
		panic("metadata: no codec for type " + t.String())
	}
}

func (f *fieldPlan) minSize() int {
	switch f.kind {
	case kindInt16, kindUint16:
		return 2
	case kindInt32:
		return 4
	case kindInt64, kindFloat64:
		return 8
	case kindUUID:
		return 16
	case kindStruct:
		return f.sub.minSize
	}
	return 1
}

// isDefault says whether a tagged field may be left out.
func (f *fieldPlan) isDefault(v reflect.Value) bool {
	switch f.kind {
	case kindArray, kindBytes:
		if f.nullable {
			return v.IsNil()
		}
		return v.Len() == 0
	case kindNullableString:
		return v.IsNil()
	case kindStruct:
		return v.IsZero()
	}
	return v.Equal(f.def)
}

func appendStruct(dst []byte, p *structPlan, v reflect.Value, version int16) []byte {
	for i := range p.fields {
		if f := &p.fields[i]; version >= f.since {
			dst = appendField(dst, f, v.Field(f.index), version)
		}
	}
	tags := slices.Clone(v.Field(p.unknown).Interface().(Tags))
	for i := range p.tagged {
		f := &p.tagged[i]
		if fv := v.Field(f.index); version >= f.since && !f.isDefault(fv) {
			tags = append(tags, Tag{uint32(f.tag), appendField(nil, f, fv, version)})
		}
	}
	slices.SortStableFunc(tags, func(a, b Tag) int { return int(int64(a.Number) - int64(b.Number)) })
	dst = binary.AppendUvarint(dst, uint64(len(tags)))
	for _, t := range tags {
		dst = binary.AppendUvarint(dst, uint64(t.Number))
		dst = binary.AppendUvarint(dst, uint64(len(t.Value)))
		dst = append(dst, t.Value...)
	}
	return dst
}

func appendField(dst []byte, f *fieldPlan, v reflect.Value, version int16) []byte {
	switch f.kind {
	case kindBool:
		if v.Bool() {
			return append(dst, 1)
		}
		return append(dst, 0)
	case kindInt8:
		return append(dst, byte(v.Int()))
	case kindInt16:
		return binary.BigEndian.AppendUint16(dst, uint16(v.Int()))
	case kindUint16:
		return binary.BigEndian.AppendUint16(dst, uint16(v.Uint()))
	case kindInt32:
		return binary.BigEndian.AppendUint32(dst, uint32(v.Int()))
	case kindInt64:
		return binary.BigEndian.AppendUint64(dst, uint64(v.Int()))
	case kindFloat64:
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(v.Float()))
	case kindString:
		dst = binary.AppendUvarint(dst, uint64(v.Len())+1)
		return append(dst, v.String()...)
	case kindNullableString:
		if v.IsNil() {
			return append(dst, 0)
		}
		dst = binary.AppendUvarint(dst, uint64(v.Elem().Len())+1)
		return append(dst, v.Elem().String()...)
	case kindBytes:
		if f.nullable && v.IsNil() {
			return append(dst, 0)
		}
		dst = binary.AppendUvarint(dst, uint64(v.Len())+1)
		return append(dst, v.Bytes()...)
	case kindUUID:
		u := v.Interface().(UUID)
		return append(dst, u[:]...)
	case kindArray:
		if f.nullable && v.IsNil() {
			return append(dst, 0)
		}
		dst = binary.AppendUvarint(dst, uint64(v.Len())+1)
		for i := range v.Len() {
			dst = appendField(dst, f.elem, v.Index(i), version)
		}
		return dst
	default:
		return appendStruct(dst, f.sub, v, version)
	}
}

// MalformedError says that bytes are not what they claim to be: What names the field, Offset where in the
// value it went wrong.
type MalformedError struct {
	What   string
	Offset int
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed record: %s at byte %d", e.What, e.Offset)
}

// reader takes bytes off a value. After the first fault err is set and everything reads as zero.
type reader struct {
	b   []byte
	off int
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = &MalformedError{what, r.off}
	}
}

func (r *reader) left() int { return len(r.b) - r.off }

// take returns the next n bytes, or nil when there are not as many.
func (r *reader) take(n int, what string) []byte {
	if r.err != nil || n < 0 || n > r.left() {
		r.fail(what)
		return nil
	}
	out := r.b[r.off : r.off+n]
	r.off += n
	return out
}

func (r *reader) uvarint(what string) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 || v > math.MaxUint32 {
		r.fail(what)
		return 0
	}
	r.off += n
	return v
}

// length reads a length or count + 1, and checks it against what is left; -1 stands for null.
func (r *reader) length(each int, what string) int {
	n := int(r.uvarint(what)) - 1
	if r.err == nil && n > r.left()/each {
		r.fail(what)
	}
	if r.err != nil {
		return 0
	}
	return n
}

func readStruct(r *reader, p *structPlan, v reflect.Value, version int16) {
	for i := range p.fields {
		f := &p.fields[i]
		if version < f.since {
			v.Field(f.index).Set(f.def)
			continue
		}
		readField(r, f, v.Field(f.index), version)
		if r.err != nil {
			return
		}
	}
	for i := range p.tagged {
		v.Field(p.tagged[i].index).Set(p.tagged[i].def)
	}
	count := int(r.uvarint("tag count"))
	if count > r.left()/2 {
		r.fail("tag count")
	}
	var unknown Tags
	last := int64(-1)
	for range count {
		number := r.uvarint("tag")
		if int64(number) <= last {
			r.fail("order of tags")
		}
		last = int64(number)
		size := int(r.uvarint("size of tag"))
		value := r.take(size, "value of tag")
		if r.err != nil {
			return
		}
		at := slices.IndexFunc(p.tagged, func(f fieldPlan) bool { return f.tag == int(number) && version >= f.since })
		if at < 0 {
			unknown = append(unknown, Tag{uint32(number), slices.Clone(value)})
			continue
		}
		f := &p.tagged[at]
		sub := reader{b: r.b[:r.off], off: r.off - size}
		readField(&sub, f, v.Field(f.index), version)
		if sub.err == nil && sub.left() > 0 {
			sub.fail("bytes left over in " + f.name)
		}
		if sub.err != nil {
			r.err = sub.err
			return
		}
	}
	v.Field(p.unknown).Set(reflect.ValueOf(unknown))
}

func readField(r *reader, f *fieldPlan, v reflect.Value, version int16) {
	switch f.kind {
	case kindBool:
		if b := r.take(1, f.name); b != nil {
			v.SetBool(b[0] != 0)
		}
	case kindInt8:
		if b := r.take(1, f.name); b != nil {
			v.SetInt(int64(int8(b[0])))
		}
	case kindInt16:
		if b := r.take(2, f.name); b != nil {
			v.SetInt(int64(int16(binary.BigEndian.Uint16(b))))
		}
	case kindUint16:
		if b := r.take(2, f.name); b != nil {
			v.SetUint(uint64(binary.BigEndian.Uint16(b)))
		}
	case kindInt32:
		if b := r.take(4, f.name); b != nil {
			v.SetInt(int64(int32(binary.BigEndian.Uint32(b))))
		}
	case kindInt64:
		if b := r.take(8, f.name); b != nil {
			v.SetInt(int64(binary.BigEndian.Uint64(b)))
		}
	case kindFloat64:
		if b := r.take(8, f.name); b != nil {
			v.SetFloat(math.Float64frombits(binary.BigEndian.Uint64(b)))
		}
	case kindUUID:
		if b := r.take(16, f.name); b != nil {
			v.Set(reflect.ValueOf(UUID(b)))
		}
	case kindString:
		n := r.length(1, f.name)
		if n < 0 {
			r.fail(f.name + " must not be null")
			return
		}
		v.SetString(string(r.take(n, f.name)))
	case kindNullableString:
		n := r.length(1, f.name)
		if n < 0 {
			v.SetZero()
			return
		}
		v.Set(reflect.ValueOf(new(string(r.take(n, f.name)))))
	case kindBytes:
		n := r.length(1, f.name)
		if n < 0 {
			if !f.nullable {
				r.fail(f.name + " must not be null")
			}
			v.SetZero()
			return
		}
		v.SetBytes(append([]byte{}, r.take(n, f.name)...))
	case kindArray:
		n := r.length(f.elem.minSize(), f.name)
		if n < 0 {
			if !f.nullable {
				r.fail(f.name + " must not be null")
			}
			v.SetZero()
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := 0; i < n && r.err == nil; i++ {
			readField(r, f.elem, v.Index(i), version)
		}
	default:
		readStruct(r, f.sub, v, version)
	}
}
