package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/txn"
)

// A Marker ends a transaction in partitions that one broker leads.
type Marker struct {
	ProducerID       int64
	ProducerEpoch    int16
	Commit           bool
	CoordinatorEpoch int32
	Version          int16 // of the transaction
	Partitions       []txn.TopicPartition
}

// A MarkerOutcome is what became of a marker in one partition.
type MarkerOutcome int

// MarkerRetry stands for all that may be different next time, MarkerWritten also for a partition that cannot hold
// markers, and MarkerRefused for one that has heard of a newer owner of the transaction.
const (
	MarkerRetry MarkerOutcome = iota
	MarkerWritten
	MarkerRefused
)

// The pause before a marker is sent again, doubled each time.
const (
	markerPause    = 20 * time.Millisecond
	maxMarkerPause = time.Second
)

// markersInRequest bounds what goes in one request to a broker.
const markersInRequest = 1000

type txnRunner = runner[*txn.Shard, *txn.Record]

// markerTask is a marker on its way, for those of its partitions that have no answer yet.
type markerTask struct {
	owner      *txnRunner
	load       int64 // which of the owner's loads
	marker     txn.Marker
	partitions []txn.TopicPartition
	tries      int
	at         time.Time // when it is to be sent again
}

// markerSender brings markers to the leaders of their partitions, until each has answered: one request at a time to
// each broker, with all that has come for it meanwhile. Partitions that are no more are done. Markers of a shard that has
// ended, or was loaded again, are dropped: the next coordinator sends them, in its epoch, or the same one does, anew.
type markerSender struct {
	host  *host[*txn.Shard, *txn.Record]
	write func(ctx context.Context, broker int32, markers []Marker) [][]MarkerOutcome

	mu     sync.Mutex
	inbox  []*markerTask
	hurry  bool // the metadata has changed: what waits may be sent now
	wake   chan struct{}
	end    context.CancelFunc
	closed chan struct{}

	// what follows belongs to the goroutine
	queues  map[int32][]*markerTask // by leader
	busy    map[int32]bool
	waiting []*markerTask
	results chan markerResult
}

type markerResult struct {
	broker   int32
	tasks    []*markerTask
	outcomes [][]MarkerOutcome
}

func newMarkerSender(h *host[*txn.Shard, *txn.Record], write func(context.Context, int32, []Marker) [][]MarkerOutcome) *markerSender {
	ctx, cancel := context.WithCancel(context.Background())
	m := &markerSender{
		host: h, write: write, wake: make(chan struct{}, 1), end: cancel, closed: make(chan struct{}),
		queues: map[int32][]*markerTask{}, busy: map[int32]bool{}, results: make(chan markerResult),
	}
	go m.run(ctx)
	return m
}

func (m *markerSender) close() {
	m.end()
	<-m.closed
}

// send takes markers from a shard's goroutine, and does not make it wait.
func (m *markerSender) send(owner *txnRunner, markers []txn.Marker) {
	m.mu.Lock()
	for _, marker := range markers {
		m.inbox = append(m.inbox, &markerTask{owner: owner, load: owner.loads.Load(), marker: marker, partitions: marker.Partitions})
	}
	m.mu.Unlock()
	m.signal()
}

// poke has what waits sent at once: a partition may have another leader, or be gone.
func (m *markerSender) poke() {
	m.mu.Lock()
	m.hurry = true
	m.mu.Unlock()
	m.signal()
}

func (m *markerSender) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *markerSender) run(ctx context.Context) {
	var requests sync.WaitGroup
	defer close(m.closed)
	defer requests.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		m.dispatch(ctx, &requests)
		timer.Reset(m.untilNext())
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		case r := <-m.results:
			m.settle(ctx, r)
		}
	}
}

func (m *markerSender) untilNext() time.Duration {
	wait := time.Hour
	now := m.host.now()
	for _, t := range m.waiting {
		wait = min(wait, max(t.at.Sub(now), 0))
	}
	return wait
}

// dispatch gives what is new, and what has waited long enough, to the brokers.
func (m *markerSender) dispatch(ctx context.Context, requests *sync.WaitGroup) {
	m.mu.Lock()
	ready, hurry := m.inbox, m.hurry
	m.inbox, m.hurry = nil, false
	m.mu.Unlock()
	now, later := m.host.now(), m.waiting[:0]
	for _, t := range m.waiting {
		if hurry || !t.at.After(now) {
			ready = append(ready, t)
		} else {
			later = append(later, t)
		}
	}
	clear(m.waiting[len(later):])
	m.waiting = later
	for _, t := range ready {
		m.route(ctx, t)
	}
	for broker, queue := range m.queues {
		if m.busy[broker] || len(queue) == 0 {
			continue
		}
		n := min(len(queue), markersInRequest)
		tasks := queue[:n:n]
		if m.queues[broker] = queue[n:]; n == len(queue) {
			delete(m.queues, broker)
		}
		m.busy[broker] = true
		requests.Go(func() {
			r := markerResult{broker, tasks, m.write(ctx, broker, markersOf(tasks))}
			select {
			case m.results <- r:
			case <-ctx.Done():
			}
		})
	}
}

func markersOf(tasks []*markerTask) []Marker {
	markers := make([]Marker, len(tasks))
	for i, t := range tasks {
		markers[i] = Marker{
			ProducerID: t.marker.ProducerID, ProducerEpoch: t.marker.ProducerEpoch, Commit: t.marker.Commit, CoordinatorEpoch: t.owner.epoch,
			Version: t.marker.Version, Partitions: t.partitions,
		}
	}
	return markers
}

// route puts a task into the queues of the leaders of its partitions.
func (m *markerSender) route(ctx context.Context, t *markerTask) {
	if t.ended() {
		return
	}
	image := m.host.image.Load()
	if image == nil {
		m.again(t, t.partitions)
		return
	}
	byLeader := map[int32][]txn.TopicPartition{}
	var gone, leaderless []txn.TopicPartition
	for _, tp := range t.partitions {
		switch leader, exists := leaderOf(image, tp); {
		case !exists:
			gone = append(gone, tp)
		case leader < 0:
			leaderless = append(leaderless, tp)
		default:
			byLeader[leader] = append(byLeader[leader], tp)
		}
	}
	if len(gone) > 0 {
		m.host.logger.Info("partitions of a transaction are gone; it ends without them", "transactional_id", t.marker.ID, "producer_id", t.marker.ProducerID, "partitions", gone)
		t.written(ctx, gone)
	}
	if len(leaderless) > 0 {
		m.again(t, leaderless)
	}
	for leader, partitions := range byLeader {
		part := *t
		part.partitions = partitions
		m.queues[leader] = append(m.queues[leader], &part)
	}
}

func leaderOf(image *metadata.Image, tp txn.TopicPartition) (leader int32, exists bool) {
	state, ok := image.Partition(tp.Topic, tp.Partition)
	if !ok {
		return -1, false
	}
	return state.Leader, true
}

// again has a task sent later, for these of its partitions.
func (m *markerSender) again(t *markerTask, partitions []txn.TopicPartition) {
	part := *t
	part.partitions = partitions
	part.at = m.host.now().Add(min(markerPause<<min(t.tries, 10), maxMarkerPause))
	part.tries++
	m.waiting = append(m.waiting, &part)
}

// settle takes the answer of a broker.
func (m *markerSender) settle(ctx context.Context, r markerResult) {
	delete(m.busy, r.broker)
	for i, t := range r.tasks {
		var written, retry []txn.TopicPartition
		refused := false
		for k, tp := range t.partitions {
			outcome := MarkerRetry
			if i < len(r.outcomes) && k < len(r.outcomes[i]) {
				outcome = r.outcomes[i][k]
			}
			switch outcome {
			case MarkerWritten:
				written = append(written, tp)
			case MarkerRefused:
				refused = true
				m.host.logger.Warn("a partition refused the marker of a transaction: somebody newer owns it", "transactional_id", t.marker.ID,
					"producer_id", t.marker.ProducerID, "producer_epoch", t.marker.ProducerEpoch, "coordinator_epoch", t.owner.epoch, "topic", tp.Topic, "partition", tp.Partition)
			default:
				retry = append(retry, tp)
			}
		}
		if len(written) > 0 {
			t.written(ctx, written)
		}
		if refused {
			t.tell(ctx, func(r *txnRunner) { r.shard.MarkersRefused(t.marker) })
		} else if len(retry) > 0 && !t.ended() {
			m.again(t, retry)
		}
	}
}

// ended says that the shard which the marker is of has ended, or been loaded again.
func (t *markerTask) ended() bool {
	select {
	case <-t.owner.done:
		return true
	default:
		return t.owner.loads.Load() != t.load
	}
}

func (t *markerTask) written(ctx context.Context, partitions []txn.TopicPartition) {
	t.tell(ctx, func(r *txnRunner) { r.shard.MarkersWritten(r.now(), t.marker, partitions) })
}

func (t *markerTask) tell(ctx context.Context, fn func(r *txnRunner)) {
	_ = t.owner.enqueue(ctx, func(r *txnRunner) {
		if r.loads.Load() == t.load {
			fn(r)
		}
	}) // a shard that is not there takes its transactions up again by itself
}
