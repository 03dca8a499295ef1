//go:build interop

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// record is a record as a client sees it. A nil key, value or header value is null, an empty one is not.
type record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"` // milliseconds; 0 when producing lets the client choose
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// batch is what one produce call sends.
type batch struct {
	topic   string
	codec   string // none, gzip, snappy, lz4, zstd
	records []record

	transactionalID string // "" for no transaction; otherwise all records are one transaction,
	abort           bool   // aborted at the end or committed

	idempotent bool // with a producer id and sequence numbers
	maxBytes   int  // the limit that the client sets itself on records and batches; 0 for its own
}

// query is what one consume call reads: the topic from its beginning to its end.
type query struct {
	topic     string
	count     int // how many records there are, for clients that cannot tell the end
	committed bool
	binary    bool // records hold bytes that are not text
	maxBytes  int  // how large a record it has to be ready for; 0 for its own limit
}

// client is somebody's client. Each call connects anew. A call returns errCannot when the client has no way
// to do what is asked; otherwise it tries, and an error says what happened.
type client interface {
	name() string
	produce(ctx context.Context, b batch) error
	consume(ctx context.Context, q query) ([]record, error)
	// group joins a group, reads exactly count records, commits, leaves, and returns the records.
	group(ctx context.Context, topic, group string, count int) ([]record, error)
	// join starts a member of a group that consumes and commits until it leaves. The protocol is classic or
	// consumer.
	join(ctx context.Context, topic, group, protocol string) (member, error)
}

type member interface {
	records() ([]record, error) // all that it has been given so far
	leave() ([]record, error)   // leaves the group and returns all that it was given
}

var errCannot = errors.New("the client has no way to do this")

// compare says how got differs from want, "" when it does not. Offsets and timestamps count when exact is set.
func compare(want, got []record, exact bool) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%d records instead of %d:\n%s", len(got), len(want), show(got))
	}
	for i := range want {
		w, g := want[i], got[i]
		switch {
		case w.Partition != g.Partition:
			return fmt.Sprintf("record %d: partition %d instead of %d", i, g.Partition, w.Partition)
		case exact && w.Offset != g.Offset:
			return fmt.Sprintf("record %d: offset %d instead of %d", i, g.Offset, w.Offset)
		case exact && w.Timestamp != g.Timestamp:
			return fmt.Sprintf("record %d: timestamp %d instead of %d", i, g.Timestamp, w.Timestamp)
		case !same(w.Key, g.Key):
			return fmt.Sprintf("record %d: key %s instead of %s", i, quote(g.Key), quote(w.Key))
		case !same(w.Value, g.Value):
			return fmt.Sprintf("record %d: value %s instead of %s", i, quote(g.Value), quote(w.Value))
		case len(w.Headers) != len(g.Headers):
			return fmt.Sprintf("record %d: %d headers instead of %d", i, len(g.Headers), len(w.Headers))
		}
		for j := range w.Headers {
			if w.Headers[j].Name != g.Headers[j].Name || !same(w.Headers[j].Value, g.Headers[j].Value) {
				return fmt.Sprintf("record %d: header %d is %q=%s instead of %q=%s", i, j, g.Headers[j].Name,
					quote(g.Headers[j].Value), w.Headers[j].Name, quote(w.Headers[j].Value))
			}
		}
	}
	return ""
}

// same tells null from empty.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func quote(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 60:
		return fmt.Sprintf("%q... (%d bytes)", b[:60], len(b))
	}
	return fmt.Sprintf("%q", b)
}

func show(records []record) string {
	var s strings.Builder
	for i, r := range records {
		if i == 12 {
			fmt.Fprintf(&s, "  ... %d more\n", len(records)-i)
			break
		}
		fmt.Fprintf(&s, "  %d/%d %s = %s, %d headers\n", r.Partition, r.Offset, quote(r.Key), quote(r.Value), len(r.Headers))
	}
	return s.String()
}

// byPosition sorts records by partition and offset.
func byPosition(records []record) []record {
	sort.SliceStable(records, func(i, j int) bool {
		if records[i].Partition != records[j].Partition {
			return records[i].Partition < records[j].Partition
		}
		return records[i].Offset < records[j].Offset
	})
	return records
}

// createTopic makes a topic and returns when it has leaders.
func createTopic(ctx context.Context, addr, topic string, partitions int32, configs map[string]string) error {
	// A broker hears of a topic a moment after the controller has made it, and what it said before that is not
	// to be believed for seconds.
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := adm.CreateTopic(ctx, partitions, 1, values, topic); err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return eventually(ctx, func() error {
		details, err := adm.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		d := details[topic]
		if d.Err != nil {
			return d.Err
		}
		if len(d.Partitions) != int(partitions) {
			return fmt.Errorf("%s has %d partitions", topic, len(d.Partitions))
		}
		for _, p := range d.Partitions {
			if p.Err != nil || p.Leader < 0 {
				return fmt.Errorf("%s-%d has no leader: %v", topic, p.Partition, p.Err)
			}
		}
		return nil
	})
}

// eventually repeats check until it returns nil or the context ends, and then returns its last error.
func eventually(ctx context.Context, check func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}
