package node

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// TestE035_largest_timestamp_twice: where two records have the largest timestamp the first is found.
func TestE035_largest_timestamp_twice(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	for base := int64(0); base < 20; base += 10 {
		var records []rec
		for i := base; i < base+10; i++ {
			at := stamp + i
			if i == 7 || i == 18 {
				at = stamp + 1000
			}
			records = append(records, rec{at, nil, []byte("v")})
		}
		c.mustProduce(tp, 0, batch(record.BuilderOptions{}, records...))
	}
	c.wantOffset(tp, -3, found{7, stamp + 1000, 0})
}

// TestE036_timestamps_of_later_versions: a special timestamp that the version does not have is refused; -2 works
// at v1, without an epoch.
func TestE036_timestamps_of_later_versions(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, exampleA())
	since := map[int64]int16{-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99, -100: 99}
	for version := int16(1); version <= 11; version++ {
		for timestamp, from := range since {
			want := int16(0)
			if version < from {
				want = 35
			}
			p := c.offset(version, tp, 0, timestamp, -1)
			if p.ErrorCode != want || want != 0 && (p.Offset != -1 || p.Timestamp != -1 || p.LeaderEpoch != -1) {
				t.Errorf("v%d, timestamp %d: %+v, want error %d", version, timestamp, p, want)
			}
			if timestamp == -2 && (p.Offset != 0 || version >= 4 && p.LeaderEpoch != 0 || version < 4 && p.LeaderEpoch != -1) {
				t.Errorf("v%d, earliest: %+v", version, p)
			}
		}
	}
}

// TestE037_partition_twice: a partition named twice is refused in every copy, others are answered.
func TestE037_partition_twice(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(3)
	req := offsetsRequest(tp, -1, -1, 0, 1, 0)
	req.Topics = append(req.Topics, offsetsRequest(tp, -1, -2, 2, 0).Topics...)
	var got []string
	for _, out := range do[*kmsg.ListOffsetsResponse](c, 7, req).Topics {
		for _, p := range out.Partitions {
			got = append(got, fmt.Sprintf("%d:%d:%d", p.Partition, p.ErrorCode, p.Offset))
		}
	}
	if want := "[0:42:-1 1:0:0 0:42:-1 2:0:0 0:42:-1]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestB001_time_lookup_inside_batches: of two batches stamped 1..10 and 11..20 every time t is found at
// offset t-1 exactly, 0 at the first, in plain and compressed batches alike.
func TestB001_time_lookup_inside_batches(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	for _, codec := range []record.Codec{record.None, record.Gzip, record.Zstd} {
		tp := c.topic(1)
		for base := int64(0); base < 20; base += 10 {
			var records []rec
			for i := base; i < base+10; i++ {
				records = append(records, rec{i + 1, nil, []byte("v")})
			}
			c.mustProduce(tp, 0, batch(record.BuilderOptions{Codec: codec}, records...))
		}
		for _, version := range []int16{1, 4, 7} {
			for target := int64(0); target <= 20; target++ {
				want := found{max(target, 1) - 1, max(target, 1), 0}
				if version < 4 {
					want.epoch = -1
				}
				p := c.offset(version, tp, 0, target, -1)
				if got := (found{p.Offset, p.Timestamp, p.LeaderEpoch}); p.ErrorCode != 0 || got != want {
					t.Errorf("%v, v%d, target %d: error %d, %+v, want %+v", codec, version, target, p.ErrorCode, got, want)
				}
			}
		}
	}
}

// TestB033_time_past_the_newest: a time later than all records, on an empty partition, and where all were
// deleted, answers offset, timestamp and epoch -1 without an error.
func TestB033_time_past_the_newest(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	data, empty, deleted := c.topic(1), c.topic(1), c.topic(1)
	records := batch(record.BuilderOptions{}, rec{1000, nil, nil}, rec{2000, nil, nil})
	c.mustProduce(data, 0, records)
	c.mustProduce(deleted, 0, batch(record.BuilderOptions{}, rec{1000, nil, nil}, rec{2000, nil, nil}))
	c.mustDeleteRecords(deleted, 2)
	for name, tp := range map[string]topic{"data": data, "empty": empty, "deleted": deleted} {
		for version := int16(1); version <= 11; version++ {
			if p := c.offset(version, tp, 0, 3000, -1); p.ErrorCode != 0 || p.Offset != -1 || p.Timestamp != -1 || p.LeaderEpoch != -1 {
				t.Errorf("%s, v%d: %+v", name, version, p)
			}
		}
	}
	c.wantOffset(deleted, 500, found{-1, -1, -1})
}

// TestB035_start_inside_a_batch: after DeleteRecords(4) in a batch of ten the start is 4, a fetch there
// returns the whole batch and one at 3 is out of range: at once, after a clean restart and after a kill -9.
func TestB035_start_inside_a_batch(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, plain(10, stamp))
	c.mustDeleteRecords(tp, 4)
	check := func(when string) {
		t.Helper()
		c := n.dial(t)
		c.led(tp, 1)
		if p := c.offset(4, tp, 0, -2, -1); p.Offset != 4 {
			t.Errorf("%s: earliest %d, want 4", when, p.Offset)
		}
		if found := batches(t, c.stored(tp, 4)); len(found) != 1 || found[0].BaseOffset() != 0 || found[0].Count() != 10 {
			t.Errorf("%s: fetch at 4 has %d batches", when, len(found))
		}
		if p := c.fetch(12, at(tp, 3)); p.ErrorCode != 1 {
			t.Errorf("%s: fetch at 3: error %d, want 1", when, p.ErrorCode)
		}
	}
	check("at once")
	n.kill()
	n.run(t)
	check("after a kill")
	n.restart(t)
	check("after a clean restart")
	n.kill()
	n.run(t)
	check("after another kill")
}

// TestB090_largest_timestamp: of stamps 10, 30, 20 and then 5 the largest is found at offset 1, also in
// compressed batches and after a restart; nothing on an empty log, nor once it was deleted.
func TestB090_largest_timestamp(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	empty := c.topic(1)
	var topics []topic
	for _, codec := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		tp := c.topic(1)
		c.mustProduce(tp, 0, batch(record.BuilderOptions{Codec: codec}, rec{10, nil, nil}, rec{30, nil, nil}, rec{20, nil, nil}))
		c.mustProduce(tp, 0, batch(record.BuilderOptions{Codec: codec}, rec{5, nil, nil}))
		topics = append(topics, tp)
	}
	for range 2 {
		for _, tp := range topics {
			c.wantOffset(tp, -3, found{1, 30, 0})
		}
		c.wantOffset(empty, -3, found{-1, -1, -1})
		n.restart(t)
		c = n.dial(t)
		for _, tp := range append(topics, empty) {
			c.led(tp, 1)
		}
	}
	c.mustDeleteRecords(topics[0], 4)
	c.wantOffset(topics[0], -3, found{-1, -1, -1})
}

// TestB155_ListOffsets_v0: version 0, which has another meaning, is not advertised, and used it closes the
// connection.
func TestB155_ListOffsets_v0(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	versions := do[*kmsg.ApiVersionsResponse](c, 3, kmsg.NewPtrApiVersionsRequest())
	for _, api := range versions.ApiKeys {
		if api.ApiKey == 2 && api.MinVersion != 1 {
			t.Errorf("ListOffsets is advertised from %d", api.MinVersion)
		}
	}
	c.send(0, offsetsRequest(tp, -1, -1, 0))
	c.closed()
}

// TestS055_delete_records_errors: an unknown topic or partition is 3, an offset above the end is 1, -1 is the high
// watermark, an internal topic is refused, and the answer keeps the order of the request.
func TestS055_delete_records_errors(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	c.mustProduce(tp, 0, plain(10, stamp))
	if p := c.deleteRecords(tp, 11); p.ErrorCode != 1 || p.LowWatermark != -1 {
		t.Errorf("above the end: %+v", p)
	}
	if p := c.deleteRecords(tp, -2); p.ErrorCode != 1 || p.LowWatermark != -1 {
		t.Errorf("offset -2: %+v", p)
	}
	if p := c.deleteRecords(topic{name: "no-such-topic"}, 0); p.ErrorCode != 3 {
		t.Errorf("unknown topic: %+v", p)
	}
	if p := c.deleteRecords(tp, 5); p.ErrorCode != 0 || p.LowWatermark != 5 {
		t.Errorf("to 5: %+v", p)
	}
	if p := c.deleteRecords(tp, 3); p.ErrorCode != 0 || p.LowWatermark != 5 {
		t.Errorf("back to 3: %+v", p)
	}
	if p := c.deleteRecords(tp, -1); p.ErrorCode != 0 || p.LowWatermark != 10 {
		t.Errorf("to the high watermark: %+v", p)
	}
	if p := c.deleteRecords(c.topic(1, "cleanup.policy=compact"), 0); p.ErrorCode != 44 {
		t.Errorf("compacted topic: %+v", p)
	}
}

// TestS055_log_start_after_a_kill: a kill -9 right after the answer to DeleteRecords takes nothing back: what was deleted
// cannot be read after the restart, in the middle of a segment and at the log's end.
func TestS055_log_start_after_a_kill(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	inside, all := c.topic(1), c.topic(1)
	for _, tp := range []topic{inside, all} {
		c.mustProduce(tp, 0, plain(10, stamp))
		c.mustProduce(tp, 0, plain(10, stamp))
	}
	c.mustDeleteRecords(inside, 13)
	c.mustDeleteRecords(all, 20)
	n.kill()
	n.run(t)
	c = n.dial(t)
	for tp, from := range map[topic]int64{inside: 13, all: 20} {
		c.led(tp, 1)
		if p := c.offset(11, tp, 0, -2, -1); p.ErrorCode != 0 || p.Offset != from {
			t.Errorf("%s: the log starts at %d, error %d; want %d", tp.name, p.Offset, p.ErrorCode, from)
		}
		if p := c.fetch(11, at(tp, from-1)); p.ErrorCode != 1 {
			t.Errorf("%s: reading at %d: error %d", tp.name, from-1, p.ErrorCode)
		}
		if base := c.mustProduce(tp, 0, exampleA()); base != 20 {
			t.Errorf("%s: the next batch is at %d", tp.name, base)
		}
	}
}
