package node

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// filled puts something into a request, so that its answer has items: topic t, group g.
func filled(req kmsg.Request, tp topic, group string) {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		req.Acks, req.TimeoutMillis = -1, 1000
		addProduce(req, tp, 0, plain(1, 0))
		addProduce(req, tp, 99, plain(1, 0))
	case *kmsg.FetchRequest:
		*req = *fetchRequest(at(tp, 0), position{topic: tp, partition: 99, epoch: -1, last: -1, max: 1000})
	case *kmsg.ListOffsetsRequest:
		*req = *offsetsRequest(tp, -1, -1, 0, 99)
	case *kmsg.MetadataRequest:
		for _, name := range []string{tp.name, "no-such-topic"} {
			one := kmsg.NewMetadataRequestTopic()
			one.Topic = &name
			req.Topics = append(req.Topics, one)
		}
	case *kmsg.OffsetCommitRequest:
		req.Group, req.Generation = group, -1
		one := kmsg.NewOffsetCommitRequestTopic()
		one.Topic, one.TopicID = tp.name, tp.id
		for _, id := range []int32{0, 99} {
			p := kmsg.NewOffsetCommitRequestTopicPartition()
			p.Partition = id
			one.Partitions = append(one.Partitions, p)
		}
		req.Topics = append(req.Topics, one)
	case *kmsg.OffsetFetchRequest:
		req.Group = group
		asked := kmsg.NewOffsetFetchRequestGroup()
		asked.Group = group
		req.Groups = append(req.Groups, asked)
	case *kmsg.FindCoordinatorRequest:
		req.CoordinatorKey, req.CoordinatorKeys = group, []string{group}
	case *kmsg.JoinGroupRequest:
		*req = *joinRequest(wish{group: fmt.Sprintf("%s-%d", group, req.Version)})
	case *kmsg.DescribeGroupsRequest:
		req.Groups = []string{group, group + "-unknown"}
	case *kmsg.DeleteGroupsRequest:
		req.Groups = []string{group + "-unknown"}
	case *kmsg.LeaveGroupRequest:
		req.Group, req.MemberID = group, "m"
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID = "m"
		req.Members = append(req.Members, one)
	case *kmsg.CreateTopicsRequest:
		*req = *createRequest(true, wanted{name: tp.name}, wanted{name: tp.name + "-new"})
	case *kmsg.DeleteTopicsRequest:
		req.TopicNames = []string{"no-such-topic"}
		one := kmsg.NewDeleteTopicsRequestTopic()
		one.TopicID = [16]byte{1}
		req.Topics = append(req.Topics, one)
	case *kmsg.CreatePartitionsRequest:
		one := kmsg.NewCreatePartitionsRequestTopic()
		one.Topic, one.Count = tp.name, 1
		req.Topics = append(req.Topics, one)
	case *kmsg.DescribeConfigsRequest:
		*req = *describeRequest(ofTopic, tp.name)
	case *kmsg.AlterConfigsRequest:
		one := kmsg.NewAlterConfigsRequestResource()
		one.ResourceType, one.ResourceName = ofTopic, "no-such-topic"
		req.Resources = append(req.Resources, one)
	case *kmsg.IncrementalAlterConfigsRequest:
		one := kmsg.NewIncrementalAlterConfigsRequestResource()
		one.ResourceType, one.ResourceName = ofBroker, "99"
		req.Resources = append(req.Resources, one)
	case *kmsg.DescribeQuorumRequest:
		one := kmsg.NewDescribeQuorumRequestTopic()
		one.Topic = "__cluster_metadata"
		one.Partitions = append(one.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, one)
	case *kmsg.DescribeLogDirsRequest:
		one := kmsg.NewDescribeLogDirsRequestTopic()
		one.Topic, one.Partitions = tp.name, []int32{0, 99}
		req.Topics = append(req.Topics, one)
	case *kmsg.AlterReplicaLogDirsRequest:
		dir := kmsg.NewAlterReplicaLogDirsRequestDir()
		dir.Dir = "/nowhere"
		one := kmsg.NewAlterReplicaLogDirsRequestDirTopic()
		one.Topic, one.Partitions = tp.name, []int32{0, 99}
		dir.Topics = append(dir.Topics, one)
		req.Dirs = append(req.Dirs, dir)
	case *kmsg.DescribeTopicPartitionsRequest:
		*req = *pageRequest(1, nil, tp.name, "no-such-topic")
	case *kmsg.ListConfigResourcesRequest:
		req.ResourceTypes = []int8{int8(ofTopic), int8(ofBroker)}
	case *kmsg.DescribeClientQuotasRequest:
		*req = *quotasRequest(false, byAny("user"))
	case *kmsg.AlterClientQuotasRequest:
		*req = *alterQuotasRequest(false, quotaChange{who("user", "u"), []quota{{"producer_byte_rate", 1}}})
	case *kmsg.InitProducerIDRequest:
		req.TransactionTimeoutMillis = 1000
	case *kmsg.ElectLeadersRequest:
		req.Topics = append(req.Topics, kmsg.ElectLeadersRequestTopic{Topic: tp.name, Partitions: []int32{0, 99}})
	case *kmsg.AlterPartitionAssignmentsRequest:
		one := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		one.Topic = tp.name
		one.Partitions = append(one.Partitions, kmsg.NewAlterPartitionAssignmentsRequestTopicPartition())
		req.Topics = append(req.Topics, one)
	case *kmsg.ListPartitionReassignmentsRequest:
		req.Topics = append(req.Topics, kmsg.ListPartitionReassignmentsRequestTopic{Topic: tp.name, Partitions: []int32{0}})
	case *kmsg.UnregisterBrokerRequest:
		req.BrokerID = 99
	case *kmsg.UnregisterControllerRequest:
		req.ControllerID = 99
	case *kmsg.DescribeACLsRequest:
		req.ResourceType, req.ResourcePatternType, req.Operation, req.PermissionType = 1, 1, 1, 1
	case *kmsg.CreateACLsRequest:
		req.Creations = append(req.Creations, accessRule("t"))
	case *kmsg.DeleteACLsRequest:
		one := kmsg.NewDeleteACLsRequestFilter()
		one.ResourceType, one.ResourcePatternType, one.Operation, one.PermissionType = 1, 1, 1, 1
		req.Filters = append(req.Filters, one)
	case *kmsg.DescribeUserSCRAMCredentialsRequest:
		req.Users = append(req.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: "nobody"})
	case *kmsg.AlterUserSCRAMCredentialsRequest:
		req.Deletions = append(req.Deletions, kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: "nobody", Mechanism: 1})
	}
}

func TestEveryVersionAnswersExactly(t *testing.T) {
	// Every API of either listener, in every version it is advertised in, answers in exactly that version's layout: to a request with something in it and to an empty one.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	for name, dial := range map[string]func() *client{
		"broker":     func() *client { return n.dial(t) },
		"controller": func() *client { return n.controller(t) },
	} {
		apis := do[*kmsg.ApiVersionsResponse](dial(), 0, kmsg.NewPtrApiVersionsRequest())
		if len(apis.ApiKeys) < 10 {
			t.Fatalf("%s: %d APIs", name, len(apis.ApiKeys))
		}
		for _, api := range apis.ApiKeys {
			c := dial()
			for version := api.MinVersion; version <= api.MaxVersion; version++ {
				if kmsg.Key(api.ApiKey) == kmsg.Produce && version < 3 {
					continue // advertised for old librdkafka, and refused when used
				}
				for _, empty := range []bool{false, true} {
					if empty && kmsg.Key(api.ApiKey) == kmsg.DescribeACLs {
						continue // a filter of unknown elements, which ends the connection
					}
					req := kmsg.RequestForKey(api.ApiKey)
					if d, ok := req.(interface{ Default() }); ok {
						d.Default()
					}
					req.SetVersion(version)
					if !empty {
						filled(req, tp, group)
					} else if produce, ok := req.(*kmsg.ProduceRequest); ok {
						produce.Acks = 1
					}
					c.answer(version, req, c.send(version, req))
				}
			}
		}
	}
}
