package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// Each condition of a registration, one by one, in order: of two faults the earlier is told.
func TestM018_registration_checks(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	faults := []struct {
		name string
		make func(*kmsg.BrokerRegistrationRequest)
		err  error
	}{
		{"cluster id", func(r *kmsg.BrokerRegistrationRequest) { r.ClusterID = "other" }, ErrInconsistentClusterID},
		{"incarnation", func(r *kmsg.BrokerRegistrationRequest) { r.IncarnationID[0] = 9 }, ErrDuplicateBrokerRegistration},
		{"zookeeper", func(r *kmsg.BrokerRegistrationRequest) { r.IsMigratingZkBroker = true }, ErrBrokerIDNotRegistered},
		{"no directories", func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs = nil }, ErrInvalidRegistration},
		{"feature range", func(r *kmsg.BrokerRegistrationRequest) { r.Features[0].MaxSupportedVersion = 30 }, ErrUnsupportedVersion},
	}
	for i, f := range faults {
		for j := i; j < len(faults); j++ {
			req := registration(1, 1)
			f.make(req)
			if j > i {
				faults[j].make(req)
			}
			if r := k.c.RegisterBroker(k.at(), req); !errors.Is(r.Err, f.err) || len(r.Records) > 0 {
				t.Errorf("%s with %s: %v", f.name, faults[j].name, r.Err)
			}
		}
	}
	for name, change := range map[string]func(*kmsg.BrokerRegistrationRequest){
		"reserved directory": func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs[0] = metadata.DirLost },
		"directory twice":    func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs = append(r.LogDirs, r.LogDirs[0]) },
		"another's":          func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs[0] = dirOf(2) },
		"no level":           func(r *kmsg.BrokerRegistrationRequest) { r.Features = nil },
	} {
		req := registration(1, 1)
		change(req)
		if r := k.c.RegisterBroker(k.at(), req); !errors.Is(r.Err, ErrInvalidRegistration) {
			t.Errorf("%s: %v", name, r.Err)
		}
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: "share.version", FeatureLevel: 1}})
	// What this release does not serve was finalized before a take-over: our own brokers do not list it either.
	if r := k.c.RegisterBroker(k.at(), registration(1, 1)); r.Err != nil {
		t.Errorf("a finalized feature that nobody serves: %v", r.Err)
	}
	k.c.opt.Supported = func(name string) (metadata.Feature, bool) {
		return metadata.Feature{Name: name, Max: 1}, true
	}
	if r := k.c.RegisterBroker(k.at(), registration(1, 1)); !errors.Is(r.Err, ErrUnsupportedVersion) {
		t.Errorf("a finalized feature that is not listed: %v", r.Err)
	}
}

// One incarnation registers twice: same epoch, state kept. Another one is refused inside the session and
// gets a higher epoch after it; without a heartbeat it is accepted at once.
func TestM019_incarnations_and_sessions(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	epoch := k.broker(1).Epoch
	r := k.must(k.c.RegisterBroker(k.at(), registration(1, 1)))
	if r.Reply.(RegisterBrokerReply).BrokerEpoch != epoch || k.broker(1).Fenced || k.broker(1).RegisteredAt != k.next-1 {
		t.Errorf("same incarnation: %+v", k.broker(1))
	}
	k.now = k.now.Add(9*time.Second - 1)
	if r := k.c.RegisterBroker(k.at(), registration(1, 2)); !errors.Is(r.Err, ErrDuplicateBrokerRegistration) {
		t.Errorf("inside the session: %v", r.Err)
	}
	k.now = k.now.Add(1)
	r = k.must(k.c.RegisterBroker(k.at(), registration(1, 2)))
	if got := r.Reply.(RegisterBrokerReply).BrokerEpoch; got <= epoch || !k.broker(1).Fenced {
		t.Errorf("after the session: epoch %d, %+v", got, k.broker(1))
	}
	k.must(k.c.RegisterBroker(k.at(), registration(1, 3)))
}

// The broker epoch is the offset of the operation's first record, with and without records that clean up first.
func TestM020_broker_epoch_is_the_first_offset(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	at := k.next
	r := k.must(k.c.RegisterBroker(k.at(), registration(1, 1)))
	if kinds(r.Records) != "RegisterBroker" || k.broker(1).Epoch != at || k.broker(1).RegisteredAt != at {
		t.Errorf("without clean-up: %s, %+v at %d", kinds(r.Records), k.broker(1), at)
	}
	k.must(k.heartbeat(1, nil))
	k.start(2)
	k.topic("t", []int32{1, 2})
	k.now = k.now.Add(10 * time.Second)
	at = k.next
	r = k.must(k.c.RegisterBroker(k.at(), registration(1, 2)))
	if kinds(r.Records) != "PartitionChange RegisterBroker" || k.broker(1).Epoch != at || k.broker(1).RegisteredAt != at+1 {
		t.Errorf("with clean-up: %s, %+v at %d", kinds(r.Records), k.broker(1), at)
	}
	if p := k.partition("t", 0); p.Leader != 2 || !slices.Equal(p.ISR, []int32{2}) || p.LeaderEpoch != 1 {
		t.Errorf("%+v", p)
	}
}

// A broker is unfenced only when it has applied its own RegisterBroker record.
func TestM021_unfence_needs_own_registration(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.must(k.c.RegisterBroker(k.at(), registration(1, 1)))
	at := k.broker(1).RegisteredAt
	r := k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.CurrentMetadataOffset = at - 1 }))
	if reply := r.Reply.(HeartbeatReply); reply.IsCaughtUp || !reply.IsFenced || !k.broker(1).Fenced {
		t.Errorf("one before: %+v", reply)
	}
	r = k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.CurrentMetadataOffset = at; h.WantFence = true }))
	if reply := r.Reply.(HeartbeatReply); !reply.IsCaughtUp || !reply.IsFenced {
		t.Errorf("wants to stay fenced: %+v", reply)
	}
	r = k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.CurrentMetadataOffset = at }))
	if reply := r.Reply.(HeartbeatReply); !reply.IsCaughtUp || reply.IsFenced || k.broker(1).Fenced {
		t.Errorf("at it: %+v", reply)
	}
	r = k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.BrokerEpoch++ })
	if !errors.Is(r.Err, ErrStaleBrokerEpoch) {
		t.Error(r.Err)
	}
}

// The table of a broker's states, by raw heartbeats, with the records of each step in order.
func TestM022_heartbeat_states(t *testing.T) {
	t.Parallel()
	want := func(fence, shutdown bool) func(*kmsg.BrokerHeartbeatRequest) {
		return func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence, h.WantShutdown = fence, shutdown }
	}
	check := func(t *testing.T, k *cluster, r Result, records string, reply HeartbeatReply) {
		t.Helper()
		reply.IsCaughtUp = true
		if kinds(r.Records) != records || r.Reply != reply {
			t.Errorf("got %s %+v, want %s %+v", kinds(r.Records), r.Reply, records, reply)
		}
	}
	for _, c := range []struct {
		name    string
		fenced  bool
		leads   bool
		fence   bool
		stop    bool
		records string
		reply   HeartbeatReply
	}{
		{"fenced, shut down", true, false, false, true, "", HeartbeatReply{IsFenced: true, ShouldShutDown: true}},
		{"fenced, wants in", true, false, false, false, "BrokerRegistrationChange", HeartbeatReply{}},
		{"fenced, stays", true, false, true, false, "", HeartbeatReply{IsFenced: true}},
		{"unfenced, fence and shut down", false, true, true, true, "PartitionChange BrokerRegistrationChange", HeartbeatReply{IsFenced: true, ShouldShutDown: true}},
		{"unfenced, fence", false, true, true, false, "PartitionChange BrokerRegistrationChange", HeartbeatReply{IsFenced: true}},
		{"unfenced, shut down, leads", false, true, false, true, "BrokerRegistrationChange PartitionChange", HeartbeatReply{}},
		{"unfenced, shut down, leads nothing", false, false, false, true, "BrokerRegistrationChange", HeartbeatReply{IsFenced: true, ShouldShutDown: true}},
		{"unfenced, stays", false, true, false, false, "", HeartbeatReply{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newCluster(t)
			k.start(1, 2)
			if c.leads {
				k.topic("t", []int32{1, 2})
			}
			if c.fenced {
				k.must(k.heartbeat(1, want(true, false)))
			}
			check(t, k, k.must(k.heartbeat(1, want(c.fence, c.stop))), c.records, c.reply)
		})
	}
}

// Controlled shutdown ends when leaderships are gone and every active broker has seen the last batch of it.
func TestM023_controlled_shutdown_waits_for_others(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	k.topic("t", []int32{1, 2})
	stop := func(h *kmsg.BrokerHeartbeatRequest) { h.WantShutdown = true }
	k.must(k.heartbeat(1, stop))
	if p := k.partition("t", 0); p.Leader != 2 || !slices.Equal(p.ISR, []int32{2}) {
		t.Fatalf("leadership was not moved: %+v", p)
	}
	if r := k.must(k.heartbeat(1, stop)); r.Reply.(HeartbeatReply).ShouldShutDown || len(r.Records) > 0 {
		t.Errorf("broker 2 has not seen it: %+v", r.Reply)
	}
	k.must(k.heartbeat(2, nil))
	r := k.must(k.heartbeat(1, nil))
	if reply := r.Reply.(HeartbeatReply); !reply.ShouldShutDown || !reply.IsFenced || kinds(r.Records) != "BrokerRegistrationChange" {
		t.Errorf("%s %+v", kinds(r.Records), reply)
	}
}

// tick runs all that is due and counts the brokers that were fenced.
func (k *cluster) tick() (fenced []Fenced) {
	k.t.Helper()
	for range 100 {
		at, ok := k.c.NextDeadline()
		if !ok || at.After(k.now) {
			return fenced
		}
		r := k.must(k.c.Tick(k.at()))
		if f, ok := r.Reply.(Fenced); ok {
			fenced = append(fenced, f)
		}
	}
	k.t.Fatal("Tick never comes to an end")
	return nil
}

// A silent broker is fenced after its session and not before; its next heartbeat brings it back with the same epoch.
func TestM024_silent_broker_is_fenced(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	k.topic("t", []int32{1, 2})
	epoch := k.broker(1).Epoch
	for range 10 {
		k.now = k.now.Add(time.Second)
		k.must(k.heartbeat(2, nil))
		if fenced := k.tick(); len(fenced) > 0 && k.now.Sub(time.Unix(1_700_000_000, 0)) < 9*time.Second {
			t.Fatal("fenced early", fenced)
		}
	}
	if !k.broker(1).Fenced || k.broker(2).Fenced || k.partition("t", 0).Leader != 2 || k.partition("t", 0).LeaderEpoch != 1 {
		t.Fatalf("%+v %+v", k.broker(1), k.partition("t", 0))
	}
	k.must(k.heartbeat(1, nil))
	if k.broker(1).Fenced || k.broker(1).Epoch != epoch {
		t.Error("the heartbeat did not bring it back")
	}
}

// A lost connection fences only together with a refusing listener, after half a second; a heartbeat undoes it;
// a new incarnation with the same disks is accepted at once, one with others is not.
func TestLostConnectionIsEvidence(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	k.c.BrokerConnectionLost(k.now, 1)
	k.now = k.now.Add(time.Second)
	if fenced := k.tick(); len(fenced) > 0 {
		t.Fatal("fenced without a refusal")
	}
	k.must(k.heartbeat(1, nil))
	k.c.BrokerListenerRefused(1)
	k.now = k.now.Add(time.Second)
	if fenced := k.tick(); len(fenced) > 0 {
		t.Fatal("fenced though it was heard again")
	}
	k.c.BrokerConnectionLost(k.now, 1)
	k.c.BrokerListenerRefused(1)
	other := registration(1, 2)
	other.LogDirs[0] = metadata.UUID{0: 0xee}
	if r := k.c.RegisterBroker(k.at(), other); !errors.Is(r.Err, ErrDuplicateBrokerRegistration) {
		t.Errorf("other disks: %v", r.Err)
	}
	k.must(k.c.RegisterBroker(k.at(), registration(1, 2)))
	k.must(k.heartbeat(1, nil))
	k.c.BrokerConnectionLost(k.now, 1)
	k.c.BrokerListenerRefused(1)
	k.now = k.now.Add(499 * time.Millisecond)
	if fenced := k.tick(); len(fenced) > 0 {
		t.Fatal("fenced early")
	}
	k.now = k.now.Add(time.Millisecond)
	if fenced := k.tick(); len(fenced) != 1 || !fenced[0].Refused || !k.broker(1).Fenced {
		t.Fatal("not fenced", fenced)
	}
}

// A sole replica that is killed and comes back: it stays in the ISR, its leader epoch rises by two, and it is
// not an unclean election.
func TestSoleReplicaRestart(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	k.c.BrokerConnectionLost(k.now, 1)
	k.must(k.c.RegisterBroker(k.at(), registration(1, 2)))
	if p := k.partition("t", 0); p.Leader != metadata.NoLeader || p.LeaderEpoch != 1 || !slices.Equal(p.ISR, []int32{1}) {
		t.Errorf("gone: %+v", p)
	}
	k.must(k.heartbeat(1, nil))
	if p := k.partition("t", 0); p.Leader != 1 || p.LeaderEpoch != 2 || p.RecoveryState != metadata.Recovered || p.PartitionEpoch != 2 {
		t.Errorf("back: %+v", p)
	}
}

// UnregisterBroker takes the broker out of ISRs and the cluster; its replicas stay assigned.
func TestM027_unregister_broker(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	k.topic("t", []int32{1, 2})
	r := k.must(k.c.UnregisterBroker(k.at(), 1))
	if kinds(r.Records) != "PartitionChange UnregisterBroker" || len(k.partition("t", 0).Replicas) != 2 {
		t.Error(kinds(r.Records))
	}
	if r := k.c.UnregisterBroker(k.at(), 1); !errors.Is(r.Err, ErrBrokerIDNotRegistered) {
		t.Error(r.Err)
	}
	if r := k.heartbeat(1, nil); !errors.Is(r.Err, ErrStaleBrokerEpoch) {
		t.Error(r.Err)
	}
}

// A failed directory leaves the registration, and its replicas leave their ISRs; assignments to directories
// are checked, and one to a directory that is not online takes the replica out of the ISR.
func TestM030_directories(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	req := registration(1, 1)
	second := metadata.UUID{0: 0xd0, 1: 1, 2: 2}
	req.LogDirs = append(req.LogDirs, second)
	k.must(k.c.RegisterBroker(k.at(), req))
	k.must(k.heartbeat(1, nil))
	k.start(2)
	topic := k.topic("t", []int32{1, 2}, []int32{1, 2})
	if p := k.partition("t", 0); !slices.Equal(p.Directories, []metadata.UUID{metadata.DirUnassigned, dirOf(2)}) {
		t.Fatalf("%+v", p)
	}
	assign := func(broker int32, epoch int64, topic, dir metadata.UUID, partition int32) Result {
		req := kmsg.NewPtrAssignReplicasToDirsRequest()
		req.BrokerID, req.BrokerEpoch = broker, epoch
		req.Directories = []kmsg.AssignReplicasToDirsRequestDirectory{{ID: dir, Topics: []kmsg.AssignReplicasToDirsRequestDirectoryTopic{
			{TopicID: topic, Partitions: []kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{{Partition: partition}}}}}}
		return k.c.AssignReplicasToDirs(k.at(), req)
	}
	epoch := k.broker(1).Epoch
	k.topic("of2", []int32{2})
	of2, _ := k.c.Image().Topic("of2")
	for _, c := range []struct {
		r   Result
		err error
	}{
		{assign(1, epoch, metadata.UUID{5: 5}, second, 0), ErrUnknownTopicID},
		{assign(1, epoch, topic.ID, second, 9), ErrUnknownTopicOrPartition},
		{assign(1, epoch, of2.ID, second, 0), ErrNotLeaderOrFollower},
	} {
		if err := c.r.Reply.(AssignReplicasReply).Replicas[0].Err; !errors.Is(err, c.err) {
			t.Errorf("%v, want %v", err, c.err)
		}
	}
	if r := assign(1, epoch+1, topic.ID, second, 0); !errors.Is(r.Err, ErrStaleBrokerEpoch) {
		t.Error(r.Err)
	}
	k.must(assign(1, epoch, topic.ID, second, 0))
	if p := k.partition("t", 0); p.Directories[0] != second || p.Leader != 1 || p.LeaderEpoch != 0 || p.PartitionEpoch != 1 {
		t.Errorf("%+v", p)
	}
	k.must(assign(1, epoch, topic.ID, metadata.DirLost, 1))
	if p := k.partition("t", 1); p.Leader != 2 || !slices.Equal(p.ISR, []int32{2}) {
		t.Errorf("lost: %+v", p)
	}
	r := k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.OfflineLogDirs = [][16]byte{second} }))
	if kinds(r.Records) != "PartitionChange BrokerRegistrationChange" || k.partition("t", 0).Leader != 2 || !slices.Equal(k.broker(1).Directories, []metadata.UUID{dirOf(1)}) {
		t.Error(kinds(r.Records), k.broker(1).Directories)
	}
	if r := k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.OfflineLogDirs = [][16]byte{second} })); len(r.Records) > 0 {
		t.Error("told twice:", kinds(r.Records))
	}
	k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.CordonedLogDirs = [][16]byte{dirOf(1)} }))
	if !k.broker(1).AllCordoned() {
		t.Error("not cordoned")
	}
}

// Producer ids are given out in blocks of 1000, from 0, each once.
func TestM053_producer_id_blocks(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	for want := int64(0); want < 3000; want += 1000 {
		req := kmsg.NewPtrAllocateProducerIDsRequest()
		req.BrokerID, req.BrokerEpoch = 1, k.broker(1).Epoch
		r := k.must(k.c.AllocateProducerIDs(k.at(), req))
		if r.Reply != (AllocateProducerIDsReply{want, 1000}) {
			t.Errorf("%+v", r.Reply)
		}
	}
	req := kmsg.NewPtrAllocateProducerIDsRequest()
	if r := k.c.AllocateProducerIDs(k.at(), req); !errors.Is(r.Err, ErrStaleBrokerEpoch) {
		t.Error(r.Err)
	}
}

// A fresh cluster's first records stand in one transaction and finalize only what is served.
func TestM005_bootstrap_records(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	if got := kinds(k.log); got != "BeginTransaction FeatureLevel FeatureLevel FeatureLevel EndTransaction" {
		t.Error(got)
	}
	if k.c.Image().MetadataVersion() != metadata.LevelLatest {
		t.Error(k.c.Image().MetadataVersion())
	}
	if r := k.c.Activate(k.at(), metadata.LevelLatest); len(r.Records) > 0 {
		t.Error("activated again:", kinds(r.Records))
	}
	k.replay([]metadata.Record{&metadata.BeginTransactionRecord{}, &metadata.FeatureLevelRecord{Name: "share.version", FeatureLevel: 1}})
	r := k.must(k.c.Activate(k.at(), metadata.LevelLatest))
	if kinds(r.Records) != "AbortTransaction" || k.c.Image().Feature("share.version") != 0 {
		t.Error(kinds(r.Records))
	}
	if fmt.Sprint(k.c.NextDeadline()) == "" {
		t.Error("no deadline")
	}
}

// A controller registers, below level 15 it cannot, and it is unregistered unless it is a voter or not known.
func TestControllerRegistration(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID = 7
	req.Features = []kmsg.ControllerRegistrationRequestFeature{
		{Name: "metadata.version", MinSupportedVersion: 7, MaxSupportedVersion: 33}, {Name: "transaction.version", MaxSupportedVersion: 2},
	}
	k.must(k.c.RegisterController(k.at(), req))
	if _, ok := k.c.Image().Controller(7); !ok {
		t.Error("not registered")
	}
	if r := k.c.UnregisterController(k.at(), 7, true); !errors.Is(r.Err, ErrInvalidRequest) {
		t.Error(r.Err)
	}
	if r := k.c.UnregisterController(k.at(), 8, false); !errors.Is(r.Err, ErrControllerIDNotRegistered) {
		t.Error(r.Err)
	}
	if r := k.must(k.c.UnregisterController(k.at(), 7, false)); kinds(r.Records) != "UnregisterController" {
		t.Error(kinds(r.Records))
	}
	req.Features[0].MaxSupportedVersion = 32
	if r := k.c.RegisterController(k.at(), req); !errors.Is(r.Err, ErrUnsupportedVersion) {
		t.Error(r.Err)
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 14}})
	if r := k.c.RegisterController(k.at(), req); !errors.Is(r.Err, ErrUnsupportedVersion) {
		t.Error(r.Err)
	}
}

// A broker all of whose directories are cordoned gets no new replicas, by placement or by hand, and keeps those it has; a
// part of them makes no difference, and taking the cordon away lets it in again. Below level 30 there is no such setting.
func TestM031_cordoned_broker(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	second := metadata.UUID{0: 0xd0, 1: 1, 2: 2}
	req := registration(1, 1)
	req.LogDirs = append(req.LogDirs, second)
	k.must(k.c.RegisterBroker(k.at(), req))
	k.must(k.heartbeat(1, nil))
	k.start(2)
	k.topic("before", []int32{1, 2})
	cordon := func(dirs ...metadata.UUID) string {
		r := k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) {
			h.CordonedLogDirs = [][16]byte{}
			for _, dir := range dirs {
				h.CordonedLogDirs = append(h.CordonedLogDirs, dir)
			}
		}))
		return kinds(r.Records)
	}
	place := func(name string) (replicas []int32, err error) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest(name, 8, 1)}
		made := k.must(k.c.CreateTopics(k.at(), req)).Reply.(CreateTopicsReply).Topics[0]
		if made.Err != nil {
			return nil, made.Err
		}
		for p := range int32(8) {
			replicas = append(replicas, k.partition(name, p).Replicas...)
		}
		return replicas, nil
	}
	byHand := func(name string) error {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{withReplicas(createRequest(name, -1, -1), 0, 2, 1)}
		if made := k.must(k.c.CreateTopics(k.at(), req)).Reply.(CreateTopicsReply).Topics[0]; made.Err != nil {
			return made.Err
		}
		return nil
	}
	if got := cordon(dirOf(1)); got != "BrokerRegistrationChange" {
		t.Errorf("one of two: %s", got)
	}
	if replicas, err := place("half"); err != nil || !slices.Contains(replicas, 1) {
		t.Errorf("half cordoned: %v, %v", replicas, err)
	}
	if got := cordon(dirOf(1), second) + cordon(second, dirOf(1)); got != "BrokerRegistrationChange" {
		t.Errorf("both, and both again: %s", got)
	}
	if replicas, err := place("cordoned"); err != nil || slices.Contains(replicas, 1) {
		t.Errorf("cordoned: %v, %v", replicas, err)
	}
	if err := byHand("by-hand"); !errors.Is(err, ErrInvalidReplicaAssignment) {
		t.Errorf("by hand: %v", err)
	}
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "before", Count: 2, Assignment: []kmsg.CreatePartitionsRequestTopicAssignment{{Replicas: []int32{2, 1}}}}}
	if err := k.c.CreatePartitions(k.at(), grow).Reply.(CreatePartitionsReply).Topics[0].Err; !errors.Is(err, ErrInvalidReplicaAssignment) {
		t.Errorf("another partition by hand: %v", err)
	}
	move := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	move.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "cordoned", Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Replicas: []int32{1}}}}}
	if err := k.c.AlterPartitionAssignments(k.at(), move).Reply.(AlterReassignmentsReply).Partitions[0].Err; !errors.Is(err, ErrInvalidReplicaAssignment) {
		t.Errorf("moved there: %v", err)
	}
	if p := k.partition("before", 0); p.Leader != 1 || !slices.Equal(p.ISR, []int32{1, 2}) || !slices.Equal(p.Replicas, []int32{1, 2}) {
		t.Errorf("what was there: %+v", p)
	}
	if r := k.must(k.heartbeat(1, nil)); len(r.Records) > 0 {
		t.Errorf("a heartbeat that says nothing of it: %s", kinds(r.Records))
	}
	if got := cordon(); got != "BrokerRegistrationChange" || k.broker(1).AllCordoned() {
		t.Errorf("taken away: %s", got)
	}
	if err := byHand("after"); err != nil {
		t.Errorf("after it: %v", err)
	}
	setting := incremental(metadata.ResourceBroker, "1", configOp{kmsg.IncrementalAlterConfigOpSet, "cordoned.log.dirs", new("*")})
	if err := outcomeOf(t, k.c.IncrementalAlterConfigs(k.at(), setting)); err != nil {
		t.Errorf("the setting: %v", err)
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: 29}})
	if err := outcomeOf(t, k.c.IncrementalAlterConfigs(k.at(), setting)); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("the setting at level 29: %v", err)
	}
	if got := cordon(dirOf(1)); got != "" {
		t.Errorf("a heartbeat at level 29: %s", got)
	}
}

// 4.8: a leaderless partition whose last replica in sync cannot lead (its directory is offline) notes that one as the last
// known when it then leaves the in-sync set after an unclean stop: else nobody would ever lead it again.
func TestLastInSyncOfALeaderlessPartitionIsTheLastKnown(t *testing.T) {
	t.Parallel()
	p := &metadata.Partition{Replicas: []int32{1, 2}, ISR: []int32{1}, Leader: metadata.NoLeader, LeaderEpoch: 3}
	b := newPartitionChange(metadata.UUID{1}, p)
	b.level, b.elr, b.minISR, b.mayLead = metadata.LevelLatest, true, 1, func(int32) bool { return false }
	b.isr, b.unclean = []int32{}, []int32{1}
	rec := b.build()
	if rec == nil || rec.ISR == nil || len(rec.ISR) != 0 || len(rec.LastKnownELR) != 1 || rec.LastKnownELR[0] != 1 {
		t.Errorf("%+v", rec)
	}
}
