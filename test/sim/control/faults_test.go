package control

import (
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/vfs"
)

const operator int32 = 300 // the node id of whoever changes the voters

// repeat does something again and again until there is calm.
func (w *world) repeat(low, high time.Duration, do func()) {
	var again func()
	again = func() {
		if w.calm {
			return
		}
		do()
		w.after(w.between(low, high), again)
	}
	w.after(w.between(low, high), again)
}

// trouble makes everything go wrong, until there is calm.
func (w *world) trouble() {
	w.repeat(4*time.Second, 16*time.Second, w.troubleServer)
	w.repeat(5*time.Second, 14*time.Second, w.partition)
	w.repeat(2*time.Second, 7*time.Second, w.troubleBroker)
	w.repeat(5*time.Second, 20*time.Second, func() {
		w.net.loss, w.net.twice, w.net.slow = w.rng.Float64()*6, w.rng.Float64()*8, w.rng.Float64()*15
		if w.chance(30) {
			w.net.loss, w.net.twice, w.net.slow = 0, 0, 0
		}
	})
	w.repeat(20*time.Second, 60*time.Second, func() {
		// A voter is held to be dead that is not.
		s, gone := w.server(), w.server()
		s.post(func() error { return s.core.VoterGone(gone.voter()) })
	})
	w.repeat(3*time.Second, 12*time.Second, w.changeVoters)
}

func (w *world) server() *server { return w.servers[pick(w.loop, w.serverIDs)] }

// active is the controller that answers, of the newest epoch; nil if there is none.
func (w *world) active() *server {
	var found *server
	for _, id := range w.serverIDs {
		if s := w.servers[id]; s.up && s.core != nil && s.core.Status().Active && (found == nil || s.core.Status().LeaderEpoch > found.core.Status().LeaderEpoch) {
			found = s
		}
	}
	return found
}

// victim is the active controller, or any.
func (w *world) victim() *server {
	if a := w.active(); a != nil && w.chance(40) {
		return a
	}
	return w.server()
}

func (w *world) troubleServer() {
	s := w.victim()
	if !s.up {
		return
	}
	switch n := w.rng.IntN(100); {
	case n < 30:
		s.crash(pick(w.loop, []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}))
	case n < 55:
		s.crashIn = 1 + w.rng.IntN(40)
	case n < 63:
		s.failIn = 1 + w.rng.IntN(40)
	case n < 70:
		s.stop()
	case n < 85:
		w.count("pauses")
		w.note("controller %d stands still", s.id)
		s.busyUntil = max(s.busyUntil, w.now+w.between(100*time.Millisecond, 5*time.Second))
	default:
		w.count("slow disks")
		s.slow = w.between(5*time.Millisecond, 150*time.Millisecond)
		life := s.life
		w.after(w.between(2*time.Second, 12*time.Second), func() {
			if s.life == life {
				s.slow = 0
			}
		})
	}
}

// partition cuts one node off from some others, in one direction or both, for a while.
func (w *world) partition() {
	w.count("partitions")
	lonely := w.victim().id
	if w.chance(20) {
		lonely = pick(w.loop, w.brokers).id
	}
	deaf, mute := w.chance(75), w.chance(75)
	if !deaf && !mute {
		deaf, mute = true, true
	}
	few, among := w.chance(40), w.chance(30) // only some; only among controllers
	var made [][2]int32
	cut := func(from, to int32) {
		made = append(made, [2]int32{from, to})
		w.net.cut[[2]int32{from, to}] = true
	}
	for _, id := range w.everybody {
		if id == lonely || few && w.chance(50) || among && w.servers[id] == nil {
			continue
		}
		if deaf {
			cut(id, lonely)
		}
		if mute {
			cut(lonely, id)
		}
	}
	w.note("node %d is cut off: deaf %v, mute %v, %d ways", lonely, deaf, mute, len(made))
	w.after(w.between(300*time.Millisecond, 7*time.Second), func() {
		for _, way := range made {
			delete(w.net.cut, way)
		}
	})
}

func (w *world) troubleBroker() {
	b := pick(w.loop, w.brokers)
	switch n := w.rng.IntN(100); {
	case !b.up:
	case n < 55:
		b.crash(false)
	case n < 90:
		b.leaving = true
	default:
		if len(b.dirs) > 1 && len(b.offline) == 0 {
			w.count("failed log directories")
			b.offline = []metadata.UUID{b.dirs[0]}
		}
	}
}

// wiped says whether a voter's disk is gone.
func (w *world) wiped(v quorum.Voter) bool {
	s := w.servers[v.VoterID]
	return s.dir != v.VoterDirectoryID || s.emptied
}

// changeVoters does the next thing that an operator would: replaces a voter whose disk is gone, adds one, removes one; or
// empties a disk, so that there is something to do.
func (w *world) changeVoters() {
	active, voters := w.active(), w.check.voters
	if active == nil || w.changing {
		return
	}
	if voters == nil {
		voters = active.core.Status().Voters
	}
	votes := map[int32]metadata.UUID{}
	gone := -1
	for i, v := range voters {
		votes[v.VoterID] = v.VoterDirectoryID
		w.servers[v.VoterID].once[v.VoterDirectoryID] = true
		if w.wiped(v) {
			gone = i
		}
	}
	if gone >= 0 {
		w.change(active, func(c *quorum.Core, done func(error)) {
			c.RemoveVoter(voters[gone].VoterID, voters[gone].VoterDirectoryID, done)
		})
		return
	}
	var candidates []*server
	for _, id := range w.serverIDs {
		s := w.servers[id]
		if _, is := votes[id]; is || !s.up || s.core == nil {
			continue
		}
		if s.once[s.dir] {
			s.wipe()
			return
		}
		candidates = append(candidates, s)
	}
	switch {
	case len(candidates) > 0 && (len(voters) < 3 || w.chance(60)):
		s := pick(w.loop, candidates)
		v := s.voter()
		s.once[s.dir] = true
		w.change(active, func(c *quorum.Core, done func(error)) { c.AddVoter(v, done) })
	case len(voters) > 3 && w.chance(60):
		v := pick(w.loop, voters)
		w.change(active, func(c *quorum.Core, done func(error)) { c.RemoveVoter(v.VoterID, v.VoterDirectoryID, done) })
	case len(voters) >= 3:
		w.servers[pick(w.loop, voters).VoterID].wipe()
	}
}

func (w *world) change(s *server, do func(c *quorum.Core, done func(error))) {
	w.changing = true
	w.net.call(operator, s.id, 10*time.Second, func(answer func(any)) {
		s.post(func() error {
			do(s.core, func(err error) { answer(err) })
			return nil
		})
	}, func(answer any, ok bool) {
		w.changing = false
		if err, failed := answer.(error); ok && failed {
			w.note("the voters are not changed: %v", err)
		}
	})
}

// wipe empties the machine's disk.
func (s *server) wipe() {
	s.w.count("wiped disks")
	s.w.note("controller %d loses its disk", s.id)
	if s.up {
		s.crash(vfs.LoseNothing)
	}
	s.mem, s.emptied = newDisk(s.w), true
}

func newDisk(w *world) *vfs.Mem {
	m := vfs.NewMem()
	m.SetClock(func() time.Time { return epoch.Add(w.now) })
	return m
}
