package replica

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Traffic counts what was written to partitions and read from them since the process began. Requests count once for
// each partition in them, as Kafka's BrokerTopicMetrics do.
type Traffic struct {
	RecordsIn, BytesIn int64 // appended; retries that were stored before do not count again
	BytesRejected      int64 // of batches that were not appended
	BytesOut           int64 // given to consumers
	BytesOutFollowers  int64 // given to followers
	Produces           int64
	ProducesFailed     int64
	Fetches            int64 // by consumers
	FetchesFailed      int64
}

// TopicTraffic is the traffic of one topic.
type TopicTraffic struct {
	Topic string
	Traffic
}

// traffic is a Traffic in the making.
type traffic struct {
	recordsIn, bytesIn, bytesRejected, bytesOut, bytesOutFollowers atomic.Int64
	produces, producesFailed, fetches, fetchesFailed               atomic.Int64
}

func (t *traffic) read() Traffic {
	return Traffic{
		RecordsIn: t.recordsIn.Load(), BytesIn: t.bytesIn.Load(), BytesRejected: t.bytesRejected.Load(),
		BytesOut: t.bytesOut.Load(), BytesOutFollowers: t.bytesOutFollowers.Load(),
		Produces: t.produces.Load(), ProducesFailed: t.producesFailed.Load(),
		Fetches: t.fetches.Load(), FetchesFailed: t.fetchesFailed.Load(),
	}
}

func (t *traffic) produced(r *ProduceResult, size int, duplicate bool) {
	t.produces.Add(1)
	switch {
	case r.Err != nil:
		t.producesFailed.Add(1)
		t.bytesRejected.Add(int64(size))
	case !duplicate:
		t.recordsIn.Add(r.LastOffset - r.BaseOffset + 1)
		t.bytesIn.Add(int64(size))
	}
}

func (t *traffic) fetched(f *FetchedPartition, consumer bool) {
	if !consumer {
		t.bytesOutFollowers.Add(int64(f.Records.Length))
		return
	}
	t.fetches.Add(1)
	t.bytesOut.Add(int64(f.Records.Length))
	if f.Err != nil {
		t.fetchesFailed.Add(1)
	}
}

// topicTraffic is the traffic of one topic, shared by its partitions here.
type topicTraffic struct {
	traffic
	partitions int  // that are here
	shown      bool // has its own place in the list
}

// trafficTable holds the traffic of every topic that has a partition here, and of all together.
type trafficTable struct {
	all traffic

	mu     sync.Mutex // guards all below
	topics map[string]*topicTraffic
	shown  int
}

// join returns the traffic of a topic that gets one partition more.
func (t *trafficTable) join(topic string) *topicTraffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.topics == nil {
		t.topics = map[string]*topicTraffic{}
	}
	own := t.topics[topic]
	if own == nil {
		own = &topicTraffic{}
		t.topics[topic] = own
	}
	own.partitions++
	return own
}

// leave forgets a topic with its last partition.
func (t *trafficTable) leave(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.topics[topic]
	if own == nil {
		return
	}
	if own.partitions--; own.partitions > 0 {
		return
	}
	delete(t.topics, topic)
	if own.shown {
		t.shown--
	}
}

// list shows at most limit topics by name. A topic takes a place when it has had traffic, the busiest first, and keeps
// it until it is gone, so that no counter jumps.
func (t *trafficTable) list(limit int) []TopicTraffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	var shown, waiting []TopicTraffic
	for name, own := range t.topics {
		switch now := own.read(); {
		case own.shown:
			shown = append(shown, TopicTraffic{name, now})
		case now != Traffic{}:
			waiting = append(waiting, TopicTraffic{name, now})
		}
	}
	slices.SortFunc(waiting, func(a, b TopicTraffic) int {
		return cmp.Or(cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut), cmp.Compare(a.Topic, b.Topic))
	})
	room := min(max(0, limit-t.shown), len(waiting))
	for _, w := range waiting[:room] {
		t.topics[w.Topic].shown = true
	}
	t.shown += room
	shown = append(shown, waiting[:room]...)
	slices.SortFunc(shown, func(a, b TopicTraffic) int { return cmp.Compare(a.Topic, b.Topic) })
	return shown
}

// Traffic is what went through all partitions of this broker, also those that are gone, and requests for partitions
// that are not here.
func (m *Manager) Traffic() Traffic { return m.traffic.all.read() }

// TopicTraffic is the traffic of the topics that are here, by name: of at most limit of them, of which each keeps its
// place until it is gone.
func (m *Manager) TopicTraffic(limit int) []TopicTraffic { return m.traffic.list(limit) }
