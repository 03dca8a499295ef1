//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// admins change topics, configs and quotas, each its own, and keep what must be there: the state after the last
// acknowledged change. One whose outcome is unknown may or may not have happened, and may still happen late; what it was
// about is left alone from then on, and may be in either state.
type admins struct {
	front  *node
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	things  map[string]*thing
	ids     map[int64]bool
	faults  []string
	acked   map[string]int64 // by kind of change
	unknown map[string]int64
	refused map[string]int64

	gate sync.RWMutex // held for writing while the workload pauses
}

// thing is a topic or a user with a quota.
type thing struct {
	name string
	may  []string // the states it may be in; more than one: its last change is of unknown outcome
}

const absent = "absent"

// errRefused is a change that certainly did not happen.
var errRefused = errors.New("refused")

func startAdmins(front *node, random *rand.Rand) *admins {
	ctx, cancel := context.WithCancel(context.Background())
	a := &admins{front: front, cancel: cancel, things: map[string]*thing{}, ids: map[int64]bool{}, acked: map[string]int64{}, unknown: map[string]int64{}, refused: map[string]int64{}}
	for worker := range 4 {
		r := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		a.wg.Go(func() { a.topics(ctx, worker, r) })
	}
	r := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
	a.wg.Go(func() { a.quotas(ctx, r) })
	a.wg.Go(func() { a.producers(ctx) })
	return a
}

func (a *admins) stop() {
	a.cancel()
	a.wg.Wait()
}

func (a *admins) pause()  { a.gate.Lock() }
func (a *admins) resume() { a.gate.Unlock() }

// client asks once: a request that is sent again could be carried out again, after the next one.
func (a *admins) client() *kgo.Client {
	return a.front.client(kgo.RequestRetries(0), kgo.RetryTimeout(5*time.Second))
}

// change makes one change of a thing: from the state it is in to another. It waits while the workload pauses.
func (a *admins) change(ctx context.Context, kind string, t *thing, to string, do func(ctx context.Context) error) {
	a.gate.RLock()
	defer a.gate.RUnlock()
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	a.things[t.name] = t
	was := t.may[0]
	t.may = []string{was, to}
	a.mu.Unlock()
	limited, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	err := do(limited)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		t.may = []string{to}
		a.acked[kind]++
	case errors.Is(err, errRefused):
		t.may = []string{was}
		a.refused[kind]++
	default:
		a.unknown[kind]++
	}
	if len(t.may) > 1 && t.may[0] == t.may[1] {
		t.may = t.may[:1]
	}
}

// free says that a thing may be changed again.
func (t *thing) free() bool { return len(t.may) == 1 }

// refusedIf turns errors by which a server says that it has not done anything into errRefused.
func refusedIf(err error, codes ...*kerr.Error) error {
	for _, code := range codes {
		if errors.Is(err, code) {
			return errRefused
		}
	}
	return err
}

// topicState is a topic in words.
func topicState(partitions int, retention string) string {
	return fmt.Sprintf("%d partitions, retention.ms %s", partitions, retention)
}

// topics creates, alters and deletes topics.
func (a *admins) topics(ctx context.Context, worker int, random *rand.Rand) {
	c := a.client()
	admin := kadm.NewClient(c)
	admin.SetTimeoutMillis(4000)
	var live []*thing
	made := 0
	for ctx.Err() == nil {
		live = slices.DeleteFunc(live, func(t *thing) bool { return !t.free() || t.may[0] == absent })
		switch {
		case len(live) == 0 || len(live) < 8 && random.IntN(3) == 0:
			t := &thing{name: fmt.Sprintf("topic-%d-%d", worker, made), may: []string{absent}}
			made++
			partitions, retention := 1+random.IntN(3), strconv.Itoa(1_000_000+random.IntN(1_000_000))
			a.change(ctx, "create", t, topicState(partitions, retention), func(ctx context.Context) error {
				_, err := admin.CreateTopic(ctx, int32(partitions), 3, map[string]*string{"retention.ms": &retention}, t.name)
				return refusedIf(err, kerr.InvalidReplicationFactor)
			})
			live = append(live, t)
		default:
			t := live[random.IntN(len(live))]
			var partitions int
			var retention string
			fmt.Sscanf(t.may[0], "%d partitions, retention.ms %s", &partitions, &retention)
			switch random.IntN(5) {
			case 0:
				a.change(ctx, "delete", t, absent, func(ctx context.Context) error {
					_, err := admin.DeleteTopic(ctx, t.name)
					return err
				})
			case 1:
				if partitions >= 6 {
					continue
				}
				a.change(ctx, "add partitions", t, topicState(partitions+1, retention), func(ctx context.Context) error {
					resp, err := admin.UpdatePartitions(ctx, partitions+1, t.name)
					if err == nil {
						err = resp.Error()
					}
					return refusedIf(err, kerr.InvalidReplicationFactor)
				})
			default:
				other := strconv.Itoa(1_000_000 + random.IntN(1_000_000))
				a.change(ctx, "config", t, topicState(partitions, other), func(ctx context.Context) error {
					resp, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &other}}, t.name)
					for _, r := range resp {
						err = errors.Join(err, r.Err)
					}
					return err
				})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+random.IntN(60)) * time.Millisecond):
		}
	}
}

// quotas sets and removes quotas of users.
func (a *admins) quotas(ctx context.Context, random *rand.Rand) {
	c := a.client()
	admin := kadm.NewClient(c)
	var users []*thing
	made := 0
	for ctx.Err() == nil {
		users = slices.DeleteFunc(users, func(t *thing) bool { return !t.free() })
		if len(users) < 4 {
			users = append(users, &thing{name: fmt.Sprintf("user-%d", made), may: []string{absent}})
			made++
		}
		t := users[random.IntN(len(users))]
		rate := float64(1 + random.IntN(1_000_000))
		to, remove := fmt.Sprint(rate), random.IntN(5) == 0
		if remove {
			to = absent
		}
		a.change(ctx, "quota", t, to, func(ctx context.Context) error {
			resp, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
				Entity: kadm.ClientQuotaEntity{{Type: "user", Name: &t.name}},
				Ops:    []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: rate, Remove: remove}},
			}})
			for _, r := range resp {
				err = errors.Join(err, r.Err)
			}
			return err
		})
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+random.IntN(100)) * time.Millisecond):
		}
	}
}

// producers asks for producer ids, of which none may be given twice.
func (a *admins) producers(ctx context.Context) {
	c := a.client()
	for ctx.Err() == nil {
		a.gate.RLock()
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		req := kmsg.NewPtrInitProducerIDRequest()
		req.ProducerID, req.ProducerEpoch = -1, -1
		resp, err := req.RequestWith(limited, c)
		cancel()
		a.mu.Lock()
		switch {
		case err != nil || resp.ErrorCode != 0:
			a.unknown["producer id"]++
		case a.ids[resp.ProducerID]:
			a.faults = append(a.faults, fmt.Sprintf("producer id %d was given twice", resp.ProducerID))
		default:
			a.ids[resp.ProducerID] = true
			a.acked["producer id"]++
		}
		a.mu.Unlock()
		a.gate.RUnlock()
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (a *admins) acknowledged() (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, some := range a.acked {
		n += some
	}
	return n
}

func (a *admins) totals() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	kinds := map[string]bool{}
	for _, counts := range []map[string]int64{a.acked, a.unknown, a.refused} {
		for kind := range counts {
			kinds[kind] = true
		}
	}
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		all = append(all, fmt.Sprintf("%s: %d acknowledged, %d refused, %d of unknown outcome", kind, a.acked[kind], a.refused[kind], a.unknown[kind]))
	}
	return strings.Join(all, "; ")
}

// wrongAt holds what one broker shows against what must be, again until all is right or the time is up: a broker's image
// may be a little behind.
func (a *admins) wrongAt(addr string, within time.Duration) (wrong []string) {
	deadline := time.Now().Add(within)
	for {
		wrong = a.look(addr)
		if len(wrong) == 0 || time.Now().After(deadline) {
			return wrong
		}
		<-time.After(100 * time.Millisecond)
	}
}

func (a *admins) look(addr string) (wrong []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	seen, err := statesAt(ctx, addr)
	if err != nil {
		return []string{err.Error()}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	wrong = append(wrong, a.faults...)
	for name, t := range a.things {
		is := seen[name]
		if is == "" {
			is = absent
		}
		if !slices.Contains(t.may, is) {
			wrong = append(wrong, fmt.Sprintf("%s is %q, and may be %q", name, is, t.may))
		}
		delete(seen, name)
	}
	for name := range seen {
		wrong = append(wrong, name+" is there, and nobody made it")
	}
	return wrong
}

// statesAt is the state of every topic and user as one broker shows it.
func statesAt(ctx context.Context, addr string) (map[string]string, error) {
	cl, broker, err := pinned(addr)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	states := map[string]string{}
	ask := kmsg.NewPtrMetadataRequest()
	resp, err := broker.Request(ctx, ask)
	if err != nil {
		return nil, err
	}
	configs := kmsg.NewPtrDescribeConfigsRequest()
	partitions := map[string]int{}
	for _, t := range resp.(*kmsg.MetadataResponse).Topics {
		if t.ErrorCode != 0 || t.IsInternal {
			continue
		}
		partitions[*t.Topic] = len(t.Partitions)
		one := kmsg.NewDescribeConfigsRequestResource()
		one.ResourceType, one.ResourceName, one.ConfigNames = kmsg.ConfigResourceTypeTopic, *t.Topic, []string{"retention.ms"}
		configs.Resources = append(configs.Resources, one)
	}
	if len(configs.Resources) > 0 {
		resp, err := broker.Request(ctx, configs)
		if err != nil {
			return nil, err
		}
		for _, r := range resp.(*kmsg.DescribeConfigsResponse).Resources {
			for _, c := range r.Configs {
				if r.ErrorCode == 0 && c.Value != nil {
					states[r.ResourceName] = topicState(partitions[r.ResourceName], *c.Value)
				}
			}
		}
	}
	quotas := kmsg.NewPtrDescribeClientQuotasRequest()
	component := kmsg.NewDescribeClientQuotasRequestComponent()
	component.EntityType, component.MatchType = "user", 2
	quotas.Components = append(quotas.Components, component)
	resp, err = broker.Request(ctx, quotas)
	if err != nil {
		return nil, err
	}
	for _, e := range resp.(*kmsg.DescribeClientQuotasResponse).Entries {
		for _, v := range e.Values {
			states[*e.Entity[0].Name] = fmt.Sprint(v.Value)
		}
	}
	return states, nil
}
