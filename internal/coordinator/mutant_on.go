//go:build mutants

package coordinator

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantAnswersUncommitted = os.Getenv("STELE_MUTANT") == "coordinator-answers-uncommitted"
