package server

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/internal/wire"
)

// readAhead asks the kernel to fetch from disk what an answer is about to send and its page cache does not hold, and
// as much again after each range, which the next Fetch of a consumer that reads from the beginning will ask for. All
// ranges are asked for before the first is sent: the disk works on them together, and beside the sending. It is advice;
// what goes wrong shows when the range is sent.
func readAhead(segments []wire.Segment) {
	for i := range segments {
		r := &segments[i].Range
		if segments[i].Bytes != nil {
			continue
		}
		file, lent := r.File.OSFile()
		if !lent {
			continue
		}
		raw, err := file.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) {
			if !cached(int(fd), r.Position) || !cached(int(fd), r.Position+int64(r.Length)-1) {
				_ = unix.Fadvise(int(fd), r.Position, 2*int64(r.Length), unix.FADV_WILLNEED)
			}
		})
	}
}

// cached says whether a byte of a file can be read without going to disk.
func cached(fd int, position int64) bool {
	var b [1]byte
	_, err := unix.Preadv2(fd, [][]byte{b[:]}, position, unix.RWF_NOWAIT)
	return !errors.Is(err, unix.EAGAIN)
}
