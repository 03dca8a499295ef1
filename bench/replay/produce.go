package replay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// inFlight is how many requests a producer of Kafka's defaults has on the way.
	inFlight = 5
	// maxRequest is about how much a producer of Kafka's defaults puts into a request.
	maxRequest = 1 << 20
	// produceVersion is the newest that names topics by name.
	produceVersion = 12
	produceTimeout = 30_000
)

// frames builds the requests that together send one batch to each partition.
func (j *Job) frames(batch []byte) [][]byte {
	each := 1
	if j.BatchSize > 0 {
		each = min(max(maxRequest/j.BatchSize, 1), j.Partitions)
	}
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("replay"))
	var frames [][]byte
	for first := 0; first < j.Partitions; first += each {
		t := kmsg.NewProduceRequestTopic()
		t.Topic = j.Topic
		for p := first; p < min(first+each, j.Partitions); p++ {
			part := kmsg.NewProduceRequestTopicPartition()
			part.Partition, part.Records = int32(p), batch
			t.Partitions = append(t.Partitions, part)
		}
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis, req.Topics = produceVersion, j.Acks, produceTimeout, append(req.Topics, t)
		frames = append(frames, format.AppendRequest(nil, req, 1))
	}
	return frames
}

// producer is one connection of a produce job.
type producer struct {
	nc     net.Conn
	frames [][]byte
	next   int // frame to send
	slots  chan struct{}
	sent   chan int // frame indexes, in order
}

// produce keeps every connection at its limit of requests in flight.
func produce(j *Job) (*Result, error) {
	batch, _, perBatch, err := j.batch()
	if err != nil {
		return nil, err
	}
	frames := j.frames(batch)
	perFrame := func(i int) int64 {
		n := (j.Partitions + len(frames) - 1) / len(frames)
		return int64(min(n, j.Partitions-i*n)) * perBatch
	}
	conns := make([]*producer, j.Conns)
	for i := range conns {
		nc, err := net.Dial("tcp", j.Addr)
		if err != nil {
			return nil, err
		}
		defer nc.Close()
		conns[i] = &producer{nc: nc, frames: frames, next: i % len(frames), slots: make(chan struct{}, inFlight), sent: make(chan int, inFlight)}
	}
	// Each partition has its first batch, which makes files, before the clock starts.
	first := bufio.NewReader(conns[0].nc)
	var buf []byte
	for _, frame := range frames {
		if _, err := conns[0].nc.Write(frame); err != nil {
			return nil, err
		}
		if buf, err = checkAnswer(first, buf, len(j.Topic)); err != nil {
			return nil, err
		}
	}
	clock, err := startClock(j.PID)
	if err != nil {
		return nil, err
	}
	deadline := clock.start.Add(time.Duration(j.Seconds * float64(time.Second)))
	var sent, acked, requests atomic.Int64
	errs := make(chan error, 2*j.Conns)
	var wg sync.WaitGroup
	for _, p := range conns {
		wg.Go(func() {
			defer close(p.sent)
			for time.Now().Before(deadline) && (j.Bytes == 0 || sent.Load() < j.Bytes) {
				p.slots <- struct{}{}
				if _, err := p.nc.Write(p.frames[p.next]); err != nil {
					errs <- err
					return
				}
				sent.Add(perFrame(p.next))
				p.sent <- p.next
				p.next = (p.next + 1) % len(p.frames)
			}
		})
		wg.Go(func() {
			answers := bufio.NewReaderSize(p.nc, 64<<10)
			var buf []byte
			for i := range p.sent {
				var err error
				if buf, err = checkAnswer(answers, buf, len(j.Topic)); err != nil {
					errs <- err
					p.nc.Close()
					for range p.sent { // lets the writer come to its end
						<-p.slots
					}
					return
				}
				<-p.slots
				acked.Add(perFrame(i))
				requests.Add(1)
			}
		})
	}
	wg.Wait()
	r := &Result{Bytes: acked.Load(), Requests: requests.Load()}
	if err := clock.stop(r); err != nil {
		return nil, err
	}
	select {
	case err := <-errs:
		return nil, err
	default:
		return r, nil
	}
}

// checkAnswer reads an answer to Produce and looks at its error codes only.
func checkAnswer(r *bufio.Reader, buf []byte, topic int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return buf, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if n > cap(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return buf, err
	}
	// Correlation id, header tags, one topic, its name; then partitions of a fixed length as long as there is no error.
	at := 4 + 1 + 1 + 1 + topic
	if len(buf) < at+2 {
		return buf, errShort
	}
	count, width := binary.Uvarint(buf[at:])
	at += width
	const partition = 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1
	for range int(count) - 1 {
		if len(buf) < at+partition {
			return buf, errShort
		}
		if code := int16(binary.BigEndian.Uint16(buf[at+4:])); code != 0 {
			return buf, fmt.Errorf("produce: %w", kerr.ErrorForCode(code))
		}
		at += partition
	}
	return buf, nil
}
