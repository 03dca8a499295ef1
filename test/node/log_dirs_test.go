package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func logDirsRequest(topics ...kmsg.DescribeLogDirsRequestTopic) *kmsg.DescribeLogDirsRequest {
	req := kmsg.NewPtrDescribeLogDirsRequest()
	req.Topics = topics
	return req
}

func logDirsOf(tp topic, partitions ...int32) kmsg.DescribeLogDirsRequestTopic {
	one := kmsg.NewDescribeLogDirsRequestTopic()
	one.Topic, one.Partitions = tp.name, partitions
	return one
}

// replicasOf are the replicas of a topic in all directories of an answer, by partition.
func replicasOf(resp *kmsg.DescribeLogDirsResponse, tp topic) map[int32]kmsg.DescribeLogDirsResponseDirTopicPartition {
	found := map[int32]kmsg.DescribeLogDirsResponseDirTopicPartition{}
	for _, dir := range resp.Dirs {
		for _, topic := range dir.Topics {
			for _, p := range topic.Partitions {
				if topic.Topic == tp.name {
					found[p.Partition] = p
				}
			}
		}
	}
	return found
}

func TestDescribeLogDirs(t *testing.T) {
	// DescribeLogDirs lists every directory with its volume (v4 and up) and its replicas: all of them for null topics, none for empty ones, those that are here of a list; sizes are those of the segments; a cordoned directory is marked at v5.
	t.Parallel()
	dirs := []string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")}
	n := start(t, "log.dirs="+dirs[0]+","+dirs[1])
	c := n.dial(t)
	tp, other := c.topic(3), c.topic(1)
	c.mustProduce(tp, 1, sized(100000, 1))
	for version := int16(1); version <= 5; version++ {
		all := do[*kmsg.DescribeLogDirsResponse](c, version, logDirsRequest())
		if all.ErrorCode != 0 || len(all.Dirs) != 2 || all.Dirs[0].Dir != dirs[0] || all.Dirs[1].Dir != dirs[1] {
			t.Fatalf("v%d: %+v", version, all)
		}
		for _, dir := range all.Dirs {
			if known := dir.TotalBytes > dir.UsableBytes && dir.UsableBytes > 0; dir.ErrorCode != 0 || known != (version >= 4) || !known && dir.TotalBytes != -1 || dir.IsCordoned {
				t.Errorf("v%d: %+v", version, dir)
			}
		}
		if mine, others := replicasOf(all, tp), replicasOf(all, other); len(mine) != 3 || len(others) != 1 || mine[0].Size != 0 || mine[1].Size < 100000 || mine[1].Size > 101000 || mine[1].OffsetLag != 0 || mine[1].IsFuture {
			t.Errorf("v%d: %+v, %+v", version, mine, others)
		}
		none := do[*kmsg.DescribeLogDirsResponse](c, version, &kmsg.DescribeLogDirsRequest{Topics: []kmsg.DescribeLogDirsRequestTopic{}})
		if len(none.Dirs) != 2 || len(none.Dirs[0].Topics)+len(none.Dirs[1].Topics) != 0 {
			t.Errorf("v%d, no topics: %+v", version, none)
		}
		some := do[*kmsg.DescribeLogDirsResponse](c, version, logDirsRequest(logDirsOf(tp, 1, 99, 1), logDirsOf(topic{name: "no-such-topic"}, 0), logDirsOf(other)))
		if mine, others := replicasOf(some, tp), replicasOf(some, other); len(some.Dirs) != 2 || len(mine) != 1 || mine[1].Size < 100000 || len(others) != 0 {
			t.Errorf("v%d, some topics: %+v", version, some)
		}
	}
	if code := c.alter(ofBroker, "1", set("cordoned.log.dirs", dirs[1]+",/elsewhere")); code != 40 {
		t.Errorf("cordon what is no log directory: %d", code)
	}
	if code := c.alter(ofBroker, "", set("cordoned.log.dirs", dirs[1])); code != 42 {
		t.Errorf("cordon at all brokers: %d", code)
	}
	if code := c.alter(ofBroker, "1", set("cordoned.log.dirs", dirs[1])); code != 0 {
		t.Fatalf("cordon: %d", code)
	}
	c.eventually("the second directory is cordoned", func() bool {
		all := do[*kmsg.DescribeLogDirsResponse](c, 5, logDirsRequest())
		return !all.Dirs[0].IsCordoned && all.Dirs[1].IsCordoned
	})
	late := c.topic(4)
	for _, dir := range do[*kmsg.DescribeLogDirsResponse](c, 5, logDirsRequest(logDirsOf(late, 0, 1, 2, 3))).Dirs {
		if dir.IsCordoned && len(dir.Topics) > 0 {
			t.Errorf("new replicas in a cordoned directory: %+v", dir)
		}
	}
	// With all of them cordoned the controller places nothing here.
	if code := c.alter(ofBroker, "1", set("cordoned.log.dirs", "*")); code != 0 {
		t.Fatalf("cordon all: %d", code)
	}
	c.eventually("no topic can be made", func() bool { return c.create(7, true, wanted{name: "none", partitions: 1})["none"] == 38 })
	if code := c.alter(ofBroker, "1", unset("cordoned.log.dirs")); code != 0 {
		t.Fatalf("uncordon: %d", code)
	}
	c.eventually("topics can be made again", func() bool { return c.create(7, true, wanted{name: "none", partitions: 1})["none"] == 0 })
}

func TestLogDirsRelative(t *testing.T) {
	// A log directory that is given relative to where the node starts is shown with its whole path, and cordoned by it.
	t.Parallel()
	n := start(t)
	n.stop(t)
	n.set, n.in = []string{"log.dirs=data"}, filepath.Dir(n.dir)
	n.run(t)
	c := n.dial(t)
	all := do[*kmsg.DescribeLogDirsResponse](c, 5, logDirsRequest())
	if len(all.Dirs) != 1 || all.Dirs[0].Dir != n.dir {
		t.Fatalf("%+v, want %s", all, n.dir)
	}
	if code := c.alter(ofBroker, "1", set("cordoned.log.dirs", n.dir)); code != 0 {
		t.Fatalf("cordon: %d", code)
	}
	c.eventually("it is cordoned", func() bool { return do[*kmsg.DescribeLogDirsResponse](c, 5, logDirsRequest()).Dirs[0].IsCordoned })
}

func TestDescribeLogDirsOffline(t *testing.T) {
	// A directory that has failed is listed with KAFKA_STORAGE_ERROR, without volume or replicas, and the others as always.
	t.Parallel()
	base := t.TempDir()
	good, bad := filepath.Join(base, "good"), filepath.Join(base, "bad")
	n := start(t, "log.dirs="+good+","+bad)
	c := n.dial(t)
	tp := c.topic(2, "segment.bytes=1048576") // one partition in each directory
	if err := errors.Join(os.Rename(bad, bad+".gone"), os.WriteFile(bad, []byte("a file"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second of them needs a new segment
		for partition := range int32(2) {
			c.produce(9, tp, partition, sized(700000, 1))
		}
	}
	c.eventually("the directory is offline", func() bool {
		all := do[*kmsg.DescribeLogDirsResponse](c, 5, logDirsRequest())
		i := slices.IndexFunc(all.Dirs, func(d kmsg.DescribeLogDirsResponseDir) bool { return d.Dir == bad })
		return len(all.Dirs) == 2 && i >= 0 && all.Dirs[i].ErrorCode == 56 && all.Dirs[i].TotalBytes == -1 && all.Dirs[i].UsableBytes == -1 && len(all.Dirs[i].Topics) == 0 &&
			all.Dirs[1-i].ErrorCode == 0 && all.Dirs[1-i].TotalBytes > 0 && len(replicasOf(all, tp)) == 1
	})
}

// TestB086_a_reserve_refuses_writes_and_nothing_else: with no more than the reserve free a Produce gets
// KAFKA_STORAGE_ERROR with words that say what to do (an old one an error that its client retries), commits, reads and
// topics go on, and writes come back by themselves.
func TestB086_a_reserve_refuses_writes_and_nothing_else(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, sized(1000, 1))
	if code := c.alter(ofBroker, "", set("log.dir.reserve.bytes", "4611686018427387904")); code != 0 {
		t.Fatalf("alter: %d", code)
	}
	var refused kmsg.ProduceResponseTopicPartition
	c.eventually("writes are refused", func() bool {
		refused = c.produce(9, tp, 0, sized(1000, 1))
		return refused.ErrorCode != 0
	})
	if refused.ErrorCode != 56 || refused.ErrorMessage == nil || !strings.Contains(*refused.ErrorMessage, "log.dir.reserve.bytes") || refused.BaseOffset != -1 {
		t.Errorf("%+v", refused)
	}
	if old := c.produce(3, tp, 0, sized(1000, 1)); old.ErrorCode != 6 {
		t.Errorf("v3: %+v", old)
	}
	other := c.topic(1)
	if got := c.end(tp); got < 1 {
		t.Errorf("end offset %d", got)
	}
	c.stored(tp, 0)
	all := do[*kmsg.DescribeLogDirsResponse](c, 4, logDirsRequest())
	told := false
	all.Dirs[0].UnknownTags.Each(func(tag uint32, value []byte) {
		told = told || tag == 21332 && strings.Contains(string(value), `"level":"reserve"`)
	})
	if !told {
		t.Errorf("the directory does not say that it is full: %+v", all.Dirs)
	}
	if code := c.alter(ofBroker, "", unset("log.dir.reserve.bytes")); code != 0 {
		t.Fatalf("alter: %d", code)
	}
	c.eventually("writes are back", func() bool {
		return c.produce(9, tp, 0, sized(1000, 1)).ErrorCode == 0 && c.produce(9, other, 0, sized(1000, 1)).ErrorCode == 0
	})
}
