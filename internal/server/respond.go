package server

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/internal/wire"
)

// writeStep is how many bytes a write is asked to move before its deadline is set anew: a
// slow reader is served as long as it reads, one that has stopped is cut off.
const writeStep = 256 << 10

// sendfileStep is the same for sendfile, which returns when the socket is full in any case.
const sendfileStep = 1 << 20

// write sends the answer of a request, if it has one, and lets go of what the answer holds.
func (c *conn) write(r *Request, resp Response) error {
	if resp.release != nil {
		defer resp.release()
	}
	switch {
	case resp.msg != nil:
		buf := wire.NewBuffer(0)
		buf.B = appendAnswer(buf.B, r, resp.msg)
		defer buf.Release()
		if r.turn {
			return c.writeInTurn(r, buf.B)
		}
		return c.writeBytes(buf.B)
	case resp.segments != nil:
		defer resp.segments.Release()
		for _, s := range resp.segments.List {
			var err error
			if s.Bytes != nil {
				err = c.writeBytes(s.Bytes)
			} else {
				err = c.writeRange(s.Range)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// writeBySoon makes writes fail at about WriteTimeout from now.
func (c *conn) writeBySoon() error {
	now := time.Now()
	until := now.Add(c.srv.opts.WriteTimeout)
	if until.Sub(c.writeUntil) <= c.srv.opts.WriteTimeout/deadlineSlack {
		return nil
	}
	c.writeUntil = until
	return c.nc.SetWriteDeadline(until)
}

func (c *conn) writeBytes(b []byte) error {
	for len(b) > 0 {
		if err := c.writeBySoon(); err != nil {
			return err
		}
		n, err := c.nc.Write(b[:min(len(b), writeStep)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeRange sends a range of a file: straight from the file where the kernel can, else through a
// buffer. A file that ends early ends the connection, because the frame has promised its bytes.
func (c *conn) writeRange(r wire.FileRange) error {
	if tcp, isTCP := c.nc.(*net.TCPConn); isTCP {
		if file, done, lent := r.Lend(); lent {
			defer done()
			return c.sendfile(tcp, file, r)
		}
	}
	buf := wire.NewBuffer(min(r.Length, writeStep))
	defer buf.Release()
	for r.Length > 0 {
		part := buf.B[:min(r.Length, writeStep)]
		n, err := r.File.ReadAt(part, r.Position)
		if n < len(part) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return wire.NewShortFileError(r, err)
		}
		if err := c.writeBytes(part); err != nil {
			return err
		}
		r.Position += int64(n)
		r.Length -= n
	}
	return nil
}

// sendfile names the offset in every call: the file's own position is shared with other readers.
func (c *conn) sendfile(tcp *net.TCPConn, file *os.File, r wire.FileRange) error {
	out, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	in, err := file.SyscallConn()
	if err != nil {
		return err
	}
	position := r.Position
	for left := r.Length; left > 0; {
		if err := c.writeBySoon(); err != nil {
			return err
		}
		var sent int
		var failed error
		// The descriptor of the file is held by Control for the whole wait, so it cannot be closed and
		// given to another file under the call.
		ctlErr := in.Control(func(src uintptr) {
			err = out.Write(func(dst uintptr) bool {
				for {
					sent, failed = unix.Sendfile(int(dst), int(src), &position, min(left, sendfileStep))
					if !errors.Is(failed, syscall.EINTR) {
						break
					}
				}
				return !errors.Is(failed, syscall.EAGAIN)
			})
		})
		if err := errors.Join(ctlErr, err, failed); err != nil {
			return err
		}
		if sent == 0 {
			return wire.NewShortFileError(r, io.ErrUnexpectedEOF)
		}
		left -= sent
	}
	return nil
}

// peerGone reports whether the other end has reset a connection that nobody is reading.
func peerGone(nc net.Conn) bool {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	const tcpClose = 7 // TCP_CLOSE of the kernel's tcp_states.h
	gone := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State == tcpClose
	})
	return gone || err != nil
}

// unread is how many bytes have come for a connection and wait in the kernel; 0 where that is not known.
func unread(nc net.Conn) (n int) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // fails only on a closed socket, where nothing is unread
		if have, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = have
		}
	})
	return n
}
