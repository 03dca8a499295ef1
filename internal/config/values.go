package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Values reads one set of settings by name with their types: explicit values first, alternates next, then
// defaults. Asking for a name that is not defined, or with a getter of another type, is a mistake in the
// program and panics. The texts behind a Values have been validated before, or are left out where they are not valid.
type Values struct {
	table  *table
	lookup func(name string) (string, bool)
	// fallback answers for an alternate's default; nil means there is none.
	fallback func(name string) (string, bool)
}

func (v Values) def(name string) *Def {
	d := v.table.byName[name]
	if d == nil {
		panic(&UnknownError{Kind: v.table.kind, Name: name})
	}
	return d
}

// scaled converts the text of an alternate to the unit of the setting it stands for.
func scaled(text string, factor int64) string {
	if factor == 0 {
		return text
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return text
	}
	if n < 0 {
		return "-1"
	}
	return strconv.FormatInt(n*factor, 10)
}

// Text returns the value as text, and false when it is null.
func (v Values) Text(name string) (string, bool) {
	d := v.def(name)
	if text, ok := v.lookup(name); ok {
		return text, true
	}
	for _, alt := range d.Alternates {
		if text, ok := v.lookup(alt.Name); ok {
			return scaled(text, alt.Factor), true
		}
	}
	if d.Default != nil {
		return *d.Default, true
	}
	if v.fallback != nil {
		for _, alt := range d.Alternates {
			if text, ok := v.fallback(alt.Name); ok {
				return scaled(text, alt.Factor), true
			}
		}
	}
	return "", false
}

// IsSet says whether the setting, or an alternate of it, was given explicitly.
func (v Values) IsSet(name string) bool {
	d := v.def(name)
	if _, ok := v.lookup(name); ok {
		return true
	}
	for _, alt := range d.Alternates {
		if _, ok := v.lookup(alt.Name); ok {
			return true
		}
	}
	return false
}

func (v Values) value(name string) any {
	text, ok := v.Text(name)
	if !ok {
		return nil
	}
	d := v.def(name)
	parsed, err := d.parse(text)
	if err == nil {
		return parsed
	}
	// A value that another setting stands in with may be permitted there and not here; see usable for the rest.
	if d.Default == nil {
		return nil
	}
	if parsed, err = d.parse(*d.Default); err != nil {
		panic(fmt.Sprintf("config: the default of %s: %v", name, err))
	}
	return parsed
}

// String returns the value of a string, class or password setting, "" when it is null.
func (v Values) String(name string) string {
	text, _ := v.Text(name)
	if t := v.def(name).Type; t == String || t == Class {
		return strings.TrimSpace(text)
	}
	return text
}

// Long returns the value of a numeric setting, 0 when it is null.
func (v Values) Long(name string) int64 {
	switch n := v.value(name).(type) {
	case int64:
		return n
	case nil:
		return 0
	}
	panic("config: " + name + " is not a whole number")
}

// Int returns the value of a numeric setting, 0 when it is null.
func (v Values) Int(name string) int { return int(v.Long(name)) }

// Double returns the value of a double setting, 0 when it is null.
func (v Values) Double(name string) float64 {
	switch n := v.value(name).(type) {
	case float64:
		return n
	case nil:
		return 0
	}
	panic("config: " + name + " is not a double")
}

// Bool returns the value of a boolean setting, false when it is null.
func (v Values) Bool(name string) bool {
	switch b := v.value(name).(type) {
	case bool:
		return b
	case nil:
		return false
	}
	panic("config: " + name + " is not a boolean")
}

// List returns the parts of a list setting, none when it is null.
func (v Values) List(name string) []string {
	switch l := v.value(name).(type) {
	case []string:
		return l
	case nil:
		return nil
	}
	panic("config: " + name + " is not a list")
}

// Duration returns the value of a setting whose name ends in its unit (.ms, .seconds, .minutes, .hours, .days).
// Negative values, which stand for "no limit" and the like, come back as a negative Duration; values
// beyond what a Duration holds (some 292 years) come back as the longest one.
func (v Values) Duration(name string) time.Duration {
	unit := time.Millisecond
	for suffix, u := range map[string]time.Duration{".seconds": time.Second, ".minutes": time.Minute, ".hours": time.Hour, ".days": 24 * time.Hour} {
		if strings.HasSuffix(name, suffix) {
			unit = u
		}
	}
	const longest = time.Duration(1<<63 - 1)
	n := v.Long(name)
	if n > int64(longest/unit) {
		return longest
	}
	return time.Duration(n) * unit
}
