//go:build !mutants

package log

// Planted bugs that builds with the tag "mutants" can switch on, to show that some test sees them. In this build they are
// constants, and the compiler removes them.
const (
	mutantCutsUnderReaders = false
	mutantLazyLargest      = false
	mutantEpochsNotCut     = false
	mutantReusesOffset     = false
	mutantLogStartBack     = false
	mutantProducersNotCut  = false
)

func (v *View) fillLargest(_ *segment, st *segmentState) timestampOffset { return st.largest }
func unfilled(*segment) bool                                             { return false }
func takeLargest(*segment, *segmentState)                                {}
func keepLargest(*segment, *segmentState)                                {}
