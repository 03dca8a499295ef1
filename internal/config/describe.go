package config

import (
	"slices"
	"strings"
)

// Source says where an effective value came from, numbered as in DescribeConfigs responses.
type Source int8

// The sources of DescribeConfigs.
const (
	UnknownSource        Source = 0
	DynamicTopic         Source = 1
	DynamicBroker        Source = 2
	DynamicDefaultBroker Source = 3
	StaticBroker         Source = 4
	Default              Source = 5
	DynamicBrokerLogger  Source = 6
	DynamicClientMetrics Source = 7
	DynamicGroup         Source = 8
)

// Synonym is one of the places a value may come from, under the name it has there. A nil Value is null.
type Synonym struct {
	Name   string
	Value  *string
	Source Source
}

// Entry is one setting as DescribeConfigs shows it. Value is nil when it is null or sensitive; Synonyms are
// all places with a value, the effective one first.
type Entry struct {
	Name      string
	Value     *string
	Source    Source
	Synonyms  []Synonym
	ReadOnly  bool
	Sensitive bool
	Type      Type
	Doc       string
}

// Layers are the dynamic broker settings under which a topic or group value is looked up.
type Layers struct {
	// Broker holds the dynamic settings of one broker, Cluster those of all.
	Broker, Cluster map[string]string
	// Static is the broker's own configuration, nil for defaults alone.
	Static *Broker
}

// synonyms lists where broker settings give a value for d, highest precedence first. Within one layer the
// names stand in their order.
func (l Layers) synonyms(names []string, sensitive bool) []Synonym {
	var out []Synonym
	add := func(name string, value string, source Source) {
		s := Synonym{Name: name, Source: source}
		if !sensitive {
			s.Value = new(value)
		}
		out = append(out, s)
	}
	for _, layer := range []struct {
		values map[string]string
		source Source
	}{{l.Broker, DynamicBroker}, {l.Cluster, DynamicDefaultBroker}} {
		for _, name := range names {
			if v, ok := layer.values[name]; ok && brokerTable.usable(name, v) {
				add(name, v, layer.source)
			}
		}
	}
	if l.Static != nil {
		for _, name := range names {
			if g, ok := l.Static.given[name]; ok {
				add(name, g.value, StaticBroker)
			}
		}
	}
	// The defaults of other names stand behind what was given; alone they show only behind the first name's own.
	for i, name := range names {
		d := brokerTable.byName[name]
		if d == nil || d.onlyDynamic() {
			continue // a throttle is set or is not: no default stands behind it
		}
		if d.Default != nil && (i == 0 || len(out) > 0) {
			add(name, *d.Default, Default)
		}
	}
	return out
}

// usable says whether a stored text is a value. Who alters broker settings at a controller, which knows no
// broker's, or brings a metadata log along may have stored anything: what is no value counts as not set.
func (t *table) usable(name, text string) bool {
	d := t.byName[name]
	return d == nil || d.Validate(text) == nil
}

// lookup finds the first explicit value of a broker setting.
func (l Layers) lookup(name string) (string, bool) {
	if v, ok := l.Broker[name]; ok && brokerTable.usable(name, v) {
		return v, true
	}
	if v, ok := l.Cluster[name]; ok && brokerTable.usable(name, v) {
		return v, true
	}
	if l.Static != nil {
		if g, ok := l.Static.given[name]; ok {
			return g.value, true
		}
	}
	return "", false
}

// onlyDynamic says that a broker setting is set while the broker runs or not at all, as the throttles are.
func (d *Def) onlyDynamic() bool { return d.Internal && d.Scope == ClusterWide }

func brokerDefault(name string) (string, bool) {
	if d := brokerTable.byName[name]; d != nil && d.Default != nil {
		return *d.Default, true
	}
	return "", false
}

// resource resolves the values of a topic or group: its own overrides, then the broker settings that stand in.
func (l Layers) resource(t *table, overrides map[string]string) Values {
	return Values{
		table: t,
		lookup: func(name string) (string, bool) {
			if v, ok := overrides[name]; ok && t.usable(name, v) {
				return v, true
			}
			// A setting that has the same name at the broker is looked up there through its alternates.
			if len(t.aliasOf[name]) > 0 {
				return l.lookup(name)
			}
			return "", false
		},
		fallback: brokerDefault,
	}
}

// Topic returns the effective settings of a topic with these overrides.
func (l Layers) Topic(overrides map[string]string) Values { return l.resource(topicTable, overrides) }

// Group returns the effective settings of a group with these overrides.
func (l Layers) Group(overrides map[string]string) Values { return l.resource(groupTable, overrides) }

// EffectiveBroker returns the settings of a running broker: dynamic ones over the static ones.
func (l Layers) EffectiveBroker() Values {
	return Values{table: brokerTable, lookup: l.lookup, fallback: brokerDefault}
}

// DescribeTopic lists every setting of a topic, by name, with where its value comes from.
func (l Layers) DescribeTopic(overrides map[string]string) []Entry {
	return l.describe(topicTable, overrides, DynamicTopic, l.Topic(overrides))
}

// DescribeGroup lists every setting of a group, by name, with where its value comes from.
func (l Layers) DescribeGroup(overrides map[string]string) []Entry {
	return l.describe(groupTable, overrides, DynamicGroup, l.Group(overrides))
}

func (l Layers) describe(t *table, overrides map[string]string, own Source, values Values) []Entry {
	var out []Entry
	for _, d := range t.sorted {
		if d.Internal {
			continue
		}
		e := Entry{Name: d.Name, Source: Default, Sensitive: d.Sensitive(), Type: d.Type, Doc: d.Doc}
		if v, ok := overrides[d.Name]; ok && t.usable(d.Name, v) {
			e.Synonyms = append(e.Synonyms, Synonym{Name: d.Name, Value: new(v), Source: own})
		}
		if names := alternateNames(d); len(names) > 0 {
			e.Synonyms = append(e.Synonyms, l.synonyms(names, d.Sensitive())...)
		} else if t == groupTable && d.Default != nil {
			e.Synonyms = append(e.Synonyms, Synonym{Name: d.Name, Value: d.Default, Source: Default})
		}
		if len(e.Synonyms) > 0 {
			e.Source = e.Synonyms[0].Source
		}
		if text, ok := values.Text(d.Name); ok && !d.Sensitive() {
			e.Value = new(text)
		}
		out = append(out, e)
	}
	return out
}

func alternateNames(d *Def) []string {
	names := make([]string, 0, len(d.Alternates))
	for _, alt := range d.Alternates {
		names = append(names, alt.Name)
	}
	return names
}

// DescribeBroker lists every setting of a broker, by name, with where its value comes from. Names that
// were given and are not known are listed too, as sensitive strings: what they mean is not ours to say.
func (l Layers) DescribeBroker() []Entry {
	var out []Entry
	for _, d := range brokerTable.sorted {
		// Internal settings, and throttles that are only ever set while the broker runs, show when they are set.
		if _, set := l.lookup(d.Name); d.Internal && !set {
			continue
		}
		e := Entry{Name: d.Name, Source: Default, ReadOnly: d.Scope == ReadOnly, Sensitive: d.Sensitive(), Type: d.Type, Doc: d.Doc}
		e.Synonyms = l.synonyms(append([]string{d.Name}, alternateNames(d)...), d.Sensitive())
		if len(e.Synonyms) > 0 {
			e.Source = e.Synonyms[0].Source
		}
		// The value is that of this very name: what an alternate says shows among the synonyms.
		text, ok := l.lookup(d.Name)
		if !ok && d.Default != nil {
			text, ok = *d.Default, true
		}
		if ok && !d.Sensitive() {
			e.Value = new(text)
		}
		out = append(out, e)
	}
	unknown := map[string]bool{}
	for name := range l.Broker {
		unknown[name] = brokerTable.byName[name] == nil
	}
	for name := range l.Cluster {
		unknown[name] = brokerTable.byName[name] == nil
	}
	if l.Static != nil {
		for name := range l.Static.given {
			unknown[name] = brokerTable.byName[name] == nil
		}
	}
	for name, isUnknown := range unknown {
		if isUnknown {
			synonyms := l.synonyms([]string{name}, true)
			_, dynamic := l.Static.Given(name)
			out = append(out, Entry{Name: name, Source: synonyms[0].Source, Synonyms: synonyms, ReadOnly: dynamic, Sensitive: true, Type: UnknownType})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// DescribeClusterBroker lists the dynamic settings of all brokers (config resource broker with an empty name).
func DescribeClusterBroker(cluster map[string]string) []Entry {
	var out []Entry
	for name, value := range cluster {
		e := Entry{Name: name, Source: DynamicDefaultBroker, Sensitive: true, Type: UnknownType}
		if d := brokerTable.byName[name]; d != nil {
			e.Sensitive, e.Type, e.Doc, e.ReadOnly = d.Sensitive(), d.Type, d.Doc, d.Scope == ReadOnly
		}
		s := Synonym{Name: name, Source: DynamicDefaultBroker}
		if !e.Sensitive {
			e.Value, s.Value = new(value), new(value)
		}
		e.Synonyms = []Synonym{s}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return out
}
