package replay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// serveFiles is the yardstick for hot consume: a process that does nothing but sendfile. It prints its address, then
// sends the files in Dir over and over to whoever connects first, until that one hangs up.
func serveFiles(j *Job, out io.Writer) (*Result, error) {
	names, err := fileNames(j.Dir)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(out, l.Addr())
	nc, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	f, err := nc.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	socket := int(f.Fd()) // and it blocks from now on
	runtime.LockOSThread()
	r := &Result{}
	for {
		sent := int64(0)
		for _, name := range names {
			n, err := sendWhole(socket, name)
			sent += n
			if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
				return r, nil
			}
			if err != nil {
				return nil, err
			}
		}
		if sent == 0 {
			return nil, fmt.Errorf("no bytes in the files of %s", j.Dir)
		}
		r.Bytes += sent
	}
}

func sendWhole(socket int, name string) (sent int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		n, err := unix.Sendfile(socket, int(f.Fd()), &sent, fetchPartitionMax)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 || err != nil {
			return sent, err
		}
	}
}

// discard drops what comes for Seconds.
func discard(j *Job) (*Result, error) {
	nc, err := net.Dial("tcp", j.Addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	in, err := newStream(nc.(*net.TCPConn))
	if err != nil {
		return nil, err
	}
	clock, err := startClock(j.PID)
	if err != nil {
		return nil, err
	}
	for deadline := clock.start.Add(time.Duration(j.Seconds * float64(time.Second))); time.Now().Before(deadline); {
		in.skip(maxDrop)
		if in.err != nil {
			return nil, in.err
		}
	}
	r := &Result{Bytes: in.read}
	return r, clock.stop(r)
}
