package controller

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The table of reassignments: the state after the request, and the in-sync set at which each one ends;
// cancelling, replacing and listing.
func TestM052_reassignments(t *testing.T) {
	t.Parallel()
	move := func(k *cluster, target ...int32) error {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "t", Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Replicas: target}}}}
		if err := k.must(k.c.AlterPartitionAssignments(k.at(), req)).Reply.(AlterReassignmentsReply).Partitions[0].Err; err != nil {
			return err
		}
		return nil
	}
	isr := func(k *cluster, members ...int32) {
		topic, _ := k.c.Image().Topic("t")
		p := k.partition("t", 0)
		k.must(k.c.AlterPartition(k.at(), alterRequest(k, p.Leader, topic.ID, p, members...)))
	}
	state := func(k *cluster) string {
		p := k.partition("t", 0)
		return fmt.Sprintf("%v adding %v removing %v isr %v", p.Replicas, p.AddingReplicas, p.RemovingReplicas, p.ISR)
	}
	for _, c := range []struct {
		from, to []int32
		after    string
		short    []int32 // an in-sync set that is not enough, nil for none
		isr      []int32
		end      string
		leader   int32
		bumped   bool
	}{
		{[]int32{1, 2, 3}, []int32{3, 4, 5}, "[3 4 5 1 2] adding [4 5] removing [1 2] isr [1 2 3]", []int32{1, 4}, []int32{1, 4, 5}, "[3 4 5] adding [] removing [] isr [4 5]", 4, true},
		{[]int32{1, 2, 3}, []int32{3, 4}, "[3 4 1 2] adding [4] removing [1 2] isr [1 2 3]", []int32{1, 4}, []int32{1, 3, 4}, "[3 4] adding [] removing [] isr [3 4]", 3, true},
		{[]int32{1, 2}, []int32{2, 1}, "[2 1] adding [] removing [] isr [1 2]", nil, nil, "[2 1] adding [] removing [] isr [1 2]", 1, false},
		{[]int32{1, 2, 3}, []int32{1, 2}, "[1 2] adding [] removing [] isr [1 2]", nil, nil, "[1 2] adding [] removing [] isr [1 2]", 1, true},
	} {
		k := newCluster(t)
		k.start(1, 2, 3, 4, 5)
		k.topic("t", c.from)
		if err := move(k, c.to...); err != nil || state(k) != c.after {
			t.Errorf("%v to %v: %v, %s", c.from, c.to, err, state(k))
		}
		if c.short != nil {
			isr(k, c.short...)
			if !k.partition("t", 0).Reassigning() {
				t.Errorf("%v to %v ends at ISR %v", c.from, c.to, c.short)
			}
			isr(k, c.isr...)
		}
		if p := k.partition("t", 0); state(k) != c.end || p.Leader != c.leader || p.LeaderEpoch > 0 != c.bumped {
			t.Errorf("%v to %v ends as %s, leader %d epoch %d", c.from, c.to, state(k), p.Leader, p.LeaderEpoch)
		}
	}
	k := newCluster(t)
	k.start(1, 2, 3, 4, 5)
	k.topic("t", []int32{1, 2, 3})
	if err := move(k); !errors.Is(err, ErrNoReassignmentInProgress) {
		t.Error(err)
	}
	for _, bad := range [][]int32{{}, {9}, {1, 1}} {
		if err := move(k, bad...); !errors.Is(err, ErrInvalidReplicaAssignment) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := move(k, 3, 4, 5); err != nil {
		t.Fatal(err)
	}
	if got := k.c.ListPartitionReassignments(kmsg.NewPtrListPartitionReassignmentsRequest()); len(got) != 1 || got[0].Topic != "t" {
		t.Error(got)
	}
	if err := move(k); err != nil || state(k) != "[3 1 2] adding [] removing [] isr [1 2 3]" {
		t.Error(err, state(k))
	}
	if got := k.c.ListPartitionReassignments(kmsg.NewPtrListPartitionReassignmentsRequest()); len(got) != 0 {
		t.Error(got)
	}
	if err := errors.Join(move(k, 3, 4, 5), move(k, 1, 4)); err != nil || state(k) != "[1 4 2 3 5] adding [4] removing [2 3 5] isr [1 2 3]" {
		t.Error(err, state(k))
	}
}
