package replay

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"
)

// warmUp is the part of a latency job, at its start, that is not counted.
const warmUp = 0.2

// latency sends one record in each request, at a fixed rate, and measures until a consumer that waits for it in Fetch
// has it. A record's time runs from when it was due to be sent, not from when it could be: a stall counts against all
// that were due in it.
func latency(j *Job) (*Result, error) {
	if j.Partitions != 1 || j.BatchSize != 0 {
		return nil, fmt.Errorf("latency wants one partition and a record a request")
	}
	batch, records, perBatch, err := j.batch()
	if err != nil {
		return nil, err
	}
	frame := j.frames(batch)[0]
	ends, err := EndOffsets(j.Addr, j.Topic, 1)
	if err != nil {
		return nil, err
	}
	f, err := newFetcher(j, len(batch), records)
	if err != nil {
		return nil, err
	}
	defer f.in.nc.Close()
	nc, err := net.Dial("tcp", j.Addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()

	total := int(j.Seconds * float64(j.Rate))
	first := int(float64(total) * warmUp)
	interval := time.Second / time.Duration(j.Rate)
	clock, err := startClock(j.PID)
	if err != nil {
		return nil, err
	}
	start := time.Now().Add(10 * time.Millisecond)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * interval) }
	failed := make(chan error, 3)
	go func() { // answers to the producer
		_, err := io.Copy(io.Discard, nc)
		failed <- fmt.Errorf("producer's connection: %w", err)
	}()
	go func() {
		// A thread of its own that sleeps in the kernel: the runtime's timers are good for a millisecond only.
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		for i := range total {
			for wait := time.Until(due(i)); wait > 0; wait = time.Until(due(i)) {
				ts := unix.NsecToTimespec(int64(wait))
				_ = unix.Nanosleep(&ts, nil) // woken early, it sleeps again
			}
			if _, err := nc.Write(frame); err != nil {
				failed <- err
				return
			}
		}
	}()
	var got atomic.Int64
	h := hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
	received := make(chan error, 1)
	go func() {
		f.next[0] = ends[0]
		part := kmsg.NewFetchRequestTopicPartition()
		part.PartitionMaxBytes, part.CurrentLeaderEpoch = fetchPartitionMax, -1
		f.req.Topics[0].Partitions = append(f.req.Topics[0].Partitions, part)
		for i := 0; i < total; {
			f.req.Topics[0].Partitions[0].FetchOffset = f.next[0]
			n, err := f.fetch()
			if err != nil {
				received <- err
				return
			}
			now := time.Now()
			for end := i + int(n); i < end; i++ {
				if i >= first {
					_ = h.RecordValue(max(1, int64(now.Sub(due(i))/time.Microsecond))) // a minute at most: the job fails before
				}
			}
			got.Store(int64(i))
		}
		received <- nil
	}()
	select {
	case err = <-received:
	case err = <-failed:
	case <-time.After(time.Duration(j.Seconds*float64(time.Second)) + 30*time.Second):
		err = fmt.Errorf("%d of %d records after half a minute more", got.Load(), total)
	}
	if err != nil {
		return nil, err
	}
	r := &Result{Bytes: int64(total) * perBatch, Requests: int64(total)}
	if err := clock.stop(r); err != nil {
		return nil, err
	}
	quantile := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	r.P50, r.P99, r.P999, r.Max = quantile(50), quantile(99), quantile(99.9), float64(h.Max())/1000
	return r, nil
}
