package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// groupDefs are the settings a group may have (config resource type GROUP).
var groupDefs = []Def{
	{Name: "consumer.heartbeat.interval.ms", Type: Int, Default: new("5000"), Check: atLeast(1), Alternates: synonym("group.consumer.heartbeat.interval.ms"),
		Doc: "Time between two heartbeats of a member of a consumer group."},
	{Name: "consumer.session.timeout.ms", Type: Int, Default: new("45000"), Check: atLeast(1), Alternates: synonym("group.consumer.session.timeout.ms"),
		Doc: "Silence after which a member of a consumer group is removed."},
	{Name: "share.auto.offset.reset", Type: String, Default: new("latest"), Check: resetStrategy,
		Doc: "Where a share group starts on a partition it has not read: latest, earliest, or by_duration with an ISO 8601 duration."},
	{Name: "share.heartbeat.interval.ms", Type: Int, Default: new("5000"), Check: atLeast(1), Alternates: synonym("group.share.heartbeat.interval.ms"),
		Doc: "Time between two heartbeats of a member of a share group."},
	{Name: "share.isolation.level", Type: String, Default: new("read_uncommitted"), Check: oneOf("read_committed", "read_uncommitted"),
		Doc: "Whether a share group reads records of open transactions."},
	{Name: "share.record.lock.duration.ms", Type: Int, Default: new("30000"), Check: atLeast(1000), Alternates: synonym("group.share.record.lock.duration.ms"),
		Doc: "How long a record delivered to a member of a share group stays locked."},
	{Name: "share.session.timeout.ms", Type: Int, Default: new("45000"), Check: atLeast(1), Alternates: synonym("group.share.session.timeout.ms"),
		Doc: "Silence after which a member of a share group is removed."},
	{Name: "streams.heartbeat.interval.ms", Type: Int, Default: new("5000"), Check: atLeast(1), Alternates: synonym("group.streams.heartbeat.interval.ms"),
		Doc: "Time between two heartbeats of a member of a streams group."},
	{Name: "streams.num.standby.replicas", Type: Int, Default: new("0"), Check: atLeast(0), Alternates: synonym("group.streams.num.standby.replicas"),
		Doc: "Standby copies of each stateful task of a streams group."},
	{Name: "streams.session.timeout.ms", Type: Int, Default: new("45000"), Check: atLeast(1), Alternates: synonym("group.streams.session.timeout.ms"),
		Doc: "Silence after which a member of a streams group is removed."},
	{Name: "consumer.assignment.interval.ms", Type: Int, Default: new("1000"), Check: atLeast(0), Alternates: synonym("group.consumer.assignment.interval.ms"), Doc: "Shortest time between two assignments of a consumer group."},
	{Name: "errors.deadletterqueue.copy.record.enable", Type: Boolean, Default: new("false"), Doc: "Whether a record that a share group gave up is copied whole to the dead letter topic."},
	{Name: "errors.deadletterqueue.topic.name", Type: String, Default: new(""), Doc: "Topic for records that a share group gave up; empty for none."},
	{Name: "share.assignment.interval.ms", Type: Int, Default: new("1000"), Check: atLeast(0), Alternates: synonym("group.share.assignment.interval.ms"), Doc: "Shortest time between two assignments of a share group."},
	{Name: "share.delivery.count.limit", Type: Int, Default: new("5"), Check: atLeast(2), Alternates: synonym("group.share.delivery.count.limit"), Doc: "Deliveries of one record before a share group gives it up."},
	{Name: "share.partition.max.record.locks", Type: Int, Default: new("2000"), Check: atLeast(100), Alternates: synonym("group.share.partition.max.record.locks"), Doc: "Records of a partition locked at once."},
	{Name: "share.renew.acknowledge.enable", Type: Boolean, Default: new("true"), Doc: "Whether members of a share group may renew their locks."},
	{Name: "streams.assignment.interval.ms", Type: Int, Default: new("1000"), Check: atLeast(0), Alternates: synonym("group.streams.assignment.interval.ms"), Doc: "Shortest time between two assignments of a streams group."},
	{Name: "streams.assignor.name", Type: String, Default: new("sticky"), Alternates: synonym("group.streams.assignors"), Doc: "Assignor of a streams group."},
	{Name: "streams.initial.rebalance.delay.ms", Type: Int, Default: new("3000"), Check: atLeast(0), Alternates: synonym("group.streams.initial.rebalance.delay.ms"), Doc: "Time a new streams group waits for more members."},
	{Name: "streams.rack.aware.assignment.tags", Type: List, Default: new(""), Alternates: synonym("group.streams.rack.aware.assignment.tags"), Doc: "Client tags by which standby copies are spread."},
}

// resetStrategy permits latest, earliest, and by_duration:PnDTnHnMn.nS.
var resetStrategy = Check{"latest, earliest or by_duration:<PnDTnHnMn.nS>", func(v any) bool {
	text, _ := v.(string)
	return text == "latest" || text == "earliest" || durationReset.MatchString(text) && strings.ContainsAny(text[len("by_duration:"):], "0123456789") && !strings.HasSuffix(text, "T")
}}

var durationReset = regexp.MustCompile(`(?i)^by_duration:P(\+?\d+D)?(T(\+?\d+H)?(\+?\d+M)?(\+?\d+(\.\d{0,9})?S)?)?$`)

// groupBounds are the broker settings that bound a group's own.
var groupBounds = []struct{ setting, min, max string }{
	{"consumer.assignment.interval.ms", "group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"},
	{"consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"},
	{"consumer.session.timeout.ms", "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"},
	{"share.assignment.interval.ms", "group.share.min.assignment.interval.ms", "group.share.max.assignment.interval.ms"},
	{"share.delivery.count.limit", "group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"},
	{"share.heartbeat.interval.ms", "group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"},
	{"share.partition.max.record.locks", "group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"},
	{"share.record.lock.duration.ms", "group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"},
	{"share.session.timeout.ms", "group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"},
	{"streams.assignment.interval.ms", "group.streams.min.assignment.interval.ms", "group.streams.max.assignment.interval.ms"},
	{"streams.heartbeat.interval.ms", "group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"},
	{"streams.num.standby.replicas", "", "group.streams.max.standby.replicas"},
	{"streams.session.timeout.ms", "group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"},
}

// BoundError says that a value lies outside of what the broker's own settings permit. Min is -1 for no lower bound.
type BoundError struct {
	Name     string
	Min, Max int
}

func (e *BoundError) Error() string {
	if e.Min < 0 {
		return fmt.Sprintf("%s must be less than or equal to %d", e.Name, e.Max)
	}
	return fmt.Sprintf("%s must be in the range %d to %d inclusive.", e.Name, e.Min, e.Max)
}

// ValidateGroup checks the overrides of one group: names, types, ranges, the bounds that the broker's settings
// give, and the rules between values.
func (l Layers) ValidateGroup(overrides map[string]string) error {
	if err := groupTable.validate(overrides); err != nil {
		return err
	}
	values, broker := l.Group(overrides), l.EffectiveBroker()
	for _, b := range groupBounds {
		if _, set := overrides[b.setting]; !set {
			continue
		}
		bad := BoundError{Name: b.setting, Min: -1, Max: broker.Int(b.max)}
		if b.min != "" {
			bad.Min = broker.Int(b.min)
		}
		if n := values.Int(b.setting); n < bad.Min || n > bad.Max {
			return &bad
		}
	}
	if topic := overrides["errors.deadletterqueue.topic.name"]; strings.HasPrefix(topic, "__") {
		return &CrossError{"errors.deadletterqueue.topic.name", topic, "DLQ topic name must not start with '__'"}
	}
	if assignor, set := overrides["streams.assignor.name"]; set && !slices.Contains(broker.List("group.streams.assignors"), assignor) {
		return &CrossError{"streams.assignor.name", assignor, "it is none of group.streams.assignors"}
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		session, interval := kind+".session.timeout.ms", kind+".heartbeat.interval.ms"
		s, hasSession := overrides[session]
		h, hasInterval := overrides[interval]
		if !hasSession && !hasInterval || values.Int(session) > values.Int(interval) {
			continue
		}
		if hasSession {
			return &CrossError{session, s, "must be above " + interval}
		}
		return &CrossError{interval, h, "must be below " + session}
	}
	return nil
}
