package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// memNetwork carries messages between hosts in one process, each way in order, as long as neither side is cut off.
type memNetwork struct {
	mu    sync.Mutex
	hosts map[int32]*Host
	cut   map[int32]bool
	// loseSnapshots is how many messages with a snapshot get lost yet; the sender is told.
	loseSnapshots int
	// loseTaken is how many voters' words that they have taken a snapshot over get lost yet; nobody is told. taken are
	// the voters that have got one meanwhile.
	loseTaken int
	taken     map[int32]bool
	wg        sync.WaitGroup
}

// memTransport is one host's end of it.
type memTransport struct {
	network *memNetwork
	self    Identity
	host    *Host
}

func (t *memTransport) Send(to Voter, messages []*pb.Message) {
	if err := attachSnapshots(t.host.core.node.store, messages); err != nil {
		panic(err)
	}
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	target := t.network.hosts[to.VoterID]
	if target == nil || t.network.cut[to.VoterID] || t.network.cut[t.self.NodeID] {
		return
	}
	if t.network.loseSnapshots > 0 && slices.ContainsFunc(messages, func(m *pb.Message) bool { return m.GetType() == pb.MsgSnap }) {
		t.network.loseSnapshots--
		sender := t.network.hosts[t.self.NodeID]
		t.network.wg.Go(func() { _ = sender.SnapshotLost(to) })
		return
	}
	if t.network.taken[t.self.NodeID] {
		messages = slices.DeleteFunc(slices.Clone(messages), func(m *pb.Message) bool {
			lost := m.GetType() == pb.MsgAppResp && !m.GetReject()
			if lost {
				delete(t.network.taken, t.self.NodeID)
			}
			return lost
		})
	}
	snapshot := slices.ContainsFunc(messages, func(m *pb.Message) bool { return m.GetType() == pb.MsgSnap })
	if snapshot && t.network.loseTaken > 0 {
		t.network.loseTaken--
		t.network.taken[to.VoterID] = true
	}
	copies := make([]*pb.Message, len(messages))
	for i, m := range messages {
		copies[i] = proto.Clone(m).(*pb.Message)
	}
	t.network.wg.Go(func() {
		// A host that is gone loses what is sent to it, as any network would.
		if err := target.Receive(context.Background(), t.self, copies); err == nil && snapshot {
			_ = t.host.SnapshotDelivered(to)
		}
	})
}

func (n *memNetwork) setCut(id int32, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[id] = cut
}

// testCluster is three hosts on three disks. It must be used inside a synctest bubble.
type testCluster struct {
	t       *testing.T
	network *memNetwork
	disks   map[int32]*vfs.Mem
	config  Config
}

func newTestCluster(t *testing.T, c Config) *testCluster {
	tc := &testCluster{t: t, network: &memNetwork{hosts: map[int32]*Host{}, cut: map[int32]bool{}, taken: map[int32]bool{}}, disks: map[int32]*vfs.Mem{}, config: c}
	for id := int32(1); id <= 3; id++ {
		disk := vfs.NewMem()
		if err := disk.MkdirAll(metaDir, 0o755); err != nil {
			t.Fatal(err)
		}
		err := Format(FormatOptions{FS: disk, Dir: metaDir, Identity: identityOf(testVoter(id)), Voters: testVoters(1, 2, 3), Bootstrap: metadata.BootstrapRecords(metadata.LevelLatest)})
		if err != nil {
			t.Fatal(err)
		}
		if err := disk.SyncDir("/"); err != nil {
			t.Fatal(err)
		}
		tc.disks[id] = disk
		tc.start(id)
	}
	return tc
}

func (tc *testCluster) start(id int32) {
	o := hostOptions(tc.disks[id], tc.config)
	o.Identity, o.Controller.NodeID = identityOf(testVoter(id)), id
	transport := &memTransport{network: tc.network, self: o.Identity}
	o.Transport = transport
	h, err := Open(o)
	transport.host = h
	if err != nil {
		tc.t.Fatalf("voter %d: %v", id, err)
	}
	tc.network.mu.Lock()
	tc.network.hosts[id] = h
	tc.network.mu.Unlock()
	h.Start()
}

// kill stops a host as kill -9 with a loss of power does; start brings it back.
func (tc *testCluster) kill(id int32) {
	image := tc.disks[id].CrashClone(vfs.LoseUnsynced, 1)
	tc.network.mu.Lock()
	h := tc.network.hosts[id]
	delete(tc.network.hosts, id)
	tc.network.mu.Unlock()
	if err := h.Close(); err != nil {
		tc.t.Fatal(err)
	}
	tc.disks[id] = image
}

func (tc *testCluster) close() {
	for id := range tc.disks {
		if tc.network.hosts[id] != nil {
			tc.kill(id)
		}
	}
	tc.network.wg.Wait()
}

// leader waits until one host, other than those named, is the active controller.
func (tc *testCluster) leader(not ...int32) (int32, *Host) {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		for id, h := range tc.network.hosts {
			if s := h.Status(); s.Active && (len(not) == 0 || id != not[0]) {
				return id, h
			}
		}
		<-time.After(10 * time.Millisecond)
	}
	tc.t.Fatal("no leader within a minute")
	return 0, nil
}

// change sets a config value through whoever leads, asking again until it is answered.
func (tc *testCluster) change(topic, value string) {
	for range 100 {
		_, h := tc.leader()
		_, err := setConfig(tc.t, h, topic, value)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNotController) {
			tc.t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
	tc.t.Fatalf("%s=%s is never answered", topic, value)
}

// agree waits until all hosts have applied the same and compares their images.
func (tc *testCluster) agree() {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		_, leader := tc.leader()
		want := leader.Committed()
		same := true
		for _, h := range tc.network.hosts {
			same = same && h.Committed().Offset() == want.Offset()
		}
		if same {
			for _, h := range tc.network.hosts {
				sameImage(tc.t, h.Committed(), want)
			}
			return
		}
		<-time.After(7 * time.Millisecond)
	}
	tc.t.Fatal("the hosts do not agree within a minute")
}

// DescribeQuorum of a leader says when each voter was last heard and last had everything: of one that is cut off the times
// stand still, those of the others move on.
func TestVotersTimesAreDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		id, h := tc.leader()
		tc.change("a", "1")
		away := id%3 + 1
		describe := func() map[int32]kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
			req := kmsg.NewPtrDescribeQuorumRequest()
			topic := kmsg.NewDescribeQuorumRequestTopic()
			topic.Topic = TopicName
			topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
			req.Topics = append(req.Topics, topic)
			resp, err := h.DescribeQuorum(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			voters := map[int32]kmsg.DescribeQuorumResponseTopicPartitionReplicaState{}
			for _, v := range resp.Topics[0].Partitions[0].CurrentVoters {
				voters[v.ReplicaID] = v
			}
			return voters
		}
		<-time.After(3 * time.Second)
		now := time.Now().UnixMilli()
		for voter, v := range describe() {
			if now-v.LastFetchTimestamp > 1000 || now-v.LastCaughtUpTimestamp > 1000 {
				t.Errorf("voter %d was heard at %d and caught up at %d, and it is %d", voter, v.LastFetchTimestamp, v.LastCaughtUpTimestamp, now)
			}
		}
		tc.network.setCut(away, true)
		<-time.After(10 * time.Millisecond)
		cut := time.Now().UnixMilli()
		tc.change("a", "2")
		<-time.After(5 * time.Second)
		now = time.Now().UnixMilli()
		for voter, v := range describe() {
			switch {
			case voter == away && (v.LastFetchTimestamp > cut || v.LastFetchTimestamp < cut-1000 || v.LastCaughtUpTimestamp > cut || v.LastCaughtUpTimestamp < cut-1000):
				t.Errorf("voter %d, cut off at %d, was heard at %d and caught up at %d", voter, cut, v.LastFetchTimestamp, v.LastCaughtUpTimestamp)
			case voter != away && (now-v.LastFetchTimestamp > 1000 || now-v.LastCaughtUpTimestamp > 1000):
				t.Errorf("voter %d was heard at %d and caught up at %d, and it is %d", voter, v.LastFetchTimestamp, v.LastCaughtUpTimestamp, now)
			}
		}
		tc.network.setCut(away, false)
	})
}

// Three hosts: the leader is killed again and again, each time another takes over, everything answered is there, and
// in the end all have one image. The killed one catches up, by snapshot where the log is gone.
func TestHostsSurviveTheirLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{SegmentBytes: 1 << 13, Snapshots: SnapshotRules{BytesBetween: 2000, RetentionBytes: 4000}})
		defer tc.close()
		installed := false
		for round := range 6 {
			id, h := tc.leader()
			epoch := h.Status().LeaderEpoch
			for i := range 10 {
				tc.change(fmt.Sprint("topic-", i), fmt.Sprint(round, "-", i))
			}
			tc.kill(id)
			_, next := tc.leader(id)
			if next.Status().LeaderEpoch <= epoch {
				t.Errorf("epoch %d follows %d", next.Status().LeaderEpoch, epoch)
			}
			for i := range 10 {
				if got := configOf(next.Committed(), fmt.Sprint("topic-", i)); got != fmt.Sprint(round, "-", i) {
					t.Errorf("round %d: topic-%d is %q after the leader died", round, i, got)
				}
			}
			for i := range 40 {
				tc.change(fmt.Sprint("other-", i), fmt.Sprint(round))
			}
			behind := configOf(next.Committed(), "other-0")
			tc.start(id)
			tc.agree()
			view := tc.network.hosts[id].core.node.store.log.View()
			installed = installed || view.LogStartOffset > 0 && behind != ""
			view.Release()
		}
		if !installed {
			t.Error("nobody ever caught up by a snapshot: the test shows too little")
		}
	})
}

// A voter that needs a snapshot gets one though the first two were lost on the way, as the transport reported.
func TestLostSnapshotIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{SegmentBytes: 1 << 13, Snapshots: SnapshotRules{BytesBetween: 2000, RetentionBytes: 4000}})
		defer tc.close()
		leader, _ := tc.leader()
		lagging := leader%3 + 1
		tc.kill(lagging)
		start := func() int64 {
			_, h := tc.leader()
			view := h.core.node.store.log.View()
			defer view.Release()
			return view.LogStartOffset
		}
		for i := 0; start() == 0 && i < 500; i++ {
			tc.change(fmt.Sprint("topic-", i%20), fmt.Sprint(i))
		}
		tc.network.mu.Lock()
		tc.network.loseSnapshots = 2
		tc.network.mu.Unlock()
		tc.start(lagging)
		tc.agree()
		tc.network.mu.Lock()
		defer tc.network.mu.Unlock()
		if tc.network.loseSnapshots > 0 {
			t.Error("no snapshot was sent: the test shows nothing")
		}
	})
}

// A voter whose word that it has taken a snapshot over gets lost on the way goes on all the same: raft sends it nothing else
// before it hears of it, and whoever carried the snapshot knows that it has arrived.
func TestVoterGoesOnAfterASnapshotThatNobodyHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{SegmentBytes: 1 << 13, Snapshots: SnapshotRules{BytesBetween: 2000, RetentionBytes: 4000}})
		defer tc.close()
		leader, h := tc.leader()
		lagging := leader%3 + 1
		tc.kill(lagging)
		start := func() int64 {
			view := h.core.node.store.log.View()
			defer view.Release()
			return view.LogStartOffset
		}
		for i := 0; start() == 0 && i < 500; i++ {
			tc.change(fmt.Sprint("topic-", i%20), fmt.Sprint(i))
		}
		tc.network.mu.Lock()
		tc.network.loseTaken = 1
		tc.network.mu.Unlock()
		tc.start(lagging)
		<-time.After(5 * time.Second)
		tc.network.mu.Lock()
		lost := tc.network.loseTaken == 0 && len(tc.network.taken) == 0
		tc.network.mu.Unlock()
		if !lost {
			t.Error("no snapshot was sent, or no answer to it was lost: the test shows nothing")
		}
		tc.change("after", "the snapshot")
		tc.agree()
	})
}

// A leader that is cut off answers ErrNotController to whoever waits, forgets what was not committed, and follows the
// next leader once it can.
func TestHostRevertsWhenDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		tc.change("a", "before")
		id, old := tc.leader()
		tc.network.setCut(id, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := old.Do(ctx, func(_ *controller.Controller, _ time.Time, _ int64) (controller.Result, error) {
				return controller.Result{Records: []metadata.Record{&metadata.ConfigRecord{
					ResourceType: metadata.ResourceTopic, ResourceName: "a", Name: "retention.ms", Value: new("lost"),
				}}}, nil
			})
			done <- err
		}()
		synctest.Wait()
		status := old.Status()
		if end := old.core.node.store.endOffset(); !status.Leading || end <= status.HighWatermark {
			t.Fatalf("leading %v, log ends at %d, committed are %d", status.Leading, end, status.HighWatermark)
		}
		if p := fetchOne(t, old, fetchRequest(17, status.LeaderEpoch, status.HighWatermark, status.LeaderEpoch)); p.ErrorCode != 0 || len(p.RecordBatches) != 0 {
			t.Errorf("an observer is shown %d bytes that are not committed (error %d)", len(p.RecordBatches), p.ErrorCode)
		}
		err := <-done
		if !errors.Is(err, ErrNotController) {
			t.Errorf("a change nobody else saw is answered %v", err)
		}
		if got := configOf(old.Committed(), "a"); got != "before" {
			t.Errorf("the deposed controller shows %q", got)
		}
		if next, _ := tc.leader(id); next == id {
			t.Error("a leader that is cut off stays")
		}
		for range 100 {
			_, h := tc.leader(id)
			if _, err := setConfig(t, h, "a", "after"); err == nil {
				break
			}
			<-time.After(50 * time.Millisecond)
		}
		synctest.Wait() // who waited is answered a moment before the status says so
		req := fetchRequest(17, old.Status().LeaderEpoch, 0, 0)
		if p := fetchOne(t, old, req); p.ErrorCode != 6 {
			t.Errorf("a follower answers a fetch with %d", p.ErrorCode)
		}
		tc.network.setCut(id, false)
		tc.agree()
		if got := configOf(old.Committed(), "a"); got != "after" {
			t.Errorf("the deposed controller ends with %q", got)
		}
	})
}

// One message deposes the leader, replaces its uncommitted entries and commits the replacements at the same offsets:
// whoever waited gets ErrNotController, and the controller has what the new leader wrote, not what it had made itself.
func TestHostDeposedByCommittedEntries(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1, 2, 3))
	o := hostOptions(fs, Config{})
	h, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer closeHost(t, h)
	me, other := h.core.node.id, raftIDOf(testVoter(2))
	step := func(m *pb.Message) {
		t.Helper()
		m.From, m.To = new(other), new(me)
		if err := h.core.node.step(m); err != nil {
			t.Fatal(err)
		}
		if err := h.core.settle(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.core.node.raft.Campaign(); err != nil {
		t.Fatal(err)
	}
	if err := h.core.settle(); err != nil {
		t.Fatal(err)
	}
	step(&pb.Message{Type: pb.MsgPreVoteResp.Enum(), Term: new(uint64(1))})
	step(&pb.Message{Type: pb.MsgVoteResp.Enum(), Term: new(uint64(1))})
	if s := h.Status(); !s.Leading || s.Active || s.HighWatermark != -1 {
		t.Errorf("a leader whose first entry is not committed shows %+v", s)
	}
	step(&pb.Message{Type: pb.MsgAppResp.Enum(), Term: new(uint64(1)), Index: new(h.core.node.store.runs.lastIndex())})
	if !h.core.machine.active {
		t.Fatal("not active with a majority's votes and its first entry committed")
	}
	first := h.core.node.applied
	r := newRequest(t.Context(), func(*controller.Controller, time.Time, int64) (controller.Result, error) {
		return controller.Result{Records: []metadata.Record{&metadata.ConfigRecord{
			ResourceType: metadata.ResourceTopic, ResourceName: "a", Name: "retention.ms", Value: new("lost"),
		}}}, nil
	})
	// A request that only asks saw that change, and waits for it.
	reader := newRequest(t.Context(), func(c *controller.Controller, _ time.Time, _ int64) (controller.Result, error) {
		return controller.Result{Reply: configOf(c.Image(), "a")}, nil
	})
	if err := h.core.propose(time.Now(), []*Request{&r.Request, &reader.Request}); err != nil {
		t.Fatal(err)
	}
	if configOf(h.core.machine.controller.Image(), "a") != "lost" || configOf(h.Committed(), "a") != "" {
		t.Fatal("the change is not pending")
	}
	var entries []*pb.Entry
	for index := first.Index + 1; index <= h.core.node.store.runs.lastIndex(); index++ {
		value, err := metadata.AppendRecord(nil, &metadata.ConfigRecord{
			ResourceType: metadata.ResourceTopic, ResourceName: "a", Name: "retention.ms", Value: new(fmt.Sprint(index)),
		}, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := record.NewBuilder(record.BuilderOptions{})
		if err := b.Append(5, nil, value, nil); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, &pb.Entry{Type: pb.EntryNormal.Enum(), Index: new(index), Term: new(uint64(2)), Data: b.Bytes()})
	}
	last := entries[len(entries)-1].GetIndex()
	step(&pb.Message{Type: pb.MsgApp.Enum(), Term: new(uint64(2)), LogTerm: new(first.Term), Index: new(first.Index), Entries: entries, Commit: new(last)})
	for _, r := range []*request{r, reader} {
		select {
		case <-r.done:
			if !errors.Is(r.err, ErrNotController) {
				t.Errorf("answered %v, %v", r.reply, r.err)
			}
		default:
			t.Error("still waiting")
		}
	}
	if got := configOf(h.Committed(), "a"); got != fmt.Sprint(last) {
		t.Errorf("committed image has %q, the new leader wrote %d", got, last)
	}
	if img := h.core.machine.controller.Image(); img.Offset() != h.core.node.applied.EndOffset-1 || img.MetadataVersion() != 0 {
		t.Errorf("image at offset %d of level %d holds what was replaced", img.Offset(), img.MetadataVersion())
	}
}

// A request without records is answered only when a majority has said, after it was computed, that it follows this leader:
// another may lead already, and may have changed what this one knows.
func TestHostAnswersWithoutRecordsWhenAMajorityFollows(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1, 2, 3))
	h, err := Open(hostOptions(fs, Config{}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeHost(t, h)
	me, other := h.core.node.id, raftIDOf(testVoter(2))
	step := func(m *pb.Message) {
		t.Helper()
		m.From, m.To = new(other), new(me)
		if err := errors.Join(h.core.node.step(m), h.core.settle()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(h.core.node.raft.Campaign(), h.core.settle()); err != nil {
		t.Fatal(err)
	}
	step(&pb.Message{Type: pb.MsgPreVoteResp.Enum(), Term: new(uint64(1))})
	step(&pb.Message{Type: pb.MsgVoteResp.Enum(), Term: new(uint64(1))})
	for range 2 {
		step(&pb.Message{Type: pb.MsgAppResp.Enum(), Term: new(uint64(1)), Index: new(h.core.node.store.runs.lastIndex())})
	}
	if !h.Status().Active {
		t.Fatal("not active")
	}
	ask := func() *request {
		r := newRequest(t.Context(), func(*controller.Controller, time.Time, int64) (controller.Result, error) {
			return controller.Result{Reply: "known"}, nil
		})
		if err := h.core.propose(time.Now(), []*Request{&r.Request}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	answered := func(r *request) bool {
		select {
		case <-r.done:
			return true
		default:
			return false
		}
	}
	first, second := ask(), ask()
	if answered(first) || answered(second) {
		t.Fatal("answered before anybody else was asked")
	}
	step(&pb.Message{Type: pb.MsgHeartbeatResp.Enum(), Term: new(uint64(1)), Context: []byte{0: 1, 7: 0}}) // raft's first question
	if !answered(first) || first.reply != "known" || first.err != nil {
		t.Errorf("a majority follows, and the answer is %v, %v", first.reply, first.err)
	}
	if answered(second) {
		t.Error("what was asked before it came answers for a later request")
	}
	step(&pb.Message{Type: pb.MsgHeartbeat.Enum(), Term: new(uint64(2))})
	if !answered(second) || !errors.Is(second.err, ErrNotController) {
		t.Errorf("a deposed leader answers %v, %v", second.reply, second.err)
	}
}

// A lone voter whose log holds a membership change leads at once after a restart, be it known as committed or not.
func TestHostLeadsAtOnceAfterAMembershipChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		formatHost(t, fs)
		h := startHost(t, fs, Config{})
		learner := uint64(77)
		change := func(kind pb.ConfChangeType) {
			err := h.post(func() error {
				return h.core.node.raft.ProposeConfChange(&pb.ConfChangeV2{
					Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &learner}}, Context: encodeVoters(testVoters(1)),
				})
			})
			if err != nil {
				t.Fatal(err, h.Err())
			}
			synctest.Wait()
		}
		change(pb.ConfChangeAddLearnerNode)
		if len(h.core.node.membership.GetLearners()) != 1 {
			t.Fatalf("members %v", h.core.node.membership)
		}
		change(pb.ConfChangeRemoveNode)
		if _, err := setConfig(t, h, "a", "1"); err != nil {
			t.Fatal(err)
		}
		killed := fs.CrashClone(vfs.LoseUnsynced, 1)
		closeHost(t, h)
		for _, disk := range []*vfs.Mem{fs, killed} {
			begin := time.Now()
			h := startHost(t, disk, Config{})
			if took := time.Since(begin); took != 0 {
				t.Errorf("leads after %v", took)
			}
			if got := configOf(h.Committed(), "a"); got != "1" || len(h.core.node.membership.GetLearners()) != 0 {
				t.Errorf("config %q, members %v", got, h.core.node.membership)
			}
			closeHost(t, h)
		}
	})
}
