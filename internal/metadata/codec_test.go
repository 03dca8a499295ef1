package metadata

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

func seq(from byte) (u UUID) {
	for i := range u {
		u[i] = from + byte(i)
	}
	return u
}

var (
	tid = seq(0x10)
	d1  = seq(0x20)
	d2  = seq(0x30)
	inc = seq(0x40)
)

// Each worked example of the metadata formats: encoding gives its bytes, decoding its fields, and encoding
// these again the same bytes.
func TestM001_worked_examples(t *testing.T) {
	t.Parallel()
	partition := &PartitionRecord{TopicID: tid, Replicas: []int32{1, 2, 3}, ISR: []int32{1}, RemovingReplicas: []int32{}, AddingReplicas: []int32{},
		Leader: 1, LeaderEpoch: 5, PartitionEpoch: 9, Directories: []UUID{d1, d2, DirUnassigned}, EligibleLeaderReplicas: []int32{2, 3}}
	withoutELR := *partition
	withoutELR.EligibleLeaderReplicas = nil
	change := NewPartitionChange(tid, 0)
	change.ISR, change.Leader, change.EligibleLeaderReplicas = []int32{1, 2}, 2, []int32{}
	leaderless := NewPartitionChange(tid, 0)
	leaderless.ISR, leaderless.Leader, leaderless.EligibleLeaderReplicas, leaderless.LastKnownELR = []int32{}, -1, []int32{1, 2}, []int32{1}
	for _, c := range []struct {
		name    string
		rec     Record
		version int16
		hex     string
	}{
		{"topic", &TopicRecord{Name: "foo", TopicID: tid}, 0, "01020004666f6f101112131415161718191a1b1c1d1e1f00"},
		{"partition 2", partition, 2, "01030200000000101112131415161718191a1b1c1d1e1f040000000100000002000000030200000001010100000001000000050000000904202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f00000000000000000000000000000001010109030000000200000003"},
		{"partition 1", &withoutELR, 1, "01030100000000101112131415161718191a1b1c1d1e1f040000000100000002000000030200000001010100000001000000050000000904202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f0000000000000000000000000000000100"},
		{"change", change, 2, "01050200000000101112131415161718191a1b1c1d1e1f030009030000000100000002010400000002060101"},
		{"leaderless", leaderless, 2, "01050200000000101112131415161718191a1b1c1d1e1f040001010104ffffffff060903000000010000000207050200000001"},
		{"feature", &FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 33}, 0, "010c00116d657461646174612e76657273696f6e002100"},
		{"register", &RegisterBrokerRecord{BrokerID: 1, IncarnationID: inc, BrokerEpoch: 7, EndPoints: []Endpoint{{Name: "PLAINTEXT", Host: "b1", Port: 9092}},
			Features: []FeatureRange{{Name: "metadata.version", MinSupportedVersion: 7, MaxSupportedVersion: 33}}, Fenced: true, LogDirs: []UUID{d1}}, 4,
			"0100040000000100404142434445464748494a4b4c4d4e4f0000000000000007020a504c41494e54455854036231238400000002116d657461646174612e76657273696f6e000700210000010001001102202122232425262728292a2b2c2d2e2f"},
		{"unfence", &BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, Fenced: -1}, 0, "011100000000010000000000000007010001ff"},
		{"cordon", &BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, CordonedLogDirs: []UUID{}}, 3, "01110300000001000000000000000701030101"},
		{"config", &ConfigRecord{ResourceType: 2, ResourceName: "foo", Name: "retention.ms", Value: new("1000")}, 0, "0104000204666f6f0d726574656e74696f6e2e6d73053130303000"},
		{"config removed", &ConfigRecord{ResourceType: 2, ResourceName: "foo", Name: "retention.ms"}, 0, "0104000204666f6f0d726574656e74696f6e2e6d730000"},
		{"quota", &ClientQuotaRecord{Entity: []QuotaEntity{{EntityType: "user"}}, Key: "producer_byte_rate", Value: 1024}, 0, "010e0002057573657200001370726f64756365725f627974655f7261746540900000000000000000"},
		{"producer ids", &ProducerIDsRecord{BrokerID: 1, BrokerEpoch: 7, NextProducerID: 1000}, 0, "010f0000000001000000000000000700000000000003e800"},
		{"no op", &NoOpRecord{}, 0, "01140000"},
		{"begin", &BeginTransactionRecord{Name: new("Bootstrap records")}, 0, "01170001001212426f6f747374726170207265636f726473"},
		{"end", &EndTransactionRecord{}, 0, "01180000"},
	} {
		want, _ := hex.DecodeString(c.hex)
		got, err := AppendRecord(nil, c.rec, c.version)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n %x, %v, want\n %x", c.name, got, err, want)
		}
		rec, version, err := DecodeRecord(want)
		if err != nil || version != c.version || !reflect.DeepEqual(rec, c.rec) {
			t.Errorf("%s: decoded %+v version %d, %v, want %+v", c.name, rec, version, err, c.rec)
			continue
		}
		if again, _ := AppendRecord(nil, rec, version); !bytes.Equal(again, want) {
			t.Errorf("%s: encoded again %x", c.name, again)
		}
	}
	for _, c := range []struct {
		name string
		rec  ControlRecord
		hex  string
	}{
		{"leader change", &LeaderChange{LeaderID: 1, Voters: []Voter{{VoterID: 1}, {VoterID: 2}, {VoterID: 3}}, GrantingVoters: []Voter{{VoterID: 1}, {VoterID: 2}}}, "00000000000104000000010000000002000000000300030000000100000000020000"},
		{"header", &SnapshotHeader{LastContainedLogTimestamp: 1700000000000}, "00000000018bcfe5680000"},
		{"footer", &SnapshotFooter{}, "000000"},
		{"kraft version", &KRaftVersion{KRaftVersion: 1}, "0000000100"},
		{"voters", &Voters{Voters: []VotersEntry{{VoterID: 1, VoterDirectoryID: d1, Endpoints: []VoterEndpoint{{Name: "CONTROLLER", Host: "c1", Port: 9093}}, KRaftVersionFeature: VersionRange{Min: 0, Max: 1}}}},
			"00000200000001202122232425262728292a2b2c2d2e2f020b434f4e54524f4c4c455203633123850000000001000000"},
	} {
		want, _ := hex.DecodeString(c.hex)
		if got := AppendControl(nil, c.rec); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n %x, want\n %x", c.name, got, want)
		}
		rec, err := DecodeControl(c.rec.ControlType(), want)
		if err != nil || !reflect.DeepEqual(rec, c.rec) {
			t.Errorf("%s: decoded %+v, %v", c.name, rec, err)
		}
	}
}

// drawValue fills a field with random content.
func drawValue(t *rapid.T, v reflect.Value, f *fieldPlan) {
	switch f.kind {
	case kindBool:
		v.SetBool(rapid.Bool().Draw(t, f.name))
	case kindInt8:
		v.SetInt(int64(rapid.Int8().Draw(t, f.name)))
	case kindInt16:
		v.SetInt(int64(rapid.Int16().Draw(t, f.name)))
	case kindUint16:
		v.SetUint(uint64(rapid.Uint16().Draw(t, f.name)))
	case kindInt32:
		v.SetInt(int64(rapid.Int32().Draw(t, f.name)))
	case kindInt64:
		v.SetInt(rapid.Int64().Draw(t, f.name))
	case kindFloat64:
		v.SetFloat(rapid.Float64().Draw(t, f.name))
	case kindString:
		v.SetString(rapid.String().Draw(t, f.name))
	case kindNullableString:
		if rapid.Bool().Draw(t, f.name+" set") {
			v.Set(reflect.ValueOf(new(rapid.String().Draw(t, f.name))))
		}
	case kindBytes:
		v.SetBytes(append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, f.name)...))
	case kindUUID:
		v.Set(reflect.ValueOf(UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, f.name))))
	case kindArray:
		if f.nullable && rapid.Bool().Draw(t, f.name+" null") {
			return
		}
		n := rapid.IntRange(0, 3).Draw(t, f.name+" count")
		if n == 0 && !f.nullable && f.tag >= 0 {
			return // a tagged array that may not be null comes back as nil
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			drawValue(t, v.Index(i), f.elem)
		}
	default:
		drawStruct(t, v, f.sub, 99)
	}
}

func drawStruct(t *rapid.T, v reflect.Value, p *structPlan, version int16) {
	for _, fields := range [][]fieldPlan{p.fields, p.tagged} {
		for i := range fields {
			f := &fields[i]
			v.Field(f.index).Set(f.def)
			if version >= f.since {
				drawValue(t, v.Field(f.index), f)
			}
		}
	}
	if rapid.Bool().Draw(t, "unknown tag") {
		v.Field(p.unknown).Set(reflect.ValueOf(Tags{{Number: 50, Value: append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "tag")...)}}))
	}
}

// Every record at every version with random fields and unknown tags comes back from its bytes, and every
// shorter text of these bytes is an error.
func TestM002_random_round_trip(t *testing.T) {
	t.Parallel()
	if len(schemas) != 27 {
		t.Fatalf("%d kinds of record", len(schemas))
	}
	rapid.Check(t, func(t *rapid.T) {
		keys := make([]int16, 0, len(schemas))
		for key := int16(0); key < 30; key++ {
			if schemas[key] != nil {
				keys = append(keys, key)
			}
		}
		s := schemas[rapid.SampledFrom(keys).Draw(t, "kind")]
		version := rapid.Int16Range(0, s.maxVersion).Draw(t, "version")
		p := reflect.New(s.typ)
		drawStruct(t, p.Elem(), s.plan, version)
		rec := p.Interface().(Record)
		b, err := AppendRecord(nil, rec, version)
		if err != nil {
			t.Fatal(err)
		}
		got, v, err := DecodeRecord(b)
		if err != nil || v != version || !reflect.DeepEqual(got, rec) {
			t.Fatalf("%+v\nbecame\n%+v (version %d, %v)", rec, got, v, err)
		}
		if _, _, err := DecodeRecord(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); err == nil {
			t.Fatal("a cut record was accepted")
		}
	})
}

// Faults of a record's frame have types of their own: frame 0 and 2, key 6, a version above the range, a
// byte too many; and an unknown tag is kept apart.
func TestM002_typed_errors(t *testing.T) {
	t.Parallel()
	good, _ := AppendRecord(nil, &TopicRecord{Name: "foo", TopicID: tid}, 0)
	for _, c := range []struct {
		name string
		b    []byte
		kind any
	}{
		{"frame 0", append([]byte{0}, good[1:]...), new(*FrameVersionError)},
		{"frame 2", append([]byte{2}, good[1:]...), new(*FrameVersionError)},
		{"key 6", append([]byte{1, 6}, good[2:]...), new(*UnknownRecordError)},
		{"key 65536+2", append(binary.AppendUvarint([]byte{1}, 65538), good[2:]...), new(*UnknownRecordError)},
		{"version 1", append([]byte{1, 2, 1}, good[3:]...), new(*RecordVersionError)},
		{"trailing byte", append(bytes.Clone(good), 0), new(*TrailingBytesError)},
		{"huge array", append([]byte{1, 3, 0, 0, 0, 0, 0}, append(tid[:], 0xff, 0xff, 0xff, 0xff, 0x0f)...), new(*MalformedError)},
		{"empty", nil, new(*MalformedError)},
	} {
		_, _, err := DecodeRecord(c.b)
		if !errors.As(err, c.kind) {
			t.Errorf("%s: %v is no %T", c.name, err, c.kind)
		}
	}
	tagged := append(bytes.Clone(good[:len(good)-1]), 1, 7, 2, 0xaa, 0xbb)
	rec, _, err := DecodeRecord(tagged)
	if err != nil || !reflect.DeepEqual(rec.(*TopicRecord).Unknown, Tags{{7, []byte{0xaa, 0xbb}}}) {
		t.Errorf("%+v %v", rec, err)
	}
	if _, err := AppendRecord(nil, &TopicRecord{}, 1); !errors.As(err, new(*RecordVersionError)) {
		t.Error(err)
	}
	if _, err := DecodeControl(7, nil); !errors.As(err, new(*UnknownControlTypeError)) {
		t.Error(err)
	}
	body := AppendControl(nil, &LeaderChange{LeaderID: -1, Unknown: Tags{{9, []byte("raft")}}})
	control, err := DecodeControl(ControlLeaderChange, body)
	if err != nil || !bytes.Equal(AppendControl(nil, control), body) {
		t.Errorf("a foreign tag did not survive: %+v %v", control, err)
	}
}

// Whatever the bytes, the decoders answer with a value or an error, and take memory in proportion; a value encodes
// again, to bytes that mean the same.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte{1, 2, 0, 4, 'f', 'o', 'o'})
	for _, s := range schemas {
		for version := int16(0); version <= s.maxVersion; version++ {
			rec := reflect.New(s.typ).Interface().(Record)
			b, err := AppendRecord(nil, rec, version)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	for _, rec := range []Record{
		&RegisterBrokerRecord{EndPoints: []Endpoint{{Name: "a", Host: "b", Port: 9}}, Features: []FeatureRange{{Name: "f"}}, Rack: new("r"), LogDirs: []UUID{{1}}, CordonedLogDirs: []UUID{}},
		&PartitionRecord{Replicas: []int32{1, 2}, ISR: []int32{1}, Directories: []UUID{{1}}},
		&PartitionChangeRecord{ISR: []int32{1}, Leader: 1, Unknown: Tags{{77, []byte("x")}}},
	} {
		b, err := AppendRecord(nil, rec, schemas[rec.RecordKey()].maxVersion)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(AppendControl(nil, &Voters{Voters: []VotersEntry{{VoterID: 1, Endpoints: []VoterEndpoint{{Name: "n"}}}}}))
	f.Add(AppendControl(nil, &LeaderChange{Version: 1, Voters: []Voter{{VoterID: 1}}, GrantingVoters: []Voter{{VoterID: 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rec, version, err := DecodeRecord(b)
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > 64<<10+200*uint64(len(b)) {
			t.Fatalf("%d bytes of memory for %d", made, len(b))
		}
		if err == nil {
			once, err := AppendRecord(nil, rec, version)
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := DecodeRecord(once)
			if err != nil {
				t.Fatal(err)
			}
			if twice, err := AppendRecord(nil, again, version); err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%+v\n%x\n%x\n%v", rec, once, twice, err)
			}
		}
		for typ := ControlLeaderChange; typ <= ControlVoters; typ++ {
			rec, err := DecodeControl(typ, b)
			if err != nil {
				continue
			}
			once := AppendControl(nil, rec)
			if again, err := DecodeControl(typ, once); err != nil || !bytes.Equal(AppendControl(nil, again), once) {
				t.Fatalf("control record %d: %x: %v", typ, once, err)
			}
		}
	})
}

// Any bytes are either one of the files beside the metadata log, which is written as it was read, or an error.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("#\nversion=1\nnode.id=1\ncluster.id=abc\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"))
	f.Add([]byte(`{"leaderId":1,"leaderEpoch":3,"votedId":-1,"data_version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ParseMetaProperties(b); err == nil {
			if again, err := ParseMetaProperties(m.Format()); err != nil || !reflect.DeepEqual(m, again) {
				t.Fatalf("%+v, again %+v, %v", m, again, err)
			}
		}
		if q, err := ParseQuorumState(b); err == nil {
			if again, err := ParseQuorumState(q.Format()); err != nil || !reflect.DeepEqual(q, again) {
				t.Fatalf("%+v, again %+v, %v", q, again, err)
			}
		}
	})
}
