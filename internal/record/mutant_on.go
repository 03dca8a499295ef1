//go:build mutants

package record

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantDeltasUnchecked = os.Getenv("STELE_MUTANT") == "record-deltas-unchecked"
