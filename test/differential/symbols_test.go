//go:build interop

package differential

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"sync"
)

// A request is written once, with symbols where the two servers have ids of their own: topic ids, member ids, producer
// ids, fetch session ids. Just before it is sent to a server each symbol becomes what that server had said.

// symbols numbers what ids stand for.
type symbols struct {
	mu    sync.Mutex
	names []string
	index map[string]int
}

var known = &symbols{index: map[string]int{}}

func (s *symbols) number(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.index[name]
	if !ok {
		n = len(s.names)
		s.names = append(s.names, name)
		s.index[name] = n
	}
	return n
}

func (s *symbols) name(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n >= len(s.names) {
		return ""
	}
	return s.names[n]
}

const (
	topicIDMark   = "\xfetopicid"
	producerBase  = int64(0x5349_4d00_0000_0000)
	sessionBase   = int32(0x5349_0000)
	stringLeft    = "\u00a7"
	clusterSymbol = stringLeft + "cluster" + stringLeft
)

// topicID stands for the id of the topic of that name, the last one a server told.
func topicID(topic string) [16]byte {
	var id [16]byte
	copy(id[:], topicIDMark)
	binary.BigEndian.PutUint32(id[12:], uint32(known.number("topic:"+topic)))
	return id
}

// member stands for the id of a member of a group.
func member(name string) string { return stringLeft + "member:" + name + stringLeft }

// producer stands for a producer id.
func producer(name string) int64 { return producerBase + int64(known.number("producer:"+name)) }

// session stands for the id of a fetch session.
func session(name string) int32 { return sessionBase + int32(known.number("session:"+name)) }

// ids is what one server told, by symbol.
type ids struct {
	topics  map[string][16]byte
	strings map[string]string
	numbers map[string]int64
}

func newIDs() *ids {
	return &ids{topics: map[string][16]byte{}, strings: map[string]string{}, numbers: map[string]int64{}}
}

// resolve is a deep copy of a request with the symbols replaced. A symbol that stands for nothing becomes an id that no
// server knows.
func (s *ids) resolve(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(s.resolve(v.Elem()).Addr())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := out.Field(i); f.CanSet() && v.Type().Field(i).Name != "UnknownTags" {
				f.Set(s.resolve(v.Field(i)))
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			break
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			out.SetBytes(s.records(append([]byte{}, v.Bytes()...)))
			break
		}
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(s.resolve(v.Index(i)))
		}
	case reflect.Array:
		if v.Len() == 16 && v.Type().Elem().Kind() == reflect.Uint8 {
			id := v.Interface().([16]byte)
			if strings.HasPrefix(string(id[:]), topicIDMark) {
				name := strings.TrimPrefix(known.name(int(binary.BigEndian.Uint32(id[12:]))), "topic:")
				real, ok := s.topics[name]
				if !ok {
					copy(real[:], "no such topic")
					copy(real[12:], id[12:]) // of each unknown topic its own
				}
				out.Set(reflect.ValueOf(real))
			}
		}
	case reflect.String:
		out.SetString(s.text(v.String()))
	case reflect.Int64:
		out.SetInt(s.number(v.Int()))
	case reflect.Int32:
		if n := v.Int() - int64(sessionBase); n >= 0 && n < 1<<16 {
			real, ok := s.numbers[known.name(int(n))]
			if !ok {
				real = 1234567
			}
			out.SetInt(real)
		}
	}
	return out
}

func (s *ids) text(t string) string {
	if strings.HasPrefix(t, stringLeft) && strings.HasSuffix(t, stringLeft) && len(t) > 2*len(stringLeft) {
		name := strings.Trim(t, stringLeft)
		if real, ok := s.strings[name]; ok {
			return real
		}
		return "nobody-" + fmt.Sprintf("%032d", known.number(name))
	}
	return t
}

func (s *ids) number(n int64) int64 {
	if i := n - producerBase; i >= 0 && i < 1<<24 {
		if real, ok := s.numbers[known.name(int(i))]; ok {
			return real
		}
		return 987654321 + i
	}
	return n
}

// records replaces producer ids in batches whose CRC holds, and sets it anew.
func (s *ids) records(b []byte) []byte {
	for rest := b; len(rest) >= 61; {
		size := int(binary.BigEndian.Uint32(rest[8:])) + 12
		if rest[16] != 2 || size < 61 || size > len(rest) {
			break
		}
		one := rest[:size]
		if id := int64(binary.BigEndian.Uint64(one[43:])); s.number(id) != id {
			sealed := checksum(one) == binary.BigEndian.Uint32(one[17:])
			binary.BigEndian.PutUint64(one[43:], uint64(s.number(id)))
			if sealed {
				binary.BigEndian.PutUint32(one[17:], checksum(one))
			}
		}
		rest = rest[size:]
	}
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(batch []byte) uint32 { return crc32.Checksum(batch[21:], castagnoli) }
