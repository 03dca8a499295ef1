package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// published notes the images a broker hands to its parts.
type published struct {
	mu     sync.Mutex
	images []*metadata.Image
	whole  []bool // no delta: everything is new
	moved  chan struct{}
}

func (p *published) take(image *metadata.Image, delta *metadata.Delta) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images = append(p.images, image)
	p.whole = append(p.whole, delta == nil)
	close(p.moved)
	p.moved = make(chan struct{})
	return nil
}

// until waits for an image of which ok holds, and gives up after ten seconds.
func (p *published) until(t *testing.T, what string, ok func(*metadata.Image) bool) *metadata.Image {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		p.mu.Lock()
		moved := p.moved
		for _, image := range p.images {
			if ok(image) {
				p.mu.Unlock()
				return image
			}
		}
		p.mu.Unlock()
		select {
		case <-moved:
		case <-deadline:
			t.Fatalf("no image came in which %s", what)
		}
	}
}

func hasTopic(name string) func(*metadata.Image) bool {
	return func(image *metadata.Image) bool { _, ok := image.Topic(name); return ok }
}

func startBroker(t *testing.T, f *fakeController) (*Broker, *published) {
	t.Helper()
	return startBrokerThatTells(t, f, nil)
}

func startBrokerThatTells(t *testing.T, f *fakeController, onStanding func(string)) (*Broker, *published) {
	t.Helper()
	p := &published{moved: make(chan struct{})}
	b := New(Options{
		NodeID: 9, ClusterID: "c", IncarnationID: [16]byte{1}, PreviousBrokerEpoch: -1, LogDirIDs: [][16]byte{{9}},
		Controllers: []Controller{{ID: -1, Addr: f.listener.Addr().String()}}, Dial: (&net.Dialer{}).DialContext,
		HeartbeatInterval: 100 * time.Millisecond, RegistrationTimeout: 10 * time.Second, QuorumRequestTimeout: 2 * time.Second,
		ShutdownTimeout: 5 * time.Second, LogDirFailureTimeout: time.Second, Publish: p.take, OnStanding: onStanding,
		Logger: slog.New(slog.DiscardHandler),
	})
	b.Start()
	t.Cleanup(b.Stop)
	return b, p
}

func version() metadata.Record {
	return &metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: int16(metadata.LevelLatest)}
}

// unfenced is the registration of the broker that startBroker makes.
func unfenced() metadata.Record {
	return &metadata.RegisterBrokerRecord{BrokerID: 9, IncarnationID: metadata.UUID{1}, BrokerEpoch: 77}
}

// registered is the same as the controller first writes it.
func registered() metadata.Record {
	return &metadata.RegisterBrokerRecord{BrokerID: 9, IncarnationID: metadata.UUID{1}, BrokerEpoch: 77, Fenced: true}
}

func topic(name string, id byte) metadata.Record {
	return &metadata.TopicRecord{Name: name, TopicID: metadata.UUID{0: 1, 15: id}}
}

// A broker becomes ready once it is registered, has published an image and is
// unfenced, though the first controller it asks is not active yet; producer ids come
// from blocks that the controller gives.
func TestBrokerBecomesReady(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.notController = 2
	b, p := startBroker(t, f)
	if b.State() == StateRunning {
		t.Fatal("running before anything was published")
	}
	f.append(true, version(), topic("a", 1), registered())
	p.until(t, "topic a exists", hasTopic("a"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	early, give := context.WithTimeout(ctx, 300*time.Millisecond)
	defer give()
	if err := b.Ready(early); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ready before its own image shows it unfenced: %v", err)
	}
	f.append(true, unfenced())
	if err := b.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if b.Epoch() != 77 || b.State() != StateRunning || f.registrations != 3 {
		t.Fatalf("epoch %d, state %s, %d registrations", b.Epoch(), b.State(), f.registrations)
	}
	p.until(t, "topic a exists", hasTopic("a"))
	for _, want := range []int64{5000, 5001, 5002, 5000} {
		if id, err := b.NextProducerID(ctx); err != nil || id != want {
			t.Fatalf("producer id %d, %v; want %d", id, err, want)
		}
	}
	f.mu.Lock()
	f.wantShutdown = true
	f.mu.Unlock()
	if err := b.ControlledShutdown(ctx); err != nil {
		t.Fatal(err)
	}
}

// Nothing is published of an empty log, nor of one without metadata.version: a
// starting broker never shows an empty cluster.
func TestNothingIsPublishedTooEarly(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, &metadata.NoOpRecord{})
	_, p := startBroker(t, f)
	f.append(true, version(), registered())
	first := p.until(t, "metadata.version is set", func(i *metadata.Image) bool { return i.MetadataVersion() != 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.images[0] != first || !p.whole[0] {
		t.Fatalf("the first of %d images had version %d, whole %t", len(p.images), p.images[0].MetadataVersion(), p.whole[0])
	}
}

// E-017: nothing is applied before the image has this process's own registration: what is older names this broker as
// the leader of epochs in which an earlier process of it led.
func TestE017_nothing_is_applied_before_the_own_registration(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, version(), &metadata.RegisterBrokerRecord{BrokerID: 9, IncarnationID: metadata.UUID{2}, BrokerEpoch: 5}, topic("old", 1))
	b, p := startBroker(t, f)
	for began := time.Now(); b.life.applied() < 0; {
		if time.Since(began) > 10*time.Second {
			t.Fatal("the offset that heartbeats tell has not moved: the controller would never find the broker caught up")
		}
		<-time.After(time.Millisecond)
	}
	f.append(true, registered(), topic("new", 2))
	p.until(t, "topic new exists", hasTopic("new"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := p.images[0]; !hasTopic("new")(first) || !p.whole[0] {
		t.Fatalf("the first image stands at offset %d, before the registration", first.Offset())
	}
}

// The first image has all that was committed when it could be made, also what came
// after the snapshot that a starting broker is given: partitions on disk that it did
// not name would be taken for strays.
func TestFirstImageHasCaughtUp(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.change(func() {
		f.snapshot, f.snapshotID = snapshotOf(t, version(), topic("snapped", 5)), [2]int64{40, 1}
		f.end, f.hw = 40, 40
	})
	f.append(true, topic("after", 6), registered())
	_, p := startBroker(t, f)
	p.until(t, "topic after exists", hasTopic("after"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := p.images[0]; !hasTopic("after")(first) || !hasTopic("snapped")(first) || !p.whole[0] {
		t.Fatalf("the first image stands at offset %d: snapped %t, after %t", first.Offset(), hasTopic("snapped")(first), hasTopic("after")(first))
	}
}

// A transaction over three batches: nothing of it is visible until its end; an aborted one never is.
func TestM042_transaction_is_published_whole(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, version(), registered())
	_, p := startBroker(t, f)
	f.append(true, &metadata.BeginTransactionRecord{})
	f.append(true, topic("a", 1))
	f.append(true, topic("b", 2), &metadata.EndTransactionRecord{})
	f.append(true, &metadata.BeginTransactionRecord{}, topic("c", 3))
	f.append(true, &metadata.AbortTransactionRecord{}, topic("d", 4))
	p.until(t, "topic d exists", hasTopic("d"))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, image := range p.images {
		if hasTopic("a")(image) != hasTopic("b")(image) {
			t.Errorf("image at %d shows half of the transaction", image.Offset())
		}
		if hasTopic("c")(image) {
			t.Errorf("image at %d shows an aborted topic", image.Offset())
		}
	}
}

// Uncommitted batches are fetched and not applied; when the leader takes them back, the observer truncates and goes on with what replaced them.
func TestM041_uncommitted_batches_taken_back(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, version(), registered())
	_, p := startBroker(t, f)
	p.until(t, "metadata.version is set", func(i *metadata.Image) bool { return i.MetadataVersion() != 0 })
	f.append(false, topic("lost", 1))
	f.change(func() {
		f.log, f.end, f.epoch = f.log[:1], 2, 2
		d := kmsg.NewFetchResponseTopicPartitionDivergingEpoch()
		d.Epoch, d.EndOffset = 1, 2
		f.diverge = &d
	})
	f.append(true, topic("kept", 2))
	p.until(t, "topic kept exists", hasTopic("kept"))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, image := range p.images {
		if hasTopic("lost")(image) {
			t.Fatal("an uncommitted topic was applied")
		}
	}
}

// A snapshot is fetched in pieces cut anywhere and replaces the image; one that lacks
// its footer is not adopted.
func TestSnapshotReplacesTheImage(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.change(func() {
		f.snapshot, f.snapshotID = snapshotOf(t, version(), topic("snapped", 5), registered()), [2]int64{40, 1}
		f.end, f.hw = 40, 40
	})
	_, p := startBroker(t, f)
	image := p.until(t, "topic snapped exists", hasTopic("snapped"))
	if image.Offset() != 39 || image.Epoch() != 1 {
		t.Fatalf("image stands at offset %d of epoch %d, want 39 of 1", image.Offset(), image.Epoch())
	}
	f.append(true, topic("after", 6))
	p.until(t, "topic after exists", hasTopic("after"))

	whole := snapshotOf(t, version())
	builder := newImageBuilder(func(*metadata.Image) bool { return true }, func(*metadata.Image, *metadata.Delta) error { t.Error("published"); return nil })
	footer := len(snapshotFooter())
	for name, broken := range map[string][]byte{
		"without footer": whole[:len(whole)-footer], "cut short": whole[:len(whole)-1], "empty": nil,
		"flipped bit": append(append([]byte{}, whole[:len(whole)-footer-2]...), append([]byte{whole[len(whole)-footer-2] ^ 1}, whole[len(whole)-footer-1:]...)...),
	} {
		if err := builder.restore(broken, 5, 1); err == nil {
			t.Errorf("a snapshot %s was adopted", name)
		}
	}
}

func snapshotFooter() record.Batch {
	return record.NewControlBatch(1, record.ControlRecord{Type: record.SnapshotFooter, Value: metadata.AppendControl(nil, &metadata.SnapshotFooter{})})
}

func snapshotOf(t *testing.T, records ...metadata.Record) []byte {
	t.Helper()
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: 1})
	for _, rec := range records {
		value, err := metadata.AppendRecord(nil, rec, metadata.LevelLatest.RecordVersion(rec))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(1, nil, value, nil); err != nil {
			t.Fatal(err)
		}
	}
	header := record.NewControlBatch(1, record.ControlRecord{Type: record.SnapshotHeader, Value: metadata.AppendControl(nil, &metadata.SnapshotHeader{})})
	return join(header, b.Bytes(), snapshotFooter())
}

// A new quorum epoch is adopted from the answer, and a refused heartbeat is told to
// whoever asks why the broker is not well.
func TestBrokerFollowsEpochsAndSaysWhyItIsRefused(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, version(), unfenced())
	told := make(chan string, 8)
	b, p := startBrokerThatTells(t, f, func(trouble string) { told <- trouble })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := b.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	f.leadAnew()
	f.append(true, topic("a", 1))
	p.until(t, "topic a exists", hasTopic("a"))
	if id, epoch := b.QuorumLeader(); id != 1 || epoch != 2 {
		t.Fatalf("leader %d in epoch %d", id, epoch)
	}
	for _, step := range []struct {
		code int16
		want string
	}{{77, "STALE_BROKER_EPOCH"}, {0, ""}} {
		f.change(func() { f.heartbeatCode = step.code })
		select {
		case trouble := <-told:
			if !strings.Contains(trouble, step.want) || step.want == "" && trouble != "" {
				t.Fatalf("told %q, want %q", trouble, step.want)
			}
		case <-ctx.Done():
			t.Fatalf("code %d was not told", step.code)
		}
	}
	if b.Refused() != "" {
		t.Fatalf("still refused: %q", b.Refused())
	}
}

// A broker that is refused because it does not serve a feature at its finalized level says which, and gets in when the
// feature is lowered.
func TestUnservedFeatureIsNamed(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.change(func() { f.registerCode = 35 })
	f.append(true, version(), &metadata.FeatureLevelRecord{Name: "share.version", FeatureLevel: 2})
	b, _ := startBroker(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !strings.Contains(b.Refused(), "share.version 2") {
		select {
		case <-ctx.Done():
			t.Fatalf("refused for %q", b.Refused())
		case <-time.After(time.Millisecond):
		}
	}
	f.change(func() { f.registerCode = 0 })
	f.append(true, &metadata.FeatureLevelRecord{Name: "share.version"}, unfenced())
	if err := b.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// A record that does not fit the image ends the process: going on would show clients
// another cluster than the controller's.
func TestRecordThatDoesNotFitIsFatal(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.append(true, version(), &metadata.UnregisterBrokerRecord{BrokerID: 3, BrokerEpoch: 1})
	b, _ := startBroker(t, f)
	var fatal *errObserver
	if err := b.Ready(t.Context()); !errors.As(err, &fatal) {
		t.Fatalf("ready: %v", err)
	}
}

// Places of replicas reach the controller, though it refuses them at first, and the
// newest word about a replica is the one it keeps.
func TestPlacesOfReplicasAreTold(t *testing.T) {
	t.Parallel()
	f := newFakeController(t)
	f.refusePlaces = 1
	f.append(true, version(), unfenced())
	b, _ := startBroker(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	one, two := metadata.UUID{15: 201}, metadata.UUID{15: 202}
	for partition := range int32(3000) { // more than one request takes
		b.ReportPlace(metadata.UUID{0: 7}, partition, one)
	}
	b.ReportPlace(metadata.UUID{0: 7}, 5, two)
	if err := b.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(10 * time.Second)
	for {
		f.mu.Lock()
		told, grown := len(f.places), f.grown
		newest := f.places[replicaPlace{metadata.UUID{0: 7}, 5}]
		f.mu.Unlock()
		if told == 3000 {
			if newest != two {
				t.Fatalf("partition 5 is in %s, want %s", newest, two)
			}
			return
		}
		select {
		case <-grown:
		case <-deadline:
			t.Fatalf("%d of 3000 places were told", told)
		}
	}
}

// A failed log directory that the controller does not take note of in time ends the broker; one that it has does not.
func TestAFailedDirectoryMustBeNoticed(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		f := newFakeController(t)
		b, p := startBroker(t, f)
		f.append(true, version(), topic("a", 1), unfenced())
		p.until(t, "topic a exists", hasTopic("a"))
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if refused {
			f.change(func() { f.heartbeatCode = kerr.NotController.Code })
		}
		b.SetOfflineDirs([][16]byte{{9}})
		select {
		case err := <-b.Failed():
			if !refused || !strings.Contains(err.Error(), "log.dir.failure.timeout.ms") {
				t.Errorf("refused %v: %v", refused, err)
			}
		case <-time.After(2 * time.Second):
			if refused {
				t.Error("the broker goes on")
			}
		}
	}
}
