package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// restart stops the node cleanly and starts it on what it left, with the metadata it had.
func (n *node) restart(with ...func(*Options)) {
	n.t.Helper()
	if err := n.m.Close(context.Background(), 7); err != nil {
		n.t.Fatal(err)
	}
	n.start(with...)
	n.m.Apply(n.img, nil)
}

// crash starts the node on what a kill of the process would have left.
func (n *node) crash() {
	n.t.Helper()
	old := n.m
	n.fs = n.fs.CrashClone(vfs.LoseNothing, 1)
	n.files = n.fs
	if err := old.Close(context.Background(), -1); err != nil {
		n.t.Fatal(err)
	}
	n.start()
	n.m.Apply(n.img, nil)
}

// TestE033_records_and_epochs_survive: F1 survives a clean stop and a kill: all records, times and epochs are there, and the next reign
// is told by latest.
func TestE033_records_and_epochs_survive(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*node){"clean": func(n *node) { n.restart() }, "kill": (*node).crash} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := fixtureF1(t)
			n.deleteTo(4)
			again(n)
			n.elect("t", -1)
			n.elect("t", 1)
			got := n.list(-1, -1) + n.list(-2, -1) + n.list(13000, -1) + n.fetch(consume(5, -1, -1)) + n.fetch(consume(20, epochB, -1))
			if want := "(20,-1,7)(4,-1,0)(12,13000,2)[0-9 e0][10-14 e2][15-19 e5]div(2,15)"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if r := n.produce("t", stamped(1, 0)); r.BaseOffset != 20 {
				t.Errorf("next offset: %+v", r)
			}
		})
	}
}

// TestS062_topics_that_are_gone_or_have_another_id: at start a directory whose topic is gone, or has another id now, is renamed away and its records do
// not come back in a topic of the same name.
func TestS062_topics_that_are_gone_or_have_another_id(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.create("gone", 1)
	n.mustProduce("t", 3)
	if err := n.m.Close(context.Background(), -1); err != nil {
		t.Fatal(err)
	}
	n.img = metadata.EmptyImage()
	d := metadata.NewDelta(n.img)
	id := metadata.UUID{9}
	for _, r := range []metadata.Record{&metadata.TopicRecord{Name: "t", TopicID: id},
		&metadata.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: make([]metadata.UUID, 1)}} {
		if err := d.Replay(r, 0); err != nil {
			t.Fatal(err)
		}
	}
	n.img = d.Apply(1, 0)
	n.start()
	n.m.Apply(n.img, nil)
	if pos := n.partition("t").Positions(); pos.End != 0 {
		t.Errorf("%+v", pos)
	}
	if _, err := n.m.Partition("gone", 0); kind(err) != "3" {
		t.Errorf("%v", err)
	}
	strays := 0
	entries, err := n.fs.ReadDir("/data")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "-stray") {
			strays++
		}
	}
	if strays != 2 {
		t.Errorf("%d strays among %v", strays, entries)
	}
}

// TestRecordsWithoutTopicID: a directory whose partition.metadata is damaged or gone, and that bears the name of a
// partition of this broker, is neither renamed away for an empty log nor taken for the partition: the partition is
// lost, its files stay, and with the file as the error has it the records are back. Without records there is nothing
// to keep apart.
func TestRecordsWithoutTopicID(t *testing.T) {
	t.Parallel()
	const file = "/data/t-0/" + log.PartitionMetadataName
	for name, damage := range map[string]func(n *node) error{
		"gone":  func(n *node) error { return n.fs.Remove(file) },
		"empty": func(n *node) error { return vfs.WriteFileAtomic(n.fs, file, nil) },
		"noise": func(n *node) error { return vfs.WriteFileAtomic(n.fs, file, []byte("version: 0\ntopic_id: AAAA")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.create("t", 1)
			n.create("empty", 1)
			n.mustProduce("t", 3)
			good, err := vfs.ReadFile(n.fs, file)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.fs.Remove("/data/empty-0/" + log.PartitionMetadataName); err != nil {
				t.Fatal(err)
			}
			if err := damage(n); err != nil {
				t.Fatal(err)
			}
			n.restart()
			var corrupt *log.CorruptError
			if _, err := n.m.Partition("t", 0); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), fmt.Sprintf("%q", good)) {
				t.Errorf("%v, want the bytes %q among the words", err, good)
			}
			if pos := n.partition("empty").Positions(); pos.End != 0 {
				t.Errorf("%+v", pos)
			}
			if err := vfs.WriteFileAtomic(n.fs, file, good); err != nil {
				t.Fatal(err)
			}
			n.restart()
			if pos := n.partition("t").Positions(); pos.End != 3 {
				t.Errorf("%+v", pos)
			}
		})
	}
}

// TestSnapshotReplacesEverything: an image that does not follow from the last one: what it lacks goes, what is new comes,
// what stays is untouched.
func TestSnapshotReplacesEverything(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("stays", 1)
	n.create("goes", 1)
	n.mustProduce("stays", 3)
	base := metadata.EmptyImage()
	d := metadata.NewDelta(base)
	for i, name := range []string{"stays", "comes"} {
		id := topicID(name)
		for _, r := range []metadata.Record{&metadata.TopicRecord{Name: name, TopicID: id},
			&metadata.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: make([]metadata.UUID, 1)}} {
			if err := d.Replay(r, int64(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.img = d.Apply(9, 0)
	n.m.Apply(n.img, d)
	if n.partition("stays").Positions().End != 3 || n.partition("comes").Role().Kind != RoleLeader {
		t.Error("something was lost")
	}
	if _, err := n.m.Partition("goes", 0); kind(err) != "3" {
		t.Errorf("%v", err)
	}
}

// TestFirstDeltaAfterLoad: the delta that follows the loaded image directly still brings every partition its role.
func TestFirstDeltaAfterLoad(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.mustProduce("t", 2)
	if err := n.m.Close(context.Background(), -1); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.create("other", 1)
	if p := n.partition("t"); p.Role().Kind != RoleLeader || p.Positions().End != 2 {
		t.Errorf("%+v", p.Role())
	}
}

// TestReassignedAway: a replica that others have now is deleted here, and asking for it names the new leader.
func TestReassignedAway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.mustProduce("t", 1)
	p := n.partition("t")
	c := metadata.NewPartitionChange(topicID("t"), 0)
	c.Replicas, c.ISR, c.Leader, c.Directories = []int32{2}, []int32{2}, 2, make([]metadata.UUID, 1)
	n.replay(c)
	_, err := n.m.Partition("t", 0)
	var not *NotLeaderOrFollowerError
	if !errors.As(err, &not) || not.Current != (LeaderAndEpoch{2, 1}) {
		t.Errorf("%v", err)
	}
	if _, _, err := p.AppendCoordinator(stamped(1, 0), -1, -1, CoordinatorAppend{}); kind(err) != "6" {
		t.Errorf("append through a stale reference: %v", err)
	}
}

// TestLeaderless: with no leader every data request is refused with 6, and naming no leader.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.elect("t", -1)
	r := n.produce("t", stamped(1, 0))
	var not *NotLeaderOrFollowerError
	if !errors.As(r.Err, &not) || not.Current != (LeaderAndEpoch{-1, 1}) {
		t.Errorf("%v", r.Err)
	}
}

// TestStaleMetadataIsIgnored: an older or equal leader epoch from metadata changes nothing about a reign.
func TestStaleMetadataIsIgnored(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	before := n.img
	n.elect("t", 1)
	n.mustProduce("t", 1)
	n.m.Apply(before, nil)
	if e := n.partition("t").Role().LeaderEpoch; e != 1 {
		t.Errorf("went back to epoch %d", e)
	}
}

// TestAFailedSyncTakesTheDirectoryOffline: with flush.messages=1 a failed fsync: the produce fails with a storage error, the
// directory is reported once, parked fetches end, and every later request is answered with the same error.
func TestAFailedSyncTakesTheDirectoryOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []string
		n := newNode(t, func(o *Options) {
			o.DirectoryFailed = func(path string, _ error) { reported = append(reported, path) }
		})
		fault := vfs.NewFault(n.fs)
		if err := n.m.Close(context.Background(), -1); err != nil {
			t.Fatal(err)
		}
		n.files = fault
		n.start(func(o *Options) {
			o.DirectoryFailed = func(path string, _ error) { reported = append(reported, path) }
		})
		n.m.Apply(n.img, nil)
		n.configs["t"] = TopicConfig{Log: log.Config{FlushMessages: 1}, MinISR: 1}
		n.create("t", 2)
		n.mustProduce("t", 1)
		parked := consume(1, -1, -1)
		parked.MaxWait = time.Hour
		got := make(chan error)
		go func() {
			res := n.m.Fetch(t.Context(), parked)
			res.Release()
			got <- res.Partitions[0].Err
		}()
		synctest.Wait()
		fault.Add(vfs.Rule{Kind: vfs.OpSync, Name: ".log", Count: -1, Err: errors.New("input/output error")})
		offline := func(what string, err error) {
			t.Helper()
			var storage *log.StorageError
			if !errors.As(err, &storage) || !storage.Offline {
				t.Errorf("%s: %v", what, err)
			}
		}
		offline("the produce", n.produce("t", stamped(1, 0)).Err)
		offline("the parked fetch", <-got)
		synctest.Wait()
		offline("the next produce", n.produce("t", stamped(1, 0)).Err)
		_, err := n.m.Partition("t", 1)
		offline("the other partition", err)
		if len(reported) != 1 || reported[0] != "/data" {
			t.Errorf("reported %v", reported)
		}
		if d := n.m.DescribeLogDirs(); len(d) != 1 || d[0].Err == nil || d[0].Replicas != nil {
			t.Errorf("%+v", d)
		}
		fault.Clear()
	})
}

// TestE072_a_full_disk_harms_nobody: a write for which there is no space fails with a storage error and leaves nothing; the
// directory stays online, reads go on, and writing does when there is space again.
func TestE072_a_full_disk_harms_nobody(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	fault := vfs.NewFault(n.fs)
	if err := n.m.Close(context.Background(), -1); err != nil {
		t.Fatal(err)
	}
	n.files = fault
	n.start()
	n.m.Apply(n.img, nil)
	n.create("t", 1)
	n.mustProduce("t", 2)
	fault.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1, Short: 20})
	r := n.produce("t", stamped(1, 0))
	var storage *log.StorageError
	if !errors.As(r.Err, &storage) || storage.Offline {
		t.Errorf("full: %v", r.Err)
	}
	if got := n.fetch(consume(0, -1, -1)); got != "[0-1 e0]" {
		t.Errorf("reads: %s", got)
	}
	fault.Clear()
	if r := n.produce("t", stamped(1, 0)); r.Err != nil || r.BaseOffset != 2 {
		t.Errorf("space again: %+v", r)
	}
}

// TestCheckpointsAndRetentionComeRound: the high watermark is checkpointed every 5 s, recovery points and log starts every
// minute, and old segments go.
func TestCheckpointsAndRetentionComeRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.configs["t"] = TopicConfig{Log: log.Config{RetentionMs: 60_000, FileDeleteDelayMs: 1000}, MinISR: 1}
		n.create("t", 1)
		n.produce("t", stamped(3, time.Now().UnixMilli()))
		<-time.After(36 * time.Second)
		synctest.Wait()
		data, err := vfs.ReadFile(n.fs, "/data/"+log.HighWatermarkCheckpoint)
		if err != nil || string(data) != "0\n1\nt 0 3\n" {
			t.Errorf("high watermarks: %q %v", data, err)
		}
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if pos := n.partition("t").Positions(); pos.LogStart != 3 {
			t.Errorf("%+v", pos)
		}
	})
}

// TestReplicasAreToldWhereTheyAre: a new replica goes where the metadata says, or where there is room, and then that is
// reported; DescribeLogDirs shows it.
func TestReplicasAreToldWhereTheyAre(t *testing.T) {
	t.Parallel()
	type told struct {
		partition int32
		dir       metadata.UUID
	}
	reports := make(chan told, 10)
	one, two := metadata.UUID{1, 1}, metadata.UUID{2, 2}
	n := newNode(t, func(o *Options) {
		o.Directories = map[metadata.UUID]string{one: "/data", two: "/data2"}
		o.DirectoryAssigned = func(_ metadata.UUID, p int32, dir metadata.UUID) { reports <- told{p, dir} }
		o.Usage = func(string) (int64, int64, error) { return 100, 40, nil }
	})
	id := topicID("t")
	n.replay(&metadata.TopicRecord{Name: "t", TopicID: id},
		&metadata.PartitionRecord{TopicID: id, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: []metadata.UUID{one}},
		&metadata.PartitionRecord{TopicID: id, PartitionID: 1, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: []metadata.UUID{metadata.DirUnassigned}})
	n.mustProduce("t", 5)
	if r := <-reports; r != (told{1, one}) || len(reports) != 0 {
		t.Errorf("%+v and %d more", r, len(reports))
	}
	d := n.m.DescribeLogDirs()
	if len(d) != 1 || d[0].Total != 100 || d[0].Usable != 40 || len(d[0].Replicas) != 2 || d[0].Replicas[0].Size == 0 || d[0].Replicas[1].Size != 0 {
		t.Errorf("%+v", d)
	}
}

// TestNothingIsMadeAnewThatMayLieInAnOfflineDirectory: with one of two directories offline, a partition that has lived is
// answered with a storage error rather than begun again empty; a new one goes into the other directory.
func TestNothingIsMadeAnewThatMayLieInAnOfflineDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.m.Close(context.Background(), -1); err != nil {
		t.Fatal(err)
	}
	fault := vfs.NewFault(n.fs)
	fault.Add(vfs.Rule{Kind: vfs.OpMkdir, Name: "/bad", Count: -1, Err: errors.New("input/output error")})
	n.files, n.more = fault, []string{"/bad"}
	n.start()
	id := topicID("t")
	lived := metadata.NewPartitionChange(id, 0)
	lived.Leader = 1
	n.replay(&metadata.TopicRecord{Name: "t", TopicID: id},
		&metadata.PartitionRecord{TopicID: id, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: make([]metadata.UUID, 1)},
		lived)
	_, err := n.m.Partition("t", 0)
	var storage *log.StorageError
	if !errors.As(err, &storage) || !storage.Offline {
		t.Errorf("the old partition: %v", err)
	}
	n.create("fresh", 1)
	if p := n.partition("fresh"); p.directory() != "/data" {
		t.Errorf("the new one is in %s", p.directory())
	}
	if d := n.m.DescribeLogDirs(); len(d) != 2 || d[0].Path != "/bad" || d[0].Err == nil || len(d[1].Replicas) != 1 {
		t.Errorf("%+v", d)
	}
}

// TestALogThatCannotBeOpenedIsReportedLost: its partition answers with the reason, the others work, and the controller is told.
func TestALogThatCannotBeOpenedIsReportedLost(t *testing.T) {
	t.Parallel()
	lost := make(chan metadata.UUID, 10)
	n := newNode(t)
	n.create("t", 2)
	n.mustProduce("t", 2)
	n.m.Close(context.Background(), -1)
	n.start(func(o *Options) {
		o.DirectoryAssigned = func(_ metadata.UUID, _ int32, dir metadata.UUID) { lost <- dir }
	})
	t1, _ := n.img.Topic("t")
	p0, _ := t1.Partition(0)
	n.m.notOpened(assignment{t1, p0}, &log.CorruptError{Dir: "/data/t-0", Err: errors.New("epochs fall")})
	_, err := n.m.Partition("t", 0)
	var corrupt *log.CorruptError
	if !errors.As(err, &corrupt) || <-lost != metadata.DirLost {
		t.Errorf("%v", err)
	}
	n.m.Apply(n.img, nil)
	if _, err := n.m.Partition("t", 1); err != nil {
		t.Errorf("the other: %v", err)
	}
}

// TestClosedManager: after Close every request says so; closing again is the same.
func TestClosedManager(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.mustProduce("t", 1)
	p := n.partition("t")
	for range 2 {
		if err := n.m.Close(context.Background(), -1); err != nil {
			t.Fatal(err)
		}
	}
	n.create("late", 1)
	if _, err := n.m.Partition("late", 0); err == nil {
		t.Error("a partition was made after Close")
	}
	for what, err := range map[string]error{
		"produce": n.produce("t", stamped(1, 0)).Err, "fetch": n.m.Fetch(t.Context(), consume(0, -1, -1)).Partitions[0].Err,
		"list": n.m.ListOffsets(ListOffsetsRequest{Version: 1, Partitions: []ListOffsetsPartition{{Topic: "t", Timestamp: -1}}})[0].Err,
		"err":  p.Err(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestACorruptLogIsGivenUp: a log whose bytes are found to be no batches when it is read stops its partition, and no other,
// and the controller is told once that the replica is lost.
func TestACorruptLogIsGivenUp(t *testing.T) {
	t.Parallel()
	lost := make(chan int32, 10)
	n := newNode(t, func(o *Options) {
		o.DirectoryAssigned = func(_ metadata.UUID, p int32, dir metadata.UUID) {
			if dir == metadata.DirLost {
				lost <- p
			}
		}
		o.DirectoryFailed = func(path string, cause error) { t.Errorf("%s was taken offline: %v", path, cause) }
	})
	n.create("t", 1)
	n.create("u", 1)
	n.mustProduce("t", 1)
	n.mustProduce("u", 1)
	f, err := n.fs.OpenFile("/data/t-0/00000000000000000000.log", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 30), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 2 {
		req := consume(0, -1, -1)
		res := n.m.Fetch(t.Context(), req)
		var corrupt *log.CorruptError
		if err := res.Partitions[0].Err; !errors.As(err, &corrupt) {
			t.Errorf("fetch: %v", err)
		}
		res.Release()
	}
	if r := n.produce("t", stamped(1, 0)); r.Err == nil {
		t.Error("a corrupt log takes records")
	}
	if len(lost) != 1 {
		t.Errorf("the controller was told %d times", len(lost))
	}
	if said := n.logs.String(); strings.Count(said, "log lost") != 1 {
		t.Errorf("the log says it %d times:\n%s", strings.Count(said, "log lost"), said)
	}
	n.mustProduce("u", 1)
	n.losesLog = true
	var corrupt *log.CorruptError
	if err := n.m.Close(context.Background(), -1); !errors.As(err, &corrupt) {
		t.Errorf("a clean stop over a lost log: %v", err)
	}
}

// TestB146_an_empty_directory_is_not_taken_for_a_lost_one: a replica whose directory is not here any more is not made anew
// while the cluster counts on its records: it answers KAFKA_STORAGE_ERROR, and nobody is told a new place. One that is not in
// sync is made, and one that lies in another directory after all is found there.
func TestB146_an_empty_directory_is_not_taken_for_a_lost_one(t *testing.T) {
	t.Parallel()
	here, gone := metadata.UUID{1, 1}, metadata.UUID{2, 2}
	told := make(chan int32, 10)
	with := func(o *Options) {
		o.Directories = map[metadata.UUID]string{here: "/data"}
		o.DirectoryAssigned = func(_ metadata.UUID, p int32, _ metadata.UUID) { told <- p }
	}
	n := newNode(t, with)
	id := topicID("t")
	part := func(p int32, isr []int32, dir metadata.UUID) metadata.Record {
		return &metadata.PartitionRecord{TopicID: id, PartitionID: p, Replicas: []int32{1, 2}, ISR: isr, Leader: -1, PartitionEpoch: 3,
			Directories: []metadata.UUID{dir, {9}}}
	}
	if _, err := n.m.o.Dirs.Create(log.TopicPartition{Topic: "t", Partition: 3}, id, log.Config{}, "", true); err != nil {
		t.Fatal(err)
	}
	n.replay(&metadata.TopicRecord{Name: "t", TopicID: id}, part(0, []int32{1}, gone), part(1, []int32{2}, gone), part(2, []int32{1, 2}, metadata.DirLost),
		part(3, []int32{1}, gone), part(4, []int32{1}, metadata.DirMigrating))
	for p, missing := range []bool{true, false, true, false, false} {
		_, err := n.m.Partition("t", int32(p))
		var storage *log.StorageError
		if errors.Is(err, ErrDirectoryMissing) != missing || missing && !errors.As(err, &storage) {
			t.Errorf("t-%d: %v", p, err)
		}
	}
	close(told)
	for p := range told {
		if p == 0 || p == 2 {
			t.Errorf("the controller is told that t-%d has moved", p)
		}
	}
	if off := n.m.o.Dirs.Offline(); len(off) > 0 {
		t.Error(off)
	}
}
