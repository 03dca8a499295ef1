package quorum

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// kafkaOnDisk is a disk with the metadata log that Apache Kafka wrote, all of it synced.
func kafkaOnDisk(t *testing.T) *vfs.Mem {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(kafkaLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(kafkaLog, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFileAtomic(fs, filepath.Join(testDir, e.Name()), data); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/", metaDir} {
		if err := fs.SyncDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

func inspect(t *testing.T, fs vfs.FS) *KafkaLog {
	t.Helper()
	k, err := InspectKafka(fs, metaDir, 1)
	if err != nil || k == nil {
		t.Fatalf("%+v %v", k, err)
	}
	return k
}

func kafkaIdentity() Identity { return identityOf(testVoter(1)) }

// Apache Kafka's metadata log is taken over: the image, the end and the epoch of it go on, Kafka's own files stay, and
// what is in the image comes back also after a restart that has only the newest snapshot and what follows.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	fs := kafkaOnDisk(t)
	k := inspect(t, fs)
	if !slices.Equal(k.Voters, []int32{1}) || k.KRaftVersion != 0 || k.Torn != "" || k.Returned || len(k.Problems(kafkaIdentity())) != 0 {
		t.Fatalf("%+v, %v", k, k.Problems(kafkaIdentity()))
	}
	if k.Image.ACLs().Len() != 1 || k.Image.ScramCredentials().Len() != 1 || k.Image.Feature("group.version") != 1 || k.Epoch != 1 || k.QuorumEpoch != 1 {
		t.Fatalf("%+v", k)
	}
	before, _ := vfs.ReadFile(fs, filepath.Join(testDir, "00000000000000000000.log"))
	if err := TakeOver(fs, k, kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	var last *metadata.Image
	for range 3 {
		if again, err := InspectKafka(fs, metaDir, 1); again != nil || err != nil {
			t.Fatalf("it is Kafka's still: %+v %v", again, err)
		}
		h := startHost(t, fs, Config{})
		img := h.Committed()
		if last == nil && h.Status().LeaderEpoch <= k.QuorumEpoch {
			t.Errorf("epoch %d is not above Kafka's %d", h.Status().LeaderEpoch, k.QuorumEpoch)
		}
		sameImage(t, k.Image, img)
		last = img
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := vfs.ReadFile(fs, filepath.Join(testDir, "00000000000000000000.log"))
	if !bytes.HasPrefix(after, before) || len(after) == len(before) {
		t.Errorf("the log of %d bytes has %d now, and should begin with them", len(before), len(after))
	}
	kept, err := vfs.ReadFile(fs, filepath.Join(testDir, KeptQuorumState))
	if q, parseErr := metadata.ParseQuorumState(kept); err != nil || parseErr != nil || q.LeaderEpoch != 1 {
		t.Errorf("%q %v %v", kept, err, parseErr)
	}
}

// A crash or a failure at any operation of a take-over leaves the directory Kafka's, or this quorum's, and never
// neither: the next start goes on to the same image.
func TestTakeOverAtEveryOperation(t *testing.T) {
	t.Parallel()
	points := 0
	for skip := 0; ; skip++ {
		disk := kafkaOnDisk(t)
		k := inspect(t, disk)
		failure := errors.New("injected")
		fault := vfs.NewFault(disk, vfs.Rule{Kind: vfs.OpAny, Skip: skip, Count: -1, Err: failure})
		err := TakeOver(fault, k, kafkaIdentity(), testVoter(1))
		if err == nil {
			break
		}
		for _, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome} {
			points++
			fs := disk.CrashClone(loss, uint64(skip))
			again, err := InspectKafka(fs, metaDir, 1)
			if err != nil {
				t.Fatalf("after operation %d: %v", skip, err)
			}
			if again != nil {
				if err := TakeOver(fs, again, kafkaIdentity(), testVoter(1)); err != nil {
					t.Fatalf("after operation %d: %v", skip, err)
				}
			}
			h := startHost(t, fs, Config{})
			sameImage(t, k.Image, h.Committed())
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if points < 20 {
		t.Errorf("%d points visited", points)
	}
}

// Bytes behind the last batch that are no batch were never acknowledged and are cut; a damaged batch that a whole one
// follows was, and is refused.
func TestTakeOverOfATornLog(t *testing.T) {
	t.Parallel()
	name := filepath.Join(testDir, "00000000000000000000.log")
	fs := kafkaOnDisk(t)
	whole := inspect(t, fs)
	data, _ := vfs.ReadFile(fs, name)
	torn := append(slices.Clone(data), data[len(data)-90:len(data)-20]...)
	if err := vfs.WriteFileAtomic(fs, name, torn); err != nil {
		t.Fatal(err)
	}
	k := inspect(t, fs)
	if k.Torn == "" || k.EndOffset != whole.EndOffset {
		t.Fatalf("torn %q, end %d instead of %d", k.Torn, k.EndOffset, whole.EndOffset)
	}
	if err := TakeOver(fs, k, kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	h := startHost(t, fs, Config{})
	sameImage(t, whole.Image, h.Committed())
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}

	damaged := slices.Clone(data)
	damaged[len(damaged)/2] ^= 1
	fs = kafkaOnDisk(t)
	if err := vfs.WriteFileAtomic(fs, name, damaged); err != nil {
		t.Fatal(err)
	}
	var refused *KafkaLogError
	if _, err := InspectKafka(fs, metaDir, 1); !errors.As(err, &refused) || !strings.Contains(err.Error(), name) {
		t.Errorf("%v", err)
	}
}

// A log that this quorum led last is not taken for Kafka's when raft-state is lost: its votes are forgotten, and Open
// says so.
func TestLostStateIsNoTakeOver(t *testing.T) {
	t.Parallel()
	fs := kafkaOnDisk(t)
	if err := TakeOver(fs, inspect(t, fs), kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	if err := startHost(t, fs, Config{}).Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove(filepath.Join(testDir, stateFileName)); err != nil {
		t.Fatal(err)
	}
	if k, err := InspectKafka(fs, metaDir, 1); k != nil || err != nil {
		t.Errorf("%+v %v", k, err)
	}
	if _, err := Open(hostOptions(fs, Config{})); !errors.Is(err, ErrNotFormatted) {
		t.Errorf("%v", err)
	}
}

// Where Kafka went on with a log after Stele, the log is Kafka's again, and is taken over a second time, above the
// epochs of both.
func TestTakeOverAfterReturn(t *testing.T) {
	t.Parallel()
	fs := kafkaOnDisk(t)
	if err := TakeOver(fs, inspect(t, fs), kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	h := startHost(t, fs, Config{})
	was := h.Status().LeaderEpoch
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	// Kafka's leader of the next epoch, as its LeaderChange and its checkpoint have it.
	name := filepath.Join(testDir, "00000000000000000000.log")
	data, _ := vfs.ReadFile(fs, name)
	end := int64(0)
	for at := 0; at < len(data); at += record.Batch(data[at:]).Length() {
		end = record.Batch(data[at:]).NextOffset()
	}
	led := controlBatch(end, was+1, 1, &metadata.LeaderChange{LeaderID: 1, Voters: []metadata.Voter{{VoterID: 1}}, GrantingVoters: []metadata.Voter{{VoterID: 1}}})
	if err := vfs.WriteFileAtomic(fs, name, append(data, led...)); err != nil {
		t.Fatal(err)
	}
	// Which of the two files tells of it does not matter: a crash may have come before the other.
	checkpoint := filepath.Join(testDir, epoch.CheckpointName)
	text, _ := vfs.ReadFile(fs, checkpoint)
	cache, err := epoch.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if cache, _, err = cache.Assign(was+1, end); err != nil {
		t.Fatal(err)
	}
	byEpochs := fs.CrashClone(vfs.LoseNothing, 0)
	if err := vfs.WriteFileAtomic(byEpochs, checkpoint, epoch.Format(cache)); err != nil {
		t.Fatal(err)
	}
	if k := inspect(t, byEpochs); !k.Returned || k.EndOffset != end+1 {
		t.Fatalf("%+v", k)
	}
	if err := writeQuorumState(fs, testDir, metadata.QuorumState{LeaderID: 1, LeaderEpoch: was + 1, VotedID: 1, CurrentVoters: []int32{1}}); err != nil {
		t.Fatal(err)
	}
	k := inspect(t, fs)
	if !k.Returned || k.EndOffset != end+1 {
		t.Fatalf("%+v", k)
	}
	if img, problems, err := Verify(fs, testDir); err != nil || len(problems) > 0 || img == nil {
		t.Errorf("what Kafka left does not verify: %v %v", problems, err)
	}
	if err := TakeOver(fs, k, kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	h = startHost(t, fs, Config{})
	defer h.Close()
	if h.Status().LeaderEpoch != was+2 {
		t.Errorf("epoch %d", h.Status().LeaderEpoch)
	}
	sameImage(t, k.Image, h.Committed())
}

// Voters that stand in the log (kraft.version 1) stand in every snapshot taken here too, so that Kafka's readers find
// them; a quorum of others, or of another disk of this node, is refused.
func TestTakeOverKeepsVotersInTheLog(t *testing.T) {
	t.Parallel()
	fs := kafkaOnDisk(t)
	k := inspect(t, fs)
	k.KRaftVersion, k.VoterSet = 1, testVoters(1)
	if err := TakeOver(fs, k, kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	h := startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 1}})
	waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > 1 })
	if h.KRaftVersion() != 1 {
		t.Errorf("kraft.version %d", h.KRaftVersion())
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	list, err := listSnapshots(fs, testDir)
	if err != nil || len(list) < 2 {
		t.Fatal(list, err)
	}
	for _, id := range list {
		head, err := snapshotHead(fs, filepath.Join(testDir, id.file()))
		if err != nil || len(head) != 2 || head[0].(*metadata.KRaftVersion).KRaftVersion != 1 || head[1].(*metadata.Voters).Voters[0].VoterID != 1 {
			t.Errorf("%s: %v %v", id, head, err)
		}
	}

	k.Voters = []int32{1, 2, 3}
	k.VoterSet[0].VoterDirectoryID = metadata.UUID{1: 9}
	if found := k.Problems(kafkaIdentity()); len(found) != 2 || !strings.Contains(found[0], "1, 2, 3") || !strings.Contains(found[1], "directory id") {
		t.Errorf("%q", found)
	}
}

// A directory that was formatted by Kafka and never started is taken over at offset 0; credentials that wait for the
// first start would be lost, and are a reason to refuse.
func TestTakeOverOfAFormattedDirectory(t *testing.T) {
	t.Parallel()
	fs := kafkaOnDisk(t)
	for _, name := range []string{"00000000000000000000.log", "00000000000000000064-0000000001.checkpoint", "leader-epoch-checkpoint", "quorum-state"} {
		if err := fs.Remove(filepath.Join(testDir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	entries, _ := fs.ReadDir(testDir)
	for _, e := range entries {
		if id, ok := parseSnapshotName(e.Name()); ok && id != (SnapshotID{}) {
			if err := fs.Remove(filepath.Join(testDir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	k := inspect(t, fs)
	if k.EndOffset != 0 || len(k.Problems(kafkaIdentity())) != 0 {
		t.Fatalf("%+v %v", k, k.Problems(kafkaIdentity()))
	}
	if err := TakeOver(fs, k, kafkaIdentity(), testVoter(1)); err != nil {
		t.Fatal(err)
	}
	h := startHost(t, fs, Config{})
	defer h.Close()
	if h.Committed().MetadataVersion() != metadata.LevelLatest {
		t.Errorf("%v", h.Committed().MetadataVersion())
	}
	forming := kafkaOnDisk(t)
	for _, e := range entries {
		if e.Name() != (SnapshotID{}).file() {
			if err := forming.Remove(filepath.Join(testDir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"00000000000000000000.log", "00000000000000000064-0000000001.checkpoint", "leader-epoch-checkpoint", "quorum-state"} {
		_ = forming.Remove(filepath.Join(testDir, name))
	}
	if err := MarkForming(forming, metaDir); err != nil {
		t.Fatal(err)
	}
	if k, err := InspectKafka(forming, metaDir, 1); k != nil || err != nil {
		t.Errorf("a quorum that forms here is taken for Kafka's: %+v %v", k, err)
	}
	k.Prepared = 2
	if found := k.Problems(kafkaIdentity()); len(found) != 1 || !strings.Contains(found[0], "2 records") {
		t.Errorf("%q", found)
	}
}
