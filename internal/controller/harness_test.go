package controller

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

const clusterID = "stele-test-cluster"

// cluster drives a controller the way its host does: each result is replayed and, unless held, committed.
type cluster struct {
	t    testing.TB
	c    *Controller
	now  time.Time
	next int64
	hold bool
	log  []metadata.Record
}

func newCluster(t testing.TB, sets ...string) *cluster {
	t.Helper()
	static, _, err := config.Parse(config.Sources{Set: sets})
	if err != nil {
		t.Fatal(err)
	}
	k := &cluster{t: t, now: time.Unix(1_700_000_000, 0), next: 1}
	k.c = New(Options{NodeID: 1, ClusterID: clusterID, Static: static, Rand: rand.New(rand.NewPCG(1, 2))})
	k.apply(k.c.Activate(k.at(), metadata.LevelLatest))
	return k
}

func (k *cluster) at() At { return At{Now: k.now, Next: k.next} }

// apply appends the records of a result and returns it.
func (k *cluster) apply(r Result) Result {
	k.t.Helper()
	if len(r.Records) == 0 {
		return r
	}
	k.replay(r.Records)
	return r
}

func (k *cluster) replay(recs []metadata.Record) {
	k.t.Helper()
	last := k.next + int64(len(recs)) - 1
	if err := k.c.Replay(k.next, last, 1, recs); err != nil {
		k.t.Fatal(err)
	}
	k.log = append(k.log, recs...)
	k.next = last + 1
	if !k.hold {
		k.c.CommittedTo(k.next)
	}
}

// must applies a result that must not fail as a whole.
func (k *cluster) must(r Result) Result {
	k.t.Helper()
	if r.Err != nil {
		k.t.Fatal(r.Err)
	}
	return k.apply(r)
}

// dirOf is the one log directory of a broker in these tests.
func dirOf(id int32) metadata.UUID { return metadata.UUID{0: 0xd0, 1: byte(id)} }

func registration(id int32, incarnation byte) *kmsg.BrokerRegistrationRequest {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version = 4
	req.BrokerID, req.ClusterID = id, clusterID
	req.IncarnationID = metadata.UUID{0: incarnation, 1: byte(id)}
	req.Listeners = []kmsg.BrokerRegistrationRequestListener{{Name: "PLAINTEXT", Host: "b", Port: 9092}}
	for _, f := range metadata.SupportedFeatures() {
		feature := kmsg.BrokerRegistrationRequestFeature{Name: f.Name, MinSupportedVersion: f.Min, MaxSupportedVersion: f.Max}
		if f.Name == metadata.FeatureMetadataVersion {
			req.Features = slices.Insert(req.Features, 0, feature) // tests look for it there
		} else {
			req.Features = append(req.Features, feature)
		}
	}
	req.LogDirs = [][16]byte{dirOf(id)}
	req.PreviousBrokerEpoch = -1
	return req
}

func (k *cluster) heartbeat(id int32, change func(*kmsg.BrokerHeartbeatRequest)) Result {
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch = id, k.broker(id).Epoch
	req.CurrentMetadataOffset = k.next - 1
	if change != nil {
		change(req)
	}
	return k.c.Heartbeat(k.at(), req)
}

func (k *cluster) broker(id int32) *metadata.BrokerRegistration {
	b, ok := k.c.Image().Broker(id)
	if !ok {
		return &metadata.BrokerRegistration{ID: id, Epoch: -1}
	}
	return b
}

// start registers and unfences brokers.
func (k *cluster) start(ids ...int32) {
	k.t.Helper()
	for _, id := range ids {
		k.must(k.c.RegisterBroker(k.at(), registration(id, 1)))
		k.must(k.heartbeat(id, nil))
		if k.broker(id).Fenced {
			k.t.Fatalf("broker %d is still fenced", id)
		}
	}
}

// topic creates a topic whose partitions have these replicas.
func (k *cluster) topic(name string, replicas ...[]int32) *metadata.Topic {
	k.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.CreateTopicsRequestTopic{Topic: name, NumPartitions: -1, ReplicationFactor: -1}
	for i, r := range replicas {
		t.ReplicaAssignment = append(t.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: r})
	}
	req.Topics = append(req.Topics, t)
	r := k.must(k.c.CreateTopics(k.at(), req))
	if err := r.Reply.(CreateTopicsReply).Topics[0].Err; err != nil {
		k.t.Fatal(err)
	}
	topic, _ := k.c.Image().Topic(name)
	return topic
}

func (k *cluster) partition(topic string, id int32) *metadata.Partition {
	k.t.Helper()
	p, ok := k.c.Image().Partition(topic, id)
	if !ok {
		k.t.Fatalf("no partition %s-%d", topic, id)
	}
	return p
}

// kinds names the records in order, shortened.
func kinds(recs []metadata.Record) string {
	var out []string
	for _, rec := range recs {
		out = append(out, strings.TrimSuffix(metadata.RecordName(rec), "Record"))
	}
	return strings.Join(out, " ")
}
