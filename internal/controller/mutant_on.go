//go:build mutants

package controller

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantStaleEpoch       = mutant("controller-stale-epoch")
	mutantKeepsUncommitted = mutant("controller-keeps-uncommitted")
)

func mutant(name string) bool { return os.Getenv("STELE_MUTANT") == name }
