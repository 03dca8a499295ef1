//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// limit is something that a client cannot do by itself. It is tried all the same, and the check is that the
// try fails with an error that contains says.
type limit struct{ why, says string }

// patient are clients that go on asking, without a word, for what a target does not serve: they are not held to be
// told at once.
var patient = map[string]map[string]bool{} // client -> scenario

// limits holds them by client and scenario; a scenario that ends with * is all that begin so.
var limits = map[string]map[string]limit{
	"kafka-console": {
		"write-partition":    {"ConsoleProducer has no option for the partition", "record 0: partition"},
		"write-timestamp":    {"ConsoleProducer has no option for the timestamp", errCannot.Error()},
		"large-refused":      {"ConsoleProducer says nothing of a record that the broker refuses for its size", "was taken, says the client"},
		"admin-*":            {"the console tools are two; Kafka's other tools are TestTools", errCannot.Error()},
		"write-binary":       {"ConsoleProducer reads lines of text", "No key separator found"},
		"transaction-commit": {"ConsoleProducer never begins a transaction", "before completing a call to initTransactions"},
		"transaction-abort":  {"ConsoleProducer never begins a transaction", "before completing a call to initTransactions"},
	},
	"java": {
		"admin-alter-configs": {"Kafka 4's Admin has IncrementalAlterConfigs only", errCannot.Error()},
	},
	"kcat": {
		"write-both-null":    {"kcat skips an empty message without a key", "0 records instead of 1"},
		"transaction-abort":  {"kcat aborts only when it is interrupted before the end of its input, and had sent nothing by then", "read uncommitted: 1 records instead of 3"},
		"write-timestamp":    {"kcat has no option for the timestamp", errCannot.Error()},
		"admin-*":            {"kcat only lists", errCannot.Error()},
		"rebalance-consumer": {"librdkafka 2.0 knows classic groups only", errCannot.Error()},
	},
	"confluent-kafka": {
		"rebalance-consumer":        {"librdkafka 2.0 knows classic groups only", errCannot.Error()},
		"admin-incremental-configs": {"confluent-kafka 1.7 has AlterConfigs only", errCannot.Error()},
		"admin-delete-records":      {"confluent-kafka 1.7 has no DeleteRecords", errCannot.Error()},
		"admin-delete-group-offset": {"confluent-kafka has no OffsetDelete", errCannot.Error()},
		"admin-delete-group":        {"confluent-kafka 1.7 has no DeleteGroups", errCannot.Error()},
	},
	"stele": {
		"write-header-nulls":        {"stele produce has no way to write a null header", errCannot.Error()},
		"write-binary":              {"stele produce reads lines of text", errCannot.Error()},
		"write-timestamp":           {"stele produce has no option for the timestamp", errCannot.Error()},
		"transaction-commit":        {"stele produce has no transactions", errCannot.Error()},
		"transaction-abort":         {"stele produce has no transactions", errCannot.Error()},
		"rebalance-consumer":        {"stele consume takes part in classic groups only", errCannot.Error()},
		"admin-alter-configs":       {"stele config changes what it is told and leaves the rest", errCannot.Error()},
		"admin-delete-records":      {"stele has no command that deletes records", errCannot.Error()},
		"admin-delete-group-offset": {"stele has no command that deletes single commits", errCannot.Error()},
	},
	"franz-go": {
		"rebalance-consumer": {"kgo takes part in classic groups only", errCannot.Error()},
	},
}

// limitOf is what keeps a client from a scenario, and its name in the table.
func limitOf(client, scenario string) (l limit, row string, limited bool) {
	if l, ok := limits[client][scenario]; ok {
		return l, scenario, true
	}
	for row, l := range limits[client] {
		if prefix, ok := strings.CutSuffix(row, "*"); ok && strings.HasPrefix(scenario, prefix) {
			return l, row, true
		}
	}
	return limit{}, "", false
}

// mismatch is the error of a check whose records are not what they should be.
type mismatch string

func (m mismatch) Error() string { return string(m) }

func differ(where, how string) error {
	if how == "" {
		return nil
	}
	return mismatch(where + ": " + how)
}

// suite is one broker and all the clients.
type suite struct {
	target  target
	clients []client
	served  capabilities
}

func newSuite(t *testing.T, target target) *suite {
	t.Helper()
	addr := target.Addr()
	clients := []client{franz{addr}, console{addr}, kcat{addr}, steleCLI{addr}}
	for _, start := range drivers {
		d, err := start(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.close)
		clients = append(clients, d)
	}
	if some := os.Getenv("INTEROP_CLIENTS"); some != "" {
		of := regexp.MustCompile(some)
		clients = slices.DeleteFunc(clients, func(c client) bool { return !of.MatchString(c.name()) })
	}
	return &suite{target, clients, mustCapabilities(t, addr)}
}

// check runs one scenario for one client and counts it.
func (s *suite) check(t *testing.T, c client, scenario string, f func(ctx context.Context) error) {
	t.Helper()
	timeout := 60 * time.Second
	l, row, limited := limitOf(c.name(), scenario)
	gap, missing := s.served.missing(scenario)
	if limited || missing {
		timeout = 30 * time.Second
	}
	waits := missing && patient[c.name()][scenario]
	if waits {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := f(ctx)
	switch {
	case waits && err != nil:
	case missing && !errors.Is(err, errCannot):
		if err := refused(ctx, err); err != nil {
			t.Errorf("%s %s, without %s: %v", c.name(), scenario, gap.capability, err)
			results.add(c.name(), scenario, false)
		}
	case limited && err == nil:
		t.Errorf("%s %s: the table of limits says that it cannot (%s), but it can", c.name(), scenario, l.why)
		results.add(c.name(), scenario, false)
	case limited && !strings.Contains(err.Error(), l.says):
		t.Errorf("%s %s: failed in another way than the table of limits says (%q): %v", c.name(), scenario, l.says, err)
		results.add(c.name(), scenario, false)
	case limited:
		results.addCannot(c.name(), row, l.why)
	case err != nil:
		t.Errorf("%s %s: %v", c.name(), scenario, err)
		results.add(c.name(), scenario, false)
	default:
		results.add(c.name(), scenario, true)
	}
}

// each runs f for all clients side by side and returns when all are done.
func (s *suite) each(t *testing.T, name string, f func(t *testing.T, c client)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, c := range s.clients {
			t.Run(c.name(), func(t *testing.T) {
				t.Parallel()
				f(t, c)
			})
		}
	})
}

func (s *suite) topic(ctx context.Context, name string, partitions int32) error {
	return createTopic(ctx, s.target.Addr(), name, partitions, nil)
}

// What is written.

func plainRecords(codec string) []record {
	var out []record
	for i := range 30 {
		out = append(out, record{Key: fmt.Appendf(nil, "%s-key-%d", codec, i),
			Value: fmt.Appendf(nil, "%s-value-%d-%s", codec, i, strings.Repeat("stele ", 40+i*4))})
	}
	return out
}

var nullRecords = []record{
	{Value: []byte("a null key")},
	{Value: []byte("another null key")},
	{Key: []byte("a null value")},
}

var emptyRecords = []record{
	{Key: []byte("an empty value"), Value: []byte{}},
	{Key: []byte{}, Value: []byte("an empty key")},
}

var textRecords = []record{
	{Key: []byte("Schlüssel"), Value: []byte("Größe, 世界, \U0001f5ff")},
	{Key: []byte("quotes"), Value: []byte(`"a" 'b' \ %s {"c": 1}`)},
}

var headerRecords = []record{
	{Key: []byte("one"), Value: []byte("v"), Headers: []header{{"a", []byte("1")}}},
	{Key: []byte("several"), Value: []byte("v"), Headers: []header{{"b", []byte("2")}, {"a", []byte("1")}, {"b", []byte("3")}}},
	{Key: []byte("text"), Value: []byte("v"), Headers: []header{{"größe", []byte("世界")}}},
	{Key: []byte("none"), Value: []byte("v")},
}

var headerNullRecords = []record{
	{Key: []byte("null"), Value: []byte("v"), Headers: []header{{"null", nil}, {"empty", []byte{}}}},
}

var binaryRecords = []record{
	{Key: []byte{0, 1, 2, 0xff, 0xfe, '\n'}, Value: []byte("line 1\nline 2\n\x00\xc3\x28")},
	{Key: []byte("k"), Value: []byte{0x80, 0x81, 10, 13}},
}

// writes are the scenarios in which a client produces and the bytes on the broker are looked at.
var writes = []struct {
	name    string
	codec   string
	records []record
}{
	{"codec-none", "none", plainRecords("none")},
	{"codec-gzip", "gzip", plainRecords("gzip")},
	{"codec-snappy", "snappy", plainRecords("snappy")},
	{"codec-lz4", "lz4", plainRecords("lz4")},
	{"codec-zstd", "zstd", plainRecords("zstd")},
	{"write-nulls", "none", nullRecords},
	{"write-both-null", "none", []record{{}}},
	{"write-empty", "none", emptyRecords},
	{"write-text", "none", textRecords},
	{"write-headers", "none", headerRecords},
	{"write-header-nulls", "none", headerNullRecords},
	{"write-binary", "none", binaryRecords},
	{"write-timestamp", "none", []record{{Key: []byte("k"), Value: []byte("v"), Timestamp: 1500000000123}}},
	{"write-timestamps", "none", []record{
		{Key: []byte("late"), Value: []byte("v"), Timestamp: 1700000000123},
		{Key: []byte("early"), Value: []byte("v"), Timestamp: 1500000000123}}},
	{"write-partition", "none", []record{
		{Partition: 0, Key: []byte("same"), Value: []byte("0")},
		{Partition: 1, Key: []byte("same"), Value: []byte("1")},
		{Partition: 2, Key: []byte("same"), Value: []byte("2")}}},
}

// TestClients is every client against every scenario. A check is one client and one scenario; what a client
// writes is read back by all the others, record for record.
func TestClients(t *testing.T) {
	s := newSuite(t, newTarget(t))
	s.each(t, "write", s.write)
	s.each(t, "admin", s.admin)
	s.large(t)
	s.each(t, "transactions", s.transactions)
	s.read(t)
	s.each(t, "groups", s.groups)
	s.resume(t)
}

func (s *suite) write(t *testing.T, c client) {
	for _, w := range writes {
		s.check(t, c, w.name, func(ctx context.Context) error {
			topic := w.name + "-by-" + c.name()
			partitions := int32(1)
			for _, r := range w.records {
				partitions = max(partitions, r.Partition+1)
			}
			if err := s.topic(ctx, topic, partitions); err != nil {
				return err
			}
			if err := c.produce(ctx, batch{topic: topic, codec: w.codec, records: w.records}); err != nil {
				return err
			}
			return s.stored(ctx, topic, w.codec, w.records)
		})
	}
	s.check(t, c, "write-idempotent", func(ctx context.Context) error {
		topic, records := "write-idempotent-by-"+c.name(), plainRecords("idempotent")
		if err := s.topic(ctx, topic, 1); err != nil {
			return err
		}
		if err := c.produce(ctx, batch{topic: topic, codec: "none", records: records, idempotent: true}); err != nil {
			return err
		}
		all, err := fetchAll(ctx, s.target.Addr(), topic, false)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.ProducerID < 0 {
				return mismatch(fmt.Sprintf("offset %d has no producer id", r.Offset))
			}
		}
		return s.stored(ctx, topic, "none", records)
	})
}

// stored compares a topic with what was sent there in one call, and looks at the batches' codec.
func (s *suite) stored(ctx context.Context, topic, codec string, want []record) error {
	all, err := fetchAll(ctx, s.target.Addr(), topic, false)
	if err != nil {
		return err
	}
	next := map[int32]int64{}
	var got []record
	for _, r := range all {
		if r.Offset != next[r.Partition] {
			return mismatch(fmt.Sprintf("partition %d has offset %d where %d should be", r.Partition, r.Offset, next[r.Partition]))
		}
		next[r.Partition]++
		if is := codecs[r.Attrs.CompressionType()]; is != codec {
			return mismatch(fmt.Sprintf("offset %d is compressed with %s instead of %s", r.Offset, is, codec))
		}
		got = append(got, fromKgo(r))
	}
	if how := compare(want, byPosition(got), false); how != "" {
		return mismatch(how)
	}
	for i, r := range want {
		if r.Timestamp != 0 && r.Timestamp != got[i].Timestamp {
			return mismatch(fmt.Sprintf("timestamp %d instead of %d", got[i].Timestamp, r.Timestamp))
		}
	}
	return nil
}

func (s *suite) transactions(t *testing.T, c client) {
	before, after := plainRecords("before")[:2], plainRecords("after")[:1]
	s.check(t, c, "transaction-commit", func(ctx context.Context) error {
		topic := "commit-by-" + c.name()
		if err := s.topic(ctx, topic, 1); err != nil {
			return err
		}
		if err := c.produce(ctx, batch{topic: topic, codec: "none", records: before, transactionalID: topic}); err != nil {
			return err
		}
		if err := s.decided(ctx, topic); err != nil {
			return err
		}
		got, err := franz{s.target.Addr()}.consume(ctx, query{topic: topic, committed: true})
		if err != nil {
			return err
		}
		return differ("read committed", compare(before, got, false))
	})
	s.check(t, c, "transaction-abort", func(ctx context.Context) error {
		topic := "abort-by-" + c.name()
		if err := s.topic(ctx, topic, 1); err != nil {
			return err
		}
		if err := c.produce(ctx, batch{topic: topic, codec: "none", records: before, transactionalID: topic, abort: true}); err != nil {
			return err
		}
		f := franz{s.target.Addr()}
		if err := f.produce(ctx, batch{topic: topic, codec: "none", records: after}); err != nil {
			return err
		}
		if err := s.decided(ctx, topic); err != nil {
			return err
		}
		got, err := f.consume(ctx, query{topic: topic, committed: true})
		if err != nil {
			return err
		}
		if err := differ("read committed", compare(after, got, false)); err != nil {
			return err
		}
		if got, err = f.consume(ctx, query{topic: topic}); err != nil {
			return err
		}
		return differ("read uncommitted", compare(append(before[:len(before):len(before)], after...), got, false))
	})
}

// decided waits until no transaction is open on a one-partition topic: EndTxn is answered before the markers
// are written.
func (s *suite) decided(ctx context.Context, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.target.Addr()))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	return eventually(ctx, func() error {
		stable, err := adm.ListCommittedOffsets(ctx, topic)
		if err != nil {
			return err
		}
		end, err := adm.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		a, _ := stable.Lookup(topic, 0)
		b, _ := end.Lookup(topic, 0)
		if err := errors.Join(a.Err, b.Err); err != nil {
			return err
		}
		if a.Offset != b.Offset {
			return fmt.Errorf("%s has last stable offset %d and high watermark %d", topic, a.Offset, b.Offset)
		}
		return nil
	})
}

// read has every client read what every client wrote, and what is hard to read.
func (s *suite) read(t *testing.T) {
	truth := map[string][]record{}
	var mu sync.Mutex
	s.each(t, "mixture", func(t *testing.T, c client) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		want, err := s.mixture(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		truth[c.name()] = want
	})
	specialErr := s.special()
	if specialErr != nil {
		t.Errorf("what only one client writes for all to read: %v", specialErr)
	}
	s.each(t, "read", func(t *testing.T, c client) {
		for _, from := range s.clients {
			s.check(t, c, "read-"+from.name(), func(ctx context.Context) error {
				want, ok := truth[from.name()]
				if !ok {
					return errors.New("there is nothing to read: it could not be written")
				}
				got, err := c.consume(ctx, query{topic: "mixture-by-" + from.name(), count: len(want)})
				if err != nil {
					return err
				}
				if _, _, blind := limitOf(c.name(), "read-empty"); blind {
					want, got = fold(want), fold(got)
				}
				want, got = seenBy(c, want), seenBy(c, byPosition(got))
				return differ("mixture-by-"+from.name(), compare(want, got, true))
			})
		}
		s.check(t, c, "read-empty", func(ctx context.Context) error {
			if specialErr != nil {
				return specialErr
			}
			got, err := c.consume(ctx, query{topic: "special-empty", count: len(nullRecords) + len(emptyRecords)})
			if err != nil {
				return err
			}
			return differ("special-empty", compare(slices.Concat(nullRecords, emptyRecords), got, false))
		})
		s.check(t, c, "read-binary", func(ctx context.Context) error {
			if specialErr != nil {
				return specialErr
			}
			got, err := c.consume(ctx, query{topic: "special-binary", count: len(binaryRecords), binary: true})
			if err != nil {
				return err
			}
			return differ("special-binary", compare(binaryRecords, got, false))
		})
		all := slices.Concat(plainRecords("first")[:3], plainRecords("second")[:3], plainRecords("third")[:3])
		kept := slices.Concat(all[:3], all[6:])
		s.check(t, c, "read-committed", func(ctx context.Context) error {
			if specialErr != nil {
				return specialErr
			}
			got, err := c.consume(ctx, query{topic: "special-transactions", count: len(kept), committed: true})
			if err != nil {
				return err
			}
			return differ("special-transactions", compare(kept, got, false))
		})
		s.check(t, c, "read-uncommitted", func(ctx context.Context) error {
			if specialErr != nil {
				return specialErr
			}
			got, err := c.consume(ctx, query{topic: "special-transactions", count: len(all)})
			if err != nil {
				return err
			}
			return differ("special-transactions", compare(all, got, false))
		})
	})
}

// fold makes what is empty null.
func fold(records []record) []record {
	records = slices.Clone(records)
	for i, r := range records {
		for _, b := range []*[]byte{&records[i].Key, &records[i].Value} {
			if len(*b) == 0 {
				*b = nil
			}
		}
		records[i].Headers = slices.Clone(r.Headers)
		for j, h := range r.Headers {
			if len(h.Value) == 0 {
				records[i].Headers[j].Value = nil
			}
		}
	}
	return records
}

// mixture has a client write all that it can, with every codec, to one topic, and returns what is stored.
func (s *suite) mixture(ctx context.Context, c client) ([]record, error) {
	topic := "mixture-by-" + c.name()
	if err := s.topic(ctx, topic, 1); err != nil {
		return nil, err
	}
	var want []record
	for _, codec := range codecs {
		var records []record
		for _, w := range writes {
			_, _, limited := limitOf(c.name(), w.name)
			if w.name == "write-timestamp" && !limited {
				// It shares a batch with times of today here.
				_, _, limited = limitOf(c.name(), "write-timestamps")
			}
			if limited || w.name == "write-binary" || w.name == "write-partition" ||
				strings.HasPrefix(w.name, "codec-") && w.codec != codec {
				continue
			}
			records = append(records, w.records...)
		}
		if err := c.produce(ctx, batch{topic: topic, codec: codec, records: records}); err != nil {
			return nil, err
		}
		want = append(want, records...)
	}
	got, err := franz{s.target.Addr()}.consume(ctx, query{topic: topic})
	if err != nil {
		return nil, err
	}
	return got, differ(topic, compare(want, got, false))
}

// special writes the topics that not every client can write.
func (s *suite) special() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := franz{s.target.Addr()}
	if err := errors.Join(s.topic(ctx, "special-binary", 1), s.topic(ctx, "special-empty", 1), s.topic(ctx, "special-transactions", 1)); err != nil {
		return err
	}
	if err := f.produce(ctx, batch{topic: "special-binary", codec: "lz4", records: binaryRecords}); err != nil {
		return err
	}
	empty := batch{topic: "special-empty", codec: "none", records: slices.Concat(nullRecords, emptyRecords)}
	if err := f.produce(ctx, empty); err != nil {
		return err
	}
	for _, part := range []struct {
		key   string
		abort bool
	}{{"first", false}, {"second", true}, {"third", false}} {
		b := batch{topic: "special-transactions", codec: "none", records: plainRecords(part.key)[:3], transactionalID: "special", abort: part.abort}
		if err := f.produce(ctx, b); err != nil {
			return err
		}
	}
	return s.decided(ctx, "special-transactions")
}

func (s *suite) groups(t *testing.T, c client) {
	s.check(t, c, "rebalance", func(ctx context.Context) error { return s.rebalance(ctx, c, "classic") })
	s.check(t, c, "rebalance-consumer", func(ctx context.Context) error { return s.rebalance(ctx, c, "consumer") })
}

// rebalance has a second member come and go while records are written: both get a share, then the first
// has everything again, no record is missed, and the last commit is at the end.
func (s *suite) rebalance(ctx context.Context, c client, protocol string) error {
	const partitions = 4
	topic, group := "rebalance-"+protocol+"-by-"+c.name(), "rebalance-"+protocol+"-"+c.name()
	if err := s.topic(ctx, topic, partitions); err != nil {
		return err
	}
	f := franz{s.target.Addr()}
	rounds := 0
	// round writes one record to each partition and returns their value.
	round := func() (string, error) {
		value := fmt.Sprintf("round %d", rounds)
		rounds++
		var records []record
		for p := range int32(partitions) {
			records = append(records, record{Partition: p, Key: []byte("k"), Value: []byte(value)})
		}
		return value, f.produce(ctx, batch{topic: topic, codec: "none", records: records})
	}
	// has counts the partitions of which a member saw this round.
	has := func(m member, value string) (int, error) {
		records, err := m.records()
		if err != nil {
			return 0, err
		}
		of := map[int32]bool{}
		for _, r := range records {
			if string(r.Value) == value {
				of[r.Partition] = true
			}
		}
		return len(of), nil
	}
	// until writes rounds until one comes out as wanted.
	until := func(what string, done func(value string) (bool, error)) error {
		for {
			value, err := round()
			if err != nil {
				return err
			}
			for wait := 0; wait < 10; wait++ {
				ok, err := done(value)
				if err != nil {
					return err
				}
				if ok {
					return nil
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("%s: not in time", what)
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
	}

	first, err := c.join(ctx, topic, group, protocol)
	if err != nil {
		return err
	}
	gone := false
	defer func() {
		if !gone {
			_, _ = first.leave()
		}
	}()
	err = until("the first member has all partitions", func(v string) (bool, error) {
		n, err := has(first, v)
		return n == partitions, err
	})
	if err != nil {
		return err
	}
	second, err := c.join(ctx, topic, group, protocol)
	if err != nil {
		return err
	}
	err = until("both members have a share", func(v string) (bool, error) {
		a, err := has(first, v)
		if err != nil {
			return false, err
		}
		b, err := has(second, v)
		return a > 0 && b > 0 && a+b == partitions, err
	})
	seen, err2 := second.leave()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	err = until("the first member has all partitions again", func(v string) (bool, error) {
		n, err := has(first, v)
		return n == partitions, err
	})
	if err != nil {
		return err
	}
	gone = true
	more, err := first.leave()
	if err != nil {
		return err
	}
	missing := map[string]bool{}
	for r := range rounds {
		for p := range partitions {
			missing[fmt.Sprintf("round %d of partition %d", r, p)] = true
		}
	}
	for _, r := range append(seen, more...) {
		delete(missing, fmt.Sprintf("%s of partition %d", r.Value, r.Partition))
	}
	if len(missing) > 0 {
		return mismatch(fmt.Sprintf("%d records of %d reached no member: %v", len(missing), rounds*partitions, missing))
	}
	return eventually(ctx, func() error {
		for p := range int32(partitions) {
			at, err := s.committed(ctx, group, topic, p)
			if err != nil {
				return err
			}
			if at != int64(rounds) {
				return mismatch(fmt.Sprintf("partition %d is committed at %d, its end is %d", p, at, rounds))
			}
		}
		return nil
	})
}

func (s *suite) committed(ctx context.Context, group, topic string, partition int32) (int64, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.target.Addr()))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	offsets, err := kadm.NewClient(cl).FetchOffsets(ctx, group)
	if err != nil {
		return 0, err
	}
	o, ok := offsets.Lookup(topic, partition)
	if !ok {
		return 0, fmt.Errorf("group %s has no offset for %s-%d", group, topic, partition)
	}
	return o.At, o.Err
}

// resume has every client read a part of a topic in a group, ends the broker, first with TERM and then with
// KILL, starts it again, and has every client go on exactly where it stopped.
func (s *suite) resume(t *testing.T) {
	const parts, size = 3, 7
	s.each(t, "resume-begin", func(t *testing.T, c client) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.topic(ctx, "resume-"+c.name(), 1); err != nil {
			t.Fatal(err)
		}
		f := franz{s.target.Addr()}
		if err := f.produce(ctx, batch{topic: "resume-" + c.name(), codec: "zstd", records: plainRecords("resume")[:parts*size]}); err != nil {
			t.Fatal(err)
		}
		s.check(t, c, "commit", s.part(c, 0, size))
	})
	for i, end := range []struct {
		name string
		stop func() error
	}{
		{"resume-after-stop", s.target.Stop},
		{"resume-after-kill", func() error { s.target.Kill(); return nil }},
	} {
		if err := end.stop(); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := s.target.Start(ctx)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		s.each(t, end.name, func(t *testing.T, c client) {
			s.check(t, c, end.name, s.part(c, (i+1)*size, size))
		})
	}
}

// part reads the next size records of a client's topic in its group, which have to start at offset from.
func (s *suite) part(c client, from, size int) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		topic := "resume-" + c.name()
		got, err := c.group(ctx, topic, topic, size)
		if err != nil {
			return err
		}
		if len(got) > 0 && got[0].Offset != int64(from) {
			return mismatch(fmt.Sprintf("starts at offset %d instead of %d", got[0].Offset, from))
		}
		if err := differ(topic, compare(plainRecords("resume")[from:from+size], got, false)); err != nil {
			return err
		}
		at, err := s.committed(ctx, topic, topic, 0)
		if err == nil && at != int64(from+size) {
			err = mismatch(fmt.Sprintf("committed at %d instead of %d", at, from+size))
		}
		return err
	}
}
