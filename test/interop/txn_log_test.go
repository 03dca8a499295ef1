//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	batches "github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
	"github.com/stelelog/stele/test/reference"
)

const (
	txnLogTopic     = "txn-log"
	coordinatorTerm = 7 // the epoch in which all markers are written
)

// txnWriter writes transactions of made up producers into one partition, where partitions are not verified, and knows
// what a log with them has to say.
type txnWriter struct {
	ctx  context.Context
	conn *wire.Conn
	end  int64 // of the log

	sequence  map[int64]int32
	first     map[int64]int64    // offset of each open transaction, by producer
	pending   map[int64][]record // records in it
	committed []record           // and records outside of transactions
	aborts    []string           // lines of the transaction indexes, as Kafka's tool prints them
	markers   map[string]int     // by kind
}

func newTxnWriter(ctx context.Context, addr string) (*txnWriter, error) {
	conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, addr, wire.DialOptions{})
	if err != nil {
		return nil, err
	}
	return &txnWriter{ctx: ctx, conn: conn, sequence: map[int64]int32{}, first: map[int64]int64{}, pending: map[int64][]record{}, markers: map[string]int{}}, nil
}

// produce appends n records at a time; id below 0 is no producer, and only those of transactions have one.
func (w *txnWriter) produce(id int64, n int, codec batches.Codec, at int64) error {
	o := batches.BuilderOptions{Codec: codec}
	if id >= 0 {
		o.Producer, o.Transactional = &batches.Producer{ID: id, Epoch: 2, BaseSequence: w.sequence[id]}, true
	}
	b := batches.NewBuilder(o)
	var records []record
	for i := range n {
		r := record{Offset: w.end + int64(i), Timestamp: at, Key: fmt.Appendf(nil, "k%d", id), Value: fmt.Appendf(nil, "offset %d", w.end+int64(i))}
		if err := b.Append(at, r.Key, r.Value, nil); err != nil {
			return err
		}
		records = append(records, r)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10000
	if name := "made-up"; id >= 0 {
		req.TransactionID = &name
	}
	topic := kmsg.NewProduceRequestTopic()
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = b.Bytes()
	topic.Topic, topic.Partitions = txnLogTopic, append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	resp, err := w.conn.RequestVersion(w.ctx, req, 11)
	if err != nil {
		return err
	}
	got := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil || got.BaseOffset != w.end {
		return fmt.Errorf("produce: %w, at %d instead of %d", err, got.BaseOffset, w.end)
	}
	if id < 0 {
		w.committed = append(w.committed, records...)
	} else {
		if _, open := w.first[id]; !open {
			w.first[id] = w.end
		}
		w.pending[id] = append(w.pending[id], records...)
		w.sequence[id] += int32(n)
	}
	w.end += int64(n)
	return nil
}

func (w *txnWriter) finish(id int64, commit bool) error {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch = id, 2, commit, coordinatorTerm
	topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = txnLogTopic, []int32{0}
	m.Topics = append(m.Topics, topic)
	req.Markers = append(req.Markers, m)
	resp, err := w.conn.Request(w.ctx, req)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.(*kmsg.WriteTxnMarkersResponse).Markers[0].Topics[0].Partitions[0].ErrorCode); err != nil {
		return err
	}
	w.ended(id, commit)
	return nil
}

// ended notes the marker at the end of the log.
func (w *txnWriter) ended(id int64, commit bool) {
	first, records := w.first[id], w.pending[id]
	delete(w.first, id)
	delete(w.pending, id)
	if commit {
		w.committed = append(w.committed, records...)
		w.markers["COMMIT"]++
	} else {
		w.aborts = append(w.aborts, fmt.Sprintf("version: 0 producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d", id, first, w.end, min(w.stable(), w.end+1)))
		w.markers["ABORT"]++
	}
	w.end++
}

// stable is the last stable offset.
func (w *txnWriter) stable() int64 {
	lso := w.end + 1
	for _, first := range w.first {
		lso = min(lso, first)
	}
	return lso
}

// visible is what read_committed sees, in order.
func (w *txnWriter) visible() []record {
	lso := w.stable()
	all := slices.DeleteFunc(slices.Clone(w.committed), func(r record) bool { return r.Offset >= lso })
	return byPosition(all)
}

// run writes a random mix that leaves the transaction of producer hanging open, with more behind it.
func (w *txnWriter) run(random *rand.Rand, hanging int64) error {
	codec := func() batches.Codec { return batches.Codec(random.IntN(5)) }
	start := time.Now().Add(-50 * time.Minute)
	for i := range 120 {
		// Markers have the broker's time, which is minutes away from the records': segments roll between them.
		at := start.Add(time.Duration(i) * 20 * time.Second).UnixMilli()
		id := 90001 + random.Int64N(4)
		_, open := w.first[id]
		var err error
		switch dice := random.IntN(10); {
		case dice < 2:
			err = w.produce(-1, 1+random.IntN(4), codec(), at)
		case dice < 7 || !open:
			err = w.produce(id, 1+random.IntN(5), codec(), at)
		default:
			err = w.finish(id, random.IntN(2) == 0)
		}
		if err != nil {
			return err
		}
	}
	// One that everybody sees is the last below what hangs: by it the clients here know that they are at the end.
	if err := errors.Join(w.produce(-1, 1, batches.None, time.Now().UnixMilli()), w.produce(hanging, 3, batches.None, time.Now().UnixMilli())); err != nil {
		return err
	}
	for id := range int64(4) {
		if _, open := w.first[90001+id]; open {
			if err := w.finish(90001+id, id%2 == 0); err != nil {
				return err
			}
		}
	}
	return w.produce(-1, 2, batches.None, time.Now().UnixMilli())
}

// TestTransactionsInTheLog: transactions that are written without a coordinator (its requests are made here) are read by
// everybody's consumers exactly as they were committed, up to one that hangs; Kafka's tool describes the producers and ends
// the hanging transaction; and Kafka reads the files that are left: logs, transaction indexes and producer snapshots by its
// dump tool, and all of it as a broker of its own.
func TestTransactionsInTheLog(t *testing.T) {
	target := newTarget(t, "transaction.partition.verification.enable=false")
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	if err := createTopic(ctx, target.Addr(), txnLogTopic, 1, map[string]string{"segment.ms": "600000", "index.interval.bytes": "200"}); err != nil {
		t.Fatal(err)
	}
	w, err := newTxnWriter(ctx, target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer w.conn.Close()
	const hanging = 90009
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	if err := w.run(rand.New(rand.NewPCG(seed, 1)), hanging); err != nil {
		t.Fatal(err)
	}
	from := w.first[hanging]

	java, err := newJava(target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer java.close()
	python, err := newPython(target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer python.close()
	clients := []client{franz{target.Addr()}, java, kcat{target.Addr()}, python, console{target.Addr()}}
	if !onKafka() {
		clients = append(clients, steleCLI{target.Addr()})
	}
	read := func(when string) {
		want := w.visible()
		for _, c := range clients {
			one, done := context.WithTimeout(ctx, time.Minute)
			got, err := c.consume(one, query{topic: txnLogTopic, count: len(want), committed: true})
			done()
			if err == nil {
				err = differ(when, compare(want, byPosition(got), true))
			}
			if err != nil {
				t.Errorf("%s, %s: %v", c.name(), when, err)
			}
			results.add(c.name(), "transactions-in-the-log-"+when, err == nil)
		}
	}
	read("hanging")

	tool := func(name string, want string, args ...string) {
		t.Helper()
		out, err := reference.Run(ctx, append([]string{"tool", "TransactionsCommand", "--bootstrap-server", target.Addr()}, args...)...)
		if err == nil && !regexp.MustCompile(want).MatchString(out) {
			err = fmt.Errorf("%q is not in\n%s", want, out)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		results.add("kafka-tools", name, err == nil)
	}
	at := []string{"--topic", txnLogTopic, "--partition", "0"}
	for id := int64(90001); id <= 90004; id++ {
		tool("transactions-describe-ended", fmt.Sprintf(`(?m)^%d\s+2\s+%d\s+%d\s+\d{13}\s+None`, id, coordinatorTerm, w.sequence[id]-1), append([]string{"describe-producers"}, at...)...)
	}
	tool("transactions-describe-hanging", fmt.Sprintf(`(?m)^%d\s+2\s+-1\s+2\s+\d{13}\s+%d`, hanging, from), append([]string{"describe-producers"}, at...)...)
	tool("transactions-abort", ``, append([]string{"abort", "--start-offset", fmt.Sprint(from)}, at...)...)
	tool("transactions-describe-aborted", fmt.Sprintf(`(?m)^%d\s+2\s+0\s+2\s+\d{13}\s+None`, hanging), append([]string{"describe-producers"}, at...)...)
	w.ended(hanging, false)
	read("aborted")
	if err := w.produce(hanging, 1, batches.LZ4, time.Now().UnixMilli()); err != nil { // open over the stop
		t.Fatal(err)
	}
	if err := target.Stop(); err != nil {
		t.Fatal(err)
	}
	w.dumped(t, target)
	if !onKafka() {
		w.takenOver(t, target.(*stele), hanging)
	}
}

// dumped compares the files with what the log has to hold.
func (w *txnWriter) dumped(t *testing.T, target target) {
	t.Helper()
	d := &dumper{t: t, dir: target.Data()}
	files := func(kind string) (found []string) {
		matches, err := filepath.Glob(filepath.Join(d.dir, txnLogTopic+"-0", "*."+kind))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range matches {
			rel, err := filepath.Rel(d.dir, m)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, rel)
		}
		return found
	}
	check := func(name string, f func() error) {
		err := f()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		results.add("kafka-dump", name, err == nil)
	}
	check("aborted-transactions", func() error {
		out, err := d.dump(w.ctx, files("txnindex"))
		if err != nil {
			return err
		}
		got := regexp.MustCompile(`(?m)^version: .*$`).FindAllString(out, -1)
		if !slices.Equal(got, w.aborts) {
			return fmt.Errorf("the indexes hold\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(w.aborts, "\n"))
		}
		return nil
	})
	check("markers", func() error {
		out, err := d.dump(w.ctx, files("log"), "--deep-iteration", "--print-data-log")
		for kind, n := range w.markers {
			if got := strings.Count(out, "endTxnMarker: "+kind+" coordinatorEpoch: "); got != n {
				err = errors.Join(err, fmt.Errorf("%d %s markers instead of %d", got, kind, n))
			}
		}
		if got := countRecords(out, txnLogTopic); int64(got) != w.end-int64(w.markers["COMMIT"]+w.markers["ABORT"]) {
			err = errors.Join(err, fmt.Errorf("%d records in a log that ends at %d", got, w.end))
		}
		return err
	})
	check("indexes-of-transactions", func() error {
		_, err := d.dump(w.ctx, append(files("index"), files("timeindex")...))
		return err
	})
	check("snapshots-of-transactions", func() error {
		snapshots := files("snapshot")
		out, err := d.dump(w.ctx, snapshots)
		if err != nil {
			return err
		}
		_, last, _ := strings.Cut(out, "Dumping "+snapshots[len(snapshots)-1])
		for id, sequence := range w.sequence {
			open := "None"
			if first, ok := w.first[id]; ok {
				open = fmt.Sprintf("(Some|Optional\\w*)[\\[(]%d[\\])]", first)
			} else {
				open = `(None|Optional\w*\.empty)`
			}
			term := coordinatorTerm
			if id == 90009 {
				term = 0 // the tool's
			}
			line := fmt.Sprintf(`producerId: %d producerEpoch: 2 coordinatorEpoch: %d currentTxnFirstOffset: %s lastTimestamp: \d+ .*lastSequence: %d`, id, term, open, sequence-1)
			if !regexp.MustCompile(line).MatchString(last) {
				err = errors.Join(err, fmt.Errorf("%s is not in%s", line, last))
			}
		}
		return err
	})
}

// takenOver starts Apache Kafka on the data directory.
func (w *txnWriter) takenOver(t *testing.T, s *stele, open int64) {
	t.Helper()
	node := &reference.Node{Dir: t.TempDir(), Port: s.port, ControllerPort: s.cport}
	if err := os.Symlink(s.Data(), filepath.Join(node.Dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node.Dir, "extra.properties"), []byte("transaction.partition.verification.enable=false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := node.Start(w.ctx); err != nil {
		text, _ := os.ReadFile(filepath.Join(node.Dir, "server.log"))
		t.Fatalf("%v\n%s", err, tail(string(text), 40))
	}
	t.Cleanup(node.Kill)
	check := func(name string) {
		t.Helper()
		want := w.visible()
		got, err := franz{node.Addr()}.consume(w.ctx, query{topic: txnLogTopic, committed: true})
		if err == nil {
			err = differ(name, compare(want, byPosition(got), true))
		}
		if err != nil {
			t.Errorf("Kafka on these files, %s: %v", name, err)
		}
		results.add("kafka-server", "transactions-"+name, err == nil)
	}
	check("taken-over")
	w.conn.Close()
	conn, err := wire.Dial(w.ctx, (&net.Dialer{}).DialContext, node.Addr(), wire.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w.conn = conn
	if err := errors.Join(w.produce(open, 2, batches.None, time.Now().UnixMilli()), w.finish(open, true)); err != nil {
		t.Errorf("Kafka goes on with the open transaction: %v", err)
	}
	check("gone-on-with")
}
