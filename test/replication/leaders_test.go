package replication

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rounds is how often a loop goes round: few, or as many as ROUNDS says.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		return n
	}
	return few
}

// E-008: a follower that is asked where an epoch ends answers 6 to the right current epoch, 74 to an older and 75 to a
// newer one.
func TestE008_a_follower_is_asked_for_an_epochs_end(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.create("t", []int32{1, 2})
	c.brokers[1].stop()
	c.led("t", 2, 2)
	c.brokers[1].start()
	s := c.led("t", 2, 1, 2)
	for _, want := range []struct {
		broker, current int32
		code            int16
	}{{1, s.epoch, 6}, {1, s.epoch - 1, 74}, {1, s.epoch + 1, 75}, {2, s.epoch, 0}} {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
		topic.Topic = "t"
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.CurrentLeaderEpoch, p.LeaderEpoch = want.current, 0
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		got := must[*kmsg.OffsetForLeaderEpochResponse](c, want.broker, req).Topics[0].Partitions[0]
		if got.ErrorCode != want.code {
			t.Errorf("broker %d, current epoch %d: %d, want %d", want.broker, want.current, got.ErrorCode, want.code)
		}
	}
}

// E-016: a follower that stands still leaves the in-sync set and comes back into it: the leader epoch is the same
// throughout.
func TestE016_the_leader_epoch_outlasts_in_sync_changes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000")
	c.create("t", []int32{1, 2})
	epoch := c.led("t", 1, 1, 2).epoch
	c.brokers[2].pause()
	c.mustProduce(1, "t", 1, "a", 0, 10)
	c.until("the follower has left the in-sync set", func() (bool, string) {
		s, err := c.describe(1, "t")
		return err == nil && slices.Equal(s.isr, []int32{1}), fmt.Sprintf("%+v, %v", s, err)
	})
	if s, _ := c.describe(1, "t"); s.epoch != epoch {
		t.Errorf("leader epoch %d after the shrink, was %d", s.epoch, epoch)
	}
	c.brokers[2].resume()
	if s := c.led("t", 1, 1, 2); s.epoch != epoch {
		t.Errorf("leader epoch %d after the expansion, was %d", s.epoch, epoch)
	}
	c.equal("t", 10, 1, 2)
	for _, kind := range []string{"shrink", "expand"} {
		if n := c.brokers[1].metric(`stele_isr_changes_total{change="` + kind + `"}`); n != "1" {
			t.Errorf("%s is counted %s times", kind, n)
		}
	}
}

// E-047: what acks=all has acknowledged survives clean failovers in a random order, and is there once, at the offset that
// was told.
func TestE047_clean_failovers_lose_nothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.create("t", []int32{1, 2, 3}, "min.insync.replicas=2")
	told := map[int64]string{}
	for i := range rounds(4) {
		s := c.state("t", func(s state) bool { return s.leader > 0 && len(s.isr) == 3 })
		for k := range 3 {
			n := 10*i + k
			base := c.mustProduce(s.leader, "t", -1, "r", n, 1)
			told[base] = fmt.Sprint("r", n)
		}
		victim := s.leader
		if rand.IntN(4) == 0 {
			victim = s.leader%3 + 1
		}
		c.brokers[victim].stop()
		after := c.state("t", func(s state) bool { return s.leader > 0 && s.leader != victim && len(s.isr) == 2 })
		base := c.mustProduce(after.leader, "t", -1, "r", 10*i+9, 1)
		told[base] = fmt.Sprint("r", 10*i+9)
		c.brokers[victim].start()
	}
	c.state("t", func(s state) bool { return len(s.isr) == 3 })
	held := values(t, c.equal("t", -1, 1, 2, 3))
	for offset, value := range told {
		if held[offset] != value {
			t.Errorf("offset %d holds %q, acknowledged was %q", offset, held[offset], value)
		}
	}
}

// unclean leads a topic into the state of E-054: broker 2 was stopped when it had 90 records, broker 1 went on to 120 and
// is killed.
func unclean(t *testing.T, allowed string) *cluster {
	c := newCluster(t, 2, "unclean.leader.election.enable="+allowed)
	c.create("t", []int32{1, 2})
	c.mustProduce(1, "t", -1, "a", 0, 90)
	c.equal("t", 90, 1, 2)
	c.brokers[2].stop()
	c.led("t", 1, 1)
	c.mustProduce(1, "t", -1, "b", 90, 30)
	c.brokers[1].kill()
	return c
}

// E-054: broker 2 has 90 of the leader's 120 records when the leader is killed, and unclean elections are allowed: it leads
// from 90 in a higher epoch. The old leader, once back, cuts its log to 90, joins the in-sync set and is equal. The
// election is counted and told, and so is what it cost, with the offsets.
func TestE054_unclean_election(t *testing.T) {
	t.Parallel()
	c := unclean(t, "true")
	c.brokers[2].start()
	s := c.led("t", 2, 2)
	if s.epoch < 1 {
		t.Errorf("leader epoch %d", s.epoch)
	}
	if base := c.mustProduce(2, "t", -1, "c", 90, 5); base != 90 {
		t.Errorf("the next record has offset %d", base)
	}
	if n := c.brokers[2].metric("stele_unclean_elections_total"); n != "1" {
		t.Errorf("unclean elections: %s", n)
	}
	if lines := c.brokers[2].lines("unclean leader election", `"endOffset":90`); len(lines) != 1 {
		t.Errorf("told %d times", len(lines))
	}
	c.brokers[1].start()
	c.led("t", 2, 1, 2)
	c.equal("t", 95, 1, 2)
	if lines := c.brokers[1].lines("truncating", `"from":120`, `"to":90`); len(lines) != 1 {
		t.Errorf("the cut is told %d times:\n%s", len(lines), c.brokers[1].log())
	}
	if n := c.brokers[1].metric(`stele_truncated_offsets_total{part="committed"}`) + c.brokers[1].metric(`stele_truncated_offsets_total{part="uncommitted"}`); !strings.Contains(n, "30") {
		t.Errorf("offsets that were cut: %s", n)
	}
}

// E-055: the same with unclean elections forbidden: there is no leader, produce and fetch fail with an error that passes;
// when the old leader is back all 120 records are there.
func TestE055_no_unclean_election(t *testing.T) {
	t.Parallel()
	c := unclean(t, "false")
	c.brokers[2].start()
	c.led("t", -1, 1)
	if _, err := c.produce(2, "t", -1, "c", 90, 1); !kerr.IsRetriable(err) {
		t.Errorf("produce: %v", err)
	}
	if _, _, err := c.read(2, "t", 0); err != nil && !kerr.IsRetriable(err) {
		t.Errorf("fetch: %v", err)
	}
	c.brokers[1].start()
	c.led("t", 1, 1, 2)
	if held := values(t, c.equal("t", 120, 1, 2)); len(held) != 120 || held[119] != "b119" {
		t.Errorf("%d records, the last is %q", len(held), held[119])
	}
}

// E-059: a follower that comes back with an empty disk is not in the in-sync set before it has caught up under its new
// broker epoch; a change of the set that names its old one is refused with 107.
func TestE059_a_follower_with_an_empty_disk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.create("t", []int32{1, 2})
	c.mustProduce(1, "t", -1, "a", 0, 500)
	c.equal("t", 500, 1, 2)
	c.brokers[2].kill()
	c.led("t", 1, 1)
	if err := os.RemoveAll(c.brokers[2].dirs[0]); err != nil {
		t.Fatal(err)
	}
	c.brokers[2].start()
	c.led("t", 1, 1, 2)
	c.equal("t", 500, 1, 2)
	if lines := c.brokers[1].lines("isr change", `"to":[1,2]`); len(lines) != 1 {
		t.Errorf("%d expansions", len(lines))
	}
}

// E-068: the first five rows of the table of eligible leaders, as DescribeTopicPartitions tells them.
func TestE068_eligible_leaders(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.eligibleLeaders()
	c.create("t", []int32{1, 2, 3}, "min.insync.replicas=2")
	c.mustProduce(1, "t", -1, "a", 0, 5)
	c.equal("t", 5, 1, 2, 3)
	row := func(what string, leader int32, isr, elr, last []int32) {
		t.Helper()
		c.until(what, func() (bool, string) {
			for id, b := range c.brokers {
				select {
				case <-b.ended:
					continue
				default:
				}
				s, err := c.describe(id, "t")
				if err != nil || s.leader != leader || !sameMembers(s.isr, isr) || !sameMembers(s.elr, elr) || !sameMembers(s.last, last) {
					return false, fmt.Sprintf("broker %d: %+v, %v", id, s, err)
				}
			}
			return true, ""
		})
	}
	c.brokers[3].stop()
	row("3 is fenced", 1, []int32{1, 2}, nil, nil)
	c.brokers[2].stop()
	row("2 is fenced", 1, []int32{1}, []int32{2}, nil)
	c.brokers[1].stop()
	// 3 comes back to tell what the controller has decided: it is not eligible.
	c.brokers[3].start()
	row("1 is fenced", -1, nil, []int32{1, 2}, []int32{1})
	c.brokers[2].start()
	c.state("t", func(s state) bool { return s.leader == 2 && slices.Contains(s.isr, 2) })
	c.brokers[1].start()
	c.led("t", 2, 1, 2, 3)
	row("1 is back", 2, []int32{1, 2, 3}, nil, nil)
	c.equal("t", 5, 1, 2, 3)
}

// E-069: both that were eligible are killed with -9, so nobody is known to have everything: the last known leader leads
// again once it is back, though unclean elections are off, and says that it does so uncleanly.
func TestE069_the_last_known_leader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.eligibleLeaders()
	c.create("t", []int32{1, 2, 3}, "min.insync.replicas=2")
	c.mustProduce(1, "t", -1, "a", 0, 5)
	c.brokers[3].stop()
	c.led("t", 1, 1, 2)
	c.brokers[2].kill()
	c.led("t", 1, 1)
	c.brokers[1].kill()
	c.brokers[2].start()
	c.state("t", func(s state) bool {
		return s.leader == -1 && len(s.isr) == 0 && slices.Equal(s.elr, []int32{1}) && slices.Equal(s.last, []int32{1})
	})
	epoch := c.state("t", func(s state) bool { return s.leader == -1 }).epoch
	c.brokers[1].start()
	s := c.state("t", func(s state) bool { return s.leader == 1 && slices.Contains(s.isr, 1) })
	if s.epoch <= epoch {
		t.Errorf("leader epoch %d, was %d", s.epoch, epoch)
	}
	if n := c.brokers[1].metric("stele_unclean_elections_total"); n != "1" {
		t.Errorf("unclean elections: %s", n)
	}
	c.brokers[3].start()
	c.led("t", 1, 1, 2, 3)
	c.equal("t", 5, 1, 2, 3)
}

// E-070: a partition moves from brokers 1 and 2 to 2 and 3 while records come in. The leader epoch rises when 1 leaves, no
// record is lost, and a consumer that reads along meets no epoch that diverges.
func TestE070_reassignment_under_load(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.create("t", []int32{1, 2})
	before := c.led("t", 1, 1, 2)
	stop, begun, told := make(chan struct{}), make(chan struct{}), map[int64]string{}
	var loading sync.WaitGroup
	loading.Go(func() {
		leader := int32(1)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			value := fmt.Sprint("r", i)
			for try := 0; try < 500; try++ {
				base, err := c.produce(leader, "t", -1, "r", i, 1)
				if err == nil {
					told[base] = value
					if len(told) == 30 {
						close(begun)
					}
					break
				}
				leader = leader%3 + 1
				<-time.After(10 * time.Millisecond)
			}
		}
	})
	<-begun
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	topic := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Replicas = []int32{2, 3}
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	resp := must[*kmsg.AlterPartitionAssignmentsResponse](c, 0, req)
	if resp.ErrorCode != 0 || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}
	after := c.state("t", func(s state) bool { return sameMembers(s.replicas, []int32{2, 3}) && sameMembers(s.isr, []int32{2, 3}) })
	close(stop)
	loading.Wait()
	if after.epoch <= before.epoch || after.leader == 1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	held := values(t, c.equal("t", -1, 2, 3))
	for offset, value := range told {
		if held[offset] != value {
			t.Errorf("offset %d holds %q, acknowledged was %q", offset, held[offset], value)
		}
	}
	if len(told) < 31 {
		t.Errorf("only %d records were written", len(told))
	}
	if lines := c.brokers[2].lines("truncating"); len(lines) > 0 {
		t.Errorf("something was cut: %v", lines)
	}
}

// E-111: a transaction marker of a coordinator whose epoch is older than the last one stored is refused with 52, also by
// the next leader. DescribeProducers is answered by a follower, and with 6 by a broker without a replica.
func TestE111_markers_of_an_old_coordinator(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.create("t", []int32{1, 2})
	marker := func(broker, coordinatorEpoch int32) int16 {
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, m.Committed = 4000, 0, coordinatorEpoch, true
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = "t", []int32{0}
		m.Topics = append(m.Topics, topic)
		req.Markers = append(req.Markers, m)
		return must[*kmsg.WriteTxnMarkersResponse](c, broker, req).Markers[0].Topics[0].Partitions[0].ErrorCode
	}
	if code := marker(1, 5); code != 0 {
		t.Fatalf("the first marker: %d", code)
	}
	if code := marker(1, 4); code != 52 {
		t.Errorf("an older coordinator: %d, want 52", code)
	}
	describe := func(broker int32) (int16, int) {
		req := kmsg.NewPtrDescribeProducersRequest()
		topic := kmsg.NewDescribeProducersRequestTopic()
		topic.Topic, topic.Partitions = "t", []int32{0}
		req.Topics = append(req.Topics, topic)
		p := must[*kmsg.DescribeProducersResponse](c, broker, req).Topics[0].Partitions[0]
		return p.ErrorCode, len(p.ActiveProducers)
	}
	c.until("the follower knows the producer", func() (bool, string) {
		code, n := describe(2)
		return code == 0 && n == 1, fmt.Sprintf("error %d, %d producers", code, n)
	})
	if code, _ := describe(3); code != 6 {
		t.Errorf("a broker without a replica: %d, want 6", code)
	}
	c.brokers[1].stop()
	c.led("t", 2, 2)
	if code := marker(2, 4); code != 52 {
		t.Errorf("an older coordinator at the next leader: %d, want 52", code)
	}
	if code := marker(2, 5); code != 0 {
		t.Errorf("the same coordinator at the next leader: %d", code)
	}
}

// E-112: the leader of the offsets partition is killed while offsets are committed: what is fetched is always an offset with
// the epoch that was committed with it, and one that is not older than the last that was acknowledged.
func TestE112_offsets_and_epochs_stay_together(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "offsets.topic.replication.factor=3", "min.insync.replicas=2")
	c.create("t", []int32{1, 2, 3})
	epochOf := func(offset int64) int32 { return int32(offset*7%1000) + 1 }
	commit := func(broker int32, offset int64) error {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.Generation = "g", -1
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic = "t"
		if id, err := c.topicID("t"); err == nil {
			topic.TopicID = id
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Offset, p.LeaderEpoch = offset, epochOf(offset)
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := do[*kmsg.OffsetCommitResponse](c, broker, req)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	fetch := func(broker int32) (offset int64, epoch int32, err error) {
		req := kmsg.NewPtrOffsetFetchRequest()
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group = "g"
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.Partitions = "t", []int32{0}
		if id, err := c.topicID("t"); err == nil {
			topic.TopicID = id
		}
		group.Topics = append(group.Topics, topic)
		req.Groups = append(req.Groups, group)
		resp, err := do[*kmsg.OffsetFetchResponse](c, broker, req)
		if err != nil {
			return -1, -1, err
		}
		g := resp.Groups[0]
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return -1, -1, err
		}
		p := g.Topics[0].Partitions[0]
		return p.Offset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)
	}
	coordinator := func() int32 {
		id := int32(-1)
		c.until("there is a coordinator", func() (bool, string) {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType, req.CoordinatorKeys, req.CoordinatorKey = 0, []string{"g"}, "g"
			for b := range c.brokers {
				resp, err := do[*kmsg.FindCoordinatorResponse](c, b, req)
				if err != nil || len(resp.Coordinators) != 1 || resp.Coordinators[0].ErrorCode != 0 {
					continue
				}
				if id = resp.Coordinators[0].NodeID; slices.Contains(c.alive(), id) {
					return true, ""
				}
			}
			return false, fmt.Sprint("broker ", id)
		})
		return id
	}
	next, acknowledged := int64(1), int64(0)
	for round := range rounds(2) + 1 {
		at := coordinator()
		for range 30 {
			if err := commit(at, next); err == nil {
				acknowledged = next
			}
			next++
			offset, epoch, err := fetch(at)
			if err == nil && offset >= 0 && (epoch != epochOf(offset) || offset < acknowledged) {
				t.Fatalf("fetched offset %d with epoch %d; acknowledged is %d", offset, epoch, acknowledged)
			}
		}
		if round == rounds(2) {
			break
		}
		c.brokers[at].kill()
		c.until("the next coordinator has what was acknowledged", func() (bool, string) {
			offset, epoch, err := fetch(coordinator())
			if err == nil && offset >= 0 && epoch != epochOf(offset) {
				t.Fatalf("fetched offset %d with epoch %d", offset, epoch)
			}
			return err == nil && offset >= acknowledged, fmt.Sprintf("offset %d, acknowledged %d, %v", offset, acknowledged, err)
		})
		c.brokers[at].start()
		c.state("__consumer_offsets", func(s state) bool { return len(s.isr) == 3 })
	}
	if acknowledged < 30 {
		t.Errorf("only %d commits", acknowledged)
	}
}

// alive are the brokers whose process runs.
func (c *cluster) alive() (ids []int32) {
	for id, b := range c.brokers {
		select {
		case <-b.ended:
		default:
			ids = append(ids, id)
		}
	}
	return ids
}

// B-127: the leader is paused, a new one is waited for and written to, that one is paused too and the first resumed, again
// and again, now and then without a record in between. In the end the replicas are equal byte for byte, all are in sync,
// and each acknowledged record is there once, at the offset that was told.
func TestB127_fast_leader_changes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "broker.session.timeout.ms=1200", "replica.lag.time.max.ms=2000")
	c.create("t", []int32{1, 2, 3}, "min.insync.replicas=2")
	told := map[int64]string{}
	n := 0
	write := func(leader int32) {
		for range 3 {
			value := fmt.Sprint("r", n)
			if base, err := c.produce(leader, "t", -1, "r", n, 1); err == nil {
				if was, twice := told[base]; twice {
					t.Errorf("offset %d was given to %s and to %s", base, was, value)
				}
				told[base] = value
			}
			n++
		}
	}
	leaderBut := func(not int32) (leader int32) {
		c.until("there is a leader", func() (bool, string) {
			for id := range c.brokers {
				if id == not {
					continue
				}
				s, err := c.describe(id, "t")
				if err == nil && s.leader > 0 && s.leader != not {
					leader = s.leader
					return true, ""
				}
			}
			return false, ""
		})
		return leader
	}
	paused := int32(0)
	for i := range rounds(3) {
		leader := leaderBut(paused)
		write(leader)
		c.brokers[leader].pause()
		if paused > 0 {
			c.brokers[paused].resume()
		}
		paused = leader
		next := leaderBut(paused)
		if i%3 != 1 {
			write(next)
		}
	}
	c.brokers[paused].resume()
	c.state("t", func(s state) bool { return s.leader > 0 && len(s.isr) == 3 })
	held := values(t, c.equal("t", -1, 1, 2, 3))
	for offset, value := range told {
		if held[offset] != value {
			t.Errorf("offset %d holds %q, acknowledged was %q", offset, held[offset], value)
		}
	}
	seen := map[string]int64{}
	for offset, value := range held {
		if before, twice := seen[value]; twice {
			t.Errorf("%s is at %d and at %d", value, before, offset)
		}
		seen[value] = offset
	}
	if len(told) < 3 {
		t.Errorf("only %d records were acknowledged", len(told))
	}
}
