//go:build chaos

package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/bench/probe"
)

const (
	idleMost  = 60 << 20  // resident bytes of a node that does nothing
	aboveIdle = 128 << 20 // that bad input may add
)

// TestMemoryUnderBadInput: a header that claims 2 GiB, 40 bytes that claim 2^31 items, a valid 20 MB body that would
// decode to hundreds of MB: refused or held back, at most 128 MB above idle, and other clients go on unharmed.
func TestMemoryUnderBadInput(t *testing.T) {
	n := newNode(t)
	n.start()
	n.mustAck("probe", "probe-1")
	time.Sleep(2 * time.Second)
	idle, err := probe.RSS(n.pid())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("idle: %d MB", idle>>20)
	if idle > idleMost {
		t.Errorf("%d MB resident when idle, want at most %d", idle>>20, idleMost>>20)
	}
	topics, offsets, half := manyTopics(20<<20), manyOffsets(20<<20), halfProduce(20<<20)
	fewerTopics, fewerOffsets := manyTopics(1<<20), manyOffsets(200<<10)
	cut := append(hugeFrame(), make([]byte, 1<<20)...)
	attacks := []struct {
		name  string
		conns int
		send  func(i int) error
	}{
		{"headers that claim 2 GiB", 50, func(i int) error { return n.spit(hugeFrame()) }},
		{"2 GiB claimed, a MB sent", 50, func(i int) error { return n.spit(cut) }},
		{"40 bytes that claim 2^31 items", 50, func(i int) error { return n.spit(hugeCounts(i)...) }},
		{"20 MB Metadata", 4, func(i int) error { return n.spit(topics) }},
		{"20 MB OffsetCommit", 4, func(i int) error { return n.spit(offsets) }},
		{"1 MB Metadata", 50, func(i int) error { return n.spit(fewerTopics) }},
		{"200 KB OffsetCommit", 100, func(i int) error { return n.spit(fewerOffsets) }},
		{"half a 20 MB Produce, held open", 50, func(i int) error { return n.spit(half) }},
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			if err := probe.ResetPeak(n.pid()); err != nil {
				t.Fatal(err)
			}
			by := startBystander(n)
			var wg sync.WaitGroup
			for i := range attack.conns {
				wg.Add(1)
				go func() {
					defer wg.Done()
					if err := attack.send(i); err != nil {
						t.Errorf("connection %d: %v", i, err)
					}
				}()
			}
			wg.Wait()
			served, worst, err := by.stop()
			n.mustRun()
			peak, peakErr := probe.PeakRSS(n.pid())
			if peakErr != nil {
				t.Fatal(peakErr)
			}
			t.Logf("peak %d MB above idle; a bystander wrote and read %d times, the slowest took %v", (peak-idle)>>20, served, worst.Round(time.Millisecond))
			if peak-idle > aboveIdle {
				t.Errorf("%d MB above idle, want at most %d", (peak-idle)>>20, aboveIdle>>20)
			}
			if err != nil || served < 5 || worst > 3*time.Second {
				t.Errorf("a bystander was harmed: %d writes, slowest %v, %v\n%s", served, worst, err, n.log())
			}
		})
	}
}

// spit sends frames on a connection of its own and waits, for a little, for what comes back: anything, or the end.
func (n *node) spit(frames ...[]byte) error {
	conn, err := net.Dial("tcp", n.addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	for _, f := range frames {
		if _, err := conn.Write(f); err != nil {
			return nil // refused before all was sent
		}
	}
	_, err = io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	var reset *net.OpError
	if errors.As(err, &reset) {
		return nil
	}
	return err
}

func hugeFrame() []byte { return binary.BigEndian.AppendUint32(nil, 0x7fffffff) }

// header is a request header of version 1 or 2.
func header(key, version int16, flexible bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = append(b, 0, 0, 0, 1, 0xff, 0xff)
	if flexible {
		b = append(b, 0)
	}
	return b
}

func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// hugeCounts are requests of 40 bytes, of every API and of several versions, in which every byte that could be a
// count says as many as there can be.
func hugeCounts(i int) (frames [][]byte) {
	key := int16(i)
	req := kmsg.RequestForKey(key)
	if req == nil {
		return nil
	}
	for _, version := range []int16{0, req.MaxVersion() / 2, req.MaxVersion()} {
		req.SetVersion(version)
		b := header(key, version, req.IsFlexible())
		for len(b) < 40 {
			if req.IsFlexible() {
				b = append(b, 0xff, 0xff, 0xff, 0xff, 0x07)
			} else {
				b = append(b, 0x7f, 0xff, 0xff, 0xff)
			}
		}
		frames = append(frames, framed(b[:40]))
	}
	return frames
}

// manyTopics is a Metadata request of about size bytes that names as many topics as fit.
func manyTopics(size int) []byte {
	count := size / 3
	b := header(3, 1, false)
	b = binary.BigEndian.AppendUint32(b, uint32(count))
	for range count {
		b = append(b, 0, 1, 'x')
	}
	return framed(b)
}

// manyOffsets is an OffsetCommit request of about size bytes with as many topics as fit, each without partitions.
func manyOffsets(size int) []byte {
	count := size / 3
	b := header(8, 8, true)
	b = append(b, 2, 'g', 0, 0, 0, 0, 1, 0)
	b = binary.AppendUvarint(b, uint64(count)+1)
	for range count {
		b = append(b, 1, 1, 0)
	}
	return framed(append(b, 0))
}

// halfProduce is the first half of a Produce request.
func halfProduce(size int) []byte {
	b := header(0, 3, false)
	b = append(b, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0)
	f := framed(append(b, make([]byte, size)...))
	return f[:len(f)/2]
}

// bystander writes and reads all the time.
type bystander struct {
	cancel context.CancelFunc
	done   chan struct{}
	count  atomic.Int64
	worst  time.Duration
	all    []time.Duration // of each write and read
	err    error
}

// pace is how fast a bystander was served.
type pace struct {
	served   int
	p50, p99 time.Duration
	worst    time.Duration
}

func (p pace) String() string {
	return fmt.Sprintf("%d times, p50 %v, p99 %v, worst %v", p.served, p.p50.Round(10*time.Microsecond), p.p99.Round(10*time.Microsecond), p.worst.Round(10*time.Microsecond))
}

// mustStop ends the bystander, who must have been served.
func (by *bystander) mustStop(t *testing.T) pace {
	t.Helper()
	served, worst, err := by.stop()
	if err != nil || served < 5 {
		t.Fatalf("a bystander was harmed: %d writes, slowest %v, %v", served, worst, err)
	}
	slices.Sort(by.all)
	return pace{served, by.all[len(by.all)/2], by.all[len(by.all)*99/100], worst}
}

func startBystander(n *node) *bystander {
	ctx, cancel := context.WithCancel(context.Background())
	by := &bystander{cancel: cancel, done: make(chan struct{})}
	producer := n.client(kgo.DefaultProduceTopic("probe"))
	end, err := lastOffset(n)
	consumer := n.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"probe": {0: kgo.NewOffset().At(end)}}), kgo.FetchMaxWait(time.Second))
	go func() {
		defer close(by.done)
		defer producer.Close()
		defer consumer.Close()
		by.err = err
		for ctx.Err() == nil && by.err == nil {
			start := time.Now()
			by.err = by.once(ctx, producer, consumer)
			took := time.Since(start)
			by.worst, by.all = max(by.worst, took), append(by.all, took)
			by.count.Add(1)
		}
	}()
	return by
}

func lastOffset(n *node) (int64, error) {
	c, err := probe.Dial(n.addr(), 10*time.Second)
	if err != nil {
		return -1, err
	}
	defer c.Close()
	offset, err := c.Produce("probe", 0, []byte("bystander"), nil)
	return offset + 1, err
}

func (by *bystander) once(ctx context.Context, producer, consumer *kgo.Client) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	r, err := producer.ProduceSync(limit, kgo.StringRecord("still here")).First()
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for {
		fetches := consumer.PollFetches(limit)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, got := range fetches.Records() {
			if got.Offset == r.Offset {
				return nil
			}
		}
	}
}

func (by *bystander) stop() (int, time.Duration, error) {
	for deadline := time.Now().Add(5 * time.Second); by.count.Load() < 5 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	by.cancel()
	<-by.done
	return int(by.count.Load()), by.worst, by.err
}
