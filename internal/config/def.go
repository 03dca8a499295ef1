// Package config holds every configuration name that Stele knows: one table of definitions for broker,
// topic and group settings, from which parsing, validation and DescribeConfigs all follow. Names, types
// and defaults are Apache Kafka's; the few that are ours (http.listen, cluster.id) or whose default
// differs for a node that runs alone say so in their doc line.
//
// Everything here is a value or a pure function: no file, environment or clock is read. Tables are built
// once at start and never change, so every function may be called concurrently.
package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Type is the type of a configuration value, numbered as in DescribeConfigs responses.
type Type int8

// The types of DescribeConfigs.
const (
	UnknownType Type = 0
	Boolean     Type = 1
	String      Type = 2
	Int         Type = 3
	Short       Type = 4
	Long        Type = 5
	Double      Type = 6
	List        Type = 7
	Class       Type = 8
	Password    Type = 9
)

var typeNames = [...]string{"unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password"}

func (t Type) String() string {
	if t < 0 || int(t) >= len(typeNames) {
		return typeNames[0]
	}
	return typeNames[t]
}

// Scope says how a broker setting may change while the broker runs.
type Scope int8

const (
	// ReadOnly settings need a restart.
	ReadOnly Scope = iota
	// PerBroker settings may be altered for one broker only.
	PerBroker
	// ClusterWide settings may be altered for one broker or for all.
	ClusterWide
)

func (s Scope) String() string {
	return [...]string{"read-only", "per-broker", "cluster-wide"}[s]
}

// Def is one definition. A nil Default means null: not set and no value.
type Def struct {
	Name    string
	Type    Type
	Default *string
	Check   Check
	Scope   Scope
	Doc     string
	// Internal settings are known and parsed but not listed.
	Internal bool
	// Accepted marks a setting of Kafka's that Stele knows and describes, and that has no effect here: it means
	// nothing to Stele, or the part that it is for is not there yet.
	Accepted bool
	// Alternates are other names of the same setting, tried in order when this one is not set.
	Alternates []Alternate
}

// Alternate is a second name under which a setting may be given, in another unit: the value of the
// setting is the alternate's times Factor (0 means the text is taken as it is).
type Alternate struct {
	Name   string
	Factor int64
}

// Sensitive says that the value must not be shown.
func (d *Def) Sensitive() bool { return d.Type == Password }

// Check is the permitted range of a value: its text form, and the test on the parsed value (bool, int64,
// float64, string or []string). The zero Check permits everything.
type Check struct {
	Text string
	ok   func(v any) bool
}

func atLeast(min int64) Check {
	return Check{fmt.Sprintf("[%d,...]", min), func(v any) bool {
		switch n := v.(type) {
		case int64:
			return n >= min
		case float64:
			return n >= float64(min)
		}
		return true
	}}
}

func between(min, max int64) Check {
	return Check{fmt.Sprintf("[%d,...,%d]", min, max), func(v any) bool {
		switch n := v.(type) {
		case int64:
			return n >= min && n <= max
		case float64:
			return n >= float64(min) && n <= float64(max)
		}
		return true
	}}
}

// eitherOrBetween permits one number outside a range, such as "the codec's own default level".
func eitherOrBetween(alone, min, max int64) Check {
	return Check{fmt.Sprintf("[%d,...,%d] or %d", min, max, alone), func(v any) bool {
		n, isInt := v.(int64)
		return !isInt || n == alone || n >= min && n <= max
	}}
}

func oneOf(words ...string) Check {
	return Check{"[" + strings.Join(words, ", ") + "]", func(v any) bool {
		switch s := v.(type) {
		case string:
			return slices.Contains(words, s)
		case []string:
			for _, w := range s {
				if !slices.Contains(words, w) {
					return false
				}
			}
		}
		return true
	}}
}

var notEmpty = Check{"not empty", func(v any) bool {
	switch s := v.(type) {
	case string:
		return s != ""
	case []string:
		return len(s) > 0
	}
	return true
}}

var partitionAndBroker = regexp.MustCompile(`^[0-9]+:[0-9]+$`)

var replicaList = Check{"* or partition:broker, ...", func(v any) bool {
	list, ok := v.([]string)
	if !ok || len(list) == 1 && list[0] == "*" {
		return true
	}
	return !slices.ContainsFunc(list, func(s string) bool { return !partitionAndBroker.MatchString(s) })
}}

// ValueError says that a value does not fit its definition: Allowed is the permitted range, or the type.
type ValueError struct {
	Name    string
	Value   string
	Allowed string
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("Invalid value %s for configuration %s: must be %s", e.Value, e.Name, e.Allowed)
}

// UnknownError says that no definition has this name.
type UnknownError struct {
	Kind string // "topic", "broker" or "group"
	Name string
}

func (e *UnknownError) Error() string { return "Unknown " + e.Kind + " config name: " + e.Name }

// CrossError says that two values do not go together.
type CrossError struct {
	Name   string
	Value  string
	Reason string
}

func (e *CrossError) Error() string {
	return fmt.Sprintf("Invalid value %s for configuration %s: %s", e.Value, e.Name, e.Reason)
}

// parse turns text into the typed value of d: bool, int64 (int, short, long), float64, string or []string.
func (d *Def) parse(text string) (any, error) {
	trimmed := strings.TrimSpace(text)
	bad := func(allowed string) error {
		if d.Sensitive() {
			text = "[hidden]"
		}
		return &ValueError{Name: d.Name, Value: text, Allowed: allowed}
	}
	var v any
	switch d.Type {
	case Boolean:
		switch {
		case strings.EqualFold(trimmed, "true"):
			v = true
		case strings.EqualFold(trimmed, "false"):
			v = false
		default:
			return nil, bad("true or false")
		}
	case Int, Short, Long:
		bits := map[Type]int{Int: 32, Short: 16, Long: 64}[d.Type]
		n, err := strconv.ParseInt(trimmed, 10, bits)
		if err != nil {
			return nil, bad(fmt.Sprintf("a number of type %s", d.Type))
		}
		v = n
	case Double:
		f, err := strconv.ParseFloat(trimmed, 64)
		if err != nil || math.IsNaN(f) {
			return nil, bad("a number of type double")
		}
		v = f
	case List:
		v = SplitList(text)
	case String, Class:
		v = trimmed
	default:
		v = text
	}
	if d.Check.ok != nil && !d.Check.ok(v) {
		return nil, bad(d.Check.Text)
	}
	return v, nil
}

// Validate says whether text is a value of d.
func (d *Def) Validate(text string) error {
	_, err := d.parse(text)
	return err
}

// SplitList splits a list value at its commas and trims each part. An empty text is an empty list.
func SplitList(text string) []string {
	if strings.TrimSpace(text) == "" {
		return []string{}
	}
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// table is a set of definitions by name, and their order by name.
type table struct {
	kind   string
	byName map[string]*Def
	sorted []*Def
	// aliasOf maps an alternate's name to the definitions that read it.
	aliasOf map[string][]*Def
}

func newTable(kind string, groups ...[]Def) *table {
	t := &table{kind: kind, byName: map[string]*Def{}, aliasOf: map[string][]*Def{}}
	for _, defs := range groups {
		for i := range defs {
			d := &defs[i]
			if t.byName[d.Name] != nil {
				panic("config: " + kind + " setting defined twice: " + d.Name)
			}
			t.byName[d.Name] = d
			t.sorted = append(t.sorted, d)
		}
	}
	slices.SortFunc(t.sorted, func(a, b *Def) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range t.sorted {
		if d.Default != nil {
			if err := d.Validate(*d.Default); err != nil {
				panic("config: default of " + d.Name + ": " + err.Error())
			}
		}
		for _, alt := range d.Alternates {
			t.aliasOf[alt.Name] = append(t.aliasOf[alt.Name], d)
		}
	}
	return t
}

// validate checks a whole set of explicit values.
func (t *table) validate(values map[string]string) error {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d := t.byName[name]
		if d == nil {
			return &UnknownError{Kind: t.kind, Name: name}
		}
		if err := d.Validate(values[name]); err != nil {
			return err
		}
	}
	return nil
}

var brokerTable = newTable("broker", coreDefs, listenerDefs, logDefs, replicationDefs, groupCoordinatorDefs,
	transactionDefs, quotaDefs, tierDefs, quorumDefs, acceptedDefs)
var topicTable = newTable("topic", topicDefs)
var groupTable = newTable("group", groupDefs)

// BrokerDef returns the definition of a broker setting.
func BrokerDef(name string) (*Def, bool) { d, ok := brokerTable.byName[name]; return d, ok }

// TopicDef returns the definition of a topic setting.
func TopicDef(name string) (*Def, bool) { d, ok := topicTable.byName[name]; return d, ok }

// GroupDef returns the definition of a group setting.
func GroupDef(name string) (*Def, bool) { d, ok := groupTable.byName[name]; return d, ok }

// BrokerDefs returns all broker settings by name. The slice and its elements must not be changed.
func BrokerDefs() []*Def { return brokerTable.sorted }

// TopicDefs returns all topic settings by name. The slice and its elements must not be changed.
func TopicDefs() []*Def { return topicTable.sorted }

// GroupDefs returns all group settings by name. The slice and its elements must not be changed.
func GroupDefs() []*Def { return groupTable.sorted }
