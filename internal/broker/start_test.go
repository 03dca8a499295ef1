package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// M-028: a broker that starts while no controller is there gives up after initial.broker.registration.timeout.ms, a
// minute, and says what it was waiting for; one whose controllers come up after 50 seconds joins.
func TestM028_start_without_controllers(t *testing.T) {
	for name, up := range map[string]time.Duration{"never": 0, "after 50 s": 50 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				f := &fakeController{t: t, grown: make(chan struct{}), epoch: 1, conns: map[net.Conn]bool{}}
				f.append(true, version(), unfenced())
				p := &published{moved: make(chan struct{})}
				var serving sync.WaitGroup
				b := New(Options{
					NodeID: 9, ClusterID: "c", IncarnationID: [16]byte{1}, PreviousBrokerEpoch: -1, LogDirIDs: [][16]byte{{9}},
					Controllers: []Controller{{ID: -1, Addr: "pipe:1"}},
					Dial: func(context.Context, string, string) (net.Conn, error) {
						if up == 0 || time.Since(start) < up {
							return nil, errors.New("connection refused")
						}
						ours, theirs := net.Pipe()
						serving.Go(func() { f.serve(theirs) })
						return ours, nil
					},
					HeartbeatInterval: 2 * time.Second, RegistrationTimeout: time.Minute, QuorumRequestTimeout: 2 * time.Second,
					ShutdownTimeout: 5 * time.Second, LogDirFailureTimeout: time.Second, Publish: p.take, Logger: slog.New(slog.DiscardHandler),
				})
				b.Start()
				err := b.Ready(t.Context())
				switch waited := time.Since(start); {
				case up == 0 && (err == nil || waited != time.Minute || !strings.Contains(err.Error(), "could not register within 1m0s: no controller answered: check controller.quorum.voters")):
					t.Errorf("after %v: %v", waited, err)
				case up > 0 && (err != nil || waited < up || waited > up+5*time.Second || b.State() != StateRunning || b.Epoch() != 77):
					t.Errorf("after %v: %v, state %v, epoch %d", waited, err, b.State(), b.Epoch())
				}
				b.Stop()
				f.change(func() {})
				serving.Wait()
			})
		})
	}
}

// M-026: with all controllers unreachable for a minute a broker that runs stays running, on the image that it has, and what a
// client wants of the controller ends with "no controller" when the time for that is up; when they are back the same request
// goes through.
func TestM026_all_controllers_unreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeController{t: t, grown: make(chan struct{}), epoch: 1, conns: map[net.Conn]bool{}}
		f.append(true, version(), topic("t", 1), unfenced())
		p := &published{moved: make(chan struct{})}
		var serving sync.WaitGroup
		var mu sync.Mutex
		var ends []net.Conn
		away := false
		b := New(Options{
			NodeID: 9, ClusterID: "c", IncarnationID: [16]byte{1}, PreviousBrokerEpoch: -1, LogDirIDs: [][16]byte{{9}},
			Controllers: []Controller{{ID: -1, Addr: "pipe:1"}},
			Dial: func(context.Context, string, string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				if away {
					return nil, errors.New("no route to host")
				}
				ours, theirs := net.Pipe()
				ends = append(ends, theirs)
				serving.Go(func() { f.serve(theirs) })
				return ours, nil
			},
			HeartbeatInterval: 2 * time.Second, RegistrationTimeout: time.Minute, QuorumRequestTimeout: 2 * time.Second,
			ShutdownTimeout: 5 * time.Second, LogDirFailureTimeout: time.Second, Publish: p.take, Logger: slog.New(slog.DiscardHandler),
		})
		b.Start()
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		away = true
		for _, conn := range ends {
			conn.Close()
		}
		mu.Unlock()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := b.Forward(ctx, Forwarded{Request: []byte{0, 19, 0, 7}, PrincipalType: "User", PrincipalName: "a", ClientAddress: net.IPv4(127, 0, 0, 1)})
		if waited := time.Since(start); !errors.Is(err, ErrNoController) && !errors.Is(err, context.DeadlineExceeded) || waited != time.Minute {
			t.Errorf("after %v: %v", waited, err)
		}
		if _, ok := b.Image().Topic("t"); !ok || b.State() != StateRunning || b.Epoch() != 77 {
			t.Errorf("state %v, epoch %d", b.State(), b.Epoch())
		}
		select {
		case err := <-b.Failed():
			t.Errorf("the broker has given up: %v", err)
		default:
		}
		mu.Lock()
		away = false
		mu.Unlock()
		f.append(true, topic("later", 2))
		for deadline := time.Now().Add(time.Minute); ; {
			if _, ok := b.Image().Topic("later"); ok {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the broker does not follow the controllers that are back")
			}
			<-time.After(10 * time.Millisecond)
		}
		if f.registrations != 1 {
			t.Errorf("registered %d times", f.registrations)
		}
		b.Stop()
		f.change(func() {})
		serving.Wait()
	})
}

// M-040: the leader changes while a snapshot is fetched in pieces, with another snapshot and with the same: what was fetched
// so far is not adopted, the download begins anew under the new epoch, and the image is the new leader's.
func TestM040_leader_changes_during_a_snapshot(t *testing.T) {
	t.Parallel()
	for name, another := range map[string]bool{"another snapshot": true, "the same snapshot": false} {
		f := newFakeController(t)
		f.snapshot, f.snapshotID = snapshotOf(t, version(), unfenced(), topic("old", 5), topic(strings.Repeat("x", 200), 7)), [2]int64{40, 1}
		f.end, f.hw = 40, 40
		var once sync.Once
		f.onPiece = func(position int64) {
			if position == 0 {
				return
			}
			once.Do(func() {
				f.change(func() {
					f.epoch++
					if another {
						f.snapshot, f.snapshotID = snapshotOf(t, version(), unfenced(), topic("new", 6), topic(strings.Repeat("y", 300), 8)), [2]int64{50, 2}
						f.end, f.hw = 50, 50
					}
				})
			})
		}
		_, p := startBroker(t, f)
		want, end := "old", int64(40)
		if another {
			want, end = "new", 50
		}
		image := p.until(t, "topic "+want+" exists", hasTopic(want))
		if _, mixed := image.Topic(map[bool]string{true: "old", false: "new"}[another]); mixed || image.Offset() != end-1 || image.Topics().Len() != 2 {
			t.Errorf("%s: image at %d with %d topics", name, image.Offset(), image.Topics().Len())
		}
		f.mu.Lock()
		asked := slices.Clone(f.asked)
		f.mu.Unlock()
		p.mu.Lock()
		if len(p.images) != 1 {
			t.Errorf("%s: %d images were shown", name, len(p.images))
		}
		p.mu.Unlock()
		again := slices.IndexFunc(asked, func(s string) bool { return strings.HasSuffix(s, " at 0 in 2") })
		if len(asked) < 4 || !strings.HasSuffix(asked[0], "at 0 in 1") || !strings.HasSuffix(asked[1], "at 100 in 1") || again != 2 {
			t.Errorf("%s: asked for %q", name, asked)
		}
	}
}
