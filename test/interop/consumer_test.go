//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/consumer"
)

// pkg is the consumer package before a target, and what to judge it by.
type pkg struct {
	t      *testing.T
	addr   string
	client *kgo.Client
	admin  *kadm.Client
}

func newPkg(t *testing.T, addr string) *pkg {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &pkg{t, addr, client, kadm.NewClient(client)}
}

func (p *pkg) topic(name string, partitions int32) {
	p.t.Helper()
	// A topic that has just been deleted may be there for a while.
	p.eventually("topic "+name, func() bool {
		_, err := p.admin.CreateTopic(p.t.Context(), partitions, 1, nil, name)
		return err == nil
	})
	p.eventually("leaders of "+name, func() bool {
		m, err := p.admin.Metadata(p.t.Context(), name)
		ok := err == nil && len(m.Topics[name].Partitions) == int(partitions)
		for _, d := range m.Topics[name].Partitions {
			ok = ok && d.Err == nil && d.Leader >= 0
		}
		return ok
	})
}

// produce writes numbers from first on, round the partitions.
func (p *pkg) produce(topic string, partitions, first, n int) {
	p.t.Helper()
	var records []*kgo.Record
	for i := first; i < first+n; i++ {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: fmt.Appendf(nil, "%d", i)})
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(p.addr), kgo.RecordPartitioner(kgo.ManualPartitioner())) // without a memory of topics by that name
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(p.t.Context(), records...).FirstErr(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pkg) open(o consumer.Options) *consumer.Consumer {
	p.t.Helper()
	o.BootstrapServers, o.Logger = []string{p.addr}, slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := consumer.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *pkg) close(c *consumer.Consumer) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		p.t.Errorf("close: %v", err)
	}
}

func (p *pkg) eventually(what string, done func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(40 * time.Second); !done(); {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not in 40 s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// serves says whether the target has an API.
func (p *pkg) serves(key int16) bool {
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(p.t.Context(), p.client)
	return err == nil && slices.ContainsFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == key })
}

// groupReader reads in the background.
type groupReader struct {
	*consumer.Consumer
	stop context.CancelFunc
	done chan struct{}
}

func (p *pkg) reader(o consumer.Options, seen *sync.Map) *groupReader {
	ctx, stop := context.WithCancel(p.t.Context())
	r := &groupReader{p.open(o), stop, make(chan struct{})}
	go func() {
		defer close(r.done)
		for record, err := range r.Records(ctx) {
			if err != nil {
				p.t.Errorf("reader: %v", err)
				return
			}
			n, _ := seen.LoadOrStore(string(record.Value), new(int))
			*n.(*int)++
		}
	}()
	return r
}

func (p *pkg) end(r *groupReader) {
	r.stop()
	<-r.done
	p.close(r.Consumer)
}

// TestConsumerPackage: the Go package consumer, against whatever the target is: groups of both protocols that share out,
// rebalance and commit with epochs; log starts that move; topics that are made anew; a record at a time.
func TestConsumerPackage(t *testing.T) {
	n := newTarget(t)
	t.Run("groups", func(t *testing.T) {
		for _, o := range []consumer.Options{
			{Protocol: consumer.Classic},
			{Protocol: consumer.Classic, Assignors: []consumer.Assignor{consumer.CooperativeSticky}},
			{Protocol: consumer.ConsumerProtocol},
			{Protocol: consumer.ConsumerProtocol, RemoteAssignor: "range"},
		} {
			t.Run(fmt.Sprint(o.Protocol, o.Assignors, o.RemoteAssignor), func(t *testing.T) {
				p := newPkg(t, n.Addr())
				if o.Protocol == consumer.ConsumerProtocol && !p.serves(68) {
					t.Skip("the target has no ConsumerGroupHeartbeat")
				}
				topic := fmt.Sprintf("pkg-%s-%d%s", o.Protocol, len(o.Assignors), o.RemoteAssignor)
				p.topic(topic, 4)
				o.GroupID, o.Topics, o.Reset, o.HeartbeatInterval = topic, []string{topic}, consumer.Earliest, 200*time.Millisecond
				var seen sync.Map
				all := func(n int) func() bool {
					return func() bool {
						got := 0
						seen.Range(func(any, any) bool { got++; return true })
						return got >= n
					}
				}
				p.produce(topic, 4, 0, 400)
				a := p.reader(o, &seen)
				p.eventually("400 records", all(400))
				b := p.reader(o, &seen)
				p.eventually("two partitions each", func() bool { return len(a.Assignment()) == 2 && len(b.Assignment()) == 2 })
				p.produce(topic, 4, 400, 400)
				p.eventually("800 records", all(800))
				p.end(b)
				p.eventually("all four partitions", func() bool { return len(a.Assignment()) == 4 })
				p.produce(topic, 4, 800, 400)
				p.eventually("1200 records", all(1200))
				p.end(a)
				seen.Range(func(k, v any) bool {
					if *v.(*int) != 1 {
						t.Errorf("record %v was read %d times", k, *v.(*int))
					}
					return true
				})
				committed, err := p.admin.FetchOffsets(t.Context(), topic)
				if err != nil {
					t.Fatal(err)
				}
				for n := range int32(4) {
					if o, ok := committed.Lookup(topic, n); !ok || o.At != 300 || o.LeaderEpoch < 0 {
						t.Errorf("committed %+v", o)
					}
				}
			})
		}
	})
	t.Run("resets", func(t *testing.T) {
		p := newPkg(t, n.Addr())
		for _, check := range []bool{false, true} {
			topic := fmt.Sprintf("pkg-resets-%v", check)
			p.topic(topic, 1)
			p.produce(topic, 1, 0, 100)
			tp := consumer.TopicPartition{Topic: topic}
			var events []consumer.ResetEvent
			o := consumer.Options{GroupID: topic, Reset: consumer.Earliest, CheckOnFetch: check, DisableAutoCommit: true, MetadataMaxAge: time.Second, OnReset: func(ev consumer.ResetEvent) { events = append(events, ev) }}
			c := p.open(o)
			if err := c.Assign(tp); err != nil {
				t.Fatal(err)
			}
			to := func(value string) (first int64) {
				t.Helper()
				first = -1
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				for r, err := range c.Records(ctx) {
					if err != nil {
						t.Fatal(err)
					}
					if first < 0 {
						first = r.Offset
					}
					if string(r.Value) == value {
						return first
					}
				}
				t.Fatalf("%s was not read", value)
				return -1
			}
			to("49")
			if err := c.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.close(c)
			p.produce(topic, 1, 100, 100)
			if _, err := p.admin.DeleteRecords(t.Context(), kadm.Offsets{topic: {0: {Topic: topic, At: 150}}}); err != nil {
				t.Fatal(err)
			}
			events = nil
			c = p.open(o)
			if err := c.Assign(tp); err != nil {
				t.Fatal(err)
			}
			if first := to("199"); first != 150 {
				t.Errorf("after records were deleted: at %d", first)
			}
			if len(events) != 1 || events[0].Cause != consumer.CauseBelowLogStart || events[0].Skipped != 100 {
				t.Errorf("events %v", events)
			}
			events = nil
			if _, err := p.admin.DeleteTopic(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
			p.topic(topic, 1)
			p.produce(topic, 1, 1000, 100)
			if first := to("1099"); first != 0 {
				t.Errorf("in the topic made anew: at %d", first)
			}
			if len(events) != 1 || events[0].Cause != consumer.CauseTopicRecreated {
				t.Errorf("events %v", events)
			}
			p.close(c)
		}
	})
	t.Run("none", func(t *testing.T) {
		p := newPkg(t, n.Addr())
		p.topic("pkg-none", 1)
		p.produce("pkg-none", 1, 0, 10)
		tp := consumer.TopicPartition{Topic: "pkg-none"}
		c := p.open(consumer.Options{Reset: consumer.None})
		defer p.close(c)
		if err := c.Assign(tp); err != nil {
			t.Fatal(err)
		}
		var none *consumer.NoOffsetError
		if _, err := c.Poll(t.Context()); !errors.As(err, &none) {
			t.Errorf("without a commit: %v", err)
		}
		if err := c.Seek(tp, consumer.Position{Offset: 77}); err != nil {
			t.Fatal(err)
		}
		var out *consumer.OffsetOutOfRangeError
		if _, err := c.Poll(t.Context()); !errors.As(err, &out) {
			t.Errorf("beyond the end: %v", err)
		}
		if err := c.Seek(tp, consumer.Position{Offset: 5, Epoch: consumer.Known[int32](0)}); err != nil {
			t.Fatal(err)
		}
		f, err := c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for r := range f.Records() {
			if r.Offset != 5 {
				t.Errorf("offset %d after a seek to 5", r.Offset)
			}
			break
		}
	})
}
