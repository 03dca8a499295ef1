//go:build failpoints

package vfs

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	failpointName, failpointAt = parseFailpoint(os.Getenv("STELE_FAILPOINT"))
	failpointHits              atomic.Int64
)

func parseFailpoint(v string) (string, int64) {
	name, count, ok := strings.Cut(v, ":")
	if !ok {
		return name, 1
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		return name, 1
	}
	return name, n
}

// Failpoint kills this process, as kill -9 would, at the n-th hit of the point that the environment variable
// STELE_FAILPOINT=name[:n] names.
func Failpoint(name string) {
	if failpointName == "" || name != failpointName || failpointHits.Add(1) != failpointAt {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one instruction more
}
