package cli

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
)

// Whoever asks for all offsets of a group is shown those of the topics it may describe; one that is named all the
// same is answered TOPIC_AUTHORIZATION_FAILED.
func TestRightsOnTopicsOfAGroup(t *testing.T) {
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
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	topic, partition := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, partition)
	commit.Topics = append(commit.Topics, topic)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if resp, err := broker.RequestVersion(ctx, commit, 8); err != nil || resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("%+v, %v", resp, err)
	}
	fetch := func(topics []kmsg.OffsetFetchRequestTopic) *kmsg.OffsetFetchResponse {
		t.Helper()
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group, req.Topics = "g", topics
		resp, err := broker.RequestVersion(t.Context(), req, 7)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.OffsetFetchResponse)
	}
	if got := fetch(nil); got.ErrorCode != 0 || len(got.Topics) != 1 || got.Topics[0].Topic != "t" {
		t.Fatalf("with every right: %+v", got)
	}
	d.set(denial{security.Describe, onTopic})
	if got := fetch(nil); got.ErrorCode != 0 || len(got.Topics) != 0 {
		t.Errorf("all, without DESCRIBE on the topic: %+v", got)
	}
	one := kmsg.NewOffsetFetchRequestTopic()
	one.Topic, one.Partitions = "t", []int32{0}
	if got := fetch([]kmsg.OffsetFetchRequestTopic{one}); len(got.Topics) != 1 || got.Topics[0].Partitions[0].ErrorCode != 29 {
		t.Errorf("by name, without DESCRIBE on the topic: %+v", got)
	}
}
