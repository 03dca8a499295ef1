// Command bench measures Stele and Apache Kafka side by side on this machine: the processor time and speed of writing
// and reading, latency, memory and starts. Both get the same load from the same generators, in turn, in rounds that
// alternate which comes first; what is judged is the ratio within a round. It prints markdown, and JSON with -json.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/stelelog/stele/bench/replay"
)

type bench struct {
	ctx     context.Context
	stele   string
	scratch string
	kafka   bool
	rounds  int
	seconds float64 // of load in a measurement
	bytes   int64   // at most, of a measurement
	profile string
	json    string
	rows    []row
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "replay" {
		if err := replay.Main(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "replay:", err)
			os.Exit(1)
		}
		return
	}
	var b bench
	var only string
	flag.StringVar(&b.stele, "stele", "", "the binary")
	flag.StringVar(&only, "rows", "", "regular expression for the names of the rows to measure")
	flag.StringVar(&b.json, "json", "", "file for the figures as JSON; rows that it has from earlier runs stay")
	flag.IntVar(&b.rounds, "rounds", 0, "rounds of each row (default 3; 1 with -quick)")
	flag.Float64Var(&b.seconds, "seconds", 0, "seconds of load in each measurement (default 2; 0.7 with -quick)")
	flag.StringVar(&b.profile, "cpuprofile", "", "directory for CPU profiles of Stele, one a row")
	quick := flag.Bool("quick", false, "fewer rows, one round, short measurements")
	all := flag.Bool("all", false, "every combination of the rows of produce")
	list := flag.Bool("list", false, "list the rows and stop")
	printOnly := flag.Bool("print", false, "print the rows of the file of -json and stop")
	noKafka := flag.Bool("no-kafka", false, "measure Stele alone")
	flag.Parse()
	b.kafka = !*noKafka
	b.bytes = 1 << 30
	b.seconds, b.rounds = cmp.Or(b.seconds, 2), cmp.Or(b.rounds, 3)
	if *quick {
		b.seconds, b.rounds, b.bytes = min(b.seconds, 0.7), 1, 512<<20
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		fail(err)
	}
	for _, r := range allRows(*all) {
		if pattern.MatchString(r.name) && (!*quick || r.quick || only != "") {
			b.rows = append(b.rows, r)
		}
	}
	if *list {
		for _, r := range b.rows {
			fmt.Println(r.name)
		}
		return
	}
	rep, err := loadReport(b.json)
	if err != nil {
		fail(err)
	}
	if *printOnly {
		rep.markdown(os.Stdout)
		return
	}
	if b.stele == "" {
		fail(errors.New("-stele is missing; bench/run.sh sets it"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	if err := b.run(rep); err != nil {
		fail(err)
	}
	rep.markdown(os.Stdout)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// run measures the rows, those that share servers together.
func (b *bench) run(rep *report) (err error) {
	if b.scratch, err = os.MkdirTemp("", "stele-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.scratch)
	for _, mode := range []struct {
		fixture fixture
		cpu     int // of the servers, -1 any
	}{{own, -1}, {bound, 1}, {free, -1}} {
		var rows []row
		for _, r := range b.rows {
			if r.fixture == mode.fixture {
				rows = append(rows, r)
			}
		}
		if len(rows) == 0 {
			continue
		}
		if mode.fixture == bound && runtime.NumCPU() < 2 {
			fmt.Fprintln(os.Stderr, "one processor: rows that give one to the broker and one to the generator are left out")
			continue
		}
		if err := b.measure(rows, mode.fixture, mode.cpu, rep); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measure(rows []row, f fixture, cpu int, rep *report) error {
	var servers []server
	if f != own {
		started, stop, err := b.start(cpu)
		if err != nil {
			return err
		}
		defer stop()
		servers = started
		if err := b.warm(servers); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		figures, err := r.measure(b, servers, &r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		rep.add(r, figures)
		if err := rep.save(b.json); err != nil { // row by row: an interrupted run leaves what it has
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", r.name, time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

// servers are the two to compare, or Stele alone; nothing is started yet.
func (b *bench) servers(cpu int) []server {
	s := []server{&stele{process: process{cpu: cpu}, b: b}}
	if b.kafka {
		s = append(s, &kafka{process: process{cpu: cpu}, b: b})
	}
	return s
}

// start runs the servers beside each other. One of them idles while the other is measured, which for neither costs
// more than a hundredth of a core.
func (b *bench) start(cpu int) (servers []server, stop func(), err error) {
	servers = b.servers(cpu)
	stop = func() {
		for _, s := range servers {
			s.stop()
		}
	}
	for _, s := range servers {
		err := s.format()
		if err == nil {
			err = s.exec()
		}
		if err == nil {
			_, err = b.firstAck(s, "first", time.Now())
		}
		if err != nil {
			stop()
			return nil, nil, err
		}
	}
	return servers, stop, nil
}
