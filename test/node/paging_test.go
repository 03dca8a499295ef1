package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// cursor is where a page starts.
type cursor struct {
	topic     string
	partition int32
}

func pageRequest(limit int32, from *cursor, names ...string) *kmsg.DescribeTopicPartitionsRequest {
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit = limit
	if from != nil {
		at := kmsg.NewDescribeTopicPartitionsRequestCursor()
		at.Topic, at.Partition = from.topic, from.partition
		req.Cursor = &at
	}
	for _, name := range names {
		one := kmsg.NewDescribeTopicPartitionsRequestTopic()
		one.Topic = name
		req.Topics = append(req.Topics, one)
	}
	return req
}

// page asks for a page and writes it in short: topic:partition,partition or topic!code, and >topic:partition for
// the cursor.
func (c *client) page(limit int32, from *cursor, names ...string) string {
	c.t.Helper()
	resp := do[*kmsg.DescribeTopicPartitionsResponse](c, 0, pageRequest(limit, from, names...))
	var parts []string
	for _, topic := range resp.Topics {
		if topic.ErrorCode != 0 {
			parts = append(parts, fmt.Sprintf("%s!%d", *topic.Topic, topic.ErrorCode))
			continue
		}
		var ids []string
		for _, p := range topic.Partitions {
			if p.ErrorCode != 0 || p.LeaderID != 1 || p.LeaderEpoch < 0 || !slices.Equal(p.Replicas, []int32{1}) || !slices.Equal(p.ISR, []int32{1}) || len(p.OfflineReplicas) != 0 ||
				p.EligibleLeaderReplicas == nil || p.LastKnownELR == nil {
				c.t.Errorf("%s-%d: %+v", *topic.Topic, p.Partition, p)
			}
			ids = append(ids, fmt.Sprint(p.Partition))
		}
		if topic.TopicID == [16]byte{} || topic.AuthorizedOperations != 3576 {
			c.t.Errorf("%s: id %x, operations %d", *topic.Topic, topic.TopicID, topic.AuthorizedOperations)
		}
		parts = append(parts, *topic.Topic+":"+strings.Join(ids, ","))
	}
	if at := resp.NextCursor; at != nil {
		parts = append(parts, fmt.Sprintf(">%s:%d", at.Topic, at.Partition))
	}
	return strings.Join(parts, " ")
}

func TestDescribeTopicPartitions(t *testing.T) {
	// DescribeTopicPartitions answers in the order of names, each once, up to the limit of partitions, with a cursor to go on from; topics that are not there cost nothing; a cursor beyond its topic's end goes on with the next; a cursor that is wrong is 42 for every topic.
	t.Parallel()
	n := start(t, "max.request.partition.size.limit=6")
	c := n.dial(t)
	for _, w := range []wanted{{name: "aa", partitions: 3}, {name: "bb", partitions: 5}, {name: "cc", partitions: 1}, {name: "dd", partitions: 2}} {
		c.createTopic(w.name, int(w.partitions))
	}
	for i, row := range []struct {
		limit int32
		from  *cursor
		names string
		want  string
	}{
		{4, nil, "", "aa:0,1,2 bb:0 >bb:1"},
		{3, nil, "", "aa:0,1,2 >bb:0"},
		{2000, nil, "", "aa:0,1,2 bb:0,1,2 >bb:3"}, // the node's own limit
		{0, nil, "", "aa:0 >aa:1"},
		{-1, nil, "", "aa:0 >aa:1"},
		{2, &cursor{"bb", 2}, "", "bb:2,3 >bb:4"},
		{3, &cursor{"bb", 2}, "", "bb:2,3,4 >cc:0"},
		{3, &cursor{"bb", 5}, "", "bb: cc:0 dd:0,1"},
		{3, &cursor{"bb", 9}, "", "bb: cc:0 dd:0,1"},
		{3, &cursor{"b", 2}, "", "bb:0,1,2 >bb:3"},
		{3, &cursor{"zz", 2}, "", ""},
		{3, &cursor{"bb", -1}, "", ""},
		{2000, nil, "dd aa nope b/ad", "aa:0,1,2 b/ad!17 dd:0,1 nope!3"},
		{2000, nil, "dd aa aa", "aa:0,1,2 dd:0,1"},
		{2, &cursor{"bb", 1}, "dd aa nope bb", "bb:1,2 >bb:3"},
		{2, &cursor{"bb", 1}, "dd aa nope", "dd!42 aa!42 nope!42"},
		{2, &cursor{"bb", -1}, "dd bb", "dd!42 bb!42"},
		{1, &cursor{"nope", 1}, "dd aa nope zz", "nope!3 zz!3"},
		{1, nil, "cc ca ce nope dd", "ca!3 cc:0 >ce:0"},
		{2, nil, "__consumer_offsets cc", "__consumer_offsets!3 cc:0"},
	} {
		if got := c.page(row.limit, row.from, strings.Fields(row.names)...); got != row.want {
			t.Errorf("%d: limit %d from %v of %q: %q, want %q", i, row.limit, row.from, row.names, got, row.want)
		}
	}
	// Page by page, each partition comes once.
	var all []string
	for from := (*cursor)(nil); ; {
		resp := do[*kmsg.DescribeTopicPartitionsResponse](c, 0, pageRequest(2, from))
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				all = append(all, fmt.Sprintf("%s-%d", *topic.Topic, p.Partition))
			}
		}
		if resp.NextCursor == nil {
			break
		}
		from = &cursor{resp.NextCursor.Topic, resp.NextCursor.Partition}
	}
	if want := "aa-0 aa-1 aa-2 bb-0 bb-1 bb-2 bb-3 bb-4 cc-0 dd-0 dd-1"; strings.Join(all, " ") != want {
		t.Errorf("%v", all)
	}
}
