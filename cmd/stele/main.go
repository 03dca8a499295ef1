// Command stele is the whole of Stele in one binary: broker, controller and
// command line.
package main

import (
	"os"

	"github.com/stelelog/stele/internal/cli"
)

func main() { os.Exit(cli.Execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
