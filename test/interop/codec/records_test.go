//go:build interop

package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
)

// recordsEach is how many random records there are of each kind, version and maker.
const recordsEach = 30

// metadataRecords are all records of the metadata log; TestMetadataRecords sees to it that none is missing.
var metadataRecords = []metadata.Record{
	&metadata.RegisterBrokerRecord{}, &metadata.UnregisterBrokerRecord{}, &metadata.TopicRecord{}, &metadata.PartitionRecord{},
	&metadata.ConfigRecord{}, &metadata.PartitionChangeRecord{}, &metadata.FenceBrokerRecord{}, &metadata.UnfenceBrokerRecord{},
	&metadata.RemoveTopicRecord{}, &metadata.DelegationTokenRecord{}, &metadata.UserScramCredentialRecord{}, &metadata.FeatureLevelRecord{},
	&metadata.ClientQuotaRecord{}, &metadata.ProducerIDsRecord{}, &metadata.BrokerRegistrationChangeRecord{},
	&metadata.AccessControlEntryRecord{}, &metadata.RemoveAccessControlEntryRecord{}, &metadata.NoOpRecord{},
	&metadata.ZkMigrationStateRecord{}, &metadata.RemoveUserScramCredentialRecord{}, &metadata.BeginTransactionRecord{},
	&metadata.EndTransactionRecord{}, &metadata.AbortTransactionRecord{}, &metadata.RemoveDelegationTokenRecord{},
	&metadata.RegisterControllerRecord{}, &metadata.ClearELRRecord{}, &metadata.UnregisterControllerRecord{},
}

// recordRun puts records before the judge.
type recordRun struct {
	t         *testing.T
	questions []question
	kinds     []*recordKind // of each question
	table     []*recordKind
}

type recordKind struct {
	name            string
	versions        int
	byKafka, byOurs int
	failed          int
	// read gives what the codec of ours makes of the bytes, and the bytes that it writes again, nil when those need
	// not be the same.
	read func(version int16, b []byte) (message any, again []byte, err error)
}

func (r *recordRun) kind(name string, read func(version int16, b []byte) (any, []byte, error)) *recordKind {
	k := &recordKind{name: name, read: read}
	r.table = append(r.table, k)
	return k
}

// add asks about version of a class, with records of ours made by record.
func (r *recordRun) add(k *recordKind, class string, version int16, record func(f *filler) []byte) {
	k.versions++
	for i := range recordsEach {
		seed := int64(len(r.questions))
		f := &filler{rand.New(rand.NewPCG(uint64(seed), 2)), version, i%2 == 1}
		r.questions = append(r.questions, question{kind: kindClass, class: class, version: version, seed: seed, strange: f.strange})
		r.kinds = append(r.kinds, k)
		if b := record(f); b != nil {
			r.questions = append(r.questions, question{kind: kindClass, class: class, version: version, bytes: b, strange: f.strange})
			r.kinds = append(r.kinds, k)
		}
	}
}

func (r *recordRun) run() {
	next := 0
	err := startJudge(r.t).ask(r.questions, func(q question, kafka reading, refused error) {
		k := r.kinds[next]
		next++
		err := refused
		if q.bytes == nil {
			k.byKafka++
		} else {
			k.byOurs++
			if err == nil && !bytes.Equal(q.bytes, kafka.bytes) {
				err = fmt.Errorf("Kafka writes other bytes%s", firstDifference(q.bytes, kafka.bytes))
			}
		}
		if err == nil {
			var message any
			var again []byte
			message, again, err = k.read(q.version, kafka.bytes)
			if err == nil && again != nil && !bytes.Equal(again, kafka.bytes) {
				err = fmt.Errorf("other bytes are written again%s", firstDifference(kafka.bytes, again))
			}
			if err == nil {
				err = sameValues(message, kafka.json.Body)
			}
		}
		if err != nil {
			k.failed++
			if k.failed <= 3 {
				r.t.Errorf("%s, %v: %v", k.name, q, err)
			}
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "\n%-38s %8s %9s %9s %7s\n", "record", "versions", "by Kafka", "by Stele", "failed")
	for _, k := range r.table {
		fmt.Fprintf(&s, "%-38s %8d %9d %9d %7d\n", k.name, k.versions, k.byKafka, k.byOurs, k.failed)
	}
	fmt.Print(s.String())
}

// The records of the metadata log, and its control records, which are all there is in snapshots: the same values and
// the same bytes in the codec of ours and in Kafka's classes, in every version, tagged fields that nobody knows
// included.
func TestMetadataRecords(t *testing.T) {
	t.Parallel()
	r := &recordRun{t: t}
	known := map[int16]bool{}
	for _, zero := range metadataRecords {
		known[zero.RecordKey()] = true
		name := metadata.RecordName(zero)
		k := r.kind(name, func(version int16, b []byte) (any, []byte, error) {
			frame := metadataFrame(zero.RecordKey(), version, b)
			rec, got, err := metadata.DecodeRecord(frame)
			if err != nil {
				return nil, nil, err
			}
			again, err := metadata.AppendRecord(nil, rec, got)
			if err != nil || got != version {
				return nil, nil, fmt.Errorf("read as version %d: %w", got, err)
			}
			return rec, again[len(frame)-len(b):], nil
		})
		class := "org.apache.kafka.common.metadata." + strings.NewReplacer("ELR", "Elr", "IDs", "Ids").Replace(name)
		for version := int16(0); ; version++ {
			if _, err := metadata.AppendRecord(nil, zero, version); err != nil {
				break
			}
			r.add(k, class, version, func(f *filler) []byte {
				rec := reflect.New(reflect.TypeOf(zero).Elem())
				f.fill(rec.Elem(), 1)
				b, err := metadata.AppendRecord(nil, rec.Interface().(metadata.Record), version)
				if err != nil {
					t.Fatal(err)
				}
				return b[len(metadataFrame(zero.RecordKey(), version, nil)):]
			})
		}
	}
	for key := range int16(100) {
		_, _, err := metadata.DecodeRecord(metadataFrame(key, 0, nil))
		if !errors.As(err, new(*metadata.UnknownRecordError)) && !known[key] {
			t.Errorf("record %d is known to the codec, and not to this test", key)
		}
	}
	for _, c := range []struct {
		zero  metadata.ControlRecord
		class string
		max   int16
	}{
		{&metadata.LeaderChange{}, "LeaderChangeMessage", 1}, {&metadata.SnapshotHeader{}, "SnapshotHeaderRecord", 0},
		{&metadata.SnapshotFooter{}, "SnapshotFooterRecord", 0}, {&metadata.KRaftVersion{}, "KRaftVersionRecord", 0},
		{&metadata.Voters{}, "VotersRecord", 0},
	} {
		k := r.kind(c.class, func(_ int16, b []byte) (any, []byte, error) {
			rec, err := metadata.DecodeControl(c.zero.ControlType(), b)
			if err != nil {
				return nil, nil, err
			}
			return rec, metadata.AppendControl(nil, rec), nil
		})
		for version := range c.max + 1 {
			r.add(k, "org.apache.kafka.common.message."+c.class, version, func(f *filler) []byte {
				rec := reflect.New(reflect.TypeOf(c.zero).Elem())
				f.fill(rec.Elem(), 0)
				rec.Elem().FieldByName("Version").SetInt(int64(version))
				return metadata.AppendControl(nil, rec.Interface().(metadata.ControlRecord))
			})
		}
	}
	r.run()
}

// metadataFrame is a body with the frame that records of the metadata log stand in.
func metadataFrame(key, version int16, body []byte) []byte {
	b := binary.AppendUvarint(binary.AppendUvarint([]byte{1}, uint64(key)), uint64(version))
	return append(b, body...)
}

// The records of __consumer_offsets: keys, and values of every version, are read as Kafka reads them; what Stele
// writes, Kafka reads with the same meaning and would write in the same bytes.
func TestGroupRecords(t *testing.T) {
	t.Parallel()
	const package_ = "org.apache.kafka.coordinator.group.generated."
	r := &recordRun{t: t}
	typed := func(number int16, body []byte) []byte {
		return append(binary.BigEndian.AppendUint16(nil, uint16(number)), body...)
	}
	offsetKey := typed(1, []byte{0, 0, 0, 0, 0, 0, 0, 0})
	groupKey := typed(2, []byte{0, 0})
	encode := func(rec group.Record) (key, value []byte) {
		key, value, err := group.EncodeRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		return key, value
	}
	// only gives the body when the record is written in this version.
	only := func(version int16, value []byte) []byte {
		if int16(binary.BigEndian.Uint16(value)) != version {
			return nil
		}
		return value[2:]
	}

	keys := r.kind("OffsetCommitKey", func(_ int16, b []byte) (any, []byte, error) {
		rec, err := group.DecodeRecord(typed(1, b), nil)
		if err != nil {
			return nil, nil, err
		}
		key, _ := encode(rec)
		return rec, key[2:], nil
	})
	r.add(keys, package_+"OffsetCommitKey", 0, func(f *filler) []byte {
		rec := &group.OffsetCommitRecord{}
		f.fill(reflect.ValueOf(rec).Elem(), 1)
		key, _ := encode(rec)
		return key[2:]
	})
	legacy := r.kind("LegacyOffsetCommitKey", func(_ int16, b []byte) (any, []byte, error) {
		rec, err := group.DecodeRecord(typed(0, b), nil)
		return rec, nil, err
	})
	r.add(legacy, package_+"LegacyOffsetCommitKey", 0, func(*filler) []byte { return nil })
	values := r.kind("OffsetCommitValue", func(version int16, b []byte) (any, []byte, error) {
		rec, err := group.DecodeRecord(offsetKey, typed(version, b))
		if err != nil {
			return nil, nil, err
		}
		value := rec.(*group.OffsetCommitRecord).Value
		if value == nil {
			return nil, nil, errors.New("read as a tombstone")
		}
		return value, nil, nil
	})
	for version := range int16(5) {
		r.add(values, package_+"OffsetCommitValue", version, func(f *filler) []byte {
			v := &group.OffsetCommitValue{}
			f.fill(reflect.ValueOf(v).Elem(), 1)
			if version != 1 {
				v.ExpireTimestamp = -1
			}
			_, value := encode(&group.OffsetCommitRecord{Value: v})
			return only(version, value)
		})
	}
	groups := r.kind("GroupMetadataKey", func(_ int16, b []byte) (any, []byte, error) {
		rec, err := group.DecodeRecord(typed(2, b), nil)
		if err != nil {
			return nil, nil, err
		}
		key, _ := encode(rec)
		return rec, key[2:], nil
	})
	r.add(groups, package_+"GroupMetadataKey", 0, func(f *filler) []byte {
		rec := &group.GroupMetadataRecord{}
		f.fill(reflect.ValueOf(rec).Elem(), 1)
		key, _ := encode(rec)
		return key[2:]
	})
	members := r.kind("GroupMetadataValue", func(version int16, b []byte) (any, []byte, error) {
		rec, err := group.DecodeRecord(groupKey, typed(version, b))
		if err != nil {
			return nil, nil, err
		}
		value := rec.(*group.GroupMetadataRecord).Value
		if value == nil {
			return nil, nil, errors.New("read as a tombstone")
		}
		return value, nil, nil
	})
	for version := range int16(5) {
		r.add(members, package_+"GroupMetadataValue", version, func(f *filler) []byte {
			v := &group.GroupMetadataValue{}
			f.fill(reflect.ValueOf(v).Elem(), 1)
			_, value := encode(&group.GroupMetadataRecord{Value: v})
			return only(version, value)
		})
	}
	r.run()
}
