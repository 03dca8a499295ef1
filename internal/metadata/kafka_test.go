package metadata

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kafkaDir = "../../test/reference/testdata/kafka-4.4.0/datadir"

type logged struct {
	offset     int64
	control    bool
	key, value []byte
}

// readBatches walks the record batches of a file that Apache Kafka wrote.
func readBatches(t *testing.T, path string) (out []logged) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) >= 61 {
		base := int64(binary.BigEndian.Uint64(b))
		size := 12 + int(binary.BigEndian.Uint32(b[8:]))
		if base == 0 && size == 12 {
			break // preallocated rest
		}
		control := b[22]&0x20 != 0
		count := int(binary.BigEndian.Uint32(b[57:]))
		body := b[61:size]
		varint := func() int {
			v, n := binary.Varint(body)
			body = body[n:]
			return int(v)
		}
		bytesOf := func() []byte {
			n := varint()
			if n < 0 {
				return nil
			}
			v := body[:n]
			body = body[n:]
			return v
		}
		for range count {
			varint()
			body = body[1:]
			varint()
			delta := varint()
			key, value := bytesOf(), bytesOf()
			if headers := varint(); headers != 0 {
				t.Fatal("a metadata record has headers")
			}
			out = append(out, logged{base + int64(delta), control, key, value})
		}
		b = b[size:]
	}
	return out
}

// replayFile decodes each record of a log or snapshot, checks that it encodes to the same bytes, and applies it.
func replayFile(t *testing.T, path string) *Image {
	t.Helper()
	d := NewDelta(EmptyImage())
	last := int64(-1)
	for _, l := range readBatches(t, path) {
		last = l.offset
		if l.control {
			typ, err := ParseControlKey(l.key)
			if err != nil {
				t.Fatal(err)
			}
			rec, err := DecodeControl(typ, l.value)
			if err != nil {
				t.Fatalf("offset %d: %v", l.offset, err)
			}
			if again := AppendControl(nil, rec); !bytes.Equal(again, l.value) || !bytes.Equal(ControlKey(typ), l.key) {
				t.Errorf("offset %d: control record %x encodes to %x", l.offset, l.value, again)
			}
			continue
		}
		rec, version, err := DecodeRecord(l.value)
		if err != nil {
			t.Fatalf("offset %d: %v", l.offset, err)
		}
		again, err := AppendRecord(nil, rec, version)
		if err != nil || !bytes.Equal(again, l.value) {
			t.Errorf("offset %d: %s %x encodes to %x, %v", l.offset, RecordName(rec), l.value, again, err)
		}
		if want := LevelLatest.RecordVersion(rec); want != version {
			t.Errorf("offset %d: %s is at version %d, we would write %d", l.offset, RecordName(rec), version, want)
		}
		if err := d.Replay(rec, l.offset); err != nil {
			t.Fatal(err)
		}
	}
	return d.Apply(last, 1)
}

// A metadata log and snapshots that Apache Kafka 4.4 wrote are read record by record, are written back to
// the same bytes, and make the image that the workload describes.
func TestM010_kafka_log_and_snapshots(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(kafkaDir, "__cluster_metadata-0")
	img := replayFile(t, filepath.Join(dir, "00000000000000000000.log"))
	if img.MetadataVersion() != 33 || img.Feature(FeatureGroup) != 1 || img.Feature(FeatureTransaction) != 2 || !img.ELREnabled() {
		t.Error("features are not those of a new 4.4 cluster")
	}
	if b, ok := img.Broker(1); !ok || !b.Fenced {
		t.Errorf("broker 1 is %+v", b)
	}
	if topic, ok := img.Topic("deleted"); !ok || topic.NumPartitions() != 2 {
		t.Error("topic deleted must have two partitions")
	}
	if _, ok := img.Topic("gone"); ok {
		t.Error("topic gone is still there")
	}
	if p, ok := img.Partition("shapes", 0); !ok || p.Leader != NoLeader || len(p.ISR) != 0 || len(p.ELR) != 1 {
		t.Errorf("shapes-0 is %+v", p)
	}
	if v, _ := img.ConfigValue(ConfigResource{ResourceTopic, "idempotent"}, "max.message.bytes"); v != "1000000" {
		t.Error("max.message.bytes of idempotent is " + v)
	}
	if _, ok := img.ConfigValue(ConfigResource{ResourceTopic, "shapes"}, "message.timestamp.type"); ok {
		t.Error("a deleted setting is still there")
	}
	if v, ok := img.ClientQuota([]QuotaEntity{{EntityType: "user", EntityName: new("alice")}}, "producer_byte_rate"); !ok || v != 1048576 {
		t.Error("alice's quota is", v)
	}
	if img.ACLs().Len() != 1 || img.ScramCredentials().Len() != 1 {
		t.Error("access rules or credentials are missing")
	}
	if img.NextProducerID() == 0 {
		t.Error("no producer ids were given out")
	}
	replayFile(t, filepath.Join(dir, "00000000000000000000-0000000000.checkpoint"))
	snapshots, _ := filepath.Glob(filepath.Join(dir, "*-0000000001.checkpoint"))
	if len(snapshots) != 1 {
		t.Fatal("snapshot not found")
	}
	var end int64
	for _, digit := range strings.Split(filepath.Base(snapshots[0]), "-")[0] {
		end = end*10 + int64(digit-'0')
	}
	upTo := NewDelta(EmptyImage())
	for _, l := range readBatches(t, filepath.Join(dir, "00000000000000000000.log")) {
		if l.control || l.offset >= end {
			continue
		}
		rec, _, err := DecodeRecord(l.value)
		if err != nil {
			t.Fatal(err)
		}
		if err := upTo.Replay(rec, l.offset); err != nil {
			t.Fatal(err)
		}
	}
	sameState(t, replayFile(t, snapshots[0]), upTo.Apply(end-1, 1))
}

// Kafka's meta.properties and quorum-state are read, and written so that they say the same.
func TestM009_kafka_side_files(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(kafkaDir, "meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseMetaProperties(text)
	if err != nil || m.Version != 1 || m.ClusterID != "SteleReferenceCluster1" || *m.NodeID != 1 || m.DirectoryID == ZeroUUID {
		t.Fatalf("%+v %v", m, err)
	}
	if again, err := ParseMetaProperties(m.Format()); err != nil || again.DirectoryID != m.DirectoryID || *again.NodeID != 1 {
		t.Fatalf("%+v %v", again, err)
	}
	text, err = os.ReadFile(filepath.Join(kafkaDir, "__cluster_metadata-0", "quorum-state"))
	if err != nil {
		t.Fatal(err)
	}
	q, err := ParseQuorumState(text)
	if err != nil || q.LeaderID != 1 || q.LeaderEpoch != 1 || len(q.CurrentVoters) != 1 {
		t.Fatalf("%+v %v", q, err)
	}
	if got := q.Format(); !bytes.Equal(got, bytes.TrimSpace(text)) {
		t.Errorf("%s\nbecame\n%s", text, got)
	}
}
