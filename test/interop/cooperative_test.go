//go:build interop

package interop

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestG027_cooperative: a group of a client that rebalances cooperatively grows from one member to two in exactly two
// generations: one in which the first gives up its half, and one in which the second gets it.
func TestG027_cooperative(t *testing.T) {
	t.Parallel()
	n := newTarget(t)
	for name, join := range map[string]func(t *testing.T, addr, topic, group string) *cooperator{"franz-go": kgoCooperator, "librdkafka": librdkafkaCooperator} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			topic, group := "cooperative-"+name, "cooperative-"+name
			makeTopic(t, n, topic, 4)
			first := join(t, n.Addr(), topic, group)
			first.await(t, 4)
			before := generationsOf(ctx, t, n.Addr(), group)
			second := join(t, n.Addr(), topic, group)
			first.await(t, 2)
			second.await(t, 2)
			time.Sleep(time.Second) // no further rebalance comes
			after := generationsOf(ctx, t, n.Addr(), group)
			if last := before[len(before)-1]; !slices.Equal(after[len(before):], []int32{last + 1, last + 2}) {
				t.Errorf("generations %v with one member, %v with two", before, after)
			}
			if first.least.Load() < 2 {
				t.Errorf("the first member was down to %d partitions", first.least.Load())
			}
		})
	}
}

// cooperator is a member of a group. It says how many partitions it has each time that changes.
type cooperator struct {
	mu    sync.Mutex
	has   int
	least atomic.Int64 // since it first had all
}

func newCooperator() *cooperator {
	c := &cooperator{}
	c.least.Store(4)
	return c
}

func (c *cooperator) now(partitions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has == 4 || c.least.Load() < 4 {
		c.least.Store(min(c.least.Load(), int64(partitions)))
	}
	c.has = partitions
}

// await waits until the member has so many partitions.
func (c *cooperator) await(t *testing.T, want int) {
	t.Helper()
	has := -1
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		has = c.has
		c.mu.Unlock()
		if has == want {
			return
		}
	}
	t.Fatalf("a member has %d partitions, want %d", has, want)
}

func kgoCooperator(t *testing.T, addr, topic, group string) *cooperator {
	t.Helper()
	c := newCooperator()
	held := 0 // kgo calls back one at a time
	change := func(sign int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
			for _, partitions := range topics {
				held += sign * len(partitions)
			}
			c.now(held)
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.HeartbeatInterval(100*time.Millisecond), kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)), kgo.OnPartitionsLost(change(-1)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cl.PollFetches(ctx)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		cl.Close()
	})
	return c
}

func librdkafkaCooperator(t *testing.T, addr, topic, group string) *cooperator {
	t.Helper()
	c := newCooperator()
	cmd := exec.Command("/usr/bin/python3", "-B", "python/cooperative.py", addr, topic, group)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = clientLog("cooperative")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if partitions, err := strconv.Atoi(strings.TrimSpace(lines.Text())); err == nil {
				c.now(partitions)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return c
}

// generationsOf are the generations of a group that have been written, with members, in their order.
func generationsOf(ctx context.Context, t *testing.T, addr, group string) []int32 {
	t.Helper()
	records, err := fetchAll(ctx, addr, "__consumer_offsets", false)
	if err != nil {
		t.Fatal(err)
	}
	var found []int32
	for _, r := range records {
		key := kmsg.NewGroupMetadataKey()
		if err := key.ReadFrom(r.Key); err != nil || key.Version != 2 || key.Group != group || r.Value == nil {
			continue
		}
		value := kmsg.NewGroupMetadataValue()
		if err := value.ReadFrom(r.Value); err != nil {
			t.Fatalf("a record of %s: %v", group, err)
		}
		if len(value.Members) > 0 {
			found = append(found, value.Generation)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no generation of %s is written", group)
	}
	return found
}

// makeTopic makes a topic that is ready to be read.
func makeTopic(t *testing.T, n target, topic string, partitions int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := &suite{target: n}
	if err := s.topic(ctx, topic, partitions); err != nil {
		t.Fatal(fmt.Errorf("topic %s: %w", topic, err))
	}
}
