package server

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// A running server answers ApiVersions to a real client, and advertises what has a handler and nothing else.
func TestRealClientReadsVersions(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{Handlers: []Handler{
		metadataHandler(okMetadata), produceHandler(okProduce),
		{Key: 22, Scopes: wire.ScopeBroker, MaxVersion: 4, Handle: okMetadata},
		{Key: 62, Scopes: wire.ScopeController, Handle: okMetadata},
	}})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.SoftwareNameAndVersion("kgo", "1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int16][2]int16{}
	for _, k := range resp.ApiKeys {
		got[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	want := map[int16][2]int16{0: {0, 13}, 3: {0, 13}, 18: {0, 5}, 22: {0, 4}}
	if len(got) != len(want) {
		t.Errorf("advertised %v, want %v", got, want)
	}
	for key, r := range want {
		if got[key] != r {
			t.Errorf("key %d: %v, want %v", key, got[key], r)
		}
	}
	if n := s.Stats().Software[[2]string{"kgo", "1.2.3"}]; n == 0 {
		t.Errorf("the client is not counted: %v", s.Stats().Software)
	}
}

// kadm finds the brokers and asks each for its versions.
func TestAdminClientReadsVersions(t *testing.T) {
	t.Parallel()
	var server *Server
	handler := metadataHandler(func(r *Request) Response {
		resp := r.Msg.ResponseKind().(*kmsg.MetadataResponse)
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = 1, "127.0.0.1", int32(server.Addr("PLAINTEXT").(*net.TCPAddr).Port)
		resp.Brokers = append(resp.Brokers, b)
		resp.ControllerID = 1
		return Reply(resp)
	})
	server = New(Options{Listeners: []Listener{{Name: "PLAINTEXT", Address: "127.0.0.1:0", Scope: wire.ScopeBroker}}, Handlers: []Handler{handler}})
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Shutdown(context.Background()) })
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr("PLAINTEXT").String()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	versions, err := kadm.NewClient(client).ApiVersions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ours := versions[1]
	if ours.Err != nil {
		t.Fatal(ours.Err)
	}
	if lo, hi, ok := ours.KeyVersions(3); !ok || lo != 0 || hi != 13 {
		t.Fatalf("Metadata: %d to %d, %v", lo, hi, ok)
	}
}

// Our own dialling end and the server understand each other.
func TestOwnClientPipelines(t *testing.T) {
	t.Parallel()
	_, addr := start(t, Options{Handlers: []Handler{metadataHandler(okMetadata)}})
	c, err := wire.Dial(t.Context(), new(net.Dialer).DialContext, addr, wire.DialOptions{ClientID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, ok := c.PeerVersions(62); ok {
		t.Fatal("a controller's API is advertised to clients")
	}
}
