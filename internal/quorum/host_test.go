package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testCodes stands in for the server's table.
func testCodes(err error) int16 {
	var fenced *FencedLeaderEpochError
	var unknown *UnknownLeaderEpochError
	switch {
	case errors.As(err, &fenced):
		return 74
	case errors.As(err, &unknown):
		return 75
	}
	for e, code := range map[error]int16{
		ErrNotLeaderOrFollower: 6, ErrBrokerNotAvailable: 8, ErrInconsistentClusterID: 104, ErrInvalidRequest: 42,
		ErrUnknownTopicOrPartition: 3, ErrSnapshotNotFound: 98, ErrPositionOutOfRange: 99,
	} {
		if errors.Is(err, e) {
			return code
		}
	}
	return -1
}

const metaDir = "/meta"

func formatHost(t testing.TB, fs vfs.FS) {
	t.Helper()
	if err := fs.MkdirAll(metaDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := fs.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	err := Format(FormatOptions{
		FS: fs, Dir: metaDir, Identity: identityOf(testVoter(1)), Voters: testVoters(1),
		Bootstrap: metadata.BootstrapRecords(metadata.LevelLatest),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func hostOptions(fs vfs.FS, c Config) Options {
	return Options{
		FS: fs, Dir: metaDir, Identity: identityOf(testVoter(1)), Config: c, Logger: quiet, ErrorCode: testCodes,
		Controller: controller.Options{NodeID: 1, ClusterID: "test-cluster", Rand: rand.New(rand.NewPCG(1, 2))},
	}
}

func startHost(t testing.TB, fs vfs.FS, c Config, change ...func(*Options)) *Host {
	t.Helper()
	o := hostOptions(fs, c)
	for _, f := range change {
		f(&o)
	}
	h, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Start()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.WaitActive(ctx); err != nil {
		t.Fatal(err)
	}
	return h
}

func closeHost(t testing.TB, h *Host) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

// setConfig is a small change of the cluster: one record, whose value can be found again.
func setConfig(t testing.TB, h *Host, topic, value string) (int64, error) {
	t.Helper()
	return setConfigWithin(t.Context(), h, topic, value)
}

func setConfigWithin(ctx context.Context, h *Host, topic, value string) (int64, error) {
	reply, err := h.Do(ctx, func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return controller.Result{
			Records: []metadata.Record{&metadata.ConfigRecord{ResourceType: metadata.ResourceTopic, ResourceName: topic, Name: "retention.ms", Value: &value}},
			Reply:   next,
		}, nil
	})
	if err != nil {
		return 0, err
	}
	return reply.(int64), nil
}

func configOf(img *metadata.Image, topic string) string {
	v, _ := img.ConfigValue(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: topic}, "retention.ms")
	return v
}

// sameImage compares two images by what a snapshot of them would hold.
func sameImage(t testing.TB, a, b *metadata.Image) {
	t.Helper()
	av, err1 := a.Encoded()
	bv, err2 := b.Encoded()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(av) != fmt.Sprint(bv) {
		t.Fatalf("images differ at offsets %d and %d:\n%x\n%x", a.Offset(), b.Offset(), av, bv)
	}
}

// M-005: the log of a fresh node begins with LeaderChange of nobody, then the bootstrap transaction, in that order.
func TestM005_fresh_log(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	if _, err := setConfig(t, h, "a", "1"); err != nil {
		t.Fatal(err)
	}
	closeHost(t, h)
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var names []string
	err = s.batches(0, 1<<62, 1<<20, func(b record.Batch) (bool, error) {
		if b.PartitionLeaderEpoch() != 1 {
			t.Errorf("batch at %d has epoch %d", b.BaseOffset(), b.PartitionLeaderEpoch())
		}
		if b.IsControl() {
			rec, err := onlyControl(b)
			if lc, ok := rec.(*metadata.LeaderChange); err != nil || !ok || lc.LeaderID != -1 || len(lc.Voters)+len(lc.GrantingVoters) > 0 {
				t.Errorf("control record %+v, %v", rec, err)
			}
			names = append(names, "LeaderChange")
		}
		recs, err := decodeRecords(b)
		for _, rec := range recs {
			names = append(names, metadata.RecordName(rec))
		}
		return true, err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "LeaderChange BeginTransactionRecord FeatureLevelRecord"
	got := strings.Join(names, " ")
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "EndTransactionRecord ConfigRecord") {
		t.Errorf("log holds %s", got)
	}
}

// M-006: a snapshot has its name, header, records in order and footer; loading it alone gives the image of the log.
func TestM006_snapshot_equals_log(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 400}})
	for i := range 30 {
		if _, err := setConfig(t, h, fmt.Sprint("topic-", i), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > 0 })
	image := h.Committed()
	closeHost(t, h)

	st, err := readState(fs, testDir, identityOf(testVoter(1)))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(testDir, st.snapshot.snapshotID().file())
	loaded, err := readImage(fs, name, st.snapshot)
	if err != nil {
		t.Fatal(err)
	}
	// The rest of the log on top of it.
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	c := controller.New(hostOptions(fs, Config{}).Controller)
	c.Load(loaded)
	whole := controller.New(hostOptions(fs, Config{}).Controller)
	for at, c := range map[int64]*controller.Controller{st.snapshot.EndOffset: c, 0: whole} {
		err := s.batches(at, image.Offset()+1, 1<<20, func(b record.Batch) (bool, error) {
			recs, err := decodeRecords(b)
			if err != nil {
				return false, err
			}
			return true, c.Replay(b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), recs)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sameImage(t, c.Image(), whole.Image())
	sameImage(t, c.Image(), image)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	data, err := vfs.ReadFile(fs, name)
	if err != nil {
		t.Fatal(err)
	}
	if first := record.Batch(data[:record.Batch(data).Length()]); !first.IsControl() || first.BaseOffset() != 0 || first.PartitionLeaderEpoch() != int32(st.snapshot.Term) {
		t.Errorf("snapshot begins with %v", first)
	}
	for cut := range len(data) {
		if walkSnapshot(data[:cut], func([]byte) error { return nil }) == nil {
			t.Fatalf("a snapshot cut at %d of %d bytes passes for whole", cut, len(data))
		}
	}
}

func waitFor(t testing.TB, h *Host, what func(*Status) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		s := h.Status()
		if what(s) {
			return
		}
		select {
		case <-s.Changed():
		case <-h.Done():
			t.Fatalf("host stopped: %v", h.Err())
		case <-deadline:
			t.Fatalf("status stays %+v", s)
		}
	}
}

// M-007: after many snapshots with little retention the newest is there, the log starts where one of them ends, and the
// retired files are gone.
func TestM007_retention(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{SegmentBytes: 1 << 14, Snapshots: SnapshotRules{BytesBetween: 2000, RetentionBytes: 1 << 15, DeleteDelay: time.Nanosecond}})
	start := int64(0)
	// How many snapshots there are by then depends on how soon their writers run.
	for i := 0; i < 600 || start == 0 && i < 100_000; i++ {
		if _, err := setConfig(t, h, fmt.Sprint("topic-", i%50), strings.Repeat("1", 1+i%9)); err != nil {
			t.Fatal(err)
		}
		view := h.core.node.store.log.View()
		start = view.LogStartOffset
		view.Release()
	}
	snapshots := h.Status().snapshots
	image := h.Committed()
	swept := make(chan error, 1)
	if err := h.post(func() error { swept <- h.core.keeper.sweep(time.Now().Add(2 * time.Minute)); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	for _, e := range entriesOf(t, fs) {
		if strings.HasSuffix(e.Name(), ".deleted") {
			t.Errorf("%s is still there", e.Name())
		}
	}
	closeHost(t, h)
	if start == 0 {
		t.Errorf("log still starts at 0 with snapshots %v", snapshots)
	}
	h = startHost(t, fs, Config{})
	defer closeHost(t, h)
	list, err := listSnapshots(fs, testDir)
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	found := false
	for _, id := range list {
		found = found || id.EndOffset == h.core.node.store.state.base.EndOffset
	}
	if !found {
		t.Errorf("log starts at %d, snapshots are %v", h.core.node.store.state.base.EndOffset, list)
	}
	entries, _ := fs.ReadDir(testDir)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".checkpoint.deleted") || strings.HasSuffix(e.Name(), ".part") {
			t.Errorf("%s is left over", e.Name())
		}
	}
	sameImage(t, h.Committed(), image)
}

func entriesOf(t testing.TB, fs vfs.FS) []os.DirEntry {
	t.Helper()
	entries, err := fs.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// M-008: whatever file operation is the last before a kill, also in the middle of a snapshot, the node starts again,
// half files go, and nothing that was answered is lost.
func TestM008_kill_at_every_operation(t *testing.T) {
	t.Parallel()
	rules := Config{Snapshots: SnapshotRules{BytesBetween: 600, RetentionBytes: 2000}}
	for skip := 0; skip < 160; skip += 1 + skip/20 {
		for _, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome} {
			mem := vfs.NewMem()
			formatHost(t, mem)
			disk := vfs.NewFault(mem)
			disk.Add(vfs.Rule{Kind: vfs.OpAny, Skip: skip, Count: -1, Err: errPulled, Short: skip % 50})
			answered := map[string]string{}
			h, err := Open(hostOptions(disk, rules))
			if err == nil {
				h.Start()
				for i := range 60 {
					topic, value := fmt.Sprint("topic-", i%7), fmt.Sprint(i)
					if _, err := setConfig(t, h, topic, value); err == nil {
						answered[topic] = value
					} else if !errors.Is(err, ErrNotController) {
						t.Fatal(err)
					} else if h.Err() != nil {
						break
					}
				}
				h.Close()
			}
			mem = mem.CrashClone(loss, uint64(skip))
			h = startHost(t, mem, rules)
			for topic, value := range answered {
				if got := configOf(h.Committed(), topic); got != value && !later(got, value) {
					t.Errorf("kill at operation %d: %s is %q, %q was answered", skip, topic, got, value)
				}
			}
			entries, _ := mem.ReadDir(testDir)
			for _, e := range entries {
				if strings.HasSuffix(e.Name(), ".part") {
					t.Errorf("kill at operation %d: %s is left over", skip, e.Name())
				}
			}
			closeHost(t, h)
		}
	}
}

// later says whether a written value may be of a later, unanswered request than another.
func later(got, answered string) bool {
	return len(got) >= len(answered) && got > answered || len(got) > len(answered)
}

// M-008: a log that is behind its snapshot starts over there; one that lost more than that is refused.
func TestM008_snapshot_ahead_of_the_log(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1))
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	entry := func(index uint64) mappingEntry { return mappingEntry{index, 1} }
	saveEntries(t, s, 1, entry(2), entry(3), entry(4))
	at, err := s.place(s.runs.nextOffs)
	if err != nil {
		t.Fatal(err)
	}
	s.state.commit = 4
	if err := writeSnapshot(fs, testDir, at.snapshotID(), at.Timestamp, func(func([]byte) bool) {}); err != nil {
		t.Fatal(err)
	}
	if err := s.snapshotTaken(at, s.state.membership, s.state.voters); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	lose := func() {
		entries, _ := fs.ReadDir(testDir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "0000") && !strings.HasSuffix(e.Name(), ".checkpoint") {
				if err := fs.Remove(filepath.Join(testDir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	lose()
	if s, err = openTest(fs, testVoter(1)); err != nil {
		t.Fatal(err)
	}
	first, _ := s.FirstIndex()
	if first != 5 || s.endOffset() != at.EndOffset || s.state.base != at {
		t.Errorf("log starts over with index %d at offset %d", first, s.endOffset())
	}
	saveEntries(t, s, 1, entry(5))
	s.state.commit = 5
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	lose()
	var lost *LostEntriesError
	if _, err = openTest(fs, testVoter(1)); !errors.As(err, &lost) || lost.Commit != 5 {
		t.Errorf("a log that lost committed entries opens: %v", err)
	}
}

// M-009: over 50 restarts quorum-state parses and its epoch never falls; each start is a new epoch that knows all.
func TestM009_epoch_never_falls(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	epoch := int32(0)
	for i := range 50 {
		h := startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 300}})
		if got := configOf(h.Committed(), "a"); i > 0 && got != fmt.Sprint(i-1) {
			t.Fatalf("restart %d: config is %q", i, got)
		}
		if _, err := setConfig(t, h, "a", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			closeHost(t, h)
		} else {
			killed := fs.CrashClone(vfs.LoseUnsynced, uint64(i))
			closeHost(t, h)
			fs = killed
		}
		text, err := vfs.ReadFile(fs, filepath.Join(testDir, quorumStateName))
		if err != nil {
			t.Fatal(err)
		}
		q, err := metadata.ParseQuorumState(text)
		if err != nil {
			t.Fatal(err)
		}
		if q.LeaderEpoch <= epoch || q.LeaderID != 1 || q.VotedID != 1 || len(q.CurrentVoters) != 1 {
			t.Fatalf("restart %d: quorum-state %s after epoch %d", i, text, epoch)
		}
		epoch = q.LeaderEpoch
	}
}

// M-020: a request is told the offset its first record gets, with others in the same write before it.
func TestM020_next_offset_is_where_records_land(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	var wg sync.WaitGroup
	var mu sync.Mutex
	at := map[int64]string{}
	for i := range 200 {
		wg.Go(func() {
			topic := fmt.Sprint("topic-", i)
			offset, err := setConfig(t, h, topic, "1")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			at[offset] = topic
		})
	}
	wg.Wait()
	if len(at) != 200 {
		t.Fatalf("%d different offsets for 200 requests", len(at))
	}
	hw := h.Status().HighWatermark
	err := h.core.node.store.batches(0, hw, 1<<20, func(b record.Batch) (bool, error) {
		recs, err := decodeRecords(b)
		for i, rec := range recs {
			if c, ok := rec.(*metadata.ConfigRecord); ok && c.ResourceType == metadata.ResourceTopic && at[b.BaseOffset()+int64(i)] != c.ResourceName {
				t.Errorf("offset %d holds %s, its request was told %s", b.BaseOffset()+int64(i), c.ResourceName, at[b.BaseOffset()+int64(i)])
			}
		}
		return true, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Requests that arrive together share a sync: many of them cost far fewer than one each.
func TestHostGroupsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewFault(vfs.NewMem())
		formatHost(t, disk)
		h := startHost(t, disk, Config{})
		defer closeHost(t, h)
		// The loop stands still while the requests arrive.
		hold := make(chan struct{})
		if err := h.post(func() error { <-hold; return nil }); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if _, err := setConfig(t, h, fmt.Sprint(i), "1"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		disk.Trace()
		close(hold)
		wg.Wait()
		syncs := 0
		for _, op := range disk.Operations() {
			if strings.HasPrefix(op, "sync ") {
				syncs++
			}
		}
		if syncs == 0 || syncs > 3 {
			t.Errorf("%d syncs for 100 requests that came together", syncs)
		}
	})
}

// A voter whose disk is empty, another's, or another cluster's, is refused, and formatting twice is.
func TestHostRefusesForeignDisks(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(hostOptions(fs, Config{})); !errors.Is(err, ErrNotFormatted) {
		t.Errorf("an empty disk opens: %v", err)
	}
	formatHost(t, fs)
	err := Format(FormatOptions{FS: fs, Dir: metaDir, Identity: identityOf(testVoter(1)), Voters: testVoters(1), Bootstrap: metadata.BootstrapRecords(metadata.LevelLatest)})
	if !errors.Is(err, ErrFormatted) {
		t.Errorf("formatted twice: %v", err)
	}
	for _, change := range []func(*Identity){
		func(i *Identity) { i.ClusterID = "another" },
		func(i *Identity) { i.NodeID = 2 },
		func(i *Identity) { i.DirectoryID[3]++ },
	} {
		o := hostOptions(fs, Config{})
		change(&o.Identity)
		var foreign *ForeignDiskError
		if _, err := Open(o); !errors.As(err, &foreign) {
			t.Errorf("%s opens: %v", o.Identity, err)
		}
	}
	data, err := vfs.ReadFile(fs, filepath.Join(testDir, stateFileName))
	if err != nil {
		t.Fatal(err)
	}
	for at := range data {
		bad := append([]byte(nil), data...)
		bad[at] ^= 0x10
		if _, err := decodeState(bad); err == nil {
			t.Errorf("state with a flipped bit in byte %d is read", at)
		}
		if _, err := decodeState(data[:at]); err == nil {
			t.Errorf("state cut at %d is read", at)
		}
	}
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	if err := h.Admit(identityOf(testVoter(1))); err != nil {
		t.Error(err)
	}
	wiped := identityOf(testVoter(1))
	wiped.DirectoryID[0]++
	var foreign *ForeignVoterError
	if err := h.Admit(wiped); !errors.As(err, &foreign) || !foreign.Known {
		t.Errorf("a voter with an emptied disk is admitted: %v", err)
	}
	if err := h.Receive(t.Context(), identityOf(testVoter(2)), nil); !errors.As(err, &foreign) || foreign.Known {
		t.Errorf("a stranger is admitted: %v", err)
	}
}

// A disk that fails stops the host with the reason, and those who wait are told.
func TestHostStopsWhenItsDiskFails(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	formatHost(t, disk)
	h := startHost(t, disk, Config{})
	disk.Add(vfs.Rule{Kind: vfs.OpSync, Count: -1, Err: errPulled})
	if _, err := setConfig(t, h, "a", "1"); !errors.Is(err, ErrNotController) {
		t.Errorf("answer without a sync: %v", err)
	}
	<-h.Done()
	if !errors.Is(h.Err(), errPulled) {
		t.Errorf("host stopped with %v", h.Err())
	}
	if _, err := setConfig(t, h, "a", "1"); !errors.Is(err, ErrNotController) {
		t.Errorf("a stopped host answers %v", err)
	}
	h.Close()
}

func newTestController(fs vfs.FS) *controller.Controller {
	return controller.New(hostOptions(fs, Config{}).Controller)
}

// A request whose code panics gets an error of its own; the next one is served.
func TestHostSurvivesAPanickingRequest(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	_, err := h.Do(t.Context(), func(*controller.Controller, time.Time, int64) (controller.Result, error) { panic("a mistake") })
	var panicked *PanicError
	if !errors.As(err, &panicked) || panicked.Value != "a mistake" {
		t.Errorf("answered %v", err)
	}
	if _, err := setConfig(t, h, "a", "1"); err != nil {
		t.Error(err)
	}
}

// A request that is refused, by the controller or for records that fit no batch, changes nothing and is told why.
func TestHostRefusals(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	refusal := errors.New("refused")
	_, err := h.Do(t.Context(), func(*controller.Controller, time.Time, int64) (controller.Result, error) {
		return controller.Result{Err: refusal}, nil
	})
	if !errors.Is(err, refusal) {
		t.Errorf("answered %v", err)
	}
	large := strings.Repeat("x", 3<<20)
	ask := func(atomic bool) error {
		_, err := h.Do(t.Context(), func(*controller.Controller, time.Time, int64) (controller.Result, error) {
			var recs []metadata.Record
			for i := range 4 {
				recs = append(recs, &metadata.ConfigRecord{ResourceType: metadata.ResourceTopic, ResourceName: fmt.Sprint(i), Name: "retention.ms", Value: &large})
			}
			return controller.Result{Records: recs, Atomic: atomic}, nil
		})
		return err
	}
	if err := ask(true); err == nil || configOf(h.Committed(), "0") != "" {
		t.Errorf("12 MiB in one batch: %v", err)
	}
	if err := ask(false); err != nil || configOf(h.Committed(), "3") != large {
		t.Errorf("12 MiB in several batches: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hold := make(chan struct{})
	if err := h.post(func() error { <-hold; return nil }); err != nil {
		t.Fatal(err)
	}
	_, err = h.Do(ctx, func(*controller.Controller, time.Time, int64) (controller.Result, error) {
		return controller.Result{}, nil
	})
	close(hold)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
}

// A host that was never started closes, and another opens the directory.
func TestHostClosesUnstarted(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h, err := Open(hostOptions(fs, Config{}))
	if err != nil {
		t.Fatal(err)
	}
	closeHost(t, h)
	closeHost(t, startHost(t, fs, Config{}))
}

// A disk whose log can no longer be read stops the host with the reason; it does not take the process along.
func TestHostStopsWhenItsLogCannotBeRead(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	formatHost(t, disk)
	closeHost(t, startHost(t, disk, Config{}))
	h, err := Open(hostOptions(disk, Config{}))
	if err != nil {
		t.Fatal(err)
	}
	disk.Add(vfs.Rule{Kind: vfs.OpRead, Count: -1, Err: errPulled})
	h.Start()
	<-h.Done()
	if !errors.Is(h.Err(), errPulled) {
		t.Errorf("host stopped with %v", h.Err())
	}
}

// A directory that is taken away under a voter, whose open files go on being written, stops the host within seconds, and the
// error names it.
func TestHostStopsWhenItsDirectoryIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		formatHost(t, mem)
		h := startHost(t, mem, Config{})
		if _, err := setConfig(t, h, "a", "1"); err != nil {
			t.Fatal(err)
		}
		dir := partitionDir(h.core.o.Dir)
		if err := mem.Rename(dir, dir+".gone"); err != nil {
			t.Fatal(err)
		}
		<-h.Done()
		var gone *DirectoryGoneError
		if !errors.As(h.Err(), &gone) || gone.Dir != dir {
			t.Errorf("host stopped with %v", h.Err())
		}
		h.Close()
	})
}

// On a real disk: format, start, snapshot, start again. Snapshots are read-only.
func TestHostOnARealDisk(t *testing.T) {
	t.Parallel()
	o := hostOptions(vfs.OS(), Config{Snapshots: SnapshotRules{BytesBetween: 1}})
	o.Dir = t.TempDir()
	err := Format(FormatOptions{FS: o.FS, Dir: o.Dir, Identity: o.Identity, Voters: testVoters(1), Bootstrap: metadata.BootstrapRecords(metadata.LevelLatest)})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		h, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		h.Start()
		if err := h.WaitActive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := configOf(h.Committed(), "a"); round > 0 && got != fmt.Sprint(round-1) {
			t.Errorf("round %d: config %q", round, got)
		}
		if _, err := setConfig(t, h, "a", fmt.Sprint(round)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > round })
		newest := h.Status().snapshots[round]
		info, err := o.FS.Stat(filepath.Join(partitionDir(o.Dir), newest.file()))
		if err != nil || info.Mode().Perm() != 0o444 {
			t.Errorf("snapshot %s: %v, %v", newest, info, err)
		}
		closeHost(t, h)
	}
}

// Records that must stand or fall together are one batch, however many they are, and refused if they cannot be one.
func TestAtomicRecordsAreOneBatch(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	build := func(atomic bool, n, size int) (batches int, err error) {
		var records []metadata.Record
		for i := range n {
			records = append(records, &metadata.ConfigRecord{ResourceType: metadata.ResourceTopic, ResourceName: fmt.Sprint(i), Name: "x", Value: new(strings.Repeat("v", size))})
		}
		done := make(chan struct{})
		if err := h.post(func() error {
			defer close(done)
			var out []built
			out, err = h.core.machine.build(controller.Result{Records: records, Atomic: atomic}, time.Now())
			batches = len(out)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		<-done
		return batches, err
	}
	many := controller.MaxRecordsPerRequest + 5
	if n, err := build(true, many, 1); n != 1 || err != nil {
		t.Errorf("%d atomic records: %d batches, %v", many, n, err)
	}
	if n, err := build(false, many, 1); n != 2 || err != nil {
		t.Errorf("%d records: %d batches, %v", many, n, err)
	}
	if _, err := build(true, 10, maxBatchBytes/9); err == nil {
		t.Error("atomic records larger than a batch are taken")
	}
	if n, err := build(false, 10, maxBatchBytes/9); n != 2 || err != nil {
		t.Errorf("large records: %d batches, %v", n, err)
	}
}
