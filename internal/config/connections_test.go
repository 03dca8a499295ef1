package config

import (
	"errors"
	"maps"
	"testing"
)

// max.connections.per.ip.overrides is a list of addresses, IPv6 ones too, each with its limit; what is not is
// refused at start.
func TestConnectionsPerIPOverrides(t *testing.T) {
	t.Parallel()
	const name = "max.connections.per.ip.overrides="
	b, _, err := Parse(Sources{Set: []string{name + "127.0.0.1:100, ::1:5,[fe80::1]:0,::ffff:10.0.0.1:7"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"127.0.0.1": 100, "::1": 5, "fe80::1": 0, "10.0.0.1": 7}
	if got, err := b.ConnectionsPerIPOverrides(); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, wrong := range []string{"127.0.0.1", "example.com:5", "127.0.0.1:-1", "127.0.0.1:x"} {
		var value *ValueError
		if _, _, err := Parse(Sources{Set: []string{name + wrong}}); !errors.As(err, &value) || value.Value != wrong {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// A listener whose security protocol is not configured is refused, not taken for one without protection.
func TestListenersNeedASecurityProtocol(t *testing.T) {
	t.Parallel()
	_, _, err := Parse(Sources{Set: []string{"listeners=INSIDE://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"}})
	var cross *CrossError
	if !errors.As(err, &cross) || cross.Name != "listener.security.protocol.map" {
		t.Errorf("got %v", err)
	}
}
