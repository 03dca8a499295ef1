// Package replay is a load generator that hardly costs anything: it sends Produce frames that were built before the
// clock started, over plain TCP, and drops what it fetches inside the kernel. On two cores that leaves one to the broker
// and shows the broker's cost, not a client's.
//
// A job runs in a process of its own (Main), so that it can be bound to a core: its parent starts it there.
package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/internal/record"
)

// Kinds of jobs.
const (
	Produce  = "produce"  // send pre-built requests until Seconds or Bytes are reached
	Consume  = "consume"  // fetch and drop all partitions, from start to end, Passes times or until Seconds
	Latency  = "latency"  // a record at a time at a fixed rate, and a consumer that waits for it
	Discard  = "discard"  // read from Addr (Sendfile) and drop it
	Sendfile = "sendfile" // serve the files of Dir to one connection by bare sendfile
)

// Job is what to do. Fields that a kind has no use for are zero.
type Job struct {
	Kind string
	Addr string
	// PID is the broker, whose CPU time is measured between the first byte and the last; 0: nobody's.
	PID        int
	Topic      string
	Partitions int
	// RecordSize is a record's value in bytes. BatchSize is about how large a batch is before compression; 0: one
	// record.
	RecordSize, BatchSize int
	Codec                 record.Codec
	Acks                  int16
	Conns                 int // of Consume: groups, each of which reads everything
	Seconds               float64
	Bytes                 int64 // of records, before compression
	Passes                int
	Rate                  int    // of Latency: records a second
	Dir                   string // of Sendfile
}

// Result is what came of a job.
type Result struct {
	Bytes    int64 // of records, before compression; of Discard: bytes
	Requests int64
	Seconds  float64
	// BrokerCPU and OwnCPU are seconds of processor time.
	BrokerCPU, OwnCPU float64
	// P50 to Max are milliseconds, of Latency.
	P50, P99, P999, Max float64 `json:",omitempty"`
}

// Main reads a job from in, runs it, and writes its result, as JSON.
func Main(in io.Reader, out io.Writer) error {
	var job Job
	if err := json.NewDecoder(in).Decode(&job); err != nil {
		return err
	}
	run := map[string]func(*Job) (*Result, error){
		Produce: produce, Consume: consume, Latency: latency, Discard: discard,
		Sendfile: func(j *Job) (*Result, error) { return serveFiles(j, out) },
	}[job.Kind]
	if run == nil {
		return fmt.Errorf("unknown kind of job %q", job.Kind)
	}
	if job.Kind == Latency {
		runtime.GOMAXPROCS(3) // a thread that sleeps in the kernel keeps nobody waiting, also on one core
	} else {
		runtime.GOMAXPROCS(1)
	}
	result, err := run(&job)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}

// clock measures a stretch of work: time, the broker's processor time and our own.
type clock struct {
	pid         int
	start       time.Time
	broker, own time.Duration
}

func startClock(pid int) (*clock, error) {
	c := &clock{pid: pid}
	var err error
	if pid != 0 {
		if c.broker, err = probe.CPU(pid); err != nil {
			return nil, err
		}
	}
	c.own = ownCPU()
	c.start = time.Now()
	return c, nil
}

func (c *clock) stop(r *Result) (err error) {
	r.Seconds = time.Since(c.start).Seconds()
	r.OwnCPU = (ownCPU() - c.own).Seconds()
	if c.pid != 0 {
		now, err := probe.CPU(c.pid)
		if err != nil {
			return err
		}
		r.BrokerCPU = (now - c.broker).Seconds()
	}
	return nil
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// batch builds the batch that a job sends again and again. Values are words out of a small vocabulary and numbers, so
// that codecs find about as much to do as in logs and events. It says how many records and record bytes it holds.
func (j *Job) batch() (b []byte, records int, bytes int64, err error) {
	random := rand.New(rand.NewPCG(1, 2))
	builder := record.NewBuilder(record.BuilderOptions{Codec: j.Codec, Level: record.DefaultLevel, SizeHint: j.BatchSize + j.RecordSize})
	now := time.Now().UnixMilli()
	const overhead = 12 // of a record around its value
	room := j.BatchSize - record.HeaderSize
	for records == 0 || room >= j.RecordSize+overhead {
		if err := builder.Append(now, nil, Value(random, j.RecordSize), nil); err != nil {
			return nil, 0, 0, err
		}
		records++
		room -= j.RecordSize + overhead
	}
	return builder.Bytes(), records, int64(records) * int64(j.RecordSize), nil
}

var words = []string{"account", "balance", "cancelled", "customer", "delivered", "event", "failed", "gateway", "invoice", "latency", "message",
	"null", "order", "payment", "pending", "region", "request", "session", "status", "true", "updated", "user", "version", "warehouse"}

// Value makes a record's value of words and numbers.
func Value(random *rand.Rand, size int) []byte {
	var v []byte
	for len(v) < size {
		v = fmt.Appendf(v, `"%s":"%x",`, words[random.IntN(len(words))], random.Uint32())
	}
	return v[:size]
}

var errShort = errors.New("the broker's answer is not what was expected")

// fileNames lists the log files of a topic's directories below dir.
func fileNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, dir+"/"+e.Name())
		}
	}
	return names, nil
}
