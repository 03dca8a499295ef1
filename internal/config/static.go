package config

import (
	"fmt"
	"slices"
	"strings"
)

// Broker is a node's own configuration, as given at start. It never changes.
type Broker struct {
	given map[string]given
}

// Given returns what was given for exactly this name, not looking at alternates or defaults. It may be
// called on a nil Broker, which was given nothing.
func (b *Broker) Given(name string) (string, bool) {
	if b == nil {
		return "", false
	}
	g, ok := b.given[name]
	return g.value, ok
}

// values resolves settings without dynamic ones.
func (b *Broker) values() Values { return Layers{Static: b}.EffectiveBroker() }

// Values returns the typed getters of this configuration.
func (b *Broker) Values() Values { return b.values() }

// validate checks every given value and collects warnings on names that are not known.
func (b *Broker) validate() ([]Warning, error) {
	var warnings []Warning
	names := make([]string, 0, len(b.given))
	for name := range b.given {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		g := b.given[name]
		d := brokerTable.byName[name]
		if d == nil {
			warnings = append(warnings, Warning{g.source, name, "not a known setting; kept, without effect"})
			continue
		}
		if err := d.Validate(g.value); err != nil {
			return warnings, &SourceError{g.source, err}
		}
		if d.Accepted {
			warnings = append(warnings, Warning{g.source, name, "accepted for compatibility, without effect"})
		}
	}
	for _, d := range brokerTable.sorted {
		for _, alt := range d.Alternates {
			g, ok := b.given[alt.Name]
			if !ok {
				continue
			}
			if err := d.Validate(scaled(g.value, alt.Factor)); err != nil {
				return warnings, &SourceError{g.source, fmt.Errorf("%s: %w", alt.Name, err)}
			}
		}
	}
	return warnings, b.crossCheck()
}

// crossCheck looks at the settings that must agree with each other.
func (b *Broker) crossCheck() error {
	fault := func(name, reason string) error {
		text, _ := b.values().Text(name)
		source := "default"
		if g, ok := b.given[name]; ok {
			source = g.source
		}
		return &SourceError{source, &CrossError{name, text, reason}}
	}
	roles := b.List("process.roles")
	for i, r := range roles {
		if slices.Contains(roles[:i], r) {
			return fault("process.roles", "names "+r+" twice")
		}
	}
	listeners, err := ParseListeners(b.String("listeners"))
	if err != nil {
		return fault("listeners", err.Error())
	}
	names := map[string]bool{}
	for _, l := range listeners {
		names[l.Name] = true
		if _, err := b.SecurityProtocol(l.Name); err != nil {
			return fault("listener.security.protocol.map", err.Error())
		}
	}
	controllers := b.List("controller.listener.names")
	if slices.Contains(roles, "controller") {
		if len(controllers) == 0 {
			return fault("controller.listener.names", "must name the controller's listener when process.roles contains controller")
		}
		if !slices.ContainsFunc(controllers, func(n string) bool { return names[n] }) {
			return fault("controller.listener.names", "must name at least one of listeners")
		}
	}
	if slices.Contains(roles, "broker") {
		if !slices.ContainsFunc(listeners, func(l Listener) bool { return !slices.Contains(controllers, l.Name) }) {
			return fault("listeners", "must have at least one listener for clients when process.roles contains broker")
		}
	}
	if text, ok := b.values().Text("advertised.listeners"); ok {
		advertised, err := ParseListeners(text)
		if err != nil {
			return fault("advertised.listeners", err.Error())
		}
		for _, l := range advertised {
			if !names[l.Name] {
				return fault("advertised.listeners", "names listener "+l.Name+", which is not in listeners")
			}
			if l.Host == "0.0.0.0" || l.Host == "::" {
				return fault("advertised.listeners", "must not advertise the unspecified address "+l.Host)
			}
		}
	}
	if _, err := b.ConnectionsPerIPOverrides(); err != nil {
		return &SourceError{b.given["max.connections.per.ip.overrides"].source, err}
	}
	for _, bound := range []struct{ low, high, reason string }{
		{"group.min.session.timeout.ms", "group.max.session.timeout.ms", "must not be above group.max.session.timeout.ms"},
		{"broker.heartbeat.interval.ms", "broker.session.timeout.ms", "must not be above broker.session.timeout.ms"},
		{"group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", "must not be above group.consumer.session.timeout.ms"},
	} {
		if b.Long(bound.low) > b.Long(bound.high) {
			return fault(bound.low, bound.reason)
		}
	}
	return nil
}

// Int, Long, Double, Bool, String, List and Duration read one setting; see Values for what they do on
// null and on mistakes.
func (b *Broker) Int(name string) int { return b.values().Int(name) }

// Long reads a whole number.
func (b *Broker) Long(name string) int64 { return b.values().Long(name) }

// Double reads a number.
func (b *Broker) Double(name string) float64 { return b.values().Double(name) }

// Bool reads a boolean.
func (b *Broker) Bool(name string) bool { return b.values().Bool(name) }

// String reads a text.
func (b *Broker) String(name string) string { return b.values().String(name) }

// List reads a list.
func (b *Broker) List(name string) []string { return b.values().List(name) }

// IsSet says whether the setting, or an alternate of it, was given.
func (b *Broker) IsSet(name string) bool { return b.values().IsSet(name) }

// LogDirs returns the data directories, and MetadataDir the one that holds the metadata log.
func (b *Broker) LogDirs() []string { return b.List("log.dirs") }

// MetadataDir is metadata.log.dir, or else the first data directory.
func (b *Broker) MetadataDir() string {
	if dir := b.String("metadata.log.dir"); dir != "" {
		return dir
	}
	return b.LogDirs()[0]
}

// HasRole says whether process.roles names this role: broker or controller.
func (b *Broker) HasRole(role string) bool { return slices.Contains(b.List("process.roles"), role) }

// trimmedUpper is how listener names are compared.
func trimmedUpper(s string) string { return strings.ToUpper(strings.TrimSpace(s)) }

// Defaults is the configuration of a node that was given nothing.
func Defaults() *Broker { return &Broker{given: map[string]given{}} }
