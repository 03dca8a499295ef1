package quorum

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/stelelog/stele/internal/wire"
)

// A quorum of several voters forms itself: each voter makes up the id of its directory, asks the others for theirs,
// and writes its state only when every voter has stated the same whole set of (node, directory), or one has it on disk.
// So each has the whole set on disk before it votes for the first time, and a disk that is emptied later is a stranger
// to all who have it (see Identity). From then on a majority is enough.

// formingName is the file that says that a metadata directory waits for its quorum to be formed. It is gone when the
// quorum's state is there; a directory with neither has lost its state, and must not vote again.
const formingName = "quorum-forming"

// MarkForming leaves word in a new metadata directory that its quorum is yet to be formed.
func MarkForming(fsys vfs.FS, dir string) error {
	if err := fsys.MkdirAll(partitionDir(dir), 0o755); err != nil {
		return err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	return vfs.WriteFileAtomic(fsys, filepath.Join(partitionDir(dir), formingName), []byte("version=1\n"))
}

// Forming says whether a metadata directory waits for its quorum to be formed.
func Forming(fsys vfs.FS, dir string) (bool, error) {
	_, err := fsys.Stat(filepath.Join(partitionDir(dir), formingName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The state was written, and the word to be taken back when the process ended.
	if _, err := fsys.Stat(filepath.Join(partitionDir(dir), stateFileName)); err == nil {
		return false, Formed(fsys, dir)
	}
	return true, nil
}

// Formed takes the word of MarkForming back, after Format.
func Formed(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(filepath.Join(partitionDir(dir), formingName)); err != nil {
		return err
	}
	return fsys.SyncDir(partitionDir(dir))
}

// Formation is what one voter has heard of the others while a quorum is formed, and what it makes of that. It knows no
// network; whoever drives it brings what others state and asks for a decision. One goroutine at a time may use it.
type Formation struct {
	self   func() Voter
	ids    []int32 // of all voters, sorted
	voters map[int32]heardVoter
	// result is the set once it is agreed on: from then on this voter states it, whatever it hears.
	result  []Voter
	written bool  // result is on disk
	refused error // the quorum is there already, without this disk
}

// Statement is what a controller says of itself with each request and answer of this quorum's own.
type Statement struct {
	Voters []byte // the voters it would form a quorum of, or has formed it of, empty if it does not know all
	Formed bool   // Voters are on disk
	Self   []byte
}

// NewFormation begins to form a quorum of the voters with these node ids, of which self is one.
func NewFormation(self func() Voter, ids []int32) *Formation {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return &Formation{self: self, ids: ids, voters: map[int32]heardVoter{}}
}

// Statement is what this voter says now.
func (f *Formation) Statement() Statement {
	return Statement{Voters: f.candidate(), Formed: f.written, Self: encodeVoters([]Voter{f.self()})}
}

// Decide returns the voters once they are agreed on: what Format is to write. Until then it says for whom it waits.
// *EmptiedDiskError means that it is too late.
func (f *Formation) Decide() (voters []Voter, waitsFor string, err error) {
	if f.refused == nil {
		f.result = f.agreed()
	}
	return f.result, f.waitsFor(), f.refused
}

// Wrote says that the agreed set is on disk: from now on this voter states it as formed.
func (f *Formation) Wrote() { f.written = true }

// heardVoter is what a voter said last.
type heardVoter struct {
	voter  Voter
	stated []Voter // the set it would form, or has formed, nil if it does not know all
	formed bool
	// past are directories it said it had before: what comes late of those is not believed.
	past map[metadata.UUID]bool
}

// members is a set of voters without their endpoints, as text, for comparison.
func members(voters []Voter) string {
	var parts []string
	for _, v := range voters {
		parts = append(parts, fmt.Sprint(v.VoterID, "/", v.VoterDirectoryID))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// Heard takes what a controller with that identity stated.
func (f *Formation) Heard(from Identity, st Statement) {
	stated, formed := st.Voters, st.Formed
	if !slices.Contains(f.ids, from.NodeID) || from.NodeID == f.self().VoterID {
		return
	}
	one, ok := st.Who(from)
	if !ok {
		return
	}
	known := f.voters[from.NodeID]
	if known.past[from.DirectoryID] {
		return
	}
	next := heardVoter{voter: one, formed: formed, past: known.past}
	if known.voter.VoterDirectoryID != from.DirectoryID && known.past != nil {
		next.past = maps.Clone(known.past)
		next.past[known.voter.VoterDirectoryID] = true
	}
	if next.past == nil {
		next.past = map[metadata.UUID]bool{}
	}
	if len(stated) > 0 {
		if set, err := decodeVoters(stated); err == nil {
			next.stated = set
		}
	}
	f.voters[from.NodeID] = next
	me := f.self()
	// One that has formed none, or whose set cannot be read, says nothing about this disk.
	if formed && len(next.stated) > 0 && !slices.ContainsFunc(next.stated, func(v Voter) bool { return v.VoterID == me.VoterID && v.VoterDirectoryID == me.VoterDirectoryID }) {
		f.refused = &EmptiedDiskError{Self: me, Voter: from.NodeID}
	}
}

// set is all voters, nil while one has not been heard of.
func (f *Formation) set() []Voter {
	var all []Voter
	for _, id := range f.ids {
		if id == f.self().VoterID {
			all = append(all, f.self())
		} else if h, ok := f.voters[id]; ok {
			all = append(all, h.voter)
		} else {
			return nil
		}
	}
	return all
}

// candidate is what this voter states.
func (f *Formation) candidate() []byte {
	if f.result != nil {
		return encodeVoters(f.result)
	}
	if set := f.set(); set != nil {
		return encodeVoters(set)
	}
	return nil
}

// agreed is the set to write, nil while there is none.
func (f *Formation) agreed() []Voter {
	for _, h := range f.voters {
		if h.formed && len(h.stated) > 0 {
			return h.stated
		}
	}
	set := f.set()
	if set == nil {
		return nil
	}
	for _, h := range f.voters {
		if members(h.stated) != members(set) {
			return nil
		}
	}
	return set
}

// waitsFor says for whom, in words.
func (f *Formation) waitsFor() string {
	var parts []string
	set := f.set()
	for _, id := range f.ids {
		h, ok := f.voters[id]
		switch {
		case id == f.self().VoterID:
		case !ok:
			parts = append(parts, fmt.Sprintf("voter %d is not heard of yet", id))
		case set != nil && len(h.stated) == 0:
			parts = append(parts, fmt.Sprintf("voter %d has not heard of all voters yet", id))
		case set != nil && members(h.stated) != members(set):
			parts = append(parts, fmt.Sprintf("voter %d would form the quorum of %s, this one of %s", id, members(h.stated), members(set)))
		}
	}
	return strings.Join(parts, "; ")
}

// EmptiedDiskError says that a quorum is there already, and knows this node by another directory or not at all.
type EmptiedDiskError struct {
	Self  Voter
	Voter int32 // who said so
}

func (e *EmptiedDiskError) Error() string {
	return fmt.Sprintf("voter %d says that the quorum was formed without node %d's directory %s: a metadata directory that was emptied must not vote again", e.Voter, e.Self.VoterID, e.Self.VoterDirectoryID)
}

// Form waits until the listed voters, by node id, agree on who they are, and returns them: what Format is to write.
// waiting is told for whom it waits, whenever that changes. *EmptiedDiskError means that it is too late.
func (m *Mesh) Form(ctx context.Context, ids []int32, waiting func(string)) ([]Voter, error) {
	f := NewFormation(func() Voter { return m.self }, ids)
	m.mu.Lock()
	m.formation = f
	m.mu.Unlock()
	asking, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ask(asking, f)
	}()
	defer func() {
		stop()
		<-done
	}()
	told := ""
	for {
		m.mu.Lock()
		result, text, refused := f.Decide()
		m.mu.Unlock()
		switch {
		case refused != nil:
			return nil, refused
		case result != nil:
			return result, nil
		}
		if text != told && text != "" {
			waiting(text)
			told = text
		}
		select {
		case <-m.heard:
		case <-ctx.Done():
			return nil, fmt.Errorf("the quorum is not formed: %s: %w", text, ctx.Err())
		}
	}
}

// Wrote says that the agreed set is on disk: from now on this voter states it as formed.
func (m *Mesh) Wrote() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.formation.Wrote()
}

// formInterval is how often the other voters are asked while a quorum is formed.
const formInterval = 50 * time.Millisecond

// ask asks each of the other voters what it knows, again and again.
func (m *Mesh) ask(ctx context.Context, f *Formation) {
	conns := map[int32]*wire.Conn{}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	ticker := time.NewTicker(formInterval)
	defer ticker.Stop()
	told := map[int32]string{}
	for {
		for _, id := range f.ids {
			if id == m.o.Identity.NodeID {
				continue
			}
			if err := m.askOne(ctx, f, id, conns); err != nil {
				if c := conns[id]; c != nil {
					c.Close()
					delete(conns, id)
				}
				if told[id] != err.Error() && ctx.Err() == nil {
					told[id] = err.Error()
					m.o.Logger.Debug("voter not reached", "voter", id, "address", m.o.Addresses[id], "cause", err)
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Mesh) askOne(ctx context.Context, f *Formation, id int32, conns map[int32]*wire.Conn) error {
	if conns[id] == nil {
		c, err := m.dial(ctx, m.o.Addresses[id])
		if err != nil {
			return err
		}
		conns[id] = c
	}
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	answer, err := conns[id].Request(limited, m.request(nil))
	if err != nil {
		return err
	}
	resp := answer.(*wire.QuorumPeerResponse)
	from := Identity{ClusterID: resp.ClusterID, NodeID: resp.NodeID, DirectoryID: resp.DirectoryID}
	if from.ClusterID != m.o.Identity.ClusterID || from.NodeID != id {
		m.o.Logger.Warn("another answers at a voter's address", "voter", id, "address", m.o.Addresses[id], "there", from.String(), "cluster", m.o.Identity.ClusterID)
		return fmt.Errorf("%s answers", from)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hear(from, Statement{Voters: resp.Voters, Formed: resp.Formed, Self: resp.Self})
	return nil
}

// hear takes what another controller stated; mu is held.
func (m *Mesh) hear(from Identity, st Statement) {
	if m.formation == nil {
		return
	}
	m.formation.Heard(from, st)
	select {
	case m.heard <- struct{}{}:
	default:
	}
}
