//go:build interop

package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// sameValues compares a message with the JSON that Kafka's converter made of the same bytes, field by field and by
// name: fields that change places would leave the bytes as they are. Fields that the JSON does not show must have
// their defaults.
func sameValues(message any, text json.RawMessage) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var want any
	if err := d.Decode(&want); err != nil {
		return err
	}
	return compareValue(reflect.ValueOf(message).Elem(), want, "")
}

func compareValue(v reflect.Value, want any, path string) error {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return compareText("null", want, path)
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		object, ok := want.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is a structure, Kafka says %v", path, want)
		}
		return compareStruct(v, object, path)
	case reflect.Slice:
		if v.IsNil() && want == nil {
			return nil
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if v.IsNil() {
				return compareText("null", want, path)
			}
			return compareText(base64.StdEncoding.EncodeToString(v.Bytes()), want, path)
		}
		list, ok := want.([]any)
		if !ok || len(list) != v.Len() || v.IsNil() && len(list) > 0 {
			return fmt.Errorf("%s has %d elements, Kafka says %v", path, v.Len(), want)
		}
		for i := range list {
			if err := compareValue(v.Index(i), list[i], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.Array:
		id := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(id), v)
		return compareText(base64.RawURLEncoding.EncodeToString(id), want, path)
	case reflect.Float64:
		n, ok := want.(json.Number)
		f, err := strconv.ParseFloat(string(n), 64)
		if !ok || err != nil || f != v.Float() {
			return fmt.Errorf("%s is %v, Kafka says %v", path, v.Float(), want)
		}
		return nil
	case reflect.String:
		return compareText(v.String(), want, path)
	case reflect.Bool:
		return compareText(strconv.FormatBool(v.Bool()), want, path)
	case reflect.Uint16, reflect.Uint32:
		return compareText(strconv.FormatUint(v.Uint(), 10), want, path)
	default:
		return compareText(strconv.FormatInt(v.Int(), 10), want, path)
	}
}

func compareText(have string, want any, path string) error {
	text := "null"
	if want != nil {
		text = fmt.Sprint(want)
	}
	if have != text {
		return fmt.Errorf("%s is %.100q, Kafka says %.100q", path, have, text)
	}
	return nil
}

func compareStruct(v reflect.Value, object map[string]any, path string) error {
	seen := map[string]bool{}
	for name, want := range object {
		size, isSize := strings.CutSuffix(name, "SizeInBytes")
		if isSize {
			name = size // of records only the size is shown
		}
		f, ok := fieldOf(v.Type(), name)
		if !ok {
			return fmt.Errorf("%s.%s of Kafka is not in %s", path, name, v.Type())
		}
		if seen[f] {
			return fmt.Errorf("%s.%s stands for two fields of Kafka's", path, f)
		}
		seen[f] = true
		field := v.FieldByName(f)
		if isSize {
			if err := compareText(strconv.Itoa(field.Len()), want, path+"."+f); err != nil {
				return err
			}
			continue
		}
		if err := compareValue(field, want, path+"."+f); err != nil {
			return err
		}
	}
	plain := reflect.New(v.Type())
	if d, ok := plain.Interface().(interface{ Default() }); ok {
		d.Default()
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if seen[f.Name] || f.Type == kmsgTags || f.Type == steleTags || f.Name == "Version" {
			continue
		}
		if _, text, ok := strings.Cut(f.Tag.Get("kafka"), "default="); ok && f.Type.Kind() != reflect.Bool {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return err
			}
			plain.Elem().Field(i).SetInt(n)
		}
		if unknownAt(v.Type(), f.Name) {
			plain.Elem().Field(i).SetInt(-1)
		}
		if field := v.Field(i); !field.IsZero() && !reflect.DeepEqual(field.Interface(), plain.Elem().Field(i).Interface()) &&
			!(field.Kind() == reflect.Slice && field.Len() == 0) {
			return fmt.Errorf("%s.%s of %s is %v, Kafka does not show it", path, f.Name, v.Type(), field)
		}
	}
	return nil
}
