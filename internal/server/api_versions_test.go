package server

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

const recordings = "../../test/reference/testdata/kafka-4.4.0/api/"

// recorded reads an answer of Apache Kafka 4.4.0, from its correlation id on.
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(recordings + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// everything registers a handler for every API that Kafka serves on the recorded node.
func everything() []Handler {
	var hs []Handler
	for _, a := range wire.APIs() {
		if a.Key != wire.KeyApiVersions && a.Key != 71 && a.Key != 72 {
			hs = append(hs, Handler{Key: a.Key, Scopes: a.Scopes, Handle: func(*Request) Response { return NoReply() }})
		}
	}
	return hs
}

func recordedFeatures(t *testing.T) Features {
	t.Helper()
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = 4
	if err := resp.ReadFrom(recorded(t, "ApiVersions-broker-v4")[4:]); err != nil {
		t.Fatal(err)
	}
	return Features{Supported: resp.SupportedFeatures, Finalized: resp.FinalizedFeatures, FinalizedEpoch: resp.FinalizedFeaturesEpoch}
}

// With every API registered, our answers to ApiVersions are Kafka's own, byte for byte: all versions, an
// unknown one, bad names, and other clusters and nodes, on either listener.
func TestApiVersionsAnswersAsKafka(t *testing.T) {
	t.Parallel()
	features := recordedFeatures(t)
	s, _ := start(t, Options{
		Listeners: []Listener{
			{Name: "PLAINTEXT", Address: "127.0.0.1:0", Scope: wire.ScopeBroker},
			{Name: "CONTROLLER", Address: "127.0.0.1:0", Scope: wire.ScopeController},
		},
		Handlers: everything(), ClusterID: "SteleReferenceCluster1", NodeID: 1, Features: func() Features { return features },
	})
	for listener, name := range map[string]string{"PLAINTEXT": "broker", "CONTROLLER": "controller"} {
		c := dialRaw(t, s.Addr(listener).String())
		ask := func(recording string, version int16, change func(*kmsg.ApiVersionsRequest)) {
			t.Helper()
			req := kmsg.NewPtrApiVersionsRequest()
			req.Version = version
			req.ClientSoftwareName, req.ClientSoftwareVersion = "stele", "1.0"
			if change != nil {
				change(req)
			}
			c.send(frame(req, 1))
			_, rest := c.answer()
			got := append([]byte{0, 0, 0, 1}, rest...)
			want := recorded(t, "ApiVersions-"+name+"-"+recording)
			if !bytes.Equal(withoutEpoch(t, got, version), withoutEpoch(t, want, version)) {
				t.Errorf("%s %s:\n got %x\nwant %x", name, recording, got, want)
			}
		}
		node := func(cluster *string, id int32) func(*kmsg.ApiVersionsRequest) {
			return func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = cluster, id }
		}
		ours := kmsg.StringPtr("SteleReferenceCluster1")
		ask("v0", 0, nil)
		ask("v1", 1, nil)
		ask("v2", 2, nil)
		ask("v3", 3, nil)
		ask("v4", 4, nil)
		ask("v5", 5, nil)
		ask("v99", 99, nil)
		ask("empty-name-v5", 5, func(r *kmsg.ApiVersionsRequest) { r.ClientSoftwareName = "" })
		ask("right-node-v5", 5, node(ours, 1))
		ask("other-node-v5", 5, node(ours, 2))
		ask("other-cluster-v5", 5, node(kmsg.StringPtr("another"), 1))
		ask("node-no-cluster-v5", 5, node(nil, 1))
	}
}

// withoutEpoch takes out of an answer what moves while Kafka is being recorded: the offset of the last
// change of features.
func withoutEpoch(t *testing.T, b []byte, version int16) []byte {
	t.Helper()
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = version
	if version > 5 {
		return b
	}
	if err := resp.ReadFrom(b[4:]); err != nil {
		t.Fatal(err)
	}
	if resp.FinalizedFeaturesEpoch >= 0 {
		resp.FinalizedFeaturesEpoch = 0
	}
	return append(b[:4:4], resp.AppendTo(nil)...)
}

// Client software must be one word of letters, digits, dots and dashes; what is not is refused with
// INVALID_REQUEST, the connection lives on, and the census counts the rest.
func TestSoftwareNames(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{})
	c := dialRaw(t, addr)
	plain := regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.\-]*[a-zA-Z0-9])?$`)
	for _, name := range []string{"kgo", "a", "a-b.c", "-a", "a-", "a b", "ä", "", "a\n", "apache-kafka-java"} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = 3
		req.ClientSoftwareName, req.ClientSoftwareVersion = name, "1.0"
		c.send(frame(req, 5))
		body := c.wantAnswer(5)
		want := byte(42)
		if plain.MatchString(name) {
			want = 0
		}
		if body[1] != want {
			t.Errorf("%q: code %d, want %d", name, body[1], want)
		}
	}
	if n := len(s.Stats().Software); n != 4 {
		t.Errorf("%d kinds of software are counted: %v", n, s.Stats().Software)
	}
	// Clients of older versions do not say what they are; one that has said so on this connection is not counted anew.
	old := dialRaw(t, addr)
	for _, conn := range []*rawClient{c, old} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = 2
		conn.send(frame(req, 6))
		conn.wantAnswer(6)
	}
	if n := s.Stats().Software[[2]string{"unknown", "unknown"}]; n != 1 {
		t.Errorf("%d unknown: %v", n, s.Stats().Software)
	}
}

// The census does not grow with what clients make up.
func TestCensusIsBounded(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	for i := range 10 * maxSoftware {
		m.clientSoftware("made-up", strings.Repeat("x", i%100))
		m.clientSoftware(strings.Repeat("y", i), "1")
	}
	if n := len(m.software); n > maxSoftware+1 {
		t.Fatalf("%d kinds", n)
	}
}
