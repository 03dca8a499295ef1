package broker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

const (
	assignmentsPerRequest = 2250 // as many as Kafka's brokers send
	assignmentBackoff     = 100 * time.Millisecond
	assignmentBackoffMax  = 10 * time.Second
)

// replicaPlace is a replica of this broker.
type replicaPlace struct {
	topic     metadata.UUID
	partition int32
}

// assignments tells the controller in which directory each replica is, where the
// metadata say otherwise (KIP-858). The newest word about a replica counts; one
// request is in flight at a time.
type assignments struct {
	do     func(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	id     int32
	epoch  func() int64
	logger *slog.Logger

	mu      sync.Mutex
	pending map[replicaPlace]metadata.UUID
	wake    chan struct{}
}

func newAssignments(id int32, logger *slog.Logger) *assignments {
	return &assignments{id: id, logger: logger, pending: map[replicaPlace]metadata.UUID{}, wake: make(chan struct{}, 1)}
}

// add notes that a replica is in dir. It does not block.
func (a *assignments) add(place replicaPlace, dir metadata.UUID) {
	a.mu.Lock()
	a.pending[place] = dir
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// take copies the next request's worth of what is to be told.
func (a *assignments) take() map[replicaPlace]metadata.UUID {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch := map[replicaPlace]metadata.UUID{}
	for place, dir := range a.pending {
		if len(batch) == assignmentsPerRequest {
			break
		}
		batch[place] = dir
	}
	return batch
}

// settled drops what was told, unless something newer is known of it.
func (a *assignments) settled(place replicaPlace, dir metadata.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending[place] == dir {
		delete(a.pending, place)
	}
}

// run tells the controller until ctx ends.
func (a *assignments) run(ctx context.Context) {
	backoff := assignmentBackoff
	for {
		batch := a.take()
		if len(batch) == 0 {
			backoff = assignmentBackoff
			select {
			case <-a.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if a.send(ctx, batch) {
			backoff = assignmentBackoff
			continue
		}
		select {
		case <-time.After(backoff):
			backoff = min(2*backoff, assignmentBackoffMax)
		case <-ctx.Done():
			return
		}
	}
}

// send tells one batch, and says whether all of it is settled.
func (a *assignments) send(ctx context.Context, batch map[replicaPlace]metadata.UUID) bool {
	resp, err := a.do(ctx, a.request(batch))
	if err != nil {
		return false
	}
	answer := resp.(*kmsg.AssignReplicasToDirsResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		a.logger.Warn("the controller refuses the places of replicas, trying again", "replicas", len(batch), "cause", err)
		return false
	}
	all := true
	for _, dir := range answer.Directories {
		for _, topic := range dir.Topics {
			for _, p := range topic.Partitions {
				place := replicaPlace{topic.TopicID, p.Partition}
				switch err := kerr.ErrorForCode(p.ErrorCode); err {
				case nil:
				case kerr.UnknownTopicID, kerr.UnknownTopicOrPartition, kerr.NotLeaderForPartition:
					// The replica is not this broker's any more: there is nothing left to tell.
					a.logger.Info("place of a replica is of no interest any more", "topic_id", place.topic, "partition", place.partition, "cause", err)
				default:
					all = false
					continue
				}
				a.settled(place, dir.ID)
			}
		}
	}
	return all
}

func (a *assignments) request(batch map[replicaPlace]metadata.UUID) *kmsg.AssignReplicasToDirsRequest {
	req := kmsg.NewPtrAssignReplicasToDirsRequest()
	req.BrokerID, req.BrokerEpoch = a.id, a.epoch()
	byDir := map[metadata.UUID]map[metadata.UUID][]int32{}
	for place, dir := range batch {
		if byDir[dir] == nil {
			byDir[dir] = map[metadata.UUID][]int32{}
		}
		byDir[dir][place.topic] = append(byDir[dir][place.topic], place.partition)
	}
	for dir, topics := range byDir {
		d := kmsg.NewAssignReplicasToDirsRequestDirectory()
		d.ID = dir
		for topic, partitions := range topics {
			t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
			t.TopicID = topic
			for _, partition := range partitions {
				p := kmsg.NewAssignReplicasToDirsRequestDirectoryTopicPartition()
				p.Partition = partition
				t.Partitions = append(t.Partitions, p)
			}
			d.Topics = append(d.Topics, t)
		}
		req.Directories = append(req.Directories, d)
	}
	return req
}
