package group

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ptr(s string) *string { return &s }

var topicID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

const exampleTime = 1700000000000

// exampleGroup is the group of the examples, as a value of version v holds it.
func exampleGroup(v int16, instanceID *string) *GroupMetadataValue {
	g := &GroupMetadataValue{
		ProtocolType: "consumer", Generation: 3, Protocol: ptr("range"), Leader: ptr("m1"), CurrentStateTimestamp: exampleTime,
		Members: []GroupMetadataMember{{
			MemberID: "m1", InstanceID: instanceID, ClientID: "c", ClientHost: "/10.0.0.1",
			RebalanceTimeoutMs: 300000, SessionTimeoutMs: 45000, Subscription: []byte{0xaa}, Assignment: []byte{0xbb, 0xcc},
		}},
	}
	if v < 2 {
		g.CurrentStateTimestamp = -1
	}
	if v < 1 {
		g.Members[0].RebalanceTimeoutMs = -1
	}
	return g
}

func TestG059_records_of_groups_are_kafkas_bytes(t *testing.T) {
	// Every record of a classic group is decoded from and encoded to the bytes that Kafka writes; what older
	// versions do not hold has its default.
	t.Parallel()
	const head = "0008636f6e73756d6572 00000003 000572616e6765 00026d31"
	for _, c := range []struct {
		name    string
		version int16
		value   *GroupMetadataValue
		hex     string
	}{
		{"v0", 0, exampleGroup(0, nil), "0000" + head + "00000001 00026d31 000163 00092f31302e302e302e31 0000afc8 00000001aa 00000002bbcc"},
		{"v1", 1, exampleGroup(1, nil), "0001" + head + "00000001 00026d31 000163 00092f31302e302e302e31 000493e0 0000afc8 00000001aa 00000002bbcc"},
		{"v2", 2, exampleGroup(2, nil), "0002" + head + "0000018bcfe56800 00000001 00026d31 000163 00092f31302e302e302e31 000493e0 0000afc8 00000001aa 00000002bbcc"},
		{"v3", 3, exampleGroup(3, nil), "0003" + head + "0000018bcfe56800 00000001 00026d31 ffff 000163 00092f31302e302e302e31 000493e0 0000afc8 00000001aa 00000002bbcc"},
		{"v3 static", 3, exampleGroup(3, ptr("i1")), "0003" + head + "0000018bcfe56800 00000001 00026d31 00026931 000163 00092f31302e302e302e31 000493e0 0000afc8 00000001aa 00000002bbcc"},
		{"v4", 4, exampleGroup(4, nil), "0004 09636f6e73756d6572 00000003 0672616e6765 036d31 0000018bcfe56800 02 036d31 00 0263 0a2f31302e302e302e31 000493e0 0000afc8 02aa 03bbcc 00 00"},
		{"v3 empty", 3, &GroupMetadataValue{ProtocolType: "consumer", Generation: 4, CurrentStateTimestamp: exampleTime}, "0003 0008636f6e73756d6572 00000004 ffff ffff 0000018bcfe56800 00000000"},
		{"v3 new", 3, &GroupMetadataValue{CurrentStateTimestamp: exampleTime}, "0003 0000 00000000 ffff ffff 0000018bcfe56800 00000000"},
	} {
		want := unhex(t, c.hex)
		rec, err := DecodeRecord(unhex(t, "0002 0002 6731"), want)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if want := (&GroupMetadataRecord{Group: "g1", Value: c.value}); !reflect.DeepEqual(rec, want) {
			t.Errorf("%s decodes to\n%+v, want\n%+v", c.name, rec.(*GroupMetadataRecord).Value, want.Value)
		}
		var w recordWriter
		w.groupMetadataValue(c.value, c.version)
		if !bytes.Equal(w.buf, want) {
			t.Errorf("%s encodes to\n%x, want\n%x", c.name, w.buf, want)
		}
		key, value, err := EncodeRecord(&GroupMetadataRecord{Group: "g1", Value: c.value})
		if err != nil || !bytes.Equal(key, unhex(t, "0002 0002 6731")) {
			t.Errorf("%s: key %x, %v", c.name, key, err)
		}
		if c.version == 3 && !bytes.Equal(value, want) {
			t.Errorf("%s is written as %x", c.name, value)
		}
	}
}

func TestG059_records_of_offsets_are_kafkas_bytes(t *testing.T) {
	// Every version of a committed offset is decoded from Kafka's bytes, and each is written in the oldest
	// version that holds it.
	t.Parallel()
	value := func(epoch int32, metadata string, expires int64, id [16]byte) *OffsetCommitValue {
		return &OffsetCommitValue{Offset: 1000, LeaderEpoch: epoch, Metadata: metadata, CommitTimestamp: exampleTime, ExpireTimestamp: expires, TopicID: id}
	}
	key := unhex(t, "0001 0002 6731 0006 6f7264657273 00000003")
	for _, c := range []struct {
		name    string
		value   *OffsetCommitValue
		version int16
		written bool
		hex     string
	}{
		{"v0", value(-1, "m", -1, [16]byte{}), 0, false, "0000 00000000000003e8 0001 6d 0000018bcfe56800"},
		{"v1", value(-1, "m", exampleTime+86400000, [16]byte{}), 1, true, "0001 00000000000003e8 0001 6d 0000018bcfe56800 0000018bd50bc400"},
		{"v2", value(-1, "m", -1, [16]byte{}), 2, false, "0002 00000000000003e8 0001 6d 0000018bcfe56800"},
		{"v3", value(5, "m", -1, [16]byte{}), 3, true, "0003 00000000000003e8 00000005 0001 6d 0000018bcfe56800"},
		{"v3 no epoch", value(-1, "", -1, [16]byte{}), 3, true, "0003 00000000000003e8 ffffffff 0000 0000018bcfe56800"},
		{"v4 no id", value(5, "m", -1, [16]byte{}), 4, false, "0004 00000000000003e8 00000005 02 6d 0000018bcfe56800 00"},
		{"v4", value(5, "m", -1, topicID), 4, true, "0004 00000000000003e8 00000005 02 6d 0000018bcfe56800 01 00 10 0102030405060708090a0b0c0d0e0f10"},
	} {
		want := unhex(t, c.hex)
		for _, k := range [][]byte{key, append([]byte{0, 0}, key[2:]...)} {
			rec, err := DecodeRecord(k, want)
			wantRec := &OffsetCommitRecord{Group: "g1", Topic: "orders", Partition: 3, Value: c.value}
			if err != nil || !reflect.DeepEqual(rec, wantRec) {
				t.Errorf("%s decodes to %+v, %v", c.name, rec, err)
			}
		}
		var w recordWriter
		w.offsetCommitValue(c.value, c.version)
		if !bytes.Equal(w.buf, want) {
			t.Errorf("%s encodes to\n%x, want\n%x", c.name, w.buf, want)
		}
		if !c.written {
			continue
		}
		k, v, err := EncodeRecord(&OffsetCommitRecord{Group: "g1", Topic: "orders", Partition: 3, Value: c.value})
		if err != nil || !bytes.Equal(k, key) || !bytes.Equal(v, want) {
			t.Errorf("%s is written as %x %x, %v", c.name, k, v, err)
		}
	}
}

func TestG059_tombstones_and_strangers(t *testing.T) {
	// A null value is a tombstone; an unknown record type is told from a record that cannot be read.
	t.Parallel()
	rec, err := DecodeRecord(unhex(t, "0002 0002 6731"), nil)
	if g, ok := rec.(*GroupMetadataRecord); err != nil || !ok || g.Value != nil {
		t.Errorf("tombstone of a group: %+v, %v", rec, err)
	}
	if _, value, err := EncodeRecord(rec); value != nil || err != nil {
		t.Errorf("a tombstone is written as %x, %v", value, err)
	}
	var unknown *UnknownRecordTypeError
	if _, err := DecodeRecord(unhex(t, "000b 0002 6731"), []byte{0, 0}); !errors.As(err, &unknown) || unknown.Type != 11 {
		t.Errorf("a share group's record: %v", err)
	}
	for _, c := range []struct{ name, key, value string }{
		{"no key", "", "0000"},
		{"key ends early", "0001 0002 6731 0006", "0000"},
		{"value of version 5", "0002 0002 6731", "0005 0000"},
		{"negative version", "0001 0002 6731 0006 6f7264657273 00000003", "ffff"},
		{"empty value", "0002 0002 6731", ""},
		{"value ends early", "0001 0002 6731 0006 6f7264657273 00000003", "0003 00000000000003e8"},
		{"more members than bytes", "0002 0002 6731", "0003 0000 00000000 ffff ffff 0000018bcfe56800 7fffffff"},
		{"members null", "0002 0002 6731", "0003 0000 00000000 ffff ffff 0000018bcfe56800 ffffffff"},
		{"short topic id", "0001 0002 6731 0006 6f7264657273 00000003", "0004 00000000000003e8 00000005 02 6d 0000018bcfe56800 01 00 02 0102"},
	} {
		var corrupt *CorruptRecordError
		if _, err := DecodeRecord(unhex(t, c.key), unhex(t, c.value)); !errors.As(err, &corrupt) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, _, err := EncodeRecord(&GroupMetadataRecord{Group: strings.Repeat("g", 40000)}); !errors.Is(err, ErrRecordField) {
		t.Errorf("a group id of 40000 bytes: %v", err)
	}
}

func TestB151_a_very_large_group_loads(t *testing.T) {
	// A group of 500 members with 20 KB of subscription each is one record of 10 MB, and it is read.
	t.Parallel()
	v := exampleGroup(3, nil)
	member := v.Members[0]
	member.Subscription = make([]byte, 20<<10)
	v.Members = nil
	for range 500 {
		v.Members = append(v.Members, member)
	}
	key, value, err := EncodeRecord(&GroupMetadataRecord{Group: "large", Value: v})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := DecodeRecord(key, value)
	if err != nil || !reflect.DeepEqual(rec.(*GroupMetadataRecord).Value, v) {
		t.Fatalf("a record of %d bytes does not come back: %v", len(value), err)
	}
}

// FuzzDecodeRecord: bytes of a foreign log never panic; what is read and written again reads the same.
func FuzzDecodeRecord(f *testing.F) {
	f.Add(unhex(f, "0002 0002 6731"), unhex(f, "0004 09636f6e73756d6572 00000003 0672616e6765 036d31 0000018bcfe56800 02 036d31 00 0263 0a2f31302e302e302e31 000493e0 0000afc8 02aa 03bbcc 00 00"))
	f.Add(unhex(f, "0001 0002 6731 0006 6f7264657273 00000003"), unhex(f, "0004 00000000000003e8 00000005 02 6d 0000018bcfe56800 01 00 10 0102030405060708090a0b0c0d0e0f10"))
	f.Add([]byte{0, 2}, []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rec, err := DecodeRecord(key, value)
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > 64<<10+200*uint64(len(key)+len(value)) {
			t.Fatalf("%d bytes of memory for %d and %d", made, len(key), len(value))
		}
		if err != nil {
			return
		}
		k, v, err := EncodeRecord(rec)
		if errors.Is(err, ErrRecordField) {
			return
		}
		again, err2 := DecodeRecord(k, v)
		if err != nil || err2 != nil {
			t.Fatalf("%+v: %v, %v", rec, err, err2)
		}
		if o, ok := rec.(*OffsetCommitRecord); ok && o.Value != nil && (o.Value.ExpireTimestamp >= 0 || o.Value.ExpireTimestamp < -1) {
			return // a version that holds less is written
		}
		if !reflect.DeepEqual(rec, again) {
			t.Fatalf("%+v is read again as %+v", rec, again)
		}
	})
}
