//go:build mutants

package quorum

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantAnswersUnsynced = os.Getenv("STELE_MUTANT") == "quorum-answers-unsynced"
