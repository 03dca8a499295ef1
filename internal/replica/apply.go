package replica

import (
	"errors"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// Apply takes over the cluster metadata: it creates, deletes and reconfigures logs and changes roles. delta is what led
// from the image applied last to img; nil, or one that began elsewhere (a snapshot was loaded), makes it look at everything.
// It is called from one goroutine.
func (m *Manager) Apply(img *metadata.Image, delta *metadata.Delta) {
	previous := m.image.Swap(img)
	everything := delta == nil || delta.Base() != previous
	now := m.now()
	tell := &storm{logger: m.o.Logger, events: m.events}
	if everything {
		m.dropVanished(img)
		for _, t := range img.Topics().All() {
			for _, p := range t.Partitions().All() {
				m.applyPartition(t, p, now, tell)
			}
		}
		m.reconfigure(nil)
	} else {
		for id, c := range delta.Topics {
			if c.Removed {
				m.dropTopic(id)
			}
		}
		for id, c := range delta.Topics {
			t, ok := img.TopicByID(id)
			if !ok {
				continue
			}
			for number := range c.Partitions {
				if p, ok := t.Partition(number); ok {
					m.applyPartition(t, p, now, tell)
				}
			}
		}
		if topics, any := m.reconfigured(delta); any {
			m.reconfigure(topics)
		}
	}
	tell.done(img.Offset())
}

// dropVanished removes the partitions that img does not have here.
func (m *Manager) dropVanished(img *metadata.Image) {
	for _, p := range m.partitions() {
		t, ok := img.TopicByID(p.topicID)
		if !ok {
			m.drop(p, ErrUnknownTopicOrPartition, "topic deleted")
		} else if _, ok := t.Partition(p.id); !ok {
			m.drop(p, ErrUnknownTopicOrPartition, "partition deleted")
		}
	}
}

// dropTopic removes all partitions of a topic that was deleted.
func (m *Manager) dropTopic(id metadata.UUID) {
	for _, p := range m.partitions() {
		if p.topicID == id {
			m.drop(p, ErrUnknownTopicOrPartition, "topic deleted")
		}
	}
}

// drop ends a partition here and deletes its log. Whoever waits on it is answered with err.
func (m *Manager) drop(p *Partition, err error, cause string) {
	m.remove(p)
	p.stop(err)
	m.o.Logger.Info("replica deleted", "topic", p.topic, "partition", p.id, "leaderEpoch", p.Role().LeaderEpoch,
		"endOffset", p.Positions().End, "cause", cause)
	if err := m.o.Dirs.Delete(p.log); err != nil {
		m.o.Logger.Error("replica not deleted", "topic", p.topic, "partition", p.id, "error", err)
		p.failedIO(err)
	}
}

// applyPartition brings one partition to the state the cluster has decided on.
func (m *Manager) applyPartition(t *metadata.Topic, state *metadata.Partition, now time.Time, tell *storm) {
	m.mu.RLock()
	p := m.byName[topicPartition{t.Name, state.ID}]
	m.mu.RUnlock()
	if !slices.Contains(state.Replicas, m.o.BrokerID) {
		if p != nil {
			m.drop(p, &NotLeaderOrFollowerError{Topic: t.Name, Partition: state.ID,
				Current: LeaderAndEpoch{Leader: state.Leader, Epoch: state.LeaderEpoch}}, "reassigned to other brokers")
		}
		return
	}
	if p != nil && p.topicID != t.ID {
		m.drop(p, ErrUnknownTopicOrPartition, "topic recreated")
		p = nil
	}
	if p == nil {
		var err error
		if p, err = m.create(t, state); err != nil {
			m.o.Logger.Error("replica not created", "topic", t.Name, "partition", state.ID, "error", err)
			return
		}
	}
	if p.Err() != nil {
		return
	}
	l := LeaderAndISR{Leader: state.Leader, LeaderEpoch: state.LeaderEpoch, PartitionEpoch: state.PartitionEpoch,
		Replicas: state.Replicas, ISR: state.ISR, Recovering: state.RecoveryState == metadata.Recovering}
	end := p.Positions().End
	if state.Leader == m.o.BrokerID {
		was, is, changed, err := p.lead(l, now)
		switch {
		case err != nil:
			m.o.Logger.Error("leadership not taken", "topic", p.topic, "partition", p.id, "leaderEpoch", l.LeaderEpoch, "error", err)
			p.failedIO(err)
		case changed:
			tell.roleChange(was, is, end, "metadata")
		}
		return
	}
	if was, is, _, changed := p.follow(l); changed {
		tell.roleChange(was, is, end, "metadata")
	}
}

// create opens or makes the log of a partition that is new here.
func (m *Manager) create(t *metadata.Topic, state *metadata.Partition) (*Partition, error) {
	c := m.o.TopicConfig(t.Name)
	dir, _ := state.Directory(m.o.BrokerID)
	if dir.Reserved() {
		dir = metadata.UUID{}
	}
	l, err := m.o.Dirs.Create(t.Name, state.ID, t.ID, dir, c.Log)
	if err != nil {
		var storage *log.StorageError
		if errors.As(err, &storage) && storage.Offline {
			m.directoryFailed(storage)
		}
		return nil, err
	}
	p := newPartition(m, t.Name, state.ID, t.ID, l, c.MinISR)
	m.add(p)
	return p, nil
}

// reconfigured says which topics' configuration a delta may have changed; nil for all, any false for none.
func (m *Manager) reconfigured(delta *metadata.Delta) (topics map[string]bool, any bool) {
	topics = map[string]bool{}
	for r := range delta.Configs {
		switch r.Type {
		case metadata.ResourceBroker:
			return nil, true // the defaults beneath every topic
		case metadata.ResourceTopic:
			topics[r.Name] = true
		}
	}
	return topics, len(topics) > 0
}

// reconfigure puts configurations in force; topics nil: all.
func (m *Manager) reconfigure(topics map[string]bool) {
	known := map[string]TopicConfig{}
	for _, p := range m.partitions() {
		if topics != nil && !topics[p.topic] {
			continue
		}
		c, ok := known[p.topic]
		if !ok {
			c = m.o.TopicConfig(p.topic)
			known[p.topic] = c
		}
		p.log.SetConfig(c.Log)
		p.setMinISR(c.MinISR)
	}
}

// directoryFailed stops every partition in a directory that has failed, and tells the broker, once.
func (m *Manager) directoryFailed(err *log.StorageError) {
	m.failedMu.Lock()
	_, known := m.failedDirs[err.Dir]
	m.failedDirs[err.Dir] = err
	m.failedMu.Unlock()
	if known {
		return
	}
	m.o.Logger.Error("log directory offline", "dir", err.Dir, "error", err)
	for _, p := range m.partitions() {
		if p.directory() == err.Dir {
			p.stop(err)
		}
	}
	if m.o.DirectoryFailed != nil {
		m.o.DirectoryFailed(err)
	}
}

// proposeISR asks the controller for an ISR change.
func (m *Manager) proposeISR(p *Partition, change AlterPartition) {
	what := "expand"
	if change.Joining < 0 {
		what = "shrink"
	}
	m.events.isrChanged(change.Joining < 0)
	m.o.Logger.Info("isr change proposed", "topic", p.topic, "partition", p.id, "change", what, "joining", change.Joining,
		"leaving", change.Leaving, "from", p.Role().ISR, "leaderEpoch", change.LeaderEpoch, "partitionEpoch", change.PartitionEpoch)
	m.sendISR(p, change)
}

func (m *Manager) sendISR(p *Partition, change AlterPartition) {
	if m.o.AlterPartition == nil {
		p.alterPartitionDone(change, AlterRefused, LeaderAndISR{})
		return
	}
	m.o.AlterPartition(p.topicID, change, func(outcome AlterOutcome, returned LeaderAndISR) {
		switch p.alterPartitionDone(change, outcome, returned) {
		case AlterAdopted:
			is := p.Role()
			m.o.Logger.Info("isr changed", "topic", p.topic, "partition", p.id, "isr", is.ISR,
				"leaderEpoch", is.LeaderEpoch, "partitionEpoch", is.PartitionEpoch)
		case AlterRetry:
			time.AfterFunc(AlterPartitionRetry, func() {
				select {
				case <-m.closing:
				default:
					m.sendISR(p, change)
				}
			})
		}
	})
}
