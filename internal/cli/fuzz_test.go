package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

const (
	// fuzzTopicID stands in bodies for the id of the topic that is there.
	fuzzTopicID = "0123456789abcdef"
	// fuzzLife is how many requests a node answers before a fresh one takes its place: what topics and groups
	// they made would slow it down in the end.
	fuzzLife = 2000
	// fuzzParked is how long an answer is waited for: a request may park as long as it says.
	fuzzParked = 40 * time.Millisecond
)

// fuzzed is the node that FuzzFrames talks to.
type fuzzed struct {
	n        *node
	dir      string
	topicID  [16]byte
	requests int
}

func (z *fuzzed) start(t testing.TB) {
	var err error
	if z.dir, err = os.MkdirTemp("", "stele-fuzz"); err != nil {
		t.Fatal(err)
	}
	z.n, err = startFor(context.Background(), z.dir, "auto.create.topics.enable=false", "offsets.topic.num.partitions=1",
		"group.initial.rebalance.delay.ms=0", "log.segment.bytes=1048576", "log.index.size.max.bytes=4096")
	if err != nil {
		t.Fatal(err)
	}
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version, create.TimeoutMillis = 7, 5000
	create.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: "t", NumPartitions: 2, ReplicationFactor: 1}}
	answer, err := z.ask(fuzzFrame(t, 19, 7, create.AppendTo(nil)), false, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, err := wire.DecodeResponseHeader(answer, 19, true)
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.Version = 7
	if err != nil || resp.ReadFrom(rest) != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatalf("%v, %+v", err, resp)
	}
	z.topicID, z.requests = resp.Topics[0].TopicID, 0
}

// stop checks that the node has let everything go that requests took.
func (z *fuzzed) stop(t testing.TB) {
	z.await(t, 0)
	z.n.stop()
	os.RemoveAll(z.dir)
}

// await waits until at most this many connections are open, the node's own apart.
func (z *fuzzed) await(t testing.TB, most int) {
	const own = 4 // to its controller
	for deadline := time.Now().Add(20 * time.Second); z.n.server.Connections() > most+own; {
		time.Sleep(time.Millisecond) // house:allow connections end without an event; the deadline bounds the polling
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d connections hang:\n%s", z.n.server.Connections(), stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// ask sends a frame on a connection of its own and returns the answer, io.EOF when the connection was closed, or
// another error when there was no answer in time. The connection is reset in the end.
func (z *fuzzed) ask(frame []byte, controller bool, wait time.Duration) ([]byte, error) {
	listener := "PLAINTEXT"
	if controller {
		listener = "CONTROLLER"
	}
	c, err := net.Dial("tcp", z.n.server.Addr(listener).String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0)
	if _, err := c.Write(frame); err != nil {
		return nil, io.EOF // refused before it had come whole
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // what has begun comes whole
	_, err = io.ReadFull(c, answer)
	return answer, err
}

func fuzzFrame(t testing.TB, key, version int16, body []byte) []byte {
	api, ok := wire.Lookup(key)
	if !ok {
		t.Fatalf("no API %d", key)
	}
	return wire.AppendFrame(nil, func(b []byte) []byte {
		return append(wire.AppendRequestHeader(b, key, version, 7, new("fuzz"), api.Flexible(version)), body...)
	})
}

// fuzzSeed gives every field a small value that could mean something.
func fuzzSeed(v reflect.Value, name string, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Name != "UnknownTags" && (f.Name != "Version" || depth > 0) {
				fuzzSeed(v.Field(i), f.Name, depth+1)
			}
		}
	case reflect.Pointer:
		if name == "TransactionID" || name == "TransactionalID" || name == "InstanceID" {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		fuzzSeed(v.Elem(), name, depth)
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fuzzSeed(v.Index(0), name, depth+1)
		}
	case reflect.Array:
		reflect.Copy(v, reflect.ValueOf([]byte(fuzzTopicID)))
	case reflect.String:
		switch name {
		case "Group", "Groups", "CoordinatorKey":
			v.SetString("g")
		case "MemberID":
		default:
			v.SetString("t")
		}
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		switch name {
		case "CurrentLeaderEpoch", "LeaderEpoch", "LastFetchedEpoch", "ReplicaID", "Generation", "LogStartOffset", "ProducerID", "ProducerEpoch":
			v.SetInt(-1)
		case "SessionTimeoutMillis", "RebalanceTimeoutMillis":
			v.SetInt(10000)
		case "Acks", "NumPartitions", "ReplicationFactor", "MaxBytes", "PartitionMaxBytes":
			v.SetInt(1)
		case "ResourceType":
			v.SetInt(2)
		}
	}
}

// FuzzFrames puts requests of every API and version to a whole node: whatever the body, no handler panics, the node
// answers, parks or closes, lets go of the connection when the client has gone, and takes no memory that neither the
// request nor its answer accounts for.
func FuzzFrames(f *testing.F) {
	apis := wire.APIs()
	for i, api := range apis {
		for version := api.Min; version <= api.Max; version++ {
			if !api.Supports(version) {
				continue
			}
			req := kmsg.RequestForKey(api.Key)
			req.SetVersion(version)
			f.Add(uint8(i), uint8(version), api.Scopes&wire.ScopeBroker == 0, req.AppendTo(nil))
			if d, ok := req.(interface{ Default() }); ok {
				d.Default()
			}
			fuzzSeed(reflect.ValueOf(req).Elem(), "", 0)
			f.Add(uint8(i), uint8(version), api.Scopes&wire.ScopeBroker == 0, req.AppendTo(nil))
		}
	}
	z := &fuzzed{}
	f.Cleanup(func() {
		if z.n != nil {
			z.stop(f)
		}
	})
	f.Fuzz(func(t *testing.T, place, version uint8, controller bool, body []byte) {
		api := apis[int(place)%len(apis)]
		v := api.Min + int16(version)%(api.Max-api.Min+1)
		if len(body) > 8<<10 || tooMuchForFuzzing(api.Key, v, body) {
			return
		}
		if z.requests++; z.n != nil && z.requests > fuzzLife {
			z.stop(t)
			z.n = nil
		}
		if z.n == nil {
			z.start(t)
		}
		z.await(t, 64)
		body = bytes.ReplaceAll(body, []byte(fuzzTopicID), z.topicID[:])
		frame := fuzzFrame(t, api.Key, v, body)
		var before, after runtime.MemStats
		measured := z.requests%16 == 0 // it stops the world
		if measured {
			runtime.ReadMemStats(&before)
		}
		answer, _ := z.ask(frame, controller, fuzzParked)
		if measured {
			runtime.ReadMemStats(&after)
			if made, most := after.TotalAlloc-before.TotalAlloc, uint64(16<<20+500*len(frame)+20*len(answer)); made > most {
				t.Fatalf("%s version %d: %d bytes of memory for a request of %d and an answer of %d", api.Name, v, made, len(frame), len(answer))
			}
		}
		if n := z.n.server.Stats().Panics; n != 0 {
			t.Fatalf("%s version %d: a handler panicked", api.Name, v)
		}
		select {
		case err := <-z.n.failed:
			t.Fatalf("%s version %d: the node has failed: %v", api.Name, v, err)
		default:
		}
	})
}

// tooMuchForFuzzing holds back what would make thousands of partitions, which is slow and no fault.
func tooMuchForFuzzing(key, version int16, body []byte) bool {
	partitions := 0
	switch req := kmsg.RequestForKey(key).(type) {
	case *kmsg.CreateTopicsRequest:
		req.Version = version
		if req.ReadFrom(body) == nil {
			for _, t := range req.Topics {
				partitions += int(max(t.NumPartitions, 1)) + len(t.ReplicaAssignment)
			}
		}
	case *kmsg.CreatePartitionsRequest:
		req.Version = version
		if req.ReadFrom(body) == nil {
			for _, t := range req.Topics {
				partitions += int(t.Count)
			}
		}
	}
	return partitions > 40
}
