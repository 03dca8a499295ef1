package replica

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// creators is how many logs Apply makes at once: each costs a few syncs, which the file system merges.
const creators = 8

// assignment is one partition as the cluster has decided on it.
type assignment struct {
	topic *metadata.Topic
	state *metadata.Partition
}

// Load opens the logs that the last process left, and renames away those that img does not have here. It is called
// once, with the first image, before Apply. Logs that cannot be opened are answered for with the reason; the error is
// that of a start that must not go on (one partition in two directories), or ctx's.
func (m *Manager) Load(ctx context.Context, img *metadata.Image) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.image.Store(img)
	failed, err := m.o.Dirs.Load(ctx, func(tp log.TopicPartition, id [16]byte) log.Verdict { return m.judge(img, tp, id) })
	for tp, why := range failed {
		if t, ok := img.Topic(tp.Topic); ok {
			if state, ok := t.Partition(tp.Partition); ok {
				m.notOpened(assignment{t, state}, why)
			}
		}
	}
	if err == nil {
		m.startCleaner(img)
	}
	return err
}

// judge says whether the log of tp, whose topic id is id, belongs to this broker.
func (m *Manager) judge(img *metadata.Image, tp log.TopicPartition, id [16]byte) log.Verdict {
	t, ok := img.Topic(tp.Topic)
	switch {
	case id == [16]byte{}:
		v := log.Verdict{Reason: "no topic id"}
		if state, found := img.Partition(tp.Topic, tp.Partition); found && slices.Contains(state.Replicas, m.o.BrokerID) {
			v.TopicID = t.ID
		}
		return v
	case !ok || t.ID != id:
		return log.Verdict{Reason: "no such topic"}
	}
	state, ok := t.Partition(tp.Partition)
	switch {
	case !ok:
		return log.Verdict{Reason: "no such partition"}
	case !slices.Contains(state.Replicas, m.o.BrokerID):
		return log.Verdict{Reason: "not a replica"}
	}
	return log.Verdict{Keep: true, Config: m.o.TopicConfig(img, tp.Topic).Log}
}

// Apply takes over the cluster metadata: it creates, deletes and reconfigures logs and changes roles. delta is what led
// from the image applied last to img; nil, or one that began elsewhere (a snapshot was loaded), makes it look at everything.
// It is called from one goroutine, and does nothing after Close. When it returns every partition has its role; a partition that could not get it has
// an error instead, and the others are not held up.
func (m *Manager) Apply(img *metadata.Image, delta *metadata.Delta) {
	m.applying.Lock()
	defer m.applying.Unlock()
	select {
	case <-m.closing:
		return
	default:
	}
	previous := m.applied
	m.applied = img
	m.image.Store(img)
	tell := &storm{logger: m.o.Logger, events: m.events}
	var changed []assignment
	everything := delta == nil || previous == nil || delta.Base() != previous
	if everything {
		m.dropVanished(img, tell)
		for _, t := range img.Topics().All() {
			for _, p := range t.Partitions().All() {
				changed = append(changed, assignment{t, p})
			}
		}
	} else {
		changed = m.changedBy(img, delta, tell)
	}
	m.dropMoved(changed, tell)
	m.forgetUnopened(img)
	m.createMissing(img, changed)

	now := m.now()
	for _, a := range changed {
		m.takeRole(a, now, tell)
	}
	tell.done(img.Offset())
	m.resumeMoves(changed)

	if everything {
		m.reconfigure(img, nil)
	} else if topics, any := reconfigured(delta); any {
		m.reconfigure(img, topics)
	}
}

// changedBy lists the partitions that delta touched, and drops those of topics it removed.
func (m *Manager) changedBy(img *metadata.Image, delta *metadata.Delta, tell *storm) (changed []assignment) {
	for id, c := range delta.Topics {
		if c.Removed {
			m.dropTopic(id, tell)
			continue
		}
		t, ok := img.TopicByID(id)
		if !ok {
			continue
		}
		for number := range c.Partitions {
			if p, ok := t.Partition(number); ok {
				changed = append(changed, assignment{t, p})
			}
		}
	}
	slices.SortFunc(changed, func(a, b assignment) int {
		return cmp.Or(cmp.Compare(a.topic.Name, b.topic.Name), cmp.Compare(a.state.ID, b.state.ID))
	})
	return changed
}

// dropVanished removes the partitions that img does not have here.
func (m *Manager) dropVanished(img *metadata.Image, tell *storm) {
	for _, p := range m.partitions() {
		t, ok := img.TopicByID(p.topicID)
		if !ok {
			m.drop(p, ErrUnknownTopicOrPartition, "topic deleted", tell)
		} else if _, ok := t.Partition(p.id); !ok {
			m.drop(p, ErrUnknownTopicOrPartition, "partition deleted", tell)
		}
	}
}

// dropTopic removes all partitions of a topic that was deleted.
func (m *Manager) dropTopic(id metadata.UUID, tell *storm) {
	for _, p := range m.partitions() {
		if p.topicID == id {
			m.drop(p, ErrUnknownTopicOrPartition, "topic deleted", tell)
		}
	}
}

// drop ends a partition here and deletes its log. Whoever waits on it is answered with err.
func (m *Manager) drop(p *Partition, err error, cause string, tell *storm) {
	m.remove(p)
	m.fetchers.forget(p)
	m.endMove(p, cause)
	m.traffic.leave(p.topic)
	p.stop(err)
	tell.dropped(p, cause)
	if err := m.o.Dirs.Delete(log.TopicPartition{Topic: p.topic, Partition: p.id}); err != nil {
		m.o.Logger.Error("replica not deleted", "topic", p.topic, "partition", p.id, "error", err)
		_ = p.failedIO(err)
	}
}

// dropMoved removes the replicas that other brokers have now.
func (m *Manager) dropMoved(changed []assignment, tell *storm) {
	for _, a := range changed {
		p := m.hosted(a)
		if p != nil && !slices.Contains(a.state.Replicas, m.o.BrokerID) {
			m.drop(p, &NotLeaderOrFollowerError{Topic: p.topic, Partition: p.id,
				Current: LeaderAndEpoch{Leader: a.state.Leader, Epoch: a.state.LeaderEpoch}}, "reassigned to other brokers", tell)
		}
	}
}

func (m *Manager) hosted(a assignment) *Partition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byName[topicPartition{a.topic.Name, a.state.ID}]
}

// createMissing makes the logs of partitions that are new here, several at a time.
func (m *Manager) createMissing(img *metadata.Image, changed []assignment) {
	slots := make(chan struct{}, creators)
	var all sync.WaitGroup
	for _, a := range changed {
		if !slices.Contains(a.state.Replicas, m.o.BrokerID) || m.hosted(a) != nil {
			continue
		}
		slots <- struct{}{}
		path, missing := m.placeOf(a)
		if missing != nil {
			<-slots
			m.notOpened(a, missing)
			continue
		}
		place := m.o.Dirs.Place(path)
		all.Go(func() {
			defer func() { <-slots }()
			if err := m.create(img, a.topic, a.state, place); err != nil {
				m.notOpened(a, err)
			}
		})
	}
	all.Wait()
}

// takeRole gives one partition the role the cluster has decided on.
func (m *Manager) takeRole(a assignment, now time.Time, tell *storm) {
	p := m.hosted(a)
	if p == nil || p.Err() != nil {
		return
	}
	l := LeaderAndISR{Leader: a.state.Leader, LeaderEpoch: a.state.LeaderEpoch, PartitionEpoch: a.state.PartitionEpoch,
		Replicas: a.state.Replicas, ISR: a.state.ISR, Recovering: a.state.RecoveryState == metadata.Recovering}
	if l.Leader == m.o.BrokerID {
		m.fetchers.forget(p)
		was, is, changed, err := p.lead(l, now)
		switch {
		case err != nil:
			m.o.Logger.Error("leadership not taken", "topic", p.topic, "partition", p.id, "leaderEpoch", l.LeaderEpoch, "error", err)
			_ = p.failedIO(err)
			m.lost(p.topicID, p.id)
		case changed:
			pos := p.Positions()
			if l.Recovering && (was.Kind != RoleLeader || was.LeaderEpoch < l.LeaderEpoch) {
				tell.uncleanElection(is, pos)
			}
			tell.roleChange(was, is, pos.End, "metadata")
			m.tellISR(was, is, "metadata")
		}
		return
	}
	was, is, start, changed := p.follow(l)
	if !changed {
		return
	}
	tell.roleChange(was, is, p.Positions().End, "metadata")
	if start.Truncate {
		// No epoch is known: what lies above the high watermark cannot be compared with the leader's.
		if err := p.log().TruncateTo(start.FetchOffset, "no leader epoch is known"); err != nil {
			_ = p.failedIO(err)
			return
		}
	}
	if start.Restart || was.Leader != is.Leader {
		m.fetchers.follow(p, is)
	}
}

// create opens or makes the log of a partition that is new here.
func (m *Manager) create(img *metadata.Image, t *metadata.Topic, state *metadata.Partition, place *log.Place) error {
	c := m.o.TopicConfig(img, t.Name)
	assigned, _ := state.Directory(m.o.BrokerID)
	// A replica that has never been placed, or a partition that has never changed, cannot have a log already.
	isNew := assigned == metadata.DirUnassigned || state.PartitionEpoch == 0
	tp := log.TopicPartition{Topic: t.Name, Partition: state.ID}
	l, err := place.Create(tp, t.ID, c.Log, isNew)
	if err != nil {
		return err
	}
	p := newPartition(m, t.Name, state.ID, t.ID, l, c.MinISR)
	p.setThrottled(c)
	m.add(p)
	for id, path := range m.o.Directories {
		if path == p.directory() && id != assigned && m.o.DirectoryAssigned != nil {
			m.o.DirectoryAssigned(t.ID, state.ID, id)
		}
	}
	return nil
}

// placeOf is the path of the log directory that a partition's log goes to, "" for one to be chosen. It is missing when the
// cluster counts on records that this broker has in a directory which is not here: an empty log in their place would be
// taken for them. A replica that is not counted on any more is copied anew.
func (m *Manager) placeOf(a assignment) (path string, missing error) {
	assigned, _ := a.state.Directory(m.o.BrokerID)
	path, known := m.o.Directories[assigned]
	if known || len(m.o.Directories) == 0 || assigned == metadata.DirUnassigned || a.state.PartitionEpoch == 0 {
		return path, nil
	}
	tp := log.TopicPartition{Topic: a.topic.Name, Partition: a.state.ID}
	if path, found := m.o.Dirs.Holds(tp); found {
		return path, nil
	}
	if assigned == metadata.DirMigrating || !slices.Contains(a.state.ISR, m.o.BrokerID) {
		return "", nil
	}
	return "", &log.StorageError{Dir: "with id " + assigned.String(), Op: "open " + tp.String(), Err: ErrDirectoryMissing}
}

// notOpened keeps why a partition that belongs here has no log, as the answer to whoever asks for it.
func (m *Manager) notOpened(a assignment, err error) {
	tp := topicPartition{a.topic.Name, a.state.ID}
	m.mu.Lock()
	before := m.unopened[tp]
	m.unopened[tp] = err
	m.mu.Unlock()
	if log.IsFull(err) {
		if !log.IsFull(before) {
			m.o.Logger.Error("replica not opened: the disk is full; it is tried again until there is room", "topic", a.topic.Name, "partition", a.state.ID, "error", err)
		}
		return
	}
	if errors.Is(err, ErrDirectoryMissing) {
		if !errors.Is(before, ErrDirectoryMissing) {
			m.o.Logger.Error("replica not opened: bring its log directory back, or delete the topic", "topic", a.topic.Name, "partition", a.state.ID, "error", err)
		}
		return
	}
	m.o.Logger.Error("replica not opened", "topic", a.topic.Name, "partition", a.state.ID, "error", err)
	var storage *log.StorageError
	if errors.As(err, &storage) && storage.Offline {
		m.DirectoryOffline(storage.Dir, storage)
		return
	}
	m.lost(a.topic.ID, a.state.ID)
}

// retryUnopened opens the partitions for which there was no room on disk.
func (m *Manager) retryUnopened() {
	m.mu.RLock()
	var wait []topicPartition
	for tp, err := range m.unopened {
		if log.IsFull(err) {
			wait = append(wait, tp)
		}
	}
	m.mu.RUnlock()
	if len(wait) == 0 {
		return
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	select {
	case <-m.closing:
		return
	default:
	}
	img := m.applied
	if img == nil {
		return
	}
	var again []assignment
	for _, tp := range wait {
		if t, ok := img.Topic(tp.topic); ok {
			if state, ok := t.Partition(tp.partition); ok {
				again = append(again, assignment{t, state})
			}
		}
	}
	tell := &storm{logger: m.o.Logger, events: m.events}
	m.createMissing(img, again)
	for _, a := range again {
		m.takeRole(a, m.now(), tell)
	}
	tell.done(img.Offset())
}

// forgetUnopened drops the reasons for partitions that do not belong here any more.
func (m *Manager) forgetUnopened(img *metadata.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for tp := range m.unopened {
		if state, ok := img.Partition(tp.topic, tp.partition); !ok || !slices.Contains(state.Replicas, m.o.BrokerID) {
			delete(m.unopened, tp)
		}
	}
}

// lost tells the controller that a replica of ours is of no use, so that it stops counting on it.
func (m *Manager) lost(topic metadata.UUID, partition int32) {
	if m.o.DirectoryAssigned != nil {
		m.o.DirectoryAssigned(topic, partition, metadata.DirLost)
	}
}

// reconfigured says which topics' configuration a delta may have changed; nil for all, any false for none.
func reconfigured(delta *metadata.Delta) (topics map[string]bool, any bool) {
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
func (m *Manager) reconfigure(img *metadata.Image, topics map[string]bool) {
	if topics == nil && m.o.Rates != nil {
		m.setRates(m.o.Rates(img))
	}
	if topics == nil && m.cleaner != nil {
		m.cleaner.SetOptions(m.o.Cleaner(img))
	}
	known := map[string]TopicConfig{}
	for _, p := range m.partitions() {
		if topics != nil && !topics[p.topic] {
			continue
		}
		c, ok := known[p.topic]
		if !ok {
			c = m.o.TopicConfig(img, p.topic)
			known[p.topic] = c
		}
		p.log().SetConfig(c.Log)
		p.setMinISR(c.MinISR)
		p.setThrottled(c)
	}
}

// DirectoryOffline stops every partition in the log directory at path, which has failed, and tells the broker, once.
func (m *Manager) DirectoryOffline(path string, cause error) {
	m.failedMu.Lock()
	known := m.failedDirs[path]
	m.failedDirs[path] = true
	m.failedMu.Unlock()
	if known {
		return
	}
	m.o.Dirs.MarkOffline(path, cause)
	var err error = &log.StorageError{Dir: path, Op: "use", Err: cause, Offline: true}
	if storage := (*log.StorageError)(nil); errors.As(cause, &storage) {
		err = storage
	}
	for _, p := range m.partitions() {
		if mv := m.moveOf(p); mv != nil && (mv.dest == path || p.directory() == path) {
			go m.endMove(p, "a log directory failed") // this may be the goroutine that moves it
		}
		if p.directory() != path {
			continue
		}
		m.fetchers.forget(p)
		p.stop(err)
		if state, ok := m.image.Load().Partition(p.topic, p.id); ok {
			if at, known := m.o.Directories[directoryOf(state, m.o.BrokerID)]; known && at != path {
				m.lost(p.topicID, p.id) // the controller thinks that it is elsewhere
			}
		}
	}
	if m.o.DirectoryFailed != nil {
		m.o.DirectoryFailed(path, cause)
	}
}

func directoryOf(state *metadata.Partition, broker int32) metadata.UUID {
	id, _ := state.Directory(broker)
	return id
}

// proposeISR asks the controller for an ISR change.
func (m *Manager) proposeISR(p *Partition, change AlterPartition) {
	what := "expand"
	if change.Joining < 0 {
		what = "shrink"
	}
	m.o.Logger.Debug("isr change proposed", "topic", p.topic, "partition", p.id, "change", what, "joining", change.Joining,
		"leaving", change.Leaving, "from", p.Role().ISR, "leaderEpoch", change.LeaderEpoch, "partitionEpoch", change.PartitionEpoch)
	m.sendISR(p, change)
}

func (m *Manager) sendISR(p *Partition, change AlterPartition) {
	if m.o.AlterPartition == nil {
		p.alterPartitionDone(change, AlterRefused, LeaderAndISR{})
		return
	}
	m.o.AlterPartition(p.topicID, change, func(outcome AlterOutcome, returned LeaderAndISR) {
		was, is, reaction := p.alterPartitionDone(change, outcome, returned)
		switch reaction {
		case AlterAdopted:
			m.tellISR(was, is, "AlterPartition")
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
