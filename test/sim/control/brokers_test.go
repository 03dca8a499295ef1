package control

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// broker is the control side of a broker: its registration, its heartbeats, its copy of the metadata, and a script for
// the partitions that it leads.
type broker struct {
	w    *world
	id   int32
	dirs []metadata.UUID

	life        int
	up          bool
	incarnation metadata.UUID
	epoch       int64 // -1 until registered
	last        int64 // epoch to name at the next registration: -1 unless the last stop was clean
	registering bool
	fenced      bool
	leaving     bool
	offline     []metadata.UUID

	// The copy of the metadata.
	leader      int32
	leaderEpoch int32
	image       *metadata.Image
	end         int64
	endEpoch    int32
	loading     *loading
	applied     int
}

// loading is a snapshot on its way.
type loading struct {
	id    kmsg.FetchResponseTopicPartitionSnapshotID
	bytes []byte
}

func (b *broker) alive(life int) bool { return b.up && b.life == life }

func (b *broker) start() {
	if b.up {
		return
	}
	b.life++
	b.up, b.epoch, b.fenced, b.leaving, b.registering, b.offline = true, -1, true, false, false, nil
	b.incarnation = metadata.NewUUID(bytesOf{b.w.rng})
	b.leader, b.leaderEpoch, b.image, b.end, b.endEpoch, b.loading, b.applied = -1, 0, metadata.EmptyImage(), 0, 0, nil, 0
	b.w.mark("broker", int64(b.id))
	b.follow(b.life)
	b.heartbeat(b.life)
	b.lead(b.life)
}

// crash ends the process; clean says that it was let go.
func (b *broker) crash(clean bool) {
	if !b.up {
		return
	}
	b.up = false
	b.last = -1
	if clean {
		b.last = b.epoch
		b.w.count("broker stops")
	} else {
		b.w.count("broker crashes")
	}
	b.w.note("broker %d ends, clean %v", b.id, clean)
	life, epoch := b.life, b.epoch
	// The active controller sees the connection closed, and looks whether anybody listens.
	for _, id := range b.w.serverIDs {
		s := b.w.servers[id]
		if epoch < 0 || !b.w.chance(60) {
			continue
		}
		r := &request{w: b.w, what: "the loss of a broker's connection", run: func(c *controller.Controller, at controller.At) controller.Result {
			c.BrokerConnectionLost(at.Now, b.id)
			if b.life == life {
				c.BrokerListenerRefused(b.id)
			}
			return controller.Result{}
		}}
		b.w.net.once(b.id, s.id, func() {
			if s.up && s.core != nil && s.core.Status().Active {
				r.give(s, func(any) {})
			}
		})
	}
	b.w.after(b.w.between(50*time.Millisecond, 12*time.Second), func() {
		if b.life == life {
			b.start()
		}
	})
}

// target is the controller to ask: the leader, or anybody.
func (b *broker) target() int32 {
	if b.leader >= 0 && b.w.servers[b.leader] != nil {
		return b.leader
	}
	return pick(b.w.loop, b.w.serverIDs)
}

// follow fetches the metadata log, as an observer.
func (b *broker) follow(life int) {
	if !b.alive(life) {
		return
	}
	to := b.target()
	next := func(d time.Duration) { b.w.after(d, func() { b.follow(life) }) }
	lost := func() {
		b.leader = -1
		next(b.w.between(20*time.Millisecond, 100*time.Millisecond))
	}
	if b.loading != nil {
		b.fetchSnapshot(life, to, next, lost)
		return
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ClusterID, req.ReplicaState.ID = 17, new(clusterID), b.id
	req.MaxWaitMillis, req.MaxBytes = 0, 500+b.w.rng.Int32N(20_000)
	part := kmsg.NewFetchRequestTopicPartition()
	part.CurrentLeaderEpoch, part.FetchOffset, part.LastFetchedEpoch = b.leaderEpoch, b.end, b.endEpoch
	topic := kmsg.NewFetchRequestTopic()
	topic.TopicID = [16]byte{15: 1}
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	b.w.net.call(b.id, to, callWithin, func(answer func(any)) {
		b.w.servers[to].fetch(req, answer)
	}, func(answer any, ok bool) {
		switch {
		case !b.alive(life):
		case !ok:
			lost()
		default:
			b.fetched(answer.(*kmsg.FetchResponse), next, lost)
		}
	})
}

func (b *broker) fetched(resp *kmsg.FetchResponse, next func(time.Duration), lost func()) {
	if resp.ErrorCode != 0 || len(resp.Topics) != 1 {
		lost()
		return
	}
	p := &resp.Topics[0].Partitions[0]
	if !b.learn(p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch) {
		lost()
		return
	}
	switch {
	case p.ErrorCode != 0 && p.CurrentLeader.LeaderID < 0:
		lost() // it was the leader, and does not know who is: others do
	case p.ErrorCode != 0:
		next(b.w.between(20*time.Millisecond, 100*time.Millisecond))
	case p.DivergingEpoch.Epoch >= 0:
		b.w.fail("broker %d, whose metadata ends at %d in epoch %d, is told to cut it at %d, of epoch %d", b.id, b.end, b.endEpoch, p.DivergingEpoch.EndOffset, p.DivergingEpoch.Epoch)
	case p.SnapshotID.EndOffset >= 0 && p.SnapshotID.Epoch >= 0:
		if p.SnapshotID.EndOffset < b.end {
			b.w.fail("broker %d, whose metadata ends at %d, is told to fetch a snapshot of %d", b.id, b.end, p.SnapshotID.EndOffset)
		}
		b.loading = &loading{id: p.SnapshotID}
		next(0)
	default:
		for one := range split(p.RecordBatches) {
			b.apply(one)
		}
		if len(p.RecordBatches) > 0 {
			next(b.w.between(0, 5*time.Millisecond))
		} else {
			next(b.w.between(50*time.Millisecond, 400*time.Millisecond))
		}
	}
}

// learn takes over who leads; false if the answer is of an epoch that is over.
func (b *broker) learn(leader, epoch int32) bool {
	switch {
	case epoch < b.leaderEpoch:
		return false
	case epoch > b.leaderEpoch:
		b.leader, b.leaderEpoch = leader, epoch
	case leader >= 0 && b.leader >= 0 && leader != b.leader:
		b.w.fail("broker %d hears of leaders %d and %d in epoch %d", b.id, b.leader, leader, epoch)
	case leader >= 0:
		b.leader = leader
	}
	return true
}

// apply lengthens the copy by one batch, which must be the truth's.
func (b *broker) apply(one record.Batch) {
	k := b.w.check
	if one.BaseOffset() != b.end {
		if one.NextOffset() > b.end {
			b.w.fail("broker %d is given a batch at offset %d, not %d", b.id, one.BaseOffset(), b.end)
		}
		return
	}
	if i, ok := k.find(b.end); !ok || !bytes.Equal(k.truth[i].raw, one) {
		b.w.fail("broker %d is given a batch at offset %d, of epoch %d, that is not the one committed there", b.id, b.end, one.PartitionLeaderEpoch())
		return
	}
	delta := metadata.NewDelta(b.image)
	if !one.IsControl() {
		offset := one.BaseOffset()
		for value := range values(one) {
			rec, _, err := metadata.DecodeRecord(value)
			if err == nil {
				err = delta.Replay(rec, offset)
			}
			if err != nil {
				b.w.fail("broker %d, offset %d: %v", b.id, offset, err)
				return
			}
			offset++
		}
	}
	b.image = delta.Apply(one.LastOffset(), one.PartitionLeaderEpoch())
	b.end, b.endEpoch = one.NextOffset(), one.PartitionLeaderEpoch()
	for id, change := range delta.Topics {
		if topic, ok := b.image.TopicByID(id); ok {
			for number := range change.Partitions {
				if p, ok := topic.Partition(number); ok {
					k.oneLeader(id, p)
				}
			}
		}
	}
	if b.applied++; b.applied%300 == 0 {
		k.sameImage(fmt.Sprintf("broker %d", b.id), b.image)
	}
}

// fetchSnapshot fetches the next piece of a snapshot.
func (b *broker) fetchSnapshot(life int, to int32, next func(time.Duration), lost func()) {
	l := b.loading
	req := kmsg.NewPtrFetchSnapshotRequest()
	req.Version, req.ClusterID, req.ReplicaID, req.MaxBytes = 1, new(clusterID), b.id, 1000+b.w.rng.Int32N(10_000)
	part := kmsg.NewFetchSnapshotRequestTopicPartition()
	part.CurrentLeaderEpoch, part.Position = b.leaderEpoch, int64(len(l.bytes))
	part.SnapshotID.EndOffset, part.SnapshotID.Epoch = l.id.EndOffset, l.id.Epoch
	topic := kmsg.NewFetchSnapshotRequestTopic()
	topic.Topic, topic.Partitions = "__cluster_metadata", append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	again := func(f func()) {
		b.loading = nil
		f()
	}
	b.w.net.call(b.id, to, callWithin, func(answer func(any)) {
		b.w.servers[to].fetchSnapshot(req, answer)
	}, func(answer any, ok bool) {
		if !b.alive(life) {
			return
		}
		if !ok {
			again(lost)
			return
		}
		resp := answer.(*kmsg.FetchSnapshotResponse)
		if resp.ErrorCode != 0 || len(resp.Topics) != 1 {
			again(lost)
			return
		}
		p := &resp.Topics[0].Partitions[0]
		if !b.learn(p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch) || p.ErrorCode != 0 || p.Position != int64(len(l.bytes)) {
			again(lost)
			return
		}
		l.bytes = append(l.bytes, p.Bytes...)
		if int64(len(l.bytes)) >= p.Size {
			b.load(l)
			b.loading = nil
		}
		next(0)
	})
}

// load begins anew with a snapshot.
func (b *broker) load(l *loading) {
	delta := metadata.NewDelta(metadata.EmptyImage())
	for one := range split(l.bytes) {
		if one.IsControl() {
			continue
		}
		for value := range values(one) {
			rec, _, err := metadata.DecodeRecord(value)
			if err == nil {
				err = delta.Replay(rec, l.id.EndOffset-1)
			}
			if err != nil {
				b.w.fail("broker %d, snapshot of %d: %v", b.id, l.id.EndOffset, err)
				return
			}
		}
	}
	b.w.count("snapshots fetched by brokers")
	b.image = delta.Apply(l.id.EndOffset-1, l.id.Epoch)
	b.end, b.endEpoch = l.id.EndOffset, l.id.Epoch
	b.w.check.sameImage(fmt.Sprintf("broker %d, from a snapshot,", b.id), b.image)
	for _, topic := range b.image.Topics().All() {
		for _, p := range topic.Partitions().All() {
			b.w.check.oneLeader(topic.ID, p)
		}
	}
}

// fencing holds a controller to it that a broker's request is carried out only under its present epoch.
func (b *broker) fencing(epoch int64) func(*metadata.Image) error {
	return func(before *metadata.Image) error {
		if now, ok := before.Broker(b.id); !ok || now.Epoch != epoch {
			return fmt.Errorf("it is of broker %d's epoch %d, which is over (registered: %v)", b.id, epoch, ok)
		}
		return nil
	}
}

// heartbeat registers, and keeps the registration alive.
func (b *broker) heartbeat(life int) {
	if !b.alive(life) {
		return
	}
	next := func(d time.Duration) { b.w.after(d, func() { b.heartbeat(life) }) }
	if b.epoch < 0 {
		b.register(life, next)
		return
	}
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.Version, req.BrokerID, req.BrokerEpoch, req.CurrentMetadataOffset, req.WantShutdown = 1, b.id, b.epoch, b.image.Offset(), b.leaving
	for _, dir := range b.offline {
		req.OfflineLogDirs = append(req.OfflineLogDirs, dir)
	}
	r := &request{w: b.w, what: "a heartbeat", holds: b.fencing(b.epoch), run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.Heartbeat(at, req)
	}}
	r.send(b.id, b.target(), 4500*time.Millisecond, func(a answer, ok bool) {
		if !b.alive(life) {
			return
		}
		if !ok || a.err != nil {
			if errors.Is(a.err, controller.ErrStaleBrokerEpoch) {
				b.epoch = -1
			}
			next(b.w.between(20*time.Millisecond, 300*time.Millisecond))
			return
		}
		reply := a.reply.(controller.HeartbeatReply)
		b.fenced = reply.IsFenced
		switch {
		case reply.ShouldShutDown:
			b.crash(true)
		case b.fenced || b.leaving:
			next(b.w.between(20*time.Millisecond, 200*time.Millisecond))
		default:
			next(2 * time.Second)
		}
	})
}

func (b *broker) register(life int, next func(time.Duration)) {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version, req.BrokerID, req.ClusterID, req.IncarnationID, req.PreviousBrokerEpoch = 4, b.id, clusterID, b.incarnation, b.last
	req.Listeners = []kmsg.BrokerRegistrationRequestListener{{Name: "PLAINTEXT", Host: "broker", Port: uint16(b.id)}}
	for _, f := range metadata.SupportedFeatures() {
		req.Features = append(req.Features, kmsg.BrokerRegistrationRequestFeature{Name: f.Name, MinSupportedVersion: f.Min, MaxSupportedVersion: f.Max})
	}
	req.Rack = new(fmt.Sprint("rack-", b.id%3))
	for _, dir := range b.dirs {
		req.LogDirs = append(req.LogDirs, dir)
	}
	r := &request{w: b.w, what: "a registration", run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.RegisterBroker(at, req)
	}}
	r.holds = func(before *metadata.Image) error {
		if old, ok := before.Broker(b.id); ok && old.Epoch >= r.next && old.IncarnationID != metadata.UUID(req.IncarnationID) {
			return fmt.Errorf("epoch %d does not grow", old.Epoch)
		}
		return nil
	}
	r.send(b.id, b.target(), 3*time.Second, func(a answer, ok bool) {
		if !b.alive(life) {
			return
		}
		if ok && a.err == nil {
			b.epoch = a.reply.(controller.RegisterBrokerReply).BrokerEpoch
			b.w.count("broker registrations")
			next(0)
			return
		}
		next(b.w.between(50*time.Millisecond, 500*time.Millisecond))
	})
}

// lead plays the leader of partitions: from time to time one wishes for another in-sync set.
func (b *broker) lead(life int) {
	if !b.alive(life) {
		return
	}
	b.w.after(b.w.between(100*time.Millisecond, 1500*time.Millisecond), func() { b.lead(life) })
	if b.epoch < 0 || b.fenced {
		return
	}
	switch {
	case b.w.chance(5):
		b.allocate()
	case b.w.chance(5) && len(b.dirs) > 1:
		b.assign()
	default:
		b.alter()
	}
}

func (b *broker) alter() {
	type led struct {
		topic *metadata.Topic
		p     *metadata.Partition
	}
	var all []led
	for _, topic := range b.image.Topics().All() {
		for _, p := range topic.Partitions().All() {
			if p.Leader == b.id {
				all = append(all, led{topic, p})
			}
		}
	}
	if len(all) == 0 {
		return
	}
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version, req.BrokerID, req.BrokerEpoch = 3, b.id, b.epoch
	for range 1 + b.w.rng.IntN(3) {
		one := pick(b.w.loop, all)
		part := kmsg.NewAlterPartitionRequestTopicPartition()
		part.Partition, part.LeaderEpoch, part.PartitionEpoch, part.LeaderRecoveryState = one.p.ID, one.p.LeaderEpoch, one.p.PartitionEpoch, metadata.Recovered
		for _, id := range one.p.Replicas {
			other, ok := b.image.Broker(id)
			if id != b.id && (!ok || other.Fenced || b.w.chance(15)) {
				continue
			}
			member := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			member.BrokerID, member.BrokerEpoch = id, b.epoch
			if id != b.id {
				member.BrokerEpoch = other.Epoch
			}
			part.NewEpochISR = append(part.NewEpochISR, member)
		}
		topic := kmsg.NewAlterPartitionRequestTopic()
		topic.TopicID = one.topic.ID
		topic.Partitions = append(topic.Partitions, part)
		req.Topics = append(req.Topics, topic)
	}
	var reply controller.AlterPartitionReply
	r := &request{w: b.w, what: "AlterPartition", run: func(c *controller.Controller, at controller.At) controller.Result {
		result := c.AlterPartition(at, req)
		reply, _ = result.Reply.(controller.AlterPartitionReply)
		return result
	}}
	fencing := b.fencing(b.epoch)
	r.holds = func(before *metadata.Image) error {
		for i, one := range reply.Partitions {
			if one.Err != nil && !errors.Is(one.Err, controller.ErrNewLeaderElected) {
				continue
			}
			for _, member := range req.Topics[i].Partitions[0].NewEpochISR {
				if now, ok := before.Broker(member.BrokerID); !ok || now.Epoch != member.BrokerEpoch || now.Fenced {
					return fmt.Errorf("%d was let into the in-sync set of %s-%d under epoch %d, which is over or fenced", member.BrokerID, one.TopicID, one.Partition, member.BrokerEpoch)
				}
			}
			b.w.counts["in-sync sets altered"]++
		}
		return fencing(before)
	}
	r.send(b.id, b.target(), 10*time.Second, func(a answer, ok bool) {})
}

func (b *broker) allocate() {
	req := kmsg.NewPtrAllocateProducerIDsRequest()
	req.BrokerID, req.BrokerEpoch = b.id, b.epoch
	r := &request{w: b.w, what: "AllocateProducerIds", holds: b.fencing(b.epoch), run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.AllocateProducerIDs(at, req)
	}}
	r.send(b.id, b.target(), 10*time.Second, func(a answer, ok bool) {
		if !ok || a.err != nil {
			return
		}
		start := a.reply.(controller.AllocateProducerIDsReply).Start
		if b.w.check.blocks[start] {
			b.w.fail("producer ids from %d on are given out twice", start)
		}
		b.w.check.blocks[start] = true
		b.w.counts["producer id blocks"]++
	})
}

// assign tells where some replicas are.
func (b *broker) assign() {
	req := kmsg.NewPtrAssignReplicasToDirsRequest()
	req.BrokerID, req.BrokerEpoch = b.id, b.epoch
	dir := kmsg.NewAssignReplicasToDirsRequestDirectory()
	dir.ID = pick(b.w.loop, b.dirs)
	for _, topic := range b.image.Topics().All() {
		for _, p := range topic.Partitions().All() {
			if slices.Contains(p.Replicas, b.id) && b.w.chance(30) {
				t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
				t.TopicID = topic.ID
				t.Partitions = append(t.Partitions, kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{Partition: p.ID})
				dir.Topics = append(dir.Topics, t)
			}
		}
	}
	req.Directories = append(req.Directories, dir)
	r := &request{w: b.w, what: "AssignReplicasToDirs", holds: b.fencing(b.epoch), run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.AssignReplicasToDirs(at, req)
	}}
	r.send(b.id, b.target(), 10*time.Second, func(a answer, ok bool) {})
}
