package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is one record as it must come back.
type Record struct {
	Offset    int64
	Epoch     int32
	Timestamp int64
	Key       *string
	Value     *string
	Headers   []string `json:",omitempty"`
	Codec     uint8    `json:",omitempty"`
}

// Partition is what clients can see of one partition.
type Partition struct {
	LogStart, End int64
	Records       []Record
	// Committed are the offsets that a consumer with isolation.level=read_committed gets, where there are transactions.
	Committed []int64 `json:",omitempty"`
}

// Topic is what clients can see of one topic.
type Topic struct {
	ID         string
	Configs    map[string]string `json:",omitempty"`
	Partitions []Partition
}

// Commit is one committed offset.
type Commit struct {
	Topic     string
	Partition int32
	Offset    int64
	Epoch     int32
	Metadata  string
}

// Group is a classic group with its commits.
type Group struct {
	State, Protocol string
	Members         []string `json:",omitempty"`
	Commits         []Commit `json:",omitempty"`
}

// State is all that must be the same before and after a take-over.
type State struct {
	ClusterID string
	Broker    int32
	Topics    map[string]Topic
	Groups    map[string]Group
	// BrokerConfigs are the dynamic settings of the broker and of all brokers.
	BrokerConfigs map[string]string `json:",omitempty"`
	Features      map[string]int16  // finalized
	LogDirs       map[string]int64  // sizes of partitions
}

// Observe reads all that clients can see, but for topics that are internal or still empty because they are new.
func Observe(ctx context.Context, addr string, groups ...string) (State, error) {
	s := State{Topics: map[string]Topic{}, Groups: map[string]Group{}, BrokerConfigs: map[string]string{}, Features: map[string]int16{}, LogDirs: map[string]int64{}}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return s, err
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	meta, err := admin.Metadata(ctx)
	if err != nil {
		return s, err
	}
	s.ClusterID, s.Broker = meta.Cluster, meta.Brokers[0].NodeID
	starts, err := admin.ListStartOffsets(ctx)
	if err != nil {
		return s, err
	}
	ends, err := admin.ListEndOffsets(ctx)
	if err != nil {
		return s, err
	}
	for _, name := range slices.Sorted(maps.Keys(meta.Topics)) {
		if strings.HasPrefix(name, "__") {
			continue
		}
		topic := Topic{ID: meta.Topics[name].ID.String(), Configs: map[string]string{}}
		configs, err := admin.DescribeTopicConfigs(ctx, name)
		if err != nil {
			return s, err
		}
		for _, resource := range configs {
			dynamic(resource, topic.Configs)
		}
		for p := range int32(len(meta.Topics[name].Partitions)) {
			from, _ := starts.Lookup(name, p)
			to, _ := ends.Lookup(name, p)
			part := Partition{LogStart: from.Offset, End: to.Offset}
			var transactional bool
			if part.Records, transactional, err = read(ctx, addr, name, p, from.Offset, to.Offset, false); err != nil {
				return s, fmt.Errorf("%s-%d: %w", name, p, err)
			}
			if transactional {
				committed, _, err := read(ctx, addr, name, p, from.Offset, to.Offset, true)
				if err != nil {
					return s, fmt.Errorf("%s-%d, read_committed: %w", name, p, err)
				}
				for _, r := range committed {
					part.Committed = append(part.Committed, r.Offset)
				}
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		s.Topics[name] = topic
	}
	for _, group := range groups {
		if s.Groups[group], err = observeGroup(ctx, admin, group); err != nil {
			return s, fmt.Errorf("group %s: %w", group, err)
		}
	}
	for _, broker := range []int32{s.Broker, -1} {
		ids := []int32{broker}
		if broker < 0 {
			ids = nil
		}
		configs, err := admin.DescribeBrokerConfigs(ctx, ids...)
		if err != nil {
			return s, err
		}
		for _, resource := range configs {
			dynamic(resource, s.BrokerConfigs)
		}
	}
	return s, observeFeatures(ctx, cl, &s)
}

func dynamic(resource kadm.ResourceConfig, into map[string]string) {
	for _, entry := range resource.Configs {
		if source := entry.Source.String(); strings.HasPrefix(source, "DYNAMIC_") && !strings.Contains(source, "LOGGER") {
			into[entry.Key] = entry.MaybeValue()
		}
	}
}

func observeGroup(ctx context.Context, admin *kadm.Client, name string) (Group, error) {
	described, err := admin.DescribeGroups(ctx, name)
	if err != nil {
		return Group{}, err
	}
	d := described[name]
	if d.Err != nil {
		return Group{}, d.Err
	}
	g := Group{State: d.State, Protocol: d.Protocol}
	for _, m := range d.Members {
		instance := ""
		if m.InstanceID != nil {
			instance = *m.InstanceID
		}
		g.Members = append(g.Members, m.MemberID+" "+instance)
	}
	slices.Sort(g.Members)
	g.Commits, err = commits(ctx, admin, name)
	return g, err
}

func commits(ctx context.Context, admin *kadm.Client, name string) (out []Commit, err error) {
	offsets, err := admin.FetchOffsets(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, o := range offsets.Sorted() {
		out = append(out, Commit{o.Topic, o.Partition, o.At, o.LeaderEpoch, o.Metadata})
	}
	return out, nil
}

// Commits are the committed offsets of a group of any kind.
func Commits(ctx context.Context, addr, group string) ([]Commit, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return commits(ctx, kadm.NewClient(cl), group)
}

func observeFeatures(ctx context.Context, cl *kgo.Client, s *State) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 4, "observe", "1"
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	for _, f := range resp.FinalizedFeatures {
		s.Features[f.Name] = f.MaxVersionLevel
	}
	admin := kadm.NewClient(cl)
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return err
	}
	dirs.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			if !strings.HasPrefix(p.Topic, "__") {
				s.LogDirs[fmt.Sprintf("%s-%d", p.Topic, p.Partition)] = p.Size
			}
		})
	})
	return nil
}

// read is every record of a partition between two offsets, and whether some belong to transactions.
func read(ctx context.Context, addr, topic string, partition int32, from, to int64, committed bool) (found []Record, transactional bool, err error) {
	if from >= to {
		return nil, false, nil
	}
	opts := []kgo.Opt{kgo.SeedBrokers(addr), kgo.KeepControlRecords(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}})}
	if committed {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, false, err
	}
	defer cl.Close()
	// The last offset is a record or a marker: no topic here was compacted up to its end.
	for next := from; next < to; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, false, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			transactional = transactional || r.Attrs.IsTransactional()
			if r.Attrs.IsControl() {
				return
			}
			got := Record{Offset: r.Offset, Epoch: r.LeaderEpoch, Timestamp: r.Timestamp.UnixMilli(), Key: text(r.Key), Value: text(r.Value), Codec: r.Attrs.CompressionType()}
			for _, h := range r.Headers {
				got.Headers = append(got.Headers, h.Key+"="+string(h.Value))
			}
			found = append(found, got)
		})
	}
	return found, transactional, nil
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// Golden is what is known of a packed directory.
type Golden struct {
	State    State
	Producer Producer
	// Consumer are the commits of the group of the consumer protocol.
	Consumer []Commit
}
