//go:build !mutants

package group

// Planted bugs that builds with the tag "mutants" can switch on, to show that some test sees each. In this
// build they are constants, and the compiler removes them.
const (
	mutantCommitKeepsClock    = false
	mutantGenerationUnchecked = false
	mutantRevertForgetsOne    = false
	mutantRevokesAtOnce       = false
)
