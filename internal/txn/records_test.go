package txn

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// unhex is bytes written in hexadecimal digits.
func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestE110_values_of_both_versions(t *testing.T) {
	// Values of version 0 and 1 are decoded and encoded to the same bytes; tags that are not known are skipped; a version
	// or a state that is not known, and a value that ends early, are errors; a key of another type is passed over.
	t.Parallel()
	key := unhex(t, "000000047478"+"2d31")
	for name, row := range map[string]struct {
		value string
		want  Metadata
	}{
		"v0 Ongoing": {"0000" + "0000000000000fa0" + "0003" + "0000ea60" + "01" + "00000001" + "000161" + "00000002" + "00000000" + "00000005" + "00000000000003e8" + "00000000000003e7",
			Metadata{ProducerID: 4000, PreviousProducerID: -1, NextProducerID: -1, ProducerEpoch: 3, NextProducerEpoch: -1, TimeoutMs: 60000, State: Ongoing,
				Partitions: []TopicPartition{{"a", 0}, {"a", 5}}, LastUpdate: 1000, Start: 999, lastProducerEpoch: -1}},
		"v0 Empty": {"0000" + "0000000000000fa0" + "0000" + "0000ea60" + "00" + "ffffffff" + "00000000000003e8" + "ffffffffffffffff",
			Metadata{ProducerID: 4000, PreviousProducerID: -1, NextProducerID: -1, NextProducerEpoch: -1, TimeoutMs: 60000, LastUpdate: 1000, Start: -1, lastProducerEpoch: -1}},
		"v1 PrepareCommit, with all tags": {"0001" + "0000000000000fa0" + "7fff" + "0000ea60" + "02" + "02" + "0261" + "02" + "00000005" + "00" + "00000000000003e8" + "00000000000003e7" +
			"04" + "0008" + "0000000000000fa0" + "0108" + "0000000000001388" + "0202" + "0002" + "0302" + "0007",
			Metadata{ProducerID: 4000, PreviousProducerID: 4000, NextProducerID: 5000, ProducerEpoch: 32767, NextProducerEpoch: 7, ClientVersion: 2, TimeoutMs: 60000, State: PrepareCommit,
				Partitions: []TopicPartition{{"a", 5}}, LastUpdate: 1000, Start: 999, lastProducerEpoch: -1}},
	} {
		rec, known, err := DecodeRecord(key, unhex(t, row.value))
		if err != nil || !known || rec.ID != "tx-1" || !reflect.DeepEqual(*rec.Value, row.want) {
			t.Errorf("%s: %+v, known %t, %v", name, rec, known, err)
			continue
		}
		k, v, err := EncodeRecord(rec)
		if err != nil || !bytes.Equal(k, key) || hex.EncodeToString(v) != row.value {
			t.Errorf("%s: encoded to %x %x, %v", name, k, v, err)
		}
	}
	extra := "0001" + "0000000000000fa0" + "0000" + "0000ea60" + "00" + "00" + "00000000000003e8" + "ffffffffffffffff" + "02" + "0202" + "0002" + "0903" + "010203"
	if rec, _, err := DecodeRecord(key, unhex(t, extra)); err != nil || rec.Value.ClientVersion != 2 {
		t.Errorf("a tag that is not known: %+v, %v", rec, err)
	}
	for name, value := range map[string]string{
		"version 2":  "0002" + "0000000000000fa0",
		"ends early": "0001" + "0000000000000fa0" + "0000",
		"state 9":    "0000" + "0000000000000fa0" + "0000" + "0000ea60" + "09" + "ffffffff" + "00000000000003e8" + "ffffffffffffffff",
		"no version": "00",
	} {
		var corrupt *CorruptRecordError
		if _, _, err := DecodeRecord(key, unhex(t, value)); !errors.As(err, &corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, known, err := DecodeRecord(unhex(t, "000100026464"), nil); known || err != nil {
		t.Errorf("a key of type 1: known %t, %v", known, err)
	}
	if rec, known, err := DecodeRecord(key, nil); err != nil || !known || rec.Value != nil {
		t.Errorf("a tombstone: %+v, known %t, %v", rec, known, err)
	}
	long := &Record{ID: string(make([]byte, 40000)), Value: &Metadata{}}
	if _, _, err := EncodeRecord(long); !errors.Is(err, ErrRecordField) {
		t.Errorf("an id of 40000 bytes: %v", err)
	}
}

// Any bytes are decoded or refused, without a panic.
func TestDecodeAnyBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := append([]byte{0, 0}, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "key")...)
		value := append([]byte{0, rapid.Byte().Draw(t, "version") & 1}, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "value")...)
		if rec, known, err := DecodeRecord(key, value); err == nil && known {
			if _, _, err := EncodeRecord(rec); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestKafkasSegment(t *testing.T) {
	// Every record of a segment of __transaction_state that Apache Kafka 4.4 wrote is decoded, and encoded to the very
	// bytes that Kafka wrote; of several topics, which Kafka has in no order, to as many.
	t.Parallel()
	segment, err := os.ReadFile("../../test/reference/testdata/kafka-4.4.0/datadir/__transaction_state-0/00000000000000000000.log")
	if err != nil {
		t.Fatal(err)
	}
	states := map[State]int{}
	records := kafkaRecords(t, segment)
	for i, r := range records {
		rec, known, err := DecodeRecord(r.key, r.value)
		if err != nil || !known {
			t.Fatalf("record %d: known %t, %v", i, known, err)
		}
		key, value, err := EncodeRecord(rec)
		same := bytes.Equal(value, r.value)
		if n := len(rec.Value.Partitions); n > 1 && rec.Value.Partitions[0].Topic != rec.Value.Partitions[n-1].Topic {
			again, _, err := DecodeRecord(key, value)
			same = err == nil && len(value) == len(r.value) && reflect.DeepEqual(again, rec)
		}
		if err != nil || !bytes.Equal(key, r.key) || !same {
			t.Errorf("record %d: %x %x, at Kafka %x %x; %v", i, key, value, r.key, r.value, err)
		}
		states[rec.Value.State]++
	}
	for _, state := range []State{Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort} {
		if states[state] == 0 {
			t.Errorf("the segment has no record in state %s: %v", state, states)
		}
	}
}
