package group

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/shard"
)

// checkHeld panics when what the shard says to hold is not what it holds; every step of every rig is followed by it.
func (r *rig) checkHeld() {
	want := int64(0)
	for _, g := range r.s.soft.groups {
		want += groupSize
		for _, m := range g.members {
			want += m.counted
		}
	}
	for id, v := range r.s.replicated.groups.Newest() {
		want += groupValueBytes(id, v)
	}
	for _, t := range r.s.replicated.offsets {
		for tp, e := range t.Newest() {
			want += offsetBytes(tp.Topic, e.OffsetCommitValue)
		}
	}
	for _, t := range r.s.replicated.pending {
		for key, e := range t.Newest() {
			want += offsetBytes(key.Topic, e.OffsetCommitValue)
		}
	}
	for _, g := range r.s.replicated.consumers {
		want += consumerGroupSize + tableBytes(g.members, consumerMemberBytes) + tableBytes(g.targets, targetBytes) + tableBytes(g.currents, currentBytes) + tableBytes(g.regexes, regexBytes)
	}
	if have := r.s.held.n; have != want || r.config.Memory.Bytes() != want {
		panic(fmt.Sprintf("%d bytes are said to be held, %d of the memory, and there are %d", have, r.config.Memory.Bytes(), want))
	}
}

func tableBytes[V any](t *shard.Table[string, V], size func(string, V) int64) int64 {
	n := int64(0)
	for key, v := range t.Newest() {
		n += size(key, v)
	}
	return n
}

// When the memory for groups is used up, new members and offsets are refused, what is there goes on, and what is let
// go of makes room again.
func TestMemoryOfGroupsIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(Config{InitialRebalanceDelay: -1, Memory: &Memory{Max: 20_000}})
	answers := map[string]Response{}
	r.told = func(name string, response Response) { answers[name] = response }
	join := func(name, group string, size int) error {
		req := joinRequest(group, "", "", 10000, 10000, "range")
		req.Version, req.Protocols[0].Metadata = 3, bytes.Repeat([]byte{1}, size)
		r.apply(r.s.JoinGroup(r.now, r.handle(name), RequestContext{ClientID: name, ClientHost: "/10.0.0.1"}, req))
		r.advance(r.now)
		return answers[name].(*JoinReply).Err
	}
	commit := func(name, group string, partition int32) error {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		metadata := string(bytes.Repeat([]byte{'m'}, 1000))
		p.Partition, p.Metadata = partition, &metadata
		r.apply(r.s.OffsetCommit(r.now, r.handle(name), &kmsg.OffsetCommitRequest{Version: 7, Group: group, Generation: -1,
			Topics: []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{p}}}}))
		return answers[name].(*CommitReply).Topics[0].Partitions[0].Err
	}
	if err := join("A", "g", 5000); err != nil {
		t.Fatal(err)
	}
	if err := join("B", "h", 50_000); err != ErrGroupMaxSizeReached {
		t.Errorf("a member that is too large: %v", err)
	}
	last := int32(0)
	for ; last < 100; last++ {
		if err := commit("C", "offsets", last); err == ErrInvalidCommitOffsetSize {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if last < 5 || last > 15 || r.config.Memory.Bytes() > 20_000 {
		t.Errorf("%d offsets in %d bytes", last, r.config.Memory.Bytes())
	}
	if err := commit("C", "offsets", 0); err != nil {
		t.Errorf("an offset that is there already: %v", err)
	}
	if err := join("D", "i", 1000); err != ErrGroupMaxSizeReached {
		t.Errorf("a member where there is no room: %v", err)
	}
	r.apply(r.s.LeaveGroup(r.now, r.handle("E"), &kmsg.LeaveGroupRequest{Version: 1, Group: "g", MemberID: "A-u1"}))
	if err := join("F", "i", 1000); err != nil {
		t.Errorf("a member where there is room again: %v", err)
	}
	r.s.Release()
	if n := r.config.Memory.Bytes(); n != 0 {
		t.Errorf("%d bytes are held after the shard was released", n)
	}
}
