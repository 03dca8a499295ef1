package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// SnapshotRules say when the metadata log is snapshotted and how much of it is kept. Zero fields take Kafka's
// defaults, negative ones switch a rule off.
type SnapshotRules struct {
	BytesBetween   int64         // metadata.log.max.record.bytes.between.snapshots
	MaxInterval    time.Duration // metadata.log.max.snapshot.interval.ms
	RetentionBytes int64         // metadata.max.retention.bytes, log and snapshots together
	Retention      time.Duration // metadata.max.retention.ms, by the age of what a snapshot holds
	DeleteDelay    time.Duration // how long a retired snapshot stays as .deleted
}

func (r SnapshotRules) complete() SnapshotRules {
	if r.BytesBetween == 0 {
		r.BytesBetween = 20 << 20
	}
	if r.MaxInterval == 0 {
		r.MaxInterval = time.Hour
	}
	if r.RetentionBytes == 0 {
		r.RetentionBytes = 100 << 20
	}
	if r.Retention == 0 {
		r.Retention = 7 * 24 * time.Hour
	}
	if r.DeleteDelay == 0 {
		r.DeleteDelay = time.Minute
	}
	return r
}

// snapshotRetry is how long after a snapshot failed the next may begin.
const snapshotRetry = time.Second

// lookInterval is how often a voter looks whether its directory is still there. What is open goes on being written when a
// volume is taken away under it, and is lost with the process.
const lookInterval = 5 * time.Second

// DirectoryGoneError says that the metadata log's directory is not where it was: its volume was taken away, or it was removed.
type DirectoryGoneError struct{ Dir string }

func (e *DirectoryGoneError) Error() string {
	return fmt.Sprintf("the metadata directory %s is gone while the node runs: put its volume back and start again", e.Dir)
}

// keeper takes snapshots and retires old ones. It belongs to the core; only the writing of a snapshot happens beside it.
type keeper struct {
	fs    vfs.FS
	dir   string
	store *storage
	rules SnapshotRules
	log   *slog.Logger
	// beside runs the writing of a snapshot.
	beside func(work func())

	list []SnapshotID // those there are, oldest first
	// head are the control records behind the newest snapshot's header: a log that was Kafka's with its voters in it
	// goes on to have them there, for Kafka's readers.
	head    []metadata.ControlRecord
	bytes   int64     // of batches since the newest
	since   time.Time // of the newest, or of the start
	running bool
	retry   time.Time // before then none is begun: the last one failed
	looked  time.Time // whether the directory is there
	// finished brings what became of the snapshot being written.
	finished chan snapshotOutcome
	retired  []retiredSnapshot
}

type snapshotOutcome struct {
	place      position
	membership *pb.ConfState
	voters     []Voter
	started    time.Time
	err        error
}

type retiredSnapshot struct {
	name string
	due  time.Time
}

func newKeeper(fsys vfs.FS, dir string, store *storage, rules SnapshotRules, now time.Time, beside func(work func()), logger *slog.Logger) (*keeper, error) {
	k := &keeper{fs: fsys, dir: dir, store: store, rules: rules, beside: beside, log: logger, since: now, finished: make(chan snapshotOutcome, 1)}
	return k, k.reload(now)
}

// reload reads which snapshots there are, and retires those that the log's start has passed by, as it does when a
// leader's snapshot was installed.
func (k *keeper) reload(now time.Time) error {
	found, err := listSnapshots(k.fs, k.dir)
	if err != nil {
		return err
	}
	k.bytes, k.list = 0, nil
	for _, id := range found {
		if id.EndOffset >= k.store.state.base.EndOffset {
			k.list = append(k.list, id)
		} else if err := k.remove(id, now); err != nil {
			return err
		}
	}
	if n := len(k.list); n > 0 {
		k.head, err = snapshotHead(k.fs, filepath.Join(k.dir, k.list[n-1].file()))
	}
	return err
}

// snapshotHead is the control records behind the header of a snapshot.
func snapshotHead(fsys vfs.FS, name string) (head []metadata.ControlRecord, err error) {
	data, err := vfs.ReadFile(fsys, name)
	if err != nil || len(data) < record.HeaderSize {
		return nil, err
	}
	size := record.Batch(data).Length()
	if size < record.HeaderSize || size > len(data) || !record.Batch(data).IsControl() {
		return nil, nil // whoever loads the snapshot says what is wrong with it
	}
	controls, _, err := recordsOf(record.Batch(data[:size:size]))
	if err != nil {
		return nil, nil
	}
	for _, rec := range controls {
		if t := rec.ControlType(); t == metadata.ControlKRaftVersion || t == metadata.ControlVoters {
			head = append(head, rec)
		}
	}
	return head, nil
}

// headFor is head with the voters as they are now.
func (k *keeper) headFor(voters []Voter) []metadata.ControlRecord {
	head := slices.Clone(k.head)
	for i, rec := range head {
		if rec.ControlType() == metadata.ControlVoters {
			head[i] = &metadata.Voters{Voters: voters}
		}
	}
	return head
}

// remove takes a snapshot out of use; its file goes later, as somebody may be reading it.
func (k *keeper) remove(id SnapshotID, now time.Time) error {
	name := filepath.Join(k.dir, id.String()+deletedSuffix)
	if err := k.fs.Rename(filepath.Join(k.dir, id.file()), name); err != nil {
		return err
	}
	k.retired = append(k.retired, retiredSnapshot{name: name, due: now.Add(k.rules.DeleteDelay)})
	return nil
}

// grew counts bytes of the log that the newest snapshot does not hold.
func (k *keeper) grew(n int) { k.bytes += int64(n) }

// due says whether it is time for a snapshot: at the latest when there is none yet with the membership as it is.
func (k *keeper) due(now time.Time) bool {
	if k.running || now.Before(k.retry) {
		return false
	}
	if k.store.state.snapshot.Index < k.store.changed {
		return true
	}
	if k.bytes == 0 {
		return false
	}
	return k.rules.BytesBetween > 0 && k.bytes >= k.rules.BytesBetween || k.rules.MaxInterval > 0 && now.Sub(k.since) >= k.rules.MaxInterval
}

// begin writes the image, which holds everything before place, beside the core. The outcome comes by finished.
func (k *keeper) begin(img *metadata.Image, place position, membership *pb.ConfState, voters []Voter, now time.Time) {
	k.running, k.bytes, k.since = true, 0, now
	outcome := snapshotOutcome{place: place, membership: proto.Clone(membership).(*pb.ConfState), voters: voters, started: now}
	head := k.headFor(voters)
	k.beside(func() {
		values, err := img.Encoded()
		if mutantSnapshotMisses && len(values) > 5 {
			values = values[:len(values)-1]
		}
		if err == nil {
			err = writeSnapshot(k.fs, k.dir, place.snapshotID(), place.Timestamp, slices.Values(values), head...)
		}
		outcome.err = err
		k.finished <- outcome
	})
}

// wait lets a snapshot that is being written come to its end; it is not recorded any more.
func (k *keeper) wait() {
	if k.running {
		<-k.finished
		k.running = false
	}
}

// retain retires snapshots, oldest first, while there are two and the log with all of them is too large, or what the
// oldest holds too old. The log then starts at the next one. The newest always stays.
func (k *keeper) retain(now time.Time) error {
	for len(k.list) >= 2 {
		large, err := k.tooLarge()
		if err != nil {
			return err
		}
		old, err := k.tooOld(k.list[0], now)
		if err != nil {
			return err
		}
		if !large && !old {
			return nil
		}
		if err := k.retire(now); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) tooLarge() (bool, error) {
	if k.rules.RetentionBytes < 0 {
		return false, nil
	}
	total := k.store.log.Size()
	for _, id := range k.list {
		info, err := k.fs.Stat(filepath.Join(k.dir, id.file()))
		if err != nil {
			return false, err
		}
		total += info.Size()
	}
	return total > k.rules.RetentionBytes, nil
}

func (k *keeper) tooOld(id SnapshotID, now time.Time) (bool, error) {
	if k.rules.Retention < 0 {
		return false, nil
	}
	place, err := k.store.place(id.EndOffset)
	return err == nil && now.UnixMilli()-place.Timestamp > k.rules.Retention.Milliseconds(), err
}

// retire moves the log's start to the second snapshot and gives up the first.
func (k *keeper) retire(now time.Time) error {
	oldest, next := k.list[0], k.list[1]
	base, err := k.store.place(next.EndOffset)
	if err != nil {
		return err
	}
	from := k.store.state.base.EndOffset
	if err := k.store.startAt(base); err != nil {
		return err
	}
	if _, err := k.store.log.Retain(now); err != nil {
		return err
	}
	k.log.Info("metadata log start moved", "topic", TopicName, "partition", 0, "from", from, "to", base.EndOffset, "cause", "retention", "snapshot", oldest.String())
	k.list = slices.Clone(k.list[1:])
	return k.remove(oldest, now)
}

// sweep removes retired snapshots, and segments, whose time has come.
func (k *keeper) sweep(now time.Time) error {
	k.store.log.DeleteDue(now)
	for len(k.retired) > 0 && !now.Before(k.retired[0].due) {
		if err := k.fs.Remove(k.retired[0].name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		k.retired = k.retired[1:]
	}
	return nil
}

// look fails when the directory is gone.
func (k *keeper) look(now time.Time) error {
	if now.Sub(k.looked) < lookInterval {
		return nil
	}
	k.looked = now
	if _, err := k.fs.Stat(k.dir); errors.Is(err, fs.ErrNotExist) {
		return &DirectoryGoneError{k.dir}
	}
	return nil
}

// keep does what is due of snapshots and retention.
func (c *Core) keep(now time.Time) error {
	if err := errors.Join(c.keeper.look(now), c.keeper.sweep(now)); err != nil {
		return err
	}
	img := c.machine.controller.Image()
	// The newest image is the committed one, and ends where the applied log does, when nothing is under way.
	quiet := c.machine.replayed == c.node.applied.EndOffset && !img.InTransaction()
	if quiet && c.keeper.due(now) && c.node.applied.EndOffset > c.node.store.state.snapshot.EndOffset {
		c.keeper.begin(img, c.node.applied, c.node.membership, c.node.voters, now)
	}
	return nil
}

// snapshotFinished records a snapshot that was written, and retires those it makes superfluous.
func (c *Core) snapshotFinished(s snapshotOutcome) error {
	c.keeper.running = false
	if s.err != nil {
		c.keeper.retry = c.o.Now().Add(snapshotRetry)
		// The log is whole without it. If the disk is going, the next append says so, if it is gone, look does; if it is
		// full, retention of others may free it before the next snapshot is due.
		c.log.Error("metadata snapshot failed", "endOffset", s.place.EndOffset, "epoch", s.place.Term, "error", s.err)
		return nil
	}
	if newest := c.node.store.state.snapshot; s.place == newest {
		return nil
	} else if s.place.EndOffset <= newest.EndOffset {
		// The leader's snapshot came in between, and the log starts there.
		return c.keeper.remove(s.place.snapshotID(), c.o.Now())
	}
	if err := c.node.store.snapshotTaken(s.place, s.membership, s.voters); err != nil {
		return err
	}
	now := c.o.Now()
	c.keeper.list = append(slices.Clone(c.keeper.list), s.place.snapshotID())
	c.log.Info("metadata snapshot", "topic", TopicName, "partition", 0, "endOffset", s.place.EndOffset, "epoch", s.place.Term, "took", now.Sub(s.started))
	if err := c.keeper.retain(now); err != nil {
		return err
	}
	c.board.update(func(st *Status) { st.snapshots = c.keeper.list })
	return nil
}

// SnapshotWritten takes over a snapshot whose writing, which Options.Beside ran, has come to its end, if there is one.
func (c *Core) SnapshotWritten() error {
	select {
	case s := <-c.keeper.finished:
		return c.snapshotFinished(s)
	default:
		return nil
	}
}
