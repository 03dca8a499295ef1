package quorum

import (
	"errors"
	"testing"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// formers are voters of a quorum that is being formed, each with what it has heard, and no network between them.
func formers(ids ...int32) map[int32]*Formation {
	all := map[int32]*Formation{}
	for _, id := range ids {
		all[id] = former(testVoter(id), ids...)
	}
	return all
}

func former(self Voter, ids ...int32) *Formation {
	return NewFormation(func() Voter { return self }, ids)
}

// tell lets one hear what another states now.
func tell(to, from *Formation) {
	self := from.self()
	to.Heard(identityOf(self), from.Statement())
}

// A voter agrees to a set only when every other has stated the same whole one: each must have heard of all.
func TestFormationWaitsForEveryVotersWord(t *testing.T) {
	t.Parallel()
	f := formers(1, 2, 3)
	tell(f[1], f[2])
	if f[1].agreed() != nil {
		t.Error("two of three are enough")
	}
	tell(f[1], f[3])
	if f[1].agreed() != nil {
		t.Error("nobody has stated the whole set yet")
	}
	for _, from := range []int32{1, 3} {
		tell(f[2], f[from])
	}
	tell(f[1], f[2])
	if f[1].agreed() != nil {
		t.Error("voter 3 has not stated the whole set yet")
	}
	for _, from := range []int32{1, 2} {
		tell(f[3], f[from])
	}
	tell(f[1], f[3])
	if got := members(f[1].agreed()); got != members(testVoters(1, 2, 3)) {
		t.Errorf("agreed on %s", got)
	}
}

// What one has written the others take over, also when the third is gone again: from then on a majority is enough.
func TestFormationFollowsWhoHasWritten(t *testing.T) {
	t.Parallel()
	f := formers(1, 2, 3)
	f[1].result, f[1].written = testVoters(1, 2, 3), true
	tell(f[2], f[1])
	if got := members(f[2].agreed()); got != members(testVoters(1, 2, 3)) {
		t.Errorf("agreed on %q", got)
	}
}

// A disk that is emptied while the quorum forms never ends up in two sets: who has agreed keeps its word, so the new
// directory finds somebody who does not state it.
func TestFormationNeverAgreesOnTwoSets(t *testing.T) {
	t.Parallel()
	f := formers(1, 2, 3)
	for a := range f {
		for b := range f {
			if a != b {
				tell(f[a], f[b])
			}
		}
	}
	for b := range f {
		if b != 1 {
			tell(f[1], f[b])
		}
	}
	f[1].result = f[1].agreed()
	if f[1].result == nil {
		t.Fatal("all have heard all, and no set is agreed on")
	}
	emptied := testVoter(3)
	emptied.VoterDirectoryID = metadata.UUID{15: 99}
	late := f[3]
	f[3] = former(emptied, 1, 2, 3)
	for range 3 {
		for a := range f {
			for b := range f {
				if a != b {
					tell(f[a], f[b])
				}
			}
		}
	}
	if f[2].agreed() != nil || f[3].agreed() != nil {
		t.Errorf("voter 2 agrees on %q, voter 3 on %q, voter 1 has %q", members(f[2].agreed()), members(f[3].agreed()), members(f[1].result))
	}
	// What is heard late of the old directory is not believed.
	tell(f[2], late)
	if got := f[2].voters[3].voter.VoterDirectoryID; got != emptied.VoterDirectoryID {
		t.Errorf("voter 2 believes in directory %s of voter 3 again", got)
	}
	// And when voter 1 has written, the new disk is told so.
	f[1].written = true
	tell(f[3], f[1])
	var refused *EmptiedDiskError
	if !errors.As(f[3].refused, &refused) || refused.Voter != 1 {
		t.Errorf("the emptied disk: %v", f[3].refused)
	}
}

// Who is not listed, or speaks for somebody else, is not heard.
func TestFormationHearsOnlyItsVoters(t *testing.T) {
	t.Parallel()
	f := formers(1, 2, 3)
	stranger := former(testVoter(4), 4)
	tell(f[1], stranger)
	f[1].Heard(identityOf(testVoter(2)), Statement{Self: encodeVoters(testVoters(3))})
	f[1].Heard(identityOf(testVoter(2)), Statement{Self: []byte{1, 2, 3}})
	if len(f[1].voters) != 0 {
		t.Errorf("heard: %v", f[1].voters)
	}
}

// A directory is marked before its quorum is there, and the mark is gone afterwards; one that has neither mark nor state
// was emptied, and is not formed again.
func TestFormingMark(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(metaDir, 0o755); err != nil {
		t.Fatal(err)
	}
	state := func(want bool) {
		t.Helper()
		if got, err := Forming(fs, metaDir); err != nil || got != want {
			t.Errorf("forming: %v %v, want %v", got, err, want)
		}
	}
	state(false)
	if err := MarkForming(fs, metaDir); err != nil {
		t.Fatal(err)
	}
	state(true)
	self := testVoter(1)
	err := Format(FormatOptions{FS: fs, Dir: metaDir, Identity: identityOf(self), Voters: testVoters(1, 2, 3), Bootstrap: metadata.BootstrapRecords(metadata.LevelLatest)})
	if err != nil {
		t.Fatal(err)
	}
	// The process ended here: the next one takes the mark back.
	state(false)
	if _, err := fs.Stat(partitionDir(metaDir) + "/" + formingName); err == nil {
		t.Error("the mark is still there")
	}
}

// A controller without a vote, or one whose statement cannot be read, has formed no quorum that a disk could be missing
// from: it is waited for. To be refused costs a voter its vote for good.
func TestFormationIsNotRefusedByWhoHasFormedNone(t *testing.T) {
	t.Parallel()
	for _, stated := range [][]byte{nil, encodeVoters(nil), {1, 2, 3}} {
		f := formers(1, 2)[1]
		two := testVoter(2)
		f.Heard(identityOf(two), Statement{Voters: stated, Formed: true, Self: encodeVoters([]Voter{two})})
		if f.refused != nil || f.agreed() != nil {
			t.Errorf("stated %x: refused %v, agreed on %q", stated, f.refused, members(f.agreed()))
		}
	}
}

// Voters that know of each other and not of the third form nothing without it, however often they hear each other.
func TestFormationOfSomeIsNone(t *testing.T) {
	t.Parallel()
	f := formers(1, 2, 3)
	for range 3 {
		tell(f[1], f[2])
		tell(f[2], f[1])
	}
	if f[1].agreed() != nil || f[2].agreed() != nil || f[1].candidate() != nil {
		t.Errorf("two of three agree on %q and %q, and state %x", members(f[1].agreed()), members(f[2].agreed()), f[1].candidate())
	}
}
