//go:build mutants

package quorum

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantVoteUnwritten = os.Getenv("STELE_MUTANT") == "quorum-vote-unwritten"
