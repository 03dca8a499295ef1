//go:build mutants

package txn

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantEpochUnchecked  = os.Getenv("STELE_MUTANT") == "txn-epoch-unchecked"
	mutantRevertKeepsLast = os.Getenv("STELE_MUTANT") == "txn-revert-keeps-last"
)
