package server

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// offsetsByID is the first version of OffsetCommit and OffsetFetch that names topics
// by id.
const offsetsByID = 10

// offsetCommit stores offsets with the epoch the committer gives. What the checks
// here refuse is answered beside what the group answers, in the request's order.
//
// v6 leader epoch. v7 instance id. v8 flexible. v9 member epochs. v10 topic ids.
func (a *brokerAPI) offsetCommit(r *Request, req *kmsg.OffsetCommitRequest) *kmsg.OffsetCommitResponse {
	image := a.image()
	groupAllowed := r.mayGroup(security.Read, req.Group)
	refused := make([][]error, len(req.Topics))
	admitted := *req
	admitted.Topics = nil
	for i := range req.Topics {
		topic := &req.Topics[i]
		refused[i] = make([]error, len(topic.Partitions))
		known, found := topicByIDOrName(image, req.Version >= offsetsByID, topic.TopicID, topic.Topic)
		kept := kmsg.NewOffsetCommitRequestTopic()
		if found {
			kept.Topic, kept.TopicID = known.Name, known.ID
		}
		for k := range topic.Partitions {
			err := a.admitOffset(r, req.Version >= offsetsByID, topic.Topic, known, found, topic.Partitions[k].Partition)
			if !groupAllowed {
				err = kerr.GroupAuthorizationFailed
			}
			if refused[i][k] = err; err == nil {
				kept.Partitions = append(kept.Partitions, topic.Partitions[k])
			}
		}
		if len(kept.Partitions) > 0 {
			admitted.Topics = append(admitted.Topics, kept)
		}
	}
	var results []error
	if len(admitted.Topics) > 0 {
		results = a.commitAdmitted(r, &admitted)
	}
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for i := range req.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic, out.TopicID = req.Topics[i].Topic, req.Topics[i].TopicID
		for k := range req.Topics[i].Partitions {
			p := kmsg.NewOffsetCommitResponseTopicPartition()
			p.Partition = req.Topics[i].Partitions[k].Partition
			if err := refused[i][k]; err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.ErrorCode = errorCode(results[0])
				results = results[1:]
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// admitOffset says whether an offset of a partition may be committed. The topic is named by its id or its name; known is
// the one that was found.
func (a *brokerAPI) admitOffset(r *Request, byID bool, name string, known *metadata.Topic, found bool, partition int32) error {
	if byID {
		if !found {
			return kerr.UnknownTopicID
		}
		name = known.Name
	}
	switch {
	case !r.mayTopic(security.Read, name):
		return kerr.TopicAuthorizationFailed
	case !found:
		return kerr.UnknownTopicOrPartition
	}
	if _, ok := known.Partition(partition); !ok {
		return kerr.UnknownTopicOrPartition
	}
	return nil
}

// commitAdmitted commits what passed the checks; the results are flat, in order.
func (a *brokerAPI) commitAdmitted(r *Request, req *kmsg.OffsetCommitRequest) []error {
	var results []error
	reply, err := a.Groups.OffsetCommit(r.Context(), req)
	for i := range req.Topics {
		for k := range req.Topics[i].Partitions {
			if err != nil {
				results = append(results, err)
			} else {
				results = append(results, reply.Topics[i].Partitions[k].Err)
			}
		}
	}
	return results
}

// offsetFetch reads committed offsets. A group that is loading, or lives elsewhere,
// is an error in every version: never "no offset".
//
// v2 all topics, error of the group. v5 leader epoch. v7 require stable. v8 several
// groups. v9 member epoch. v10 topic ids.
func (a *brokerAPI) offsetFetch(r *Request, req *kmsg.OffsetFetchRequest) *kmsg.OffsetFetchResponse {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version >= 8 {
		for i := range req.Groups {
			asked := &req.Groups[i]
			fetched := a.fetchGroup(r, req, asked.Group, &group.Fetcher{MemberID: asked.MemberID, Epoch: asked.MemberEpoch}, asked.Topics == nil, asked.Topics)
			out := kmsg.NewOffsetFetchResponseGroup()
			out.Group, out.ErrorCode, out.Topics = asked.Group, fetched.code, fetched.topics
			resp.Groups = append(resp.Groups, out)
		}
		return resp
	}
	asked := make([]kmsg.OffsetFetchRequestGroupTopic, len(req.Topics))
	for i := range req.Topics {
		asked[i].Topic, asked[i].Partitions = req.Topics[i].Topic, req.Topics[i].Partitions
	}
	fetched := a.fetchGroup(r, req, req.Group, nil, req.Topics == nil && req.Version >= 2, asked)
	resp.ErrorCode = fetched.code
	topics := fetched.topics
	if fetched.code != 0 {
		// Clients that read no error of the group look for it in the partitions.
		topics = failedOffsets(asked, fetched.code)
	}
	resp.Topics = make([]kmsg.OffsetFetchResponseTopic, 0, len(topics))
	for _, topic := range topics {
		out := kmsg.NewOffsetFetchResponseTopic()
		out.Topic = topic.Topic
		for _, p := range topic.Partitions {
			partition := kmsg.NewOffsetFetchResponseTopicPartition()
			partition.Partition, partition.Offset, partition.LeaderEpoch, partition.Metadata, partition.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
			out.Partitions = append(out.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

type fetchedOffsets struct {
	code   int16
	topics []kmsg.OffsetFetchResponseGroupTopic
}

func (a *brokerAPI) fetchGroup(r *Request, req *kmsg.OffsetFetchRequest, groupID string, from *group.Fetcher, all bool, topics []kmsg.OffsetFetchRequestGroupTopic) fetchedOffsets {
	empty := []kmsg.OffsetFetchResponseGroupTopic{}
	if !r.mayGroup(security.Describe, groupID) {
		return fetchedOffsets{kerr.GroupAuthorizationFailed.Code, empty}
	}
	image := a.image()
	ask := group.FetchRequest{Group: groupID, All: all, From: from}
	var refused []kmsg.OffsetFetchRequestGroupTopic
	var why []int16
	for _, topic := range topics {
		known, found := topicByIDOrName(image, req.Version >= offsetsByID, topic.TopicID, topic.Topic)
		name, id := topic.Topic, [16]byte{}
		if found {
			name, id = known.Name, known.ID
		}
		switch {
		case req.Version >= offsetsByID && !found:
			refused, why = append(refused, topic), append(why, kerr.UnknownTopicID.Code)
		case !r.mayTopic(security.Describe, name):
			refused, why = append(refused, topic), append(why, kerr.TopicAuthorizationFailed.Code)
		default:
			ask.Topics = append(ask.Topics, group.FetchTopic{Topic: name, TopicID: id, Partitions: topic.Partitions})
		}
	}
	reply, err := a.Groups.OffsetFetch(r.Context(), ask, req.RequireStable)
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		code := errorCode(err)
		if req.RequireStable && code == kerr.CoordinatorNotAvailable.Code {
			// Old consumers know how to look for another coordinator, but not how to wait for this one.
			code = kerr.NotCoordinator.Code
		}
		return fetchedOffsets{code, empty}
	}
	out := empty
	for _, topic := range reply.Topics {
		known, found := image.Topic(topic.Topic)
		if all && (!r.mayTopic(security.Describe, topic.Topic) || req.Version >= offsetsByID && !found) {
			continue
		}
		t := kmsg.NewOffsetFetchResponseGroupTopic()
		t.Topic = topic.Topic
		if found {
			t.TopicID = known.ID
		}
		for _, p := range topic.Partitions {
			partition := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			partition.Partition, partition.Offset, partition.LeaderEpoch, partition.Metadata = p.Partition, p.Offset, p.LeaderEpoch, &p.Metadata
			partition.ErrorCode = errorCode(p.Err)
			t.Partitions = append(t.Partitions, partition)
		}
		out = append(out, t)
	}
	for i := range refused {
		out = append(out, failedOffsets(refused[i:i+1], why[i])...)
	}
	return fetchedOffsets{0, out}
}

func failedOffsets(topics []kmsg.OffsetFetchRequestGroupTopic, code int16) []kmsg.OffsetFetchResponseGroupTopic {
	var out []kmsg.OffsetFetchResponseGroupTopic
	for _, topic := range topics {
		t := kmsg.NewOffsetFetchResponseGroupTopic()
		t.Topic, t.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			none := ""
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = partition, -1, -1, &none, code
			t.Partitions = append(t.Partitions, p)
		}
		out = append(out, t)
	}
	return out
}

// offsetDelete removes offsets of topics that the group is not subscribed to
// (KIP-496).
func (a *brokerAPI) offsetDelete(r *Request, req *kmsg.OffsetDeleteRequest) *kmsg.OffsetDeleteResponse {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	if !r.mayGroup(security.Delete, req.Group) {
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	image := a.image()
	refused := func(topic string, partition int32) error {
		if !r.mayTopic(security.Read, topic) {
			return kerr.TopicAuthorizationFailed
		}
		if _, ok := image.Partition(topic, partition); !ok {
			return kerr.UnknownTopicOrPartition
		}
		return nil
	}
	admitted := *req
	admitted.Topics = nil
	for i := range req.Topics {
		kept := kmsg.NewOffsetDeleteRequestTopic()
		kept.Topic = req.Topics[i].Topic
		for _, p := range req.Topics[i].Partitions {
			if refused(kept.Topic, p.Partition) == nil {
				kept.Partitions = append(kept.Partitions, p)
			}
		}
		if len(kept.Partitions) > 0 {
			admitted.Topics = append(admitted.Topics, kept)
		}
	}
	reply, err := a.Groups.OffsetDelete(r.Context(), &admitted)
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	var results []error
	for _, topic := range reply.Topics {
		for _, p := range topic.Partitions {
			results = append(results, p.Err)
		}
	}
	for i := range req.Topics {
		out := kmsg.NewOffsetDeleteResponseTopic()
		out.Topic = req.Topics[i].Topic
		for _, asked := range req.Topics[i].Partitions {
			p := kmsg.NewOffsetDeleteResponseTopicPartition()
			p.Partition = asked.Partition
			if err := refused(out.Topic, asked.Partition); err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.ErrorCode = errorCode(results[0])
				results = results[1:]
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}
