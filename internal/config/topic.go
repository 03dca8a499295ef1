package config

import (
	"strconv"
	"strings"
)

const (
	maxInt  = "2147483647"
	maxLong = "9223372036854775807"
)

var null *string

func synonym(names ...string) []Alternate {
	out := make([]Alternate, len(names))
	for i, n := range names {
		out[i] = Alternate{Name: n}
	}
	return out
}

// topicDefs are the settings a topic may have. A topic without an override of its own takes the value of
// the broker setting named by Alternates, first name first.
var topicDefs = []Def{
	{Name: "cleanup.policy", Type: List, Default: new("delete"), Check: oneOf("compact", "delete"), Alternates: synonym("log.cleanup.policy"),
		Doc: "What happens to old segments: delete drops them by age and size, compact keeps the last value of each key; both may be named."},
	{Name: "compression.gzip.level", Type: Int, Default: new("-1"), Check: eitherOrBetween(-1, 1, 9), Alternates: synonym("compression.gzip.level"),
		Doc: "Level used when compression.type is gzip; -1 is the codec's own default."},
	{Name: "compression.lz4.level", Type: Int, Default: new("9"), Check: between(1, 17), Alternates: synonym("compression.lz4.level"),
		Doc: "Level used when compression.type is lz4."},
	{Name: "compression.type", Type: String, Default: new("producer"), Check: oneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), Alternates: synonym("compression.type"),
		Doc: "Codec in which the topic is stored; producer keeps what the producer sent."},
	{Name: "compression.zstd.level", Type: Int, Default: new("3"), Check: between(-131072, 22), Alternates: synonym("compression.zstd.level"),
		Doc: "Level used when compression.type is zstd."},
	{Name: "delete.retention.ms", Type: Long, Default: new("86400000"), Check: atLeast(0), Alternates: synonym("log.cleaner.delete.retention.ms"),
		Doc: "How long a compacted topic keeps the tombstone of a deleted key."},
	{Name: "errors.deadletterqueue.group.enable", Type: Boolean, Default: new("false"),
		Doc: "Permit share groups to write records they gave up to this topic."},
	{Name: "file.delete.delay.ms", Type: Long, Default: new("60000"), Check: atLeast(0), Alternates: synonym("log.segment.delete.delay.ms"),
		Doc: "Time between taking a file out of the log and removing it from the disk."},
	{Name: "flush.messages", Type: Long, Default: new(maxLong), Check: atLeast(1), Alternates: synonym("log.flush.interval.messages"),
		Doc: "Records appended to a partition before it is synced to disk; 1 syncs each append."},
	{Name: "flush.ms", Type: Long, Default: new(maxLong), Check: atLeast(0), Alternates: synonym("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
		Doc: "Longest time appended records wait before they are synced to disk."},
	{Name: "follower.replication.throttled.replicas", Type: List, Default: new(""), Check: replicaList,
		Doc: "Replicas whose follower side is throttled, as partition:broker pairs, or * for all."},
	{Name: "index.interval.bytes", Type: Int, Default: new("4096"), Check: atLeast(0), Alternates: synonym("log.index.interval.bytes"),
		Doc: "Bytes of log between two entries of the offset index."},
	{Name: "internal.segment.bytes", Type: Int, Default: null, Check: Check{}, Internal: true,
		Doc: "Overrides segment.bytes without its lower limit; for tests."},
	{Name: "leader.replication.throttled.replicas", Type: List, Default: new(""), Check: replicaList,
		Doc: "Replicas whose leader side is throttled, as partition:broker pairs, or * for all."},
	{Name: "local.retention.bytes", Type: Long, Default: new("-2"), Check: atLeast(-2), Alternates: synonym("log.local.retention.bytes"),
		Doc: "Bytes of a tiered partition kept on local disk; -2 takes retention.bytes."},
	{Name: "local.retention.ms", Type: Long, Default: new("-2"), Check: atLeast(-2), Alternates: synonym("log.local.retention.ms"),
		Doc: "How long a tiered partition keeps segments on local disk; -2 takes retention.ms."},
	{Name: "max.compaction.lag.ms", Type: Long, Default: new(maxLong), Check: atLeast(1), Alternates: synonym("log.cleaner.max.compaction.lag.ms"),
		Doc: "Longest time a record of a compacted topic stays out of reach of the cleaner."},
	{Name: "max.decompressed.message.bytes", Type: Int, Default: new("2147483639"), Check: atLeast(0), Alternates: synonym("max.decompressed.message.bytes"),
		Doc: "Largest record batch accepted, before compression."},
	{Name: "max.message.bytes", Type: Int, Default: new("1048588"), Check: atLeast(0), Alternates: synonym("message.max.bytes"),
		Doc: "Largest record batch accepted, after compression."},
	{Name: "message.timestamp.after.max.ms", Type: Long, Default: new("3600000"), Check: atLeast(0), Alternates: synonym("log.message.timestamp.after.max.ms"),
		Doc: "How far a record's timestamp may lie ahead of the broker's clock."},
	{Name: "message.timestamp.before.max.ms", Type: Long, Default: new(maxLong), Check: atLeast(0), Alternates: synonym("log.message.timestamp.before.max.ms"),
		Doc: "How far a record's timestamp may lie behind the broker's clock."},
	{Name: "message.timestamp.type", Type: String, Default: new("CreateTime"), Check: oneOf("CreateTime", "LogAppendTime"), Alternates: synonym("log.message.timestamp.type"),
		Doc: "Whose clock a record's timestamp is: the producer's or the broker's."},
	{Name: "min.cleanable.dirty.ratio", Type: Double, Default: new("0.5"), Check: between(0, 1), Alternates: synonym("log.cleaner.min.cleanable.ratio"),
		Doc: "Share of a compacted log that must be uncleaned before it is cleaned again."},
	{Name: "min.compaction.lag.ms", Type: Long, Default: new("0"), Check: atLeast(0), Alternates: synonym("log.cleaner.min.compaction.lag.ms"),
		Doc: "Shortest time a record of a compacted topic stays as it was written."},
	{Name: "min.insync.replicas", Type: Int, Default: new("1"), Check: atLeast(1), Alternates: synonym("min.insync.replicas"),
		Doc: "In-sync replicas that must hold a record before an acks=all producer is answered."},
	{Name: "preallocate", Type: Boolean, Default: new("false"), Alternates: synonym("log.preallocate"),
		Doc: "Reserve the whole segment file when it is created."},
	{Name: "remote.copy.lag.bytes", Type: Long, Default: new("-1"), Check: atLeast(-1), Alternates: synonym("log.remote.copy.lag.bytes"),
		Doc: "Bytes a segment of a tiered topic must lie back before it is copied; -1 looks at size not at all."},
	{Name: "remote.copy.lag.ms", Type: Long, Default: new("0"), Check: atLeast(-1), Alternates: synonym("log.remote.copy.lag.ms"),
		Doc: "Age a segment of a tiered topic must have before it is copied; -1 looks at age not at all."},
	{Name: "remote.log.copy.disable", Type: Boolean, Default: new("false"),
		Doc: "Stop copying segments of a tiered topic to remote storage; what is there stays readable."},
	{Name: "remote.log.delete.on.disable", Type: Boolean, Default: new("false"),
		Doc: "Permit remote.storage.enable to be switched off, which deletes the remote data."},
	{Name: "remote.storage.enable", Type: Boolean, Default: new("false"),
		Doc: "Keep older segments of the topic in remote storage."},
	{Name: "retention.bytes", Type: Long, Default: new("-1"), Alternates: synonym("log.retention.bytes"),
		Doc: "Bytes a partition may hold before old segments are deleted; -1 sets no limit."},
	{Name: "retention.ms", Type: Long, Default: new("604800000"), Check: atLeast(-1),
		Alternates: []Alternate{{Name: "log.retention.ms"}, {"log.retention.minutes", 60000}, {"log.retention.hours", 3600000}},
		Doc:        "How long records are kept; -1 sets no limit."},
	{Name: "segment.bytes", Type: Int, Default: new("1073741824"), Check: atLeast(1048576), Alternates: synonym("log.segment.bytes"),
		Doc: "Size at which a new segment is begun."},
	{Name: "segment.index.bytes", Type: Int, Default: new("10485760"), Check: atLeast(4), Alternates: synonym("log.index.size.max.bytes"),
		Doc: "Size of a segment's index files; a full index begins a new segment."},
	{Name: "segment.jitter.ms", Type: Long, Default: new("0"), Check: atLeast(0),
		Alternates: []Alternate{{Name: "log.roll.jitter.ms"}, {"log.roll.jitter.hours", 3600000}},
		Doc:        "Largest random time taken off segment.ms, so that partitions do not roll together."},
	{Name: "segment.ms", Type: Long, Default: new("604800000"), Check: atLeast(1),
		Alternates: []Alternate{{Name: "log.roll.ms"}, {"log.roll.hours", 3600000}},
		Doc:        "Age at which a new segment is begun, so that old records can be deleted or compacted."},
	{Name: "unclean.leader.election.enable", Type: Boolean, Default: new("false"), Alternates: synonym("unclean.leader.election.enable"),
		Doc: "Let a replica that may lack acknowledged records lead when no in-sync one is left."},
}

// ValidateTopic checks the overrides of one topic: names, types, ranges, and the rules between values. The
// first fault by name is returned: *UnknownError, *ValueError or *CrossError.
func ValidateTopic(overrides map[string]string) error {
	if err := topicTable.validate(overrides); err != nil {
		return err
	}
	get := func(name string) string {
		if v, ok := overrides[name]; ok {
			return v
		}
		if d := topicTable.byName[name]; d.Default != nil {
			return *d.Default
		}
		return ""
	}
	num := func(name string) int64 {
		n, _ := strconv.ParseInt(get(name), 10, 64)
		return n
	}
	if num("min.compaction.lag.ms") > num("max.compaction.lag.ms") {
		return &CrossError{"min.compaction.lag.ms", get("min.compaction.lag.ms"), "must not be above max.compaction.lag.ms (" + get("max.compaction.lag.ms") + ")"}
	}
	if remote, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(get("remote.storage.enable")))); err == nil && remote {
		return &CrossError{"remote.storage.enable", get("remote.storage.enable"), "older segments cannot be kept in remote storage here"}
	}
	return nil
}
