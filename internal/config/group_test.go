package config

import (
	"errors"
	"testing"
)

// Settings of groups are held against their type, their own range, the bounds that the broker's settings give,
// and one another.
func TestValidateGroup(t *testing.T) {
	t.Parallel()
	static, _, err := Parse(Sources{Set: []string{"group.consumer.max.session.timeout.ms=90000", "group.consumer.max.heartbeat.interval.ms=80000", "group.streams.max.standby.replicas=1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		values map[string]string
		kind   any
	}{
		{map[string]string{"consumer.session.timeout.ms": "45000"}, nil},
		{map[string]string{"consumer.session.timeout.ms": "90000"}, nil},
		{map[string]string{"consumer.session.timeout.ms": "90001"}, new(*BoundError)},
		{map[string]string{"consumer.session.timeout.ms": "44999"}, new(*BoundError)},
		{map[string]string{"consumer.session.timeout.ms": "0"}, new(*ValueError)},
		{map[string]string{"consumer.session.timeout.ms": "soon"}, new(*ValueError)},
		{map[string]string{"consumer.heartbeat.interval.ms": "45000"}, new(*CrossError)},
		{map[string]string{"consumer.heartbeat.interval.ms": "45000", "consumer.session.timeout.ms": "45001"}, nil},
		{map[string]string{"consumer.heartbeat.interval.ms": "50000", "consumer.session.timeout.ms": "45001"}, new(*CrossError)},
		{map[string]string{"consumer.assignment.interval.ms": "15001"}, new(*BoundError)},
		{map[string]string{"share.delivery.count.limit": "1"}, new(*ValueError)},
		{map[string]string{"share.delivery.count.limit": "11"}, new(*BoundError)},
		{map[string]string{"share.partition.max.record.locks": "4001"}, new(*BoundError)},
		{map[string]string{"share.record.lock.duration.ms": "1000"}, new(*BoundError)},
		{map[string]string{"share.auto.offset.reset": "earliest"}, nil},
		{map[string]string{"share.auto.offset.reset": "none"}, new(*ValueError)},
		{map[string]string{"share.auto.offset.reset": "by_duration:P1DT2H3M4.5S"}, nil},
		{map[string]string{"share.auto.offset.reset": "by_duration:PT"}, new(*ValueError)},
		{map[string]string{"share.auto.offset.reset": "by_duration:P1DT"}, new(*ValueError)},
		{map[string]string{"share.auto.offset.reset": "by_duration:-P1D"}, new(*ValueError)},
		{map[string]string{"errors.deadletterqueue.topic.name": "__dlq"}, new(*CrossError)},
		{map[string]string{"streams.num.standby.replicas": "2"}, new(*BoundError)},
		{map[string]string{"streams.assignor.name": "lottery"}, new(*CrossError)},
		{map[string]string{"no.such": "1"}, new(*UnknownError)},
	} {
		err := Layers{Static: static}.ValidateGroup(c.values)
		if c.kind == nil && err != nil || c.kind != nil && !errors.As(err, c.kind) {
			t.Errorf("%v: %v, want %T", c.values, err, c.kind)
		}
	}
}

// Settings of subscriptions to clients' metrics: what they cannot have is a fault of the request, what they cannot
// hold one of the value.
func TestValidateClientMetrics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values map[string]string
		kind   any
	}{
		{map[string]string{"interval.ms": "100", "metrics": "*", "match": "client_id=.*,client_source_port=1.*"}, nil},
		{map[string]string{"match": ""}, nil},
		{map[string]string{"interval.ms": "99"}, new(*RequestError)},
		{map[string]string{"interval.ms": "3600001"}, new(*RequestError)},
		{map[string]string{"interval.ms": "often"}, new(*ValueError)},
		{map[string]string{"retention.ms": "1"}, new(*RequestError)},
		{map[string]string{"match": "client_id"}, new(*CrossError)},
		{map[string]string{"match": "planet=x"}, new(*CrossError)},
		{map[string]string{"match": "client_id=("}, new(*CrossError)},
	} {
		err := ValidateClientMetrics(c.values)
		if c.kind == nil && err != nil || c.kind != nil && !errors.As(err, c.kind) {
			t.Errorf("%v: %v, want %T", c.values, err, c.kind)
		}
	}
}
