//go:build !mutants

package broker

// Planted bugs that builds with the tag "mutants" can switch on, to show that some test sees them. In this build they are
// constants, and the compiler removes them.
const (
	mutantAppliesUnregistered = false
)
