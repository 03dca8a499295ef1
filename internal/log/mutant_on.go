//go:build mutants

package log

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantCutsUnderReaders = os.Getenv("STELE_MUTANT") == "log-cuts-under-readers"
