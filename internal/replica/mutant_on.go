//go:build mutants

package replica

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantJoinerUncounted      = os.Getenv("STELE_MUTANT") == "replica-joiner-uncounted"
	mutantWatermarkEarly       = os.Getenv("STELE_MUTANT") == "replica-watermark-early"
	mutantTruncatesToWatermark = os.Getenv("STELE_MUTANT") == "replica-truncates-to-watermark"
	mutantFencedAccepted       = os.Getenv("STELE_MUTANT") == "replica-fenced-accepted"
	mutantStaleBrokerEpoch     = os.Getenv("STELE_MUTANT") == "replica-stale-broker-epoch"
	mutantReadsAboveWatermark  = os.Getenv("STELE_MUTANT") == "replica-reads-above-watermark"
	mutantTwoFetchers          = os.Getenv("STELE_MUTANT") == "replica-two-fetchers"
	mutantLogStartBack         = os.Getenv("STELE_MUTANT") == "log-start-back"
	mutantAcksEarly            = os.Getenv("STELE_MUTANT") == "replica-acks-early"
	mutantSkipsDivergence      = os.Getenv("STELE_MUTANT") == "replica-skips-divergence"
	mutantJoinsEarly           = os.Getenv("STELE_MUTANT") == "replica-joins-early"
)
