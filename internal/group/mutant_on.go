//go:build mutants

package group

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantCommitKeepsClock    = os.Getenv("STELE_MUTANT") == "group-commit-keeps-clock"
	mutantGenerationUnchecked = os.Getenv("STELE_MUTANT") == "group-generation-unchecked"
	mutantRevertForgetsOne    = os.Getenv("STELE_MUTANT") == "group-revert-forgets-one"
	mutantRevokesAtOnce       = os.Getenv("STELE_MUTANT") == "group-revokes-at-once"
)
