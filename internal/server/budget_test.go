package server

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// Waiters are served in the order they came: a large one is not passed by a smaller one behind it, and
// one that gives up lets those behind it through.
func TestBudgetIsFair(t *testing.T) {
	t.Parallel()
	b := NewBudget(4 << 20) // 3 MiB of it for large requests
	held, err := b.Take(t.Context(), 2<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 3)
	var waiting sync.WaitGroup
	queue := func(ctx context.Context, name string, n int64) {
		before := b.large.waitingCount(b)
		waiting.Go(func() {
			g, err := b.Take(ctx, n, nil)
			if err != nil {
				order <- name + " gave up"
				return
			}
			order <- name
			g.Release()
		})
		waitFor(t, name+" to wait", func() bool { return b.large.waitingCount(b) == before+1 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	queue(ctx, "first", 3<<20)
	queue(t.Context(), "second", 1<<20)
	if !held.Contended() {
		t.Error("nobody seems to wait")
	}
	small, err := b.Take(t.Context(), 1000, nil)
	if err != nil {
		t.Fatal("a small request had to wait for large ones")
	}
	small.Release()
	cancel()
	if got := []string{<-order, <-order}; !slices.Contains(got, "first gave up") || !slices.Contains(got, "second") {
		t.Fatalf("got %q", got) // which of them says so first is not up to the budget
	}
	queue(t.Context(), "third", 3<<20)
	held.Release()
	held.Release()
	if got := <-order; got != "third" {
		t.Fatalf("got %q", got)
	}
	waiting.Wait()
	if b.Used() != 0 {
		t.Fatalf("%d bytes are still taken", b.Used())
	}
}

func (l *lane) waitingCount(b *Budget) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.waiting.Len()
}

// Under random takers that sometimes give up, the budget is never exceeded and comes back whole.
func TestBudgetIsNeverExceeded(t *testing.T) {
	t.Parallel()
	b := NewBudget(8 << 20)
	var all sync.WaitGroup
	for seed := range uint64(16) {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1))
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(300))*time.Microsecond)
				if g, err := b.Take(ctx, rnd.Int64N(12<<20), nil); err == nil {
					if used := b.Used(); used > 8<<20 {
						t.Errorf("%d bytes are taken", used)
					}
					g.Release()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if b.Used() != 0 || b.small.waitingCount(b)+b.large.waitingCount(b) != 0 {
		t.Fatalf("%d bytes are still taken", b.Used())
	}
}

// No request of any API and version, made of as many of its smallest elements or tagged fields as fit,
// decodes to more memory than the budget takes for it.
func TestCostCoversWhatDecodingMakes(t *testing.T) {
	b := NewBudget(1 << 40)
	if underRace {
		t.Skip("allocations are larger under the race detector")
	}
	worst, worstName := 0.0, ""
	for _, api := range wire.APIs() {
		for v := api.Min; v <= api.Max; v++ {
			if !api.Supports(v) {
				continue
			}
			for name, body := range floods(t, api, v) {
				cost, err := b.cost(api.Key, len(body))
				if err != nil {
					t.Fatal(err)
				}
				made := decodedBytes(t, api.Key, v, body)
				if ratio := float64(made) / float64(len(body)); ratio > worst {
					worst, worstName = ratio, api.Name+" "+name
				}
				if made+int64(len(body)) > cost {
					t.Errorf("%s %d, %s: %d bytes make %d, the budget takes %d", api.Name, v, name, len(body), made, cost)
				}
			}
		}
	}
	t.Logf("worst: %.1f bytes for each byte, %s", worst, worstName)
}

// floods makes one body for each array that the request has at its top, filled with minimal elements, and one
// of tagged fields.
func floods(t *testing.T, api wire.API, version int16) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	n := 1_500
	if api.Key == wire.KeyProduce {
		n = 400
	}
	fresh := func() kmsg.Request {
		req := kmsg.RequestForKey(api.Key)
		req.SetVersion(version)
		return req
	}
	bare := len(fresh().AppendTo(nil))
	shape := reflect.TypeOf(fresh()).Elem()
	for i := range shape.NumField() {
		if shape.Field(i).Type.Kind() != reflect.Slice {
			continue
		}
		req := fresh()
		field := reflect.ValueOf(req).Elem().Field(i)
		field.Set(reflect.MakeSlice(field.Type(), n, n))
		if body := req.AppendTo(nil); len(body) > bare+n/2 {
			out["array "+shape.Field(i).Name] = body
		}
		elem := shape.Field(i).Type.Elem()
		if elem.Kind() != reflect.Struct {
			continue
		}
		if api.Flexible(version) && api.Key != keySyncGroup {
			for k := range n {
				setTag(field.Index(k), 100)
			}
			if body := req.AppendTo(nil); len(body) > bare+n/2 {
				out["tagged "+shape.Field(i).Name] = body
			}
		}
		for j := range elem.NumField() {
			if elem.Field(j).Type.Kind() != reflect.Slice {
				continue
			}
			req := fresh()
			field := reflect.ValueOf(req).Elem().Field(i)
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			inner := field.Index(0).Field(j)
			inner.Set(reflect.MakeSlice(inner.Type(), n, n))
			if body := req.AppendTo(nil); len(body) > bare+n/2 {
				out["array "+shape.Field(i).Name+"."+elem.Field(j).Name] = body
			}
		}
	}
	if api.Flexible(version) && api.Key != keySyncGroup {
		req := fresh()
		for tag := range uint32(3_500) {
			setTag(reflect.ValueOf(req).Elem(), tag+100)
		}
		out["tags"] = req.AppendTo(nil)
	}
	return out
}

func setTag(message reflect.Value, tag uint32) {
	message.FieldByName("UnknownTags").Addr().Interface().(*kmsg.Tags).Set(tag, nil)
}

// decodedBytes measures the memory that decoding a body makes.
func decodedBytes(t *testing.T, key, version int16, body []byte) int64 {
	t.Helper()
	least := int64(math.MaxInt64)
	for range 3 { // whatever else runs in the process can only add to it
		c := &conn{}
		r := &Request{Key: key, Version: version}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.decode(r, body)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatalf("%s %d: %v", kmsg.NameForKey(key), version, err)
		}
		least = min(least, int64(after.TotalAlloc-before.TotalAlloc))
	}
	return least
}

// A body that might decode to more than the budget is refused before it is read; a Produce request of the
// same size is not, and a request that is merely large is let in alone.
func TestTooCostlyIsRefused(t *testing.T) {
	t.Parallel()
	b := NewBudget(0)
	var costly *TooCostlyError
	if _, err := b.cost(3, 20<<20); !errors.As(err, &costly) {
		t.Fatalf("got %v", err)
	}
	if _, err := b.cost(wire.KeyProduce, wire.DefaultMaxFrame); err != nil {
		t.Fatal(err)
	}
	g, err := b.Take(t.Context(), wire.DefaultMaxFrame, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.Release()
}

// What waits is counted apart from what is in work, and so much of it and no more.
func TestWhatWaitsLeavesTheBudgetToOthers(t *testing.T) {
	t.Parallel()
	b := NewBudget(1 << 20)
	if !b.park(1<<20) || b.park(1) {
		t.Error("not all of the budget, or more, could wait")
	}
	g, err := b.Take(t.Context(), 512<<10, nil)
	if err != nil || b.Used() != 1<<20+512<<10 {
		t.Errorf("%d, %v", b.Used(), err)
	}
	g.Release()
	b.unpark(1 << 20)
	if !b.park(1) {
		t.Error("what has gone still counts")
	}
}

// Long answers that nobody reads take so much memory and no more: who does not read is cut off when others wait, and
// those are served; what the answers were made of does not stay.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	const size = 16 << 20 // more than sockets hold
	topic := string(make([]byte, size))
	s, addr := start(t, Options{RequestMemory: 64 << 20, Handlers: []Handler{metadataHandler(func(r *Request) Response {
		if err := r.takeTurn(); err != nil {
			return CloseConnection(err)
		}
		resp := r.Msg.ResponseKind().(*kmsg.MetadataResponse)
		resp.Topics = []kmsg.MetadataResponseTopic{{Topic: &topic}}
		return Reply(resp)
	})}})
	var deaf []*rawClient
	for range 8 {
		c := dialRaw(t, addr)
		if err := c.Conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		req := metadataRequest()
		req.Version = 12 // a length of 16 MB fits a compact string
		c.send(frame(req, 1))
		deaf = append(deaf, c)
	}
	waitFor(t, "the memory for answers to be taken", func() bool { return s.answers.sending.Used() >= 2*size })
	if used := s.answers.sending.Used(); used > 64<<20 {
		t.Errorf("%d bytes are taken", used)
	}
	c := dialRaw(t, addr)
	req := metadataRequest()
	req.Version = 12
	c.send(frame(req, 2))
	if n, err := io.CopyN(io.Discard, c.r, size); err != nil {
		t.Errorf("the one who reads got %d bytes: %v", n, err)
	}
	for _, c := range deaf {
		c.Close()
	}
	waitFor(t, "the memory to be given back", func() bool { return s.answers.sending.Used() == 0 && len(s.answers.turns) == 0 })
}

// What controllers replicate the metadata log by is let in up to its largest batch, 8 MB, beside others, and with any
// memory for requests that is configured; what decoding it makes is covered.
func TestQuorumPeerIsNeverTooCostly(t *testing.T) {
	b := NewBudget(0)
	if cost, err := b.cost(wire.KeyQuorumPeer, 9<<20); err != nil || cost > b.large.capacity {
		t.Errorf("9 MB: %d, %v", cost, err)
	}
	if _, err := NewBudget(1<<20).cost(wire.KeyQuorumPeer, 9<<20); err != nil {
		t.Errorf("9 MB of little memory: %v", err)
	}
	if underRace {
		t.Skip("allocations are larger under the race detector")
	}
	body := (&wire.QuorumPeerRequest{Messages: make([][]byte, wire.MaxQuorumPeerMessages)}).AppendTo(nil)
	cost, err := b.cost(wire.KeyQuorumPeer, len(body))
	if err != nil {
		t.Fatal(err)
	}
	if made := decodedBytes(t, wire.KeyQuorumPeer, 0, body); made+int64(len(body)) > cost {
		t.Errorf("%d bytes make %d, the budget takes %d", len(body), made, cost)
	}
}
