package consumer

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// patience is how long anything may take that ought to be quick, on a busy machine.
const patience = 20 * time.Second

// scriptedLog is one partition as its leader sees it.
type scriptedLog struct {
	leader         int32 // -1: none
	epoch          int32
	reigns         []reign
	start, hw, end int64
	lso            int64 // -1: the high watermark
	stamp          func(offset int64) int64
	replica        int32 // that the leader tells consumers to read from; -1: none
}

func (l *scriptedLog) endOffsetFor(q int32) (int32, int64) {
	r := l.reigns
	switch n := len(r); {
	case q == -1 || n == 0 || q > r[n-1].epoch:
		return -1, -1
	case q == r[n-1].epoch:
		return q, l.end
	case q < r[0].epoch:
		return q, r[0].start
	}
	h := history{r}
	return h.endOffsetFor(q, l.end)
}

func (l *scriptedLog) epochOf(offset int64) int32 {
	h := history{l.reigns}
	return orMinus(h.epochBefore(offset + 1))
}

// elect makes a node the leader of a new epoch, with a log of its own.
func (l *scriptedLog) elect(node, epoch int32, reigns []reign, end int64) {
	l.leader, l.epoch, l.reigns, l.end, l.hw = node, epoch, reigns, end, end
}

// batches are the records from an offset on, at most 100 to a batch and one batch for each epoch at a time.
func (l *scriptedLog) batches(offset int64) []byte {
	var all []byte
	for n := 0; offset < l.hw && n < 5; n++ {
		epoch := l.epochOf(offset)
		b := record.NewBuilder(record.BuilderOptions{BaseOffset: offset})
		for range 100 {
			if offset >= l.hw || l.epochOf(offset) != epoch {
				break
			}
			ts := offset
			if l.stamp != nil {
				ts = l.stamp(offset)
			}
			if err := b.Append(ts, nil, fmt.Appendf(nil, "%d@%d", offset, epoch), nil); err != nil {
				panic(err)
			}
			offset++
		}
		batch := b.Bytes()
		batch.SetPartitionLeaderEpoch(epoch)
		all = append(all, batch...)
	}
	return all
}

type scriptedCommit struct {
	offset   int64
	epoch    int32
	metadata string
}

// cluster answers as brokers do, from logs that the test changes, and by the test's own word where it wants to.
type scriptedCluster struct {
	t     testing.TB
	addrs []string
	stop  []func()
	wg    sync.WaitGroup

	mu       sync.Mutex
	id       [16]byte
	topic    string
	logs     []*scriptedLog
	commits  map[int32]scriptedCommit
	answer   map[int16]func(node int32, req kmsg.Request) kmsg.Response // nil from it: the usual answer
	max      map[int16]int16
	seen     []string
	metadata int
	change   chan struct{} // closed at each change
}

// script starts brokers 1 to n, with one topic of one empty partition that 1 leads in epoch 5.
func script(t testing.TB, n int) *scriptedCluster {
	t.Helper()
	s := &scriptedCluster{t: t, topic: "t", id: [16]byte{1}, commits: map[int32]scriptedCommit{}, answer: map[int16]func(int32, kmsg.Request) kmsg.Response{}, max: map[int16]int16{}, change: make(chan struct{})}
	s.logs = []*scriptedLog{{leader: 1, epoch: 5, lso: -1, replica: -1}}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.addrs = append(s.addrs, l.Addr().String())
		s.stop = append(s.stop, func() { l.Close() })
		s.wg.Go(func() { s.serve(int32(i+1), l) })
	}
	t.Cleanup(func() {
		s.mu.Lock()
		stop := s.stop
		s.mu.Unlock()
		for _, f := range stop {
			f()
		}
		s.set(func() {})
		s.wg.Wait()
	})
	return s
}

// set changes the cluster, and ends the waits of fetches.
func (s *scriptedCluster) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.change)
	s.change = make(chan struct{})
}

func (s *scriptedCluster) serve(node int32, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.stop = append(s.stop, func() { conn.Close() })
		s.mu.Unlock()
		s.wg.Go(func() { s.converse(node, conn) })
	}
}

func (s *scriptedCluster) converse(node int32, conn net.Conn) {
	defer conn.Close()
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, frame); err != nil {
			return
		}
		r := kbin.Reader{Src: frame}
		key, version, correlation := r.Int16(), r.Int16(), r.Int32()
		r.NullableString()
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.IsFlexible() {
			kmsg.SkipTags(&r)
		}
		if err := req.ReadFrom(r.Src); err != nil {
			s.t.Errorf("request %d v%d: %v", key, version, err)
			return
		}
		resp := s.reply(node, req)
		if resp == nil {
			return
		}
		resp.SetVersion(version)
		out := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(correlation))
		if resp.IsFlexible() && key != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func (s *scriptedCluster) reply(node int32, req kmsg.Request) kmsg.Response {
	s.mu.Lock()
	answer := s.answer[req.Key()]
	s.mu.Unlock()
	if answer != nil {
		if resp := answer(node, req); resp != nil {
			return resp
		}
	}
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return s.apiVersions()
	case *kmsg.MetadataRequest:
		return s.metadataOf()
	case *kmsg.FindCoordinatorRequest:
		resp := r.ResponseKind().(*kmsg.FindCoordinatorResponse)
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID, c.Host, c.Port = "g", 1, "127.0.0.1", s.port(1)
		resp.Coordinators = append(resp.Coordinators, c)
		return resp
	case *kmsg.OffsetFetchRequest:
		return s.committed(r)
	case *kmsg.OffsetCommitRequest:
		return s.commit(r)
	case *kmsg.ListOffsetsRequest:
		return s.offsets(node, r)
	case *kmsg.OffsetForLeaderEpochRequest:
		return s.epochs(node, r)
	case *kmsg.FetchRequest:
		return s.fetch(node, r)
	}
	s.t.Errorf("no answer to %T", req)
	return nil
}

func (s *scriptedCluster) port(node int32) int32 {
	_, port, _ := net.SplitHostPort(s.addrs[node-1])
	var n int32
	fmt.Sscan(port, &n)
	return n
}

func (s *scriptedCluster) apiVersions() kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, most := range map[int16]int16{0: 9, 1: 17, 2: 8, 3: 12, 8: 9, 9: 9, 10: 4, 18: 3, 23: 4} {
		if m, ok := s.max[key]; ok {
			most = m
		}
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MaxVersion = key, most
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

func (s *scriptedCluster) metadataOf() kmsg.Response {
	resp := kmsg.NewPtrMetadataResponse()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metadata++
	for i := range s.addrs {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = int32(i+1), "127.0.0.1", s.port(int32(i+1))
		resp.Brokers = append(resp.Brokers, b)
	}
	t := kmsg.NewMetadataResponseTopic()
	t.Topic, t.TopicID = kmsg.StringPtr(s.topic), s.id
	for i, l := range s.logs {
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch = int32(i), l.leader, l.epoch
		t.Partitions = append(t.Partitions, p)
	}
	resp.Topics = append(resp.Topics, t)
	return resp
}

func (s *scriptedCluster) committed(r *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.OffsetFetchResponse)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range r.Groups {
		out := kmsg.NewOffsetFetchResponseGroup()
		out.Group = g.Group
		for _, t := range g.Topics {
			topic := kmsg.NewOffsetFetchResponseGroupTopic()
			topic.Topic = t.Topic
			for _, n := range t.Partitions {
				p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
				p.Partition, p.Offset, p.LeaderEpoch = n, -1, -1
				if c, ok := s.commits[n]; ok {
					p.Offset, p.LeaderEpoch, p.Metadata = c.offset, c.epoch, kmsg.StringPtr(c.metadata)
				}
				topic.Partitions = append(topic.Partitions, p)
			}
			out.Topics = append(out.Topics, topic)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

func (s *scriptedCluster) commit(r *kmsg.OffsetCommitRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.OffsetCommitResponse)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range r.Topics {
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			c := scriptedCommit{p.Offset, p.LeaderEpoch, ""}
			if p.Metadata != nil {
				c.metadata = *p.Metadata
			}
			s.commits[p.Partition] = c
			out := kmsg.NewOffsetCommitResponseTopicPartition()
			out.Partition = p.Partition
			topic.Partitions = append(topic.Partitions, out)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

// check is what every broker looks at first.
func (l *scriptedLog) check(node, current int32, leader bool) int16 {
	switch {
	case current >= 0 && current < l.epoch:
		return 74
	case current > l.epoch:
		return 75
	case leader && node != l.leader:
		return 6
	}
	return 0
}

func (s *scriptedCluster) offsets(node int32, r *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range r.Topics {
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			l := s.logs[p.Partition]
			out := kmsg.NewListOffsetsResponseTopicPartition()
			out.Partition, out.Offset, out.LeaderEpoch, out.Timestamp = p.Partition, -1, -1, -1
			s.note("offsets %d/%d %d at %d", p.Partition, p.CurrentLeaderEpoch, min(p.Timestamp, 0), node)
			if out.ErrorCode = l.check(node, p.CurrentLeaderEpoch, true); out.ErrorCode == 0 {
				switch {
				case p.Timestamp == -2:
					out.Offset, out.LeaderEpoch = l.start, l.epochOf(l.start)
				case p.Timestamp == -1:
					out.Offset, out.LeaderEpoch = l.hw, l.epoch
				default:
					for o := l.start; o < l.hw; o++ {
						if ts := l.stamp(o); ts >= p.Timestamp {
							out.Offset, out.LeaderEpoch, out.Timestamp = o, l.epochOf(o), ts
							break
						}
					}
				}
			}
			topic.Partitions = append(topic.Partitions, out)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (s *scriptedCluster) epochs(node int32, r *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range r.Topics {
		topic := kmsg.NewOffsetForLeaderEpochResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			l := s.logs[p.Partition]
			out := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			out.Partition, out.LeaderEpoch, out.EndOffset = p.Partition, -1, -1
			s.note("epoch %d/%d %d at %d", p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch, node)
			if out.ErrorCode = l.check(node, p.CurrentLeaderEpoch, true); out.ErrorCode == 0 {
				out.LeaderEpoch, out.EndOffset = l.endOffsetFor(p.LeaderEpoch)
			}
			topic.Partitions = append(topic.Partitions, out)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (s *scriptedCluster) fetch(node int32, r *kmsg.FetchRequest) kmsg.Response {
	for wait := time.Duration(r.MaxWaitMillis) * time.Millisecond; ; wait = 0 {
		s.mu.Lock()
		resp, something := s.fetchOnce(node, r)
		change := s.change
		s.mu.Unlock()
		if something || wait == 0 {
			return resp
		}
		select {
		case <-change:
		case <-time.After(wait):
		}
	}
}

func (s *scriptedCluster) fetchOnce(node int32, r *kmsg.FetchRequest) (resp *kmsg.FetchResponse, something bool) {
	resp = r.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range r.Topics {
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic, topic.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			l := s.logs[p.Partition]
			out := kmsg.NewFetchResponseTopicPartition()
			out.Partition, out.PreferredReadReplica = p.Partition, -1
			out.HighWatermark, out.LastStableOffset, out.LogStartOffset = -1, -1, -1
			out.RecordBatches = []byte{}
			s.note("fetch %d/%d %d at %d", p.Partition, p.CurrentLeaderEpoch, p.FetchOffset, node)
			code := l.check(node, p.CurrentLeaderEpoch, false)
			epoch, end := l.endOffsetFor(p.LastFetchedEpoch)
			switch {
			case r.Version >= 13 && t.TopicID != s.id:
				code = 100
			case code != 0:
			case node == l.leader && l.replica >= 0:
				out.PreferredReadReplica = l.replica
				something = true
			case p.LastFetchedEpoch >= 0 && epoch < 0, p.FetchOffset < l.start, p.LastFetchedEpoch < 0 && p.FetchOffset > l.end:
				code = 1
			case p.LastFetchedEpoch >= 0 && (epoch < p.LastFetchedEpoch || end < p.FetchOffset):
				out.DivergingEpoch.Epoch, out.DivergingEpoch.EndOffset = epoch, end
				something = true
			default:
				out.HighWatermark, out.LastStableOffset, out.LogStartOffset = l.hw, l.hw, l.start
				if out.RecordBatches = l.batches(p.FetchOffset); len(out.RecordBatches) > 0 {
					something = true
				}
			}
			out.ErrorCode = code
			something = something || code != 0
			topic.Partitions = append(topic.Partitions, out)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp, something
}

func (s *scriptedCluster) note(format string, args ...any) {
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// noted is the requests so far that begin with a word.
func (s *scriptedCluster) noted(word string) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.seen {
		if strings.HasPrefix(line, word) {
			found = append(found, line)
		}
	}
	return found
}

// eventually waits for a condition that a change of the cluster's notes brings about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in %v", what, patience)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// reader is a consumer under test and what it was told.
type reader struct {
	*Consumer
	t      testing.TB
	mu     sync.Mutex
	events []ResetEvent
	log    strings.Builder
}

var tp0 = TopicPartition{"t", 0}

// read starts a consumer of the topic's first partition.
func (s *scriptedCluster) read(change func(*Options)) *reader {
	s.t.Helper()
	r := &reader{t: s.t}
	o := Options{
		BootstrapServers: s.addrs, RetryBackoff: 5 * time.Millisecond, FetchMaxWait: 20 * time.Millisecond, MaxPollRecords: 100000,
		DisableAutoCommit: true, GroupID: "g", Logger: slog.New(slog.NewTextHandler(lockedWriter{r}, nil)),
		OnReset: func(ev ResetEvent) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, ev)
		},
	}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Consumer = c
	s.t.Cleanup(func() {
		ctx, cancel := contextWithPatience()
		defer cancel()
		if err := c.Close(ctx); err != nil {
			s.t.Error(err)
		}
	})
	if err := c.Assign(tp0); err != nil {
		s.t.Fatal(err)
	}
	return r
}

type lockedWriter struct{ r *reader }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.log.Write(b)
}

func (r *reader) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// happened is the events so far.
func (r *reader) happened() []ResetEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// upTo reads to an offset and returns the values of the records.
func (r *reader) upTo(offset int64) (values []string) {
	r.t.Helper()
	ctx, cancel := contextWithPatience()
	defer cancel()
	for record, err := range r.Records(ctx) {
		if err != nil {
			r.t.Fatal(err)
		}
		values = append(values, string(record.Value))
		if record.Offset >= offset-1 {
			return values
		}
	}
	r.t.Fatalf("not read up to %d: %d records", offset, len(values))
	return nil
}

// fails polls until an error.
func (r *reader) fails() error {
	r.t.Helper()
	ctx, cancel := contextWithPatience()
	defer cancel()
	for {
		f, err := r.Poll(ctx)
		if ctx.Err() != nil {
			r.t.Fatal("no error")
		}
		if err != nil {
			return err
		}
		for range f.Records() {
		}
	}
}

// awaitEvent polls until there are n events.
func (r *reader) awaitEvents(n int) []ResetEvent {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d events", n), func() bool {
		ctx, cancel := contextFor(10 * time.Millisecond)
		defer cancel()
		if f, err := r.Poll(ctx); err == nil {
			for range f.Records() {
			}
		}
		return len(r.happened()) >= n
	})
	return r.happened()
}

// damage answers fetches with records in which the batch at an offset is damaged.
func (s *scriptedCluster) damage(at int64) func(int32, kmsg.Request) kmsg.Response {
	return func(node int32, req kmsg.Request) kmsg.Response {
		resp := s.fetch(node, req.(*kmsg.FetchRequest)).(*kmsg.FetchResponse)
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				p := &resp.Topics[i].Partitions[j]
				for b := range record.Batches(p.RecordBatches) {
					if b.BaseOffset() == at {
						b[len(b)-1]++
					}
				}
			}
		}
		return resp
	}
}
