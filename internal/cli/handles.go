package cli

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	// mostOpenFiles is the bound on segments' files where the process may have very many handles.
	mostOpenFiles = 16384
	// spareHandles is what is left to everything that is neither a segment's file nor a connection: listeners, checkpoints
	// and snapshots that are written, directories that are synced, indexes that are rebuilt.
	spareHandles = 128
)

// handleLimit is how many file handles this process may have. The Go runtime has raised it as far as it may.
func handleLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// maxOpenFiles is the bound on open files of segments for a setting of log.max.open.files: negative for one that leaves
// most handles to connections, 0 for none.
func maxOpenFiles(setting, handles int) int {
	if setting >= 0 {
		return setting
	}
	return min(handles/4, mostOpenFiles)
}

// maxConnections is the bound on connections, -1 for none: the configured one, or fewer when handles would not be enough
// for those and the files. One connection too many is refused; a file that cannot be opened refuses a write.
func maxConnections(configured, fileSetting, handles int) int {
	if handles == math.MaxInt32 {
		return configured
	}
	left := max(16, handles-spareHandles-maxOpenFiles(fileSetting, handles))
	if configured < 0 {
		return left
	}
	return min(configured, left)
}
