package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
)

// Isolation says which records are seen: isolation.level.
type Isolation int8

const (
	// ReadUncommitted sees all records below the high watermark.
	ReadUncommitted Isolation = iota
	// ReadCommitted sees no records of transactions that are open or were aborted.
	ReadCommitted
)

// Assignor shares out partitions in a group of the classic protocol.
type Assignor string

// The assignors of partition.assignment.strategy. A group uses the first one that all members name.
const (
	Range             Assignor = "range"
	RoundRobin        Assignor = "roundrobin"
	Sticky            Assignor = "sticky"
	CooperativeSticky Assignor = "cooperative-sticky" // partitions that stay are read on during a rebalance
)

// Protocol is how a group shares out partitions: group.protocol.
type Protocol string

const (
	// Classic is the protocol in which a member shares out the partitions.
	Classic Protocol = "classic"
	// ConsumerProtocol is that of KIP-848, in which the coordinator does; brokers have it from Kafka 4.0 on.
	ConsumerProtocol Protocol = "consumer"
)

// Options are what a Consumer is made with. BootstrapServers is needed, and what is read: Topics or TopicPattern with a
// GroupID, or Assign later. For all else the zero value means the default, which is Kafka's unless said otherwise.
type Options struct {
	// BootstrapServers are addresses host:port of some brokers: bootstrap.servers.
	BootstrapServers []string
	// ClientID is told to brokers: client.id. Default: stele-consumer.
	ClientID string
	// ClientRack is where the client is; brokers with a replica selector then let it read from a replica nearby:
	// client.rack.
	ClientRack string

	// GroupID is the group to be a member of, or, with Assign, to commit in: group.id.
	GroupID string
	// GroupInstanceID makes the member a static one: its partitions wait for it for SessionTimeout: group.instance.id.
	GroupInstanceID string
	// Protocol is Classic by default: group.protocol.
	Protocol Protocol
	// Assignors are for Classic. Default: Range, then CooperativeSticky: partition.assignment.strategy.
	Assignors []Assignor
	// RemoteAssignor names an assignor of the coordinator, for ConsumerProtocol: group.remote.assignor.
	RemoteAssignor string
	// Topics are what the group reads.
	Topics []string
	// TopicPattern matches whole names of topics that the group reads, those that are made later too; internal ones are
	// left out.
	TopicPattern *regexp.Regexp

	// Reset is where to begin without a position. Default: Latest: auto.offset.reset.
	Reset ResetPolicy
	// Isolation is ReadUncommitted by default: isolation.level.
	Isolation Isolation
	// CheckOnFetch sends the epoch of the position with each fetch, so that a cut log is noticed also when no new leader
	// is known yet. It needs brokers that honour it for consumers, as Stele and Kafka 4 do.
	CheckOnFetch bool

	// DisableAutoCommit turns the automatic commit off: enable.auto.commit=false.
	DisableAutoCommit bool
	// AutoCommitInterval is how often Poll commits what was consumed. Default 5 s: auto.commit.interval.ms.
	AutoCommitInterval time.Duration

	// FetchMinBytes is how much a broker waits for, up to FetchMaxWait. Default 1: fetch.min.bytes.
	FetchMinBytes int32
	// FetchMaxWait defaults to 500 ms: fetch.max.wait.ms.
	FetchMaxWait time.Duration
	// FetchMaxBytes bounds one answer of a broker, and what is buffered in all: no more is fetched while there are as
	// many bytes that Poll has not taken. A first batch that is larger comes all the same. Default 50 MiB:
	// fetch.max.bytes.
	FetchMaxBytes int32
	// MaxPartitionFetchBytes is the same for one partition. Default 1 MiB: max.partition.fetch.bytes.
	MaxPartitionFetchBytes int32
	// MaxPollRecords bounds what one Poll returns. Default 500, as in Kafka; a loop over Batches is faster with more:
	// max.poll.records.
	MaxPollRecords int
	// SkipCRCs does not check batches for damage: check.crcs=false.
	SkipCRCs bool

	// MaxPollInterval is how long the program may go without a Poll before its partitions go to others. Default 5 min:
	// max.poll.interval.ms.
	MaxPollInterval time.Duration
	// SessionTimeout is how long the coordinator waits for a heartbeat, with Classic. Default 45 s: session.timeout.ms.
	SessionTimeout time.Duration
	// HeartbeatInterval is at most a third of SessionTimeout. Default 3 s: heartbeat.interval.ms.
	HeartbeatInterval time.Duration

	// RequestTimeout bounds one request. Default 30 s: request.timeout.ms.
	RequestTimeout time.Duration
	// RetryBackoff is the wait after a first failure; it doubles up to RetryBackoffMax. Defaults 100 ms and 1 s:
	// retry.backoff.ms, retry.backoff.max.ms.
	RetryBackoff, RetryBackoffMax time.Duration
	// MetadataMaxAge is how old knowledge of leaders, and a choice of a nearby replica, may get. Default 5 min:
	// metadata.max.age.ms.
	MetadataMaxAge time.Duration
	// AllowAutoCreateTopics lets brokers make topics that are asked for. Default false, unlike Kafka's consumer:
	// allow.auto.create.topics.
	AllowAutoCreateTopics bool

	// OnReset is told of each move of a position, in order, inside Poll and before records after the move are returned.
	OnReset func(ResetEvent)
	// OnAssigned, OnRevoked and OnLost are told of a rebalance, inside Poll. In OnRevoked the partitions are still this
	// consumer's: a commit there is safe. In OnLost they may be another's already, and a commit is refused. In
	// OnAssigned the positions are not known yet, and Seek sets them.
	OnAssigned, OnRevoked, OnLost func(context.Context, []TopicPartition)

	// Logger gets one WARN line for each reset. Default: slog.Default().
	Logger *slog.Logger

	// TLS makes connections with it; nil: plain.
	TLS *tls.Config
	// SASL mechanisms, tried in order.
	SASL []sasl.Mechanism
	// Dialer makes connections, and then has to do TLS itself.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
}

// property is one of Kafka's names and how its value is taken.
type property struct {
	name string
	set  func(o *Options, value string) error
}

func text(at func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error { *at(o) = v; return nil }
}

func millis(at func(*Options) *time.Duration) func(*Options, string) error {
	return func(o *Options, v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n <= 0 {
			return errors.New("a positive number of milliseconds")
		}
		*at(o) = time.Duration(n) * time.Millisecond
		return nil
	}
}

func number(at func(*Options) *int32) func(*Options, string) error {
	return func(o *Options, v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n <= 0 {
			return errors.New("a positive number")
		}
		*at(o) = int32(n)
		return nil
	}
}

func flag(at func(*Options) *bool, negated bool) func(*Options, string) error {
	return func(o *Options, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("true or false")
		}
		*at(o) = b != negated
		return nil
	}
}

func list(v string) (parts []string) {
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

var properties = []property{
	{"allow.auto.create.topics", flag(func(o *Options) *bool { return &o.AllowAutoCreateTopics }, false)},
	{"auto.commit.interval.ms", millis(func(o *Options) *time.Duration { return &o.AutoCommitInterval })},
	{"auto.offset.reset", func(o *Options, v string) (err error) { o.Reset, err = ParseResetPolicy(v); return err }},
	{"bootstrap.servers", func(o *Options, v string) error { o.BootstrapServers = list(v); return nil }},
	{"check.crcs", flag(func(o *Options) *bool { return &o.SkipCRCs }, true)},
	{"client.id", text(func(o *Options) *string { return &o.ClientID })},
	{"client.rack", text(func(o *Options) *string { return &o.ClientRack })},
	{"enable.auto.commit", flag(func(o *Options) *bool { return &o.DisableAutoCommit }, true)},
	{"fetch.max.bytes", number(func(o *Options) *int32 { return &o.FetchMaxBytes })},
	{"fetch.max.wait.ms", millis(func(o *Options) *time.Duration { return &o.FetchMaxWait })},
	{"fetch.min.bytes", number(func(o *Options) *int32 { return &o.FetchMinBytes })},
	{"group.id", text(func(o *Options) *string { return &o.GroupID })},
	{"group.instance.id", text(func(o *Options) *string { return &o.GroupInstanceID })},
	{"group.protocol", func(o *Options, v string) error { o.Protocol = Protocol(v); return o.checkProtocol() }},
	{"group.remote.assignor", text(func(o *Options) *string { return &o.RemoteAssignor })},
	{"heartbeat.interval.ms", millis(func(o *Options) *time.Duration { return &o.HeartbeatInterval })},
	{"isolation.level", func(o *Options, v string) error {
		switch v {
		case "read_committed":
			o.Isolation = ReadCommitted
		case "read_uncommitted":
			o.Isolation = ReadUncommitted
		default:
			return errors.New("read_committed or read_uncommitted")
		}
		return nil
	}},
	{"max.partition.fetch.bytes", number(func(o *Options) *int32 { return &o.MaxPartitionFetchBytes })},
	{"max.poll.interval.ms", millis(func(o *Options) *time.Duration { return &o.MaxPollInterval })},
	{"max.poll.records", func(o *Options, v string) error {
		var n int32
		err := number(func(*Options) *int32 { return &n })(o, v)
		o.MaxPollRecords = int(n)
		return err
	}},
	{"metadata.max.age.ms", millis(func(o *Options) *time.Duration { return &o.MetadataMaxAge })},
	{"partition.assignment.strategy", func(o *Options, v string) error {
		o.Assignors = nil
		for _, name := range list(v) {
			o.Assignors = append(o.Assignors, Assignor(name))
		}
		return o.checkAssignors()
	}},
	{"request.timeout.ms", millis(func(o *Options) *time.Duration { return &o.RequestTimeout })},
	{"retry.backoff.max.ms", millis(func(o *Options) *time.Duration { return &o.RetryBackoffMax })},
	{"retry.backoff.ms", millis(func(o *Options) *time.Duration { return &o.RetryBackoff })},
	{"session.timeout.ms", millis(func(o *Options) *time.Duration { return &o.SessionTimeout })},
}

// ErrUnknownProperty is returned by Set for a name that is none of Kafka's, or that has no meaning here.
var ErrUnknownProperty = errors.New("not a setting that this consumer uses")

// Set takes a setting by Kafka's name, as a properties file has it.
func (o *Options) Set(name, value string) error {
	i, ok := slices.BinarySearchFunc(properties, name, func(p property, name string) int { return strings.Compare(p.name, name) })
	if !ok {
		return fmt.Errorf("consumer: %s: %w", name, ErrUnknownProperty)
	}
	if err := properties[i].set(o, value); err != nil {
		return fmt.Errorf("consumer: %s=%s: %w", name, value, err)
	}
	return nil
}

func (o *Options) checkProtocol() error {
	if o.Protocol != "" && o.Protocol != Classic && o.Protocol != ConsumerProtocol {
		return fmt.Errorf("group.protocol %s: classic or consumer", o.Protocol)
	}
	return nil
}

func (o *Options) checkAssignors() error {
	for _, a := range o.Assignors {
		if _, ok := balancers[a]; !ok {
			return fmt.Errorf("partition.assignment.strategy %s: range, roundrobin, sticky or cooperative-sticky", a)
		}
	}
	return nil
}

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	for _, check := range []error{o.checkProtocol(), o.checkAssignors()} {
		if check != nil {
			return fmt.Errorf("consumer: %w", check)
		}
	}
	subscribed := len(o.Topics) > 0 || o.TopicPattern != nil
	switch {
	case len(o.BootstrapServers) == 0:
		return errors.New("consumer: bootstrap.servers is empty: name a broker as host:port")
	case len(o.Topics) > 0 && o.TopicPattern != nil:
		return errors.New("consumer: Topics and TopicPattern exclude each other")
	case subscribed && o.GroupID == "":
		return errors.New("consumer: a subscription needs a group.id; without a group use Assign")
	case o.Reset.kind == resetByDuration && o.Reset.back < 0:
		return errors.New("consumer: auto.offset.reset: a negative duration")
	}
	fill(&o.ClientID, "stele-consumer")
	fill(&o.Protocol, Classic)
	if len(o.Assignors) == 0 {
		o.Assignors = []Assignor{Range, CooperativeSticky}
	}
	fill(&o.AutoCommitInterval, 5*time.Second)
	fill(&o.FetchMinBytes, 1)
	fill(&o.FetchMaxWait, 500*time.Millisecond)
	fill(&o.FetchMaxBytes, 50<<20)
	fill(&o.MaxPartitionFetchBytes, 1<<20)
	fill(&o.MaxPollRecords, 500)
	fill(&o.MaxPollInterval, 5*time.Minute)
	fill(&o.SessionTimeout, 45*time.Second)
	fill(&o.HeartbeatInterval, min(3*time.Second, o.SessionTimeout/3))
	fill(&o.RequestTimeout, 30*time.Second)
	fill(&o.RetryBackoff, 100*time.Millisecond)
	fill(&o.RetryBackoffMax, max(time.Second, o.RetryBackoff))
	fill(&o.MetadataMaxAge, 5*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for name, d := range map[string]time.Duration{
		"auto.commit.interval.ms": o.AutoCommitInterval, "fetch.max.wait.ms": o.FetchMaxWait, "max.poll.interval.ms": o.MaxPollInterval,
		"session.timeout.ms": o.SessionTimeout, "heartbeat.interval.ms": o.HeartbeatInterval, "request.timeout.ms": o.RequestTimeout,
		"retry.backoff.ms": o.RetryBackoff, "metadata.max.age.ms": o.MetadataMaxAge,
	} {
		if d < 0 {
			return fmt.Errorf("consumer: %s: negative", name)
		}
	}
	if o.FetchMinBytes < 0 || o.FetchMaxBytes < 0 || o.MaxPartitionFetchBytes < 0 || o.MaxPollRecords < 0 {
		return errors.New("consumer: a negative number of bytes or records")
	}
	return nil
}

func fill[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}
