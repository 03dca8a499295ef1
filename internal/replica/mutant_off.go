//go:build !mutants

package replica

// Planted bugs that builds with the tag "mutants" can switch on, to show that some test sees them. In this build they are
// constants, and the compiler removes them.
const (
	mutantJoinerUncounted      = false
	mutantWatermarkEarly       = false
	mutantTruncatesToWatermark = false
	mutantFencedAccepted       = false
	mutantStaleBrokerEpoch     = false
	mutantReadsAboveWatermark  = false
	mutantTwoFetchers          = false
	mutantLogStartBack         = false
	mutantAcksEarly            = false
	mutantSkipsDivergence      = false
	mutantJoinsEarly           = false
)
