//go:build mutants

package quorum

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantVoteUnwritten      = mutant("quorum-vote-unwritten")
	mutantLogUnsynced        = mutant("quorum-log-unsynced")
	mutantSnapshotMisses     = mutant("quorum-snapshot-misses-one")
	mutantWipedVotes         = mutant("quorum-wiped-voter-votes")
	mutantStaleProposal      = mutant("quorum-proposal-stale")
	mutantActiveEarly        = mutant("quorum-active-early")
	mutantAnswersUnasked     = mutant("quorum-answers-unasked")
	mutantAnswersUncommitted = mutant("quorum-answers-uncommitted")
)

func mutant(name string) bool { return os.Getenv("STELE_MUTANT") == name }
