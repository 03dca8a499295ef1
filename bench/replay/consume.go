package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/bench/probe"
)

// The defaults of a Java consumer.
const (
	fetchVersion      = 12 // the newest that names topics by name
	fetchMaxBytes     = 50 << 20
	fetchPartitionMax = 1 << 20
	fetchMaxWait      = 500
)

// consume reads all of a topic on each connection.
func consume(j *Job) (*Result, error) {
	batch, records, perBatch, err := j.batch()
	if err != nil {
		return nil, err
	}
	ends, err := EndOffsets(j.Addr, j.Topic, j.Partitions)
	if err != nil {
		return nil, err
	}
	readers := make([]*fetcher, j.Conns)
	for i := range readers {
		if readers[i], err = newFetcher(j, len(batch), records); err != nil {
			return nil, err
		}
		defer readers[i].in.nc.Close()
	}
	clock, err := startClock(j.PID)
	if err != nil {
		return nil, err
	}
	deadline := clock.start.Add(time.Duration(j.Seconds * float64(time.Second)))
	var wg sync.WaitGroup
	errs := make(chan error, j.Conns)
	for _, f := range readers {
		wg.Go(func() {
			for pass := 0; (j.Passes == 0 || pass < j.Passes) && (j.Seconds == 0 || time.Now().Before(deadline)); pass++ {
				if err := f.pass(ends, deadline, j.Seconds > 0); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	r := &Result{}
	if err := clock.stop(r); err != nil {
		return nil, err
	}
	for _, f := range readers {
		r.Bytes += f.batches * perBatch
		r.Requests += f.requests
	}
	select {
	case err := <-errs:
		return nil, err
	default:
		return r, nil
	}
}

// fetcher is a consumer's connection: one Fetch at a time, for all partitions that are not at their end.
type fetcher struct {
	in        *stream
	format    *kmsg.RequestFormatter
	req       *kmsg.FetchRequest
	frame     []byte
	batchSize int
	records   int64
	next      []int64 // offset by partition

	batches, requests int64
}

func newFetcher(j *Job, batchSize, records int) (*fetcher, error) {
	nc, err := net.Dial("tcp", j.Addr)
	if err != nil {
		return nil, err
	}
	in, err := newStream(nc.(*net.TCPConn))
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis, req.SessionEpoch = fetchVersion, 1, fetchMaxBytes, fetchMaxWait, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = j.Topic
	req.Topics = append(req.Topics, t)
	return &fetcher{in: in, format: kmsg.NewRequestFormatter(kmsg.FormatterClientID("replay")), req: req, batchSize: batchSize, records: int64(records),
		next: make([]int64, j.Partitions)}, nil
}

// pass reads everything once; timed: until the deadline at most.
func (f *fetcher) pass(ends []int64, deadline time.Time, timed bool) error {
	clear(f.next)
	for {
		if timed && !time.Now().Before(deadline) {
			return nil
		}
		t := &f.req.Topics[0]
		t.Partitions = t.Partitions[:0]
		for p, next := range f.next {
			if next < ends[p] {
				part := kmsg.NewFetchRequestTopicPartition()
				part.Partition, part.FetchOffset, part.PartitionMaxBytes, part.CurrentLeaderEpoch = int32(p), next, fetchPartitionMax, -1
				t.Partitions = append(t.Partitions, part)
			}
		}
		if len(t.Partitions) == 0 {
			return nil
		}
		if _, err := f.fetch(); err != nil {
			return err
		}
	}
}

// fetch sends the request and drops the records that come, all but how many they are. It returns the batches.
func (f *fetcher) fetch() (batches int64, err error) {
	f.frame = f.format.AppendRequest(f.frame[:0], f.req, 1)
	if _, err := f.in.nc.Write(f.frame); err != nil {
		return 0, err
	}
	f.requests++
	batches, err = f.answer()
	f.batches += batches
	return batches, err
}

// answer reads an answer to Fetch, version 12, of one topic.
func (f *fetcher) answer() (batches int64, err error) {
	in := f.in
	size := int64(in.uint32())
	end := in.read + size
	in.skip(4 + 1 + 4) // correlation id, header tags, throttle time
	if code := int16(in.uint16()); code != 0 && in.err == nil {
		return 0, kerr.ErrorForCode(code)
	}
	in.skip(4) // session
	for range in.count() {
		in.skip(in.count()) // topic
		for range in.count() {
			p := int(in.uint32())
			code := int16(in.uint16())
			in.skip(8 + 8 + 8)
			for range in.count() {
				in.skip(8 + 8 + 1)
			}
			in.skip(4)
			length := in.count()
			in.skip(length)
			in.tags()
			if in.err != nil {
				return batches, in.err
			}
			if code != 0 {
				return batches, fmt.Errorf("fetch: %w", kerr.ErrorForCode(code))
			}
			n := int64(length / f.batchSize)
			f.next[p] += n * f.records
			batches += n
		}
		in.tags()
	}
	in.tags()
	if in.err == nil && in.read != end {
		in.err = errShort
	}
	return batches, in.err
}

// EndOffsets asks where the partitions end.
func EndOffsets(addr, topic string, partitions int) ([]int64, error) {
	conn, err := probe.Dial(addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for p := range partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp, part.CurrentLeaderEpoch = int32(p), -1, -1
		t.Partitions = append(t.Partitions, part)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.Topics = 6, -1, append(req.Topics, t)
	resp, err := conn.Request(req)
	if err != nil {
		return nil, err
	}
	ends := make([]int64, partitions)
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
			ends[p.Partition] = p.Offset
		}
	}
	return ends, nil
}

// stream reads a connection. What is skipped is dropped by the kernel (MSG_TRUNC) and never copied. The first error
// stays.
type stream struct {
	nc   *net.TCPConn
	raw  syscall.RawConn
	buf  [4096]byte
	r, w int
	read int64 // bytes taken or skipped
	err  error
}

func newStream(nc *net.TCPConn) (*stream, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{nc: nc, raw: raw}, nil
}

func (s *stream) need(n int) []byte {
	for s.w-s.r < n && s.err == nil {
		if s.r > 0 {
			s.w = copy(s.buf[:], s.buf[s.r:s.w])
			s.r = 0
		}
		m, err := s.nc.Read(s.buf[s.w:])
		s.w += m
		if err != nil {
			s.err = err
		}
	}
	if s.err != nil {
		return make([]byte, n)
	}
	b := s.buf[s.r : s.r+n]
	s.r += n
	s.read += int64(n)
	return b
}

func (s *stream) uint32() uint32 { return binary.BigEndian.Uint32(s.need(4)) }
func (s *stream) uint16() uint16 { return binary.BigEndian.Uint16(s.need(2)) }

func (s *stream) uvarint() int {
	v := 0
	for shift := 0; shift < 35; shift += 7 {
		b := s.need(1)[0]
		v |= int(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	return v
}

// count reads the length of a compact array or string; null is 0.
func (s *stream) count() int { return max(s.uvarint()-1, 0) }

func (s *stream) tags() {
	for range s.uvarint() {
		s.uvarint()
		s.skip(s.uvarint())
	}
}

// maxDrop is how many bytes one call may drop: in time to make room for more.
const maxDrop = 1 << 20

func (s *stream) skip(n int) {
	if s.err != nil || n <= 0 {
		return
	}
	s.read += int64(n)
	have := min(n, s.w-s.r)
	s.r += have
	n -= have
	if n > 0 && n <= len(s.buf) { // header fields or a small batch: one call takes what follows them, too
		if s.need(n); s.err == nil {
			s.read -= int64(n)
		}
		return
	}
	for n > 0 {
		var m int
		var failed error
		err := s.raw.Read(func(fd uintptr) bool {
			m, failed = drop(int(fd), min(n, maxDrop))
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err = errors.Join(err, failed); err == nil && m == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			s.err = err
			return
		}
		n -= m
	}
}

// drop takes up to n bytes off a socket without copying them.
func drop(fd, n int) (int, error) {
	for {
		// The buffer is only there to be counted: MSG_TRUNC leaves it alone.
		m, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC, 0, 0)
		switch errno {
		case 0:
			return int(m), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
