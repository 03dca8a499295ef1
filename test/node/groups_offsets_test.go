package node

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestE106_commit_with_its_epoch(t *testing.T) {
	// A commit of (1000, epoch 5, "m") at v6 and up comes back with epoch 5 from v5 on; one at v5 with -1; one that was never made with (-1, -1, "").
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	m := "m"
	for version := int16(2); version <= 10; version++ {
		if codes := c.commitOffsets(version, alone(group), tp, commit{0, 1000, 5, &m}); codes[0] != 0 {
			t.Fatalf("commit v%d: %d", version, codes[0])
		}
		want := storedOffset{0, 1000, 5, "m"}
		if version < 6 {
			want.epoch = -1
		}
		for fetch := int16(1); fetch <= 10; fetch++ {
			c.wantStored(fetch, group, tp, want)
		}
		for fetch := int16(1); fetch <= 10; fetch++ {
			c.wantStored(fetch, group+"-never", tp, storedOffset{0, -1, -1, ""})
		}
	}
}

func TestE107_epoch_is_stored_as_sent(t *testing.T) {
	// A commit with an epoch far above the partition's is stored and returned as it is.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	if codes := c.commitOffsets(8, alone(group), tp, commit{0, 1 << 50, 999, nil}); codes[0] != 0 {
		t.Fatalf("commit: %d", codes[0])
	}
	c.wantStored(8, group, tp, storedOffset{0, 1 << 50, 999, ""})
}

func (c *client) removeTopic(tp topic) int16 {
	c.t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.TimeoutMillis = []string{tp.name}, 10000
	return do[*kmsg.DeleteTopicsResponse](c, 5, req).Topics[0].ErrorCode
}

// recreate deletes a topic and makes it anew.
func (c *client) recreate(tp topic) topic {
	c.t.Helper()
	if code := c.removeTopic(tp); code != 0 {
		c.t.Fatalf("delete: %d", code)
	}
	return c.createTopic(tp.name, 1)
}

func TestE108_offsets_of_a_recreated_topic(t *testing.T) {
	// After a topic is made anew, OffsetFetch v10 by the new id answers -1 with epoch -1.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	c.commitOffset(10, alone(group), tp, 100)
	c.wantStored(10, group, tp, storedOffset{0, 100, -1, ""})
	c.wantStored(10, group, c.recreate(tp), storedOffset{0, -1, -1, ""})
}

func TestB013_offsets_of_a_deleted_topic(t *testing.T) {
	// Offsets of a deleted topic are not given to a new one of the same name: fetch by name and by the new id answer -1; a commit by the old id 100, and stores nothing. All of it also after a restart.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	old := c.topic(1)
	group := c.groupID()
	c.commitOffset(8, alone(group), old, 100)
	young := c.recreate(old)
	for range 5 {
		c.mustProduce(young, 0, plain(1, 0))
	}
	if codes := c.commitOffsets(10, alone(group), topic{id: old.id}, commit{0, 77, 1, nil}); codes[0] != 100 {
		t.Errorf("commit by the old id: %d", codes[0])
	}
	for range 2 {
		for version := int16(1); version <= 10; version++ {
			c.wantStored(version, group, young, storedOffset{0, -1, -1, ""})
		}
		if found := c.fetchOffsets(10, group, []topic{{id: old.id}}); found.Topics[0].Partitions[0].ErrorCode != 100 {
			t.Errorf("fetch by the old id: %+v", found)
		}
		if all := c.fetchOffsets(8, group, nil); all.ErrorCode != 0 || len(all.Topics) != 0 {
			t.Errorf("all topics: %+v", all)
		}
		n.restart(t)
		c = n.dial(t)
		c.coordinator(group)
	}
}

func TestG054_deleted_topic_loses_its_offsets(t *testing.T) {
	// When a topic is deleted and made anew, fetches answer -1 and never an offset of the old id.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	for round := range int64(5) {
		c.commitOffset(8, alone(group), tp, 100+round)
		tp = c.recreate(tp)
		c.wantStored(7, group, tp, storedOffset{0, -1, -1, ""})
		c.wantStored(10, group, tp, storedOffset{0, -1, -1, ""})
	}
}

func TestE109_bytes_in_the_log(t *testing.T) {
	// The records in __consumer_offsets are, byte for byte, the ones Kafka writes: key type 1 and value version 4 with the topic's id; key type 2 and value version 3 for a new group.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	orders := c.createTopic("orders", 4)
	c.coordinator("g1")
	before := time.Now().UnixMilli()
	m := "m"
	if codes := c.commitOffsets(8, alone("g1"), orders, commit{3, 1000, 5, &m}, commit{2, 1000, -1, nil}); !slices.Equal(codes, []int16{0, 0}) {
		t.Fatalf("commit: %v", codes)
	}
	c.join(4, wish{group: "g1new"})
	written := n.read(t, n.path("__consumer_offsets", "00000000000000000000.log"))
	for name, want := range map[string]string{
		"key of partition 3": "0001 0002 6731 0006 6f7264657273 00000003",
		"key of partition 2": "0001 0002 6731 0006 6f7264657273 00000002",
		"value":              "0004 00000000000003e8 00000005 02 6d",
		"value, no epoch":    "0004 00000000000003e8 ffffffff 01",
		"topic id":           "01 00 10 " + hex.EncodeToString(orders.id[:]),
		"group key":          "0002 0005 67316e6577",
		"brand new group":    "0003 0000 00000000 ffff ffff",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(written, b) {
			t.Errorf("%s: %s is not in the log", name, want)
		}
	}
	at := bytes.Index(written, append([]byte{0, 4}, 0, 0, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 5, 2, 'm'))
	if at < 0 {
		t.Fatal("no value")
	}
	stamp := int64(0)
	for _, b := range written[at+16 : at+24] {
		stamp = stamp<<8 | int64(b)
	}
	if stamp < before || stamp > time.Now().UnixMilli() {
		t.Errorf("commit timestamp %d, want about %d", stamp, before)
	}
}

func TestB017_null_metadata(t *testing.T) {
	// Metadata null, empty and "x" are accepted; null is stored and returned as the empty string, before and after a restart.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	base := c.groupID()
	empty, x := "", "x"
	for round := range 2 {
		for _, version := range []int16{2, 5, 8, 10} {
			for name, metadata := range map[string]*string{"null": nil, "empty": &empty, "x": &x} {
				group := base + name + string(rune('a'+version))
				if round == 0 {
					if codes := c.commitOffsets(version, alone(group), tp, commit{0, 9, -1, metadata}); codes[0] != 0 {
						t.Errorf("commit v%d %s: %d", version, name, codes[0])
					}
				}
				for _, fetch := range []int16{1, 5, 8} {
					c.wantStored(fetch, group, tp, storedOffset{0, 9, -1, deref(metadata)})
				}
			}
		}
		n.restart(t)
		c = n.dial(t)
		c.coordinator(base)
	}
}

func TestB093_epoch_over_a_restart(t *testing.T) {
	// A commit's epoch 3 comes back as 3, and one without comes back as -1, also after kill -9.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	base := c.groupID()
	c.commitOffsets(6, alone(base+"3"), tp, commit{0, 5, 3, nil})
	c.commitOffsets(5, alone(base+"none"), tp, commit{0, 5, 3, nil})
	for range 2 {
		c.wantStored(5, base+"3", tp, storedOffset{0, 5, 3, ""})
		c.wantStored(5, base+"none", tp, storedOffset{0, 5, -1, ""})
		n.kill()
		n.run(t)
		c = n.dial(t)
		c.coordinator(base)
	}
}

func TestB046_no_coordinator_is_an_error(t *testing.T) {
	// While a group has no coordinator, OffsetFetch says so in every version: v1 in each partition with offset -1, v2-v7 at the top, v8 and up for the group.
	t.Parallel()
	c := start(t).dial(t) // nothing has asked for a coordinator: its topic is not there
	tp := c.topic(1)
	for version := int16(1); version <= 10; version++ {
		found := c.fetchOffsets(version, "g", []topic{tp})
		if version >= 2 && found.ErrorCode != 16 && found.ErrorCode != 15 {
			t.Errorf("v%d: %+v", version, found)
		}
		if version == 1 && (len(found.Topics) != 1 || found.Topics[0].Partitions[0].ErrorCode != 16 || found.Topics[0].Partitions[0].Offset != -1) {
			t.Errorf("v%d: %+v", version, found)
		}
		if all := c.fetchOffsets(max(version, 2), "g", nil); all.ErrorCode == 0 {
			t.Errorf("v%d, all topics: %+v", version, all)
		}
	}
}

func TestB048_who_may_commit(t *testing.T) {
	// Commits without a generation go to unknown and Empty groups, not to a Stable one (25); with a generation to an unknown group 22 (v8) or 69 (v9); a stale generation 22, a stranger 25.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group, empty := c.groupID(), c.freshName()
	members, ids, _ := n.stable(t, empty, 1, wish{})
	members[0].leave(3, empty, leaver{member: ids[0]})
	_, ids, generation := n.stable(t, group, 1, wish{})
	instance := "i9"
	for name, x := range map[string]struct {
		version int16
		by      committer
		want    int16
	}{
		"unknown group":              {8, alone(c.freshName()), 0},
		"Empty group, instance id":   {8, committer{group: empty, instance: &instance, generation: -1}, 0},
		"Stable group":               {8, alone(group), 25},
		"unknown, generation 3, v8":  {8, committer{group: c.freshName(), generation: 3}, 22},
		"unknown, generation 3, v9":  {9, committer{group: c.freshName(), generation: 3}, 69},
		"unknown, generation 3, v10": {10, committer{group: c.freshName(), generation: 3, member: "m"}, 69},
		"right":                      {8, committer{group, ids[0], nil, generation}, 0},
		"old generation":             {8, committer{group, ids[0], nil, generation - 1}, 22},
		"wrong member":               {8, committer{group, "stranger", nil, generation}, 25},
	} {
		if code := c.commitOffset(x.version, x.by, tp, 1); code != x.want {
			t.Errorf("%s: %d, want %d", name, code, x.want)
		}
	}
}

func TestG041_simple_consumer(t *testing.T) {
	// A commit with generation -1 to an unknown group makes a simple group, listed with no type; with generation 0 and a member 22 up to v8, 69 from v9.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	for version := int16(2); version <= 10; version++ {
		want := int16(22)
		if version >= 9 {
			want = 69
		}
		if code := c.commitOffset(version, committer{group: group, member: "m", generation: 0}, tp, 1); code != want {
			t.Errorf("v%d: %d, want %d", version, code, want)
		}
	}
	if code := c.commitOffset(8, alone(group), tp, 5); code != 0 {
		t.Errorf("commit: %d", code)
	}
	if listed, ok := c.listedGroup(5, group, nil, nil); !ok || listed.ProtocolType != "" || listed.GroupState != "Empty" || listed.GroupType != "classic" {
		t.Errorf("%+v, %t", listed, ok)
	}
}

func TestG042_commit_to_an_empty_group(t *testing.T) {
	// When the members are gone, an administrator may commit, and an old member is answered 25.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	members, ids, generation := n.stable(t, group, 1, wish{})
	members[0].leave(3, group, leaver{member: ids[0]})
	if code := c.commitOffset(8, alone(group), tp, 5); code != 0 {
		t.Errorf("administrator: %d", code)
	}
	if code := c.commitOffset(8, committer{group, ids[0], nil, generation}, tp, 6); code != 25 {
		t.Errorf("old member: %d", code)
	}
	c.wantStored(8, group, tp, storedOffset{0, 5, -1, ""})
}

func TestG043_commit_while_preparing(t *testing.T) {
	// To a Stable group a commit without identity is answered 25; while a rebalance is prepared a member's is taken.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	_, ids, generation := n.stable(t, group, 1, wish{})
	if code := c.commitOffset(8, alone(group), tp, 5); code != 25 {
		t.Errorf("no identity: %d", code)
	}
	n.dial(t).beginJoin(3, wish{group: group})
	c.awaitState(group, "PreparingRebalance")
	if code := c.commitOffset(8, committer{group, ids[0], nil, generation}, tp, 5); code != 0 {
		t.Errorf("member: %d", code)
	}
}

func TestG044_commit_while_completing(t *testing.T) {
	// While a rebalance completes, a member's commit is answered 27.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	group := c.groupID()
	joined := c.join(3, wish{group: group})
	if code := c.commitOffset(8, committer{group, joined.MemberID, nil, joined.Generation}, tp, 5); code != 27 {
		t.Errorf("%d", code)
	}
}

// subscription is the metadata of a consumer that reads one topic.
func subscription(topic string) string {
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics = []string{topic}
	return string(meta.AppendTo(nil))
}

func (c *client) deleteOffsets(group string, topics ...string) (int16, []int16) {
	c.t.Helper()
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = group
	for _, name := range topics {
		one := kmsg.NewOffsetDeleteRequestTopic()
		one.Topic = name
		one.Partitions = append(one.Partitions, kmsg.NewOffsetDeleteRequestTopicPartition())
		req.Topics = append(req.Topics, one)
	}
	resp := do[*kmsg.OffsetDeleteResponse](c, 0, req)
	var codes []int16
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			codes = append(codes, p.ErrorCode)
		}
	}
	return resp.ErrorCode, codes
}

func TestG053_offset_delete(t *testing.T) {
	// OffsetDelete of a subscribed topic is answered 86, of another 0, of an unknown one 3, in the request's order; of a group of another type with members 68; of an unknown group 69.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	subscribed, other := c.topic(1), c.topic(1)
	group, connect := c.groupID(), c.freshName()
	_, ids, generation := n.stable(t, group, 1, wish{protocols: []string{"range=" + subscription(subscribed.name)}})
	by := committer{group, ids[0], nil, generation}
	c.commitOffset(8, by, subscribed, 1)
	c.commitOffset(8, by, other, 2)
	if code, codes := c.deleteOffsets(group, subscribed.name, "no-such-topic", other.name); code != 0 || !slices.Equal(codes, []int16{86, 3, 0}) {
		t.Errorf("consumer group: %d %v", code, codes)
	}
	c.wantStored(8, group, subscribed, storedOffset{0, 1, -1, ""})
	c.wantStored(8, group, other, storedOffset{0, -1, -1, ""})
	joined := c.join(3, wish{group: connect, kind: "connect"})
	if joined.ErrorCode != 0 {
		t.Fatalf("join: %d", joined.ErrorCode)
	}
	if code, codes := c.deleteOffsets(connect, other.name); code != 68 || len(codes) != 0 {
		t.Errorf("connect group: %d %v", code, codes)
	}
	if code, codes := c.deleteOffsets(group+"-unknown", other.name); code != 69 || len(codes) != 0 {
		t.Errorf("unknown group: %d %v", code, codes)
	}
}

func TestG045_metadata_too_long(t *testing.T) {
	// Of metadata of 4096 and of 4097 characters in one request, the first is stored and the second answered 12; an unknown partition between them 3.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	group := c.groupID()
	fits, long := strings.Repeat("m", 4096), strings.Repeat("m", 4097)
	codes := c.commitOffsets(8, alone(group), tp, commit{1, 1, -1, &long}, commit{9, 1, -1, nil}, commit{0, 1, -1, &fits})
	if !slices.Equal(codes, []int16{12, 3, 0}) {
		t.Errorf("%v", codes)
	}
	c.wantStored(8, group, tp, storedOffset{0, 1, -1, fits})
}

func TestOffsetFetch_several_groups(t *testing.T) {
	// OffsetFetch v8 and up answers several groups in their order; null topics are all that a group has.
	t.Parallel()
	c := shared(t).dial(t)
	one, two := c.topic(1), c.topic(1)
	first, second := c.groupID(), c.freshName()
	c.commitOffset(8, alone(first), one, 1)
	c.commitOffset(8, alone(second), two, 2)
	for version := int16(8); version <= 10; version++ {
		req := kmsg.NewPtrOffsetFetchRequest()
		for _, id := range []string{second, first, second + "-none"} {
			asked := kmsg.NewOffsetFetchRequestGroup()
			asked.Group = id
			req.Groups = append(req.Groups, asked)
		}
		resp := do[*kmsg.OffsetFetchResponse](c, version, req)
		if len(resp.Groups) != 3 || resp.Groups[0].Group != second || resp.Groups[1].Group != first || len(resp.Groups[2].Topics) != 0 {
			t.Fatalf("v%d: %+v", version, resp.Groups)
		}
		for i, want := range []topic{two, one} {
			topics := resp.Groups[i].Topics
			if len(topics) != 1 || version < 10 && topics[0].Topic != want.name || version >= 10 && topics[0].TopicID != want.id || topics[0].Partitions[0].Offset != int64(2-i) {
				t.Errorf("v%d: %+v", version, topics)
			}
		}
	}
}
