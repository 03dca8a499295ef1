package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Java's rules for properties: comments, separators, escapes and continued lines.
func TestParseProperties(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, key, value string }{
		{"a=b", "a", "b"},
		{"  a  =  b ", "a", "b "},
		{"a:b", "a", "b"},
		{"a b", "a", "b"},
		{"a : = b", "a", "= b"},
		{"a", "a", ""},
		{"# x\n! y\n\na=b", "a", "b"},
		{"a=b\\\n   c", "a", "bc"},
		{"a=b\\\\\nc=d", "a", `b\`},
		{`a\=b=c`, "a=b", "c"},
		{`a\ b=c`, "a b", "c"},
		{`a=C:\\dir\tx`, "a", "C:\\dir\tx"},
		{`a=\u00e9\uD83D\uDE00`, "a", "é😀"},
		{`a=\q\u12`, "a", "qu12"},
		{"a=b\r\nc=d", "a", "b"},
		{"a=b\\", "a", "b"},
		{"a=é", "a", "é"},
	} {
		props := ParseProperties(c.text)
		if len(props) == 0 || props[0].Key != c.key || props[0].Value != c.value {
			t.Errorf("%q: got %+v, want %q=%q", c.text, props, c.key, c.value)
		}
	}
}

// What FormatProperties writes is read back the same, whatever the keys and values hold.
func TestPropertiesRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := []Property{{Key: rapid.StringN(1, 10, -1).Draw(t, "key"), Value: rapid.String().Draw(t, "value")}}
		out := ParseProperties(FormatProperties(in))
		if len(out) != 1 || out[0].Key != in[0].Key || out[0].Value != in[0].Value {
			t.Fatalf("%+v -> %q -> %+v", in, FormatProperties(in), out)
		}
	})
}

// A value is taken from --set, then the environment, then the file, then --data-dir, then the default.
func TestParsePrecedence(t *testing.T) {
	t.Parallel()
	src := Sources{DataDir: "/d"}
	check := func(name, want string) {
		t.Helper()
		b, warnings, err := Parse(src)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if got := b.String(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	check("log.dirs", "/d")
	src.File = "log.dir=/f\nnode.id=2\n"
	check("log.dirs", "/f")
	check("node.id", "2")
	src.File = "log.dirs=/f1,/f2\nnode.id=2\n"
	check("log.dirs", "/f1,/f2")
	src.Env = []string{"STELE_NODE_ID=3", "PATH=/bin", "STELE_LOG_DIRS=/e"}
	check("node.id", "3")
	check("log.dirs", "/e")
	src.Set = []string{"node.id=4", "node.id=5"}
	check("node.id", "5")
}

// With no source at all, one node has both roles on the loopback interface.
func TestParseDefaults(t *testing.T) {
	t.Parallel()
	b, warnings, err := Parse(Sources{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if !b.HasRole("broker") || !b.HasRole("controller") || b.Int("node.id") != 1 {
		t.Error("one node must have both roles and id 1")
	}
	if got := b.ClientListeners(); len(got) != 1 || got[0] != (Listener{"PLAINTEXT", "127.0.0.1", 9092}) {
		t.Errorf("client listeners %v", got)
	}
	if got := b.ControllerListeners(); len(got) != 1 || got[0] != (Listener{"CONTROLLER", "127.0.0.1", 9093}) {
		t.Errorf("controller listeners %v", got)
	}
	if got := b.AdvertisedControllers(); len(got) != 1 || got[0] != (Listener{"CONTROLLER", "127.0.0.1", 9093}) {
		t.Errorf("advertised controllers %v", got)
	}
	if p, err := b.SecurityProtocol("CONTROLLER"); err != nil || p != Plaintext {
		t.Error(p, err)
	}
	if b.InterBrokerListener() != "PLAINTEXT" || b.MetadataDir() != "./stele-data" {
		t.Error(b.InterBrokerListener(), b.MetadataDir())
	}
	if b.Duration("broker.session.timeout.ms") != 9*time.Second || b.Values().Duration("log.retention.ms") != 168*time.Hour {
		t.Error("durations")
	}
	if b.Duration("log.flush.interval.ms") <= 0 {
		t.Error("a duration beyond the longest one must not wrap")
	}
}

// A faulty value is refused with its source, its name, the value and what is allowed.
func TestParseErrorsNameTheValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		src   Sources
		parts []string
	}{
		{Sources{File: "\nnum.partitions=0", FileName: "server.properties"}, []string{"server.properties line 2", "num.partitions", "0", "[1,...]"}},
		{Sources{Env: []string{"STELE_NODE_ID=x"}}, []string{"environment STELE_NODE_ID", "node.id", "x", "int"}},
		{Sources{Set: []string{"process.roles=king"}}, []string{"--set", "process.roles", "king", "[broker, controller]"}},
		{Sources{Set: []string{"process.roles"}}, []string{"--set", "name=value"}},
		{Sources{Set: []string{"listeners=PLAINTEXT://h:1,PLAINTEXT://h:2"}}, []string{"listeners", "PLAINTEXT is given twice"}},
		{Sources{Set: []string{"listeners=PLAINTEXT://h:1"}}, []string{"controller.listener.names", "listeners"}},
		{Sources{Set: []string{"advertised.listeners=PLAINTEXT://0.0.0.0:1"}}, []string{"advertised.listeners", "0.0.0.0"}},
		{Sources{Set: []string{"broker.heartbeat.interval.ms=10000"}}, []string{"broker.heartbeat.interval.ms", "10000", "broker.session.timeout.ms"}},
	} {
		_, _, err := Parse(c.src)
		if err == nil {
			t.Errorf("%+v accepted", c.src)
			continue
		}
		for _, part := range c.parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
	_, _, err := Parse(Sources{Set: []string{"ssl.key.password=x", "node.id=-1"}})
	var ve *ValueError
	if !errors.As(err, &ve) || ve.Name != "node.id" || ve.Value != "-1" {
		t.Errorf("%v is not a ValueError for node.id", err)
	}
}

// Unknown names are kept and warned about; settings without effect are warned about.
func TestParseWarnings(t *testing.T) {
	t.Parallel()
	b, warnings, err := Parse(Sources{Set: []string{"my.plugin.key=v", "num.io.threads=4"}, File: "node.id=1\nnode.id=2"})
	if err != nil || len(warnings) != 3 {
		t.Fatal(err, warnings)
	}
	if v, ok := b.Given("my.plugin.key"); !ok || v != "v" {
		t.Error("the unknown name was not kept")
	}
	entries := Layers{Static: b}.DescribeBroker()
	for _, e := range entries {
		if e.Name == "my.plugin.key" && (e.Value != nil || !e.Sensitive || e.Source != StaticBroker) {
			t.Errorf("an unknown setting must be listed without its value: %+v", e)
		}
	}
}

// No text makes the listener parser fail other than by an error, and an address is read back as written.
func TestParseListeners(t *testing.T) {
	t.Parallel()
	got, err := ParseListeners("plaintext://:9092, SSL://[::1]:9093")
	if err != nil || got[0] != (Listener{"PLAINTEXT", "", 9092}) || got[1] != (Listener{"SSL", "::1", 9093}) || got[1].Address() != "[::1]:9093" {
		t.Error(got, err)
	}
	for _, bad := range []string{"x", "://h:1", "A://h", "A://h:65536", "A://::1:2", "A://[::1:2", "A://h/x:1"} {
		if _, err := ParseListeners(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
	rapid.Check(t, func(t *rapid.T) { _, _ = ParseListeners(rapid.String().Draw(t, "text")) })
}

// A controller listener is known to others as advertised.listeners has it; clients are not told of it.
func TestControllersAreAdvertised(t *testing.T) {
	t.Parallel()
	b, _, err := Parse(Sources{Set: []string{"listeners=PLAINTEXT://:1,CONTROLLER://:2", "advertised.listeners=CONTROLLER://outside:22,PLAINTEXT://outside:11"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.AdvertisedControllers(); len(got) != 1 || got[0] != (Listener{"CONTROLLER", "outside", 22}) {
		t.Errorf("controllers %v", got)
	}
	if got := b.AdvertisedListeners(); len(got) != 1 || got[0] != (Listener{"PLAINTEXT", "outside", 11}) {
		t.Errorf("clients %v", got)
	}
}
