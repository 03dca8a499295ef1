package quorum

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchRequest is an observer's fetch, of newest version, under the host's epoch and without waiting.
func fetchRequest(version int16, leaderEpoch int32, offset int64, lastEpoch int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.SessionEpoch = version, 1<<20, -1
	req.ReplicaID, req.ReplicaState.ID = 7, 7
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = TopicName, TopicID
	part := kmsg.NewFetchRequestTopicPartition()
	part.CurrentLeaderEpoch, part.FetchOffset, part.LastFetchedEpoch = leaderEpoch, offset, lastEpoch
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	return req
}

// fetchOne fetches and returns the partition's answer, which must be there.
func fetchOne(t testing.TB, h *Host, req *kmsg.FetchRequest) kmsg.FetchResponseTopicPartition {
	t.Helper()
	resp := h.Fetch(t.Context(), req, "CONTROLLER")
	if resp.ErrorCode != 0 || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		t.Fatalf("answer %+v", resp)
	}
	return resp.Topics[0].Partitions[0]
}

// M-032: an observer that knows nothing asks under epoch 0 and gets 74 with the leader; from version 17 on also its
// endpoint.
func TestM032_fresh_observer_learns_the_leader(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	for version := int16(12); version <= 18; version++ {
		req := fetchRequest(version, 0, 0, 0)
		resp := h.Fetch(t.Context(), req, "CONTROLLER")
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != 74 || p.CurrentLeader.LeaderID != 1 || p.CurrentLeader.LeaderEpoch != 1 || p.HighWatermark != -1 {
			t.Errorf("version %d: %+v", version, p)
		}
		if version < 17 && len(resp.Brokers) != 0 || version >= 17 && (len(resp.Brokers) != 1 || resp.Brokers[0].Host != "c1" || resp.Brokers[0].Port != 9001) {
			t.Errorf("version %d: endpoints %+v", version, resp.Brokers)
		}
	}
}

// M-033, M-034: requests that cannot be: 42 at the level it belongs to, 104, 75; a null cluster id is served.
func TestM034_bad_requests(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	defer closeHost(t, h)
	for name, c := range map[string]struct {
		change    func(*kmsg.FetchRequest)
		top, part int16
	}{
		"good":             {func(*kmsg.FetchRequest) {}, 0, 0},
		"own cluster id":   {func(r *kmsg.FetchRequest) { r.ClusterID = new("test-cluster") }, 0, 0},
		"other cluster id": {func(r *kmsg.FetchRequest) { r.ClusterID = new("another") }, 104, 0},
		"no topic":         {func(r *kmsg.FetchRequest) { r.Topics = nil }, 42, 0},
		"two topics":       {func(r *kmsg.FetchRequest) { r.Topics = append(r.Topics, r.Topics[0]) }, 42, 0},
		"two partitions": {func(r *kmsg.FetchRequest) {
			r.Topics[0].Partitions = append(r.Topics[0].Partitions, r.Topics[0].Partitions[0])
		}, 42, 0},
		"other id":                 {func(r *kmsg.FetchRequest) { r.Topics[0].TopicID[15] = 2 }, 42, 0},
		"partition 1":              {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].Partition = 1 }, 42, 0},
		"other name at version 12": {func(r *kmsg.FetchRequest) { r.Version, r.Topics[0].Topic = 12, "a" }, 42, 0},
		"wait < 0":                 {func(r *kmsg.FetchRequest) { r.MaxWaitMillis = -1 }, 0, 42},
		"offset < 0":               {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = -1 }, 0, 42},
		"last epoch -1":            {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].LastFetchedEpoch = -1 }, 0, 42},
		"last epoch > current":     {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].LastFetchedEpoch = 2 }, 0, 42},
		"epoch + 1":                {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = 2 }, 0, 75},
	} {
		req := fetchRequest(18, 1, 0, 0)
		c.change(req)
		resp := h.Fetch(t.Context(), req, "CONTROLLER")
		if resp.ErrorCode != c.top {
			t.Errorf("%s: error %d, want %d", name, resp.ErrorCode, c.top)
		}
		if c.top == 0 && resp.Topics[0].Partitions[0].ErrorCode != c.part {
			t.Errorf("%s: partition error %d, want %d", name, resp.Topics[0].Partitions[0].ErrorCode, c.part)
		}
	}
}

// M-035: a fetch from 0 gets records, or the snapshot's id once there is one, though the log starts at 0 still.
func TestM035_fetch_from_zero(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{})
	p := fetchOne(t, h, fetchRequest(17, 1, 0, 0))
	if p.SnapshotID.EndOffset != -1 || len(p.RecordBatches) == 0 || record.Batch(p.RecordBatches).BaseOffset() != 0 {
		t.Errorf("without a snapshot: %+v", p.SnapshotID)
	}
	if p.LogStartOffset != 0 || p.HighWatermark <= 0 {
		t.Errorf("log start %d, high watermark %d", p.LogStartOffset, p.HighWatermark)
	}
	closeHost(t, h)

	h = startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 1}})
	defer closeHost(t, h)
	if _, err := setConfig(t, h, "a", "1"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > 0 })
	p = fetchOne(t, h, fetchRequest(17, 2, 0, 0))
	if p.SnapshotID.EndOffset <= 0 || len(p.RecordBatches) != 0 || p.LogStartOffset != 0 {
		t.Errorf("with a snapshot: %+v, %d bytes, log start %d", p.SnapshotID, len(p.RecordBatches), p.LogStartOffset)
	}
}

// M-036: the table of a leader's answers, on epochs {1:0, 2:50, 4:95}, oldest snapshot (60, 2), end offset 100.
func TestM036_answers_by_epoch_and_offset(t *testing.T) {
	t.Parallel()
	cache := epoch.Cache{}
	for _, e := range []epoch.Entry{{Epoch: 1, StartOffset: 0}, {Epoch: 2, StartOffset: 50}, {Epoch: 4, StartOffset: 95}} {
		next, _, err := cache.Assign(e.Epoch, e.StartOffset)
		if err != nil {
			t.Fatal(err)
		}
		cache = next
	}
	for _, start := range []int64{0, 60} {
		epochs := cache.TruncateFromStart(start)
		shape := logShape{logStart: start, end: 100, epochs: epochs, snapshots: []SnapshotID{{60, 2}, {90, 2}}}
		for at, want := range map[fetchPoint]string{
			{0, 0}: "snapshot", {0, 4}: "snapshot",
			{40, 1}: "snapshot", {60, 1}: "snapshot", {80, 1}: "snapshot",
			{60, 2}: "records", {90, 2}: "records", {97, 4}: "records", {100, 4}: "records",
			{97, 2}: "diverging 95 2", {120, 2}: "diverging 95 2", {90, 3}: "diverging 95 2", {101, 4}: "diverging 100 4",
		} {
			got := "records"
			switch v := shape.judge(at); {
			case v.snapshot != nil:
				got = "snapshot"
				if *v.snapshot != (SnapshotID{90, 2}) {
					got = v.snapshot.String()
				}
			case v.diverging != nil:
				got = fmt.Sprint("diverging ", v.diverging.Offset, " ", v.diverging.Epoch)
			}
			if got != want {
				t.Errorf("log start %d, fetch %+v: %s, want %s", start, at, got, want)
			}
		}
	}
	// A log that holds nothing but a snapshot serves whoever has that.
	empty := logShape{logStart: 60, end: 60, snapshots: []SnapshotID{{60, 2}}}
	if v := empty.judge(fetchPoint{60, 2}); v.snapshot != nil || v.diverging != nil {
		t.Errorf("the snapshot's own end: %+v", v)
	}
}

// M-037: an idle poll is answered empty after 500 ms, a NoOp wakes it, and a version 18 fetcher with an old high
// watermark is answered at once.
func TestM037_long_poll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		formatHost(t, fs)
		h := startHost(t, fs, Config{})
		defer closeHost(t, h)
		noOp := func() (at time.Time) { // the next NoOp is written 500 ms after the last
			hw := h.Status().HighWatermark
			waitFor(t, h, func(s *Status) bool { return s.HighWatermark > hw })
			return time.Now()
		}
		last := noOp()
		hw := h.Status().HighWatermark
		idle := func(version int16, known int64, wait int32) (time.Duration, kmsg.FetchResponseTopicPartition) {
			req := fetchRequest(version, 1, hw, 1)
			req.MaxWaitMillis, req.Topics[0].Partitions[0].HighWatermark = wait, known
			begin := time.Now()
			p := fetchOne(t, h, req)
			return time.Since(begin), p
		}
		if took, p := idle(18, hw-1, 500); took != 0 || p.HighWatermark != hw {
			t.Errorf("old high watermark: answered after %v with %d", took, p.HighWatermark)
		}
		if took, p := idle(18, hw, 400); took != 400*time.Millisecond || len(p.RecordBatches) != 0 || p.ErrorCode != 0 {
			t.Errorf("idle: answered after %v, %d bytes", took, len(p.RecordBatches))
		}
		_, p := idle(17, 1<<63-1, 500)
		if woken := time.Since(last); len(p.RecordBatches) == 0 || woken < 500*time.Millisecond || woken > 600*time.Millisecond {
			t.Errorf("NoOp: %d bytes %v after the last one", len(p.RecordBatches), woken)
		}
		hw = h.Status().HighWatermark
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		req := fetchRequest(18, 1, hw, 1)
		req.MaxWaitMillis, req.Topics[0].Partitions[0].HighWatermark = 1<<30, hw
		if resp := h.Fetch(ctx, req, "CONTROLLER"); resp.Topics[0].Partitions[0].ErrorCode != 0 {
			t.Errorf("a fetch whose asker left: %+v", resp)
		}
	})
}

// A fetch that waits when the node stops is told 8, and one under an epoch that ends 6.
func TestFetchWokenByShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		formatHost(t, fs)
		h := startHost(t, fs, Config{})
		hw := h.Status().HighWatermark
		code := make(chan int16)
		go func() {
			req := fetchRequest(18, 1, hw+1000, 1)
			req.Topics[0].Partitions[0].FetchOffset = hw
			req.MaxWaitMillis, req.Topics[0].Partitions[0].HighWatermark = 400, hw
			code <- h.Fetch(context.Background(), req, "CONTROLLER").Topics[0].Partitions[0].ErrorCode
		}()
		synctest.Wait()
		closeHost(t, h)
		if got := <-code; got != 8 {
			t.Errorf("error %d", got)
		}
	})
}

// M-038: FetchSnapshot in pieces of 7 bytes gives the file; 98, 99, 3, 104 and the epochs' errors; (0, 0) is no snapshot.
func TestM038_fetch_snapshot(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 1}})
	defer closeHost(t, h)
	waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > 0 })
	id := h.Status().snapshots[0]
	ask := func(change func(*kmsg.FetchSnapshotRequest, *kmsg.FetchSnapshotRequestTopicPartition)) (*kmsg.FetchSnapshotResponse, kmsg.FetchSnapshotResponseTopicPartition) {
		req := kmsg.NewPtrFetchSnapshotRequest()
		req.Version, req.MaxBytes = 1, 7
		topic := kmsg.NewFetchSnapshotRequestTopic()
		topic.Topic = TopicName
		part := kmsg.NewFetchSnapshotRequestTopicPartition()
		part.CurrentLeaderEpoch, part.SnapshotID.EndOffset, part.SnapshotID.Epoch = 1, id.EndOffset, id.Epoch
		topic.Partitions = append(topic.Partitions, part)
		req.Topics = append(req.Topics, topic)
		change(req, &req.Topics[0].Partitions[0])
		resp := h.FetchSnapshot(req, "CONTROLLER")
		if resp.ErrorCode != 0 {
			return resp, kmsg.FetchSnapshotResponseTopicPartition{}
		}
		return resp, resp.Topics[0].Partitions[0]
	}
	file, err := vfs.ReadFile(fs, filepath.Join(testDir, id.file()))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < len(file) {
		resp, p := ask(func(_ *kmsg.FetchSnapshotRequest, p *kmsg.FetchSnapshotRequestTopicPartition) {
			p.Position = int64(len(got))
		})
		if p.ErrorCode != 0 || p.Size != int64(len(file)) || p.Position != int64(len(got)) || len(p.Bytes) == 0 || len(p.Bytes) > 7 || len(resp.NodeEndpoints) != 1 {
			t.Fatalf("at %d of %d: %+v", len(got), len(file), p)
		}
		got = append(got, p.Bytes...)
	}
	if !bytes.Equal(got, file) {
		t.Error("the pieces are not the file")
	}
	type part = kmsg.FetchSnapshotRequestTopicPartition
	for name, c := range map[string]struct {
		change func(*kmsg.FetchSnapshotRequest, *part)
		top    int16
		code   int16
	}{
		"other cluster":    {func(r *kmsg.FetchSnapshotRequest, _ *part) { r.ClusterID = new("another") }, 104, 0},
		"two topics":       {func(r *kmsg.FetchSnapshotRequest, _ *part) { r.Topics = append(r.Topics, r.Topics[0]) }, 42, 0},
		"other topic":      {func(r *kmsg.FetchSnapshotRequest, _ *part) { r.Topics[0].Topic = "a" }, 0, 3},
		"other partition":  {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.Partition = 1 }, 0, 3},
		"old epoch":        {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.CurrentLeaderEpoch = 0 }, 0, 74},
		"new epoch":        {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.CurrentLeaderEpoch = 2 }, 0, 75},
		"unknown snapshot": {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.SnapshotID.EndOffset++ }, 0, 98},
		"bootstrap":        {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.SnapshotID.EndOffset, p.SnapshotID.Epoch = 0, 0 }, 0, 98},
		"position = size":  {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.Position = int64(len(file)) }, 0, 99},
		"position < 0":     {func(_ *kmsg.FetchSnapshotRequest, p *part) { p.Position = -1 }, 0, 99},
	} {
		resp, p := ask(c.change)
		if resp.ErrorCode != c.top || p.ErrorCode != c.code {
			t.Errorf("%s: errors %d and %d, want %d and %d", name, resp.ErrorCode, p.ErrorCode, c.top, c.code)
		}
	}
}

// M-039: an observer that lost its log takes the snapshot, then the log, and has the leader's image.
func TestM039_observer_from_nothing(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatHost(t, fs)
	h := startHost(t, fs, Config{Snapshots: SnapshotRules{BytesBetween: 500, RetentionBytes: 1}})
	defer closeHost(t, h)
	for i := range 40 {
		if _, err := setConfig(t, h, fmt.Sprint("topic-", i), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, h, func(s *Status) bool { return len(s.snapshots) > 0 })
	want := h.Committed()
	m := newMachine(newTestController(fs), nil, 0, quiet)
	for epoch, loaded := int32(0), false; !loaded || m.replayed <= want.Offset(); {
		p := fetchOne(t, h, fetchRequest(17, 1, m.replayed, epoch))
		if p.SnapshotID.EndOffset >= 0 { // also when the log's start has moved past us meanwhile
			m = newMachine(newTestController(fs), nil, 0, quiet)
			err := m.load(fs, testDir, position{EndOffset: p.SnapshotID.EndOffset, Term: uint64(p.SnapshotID.Epoch)})
			if errors.Is(err, iofs.ErrNotExist) {
				continue // a newer one has taken its place
			}
			if err != nil {
				t.Fatal(err)
			}
			epoch, loaded = 1, true
			continue
		}
		if p.ErrorCode == 0 && loaded && p.HighWatermark <= m.replayed {
			continue // the image is there a moment before the high watermark is told
		}
		if p.ErrorCode != 0 || len(p.RecordBatches) == 0 || !loaded {
			t.Fatalf("fetch at %d: %+v", m.replayed, p)
		}
		for rest := p.RecordBatches; len(rest) > 0 && m.replayed <= want.Offset(); {
			b := record.Batch(rest)[:record.Batch(rest).Length()]
			rest = rest[len(b):]
			if b.BaseOffset() < m.replayed {
				continue
			}
			if err := m.replay(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	sameImage(t, m.controller.Image(), want)
}

// DescribeQuorum lists the leader and its observers, who vanish after five minutes of silence; other partitions get 3.
func TestDescribeQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		formatHost(t, fs)
		h := startHost(t, fs, Config{})
		defer closeHost(t, h)
		fetchOne(t, h, fetchRequest(17, 1, 0, 0))
		own := fetchRequest(17, 1, 0, 0)
		own.ReplicaState.ID, own.Topics[0].Partitions[0].ReplicaDirectoryID = 1, testVoter(1).VoterDirectoryID
		fetchOne(t, h, own)
		nobody := fetchRequest(17, 1, 0, 0)
		nobody.ReplicaState.ID = -1
		fetchOne(t, h, nobody)

		ask := func(names ...string) *kmsg.DescribeQuorumResponse {
			req := kmsg.NewPtrDescribeQuorumRequest()
			req.Version = 2
			for _, name := range names {
				topic := kmsg.NewDescribeQuorumRequestTopic()
				topic.Topic = name
				topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
				req.Topics = append(req.Topics, topic)
			}
			resp, err := h.DescribeQuorum(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		// A request about anything else too is not answered.
		for _, names := range [][]string{{"a"}, {TopicName, "a"}, {TopicName, TopicName}} {
			resp := ask(names...)
			if p := resp.Topics[0].Partitions[0]; len(resp.Nodes) != 0 || p.ErrorCode != 3 || p.ErrorMessage == nil || *p.ErrorMessage == "" || p.LeaderID != 0 || p.HighWatermark != 0 || len(p.CurrentVoters) != 0 {
				t.Errorf("%v: answer %+v", names, resp)
			}
		}
		describe := func() kmsg.DescribeQuorumResponseTopicPartition {
			resp := ask(TopicName)
			if len(resp.Nodes) != 1 || len(resp.Nodes[0].Listeners) != 1 || resp.ErrorMessage == nil || *resp.ErrorMessage != "" {
				t.Errorf("answer %+v", resp)
			}
			return resp.Topics[0].Partitions[0]
		}
		p := describe()
		hw := h.Status().HighWatermark
		if p.LeaderID != 1 || p.LeaderEpoch != 1 || p.HighWatermark != hw || len(p.CurrentVoters) != 1 {
			t.Errorf("quorum %+v", p)
		}
		if v := p.CurrentVoters[0]; v.ReplicaID != 1 || v.ReplicaDirectoryID != testVoter(1).VoterDirectoryID || v.LogEndOffset != hw || v.LastCaughtUpTimestamp != time.Now().UnixMilli() {
			t.Errorf("voter %+v", v)
		}
		if len(p.Observers) != 1 || p.Observers[0].ReplicaID != 7 || p.Observers[0].LogEndOffset != 0 || p.Observers[0].LastCaughtUpTimestamp != -1 {
			t.Errorf("observers %+v", p.Observers)
		}
		fetchOne(t, h, fetchRequest(17, 1, hw, 1))
		if p = describe(); len(p.Observers) != 1 || p.Observers[0].LastCaughtUpTimestamp != time.Now().UnixMilli() {
			t.Errorf("observers %+v", p.Observers)
		}
		for i := range int32(maxObservers + 10) {
			stranger := fetchRequest(17, 1, 0, 0)
			stranger.ReplicaState.ID = 1000 + i
			h.core.observers.note(stranger, 0, h.Status())
		}
		if p = describe(); len(p.Observers) != maxObservers {
			t.Errorf("%d observers are listed", len(p.Observers))
		}
		<-time.After(observerExpiry + time.Second)
		if p = describe(); len(p.Observers) != 0 {
			t.Errorf("observers after five minutes: %+v", p.Observers)
		}
	})
}
