package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// history is a topic of 20 records in three leader epochs: a from 0, b from 10, c from 15.
// c is also the current one, and between a and b, and b and c, lies an epoch never used.
type history struct {
	topic
	a, b, c int32
}

// writeHistory gives each topic the history, restarting the node between epochs.
func writeHistory(t testing.TB, n *node, names ...string) map[string]history {
	t.Helper()
	made := map[string]history{}
	c := n.dial(t)
	for _, name := range names {
		made[name] = history{topic: c.createTopic(name, 1)}
	}
	for i, size := range []int{10, 5, 5} {
		if i > 0 {
			n.restart(t)
			n.restart(t) // so that an epoch goes by without a record
			c = n.dial(t)
		}
		for _, name := range names {
			h := made[name]
			epoch := c.leaderEpoch(h.topic)
			if p := c.produce(9, h.topic, 0, plain(size, stamp+int64([]int{0, 10, 15}[i]))); p.ErrorCode != 0 {
				t.Fatalf("produce to %s: error %d", name, p.ErrorCode)
			}
			*[]*int32{&h.a, &h.b, &h.c}[i] = epoch
			made[name] = h
		}
	}
	for name, h := range made {
		if h.a+1 >= h.b || h.b+1 >= h.c {
			t.Fatalf("%s: epochs %d, %d, %d leave no gap", name, h.a, h.b, h.c)
		}
	}
	return made
}

// TestE001_new_topic: a new topic has leader epoch 0; epoch 0 ends at 0, and at 10 after ten
// records.
func TestE001_new_topic(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	if epoch := c.leaderEpoch(tp); epoch != 0 {
		t.Errorf("leader epoch %d, want 0", epoch)
	}
	c.wantEpochEnd(tp, 0, 0, epochEnd{0, 0, 0})
	c.mustProduce(tp, 0, plain(10, stamp))
	c.wantEpochEnd(tp, 0, 0, epochEnd{0, 0, 10})
}

var past struct {
	once   sync.Once
	n      *node
	made   map[string]history
	failed bool
}

// histories is one node with histories that are only read, but for those in which a test deletes records: such a
// test has one to itself. The node is shared, and ends with the tests.
func histories(t *testing.T) (*client, map[string]history) {
	t.Helper()
	if os.Getenv("STELE_NODE_TARGET") != "" {
		t.Skip("needs a node of its own")
	}
	past.once.Do(func() {
		past.failed = true
		n := &node{dir: filepath.Join(buildDir, "history")}
		n.run(t)
		past.n = n
		past.made = writeHistory(t, n, "plain", "deleted-5", "deleted-22", "deleted-24", "deleted-92", "deleted-all", "session", "session-epoch")
		past.failed = false
	})
	if past.failed {
		t.Fatal("the history could not be written")
	}
	return past.n.dial(t), past.made
}

// TestE002_each_epoch_ends_where_the_next_begins: with epochs a, b and c from 0, 10 and 15, each ends where the next begins, and c at 20.
func TestE002_each_epoch_ends_where_the_next_begins(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantEpochEnd(h.topic, h.c, h.a, epochEnd{0, h.a, 10})
	c.wantEpochEnd(h.topic, h.c, h.b, epochEnd{0, h.b, 15})
	c.wantEpochEnd(h.topic, h.c, h.c, epochEnd{0, h.c, 20})
}

// TestE003_epoch_never_used: an epoch between a and b that wrote nothing ends where a ends.
func TestE003_epoch_never_used(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantEpochEnd(h.topic, h.c, h.a+1, epochEnd{0, h.a, 10})
}

// TestE004_epoch_unknown: an epoch above the current one, and none at all, are answered with (-1, -1) and no error.
func TestE004_epoch_unknown(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantEpochEnd(h.topic, h.c, h.c+1, epochEnd{0, -1, -1})
	c.wantEpochEnd(h.topic, h.c, -1, epochEnd{0, -1, -1})
}

// TestE005_after_DeleteRecords: DeleteRecords moves the end of an epoch that lies wholly below the log start to it.
func TestE005_after_DeleteRecords(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["deleted-5"]
	c.mustDeleteRecords(h.topic, 12)
	c.wantEpochEnd(h.topic, h.c, h.a, epochEnd{0, h.a, 12})
	c.wantEpochEnd(h.topic, h.c, h.b, epochEnd{0, h.b, 15})
	c.mustDeleteRecords(h.topic, 15)
	c.wantEpochEnd(h.topic, h.c, h.a, epochEnd{0, h.a, 15})
	c.wantEpochEnd(h.topic, h.c, h.b, epochEnd{0, h.b, 15})
}

// TestE006_current_epoch_is_checked: a current epoch that is too old is fenced, too new is unknown, -1 is not checked, -2 is older.
func TestE006_current_epoch_is_checked(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantEpochEnd(h.topic, h.c-1, h.a, epochEnd{74, -1, -1})
	c.wantEpochEnd(h.topic, h.c+1, h.a, epochEnd{75, -1, -1})
	c.wantEpochEnd(h.topic, -1, h.a, epochEnd{0, h.a, 10})
	c.wantEpochEnd(h.topic, -2, h.a, epochEnd{74, -1, -1})
}

// TestE010_versions: OffsetForLeaderEpoch v2, which has no replica id, answers as v4 does; v1 closes the connection.
func TestE010_versions(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	for version := int16(2); version <= 4; version++ {
		if got, want := c.offsetForEpoch(version, h.topic, 0, h.c, h.b), (epochEnd{0, h.b, 15}); got != want {
			t.Errorf("v%d: %+v, want %+v", version, got, want)
		}
	}
	c.write(unhex("0000000f 0017 0001 00000063 0001 78 00000000"))
	c.closed()
}

// TestE007_unknown_topic_partition_id: an unknown topic or partition is error 3 in OffsetForLeaderEpoch
// and Fetch v12, an unknown topic id is error 100 in Fetch v13.
func TestE007_unknown_topic_partition_id(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	nowhere := topic{name: "no-such-topic", id: [16]byte{1, 2, 3}}
	if got, want := c.offsetForEpoch(4, nowhere, 0, -1, 0), (epochEnd{3, -1, -1}); got != want {
		t.Errorf("OffsetForLeaderEpoch of an unknown topic: %+v, want %+v", got, want)
	}
	if got, want := c.offsetForEpoch(4, tp, 7, -1, 0), (epochEnd{3, -1, -1}); got != want {
		t.Errorf("OffsetForLeaderEpoch of an unknown partition: %+v, want %+v", got, want)
	}
	beyond := at(tp, 0)
	beyond.partition = 7
	for _, test := range []struct {
		version int16
		at      position
		want    int16
	}{{12, at(nowhere, 0), 3}, {12, beyond, 3}, {13, at(nowhere, 0), 100}, {13, beyond, 3}, {18, at(topic{}, 0), 100}} {
		if p := c.fetch(test.version, test.at); p.ErrorCode != test.want || p.HighWatermark != -1 {
			t.Errorf("Fetch v%d of %q-%d: error %d, high watermark %d; want error %d and -1", test.version, test.at.topic.name, test.at.partition, p.ErrorCode, p.HighWatermark, test.want)
		}
	}
}

// checkpointOf is the content of a partition's epoch checkpoint.
func checkpointOf(h history) string {
	return fmt.Sprintf("0\n3\n%d 0\n%d 10\n%d 15\n", h.a, h.b, h.c)
}

// wantEnds asks for the pairs of E-002 under the epoch in force now.
func (c *client) wantEnds(h history) {
	c.t.Helper()
	now := c.leaderEpoch(h.topic)
	c.wantEpochEnd(h.topic, now, h.a, epochEnd{0, h.a, 10})
	c.wantEpochEnd(h.topic, now, h.b, epochEnd{0, h.b, 15})
	c.wantEpochEnd(h.topic, now, h.c, epochEnd{0, h.c, 20})
}

// TestE011_checkpoint_lost: the checkpoint lists the three epochs in order; deleted while the node is down, it is
// rebuilt, and the ends of all epochs are as before.
func TestE011_checkpoint_lost(t *testing.T) {
	t.Parallel()
	n := start(t)
	h := writeHistory(t, n, "lost")["lost"]
	n.stop(t)
	if got, want := string(n.read(t, n.path("lost", "leader-epoch-checkpoint"))), checkpointOf(h); got != want {
		t.Errorf("checkpoint: %q, want %q", got, want)
	}
	if err := os.Remove(n.path("lost", "leader-epoch-checkpoint")); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	n.dial(t).wantEnds(h)
}

// TestE012_checkpoint_damaged: a checkpoint that counts its lines wrongly is set aside and rebuilt: the node starts, and
// the ends of all epochs are as before.
func TestE012_checkpoint_damaged(t *testing.T) {
	t.Parallel()
	n := start(t)
	h := writeHistory(t, n, "damaged")["damaged"]
	n.stop(t)
	damaged := strings.Replace(checkpointOf(h), "\n3\n", "\n5\n", 1)
	if err := os.WriteFile(n.path("damaged", "leader-epoch-checkpoint"), []byte(damaged), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	n.dial(t).wantEnds(h)
	if kept, _ := filepath.Glob(n.path("damaged", "*.corrupt-*")); len(kept) != 1 {
		t.Errorf("the damaged checkpoint was not set aside: %v", kept)
	}
}

// TestE013_killed: after a kill -9 and a restart the ends of all epochs are as before, under a new current epoch.
func TestE013_killed(t *testing.T) {
	t.Parallel()
	n := start(t)
	h := writeHistory(t, n, "killed")["killed"]
	n.kill()
	n.run(t)
	c := n.dial(t)
	c.wantEnds(h)
	if now := c.leaderEpoch(h.topic); now <= h.c {
		t.Errorf("the leader epoch is %d, was %d", now, h.c)
	}
}

// TestE014_reigns_without_data: after two restarts without a record, the first of the two reigns ends at
// the last record's epoch and 20, the current one at itself and 20. ListOffsets of the end gives the
// leader's epoch, not the last batch's (E-033).
func TestE014_E033_reigns_without_data(t *testing.T) {
	t.Parallel()
	n := start(t)
	h := writeHistory(t, n, "quiet")["quiet"]
	n.restart(t)
	c := n.dial(t)
	d := c.leaderEpoch(h.topic)
	c.wantOffset(h.topic, -1, found{20, -1, d})
	n.restart(t)
	c = n.dial(t)
	f := c.leaderEpoch(h.topic)
	if d <= h.c || f <= d {
		t.Fatalf("epochs %d, %d, %d do not rise", h.c, d, f)
	}
	c.wantEpochEnd(h.topic, f, d, epochEnd{0, h.c, 20})
	c.wantEpochEnd(h.topic, f, f, epochEnd{0, f, 20})
}

// TestE017_killed_and_back: after kill -9 and a restart within the session timeout, the leader epoch is
// above the old one before the first produce is accepted.
func TestE017_killed_and_back(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	old := c.leaderEpoch(tp)
	c.mustProduce(tp, 0, plain(1, stamp))
	n.kill()
	n.run(t)
	c = n.dial(t)
	for {
		p := c.produce(9, tp, 0, plain(1, stamp))
		if p.ErrorCode == 0 {
			break
		}
		if p.ErrorCode != 3 && p.ErrorCode != 6 && p.ErrorCode != 5 {
			t.Fatalf("produce after the restart: error %d", p.ErrorCode)
		}
	}
	stored := batches(t, c.stored(tp, 0))
	if len(stored) != 2 || stored[1].PartitionLeaderEpoch() <= old || c.leaderEpoch(tp) != stored[1].PartitionLeaderEpoch() {
		t.Errorf("%d batches, the last in epoch %d; the old epoch was %d, Metadata says %d", len(stored), stored[len(stored)-1].PartitionLeaderEpoch(), old, c.leaderEpoch(tp))
	}
}

// TestE019_batches_carry_their_epoch: batches carry the epoch in which they were appended, whatever the producer put there.
func TestE019_batches_carry_their_epoch(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	var got []string
	for _, b := range batches(t, c.stored(h.topic, 0)) {
		got = append(got, fmt.Sprintf("%d:%d-%d", b.PartitionLeaderEpoch(), b.BaseOffset(), b.LastOffset()))
	}
	want := []string{fmt.Sprintf("%d:0-9", h.a), fmt.Sprintf("%d:10-14", h.b), fmt.Sprintf("%d:15-19", h.c)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("epochs and offsets: %v, want %v", got, want)
	}
	tp := c.topic(1)
	sent := put32(exampleA(), atEpoch, 99)
	c.mustProduce(tp, 0, bytes.Clone(sent))
	if b := batches(t, c.stored(tp, 0))[0]; b.PartitionLeaderEpoch() != c.leaderEpoch(tp) || !bytes.Equal(b[atMagic:], sent[atMagic:]) {
		t.Errorf("stored %x, sent %x", []byte(b), sent)
	}
}

// TestE020_fenced_names_the_leader: from v16 on, a fetch with an old epoch is told the leader, its epoch and its address; below, only
// the code. An unknown epoch names no leader.
func TestE020_fenced_names_the_leader(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	for _, version := range []int16{9, 11, 12, 13, 15, 16, 17, 18} {
		where := at(h.topic, 0)
		where.epoch = h.c - 1
		resp := c.fetchAll(version, fetchRequest(where))
		p := c.only(resp)
		leader, epoch, brokers := int32(-1), int32(-1), 0
		if version >= 16 {
			leader, epoch, brokers = 1, h.c, 1
		}
		if p.ErrorCode != 74 || p.CurrentLeader.LeaderID != leader || p.CurrentLeader.LeaderEpoch != epoch || len(resp.Brokers) != brokers {
			t.Errorf("v%d: error %d, leader %+v, %d brokers", version, p.ErrorCode, p.CurrentLeader, len(resp.Brokers))
		}
		if brokers == 1 && (resp.Brokers[0].NodeID != 1 || fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port) != c.conn.RemoteAddr().String()) {
			t.Errorf("v%d: endpoint %+v, connected to %s", version, resp.Brokers[0], c.conn.RemoteAddr())
		}
		where.epoch = h.c + 1
		resp = c.fetchAll(version, fetchRequest(where))
		if p := c.only(resp); p.ErrorCode != 75 || p.CurrentLeader.LeaderID != -1 || len(resp.Brokers) != 0 {
			t.Errorf("v%d, unknown epoch: error %d, leader %+v, %d brokers", version, p.ErrorCode, p.CurrentLeader, len(resp.Brokers))
		}
	}
}

// TestE032_special_offsets: the end comes with the leader's epoch, the start with the first; nothing is tiered.
func TestE032_special_offsets(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantOffset(h.topic, -1, found{20, -1, h.c})
	c.wantOffset(h.topic, -2, found{0, -1, h.a})
	c.wantOffset(h.topic, -4, found{0, -1, h.a})
	c.wantOffset(h.topic, -5, found{-1, -1, -1})
	c.wantOffset(h.topic, -6, found{-1, -1, -1})
}

// TestE034_offsets_by_time: a time is found with its record's epoch; one later than all is not found.
func TestE034_offsets_by_time(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantOffset(h.topic, stamp+12, found{12, stamp + 12, h.b})
	c.wantOffset(h.topic, stamp+20, found{-1, -1, -1})
	c.wantOffset(h.topic, 0, found{0, stamp, h.a})
}

// TestE038_ListOffsets_checks_the_epoch: ListOffsets with an epoch too old or too new is refused, from the version on that has one.
func TestE038_ListOffsets_checks_the_epoch(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	for version := int16(4); version <= 11; version++ {
		for _, test := range []struct {
			epoch int32
			want  int16
		}{{h.c - 1, 74}, {h.c + 1, 75}, {h.c, 0}, {-1, 0}, {-2, 74}} {
			p := c.offset(version, h.topic, 0, -1, test.epoch)
			if p.ErrorCode != test.want || test.want != 0 && (p.Offset != -1 || p.LeaderEpoch != -1 || p.Timestamp != -1) {
				t.Errorf("v%d, epoch %d: %+v, want error %d", version, test.epoch, p, test.want)
			}
		}
	}
}

// TestE040_all_deleted: with every record deleted, the start is the end, and both carry the current epoch.
func TestE040_all_deleted(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["deleted-all"]
	c.mustDeleteRecords(h.topic, 20)
	c.wantOffset(h.topic, -2, found{20, -1, h.c})
	c.wantOffset(h.topic, -1, found{20, -1, h.c})
}

// TestB092_end_offsets_of_epochs: end offsets of known, skipped and unknown epochs, below the log start, and under a wrong current
// epoch.
func TestB092_end_offsets_of_epochs(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	for asked, want := range map[int32]epochEnd{
		h.a: {0, h.a, 10}, h.b - 1: {0, h.a, 10}, h.b: {0, h.b, 15}, h.c - 1: {0, h.b, 15}, h.c: {0, h.c, 20}, h.c + 1: {0, -1, -1}, -1: {0, -1, -1},
	} {
		c.wantEpochEnd(h.topic, h.c, asked, want)
	}
	deleted := made["deleted-92"]
	c.mustDeleteRecords(deleted.topic, 15)
	c.wantEpochEnd(deleted.topic, deleted.c, deleted.a, epochEnd{0, deleted.a, 15})
	c.wantEpochEnd(deleted.topic, deleted.c-1, deleted.a, epochEnd{74, -1, -1})
	c.wantEpochEnd(deleted.topic, deleted.c+5, deleted.a, epochEnd{75, -1, -1})
}
