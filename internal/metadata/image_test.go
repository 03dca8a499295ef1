package metadata

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sameState compares what two images would write into a snapshot.
func sameState(t testing.TB, got, want *Image) {
	t.Helper()
	a, errA := got.Encoded()
	b, errB := want.Encoded()
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	slices.SortFunc(a, bytes.Compare)
	slices.SortFunc(b, bytes.Compare)
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("images differ:\n%x\n%x", a, b)
	}
}

func replayAll(t testing.TB, img *Image, from int64, recs []Record) *Image {
	t.Helper()
	d := NewDelta(img)
	for i, rec := range recs {
		if err := d.Replay(rec, from+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	return d.Apply(from+int64(len(recs))-1, 1)
}

// sampleLog has one of everything that an image holds, changed and removed again.
func sampleLog() []Record {
	change := NewPartitionChange(tid, 0)
	change.ISR, change.Leader = []int32{2}, 2
	elr := NewPartitionChange(tid, 1)
	elr.ISR, elr.Leader, elr.EligibleLeaderReplicas, elr.LastKnownELR = []int32{}, NoLeader, []int32{1, 2}, []int32{1}
	other := seq(0x50)
	return []Record{
		&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 33},
		&FeatureLevelRecord{Name: FeatureELR, FeatureLevel: 1},
		&FeatureLevelRecord{Name: FeatureGroup, FeatureLevel: 1},
		&FeatureLevelRecord{Name: FeatureGroup},
		&RegisterControllerRecord{ControllerID: 1, IncarnationID: inc, EndPoints: []Endpoint{}, Features: []FeatureRange{}},
		&RegisterControllerRecord{ControllerID: 2, IncarnationID: inc},
		&UnregisterControllerRecord{ControllerID: 2},
		&RegisterBrokerRecord{BrokerID: 1, IncarnationID: inc, BrokerEpoch: 7, Fenced: true, LogDirs: []UUID{d1, d2}},
		&RegisterBrokerRecord{BrokerID: 2, IncarnationID: inc, BrokerEpoch: 8, Fenced: true, LogDirs: []UUID{tid}},
		&RegisterBrokerRecord{BrokerID: 3, IncarnationID: inc, BrokerEpoch: 9, Fenced: true, LogDirs: []UUID{inc}},
		&BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, Fenced: -1},
		&BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 7, LogDirs: []UUID{d1}},
		&UnfenceBrokerRecord{ID: 2, Epoch: 8},
		&FenceBrokerRecord{ID: 2, Epoch: 8},
		&UnregisterBrokerRecord{BrokerID: 3, BrokerEpoch: 9},
		&TopicRecord{Name: "foo", TopicID: tid},
		&PartitionRecord{PartitionID: 0, TopicID: tid, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, Directories: []UUID{d1, DirUnassigned}},
		&PartitionRecord{PartitionID: 1, TopicID: tid, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, Directories: []UUID{d1, DirUnassigned}},
		change, elr,
		&TopicRecord{Name: "bar", TopicID: other},
		&ConfigRecord{ResourceType: ResourceTopic, ResourceName: "bar", Name: "retention.ms", Value: new("1")},
		&RemoveTopicRecord{TopicID: other},
		&ConfigRecord{ResourceType: ResourceTopic, ResourceName: "foo", Name: "retention.ms", Value: new("1")},
		&ConfigRecord{ResourceType: ResourceTopic, ResourceName: "foo", Name: "of.another.release", Value: new("1")},
		&ConfigRecord{ResourceType: ResourceBroker, ResourceName: "", Name: "x", Value: new("1")},
		&ConfigRecord{ResourceType: ResourceBroker, ResourceName: "", Name: "x"},
		&ClientQuotaRecord{Entity: []QuotaEntity{{EntityType: "user", EntityName: new("a")}, {EntityType: "client-id"}}, Key: "producer_byte_rate", Value: 5},
		&ClientQuotaRecord{Entity: []QuotaEntity{{EntityType: "client-id"}, {EntityType: "user", EntityName: new("a")}}, Key: "request_percentage", Value: 6},
		&ProducerIDsRecord{BrokerID: 1, BrokerEpoch: 7, NextProducerID: 1000},
		&AccessControlEntryRecord{ID: seq(0x60), ResourceType: 2, ResourceName: "foo", PatternType: 3, Principal: "User:a", Host: "*", Operation: 3, PermissionType: 3},
		&AccessControlEntryRecord{ID: seq(0x70), ResourceType: 2, ResourceName: "foo"},
		&RemoveAccessControlEntryRecord{ID: seq(0x70)},
		&UserScramCredentialRecord{Name: "a", Mechanism: 1, Iterations: 4096},
		&UserScramCredentialRecord{Name: "a", Mechanism: 2, Iterations: 4096},
		&RemoveUserScramCredentialRecord{Name: "a", Mechanism: 2},
		&DelegationTokenRecord{Owner: "User:a", TokenID: "t1"},
		&DelegationTokenRecord{Owner: "User:a", TokenID: "t2"},
		&RemoveDelegationTokenRecord{TokenID: "t2"},
		&BeginTransactionRecord{}, &TopicRecord{Name: "never", TopicID: other}, &AbortTransactionRecord{},
		&BeginTransactionRecord{}, &TopicRecord{Name: "late", TopicID: other}, &EndTransactionRecord{},
		&ClearELRRecord{TopicName: "foo"},
		&NoOpRecord{}, &ZkMigrationStateRecord{ZkMigrationState: 1},
	}
}

// One list of records, cut into deltas in every way, makes the same image; and an image that was kept is
// never changed by what comes after it.
func TestImageThroughEverySplit(t *testing.T) {
	t.Parallel()
	recs := sampleLog()
	want := replayAll(t, EmptyImage(), 0, recs)
	prefix := make([][][]byte, len(recs)+1)
	for n := range prefix {
		prefix[n], _ = replayAll(t, EmptyImage(), 0, recs[:n]).Encoded()
	}
	rapid.Check(t, func(rt *rapid.T) {
		img := EmptyImage()
		var kept []*Image
		var ends []int
		for at := 0; at < len(recs); {
			n := rapid.IntRange(1, len(recs)-at).Draw(rt, "batch")
			img = replayAll(t, img, int64(at), recs[at:at+n])
			at += n
			kept, ends = append(kept, img), append(ends, at)
		}
		sameState(t, img, want)
		if img.Offset() != int64(len(recs)-1) {
			rt.Fatal("offset", img.Offset())
		}
		for i, k := range kept {
			if got, _ := k.Encoded(); !reflect.DeepEqual(got, prefix[ends[i]]) {
				rt.Fatalf("the image after %d records was changed afterwards", ends[i])
			}
		}
	})
}

// Loading the records of a snapshot alone gives the image that the log gives.
func TestM006_snapshot_round_trip(t *testing.T) {
	t.Parallel()
	img := replayAll(t, EmptyImage(), 0, sampleLog())
	var recs []Record
	order := -1
	for rec := range img.Records() {
		level := img.MetadataVersion()
		b, err := AppendRecord(nil, rec, level.RecordVersion(rec))
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := DecodeRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, decoded)
		at := slices.Index([]int16{12, 0, 27, 2, 4, 14, 15, 18, 11, 10}, rec.RecordKey())
		if rec.RecordKey() == 3 {
			at = 3
		}
		if at < order {
			t.Errorf("%s is out of order", RecordName(rec))
		}
		order = at
	}
	if f, ok := recs[0].(*FeatureLevelRecord); !ok || f.Name != FeatureMetadataVersion {
		t.Error("a snapshot must begin with metadata.version")
	}
	sameState(t, replayAll(t, EmptyImage(), 0, recs), img)
}

// Partition changes: the partition epoch always rises, the leader epoch when a leader is named, even the same
// one; replicas without directories are somewhere; clearing the ELR is a hidden change.
func TestReplayPartitionRules(t *testing.T) {
	t.Parallel()
	p := newPartition(&PartitionRecord{TopicID: tid, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 4, PartitionEpoch: 6})
	if !reflect.DeepEqual(p.Directories, []UUID{DirMigrating, DirMigrating}) {
		t.Error("directories", p.Directories)
	}
	isr := NewPartitionChange(tid, 0)
	isr.ISR = []int32{1}
	if n := p.Change(isr); n.LeaderEpoch != 4 || n.PartitionEpoch != 7 || len(p.ISR) != 2 {
		t.Errorf("%+v", n)
	}
	same := NewPartitionChange(tid, 0)
	same.Leader = 1
	if n := p.Change(same); n.LeaderEpoch != 5 || n.PartitionEpoch != 7 {
		t.Errorf("%+v", n)
	}
	p.Directories = []UUID{d1, d2}
	replicas := NewPartitionChange(tid, 0)
	replicas.Replicas = []int32{1, 2, 3}
	if n := p.Change(replicas); !reflect.DeepEqual(n.Directories, make([]UUID, 3)) {
		t.Errorf("%+v", n)
	}
	img := replayAll(t, EmptyImage(), 0, sampleLog())
	if p, _ := img.Partition("foo", 1); p.PartitionEpoch != 2 || len(p.ELR) != 0 || len(p.LastKnownELR) != 0 {
		t.Errorf("cleared: %+v", p)
	}
	if p, _ := img.Partition("foo", 0); p.PartitionEpoch != 1 {
		t.Errorf("nothing to clear: %+v", p)
	}
}

// Records that do not fit the state are errors with their offset, not no-ops.
func TestReplayRefusals(t *testing.T) {
	t.Parallel()
	for _, rec := range []Record{
		&UnregisterBrokerRecord{BrokerID: 1, BrokerEpoch: 6},
		&BrokerRegistrationChangeRecord{BrokerID: 9, BrokerEpoch: 7},
		&FenceBrokerRecord{ID: 1, Epoch: 8},
		&TopicRecord{Name: "foo", TopicID: seq(0x90)},
		&TopicRecord{Name: "new", TopicID: tid},
		NewPartitionChange(tid, 7),
		NewPartitionChange(seq(0x90), 0),
		&RemoveTopicRecord{TopicID: seq(0x90)},
		&ProducerIDsRecord{NextProducerID: 1000},
		&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 6},
		&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 34},
		&EndTransactionRecord{}, &AbortTransactionRecord{},
	} {
		img := replayAll(t, EmptyImage(), 0, sampleLog())
		var re *ReplayError
		if err := NewDelta(img).Replay(rec, 77); !errors.As(err, &re) || re.Offset != 77 {
			t.Errorf("%s %+v: %v", RecordName(rec), rec, err)
		}
	}
	if err := NewDelta(EmptyImage()).Replay(&FeatureLevelRecord{Name: FeatureKRaftVersion, FeatureLevel: 1}, 0); err != nil {
		t.Error(err)
	}
}

// An open transaction is not shown, its abort leaves no change behind, and offsets go on.
func TestM042_transactions_are_shown_whole(t *testing.T) {
	t.Parallel()
	base := replayAll(t, EmptyImage(), 0, []Record{&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 33}})
	open := replayAll(t, base, 1, []Record{&BeginTransactionRecord{}, &TopicRecord{Name: "a", TopicID: tid}})
	if !open.InTransaction() || open.Stable().Topics().Len() != 0 || open.Topics().Len() != 1 || open.Stable().Offset() != 2 {
		t.Error("an open transaction shows")
	}
	d := NewDelta(open)
	if err := d.Replay(&AbortTransactionRecord{}, 3); err != nil || len(d.Topics) != 0 {
		t.Error(err, d.Topics)
	}
	if img := d.Apply(3, 1); img.Topics().Len() != 0 || img.Offset() != 3 || img.InTransaction() {
		t.Error("an aborted transaction shows")
	}
	d = NewDelta(open)
	if err := d.Replay(&EndTransactionRecord{}, 3); err != nil {
		t.Error(err)
	}
	if img := d.Apply(3, 1); img.Stable().Topics().Len() != 1 {
		t.Error("a finished transaction does not show")
	}
}

// The persistent map agrees with Go's map, stays balanced, and old versions stay as they were.
func TestMapAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, model := newOrderedMap[int, int](), map[int]int{}
		old, oldLen := m, 0
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			key := rapid.IntRange(0, 40).Draw(t, "key")
			if rapid.Bool().Draw(t, "delete") {
				m = m.Delete(key)
				delete(model, key)
			} else {
				value := rapid.Int().Draw(t, "value")
				m = m.Set(key, value)
				model[key] = value
			}
			if rapid.IntRange(0, 9).Draw(t, "keep") == 0 {
				old, oldLen = m, m.Len()
			}
		}
		n, last := 0, -1
		for k, v := range m.All() {
			if k <= last || model[k] != v {
				t.Fatal("wrong entry", k, v)
			}
			last = k
			n++
		}
		from := 0
		for k := range m.From(20) {
			if k < 20 {
				t.Fatal("From yields", k)
			}
			from++
		}
		for k := range model {
			if k >= 20 {
				from--
			}
		}
		oldCount := 0
		for range old.All() {
			oldCount++
		}
		if n != len(model) || m.Len() != n || from != 0 || oldCount != oldLen {
			t.Fatal("sizes", n, len(model), m.Len(), from, oldCount, oldLen)
		}
	})
	m := newOrderedMap[int, int]()
	for i := range 1 << 12 {
		m = m.Set(i, i)
	}
	if m.root.height > 17 {
		t.Error("height", m.root.height)
	}
}

// Ids are read back from their text, reserved ones are known, generated ones are never reserved nor hold a dash.
func TestUUID(t *testing.T) {
	t.Parallel()
	random := rand.NewChaCha8([32]byte{1})
	for range 1000 {
		u := NewUUID(random)
		if back, err := ParseUUID(u.String()); err != nil || back != u || u.Reserved() || bytes.ContainsRune([]byte(u.String()), '-') {
			t.Fatal(u, back, err)
		}
	}
	if DirLost.String() != "AAAAAAAAAAAAAAAAAAAAAg" || DirMigrating.String() != "AAAAAAAAAAAAAAAAAAAAAA" || d1.String() != "ICEiIyQlJicoKSorLC0uLw" {
		t.Error("text forms")
	}
	for text, want := range map[string]bool{"AAAAAAAAAAAAAAAAAAAAYw": true, "AAAAAAAAAAAAAAAAAAAAZA": false, "AAAAAAAAAAD__________w": true} {
		if u, err := ParseUUID(text); err != nil || u.Reserved() != want {
			t.Error(text, u.Reserved(), err)
		}
	}
	for _, bad := range []string{"", "x", "AAAAAAAAAAAAAAAAAAAAA+"} {
		if _, err := ParseUUID(bad); !errors.As(err, new(*UUIDError)) {
			t.Error(bad, err)
		}
	}
}

// meta.properties: versions, required keys, reserved directory ids.
func TestM003_meta_properties(t *testing.T) {
	t.Parallel()
	for text, key := range map[string]string{
		"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=ICEiIyQlJicoKSorLC0uLw": "",
		"cluster.id=c\nbroker.id=1":          "",
		"":                                   "",
		"version=2":                          "version",
		"version=1\nnode.id=1":               "cluster.id",
		"version=1\ncluster.id=c":            "node.id",
		"version=1\ncluster.id=c\nnode.id=x": "node.id",
		"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAw": "directory.id",
		"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=no":                     "directory.id",
	} {
		_, err := ParseMetaProperties([]byte(text))
		var me *MetaPropertiesError
		if key == "" && err != nil || key != "" && (!errors.As(err, &me) || me.Key != key) {
			t.Errorf("%q: %v", text, err)
		}
	}
	v1 := QuorumState{LeaderID: -1, LeaderEpoch: 8, VotedID: 2, VotedDirectoryID: d1, DataVersion: 1}
	const line = `{"leaderId":-1,"leaderEpoch":8,"votedId":2,"votedDirectoryId":"ICEiIyQlJicoKSorLC0uLw","data_version":1}`
	if got := string(v1.Format()); got != line {
		t.Error(got)
	}
	if back, err := ParseQuorumState([]byte(line)); err != nil || !reflect.DeepEqual(back, v1) {
		t.Error(back, err)
	}
	for _, bad := range []string{"", "{}", `{"data_version":2}`, `{"data_version":0,"leaderId":"x"}`} {
		if _, err := ParseQuorumState([]byte(bad)); !errors.As(err, new(*QuorumStateError)) {
			t.Error(bad, err)
		}
	}
}

// The version of each record follows from the level; downgrades across a level that changed what is stored lose it.
func TestM011_record_versions_by_level(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level               Level
		register, partition int16
	}{{7, 1, 0}, {8, 2, 0}, {16, 2, 0}, {17, 3, 1}, {22, 3, 1}, {23, 3, 2}, {29, 3, 2}, {30, 4, 2}, {33, 4, 2}} {
		if r, p := c.level.RecordVersion(&RegisterBrokerRecord{}), c.level.RecordVersion(&PartitionRecord{}); r != c.register || p != c.partition {
			t.Errorf("level %d: %d %d", c.level, r, p)
		}
	}
	for rec, want := range map[*BrokerRegistrationChangeRecord]int16{
		{Fenced: 1}: 0, {InControlledShutdown: 1}: 1, {LogDirs: []UUID{d1}}: 2, {CordonedLogDirs: []UUID{}}: 3,
	} {
		if got := LevelLatest.RecordVersion(rec); got != want {
			t.Errorf("%+v at %d", rec, got)
		}
	}
	for _, c := range []struct {
		from, to Level
		lossy    bool
	}{{29, 23, false}, {29, 22, true}, {33, 32, true}, {33, 33, false}} {
		if DowngradeLosesMetadata(c.from, c.to) != c.lossy {
			t.Errorf("%d -> %d", c.from, c.to)
		}
	}
	for i, l := range levels {
		if int(l.level) != i+1 {
			t.Error("table of levels is out of order at", l.level)
		}
	}
}

// A log of another release may finalize what this one does not serve; that is told by name and range.
func TestUnsupportedFeatures(t *testing.T) {
	t.Parallel()
	img := replayAll(t, EmptyImage(), 0, []Record{&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: 33}})
	if err := img.CheckFeatures(); err != nil {
		t.Error(err)
	}
	var ue *UnsupportedFeatureError
	img = replayAll(t, img, 1, []Record{&FeatureLevelRecord{Name: "of.another.release", FeatureLevel: 1}})
	if err := img.CheckFeatures(); !errors.As(err, &ue) || ue.Name != "of.another.release" || ue.Level != 1 {
		t.Error(err)
	}
}

// An image does not keep those before it: a node that runs for long, with a no-op record every half second, would hold all
// there ever were.
func TestImagesDoNotKeepThoseBefore(t *testing.T) {
	gone := make(chan struct{})
	img := func() *Image {
		first := NewDelta(EmptyImage()).Apply(1, 1)
		runtime.AddCleanup(first, func(done chan struct{}) { close(done) }, gone)
		return NewDelta(first).Apply(2, 1)
	}()
	for range 100 {
		runtime.GC()
		select {
		case <-gone:
			runtime.KeepAlive(img)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("the image before is still there")
}
