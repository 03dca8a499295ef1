//go:build failpoints

package vfs

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

type failpoint struct {
	name string
	at   int64  // which hit kills, from 1
	file string // hits count once this file exists; "" counts all
}

var (
	chosen = parseFailpoint(os.Getenv("STELE_FAILPOINT"))
	hits   atomic.Int64
)

func parseFailpoint(v string) failpoint {
	v, file, _ := strings.Cut(v, "@")
	name, count, _ := strings.Cut(v, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		n = 1
	}
	return failpoint{name: name, at: n, file: file}
}

// Failpoint kills this process, as kill -9 would, at the n-th hit of the point that the environment variable
// STELE_FAILPOINT=name[:n][@file] names. With a file, hits count once that file exists: so a point that start-up
// passes too can be aimed at in mid-work.
func Failpoint(name string) {
	if chosen.name == "" || name != chosen.name {
		return
	}
	if chosen.file != "" {
		if _, err := os.Stat(chosen.file); err != nil {
			return
		}
	}
	if hits.Add(1) != chosen.at {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one instruction more
}
