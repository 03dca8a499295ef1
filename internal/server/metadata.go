package server

import (
	"math/rand/v2"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// operationsUnknown is the bit field of operations that nobody asked for.
const operationsUnknown int32 = -2147483648

var (
	topicOperations   = []security.Operation{security.Read, security.Write, security.Create, security.Delete, security.Alter, security.Describe, security.DescribeConfigs, security.AlterConfigs}
	groupOperations   = []security.Operation{security.Read, security.Delete, security.Describe, security.DescribeConfigs, security.AlterConfigs}
	clusterOperations = []security.Operation{security.Create, security.Alter, security.Describe, security.ClusterAction, security.DescribeConfigs, security.AlterConfigs, security.IdempotentWrite}
)

// operations is the bit field of what the principal may do on a resource.
func (r *Request) operations(on security.Resource, all []security.Operation) int32 {
	var bits int32
	for _, op := range all {
		if r.Authorize(op, on) {
			bits |= 1 << op
		}
	}
	return bits
}

// metadata describes brokers and topics as this broker's image has them.
//
// v0 lists only replicas that are alive. v4 says whether a missing topic may be
// created. v5 offline replicas. v7 leader epochs. v8 operations. v10 topic ids, v12 also
// in requests.
func (a *brokerAPI) metadata(r *Request, req *kmsg.MetadataRequest) *kmsg.MetadataResponse {
	image := a.image()
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	if req.Version < 12 && slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.Topic == nil || t.TopicID != [16]byte{} }) {
		// What no version before 12 can ask for spoils the whole request.
		for i := range req.Topics {
			resp.Topics = append(resp.Topics, failedTopic(&req.Topics[i], kerr.InvalidRequest))
		}
		resp.ControllerID, resp.AuthorizedOperations = -1, operationsUnknown
		return resp
	}
	resp.ClusterID = &a.ClusterID
	resp.AuthorizedOperations = operationsUnknown
	resp.Brokers, resp.ControllerID = metadataBrokers(image, r.Listener)
	if req.Version >= 8 && req.Version <= 10 && req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = 0
		if r.mayCluster(security.Describe) {
			resp.AuthorizedOperations = r.operations(security.TheCluster, clusterOperations)
		}
	}
	all := req.Topics == nil || req.Version == 0 && len(req.Topics) == 0
	if all {
		for name, topic := range image.Topics().All() {
			if r.mayTopic(security.Describe, name) {
				resp.Topics = append(resp.Topics, describeTopic(r, image, topic, req))
			}
		}
		return resp
	}
	// A request that asks for any topic by its id asks for ids alone: names beside them are passed over, as by Kafka.
	byID := slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.TopicID != [16]byte{} })
	create := req.Version < 4 || req.AllowAutoTopicCreation
	var missing []string // to be created
	seen := make(map[metadataKey]bool, len(req.Topics))
	for i := range req.Topics {
		key := metadataKey{id: req.Topics[i].TopicID}
		if byID && key.id == ([16]byte{}) {
			continue
		}
		if req.Topics[i].Topic != nil && key.id == ([16]byte{}) {
			key.name = *req.Topics[i].Topic
		}
		if seen[key] {
			continue // a topic that is asked for twice is described once
		}
		seen[key] = true
		topic := a.metadataTopic(r, image, req, &req.Topics[i])
		if create && topic.ErrorCode == kerr.UnknownTopicOrPartition.Code && a.Config.Bool("auto.create.topics.enable") {
			if topic.ErrorCode = errorCode(a.mayAutoCreate(r, *topic.Topic)); topic.ErrorCode == 0 {
				topic.ErrorCode = kerr.UnknownTopicOrPartition.Code // for now
				missing = append(missing, *topic.Topic)
			}
		}
		resp.Topics = append(resp.Topics, topic)
	}
	a.autoCreate(r, missing)
	return resp
}

type metadataKey struct {
	name string
	id   [16]byte
}

func (a *brokerAPI) metadataTopic(r *Request, image *metadata.Image, req *kmsg.MetadataRequest, wanted *kmsg.MetadataRequestTopic) kmsg.MetadataResponseTopic {
	byID := wanted.TopicID != ([16]byte{})
	if wanted.Topic == nil && !byID {
		return failedTopic(wanted, kerr.InvalidRequest)
	}
	var topic *metadata.Topic
	var found bool
	if byID {
		unnamed := &kmsg.MetadataRequestTopic{TopicID: wanted.TopicID}
		switch topic, found = image.TopicByID(wanted.TopicID); {
		case !found:
			return failedTopic(unnamed, kerr.UnknownTopicID)
		case !r.mayTopic(security.Describe, topic.Name):
			return failedTopic(unnamed, kerr.TopicAuthorizationFailed) // an id is no secret, a name is
		}
		return describeTopic(r, image, topic, req)
	}
	name := *wanted.Topic
	switch topic, found = image.Topic(name); {
	case !r.mayTopic(security.Describe, name):
		return failedTopic(wanted, kerr.TopicAuthorizationFailed)
	case found:
		return describeTopic(r, image, topic, req)
	}
	failed := failedTopic(wanted, kerr.UnknownTopicOrPartition)
	if !legalTopicName(name) {
		failed.ErrorCode = kerr.InvalidTopicException.Code
	}
	if req.Version >= 8 && req.IncludeTopicAuthorizedOperations {
		failed.AuthorizedOperations = r.operations(security.Resource{Type: security.Topic, Name: name}, topicOperations)
	}
	return failed
}

// mayAutoCreate says what speaks against the creation of a missing topic.
func (a *brokerAPI) mayAutoCreate(r *Request, name string) error {
	switch {
	case !internalTopics[name] && !r.mayCluster(security.Create) && !r.mayTopic(security.Create, name):
		return kerr.TopicAuthorizationFailed
	}
	return nil
}

// autoCreate has missing topics created, in one request; clients ask again.
func (a *brokerAPI) autoCreate(r *Request, missing []string) {
	ordinary := missing[:0]
	for _, name := range missing {
		if internalTopics[name] {
			a.creating.internal(name)
		} else {
			ordinary = append(ordinary, name)
		}
	}
	if len(ordinary) > 0 {
		a.creating.forClient(r, ordinary)
	}
}

func failedTopic(wanted *kmsg.MetadataRequestTopic, err *kerr.Error) kmsg.MetadataResponseTopic {
	topic := kmsg.NewMetadataResponseTopic()
	topic.ErrorCode, topic.TopicID, topic.Topic = err.Code, wanted.TopicID, wanted.Topic
	topic.AuthorizedOperations = operationsUnknown
	if wanted.Topic != nil {
		topic.IsInternal = internalTopics[*wanted.Topic]
	}
	topic.Partitions = []kmsg.MetadataResponseTopicPartition{}
	return topic
}

// metadataBrokers lists the brokers that have the listener, and one of them at
// random as the place to send administrative requests: whoever gets them forwards
// them to the active controller.
func metadataBrokers(image *metadata.Image, listener string) ([]kmsg.MetadataResponseBroker, int32) {
	var brokers []kmsg.MetadataResponseBroker
	for id, registration := range image.Brokers().All() {
		endpoint, ok := registration.Endpoint(listener)
		if registration.Fenced || !ok {
			continue
		}
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = id, endpoint.Host, int32(endpoint.Port), rackOf(registration)
		brokers = append(brokers, b)
	}
	if len(brokers) == 0 {
		return []kmsg.MetadataResponseBroker{}, -1
	}
	return brokers, brokers[rand.IntN(len(brokers))].NodeID
}

func describeTopic(r *Request, image *metadata.Image, topic *metadata.Topic, req *kmsg.MetadataRequest) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = &topic.Name, topic.ID, internalTopics[topic.Name]
	out.AuthorizedOperations = operationsUnknown
	if req.Version >= 8 && req.IncludeTopicAuthorizedOperations {
		out.AuthorizedOperations = r.operations(security.Resource{Type: security.Topic, Name: topic.Name}, topicOperations)
	}
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, 0, topic.NumPartitions())
	for _, p := range topic.Partitions().All() {
		out.Partitions = append(out.Partitions, describePartition(image, p, r.Listener, req.Version))
	}
	return out
}

// describePartition names the leader also while it is fenced; an error is there only
// when it cannot be reached on this listener at all.
func describePartition(image *metadata.Image, p *metadata.Partition, listener string, version int16) kmsg.MetadataResponseTopicPartition {
	out := kmsg.NewMetadataResponseTopicPartition()
	out.Partition, out.LeaderEpoch, out.Leader = p.ID, p.LeaderEpoch, p.Leader
	out.Replicas, out.ISR = p.Replicas, p.ISR
	out.OfflineReplicas = offlineReplicas(image, p, listener)
	leader, registered := image.Broker(p.Leader)
	switch {
	case !registered:
		out.Leader, out.ErrorCode = -1, kerr.LeaderNotAvailable.Code
	default:
		if _, reachable := leader.Endpoint(listener); !reachable {
			out.Leader, out.ErrorCode = -1, kerr.LeaderNotAvailable.Code
			if version >= 6 {
				out.ErrorCode = kerr.ListenerNotFound.Code
			}
		}
	}
	if version == 0 {
		alive := func(id int32) bool {
			b, ok := image.Broker(id)
			if !ok || b.Fenced {
				return false
			}
			_, ok = b.Endpoint(listener)
			return ok
		}
		dead := func(id int32) bool { return !alive(id) }
		replicas, isr := slices.DeleteFunc(slices.Clone(p.Replicas), dead), slices.DeleteFunc(slices.Clone(p.ISR), dead)
		if out.ErrorCode == 0 && (len(replicas) < len(p.Replicas) || len(isr) < len(p.ISR)) {
			out.ErrorCode = kerr.ReplicaNotAvailable.Code
		}
		out.Replicas, out.ISR = replicas, isr
	}
	return out
}

func offlineReplicas(image *metadata.Image, p *metadata.Partition, listener string) []int32 {
	offline := []int32{}
	for _, id := range p.Replicas {
		b, ok := image.Broker(id)
		if ok && !b.Fenced {
			_, reachable := b.Endpoint(listener)
			dir, known := p.Directory(id)
			if reachable && (!known || b.DirectoryOnline(dir)) {
				continue
			}
		}
		offline = append(offline, id)
	}
	return offline
}
