//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// profilesTopic is compacted while the node is being killed.
const profilesTopic = "profiles"

// profileKeys are so few that the cleaner always has something to take out.
const profileKeys = 60

// version is one value of a key: the counter in it, and where the answer said that it is.
type version struct {
	tp      topicPartition
	counter int
	offset  int64
}

// profiles writes a compacted topic and holds what it reads against what was acknowledged: of each key the last value that
// was acknowledged, or a later one, whatever the cleaner was doing when the node died. Safe for concurrent use.
type profiles struct {
	t *testing.T
	n *node

	mu    sync.Mutex
	acked map[string]version
	ends  map[topicPartition]int64 // behind the last acknowledged record
	// gone counts the offsets without a record that were seen: what the cleaner took out.
	gone int
}

func newProfiles(t *testing.T, n *node) *profiles {
	p := &profiles{t: t, n: n, acked: map[string]version{}, ends: map[topicPartition]int64{}}
	configs := map[string]*string{}
	for name, value := range map[string]string{"cleanup.policy": "compact", "internal.segment.bytes": "49152", "min.cleanable.dirty.ratio": "0.01"} {
		configs[name] = &value
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := kadm.NewClient(n.client()).CreateTopic(ctx, 2, 1, configs, profilesTopic); err != nil {
		t.Fatalf("create %s: %v\n%s", profilesTopic, err, n.log())
	}
	return p
}

// write gives keys new values by turns until the load stops, then waits for the last answers.
func (p *profiles) write(o *load) {
	c := p.n.client(kgo.RequiredAcks(kgo.AllISRAcks()), kgo.StopProducerOnDataLossDetected(), kgo.MaxBufferedRecords(200), kgo.UnknownTopicRetries(-1), kgo.ProducerBatchMaxBytes(16<<10))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for counter := 1; ; {
		for range 4 {
			key := fmt.Sprintf("profile-%03d", counter%profileKeys)
			r := &kgo.Record{Topic: profilesTopic, Key: []byte(key), Value: profileOf(key, counter)}
			counter++
			c.Produce(context.Background(), r, func(r *kgo.Record, err error) {
				if err != nil {
					o.ledger.fault("%s: %s: %v", profilesTopic, r.Key, err)
					return
				}
				p.acknowledged(r)
			})
		}
		select {
		case <-o.producing.Done():
			flush, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := c.Flush(flush); err != nil {
				o.ledger.fault("%s: the last records were not answered: %v", profilesTopic, err)
			}
			return
		case <-tick.C:
		}
	}
}

// profileOf is the value that a key has at a counter; counterOf reads it, and says whether all of it is there.
func profileOf(key string, counter int) []byte {
	return valueOf(fmt.Sprintf("%s#%d#", key, counter), 150+counter*41%900)
}

func counterOf(key string, value []byte) (counter int, ok bool) {
	parts := strings.SplitN(string(value), "#", 3)
	if len(parts) != 3 || parts[0] != key {
		return 0, false
	}
	counter, err := strconv.Atoi(parts[1])
	return counter, err == nil && string(profileOf(key, counter)) == string(value)
}

func (p *profiles) acknowledged(r *kgo.Record) {
	counter, _ := counterOf(string(r.Key), r.Value)
	tp := topicPartition{r.Topic, r.Partition}
	p.mu.Lock()
	defer p.mu.Unlock()
	if counter > p.acked[string(r.Key)].counter {
		p.acked[string(r.Key)] = version{tp, counter, r.Offset}
	}
	p.ends[tp] = max(p.ends[tp], r.Offset+1)
}

// wrong reads the whole topic and says which promises it breaks.
func (p *profiles) wrong(ctx context.Context) (wrong []string) {
	p.mu.Lock()
	acked, promised := maps.Clone(p.acked), maps.Clone(p.ends)
	p.mu.Unlock()
	c := p.n.client()
	defer c.Close()
	ends, err := listed(ctx, []string{profilesTopic}, kadm.NewClient(c).ListCommittedOffsets)
	if err != nil {
		return []string{profilesTopic + ": end offsets: " + err.Error()}
	}
	from, left := map[int32]kgo.Offset{}, map[topicPartition]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		tp := topicPartition{end.Topic, end.Partition}
		if end.Offset < promised[tp] {
			wrong = append(wrong, fmt.Sprintf("%s-%d ends at %d, %d were acknowledged", tp.Topic, tp.Partition, end.Offset, promised[tp]))
		}
		if end.Offset > 0 {
			from[end.Partition], left[tp] = kgo.NewOffset().At(0), end.Offset
		}
	})
	if len(left) == 0 {
		return wrong
	}
	reader := p.n.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{profilesTopic: from}), kgo.FetchMaxWait(50*time.Millisecond))
	defer reader.Close()
	last, found, gone := map[topicPartition]int64{}, map[string]version{}, 0
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return append(wrong, fmt.Sprintf("reading %s did not end: %v are left", profilesTopic, left))
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			wrong = append(wrong, fmt.Sprintf("%s-%d: reading back: %v", topic, partition, err))
		})
		fetches.EachRecord(func(r *kgo.Record) {
			tp, key := topicPartition{r.Topic, r.Partition}, string(r.Key)
			at := fmt.Sprintf("%s-%d offset %d", r.Topic, r.Partition, r.Offset)
			counter, ok := counterOf(key, r.Value)
			if !ok {
				wrong = append(wrong, fmt.Sprintf("%s: key %q with a value of another record", at, key))
			}
			if before, ok := last[tp]; ok && r.Offset <= before {
				wrong = append(wrong, fmt.Sprintf("%s follows %d", at, before))
			}
			gone += int(r.Offset - last[tp])
			last[tp] = r.Offset
			if before := found[key]; counter <= before.counter {
				wrong = append(wrong, fmt.Sprintf("%s: %s is %d, was %d before it at %d", at, key, counter, before.counter, before.offset))
			}
			found[key] = version{tp, counter, r.Offset}
			if r.Offset+1 >= left[tp] {
				delete(left, tp) // the last record of a log is never taken out
			}
		})
		if len(wrong) > 50 {
			return wrong
		}
	}
	for key, want := range acked {
		got := found[key]
		if got.counter < want.counter || got.counter == want.counter && (got.offset != want.offset || got.tp != want.tp) {
			wrong = append(wrong, fmt.Sprintf("%s: %s was acknowledged as %d at %d, is %d at %d", profilesTopic, key, want.counter, want.offset, got.counter, got.offset))
		}
	}
	p.mu.Lock()
	p.gone = max(p.gone, gone-len(found))
	p.mu.Unlock()
	return wrong
}

// taken is how many records the cleaner was seen to have taken out.
func (p *profiles) taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// verify has the command line look at what a cleanly stopped node has left.
func verify(t *testing.T, n *node) {
	t.Helper()
	if out, err := exec.Command(stele, "log", "verify", n.data).CombinedOutput(); err != nil {
		t.Errorf("log verify: %v\n%s", err, out)
	}
}
