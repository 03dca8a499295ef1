package cli

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
)

func TestM048_rights_on_topics(t *testing.T) {
	// Whoever may not describe a topic learns neither its name by its id nor whether a name exists: 29. What may not be created or grown is 29 too, and spoils nothing beside it.
	t.Parallel()
	d := &denyOne{}
	broker, _ := authorizedNode(t, d)
	request := func(req kmsg.Request) kmsg.Response {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		resp, err := broker.Request(ctx, req)
		if err != nil {
			t.Fatalf("%T: %v", req, err)
		}
		return resp
	}
	prepareTopicAndGroup(t, request)
	id := func() [16]byte {
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			req := kmsg.NewPtrMetadataRequest()
			one := kmsg.NewMetadataRequestTopic()
			one.Topic = kmsg.StringPtr("t")
			req.Topics = append(req.Topics, one)
			if got := request(req).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode == 0 {
				return got.TopicID
			}
		}
		t.Fatal("the topic does not come")
		return [16]byte{}
	}()
	remove := func(name *string, id [16]byte) kmsg.DeleteTopicsResponseTopic {
		t.Helper()
		req := kmsg.NewPtrDeleteTopicsRequest()
		one := kmsg.NewDeleteTopicsRequestTopic()
		one.Topic, one.TopicID = name, id
		req.Topics = append(req.Topics, one)
		return request(req).(*kmsg.DeleteTopicsResponse).Topics[0]
	}

	d.set(denial{security.Describe, onTopic}, denial{security.Describe, security.Resource{Type: security.Topic, Name: "none"}})
	if got := remove(nil, id); got.ErrorCode != 29 || got.Topic != nil || got.TopicID != id {
		t.Errorf("by id without DESCRIBE: %+v", got)
	}
	if got := remove(kmsg.StringPtr("none"), [16]byte{}); got.ErrorCode != 29 {
		t.Errorf("an unknown name without DESCRIBE: %+v", got)
	}
	req := kmsg.NewPtrMetadataRequest()
	one := kmsg.NewMetadataRequestTopic()
	one.TopicID = id
	req.Topics = append(req.Topics, one)
	if got := request(req).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode != 29 || got.Topic != nil || got.TopicID != id {
		t.Errorf("Metadata by id without DESCRIBE: %+v", got)
	}
	d.set(denial{security.Delete, onTopic})
	if got := remove(nil, id); got.ErrorCode != 29 {
		t.Errorf("by id without DELETE: %+v", got)
	}
	if got := remove(kmsg.StringPtr("t"), [16]byte{}); got.ErrorCode != 29 {
		t.Errorf("by name without DELETE: %+v", got)
	}

	d.set(denial{security.Create, onCluster}, denial{security.Create, security.Resource{Type: security.Topic, Name: "mine"}})
	create := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range []string{"mine", "yours"} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
		create.Topics = append(create.Topics, topic)
	}
	made := request(create).(*kmsg.CreateTopicsResponse).Topics
	if len(made) != 2 || made[0].Topic != "yours" || made[0].ErrorCode != 0 || made[1].Topic != "mine" || made[1].ErrorCode != 29 {
		t.Errorf("create: %+v", made)
	}

	d.set(denial{security.DescribeConfigs, security.Resource{Type: security.Topic, Name: "hidden"}})
	create.Topics = create.Topics[:1]
	create.Topics[0].Topic = "hidden"
	if got := request(create).(*kmsg.CreateTopicsResponse).Topics[0]; got.ErrorCode != 0 || got.ConfigErrorCode != 29 || got.NumPartitions != -1 || got.ReplicationFactor != -1 || got.Configs != nil {
		t.Errorf("create without DESCRIBE_CONFIGS: %+v", got)
	}
	d.set(denial{security.Alter, onTopic})
	grow := kmsg.NewPtrCreatePartitionsRequest()
	more := kmsg.NewCreatePartitionsRequestTopic()
	more.Topic, more.Count = "t", 3
	grow.Topics = append(grow.Topics, more)
	if got := request(grow).(*kmsg.CreatePartitionsResponse).Topics[0]; got.ErrorCode != 29 {
		t.Errorf("grow: %+v", got)
	}
}
