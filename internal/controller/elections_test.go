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

// fence takes brokers out, and unfence brings them back in.
func (k *cluster) fence(ids ...int32) {
	k.t.Helper()
	for _, id := range ids {
		k.must(k.heartbeat(id, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	}
}

func (k *cluster) unfence(ids ...int32) {
	k.t.Helper()
	for _, id := range ids {
		k.must(k.heartbeat(id, nil))
	}
}

// inSync makes a partition's replicas in sync, by its leader's word.
func (k *cluster) inSync(topic string, id int32, members ...int32) {
	k.t.Helper()
	t, _ := k.c.Image().Topic(topic)
	p := k.partition(topic, id)
	if err := k.must(k.c.AlterPartition(k.at(), alterRequest(k, p.Leader, t.ID, p, members...))).Reply.(AlterPartitionReply).Partitions[0].Err; err != nil {
		k.t.Fatal(err)
	}
}

// pass lets time go by in steps in which all brokers are heard of, and counts the records of each kind but NoOps.
func (k *cluster) pass(d time.Duration, alive ...int32) map[string]int {
	k.t.Helper()
	counts := map[string]int{}
	for end := k.now.Add(d); k.now.Before(end); {
		k.now = k.now.Add(min(time.Second, end.Sub(k.now)))
		for _, id := range alive {
			k.must(k.heartbeat(id, nil))
		}
		for {
			at, ok := k.c.NextDeadline()
			if !ok || at.After(k.now) {
				break
			}
			for _, rec := range k.must(k.c.Tick(k.at())).Records {
				if _, idle := rec.(*metadata.NoOpRecord); !idle {
					counts[metadata.RecordName(rec)]++
				}
			}
		}
	}
	return counts
}

// Every leader.imbalance.check.interval.seconds leadership goes back to first replicas that are in sync and alive, of all
// partitions, a thousand to a run and the rest at once afterwards; not to one that is behind or away; never when
// auto.leader.rebalance.enable is false.
func TestLeadersAreRebalanced(t *testing.T) {
	t.Parallel()
	for _, enabled := range []bool{true, false} {
		k := newCluster(t, fmt.Sprintf("auto.leader.rebalance.enable=%v", enabled))
		k.start(1, 2, 3)
		many := make([][]int32, 1500)
		for i := range many {
			many[i] = []int32{1, 2}
		}
		k.topic("many", many...)
		k.topic("behind", []int32{1, 2})
		k.topic("away", []int32{3, 2})
		k.fence(1, 3)
		k.unfence(1)
		for i := range int32(len(many)) {
			k.inSync("many", i, 2, 1)
		}
		led := func() (by [4]int) {
			topic, _ := k.c.Image().Topic("many")
			for _, p := range topic.Partitions().All() {
				by[p.Leader]++
			}
			return by
		}
		k.pass(299*time.Second, 1, 2)
		if by := led(); by[2] != 1500 {
			t.Fatalf("before the interval is over: %v", by)
		}
		runs := 0
		if enabled {
			// At the end of the interval: run by run.
			k.now = k.now.Add(time.Second)
			k.unfence(1, 2)
			for {
				at, ok := k.c.NextDeadline()
				if !ok || at.After(k.now) {
					break
				}
				r := k.must(k.c.Tick(k.at()))
				if n := len(r.Records); n > 1 {
					if runs++; n > recordsPerRun {
						t.Errorf("%d records in one run", n)
					}
				}
			}
		} else {
			k.pass(time.Second, 1, 2)
		}
		want := [4]int{2: 1500}
		if enabled {
			want = [4]int{1: 1500}
		}
		if by := led(); by != want || enabled && runs != 2 {
			t.Errorf("enabled %v: led by %v, in %d runs", enabled, by, runs)
		}
		if p := k.partition("behind", 0); p.Leader != 2 {
			t.Errorf("a first replica that is behind leads: %+v", p)
		}
		if p := k.partition("away", 0); p.Leader != 2 {
			t.Errorf("a first replica that is away leads: %+v", p)
		}
		if counts := k.pass(301*time.Second, 1, 2); counts["PartitionChangeRecord"] != 0 {
			t.Errorf("again, with nothing to do: %v", counts)
		}
	}
}

// Leaderless partitions of topics that permit it get a leader that was not in sync, within unclean.leader.election.interval.ms
// of the permission; those of other topics wait for a replica that was.
func TestUncleanElectionsByTopic(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2, 3)
	k.topic("permits", []int32{1, 2})
	k.topic("waits", []int32{1, 2})
	k.fence(2)
	k.unfence(2)
	k.fence(1)
	for _, topic := range []string{"permits", "waits"} {
		if p := k.partition(topic, 0); p.Leader != metadata.NoLeader || !slices.Equal(p.ISR, []int32{1}) {
			t.Fatalf("%s: %+v", topic, p)
		}
	}
	k.pass(301*time.Second, 2, 3)
	if p := k.partition("permits", 0); p.Leader != metadata.NoLeader {
		t.Fatalf("without permission: %+v", p)
	}
	if err := outcomeOf(t, k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(2, "permits", configOp{kmsg.IncrementalAlterConfigOpSet, "unclean.leader.election.enable", new("true")})))); err != nil {
		t.Fatal(err)
	}
	if counts := k.pass(301*time.Second, 2, 3); counts["PartitionChangeRecord"] != 1 {
		t.Errorf("%v", counts)
	}
	if p := k.partition("permits", 0); p.Leader != 2 || !slices.Equal(p.ISR, []int32{2}) || p.RecoveryState != metadata.Recovering {
		t.Errorf("permits: %+v", p)
	}
	if p := k.partition("waits", 0); p.Leader != metadata.NoLeader {
		t.Errorf("waits: %+v", p)
	}
	k.unfence(1)
	if p := k.partition("waits", 0); p.Leader != 1 || p.RecoveryState != metadata.Recovered {
		t.Errorf("waits, when its replica is back: %+v", p)
	}
}

// A topic is deleted at once though a broker with a replica is away: its name is free for another, and the broker that comes
// back changes nothing about either.
func TestDeletionWithAReplicaAway(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	old := k.topic("t", []int32{1, 2}, []int32{2, 1})
	k.fence(2)
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"t"}
	if r := k.must(k.c.DeleteTopics(k.at(), del)); kinds(r.Records) != "RemoveTopic" || r.Reply.(DeleteTopicsReply).Topics[0].Err != nil {
		t.Fatalf("%s %+v", kinds(r.Records), r.Reply)
	}
	next := k.topic("t", []int32{1, 2})
	if next.ID == old.ID || !slices.Equal(k.partition("t", 0).ISR, []int32{1}) {
		t.Errorf("%+v", k.partition("t", 0))
	}
	r := k.must(k.heartbeat(2, nil))
	if kinds(r.Records) != "BrokerRegistrationChange" {
		t.Errorf("back: %s", kinds(r.Records))
	}
	// What it says of its old replicas is said of an id that is gone.
	req := kmsg.NewPtrAssignReplicasToDirsRequest()
	req.BrokerID, req.BrokerEpoch = 2, k.broker(2).Epoch
	req.Directories = []kmsg.AssignReplicasToDirsRequestDirectory{{ID: dirOf(2), Topics: []kmsg.AssignReplicasToDirsRequestDirectoryTopic{
		{TopicID: old.ID, Partitions: []kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{{Partition: 0}}}}}}
	if got := k.c.AssignReplicasToDirs(k.at(), req).Reply.(AssignReplicasReply).Replicas[0]; !errors.Is(got.Err, ErrUnknownTopicID) {
		t.Errorf("%+v", got)
	}
}
