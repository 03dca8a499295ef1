package server

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// 200 connections that send large bodies at once (Produce of 4 MB, a claim of 100 MB with little behind it, a
// Metadata request of 20 MB that would decode to 500 MB, and one under 1 MB that decodes to 80 MB) stay within 128 MB above idle, and another client
// goes on throughout.
func TestMemoryStaysWithinItsBudget(t *testing.T) {
	// Not parallel: it measures the process. The limit is what a serving process sets for the collector.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(heapInUse() + 110<<20))
	var served atomic.Int32
	_, addr := start(t, Options{Handlers: []Handler{
		metadataHandler(okMetadata),
		produceHandler(func(r *Request) Response { served.Add(1); r.ReleaseBody(); return okProduce(r) }),
	}})
	produce := kmsg.NewPtrProduceRequest()
	produce.Version, produce.Acks = 9, 1
	produce.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: make([]byte, 4<<20)}}}}
	honest := frame(produce, 1)
	claim := append(binary.BigEndian.AppendUint32(nil, 100<<20), make([]byte, 8)...)
	binary.BigEndian.PutUint16(claim[6:], 9) // Produce 9
	claim = append(claim, make([]byte, 8<<10)...)
	flood := metadataRequest()
	flood.Version = 9
	flood.Topics = make([]kmsg.MetadataRequestTopic, 160_000)
	for i := range flood.Topics {
		flood.Topics[i].Topic = kmsg.StringPtr("")
		flood.Topics[i].UnknownTags.Set(100, nil)
	}
	tagged := frame(flood, 1)
	flood = nil
	metadata := frame(metadataRequest(), 1)
	binary.BigEndian.PutUint32(metadata, 20<<20)

	runtime.GC()
	debug.FreeOSMemory()
	idle := heapInUse()
	var most uint64
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				most = max(most, uint64(heapInUse()))
			}
		}
	})
	slowest := time.Duration(0)
	watching.Go(func() {
		c := dialRaw(t, addr)
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		for i := int32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			begin := time.Now()
			c.send(frame(metadataRequest(), i))
			c.wantAnswer(i)
			slowest = max(slowest, time.Since(begin))
		}
	})
	var clients sync.WaitGroup
	var answered atomic.Int32
	for i := range 200 {
		clients.Go(func() {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
			switch {
			case i%20 == 1:
				_, _ = nc.Write(claim)
				_ = nc.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, nc)
			case i%20 == 2:
				_, _ = nc.Write(metadata)
				_, _ = io.Copy(io.Discard, nc)
			case i%20 == 3:
				_, _ = nc.Write(tagged)
				_ = nc.(*net.TCPConn).CloseWrite()
				if n, _ := io.Copy(io.Discard, nc); n == 0 {
					t.Error("a flood of tagged fields that fits was not answered")
				}
			default:
				if _, err := nc.Write(honest); err != nil {
					t.Error(err)
					return
				}
				if f, err := wire.ReadFrame(nc, 1<<20); err != nil {
					t.Error(err)
				} else {
					f.Release()
					answered.Add(1)
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	watching.Wait()
	if answered.Load() != 170 || served.Load() != 170 {
		t.Errorf("%d honest requests were served and %d answered, of 170", served.Load(), answered.Load())
	}
	above := (int64(most) - idle) >> 20
	t.Logf("at most %d MB above idle; slowest answer to the other client %v", above, slowest)
	if above > 128 {
		t.Errorf("%d MB above idle", above)
	}
	if slowest > 5*time.Second {
		t.Errorf("another client waited %v", slowest)
	}
}

// heapInUse is what the process holds of the system for its heap and has not given back, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys - m.HeapReleased)
}

// A client that holds the budget and stops sending is cut off as soon as others wait for it, and they are
// served; alone it may take its time.
func TestStalledBodyGivesWay(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{RequestMemory: 1 << 20, Handlers: []Handler{produceHandler(okProduce)}})
	large := produceRequest(1)
	large.Topics[0].Partitions[0].Records = make([]byte, 700<<10)
	b := frame(large, 1)
	alone, stalled := dialRaw(t, addr), dialRaw(t, addr)
	alone.send(b[:100<<10])
	alone.send(b[100<<10:])
	alone.wantAnswer(1)
	waitFor(t, "the budget to be free", func() bool { return s.budget.Used() == 0 })
	stalled.send(b[:100<<10])
	waitFor(t, "the budget to be held", func() bool { return s.budget.Used() > 0 })
	alone.send(b)
	stalled.wantClosed()
	alone.wantAnswer(1)
}

// Clients that claim a small request and send a part of it hold the memory for small ones; a request that is here
// whole is served beside them, and none of them has to be cut off for that.
func TestSlowSendersDoNotStopWholeRequests(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{RequestMemory: 4 << 20, Handlers: []Handler{produceHandler(okProduce)}})
	small := produceRequest(1)
	small.Topics[0].Partitions[0].Records = make([]byte, 20<<10)
	b := frame(small, 1)
	cost, err := s.budget.cost(wire.KeyProduce, len(b)-wire.FrameSizeBytes)
	if err != nil || cost > smallRequest {
		t.Fatal(cost, err)
	}
	slow := int(s.budget.small.capacity / cost)
	for range slow {
		dialRaw(t, addr).send(b[:firstBytes+wire.FrameSizeBytes])
	}
	waitFor(t, "the memory for small requests to be taken", func() bool { return s.budget.Used() == int64(slow)*cost })
	c := dialRaw(t, addr)
	for range 10 {
		c.send(b)
		c.wantAnswer(1)
	}
	if n := s.Connections(); n != slow+1 {
		t.Errorf("%d of %d connections are left", n, slow+1)
	}
}

// A client that vanishes while its request waits for memory does not stay in line.
func TestVanishedClientsLeaveTheLine(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{RequestMemory: 1 << 20, Handlers: []Handler{produceHandler(okProduce)}})
	held, err := s.budget.Take(t.Context(), 700<<10, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	large := produceRequest(1)
	large.Topics[0].Partitions[0].Records = make([]byte, 700<<10)
	c := dialRaw(t, addr)
	c.send(frame(large, 1)[:8<<10])
	waitFor(t, "the request to stand in line", func() bool { return s.budget.large.waitingCount(s.budget) == 1 })
	if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	c.Close()
	waitFor(t, "the line to be empty", func() bool { return s.budget.large.waitingCount(s.budget) == 0 && s.Connections() == 0 })
}
