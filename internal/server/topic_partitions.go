package server

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// describeTopicPartitions describes topics in pages (KIP-966): in the order of their names, until the page holds
// as many partitions as the client, or max.request.partition.size.limit, allows. The answer's cursor is where the
// next page starts.
func (a *brokerAPI) describeTopicPartitions(r *Request, req *kmsg.DescribeTopicPartitionsRequest) *kmsg.DescribeTopicPartitionsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	image := a.image()
	all := len(req.Topics) == 0
	names := topicNames(image, req)
	first, start := "", int32(0)
	if req.Cursor != nil {
		first, start = req.Cursor.Topic, req.Cursor.Partition
		if start < 0 || !all && !slices.Contains(names, first) {
			return pageRefused(req, kerr.InvalidRequest)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name < first })
	}
	page := &topicPage{
		image: image, listener: r.Listener,
		room: max(min(int(req.ResponsePartitionLimit), a.Config.Int("max.request.partition.size.limit")), 1),
	}
	var hidden []string
	for _, name := range names {
		if !r.mayTopic(security.Describe, name) {
			if !all {
				hidden = append(hidden, name)
			}
			continue
		}
		if page.room == 0 {
			resp.NextCursor = cursorAt(name, 0)
			break
		}
		from := int32(0)
		if name == first {
			from = start
		}
		topic, next := page.add(name, from)
		topic.AuthorizedOperations = r.operations(security.Resource{Type: security.Topic, Name: name}, topicOperations)
		resp.Topics = append(resp.Topics, topic)
		if next >= 0 {
			resp.NextCursor = cursorAt(name, next)
			break
		}
	}
	for _, name := range hidden {
		resp.Topics = append(resp.Topics, undescribed(name, kerr.TopicAuthorizationFailed))
	}
	return resp
}

// topicNames are the topics asked for, or all, by name and each once.
func topicNames(image *metadata.Image, req *kmsg.DescribeTopicPartitionsRequest) []string {
	var names []string
	for i := range req.Topics {
		names = append(names, req.Topics[i].Topic)
	}
	if len(req.Topics) == 0 {
		for name := range image.Topics().All() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}

// topicPage is a page that is being filled.
type topicPage struct {
	image    *metadata.Image
	listener string
	room     int // partitions
}

// add describes a topic from a partition on, and returns the partition that did not fit any more, -1 for none.
func (p *topicPage) add(name string, from int32) (kmsg.DescribeTopicPartitionsResponseTopic, int32) {
	topic, ok := p.image.Topic(name)
	if !ok {
		err := kerr.UnknownTopicOrPartition
		if !legalTopicName(name) {
			err = kerr.InvalidTopicException
		}
		return undescribed(name, err), -1
	}
	out := undescribed(name, nil)
	out.TopicID = topic.ID
	for id, partition := range topic.Partitions().All() {
		if id < from {
			continue
		}
		if p.room == 0 {
			return out, id
		}
		p.room--
		out.Partitions = append(out.Partitions, pagedPartition(p.image, partition, p.listener))
	}
	return out, -1
}

func pagedPartition(image *metadata.Image, partition *metadata.Partition, listener string) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	described := describePartition(image, partition, listener, 13)
	p := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	p.ErrorCode, p.Partition, p.LeaderID, p.LeaderEpoch = described.ErrorCode, described.Partition, described.Leader, described.LeaderEpoch
	p.Replicas, p.ISR, p.OfflineReplicas = described.Replicas, described.ISR, described.OfflineReplicas
	// Null means a broker that does not know them.
	p.EligibleLeaderReplicas = append([]int32{}, partition.ELR...)
	p.LastKnownELR = append([]int32{}, partition.LastKnownELR...)
	return p
}

func undescribed(name string, err *kerr.Error) kmsg.DescribeTopicPartitionsResponseTopic {
	out := kmsg.NewDescribeTopicPartitionsResponseTopic()
	out.Topic, out.IsInternal, out.AuthorizedOperations = &name, internalTopics[name], operationsUnknown
	out.Partitions = []kmsg.DescribeTopicPartitionsResponseTopicPartition{}
	if err != nil {
		out.ErrorCode = err.Code
	}
	return out
}

// pageRefused answers every topic of a request that is wrong as a whole: there is no room for an error above them.
func pageRefused(req *kmsg.DescribeTopicPartitionsRequest, err *kerr.Error) *kmsg.DescribeTopicPartitionsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	for i := range req.Topics {
		out := undescribed(req.Topics[i].Topic, err)
		out.IsInternal = false
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func cursorAt(topic string, partition int32) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	next := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	next.Topic, next.Partition = topic, partition
	return &next
}
