//go:build !mutants

package coordinator

// A planted bug that builds with the tag "mutants" can switch on, to show that some test sees it. In this build
// it is a constant, and the compiler removes it.
const mutantAnswersUncommitted = false
