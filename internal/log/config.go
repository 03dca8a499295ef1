package log

import "math"

// Cleanup is a topic's cleanup.policy.
type Cleanup uint8

// The cleanup policies.
const (
	CleanupDelete Cleanup = iota
	CleanupCompact
	CleanupCompactDelete
	CleanupNone
)

// Deletes says whether retention by time and size applies.
func (c Cleanup) Deletes() bool { return c == CleanupDelete || c == CleanupCompactDelete }

// Compacts says whether the log is compacted.
func (c Cleanup) Compacts() bool { return c == CleanupCompact || c == CleanupCompactDelete }

// Config is what one log needs of its topic's configuration, under Kafka's names. Times are in milliseconds as in
// the configuration, since int64 max, which is common there, is no time.Duration.
//
// A Config whose SegmentMs is zero, which is no legal value, is a partial one: each of its zero fields stands for
// Kafka's default. Any other Config is taken as it is.
type Config struct {
	SegmentBytes       int32
	SegmentMs          int64
	SegmentJitterMs    int64
	SegmentIndexBytes  int32
	IndexIntervalBytes int32
	Preallocate        bool

	MaxMessageBytes      int32
	MaxDecompressedBytes int64 // 0: no limit but int32 max
	CompressionType      string
	GzipLevel            int
	LZ4Level             int
	ZstdLevel            int
	LogAppendTime        bool // message.timestamp.type
	TimestampBeforeMaxMs int64
	TimestampAfterMaxMs  int64

	FlushMessages int64
	FlushMs       int64

	Cleanup               Cleanup
	RetentionMs           int64 // -1: for ever
	RetentionBytes        int64 // -1: any size
	FileDeleteDelayMs     int64
	MaxCompactionLagMs    int64
	MinCompactionLagMs    int64
	DeleteRetentionMs     int64
	MinCleanableRatio     float64
	ProducerExpirationMs  int64 // producer.id.expiration.ms, the broker's
	MaxProducers          int64 // producer.id.max.count, the broker's
	TxnVerificationStrict bool  // transaction.partition.verification.enable, the broker's
}

// DefaultConfig is Kafka's.
func DefaultConfig() Config {
	return Config{
		SegmentBytes: 1 << 30, SegmentMs: 604800000, SegmentIndexBytes: 10485760, IndexIntervalBytes: 4096,
		MaxMessageBytes: 1048588, CompressionType: "producer", GzipLevel: -1, LZ4Level: 9, ZstdLevel: 3,
		TimestampBeforeMaxMs: math.MaxInt64, TimestampAfterMaxMs: 3600000,
		FlushMessages: math.MaxInt64, FlushMs: math.MaxInt64,
		RetentionMs: 604800000, RetentionBytes: -1, FileDeleteDelayMs: 60000, MaxCompactionLagMs: math.MaxInt64,
		DeleteRetentionMs: 86400000, MinCleanableRatio: 0.5, ProducerExpirationMs: 86400000, MaxProducers: 1000000, TxnVerificationStrict: true,
	}
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// complete fills a partial Config.
func (c Config) complete() Config {
	if c.SegmentMs != 0 {
		return c
	}
	d := DefaultConfig()
	c.SegmentBytes = orDefault(c.SegmentBytes, d.SegmentBytes)
	c.SegmentMs = d.SegmentMs
	c.SegmentIndexBytes = orDefault(c.SegmentIndexBytes, d.SegmentIndexBytes)
	c.IndexIntervalBytes = orDefault(c.IndexIntervalBytes, d.IndexIntervalBytes)
	c.MaxMessageBytes = orDefault(c.MaxMessageBytes, d.MaxMessageBytes)
	c.CompressionType = orDefault(c.CompressionType, d.CompressionType)
	c.GzipLevel = orDefault(c.GzipLevel, d.GzipLevel)
	c.LZ4Level = orDefault(c.LZ4Level, d.LZ4Level)
	c.ZstdLevel = orDefault(c.ZstdLevel, d.ZstdLevel)
	c.TimestampBeforeMaxMs = orDefault(c.TimestampBeforeMaxMs, d.TimestampBeforeMaxMs)
	c.TimestampAfterMaxMs = orDefault(c.TimestampAfterMaxMs, d.TimestampAfterMaxMs)
	c.FlushMessages = orDefault(c.FlushMessages, d.FlushMessages)
	c.FlushMs = orDefault(c.FlushMs, d.FlushMs)
	c.RetentionMs = orDefault(c.RetentionMs, d.RetentionMs)
	c.RetentionBytes = orDefault(c.RetentionBytes, d.RetentionBytes)
	c.FileDeleteDelayMs = orDefault(c.FileDeleteDelayMs, d.FileDeleteDelayMs)
	c.MaxCompactionLagMs = orDefault(c.MaxCompactionLagMs, d.MaxCompactionLagMs)
	c.DeleteRetentionMs = orDefault(c.DeleteRetentionMs, d.DeleteRetentionMs)
	c.MinCleanableRatio = orDefault(c.MinCleanableRatio, d.MinCleanableRatio)
	c.ProducerExpirationMs = orDefault(c.ProducerExpirationMs, d.ProducerExpirationMs)
	c.MaxProducers = orDefault(c.MaxProducers, d.MaxProducers)
	c.TxnVerificationStrict = orDefault(c.TxnVerificationStrict, d.TxnVerificationStrict)
	return c
}

// segmentMs is the age at which a segment is rolled.
func (c *Config) segmentMs() int64 {
	if c.Cleanup.Compacts() {
		return min(c.SegmentMs, c.MaxCompactionLagMs)
	}
	return c.SegmentMs
}

// maxOffsetEntries and maxTimeEntries are how many entries make an index full. The time index keeps one slot for
// the entry that is added when the segment is rolled.
func (c *Config) maxOffsetEntries() int { return int(c.SegmentIndexBytes / offsetEntrySize) }
func (c *Config) maxTimeEntries() int   { return int(c.SegmentIndexBytes/timeEntrySize) - 1 }
