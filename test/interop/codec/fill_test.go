//go:build interop

package codec

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// filler makes random values for the fields of messages: nulls, empties and extremes more often than chance would.
type filler struct {
	*rand.Rand
	version int16
	strange bool // with tagged fields that no schema has
}

var (
	kmsgTags  = reflect.TypeFor[kmsg.Tags]()
	steleTags = reflect.TypeFor[metadata.Tags]()

	fillStrings = []string{"", "a", "topic-1", "été", "漢字", "😀", "\x00", "a b\tc\n\"\\",
		strings.Repeat("x", 127), strings.Repeat("y", 128), strings.Repeat("z", 300)}
	fillLengths = []int{0, 1, 5, 127, 128, 1000}
	fillTags    = []uint32{57, 127, 128, 9999, 1 << 20, math.MaxInt32 - 1}
	fillFloats  = []float64{0, math.Copysign(0, -1), 1, -1.5, math.MaxFloat64, math.SmallestNonzeroFloat64}
)

// fill sets v and all that is in it. Version, of a message, is left alone.
func (r *filler) fill(v reflect.Value, depth int) {
	switch {
	case v.Type() == kmsgTags:
		tags := v.Addr().Interface().(*kmsg.Tags)
		r.tags(tags.Set)
		return
	case v.Type() == steleTags:
		found := map[uint32][]byte{}
		r.tags(func(tag uint32, value []byte) { found[tag] = value })
		var tags metadata.Tags
		for _, tag := range fillTags { // they rise
			if value, ok := found[tag]; ok {
				tags = append(tags, metadata.Tag{Number: tag, Value: value})
			}
		}
		v.Set(reflect.ValueOf(tags))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if d, ok := v.Addr().Interface().(interface{ Default() }); ok {
			d.Default() // of what is left out below
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name := v.Type().Name() + "." + f.Name
			if !f.IsExported() || f.Name == "Version" && depth == 0 || r.version < newFields[name] {
				continue
			}
			r.fill(v.Field(i), depth+1)
			if neverNull[name] && v.Field(i).IsNil() {
				v.Field(i).Set(reflect.MakeSlice(f.Type, 0, 0))
			}
		}
	case reflect.Pointer:
		if r.IntN(4) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			r.fill(v.Elem(), depth)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if r.IntN(4) > 0 {
				v.SetBytes(r.bytes())
			}
			return
		}
		if r.IntN(5) == 0 {
			return
		}
		n := r.IntN(4)
		if depth > 4 {
			n = r.IntN(2)
		}
		if depth <= 2 && r.IntN(40) == 0 {
			n, depth = 130, depth+2 // more than a compact length says in one byte
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			r.fill(v.Index(i), depth+1)
		}
	case reflect.Array:
		if r.IntN(4) > 0 {
			for i := range v.Len() {
				v.Index(i).SetUint(r.Uint64() & 0xff)
			}
		}
	case reflect.String:
		if r.IntN(200) == 0 {
			v.SetString(strings.Repeat("w", math.MaxInt16))
		} else {
			v.SetString(fillStrings[r.IntN(len(fillStrings))])
		}
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Float64:
		v.SetFloat(append(fillFloats, r.NormFloat64())[r.IntN(len(fillFloats)+1)])
	case reflect.Uint16, reflect.Uint32:
		v.SetUint([]uint64{0, 1, math.MaxUint16, r.Uint64() & math.MaxUint16}[r.IntN(4)])
	default:
		bits := v.Type().Bits()
		v.SetInt([]int64{math.MinInt64 >> (64 - bits), math.MaxInt64 >> (64 - bits), 0, -1, r.Int64N(100), int64(r.Uint64()) >> (64 - bits)}[r.IntN(6)])
	}
}

func (r *filler) bytes() []byte {
	b := make([]byte, fillLengths[r.IntN(len(fillLengths))])
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (r *filler) tags(set func(tag uint32, value []byte)) {
	for r.strange && r.IntN(4) == 0 {
		b := r.bytes()
		set(fillTags[r.IntN(len(fillTags))], b[:min(len(b), 200)])
	}
}
