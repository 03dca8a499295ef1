package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Listener is one endpoint of listeners or advertised.listeners. An empty host means every address.
type Listener struct {
	Name string
	Host string
	Port uint16
}

// Address is host:port, with IPv6 hosts in brackets.
func (l Listener) Address() string {
	host := l.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(l.Port))
}

// ParseListeners reads a list of NAME://host:port. Names are compared in upper case and must be unique.
func ParseListeners(text string) ([]Listener, error) {
	var out []Listener
	for _, part := range SplitList(text) {
		name, address, ok := strings.Cut(part, "://")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form NAME://host:port", part)
		}
		l := Listener{Name: trimmedUpper(name)}
		if l.Name == "" {
			return nil, fmt.Errorf("%q has no listener name", part)
		}
		colon := strings.LastIndexByte(address, ':')
		if colon < 0 {
			return nil, fmt.Errorf("%q has no port", part)
		}
		port, err := strconv.ParseUint(address[colon+1:], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: port must be 0 to 65535", part)
		}
		l.Port = uint16(port)
		l.Host = address[:colon]
		if h, ok := strings.CutPrefix(l.Host, "["); ok {
			h, closed := strings.CutSuffix(h, "]")
			if _, err := netip.ParseAddr(h); err != nil || !closed {
				return nil, fmt.Errorf("%q: not an address in brackets", part)
			}
			l.Host = h
		} else if strings.ContainsAny(l.Host, ":/") {
			return nil, fmt.Errorf("%q: a host with colons must stand in brackets", part)
		}
		if slices.ContainsFunc(out, func(o Listener) bool { return o.Name == l.Name }) {
			return nil, fmt.Errorf("listener name %s is given twice", l.Name)
		}
		out = append(out, l)
	}
	return out, nil
}

// SecurityProtocol is how a listener's connections are protected, numbered as in registrations.
type SecurityProtocol int16

// Kafka's security protocols.
const (
	Plaintext     SecurityProtocol = 0
	SSL           SecurityProtocol = 1
	SASLPlaintext SecurityProtocol = 2
	SASLSSL       SecurityProtocol = 3
)

var securityProtocols = map[string]SecurityProtocol{
	"PLAINTEXT": Plaintext, "SSL": SSL, "SASL_PLAINTEXT": SASLPlaintext, "SASL_SSL": SASLSSL,
}

// ErrNoSecurityProtocol says that listener.security.protocol.map lacks a listener, or names no protocol for it.
var ErrNoSecurityProtocol = errors.New("no security protocol is configured for this listener")

// SecurityProtocol returns the protocol of a listener by listener.security.protocol.map. A controller
// listener that the map's default does not name is PLAINTEXT.
func (b *Broker) SecurityProtocol(listener string) (SecurityProtocol, error) {
	for _, pair := range SplitList(b.String("listener.security.protocol.map")) {
		name, protocol, _ := strings.Cut(pair, ":")
		if trimmedUpper(name) == trimmedUpper(listener) {
			if p, ok := securityProtocols[trimmedUpper(protocol)]; ok {
				return p, nil
			}
			return 0, fmt.Errorf("listener %s, protocol %q: %w", listener, protocol, ErrNoSecurityProtocol)
		}
	}
	if !b.IsSet("listener.security.protocol.map") && b.isControllerListener(listener) {
		return Plaintext, nil
	}
	return 0, fmt.Errorf("listener %s: %w", listener, ErrNoSecurityProtocol)
}

func (b *Broker) isControllerListener(name string) bool {
	return slices.ContainsFunc(b.List("controller.listener.names"), func(n string) bool { return trimmedUpper(n) == name })
}

// ClientListeners returns the endpoints that clients and brokers connect to.
func (b *Broker) ClientListeners() []Listener { return b.listeners(false) }

// ControllerListeners returns the endpoints of the controller.
func (b *Broker) ControllerListeners() []Listener { return b.listeners(true) }

func (b *Broker) listeners(controller bool) []Listener {
	all, _ := ParseListeners(b.String("listeners"))
	return slices.DeleteFunc(all, func(l Listener) bool { return b.isControllerListener(l.Name) != controller })
}

// AdvertisedListeners returns what clients are told to connect to: advertised.listeners, or else the
// client listeners. Where they bind port 0, the caller puts in the port it got.
func (b *Broker) AdvertisedListeners() []Listener {
	text, ok := b.values().Text("advertised.listeners")
	if !ok {
		return b.ClientListeners()
	}
	all, _ := ParseListeners(text)
	return slices.DeleteFunc(all, func(l Listener) bool { return b.isControllerListener(l.Name) })
}

// AdvertisedControllers returns what brokers and other controllers are told to connect to: each controller listener as
// advertised.listeners has it, or else as it is bound. Where it binds port 0, the caller puts in the port it got.
func (b *Broker) AdvertisedControllers() []Listener {
	listeners := b.ControllerListeners()
	text, _ := b.values().Text("advertised.listeners")
	advertised, _ := ParseListeners(text)
	for i, l := range listeners {
		if at := slices.IndexFunc(advertised, func(a Listener) bool { return a.Name == l.Name }); at >= 0 {
			listeners[i] = advertised[at]
		}
	}
	return listeners
}

// InterBrokerListener is the name of the listener over which brokers talk to each other.
func (b *Broker) InterBrokerListener() string {
	if name := b.String("inter.broker.listener.name"); name != "" {
		return trimmedUpper(name)
	}
	want := securityProtocols[trimmedUpper(b.String("security.inter.broker.protocol"))]
	clients := b.ClientListeners()
	for _, l := range clients {
		if p, err := b.SecurityProtocol(l.Name); err == nil && p == want {
			return l.Name
		}
	}
	if len(clients) > 0 {
		return clients[0].Name
	}
	return ""
}

// QuorumVoter is one entry of controller.quorum.voters.
type QuorumVoter struct {
	ID   int32
	Host string
	Port uint16
}

// QuorumVoters reads controller.quorum.voters (id@host:port); none when it is not given.
func (b *Broker) QuorumVoters() ([]QuorumVoter, error) {
	var out []QuorumVoter
	for _, part := range b.List("controller.quorum.voters") {
		id, address, ok := strings.Cut(part, "@")
		n, err := strconv.ParseInt(id, 10, 32)
		listeners, addressErr := ParseListeners("V://" + address)
		if !ok || err != nil || n < 0 || addressErr != nil {
			return nil, &ValueError{"controller.quorum.voters", part, "id@host:port"}
		}
		if slices.ContainsFunc(out, func(v QuorumVoter) bool { return v.ID == int32(n) }) {
			return nil, &ValueError{"controller.quorum.voters", part, "a list of distinct ids"}
		}
		out = append(out, QuorumVoter{int32(n), listeners[0].Host, listeners[0].Port})
	}
	return out, nil
}

// Duration reads a setting in the unit its name ends in.
func (b *Broker) Duration(name string) time.Duration { return b.values().Duration(name) }
