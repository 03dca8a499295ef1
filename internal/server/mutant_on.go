//go:build mutants

package server

import "os"

// The planted bug of this run is named by the environment variable STELE_MUTANT; none when it is empty.
var mutantProduceOvertakes = os.Getenv("STELE_MUTANT") == "server-produce-overtakes"
