//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// judge holds a ledger against what the broker has. It remembers what it read, so that each judgement reads what
// is new and, again, the overlap before it, where a crash can have done harm.
type judge struct {
	t      *testing.T
	node   *node
	ledger *ledger
	topics []string
	logs   map[topicPartition]*seenLog
	epochs map[topicPartition]int32
	// generations are those of the groups that have one member, as they were last seen stable.
	generations   map[string]string
	carried, lost int // how many of them were the same after a restart, and how many not
	// also says what else is wrong, nil: nothing more is looked at.
	also func(context.Context) []string
}

// seenLog is what was read of a partition, by offset.
type seenLog struct {
	keys   []string // "" for an offset without a record
	epochs []int32
	once   map[string]int64 // offsets of the records that may be there once only
	end    int64
}

// overlap is how many offsets before the last known end are read again after a crash.
const overlap = 500

func newJudge(t *testing.T, n *node, l *ledger, topics ...string) *judge {
	return &judge{t: t, node: n, ledger: l, topics: topics, logs: map[topicPartition]*seenLog{}, epochs: map[topicPartition]int32{}, generations: map[string]string{}}
}

// judge checks every promise; whole reads all logs from their beginning.
func (j *judge) judge(when string, whole bool) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	records, commits, faults := j.ledger.promises()
	var wrong []string
	wrong = append(wrong, faults...)
	c := j.node.client()
	defer c.Close()
	admin := kadm.NewClient(c)
	wrong = append(wrong, j.leaderEpochs(ctx, admin)...)
	wrong = append(wrong, j.read(ctx, admin, whole)...)
	wrong = append(wrong, j.acknowledged(records)...)
	wrong = append(wrong, j.offsets(ctx, admin, commits)...)
	if j.also != nil {
		wrong = append(wrong, j.also(ctx)...)
	}
	j.membership(ctx, admin)
	if len(wrong) == 0 {
		return
	}
	more := ""
	if len(wrong) > 20 {
		more = fmt.Sprintf("\nand %d more", len(wrong)-20)
	}
	j.t.Fatalf("%s: %s%s\nthe broker said:\n%s", when, strings.Join(wrong[:min(20, len(wrong))], "\n"), more, j.node.log())
}

// leaderEpochs: the epoch of a partition's leader never falls.
func (j *judge) leaderEpochs(ctx context.Context, admin *kadm.Client) (wrong []string) {
	m, err := admin.Metadata(ctx, j.topics...)
	if err != nil {
		return []string{"metadata: " + err.Error()}
	}
	m.Topics.EachPartition(func(p kadm.PartitionDetail) {
		tp := topicPartition{p.Topic, p.Partition}
		if p.LeaderEpoch < j.epochs[tp] {
			wrong = append(wrong, fmt.Sprintf("%s-%d: leader epoch fell from %d to %d", p.Topic, p.Partition, j.epochs[tp], p.LeaderEpoch))
		}
		j.epochs[tp] = p.LeaderEpoch
	})
	return wrong
}

// read brings the logs up to what the broker has now.
func (j *judge) read(ctx context.Context, admin *kadm.Client, whole bool) (wrong []string) {
	starts, err := listed(ctx, j.topics, admin.ListStartOffsets)
	if err != nil {
		return []string{"log start offsets: " + err.Error()}
	}
	ends, err := listed(ctx, j.topics, admin.ListCommittedOffsets)
	if err != nil {
		return []string{"end offsets: " + err.Error()}
	}
	from := map[string]map[int32]kgo.Offset{}
	left := map[topicPartition]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		tp := topicPartition{end.Topic, end.Partition}
		start, _ := starts.Lookup(end.Topic, end.Partition)
		if end.Err != nil || start.Err != nil || start.Offset != 0 {
			wrong = append(wrong, fmt.Sprintf("%s-%d: from %d (%v) to %d (%v)", end.Topic, end.Partition, start.Offset, start.Err, end.Offset, end.Err))
			return
		}
		seen := j.logs[tp]
		if seen == nil {
			seen = &seenLog{once: map[string]int64{}}
			j.logs[tp] = seen
		}
		at := max(0, seen.end-overlap)
		if whole {
			at = 0
		}
		if end.Offset < seen.end {
			wrong = append(wrong, fmt.Sprintf("%s-%d: the end offset fell from %d to %d", end.Topic, end.Partition, seen.end, end.Offset))
		}
		if end.Offset <= at {
			return
		}
		if from[end.Topic] == nil {
			from[end.Topic] = map[int32]kgo.Offset{}
		}
		from[end.Topic][end.Partition] = kgo.NewOffset().At(at)
		left[tp] = end.Offset
	})
	if len(left) == 0 {
		return wrong
	}
	c := j.node.client(kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50*time.Millisecond))
	defer c.Close()
	last := map[topicPartition]int64{}
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return append(wrong, fmt.Sprintf("reading back did not end: %v are left", left))
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			wrong = append(wrong, fmt.Sprintf("%s-%d: reading back: %v", topic, partition, err))
		})
		fetches.EachRecord(func(r *kgo.Record) {
			tp := topicPartition{r.Topic, r.Partition}
			if before, ok := last[tp]; ok && r.Offset != before+1 {
				wrong = append(wrong, fmt.Sprintf("%s-%d: offset %d follows %d", r.Topic, r.Partition, r.Offset, before))
			}
			last[tp] = r.Offset
			wrong = append(wrong, j.logs[tp].add(r)...)
			if r.Offset+1 >= left[tp] {
				delete(left, tp)
			}
		})
		if len(wrong) > 50 {
			return wrong
		}
	}
	return wrong
}

// listed asks for offsets until nothing retriable is wrong: a leader that was just elected does not know its high watermark
// yet, and one that was just killed may still be named.
func listed(ctx context.Context, topics []string, list func(context.Context, ...string) (kadm.ListedOffsets, error)) (kadm.ListedOffsets, error) {
	for {
		offsets, err := list(ctx, topics...)
		if err == nil {
			err = offsets.Error()
		}
		var answered *kerr.Error
		if err == nil || errors.As(err, &answered) && !answered.Retriable {
			return offsets, err
		}
		select {
		case <-ctx.Done():
			return offsets, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// add notes a record; one that was read before must be the same.
func (s *seenLog) add(r *kgo.Record) (wrong []string) {
	key, at := string(r.Key), fmt.Sprintf("%s-%d offset %d", r.Topic, r.Partition, r.Offset)
	if !valueFits(key, r.Value) {
		wrong = append(wrong, fmt.Sprintf("%s: key %q with a value of another record", at, key))
	}
	if r.Offset < s.end {
		if s.keys[r.Offset] != key || s.epochs[r.Offset] != r.LeaderEpoch {
			wrong = append(wrong, fmt.Sprintf("%s: was %q of epoch %d, is %q of epoch %d", at, s.keys[r.Offset], s.epochs[r.Offset], key, r.LeaderEpoch))
		}
		return wrong
	}
	if r.Offset != s.end {
		return append(wrong, fmt.Sprintf("%s: the log begins at %d", at, s.end))
	}
	if n := len(s.epochs); n > 0 && r.LeaderEpoch < s.epochs[n-1] {
		wrong = append(wrong, fmt.Sprintf("%s: epoch %d follows %d", at, r.LeaderEpoch, s.epochs[n-1]))
	}
	if strings.HasPrefix(key, idempotentPrefix) {
		if first, twice := s.once[key]; twice {
			wrong = append(wrong, fmt.Sprintf("%s: %s was stored twice, first at %d", at, key, first))
		}
		s.once[key] = r.Offset
	}
	s.keys, s.epochs, s.end = append(s.keys, key), append(s.epochs, r.LeaderEpoch), r.Offset+1
	return wrong
}

// acknowledged: every record that was acknowledged is where the answer said.
func (j *judge) acknowledged(records []acked) (wrong []string) {
	for _, r := range records {
		seen := j.logs[r.topicPartition]
		switch {
		case seen == nil:
			wrong = append(wrong, fmt.Sprintf("%s-%d was not read", r.Topic, r.Partition))
		case r.Offset < 0:
			if !slices.Contains(seen.keys, r.Key) {
				wrong = append(wrong, fmt.Sprintf("%s-%d: %s was acknowledged and is missing", r.Topic, r.Partition, r.Key))
			}
		case r.Offset >= seen.end || seen.keys[r.Offset] != r.Key:
			is := "nothing"
			if r.Offset < seen.end {
				is = seen.keys[r.Offset]
			}
			wrong = append(wrong, fmt.Sprintf("%s-%d offset %d: %s was acknowledged there, now there is %s (end %d)", r.Topic, r.Partition, r.Offset, r.Key, is, seen.end))
		}
	}
	return wrong
}

// offsets: no group's offset is behind what the group was told is stored, and each has the epoch it came with.
func (j *judge) offsets(ctx context.Context, admin *kadm.Client, commits map[string]map[topicPartition]commit) (wrong []string) {
	for group, promised := range commits {
		stored, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: offsets: %v", group, err))
			continue
		}
		for tp, want := range promised {
			got, ok := stored.Lookup(tp.Topic, tp.Partition)
			switch {
			case !ok || got.Err != nil:
				wrong = append(wrong, fmt.Sprintf("%s: %s-%d: committed %d, now there is nothing (%v)", group, tp.Topic, tp.Partition, want.Offset, got.Err))
			case got.At < want.Offset:
				wrong = append(wrong, fmt.Sprintf("%s: %s-%d: committed %d, now it is %d", group, tp.Topic, tp.Partition, want.Offset, got.At))
			case got.At == want.Offset && got.LeaderEpoch != want.Epoch, got.LeaderEpoch < want.Epoch:
				wrong = append(wrong, fmt.Sprintf("%s: %s-%d: committed %d of epoch %d, now it is %d of epoch %d", group, tp.Topic, tp.Partition, want.Offset, want.Epoch, got.At, got.LeaderEpoch))
			}
		}
	}
	return wrong
}

// membership counts whether members could carry on as who they were: a restart should cost a group nothing.
func (j *judge) membership(ctx context.Context, admin *kadm.Client) {
	for i := 1; i < 4; i++ {
		group := fmt.Sprintf("group-%d", i)
		described, err := admin.DescribeGroups(ctx, group)
		if err != nil || described[group].State != "Stable" || len(described[group].Members) != 1 {
			continue
		}
		now := described[group].Members[0].MemberID
		if before, ok := j.generations[group]; ok && before == now {
			j.carried++
		} else if ok {
			j.lost++
		}
		j.generations[group] = now
	}
}
