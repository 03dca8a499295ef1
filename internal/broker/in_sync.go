package broker

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
)

// inSyncChanges asks the controller for changes of in-sync sets: AlterPartition (KIP-497, KIP-903). What comes in while
// a request is in flight goes together in the next.
type inSyncChanges struct {
	do    func(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	id    int32
	epoch func() int64

	mu      sync.Mutex
	pending map[replicaPlace]inSyncChange
	wake    chan struct{}
}

type inSyncChange struct {
	change replica.AlterPartition
	done   func(replica.AlterOutcome, replica.LeaderAndISR)
}

func newInSyncChanges(id int32) *inSyncChanges {
	return &inSyncChanges{id: id, pending: map[replicaPlace]inSyncChange{}, wake: make(chan struct{}, 1)}
}

// AlterPartition asks for a change and returns at once; done is called with the answer. It is what replica.Options wants.
func (b *Broker) AlterPartition(topic metadata.UUID, change replica.AlterPartition, done func(replica.AlterOutcome, replica.LeaderAndISR)) {
	b.inSync.add(replicaPlace{topic, change.Partition}, inSyncChange{change, done})
}

// add keeps the newest wish for a partition: there is one in flight at a time, so an older one was given up.
func (c *inSyncChanges) add(place replicaPlace, change inSyncChange) {
	c.mu.Lock()
	c.pending[place] = change
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// maxInSyncChanges is how many changes one request asks for: the controller bounds what it decodes.
const maxInSyncChanges = 1000

// take is what the next request asks for; the rest goes in those after it.
func (c *inSyncChanges) take() map[replicaPlace]inSyncChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := map[replicaPlace]inSyncChange{}
	for place, change := range c.pending {
		if len(batch) == maxInSyncChanges {
			break
		}
		batch[place] = change
		delete(c.pending, place)
	}
	return batch
}

func (c *inSyncChanges) run(ctx context.Context) {
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		for batch := c.take(); len(batch) > 0 && ctx.Err() == nil; batch = c.take() {
			c.send(ctx, batch)
		}
	}
}

// inSyncTimeout bounds one request: a change that was not answered is asked for again, as things stand by then.
const inSyncTimeout = 10 * time.Second

// send asks for one batch and passes the answers on; of what is not in the answer nothing is known.
func (c *inSyncChanges) send(ctx context.Context, batch map[replicaPlace]inSyncChange) {
	limited, cancel := context.WithTimeout(ctx, inSyncTimeout)
	defer cancel()
	resp, err := c.do(limited, c.request(batch))
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		if answer := resp.(*kmsg.AlterPartitionResponse); answer.ErrorCode == 0 {
			for _, topic := range answer.Topics {
				for _, p := range topic.Partitions {
					place := replicaPlace{topic.TopidID, p.Partition}
					if one, ok := batch[place]; ok {
						delete(batch, place)
						one.done(replica.AlterOutcomeOf(p.ErrorCode), replica.LeaderAndISR{
							Leader: p.LeaderID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: p.ISR, Recovering: p.LeaderRecoveryState == 1,
						})
					}
				}
			}
		}
	}
	for _, one := range batch {
		one.done(replica.AlterRetriable, replica.LeaderAndISR{})
	}
}

func (c *inSyncChanges) request(batch map[replicaPlace]inSyncChange) *kmsg.AlterPartitionRequest {
	req := kmsg.NewPtrAlterPartitionRequest()
	req.BrokerID, req.BrokerEpoch = c.id, c.epoch()
	topics := map[metadata.UUID][]kmsg.AlterPartitionRequestTopicPartition{}
	for place, one := range batch {
		p := kmsg.NewAlterPartitionRequestTopicPartition()
		p.Partition, p.LeaderEpoch, p.PartitionEpoch = one.change.Partition, one.change.LeaderEpoch, one.change.PartitionEpoch
		for _, m := range one.change.NewISR {
			member := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			member.BrokerID, member.BrokerEpoch = m.ID, m.BrokerEpoch
			p.NewEpochISR = append(p.NewEpochISR, member)
			p.NewISR = append(p.NewISR, m.ID) // of a controller that does not know the epochs yet
		}
		topics[place.topic] = append(topics[place.topic], p)
	}
	for id, partitions := range topics {
		t := kmsg.NewAlterPartitionRequestTopic()
		t.TopicID, t.Partitions = id, partitions
		req.Topics = append(req.Topics, t)
	}
	return req
}
