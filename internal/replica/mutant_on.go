//go:build mutants

package replica

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantJoinerUncounted = os.Getenv("STELE_MUTANT") == "replica-joiner-uncounted"
