//go:build mutants

package log

import (
	"os"
	"sync"
)

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantCutsUnderReaders = os.Getenv("STELE_MUTANT") == "log-cuts-under-readers"
	mutantLazyLargest      = os.Getenv("STELE_MUTANT") == "log-lazy-largest"
	mutantEpochsNotCut     = os.Getenv("STELE_MUTANT") == "log-epochs-not-cut"
	mutantReusesOffset     = os.Getenv("STELE_MUTANT") == "log-reuses-offset"
	mutantLogStartBack     = os.Getenv("STELE_MUTANT") == "log-start-back"
	mutantProducersNotCut  = os.Getenv("STELE_MUTANT") == "log-producers-not-cut"
)

// lazily holds the largest timestamp of segments that have one so far: with mutantLazyLargest a reader whose view was
// published before there was one fills it in from what it sees, as Kafka did before KAFKA-19407.
var lazily sync.Map // *segment to timestampOffset

func (v *View) fillLargest(seg *segment, st *segmentState) timestampOffset {
	if known, ok := lazily.Load(seg); ok && !v.unfilled {
		return known.(timestampOffset)
	}
	lazily.Store(seg, st.largest)
	return st.largest
}

func unfilled(seg *segment) bool {
	_, ok := lazily.Load(seg)
	return !ok
}

func takeLargest(seg *segment, st *segmentState) {
	if known, ok := lazily.Load(seg); ok {
		st.largest = known.(timestampOffset)
	}
}

func keepLargest(seg *segment, st *segmentState) {
	if st.largest.timestamp >= 0 {
		lazily.Store(seg, st.largest)
	}
}
