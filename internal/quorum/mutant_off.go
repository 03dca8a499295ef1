//go:build !mutants

package quorum

// Planted bugs that builds with the tag "mutants" can switch on, to show that some test sees them. In this build they are
// constants, and the compiler removes them.
const (
	mutantVoteUnwritten      = false
	mutantLogUnsynced        = false
	mutantSnapshotMisses     = false
	mutantWipedVotes         = false
	mutantStaleProposal      = false
	mutantActiveEarly        = false
	mutantAnswersUnasked     = false
	mutantAnswersUncommitted = false
)
