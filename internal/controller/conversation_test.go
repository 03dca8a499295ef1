package controller

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// Conversations between brokers and a controller, with the exact records and replies of every step. Each
// file says what it shows. Commands: register, heartbeat, create, isr, lost, refused, advance, crash.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			k := newCluster(t)
			start := k.now
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				return k.converse(t, d, start)
			})
		})
	}
}

func (k *cluster) converse(t *testing.T, d *datadriven.TestData, start time.Time) string {
	var broker, incarnation, ms, prev, by int
	prev, incarnation = -1, 1
	var topic string
	var ids []int
	d.MaybeScanArgs(t, "broker", &broker)
	d.MaybeScanArgs(t, "incarnation", &incarnation)
	d.MaybeScanArgs(t, "ms", &ms)
	d.MaybeScanArgs(t, "previous-epoch", &prev)
	d.MaybeScanArgs(t, "topic", &topic)
	d.MaybeScanArgs(t, "by", &by)
	var list string
	if d.MaybeScanArgs(t, "replicas", &list) || d.MaybeScanArgs(t, "isr", &list) {
		for _, part := range strings.Split(list, "/") {
			var id int
			if _, err := fmt.Sscan(part, &id); err != nil {
				t.Fatal(d.Pos, err)
			}
			ids = append(ids, id)
		}
	}
	members := make([]int32, len(ids))
	for i, id := range ids {
		members[i] = int32(id)
	}
	switch d.Cmd {
	case "register":
		req := registration(int32(broker), byte(incarnation))
		req.PreviousBrokerEpoch = int64(prev)
		return k.tell(k.c.RegisterBroker(k.at(), req))
	case "heartbeat":
		return k.tell(k.heartbeat(int32(broker), func(h *kmsg.BrokerHeartbeatRequest) {
			h.WantFence, h.WantShutdown = d.HasArg("want-fence"), d.HasArg("want-shutdown")
			if d.HasArg("behind") {
				h.CurrentMetadataOffset = k.broker(int32(broker)).RegisteredAt - 1
			}
		}))
	case "create":
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{withReplicas(createRequest(topic, -1, -1), 0, members...)}
		r := k.c.CreateTopics(k.at(), req)
		r.Reply = nil
		return k.tell(r)
	case "isr":
		image, _ := k.c.Image().Topic(topic)
		r := k.c.AlterPartition(k.at(), alterRequest(k, int32(by), image.ID, k.partition(topic, 0), members...))
		if r.Err == nil && r.Reply.(AlterPartitionReply).Partitions[0].Err != nil {
			r.Err = r.Reply.(AlterPartitionReply).Partitions[0].Err
		}
		r.Reply = nil
		return k.tell(r)
	case "lost":
		k.c.BrokerConnectionLost(k.now, int32(broker))
		return ""
	case "refused":
		k.c.BrokerListenerRefused(int32(broker))
		return ""
	case "crash":
		k.c.Deactivate()
		return k.tell(k.c.Activate(k.at(), metadata.LevelLatest))
	case "advance":
		return k.advance(time.Duration(ms)*time.Millisecond, start)
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

// advance lets time pass from deadline to deadline and tells what happens; no-op records are left out.
func (k *cluster) advance(by time.Duration, start time.Time) string {
	end := k.now.Add(by)
	var out strings.Builder
	for {
		at, ok := k.c.NextDeadline()
		if !ok || at.After(end) {
			k.now = end
			return out.String()
		}
		k.now = at
		r := k.c.Tick(k.at())
		if len(r.Records) == 1 && r.Records[0].RecordKey() == (*metadata.NoOpRecord)(nil).RecordKey() {
			k.apply(r)
			continue
		}
		if text := k.tell(r); text != "" {
			fmt.Fprintf(&out, "at %v\n%s", k.now.Sub(start), text)
		}
	}
}

// tell applies a result and says what it was.
func (k *cluster) tell(r Result) string {
	var out strings.Builder
	for _, rec := range r.Records {
		fmt.Fprintf(&out, "record  %s\n", k.describe(rec))
	}
	if r.Err != nil {
		fmt.Fprintf(&out, "error   %v\n", r.Err)
	}
	if r.Reply != nil {
		fmt.Fprintf(&out, "reply   %+v\n", r.Reply)
	}
	k.apply(r)
	return out.String()
}

func (k *cluster) describe(rec metadata.Record) string {
	name := func(id metadata.UUID) string {
		if t, ok := k.c.Image().TopicByID(id); ok {
			return t.Name
		}
		return "?"
	}
	switch r := rec.(type) {
	case *metadata.RegisterBrokerRecord:
		return fmt.Sprintf("register broker %d, fenced %v", r.BrokerID, r.Fenced)
	case *metadata.BrokerRegistrationChangeRecord:
		switch {
		case r.Fenced > 0:
			return fmt.Sprintf("fence %d", r.BrokerID)
		case r.Fenced < 0:
			return fmt.Sprintf("unfence %d", r.BrokerID)
		}
		return fmt.Sprintf("controlled shutdown of %d", r.BrokerID)
	case *metadata.PartitionRecord:
		return fmt.Sprintf("partition %d: replicas %v isr %v leader %d", r.PartitionID, r.Replicas, r.ISR, r.Leader)
	case *metadata.PartitionChangeRecord:
		out := fmt.Sprintf("%s-%d:", name(r.TopicID), r.PartitionID)
		if p, ok := k.c.Image().Partition(name(r.TopicID), r.PartitionID); ok {
			after := p.Change(r)
			out += fmt.Sprintf(" isr %v leader %d leader epoch %d partition epoch %d", after.ISR, after.Leader, after.LeaderEpoch, after.PartitionEpoch)
			if !slices.Equal(after.Replicas, p.Replicas) {
				out += fmt.Sprintf(" replicas %v", after.Replicas)
			}
		}
		return out
	case *metadata.TopicRecord:
		return "topic " + r.Name
	}
	return metadata.RecordName(rec)
}
