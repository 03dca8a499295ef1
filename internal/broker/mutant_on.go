//go:build mutants

package broker

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var (
	mutantAppliesUnregistered = os.Getenv("STELE_MUTANT") == "broker-applies-unregistered"
)
