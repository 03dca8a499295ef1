//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// contents is what clients can see of a cluster: all records and all committed offsets.
type contents struct {
	records map[string][]record         // by topic
	commits map[string]map[string]int64 // by group and partition
}

func contentsOf(ctx context.Context, addr string) (contents, error) {
	c := contents{map[string][]record{}, map[string]map[string]int64{}}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return c, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return c, err
	}
	for _, topic := range topics.Names() {
		if strings.HasPrefix(topic, "__") {
			continue
		}
		got, err := franz{addr}.consume(ctx, query{topic: topic})
		if err != nil {
			return c, fmt.Errorf("%s: %w", topic, err)
		}
		c.records[topic] = byPosition(got)
	}
	groups, err := adm.ListGroups(ctx)
	if err != nil {
		return c, err
	}
	for _, group := range groups.Groups() {
		offsets, err := adm.FetchOffsets(ctx, group)
		if err != nil {
			return c, err
		}
		c.commits[group] = map[string]int64{}
		offsets.Each(func(o kadm.OffsetResponse) { c.commits[group][fmt.Sprintf("%s-%d", o.Topic, o.Partition)] = o.At })
	}
	return c, nil
}

// TestS030_kafka_takes_over: Apache Kafka, started on the data directory of a stopped node, has its topics with
// every record, its groups with every committed offset, and carries on from there.
func TestS030_kafka_takes_over(t *testing.T) {
	if onKafka() {
		t.Skip("Apache Kafka does not take over from itself here")
	}
	target := newTarget(t, "metadata.log.max.record.bytes.between.snapshots=4000")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := mixedWorkload(ctx, t, target); err != nil {
		t.Fatal(err)
	}
	before, err := contentsOf(ctx, target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if len(before.records) < 5 || len(before.commits["dump-group"]) == 0 {
		t.Fatalf("the workload left %d topics and the groups %v", len(before.records), before.commits)
	}
	if err := target.Stop(); err != nil {
		t.Fatal(err)
	}

	s := target.(*stele)
	node := &reference.Node{Dir: t.TempDir(), Port: s.port, ControllerPort: s.cport}
	if err := os.Symlink(target.Data(), filepath.Join(node.Dir, "data")); err != nil {
		t.Fatal(err)
	}
	settings := "offsets.topic.num.partitions=3\ntransaction.state.log.num.partitions=3\n"
	if err := os.WriteFile(filepath.Join(node.Dir, "extra.properties"), []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	start, done := context.WithTimeout(ctx, 90*time.Second)
	defer done()
	if err := node.Start(start); err != nil {
		text, _ := os.ReadFile(filepath.Join(node.Dir, "server.log"))
		t.Fatalf("%v\n%s", err, tail(string(text), 40))
	}
	t.Cleanup(node.Kill)

	check := func(name string, f func() error) {
		err := f()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		results.add("kafka-server", name, err == nil)
	}
	var after contents
	check("takes-over", func() error {
		var err error
		after, err = contentsOf(ctx, node.Addr())
		return err
	})
	check("records", func() error {
		var err error
		for topic, want := range before.records {
			if how := compare(want, after.records[topic], true); how != "" {
				err = errors.Join(err, fmt.Errorf("%s: %s", topic, how))
			}
		}
		if len(after.records) != len(before.records) {
			err = errors.Join(err, fmt.Errorf("%d topics instead of %d", len(after.records), len(before.records)))
		}
		return err
	})
	check("committed-offsets", func() error {
		if was, is := fmt.Sprint(before.commits), fmt.Sprint(after.commits); was != is {
			return fmt.Errorf("%s instead of %s", is, was)
		}
		return nil
	})
	check("carries-on", func() error {
		f := franz{node.Addr()}
		more := plainRecords("more")[:3]
		if err := f.produce(ctx, batch{topic: "dump-none", codec: "none", records: more}); err != nil {
			return err
		}
		from := before.commits["dump-group"]["dump-none-0"]
		want := append(before.records["dump-none"][from:], more...)
		got, err := f.group(ctx, "dump-none", "dump-group", len(want))
		if err != nil {
			return err
		}
		if got[0].Offset != from {
			return fmt.Errorf("the group goes on at offset %d instead of %d", got[0].Offset, from)
		}
		return differ("dump-none", compare(want, got, false))
	})
}
