package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// object is a JSON object that keeps the order of its fields.
type object []field

type field struct {
	name  string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := marshal(f.value)
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

// marshal is json.Marshal without the escapes that only HTML needs.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// plain turns a message into JSON values: fields in their order on the wire, in lower camel case; ids in
// Kafka's base64; tags that the codec does not know as a list of key and bytes.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem())
	case reflect.Struct:
		if tags, ok := v.Interface().(kmsg.Tags); ok {
			var list []any
			tags.Each(func(key uint32, value []byte) {
				list = append(list, object{{"tag", key}, {"bytes", fmt.Sprintf("%x", value)}})
			})
			return list
		}
		var o object
		for i := range v.NumField() {
			f := v.Type().Field(i)
			value := plain(v.Field(i))
			switch {
			case f.Name == "Version":
				continue
			case f.Name == "UnknownTags" && reflect.ValueOf(value).Len() == 0:
				continue
			}
			o = append(o, field{lowerCamel(f.Name), value})
		}
		return o
	case reflect.Array:
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return base64.RawURLEncoding.EncodeToString(b)
	case reflect.Slice:
		if v.IsNil() {
			return nil
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return fmt.Sprintf("%x", v.Bytes())
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int()
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint()
	default:
		return v.Interface()
	}
}

// lowerCamel makes NodeID nodeId and ThrottleMillis throttleMillis.
func lowerCamel(name string) string {
	name = strings.ReplaceAll(name, "ID", "Id")
	r := []rune(name)
	r[0] = unicode.ToLower(r[0])
	return string(r)
}

// pretty is the file form: indented, one newline at the end.
func pretty(v any) ([]byte, error) {
	b, err := marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", " "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
