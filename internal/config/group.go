package config

// groupDefs are the settings a group may have (config resource type GROUP).
var groupDefs = []Def{
	{Name: "consumer.heartbeat.interval.ms", Type: Int, Default: new("5000"), Check: atLeast(1), Alternates: synonym("group.consumer.heartbeat.interval.ms"),
		Doc: "Time between two heartbeats of a member of a consumer group."},
	{Name: "consumer.session.timeout.ms", Type: Int, Default: new("45000"), Check: atLeast(1), Alternates: synonym("group.consumer.session.timeout.ms"),
		Doc: "Silence after which a member of a consumer group is removed."},
	{Name: "share.auto.offset.reset", Type: String, Default: new("latest"),
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
	{Name: "consumer.assignment.interval.ms", Type: Int, Default: new("1000"), Alternates: synonym("group.consumer.assignment.interval.ms"), Doc: "Shortest time between two assignments of a consumer group."},
	{Name: "errors.deadletterqueue.copy.record.enable", Type: Boolean, Default: new("false"), Doc: "Whether a record that a share group gave up is copied whole to the dead letter topic."},
	{Name: "errors.deadletterqueue.topic.name", Type: String, Default: new(""), Doc: "Topic for records that a share group gave up; empty for none."},
	{Name: "share.assignment.interval.ms", Type: Int, Default: new("1000"), Alternates: synonym("group.share.assignment.interval.ms"), Doc: "Shortest time between two assignments of a share group."},
	{Name: "share.delivery.count.limit", Type: Int, Default: new("5"), Alternates: synonym("group.share.delivery.count.limit"), Doc: "Deliveries of one record before a share group gives it up."},
	{Name: "share.partition.max.record.locks", Type: Int, Default: new("2000"), Alternates: synonym("group.share.partition.max.record.locks"), Doc: "Records of a partition locked at once."},
	{Name: "share.renew.acknowledge.enable", Type: Boolean, Default: new("true"), Doc: "Whether members of a share group may renew their locks."},
	{Name: "streams.assignment.interval.ms", Type: Int, Default: new("1000"), Alternates: synonym("group.streams.assignment.interval.ms"), Doc: "Shortest time between two assignments of a streams group."},
	{Name: "streams.assignor.name", Type: String, Default: new("sticky"), Alternates: synonym("group.streams.assignors"), Doc: "Assignor of a streams group."},
	{Name: "streams.initial.rebalance.delay.ms", Type: Int, Default: new("3000"), Alternates: synonym("group.streams.initial.rebalance.delay.ms"), Doc: "Time a new streams group waits for more members."},
	{Name: "streams.rack.aware.assignment.tags", Type: List, Default: new(""), Alternates: synonym("group.streams.rack.aware.assignment.tags"), Doc: "Client tags by which standby copies are spread."},
}

// ValidateGroup checks the overrides of one group: names, types, ranges, and the rules between values.
func ValidateGroup(overrides map[string]string) error {
	if err := groupTable.validate(overrides); err != nil {
		return err
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		session, interval := kind+".session.timeout.ms", kind+".heartbeat.interval.ms"
		s, hasSession := overrides[session]
		h, hasInterval := overrides[interval]
		if !hasSession && !hasInterval {
			continue
		}
		values := Values{table: groupTable, lookup: func(name string) (string, bool) { v, ok := overrides[name]; return v, ok }}
		if values.Int(session) <= values.Int(interval) {
			if hasSession {
				return &CrossError{session, s, "must be above " + interval}
			}
			return &CrossError{interval, h, "must be below " + session}
		}
	}
	return nil
}
