package broker

import (
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
)

// TopicConfig is what a topic's log is to do under an image: its own settings, then
// this broker's dynamic ones, the cluster's, the file's, the defaults.
func TopicConfig(image *metadata.Image, static *config.Broker, nodeID int32, topic string) replica.TopicConfig {
	layers := brokerLayers(image, static, nodeID)
	values := layers.Topic(image.Config(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: topic}))
	own := layers.EffectiveBroker()
	c := log.Config{
		SegmentBytes: int32(values.Int("segment.bytes")), SegmentMs: values.Long("segment.ms"), SegmentJitterMs: values.Long("segment.jitter.ms"),
		SegmentIndexBytes: int32(values.Int("segment.index.bytes")), IndexIntervalBytes: int32(values.Int("index.interval.bytes")),
		Preallocate: values.Bool("preallocate"), MaxMessageBytes: int32(values.Int("max.message.bytes")),
		CompressionType: values.String("compression.type"), GzipLevel: values.Int("compression.gzip.level"),
		LZ4Level: values.Int("compression.lz4.level"), ZstdLevel: values.Int("compression.zstd.level"),
		LogAppendTime:        values.String("message.timestamp.type") == "LogAppendTime",
		TimestampBeforeMaxMs: values.Long("message.timestamp.before.max.ms"), TimestampAfterMaxMs: values.Long("message.timestamp.after.max.ms"),
		FlushMessages: values.Long("flush.messages"), FlushMs: values.Long("flush.ms"),
		RetentionMs: values.Long("retention.ms"), RetentionBytes: values.Long("retention.bytes"),
		FileDeleteDelayMs: values.Long("file.delete.delay.ms"), MaxCompactionLagMs: values.Long("max.compaction.lag.ms"),
		MinCompactionLagMs: values.Long("min.compaction.lag.ms"), DeleteRetentionMs: values.Long("delete.retention.ms"),
		MinCleanableRatio: values.Double("min.cleanable.dirty.ratio"), ProducerExpirationMs: own.Long("producer.id.expiration.ms"),
		MaxProducers:          own.Long("producer.id.max.count"),
		TxnVerificationStrict: own.Bool("transaction.partition.verification.enable"),
		Cleanup:               cleanup(values.List("cleanup.policy")),
	}
	if values.IsSet("internal.segment.bytes") {
		c.SegmentBytes = int32(values.Int("internal.segment.bytes"))
	}
	return replica.TopicConfig{Log: c, MinISR: values.Int("min.insync.replicas"),
		LeaderThrottled:   throttled(values.List("leader.replication.throttled.replicas"), nodeID),
		FollowerThrottled: throttled(values.List("follower.replication.throttled.replicas"), nodeID)}
}

// throttled are the partitions of this broker in a list of partition:broker, or * for all.
func throttled(list []string, nodeID int32) (t replica.Throttled) {
	for _, one := range list {
		if one == "*" {
			return replica.Throttled{All: true}
		}
		partition, broker, ok := strings.Cut(one, ":")
		p, err := strconv.ParseInt(partition, 10, 32)
		if !ok || err != nil || broker != strconv.Itoa(int(nodeID)) {
			continue
		}
		if t.Partitions == nil {
			t.Partitions = map[int32]bool{}
		}
		t.Partitions[int32(p)] = true
	}
	return t
}

// ReplicationRates are the rates of replication on this broker under an image.
func ReplicationRates(image *metadata.Image, static *config.Broker, nodeID int32) replica.Rates {
	own := Settings(image, static, nodeID)
	return replica.Rates{Leader: own.Long("leader.replication.throttled.rate"), Follower: own.Long("follower.replication.throttled.rate"),
		Moves: own.Long("replica.alter.log.dirs.io.max.bytes.per.second")}
}

// brokerLayers are a broker's own settings under an image.
func brokerLayers(image *metadata.Image, static *config.Broker, nodeID int32) config.Layers {
	return config.Layers{
		Broker:  image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker, Name: strconv.Itoa(int(nodeID))}),
		Cluster: image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker}),
		Static:  static,
	}
}

// Settings are the settings of a broker under an image: its own dynamic ones, the cluster's, the file's, the defaults.
func Settings(image *metadata.Image, static *config.Broker, nodeID int32) config.Values {
	return brokerLayers(image, static, nodeID).EffectiveBroker()
}

// CleanerConfig is how compaction runs on this broker under an image.
func CleanerConfig(image *metadata.Image, static *config.Broker, nodeID int32) log.CleanerOptions {
	own := brokerLayers(image, static, nodeID).EffectiveBroker()
	o := log.CleanerOptions{
		Threads: own.Int("log.cleaner.threads"), DedupeBufferBytes: own.Long("log.cleaner.dedupe.buffer.size"),
		LoadFactor: own.Double("log.cleaner.io.buffer.load.factor"), MaxBytesPerSecond: own.Double("log.cleaner.io.max.bytes.per.second"),
		Backoff: own.Duration("log.cleaner.backoff.ms"),
	}
	if !own.Bool("log.cleaner.enable") {
		o.Threads = 0
	}
	return o
}

func cleanup(policies []string) log.Cleanup {
	deletes, compacts := false, false
	for _, policy := range policies {
		deletes = deletes || policy == "delete"
		compacts = compacts || policy == "compact"
	}
	switch {
	case deletes && compacts:
		return log.CleanupCompactDelete
	case compacts:
		return log.CleanupCompact
	case deletes:
		return log.CleanupDelete
	}
	return log.CleanupNone
}
