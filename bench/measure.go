package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/stelelog/stele/bench/probe"
)

func medianAndWorst(times []time.Duration) (median, worst float64) {
	slices.Sort(times)
	n := len(times)
	return ms((times[(n-1)/2] + times[n/2]) / 2), ms(times[n-1])
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// runs is how often a server is started: Kafka's figures scatter less, in proportion, and cost more.
func runs(s server) int {
	if s.name() == "kafka" {
		return 3
	}
	return 10
}

// startup: exec on an empty directory, with format and automatic creation of the topic, to the first acknowledged write.
func (b *bench) startup() error {
	times := map[string][]time.Duration{}
	for _, s := range b.servers() {
		for range runs(s) {
			start := time.Now()
			if err := s.format(); err != nil {
				return err
			}
			if err := s.exec(); err != nil {
				return err
			}
			took, err := b.firstAck(s, "first", start)
			if err != nil {
				return err
			}
			times[s.name()] = append(times[s.name()], took)
			s.stop()
		}
	}
	b.addTimes("empty directory to first acknowledged write", times, target{below: 200, ratio: 1.0 / 20}, target{below: 400})
	return nil
}

func (b *bench) addTimes(name string, times map[string][]time.Duration, median, worst target) {
	steleMedian, steleWorst := medianAndWorst(times["stele"])
	kafkaMedian, kafkaWorst := 0.0, 0.0
	if len(times["kafka"]) > 0 {
		kafkaMedian, kafkaWorst = medianAndWorst(times["kafka"])
	}
	b.add(name+", median", "ms", steleMedian, kafkaMedian, median)
	b.add(name+", worst", "ms", steleWorst, kafkaWorst, worst)
}

// restart: kill -9 of a node that has some data, to the first acknowledged write after an immediate restart.
func (b *bench) restart() error {
	times := map[string][]time.Duration{}
	for _, s := range b.servers() {
		if err := s.format(); err != nil {
			return err
		}
		if err := s.exec(); err != nil {
			return err
		}
		if _, err := b.firstAck(s, "first", time.Now()); err != nil {
			return err
		}
		if _, err := b.write(s, "data", 64, 16<<10); err != nil {
			return err
		}
		for range runs(s) {
			start := time.Now()
			s.kill()
			if err := s.exec(); err != nil {
				return err
			}
			took, err := b.firstAck(s, "first", start)
			if err != nil {
				return err
			}
			times[s.name()] = append(times[s.name()], took)
		}
		s.stop()
	}
	b.addTimes("kill -9 to first acknowledged write", times, target{below: 1000}, target{below: 1000})
	return nil
}

// memory: resident memory ten seconds after the first write.
func (b *bench) memory() error {
	resident := map[string]float64{}
	servers := b.servers()
	for _, s := range servers {
		if err := s.format(); err != nil {
			return err
		}
		if err := s.exec(); err != nil {
			return err
		}
		defer s.stop()
		if _, err := b.firstAck(s, "first", time.Now()); err != nil {
			return err
		}
	}
	time.Sleep(10 * time.Second)
	for _, s := range servers {
		rss, err := probe.RSS(s.pid())
		if err != nil {
			return err
		}
		resident[s.name()] = float64(rss) / (1 << 20)
	}
	b.add("idle resident memory", "MB", resident["stele"], resident["kafka"], target{below: 60, ratio: 1.0 / 8})
	return nil
}

// cost is what a part of the load took.
type cost struct {
	cpuPerGB float64 // seconds of the broker's processor time
	rate     float64 // MB/s
}

// load: writing and reading 1 KiB records on 16 partitions, acks=all, in batches of a Java producer's default size
// and in large ones.
func (b *bench) load() error {
	parts := []struct {
		name string
		key  string
	}{{"write 1 KiB, 16 KiB batches", "small"}, {"write 1 KiB, 1 MB batches", "large"}, {"read 1 KiB", "read"}, {"write 1 KiB, a request each", "single"}}
	costs := map[string]map[string]cost{}
	for _, s := range b.servers() {
		if st, ok := s.(*stele); ok && b.profile != "" {
			st.http = 9699
		}
		if err := s.format(); err != nil {
			return err
		}
		if err := s.exec(); err != nil {
			return err
		}
		if _, err := b.firstAck(s, "first", time.Now()); err != nil {
			return err
		}
		// A JVM is judged warm.
		for _, batch := range []int{16 << 10, 1 << 20} {
			if _, err := b.write(s, "warm", b.mb, batch); err != nil {
				return err
			}
		}
		if _, err := b.read(s, "warm", b.mb); err != nil {
			return err
		}
		if _, err := b.single(s, 16<<10); err != nil {
			return err
		}
		c := map[string]cost{}
		costs[s.name()] = c
		for _, step := range []struct {
			key string
			run func() (cost, error)
		}{
			{"small", func() (cost, error) { return b.write(s, "small", b.mb, 16<<10) }},
			{"large", func() (cost, error) { return b.write(s, "large", b.mb, 1<<20) }},
			{"read", func() (cost, error) { return b.read(s, "large", b.mb) }},
			{"single", func() (cost, error) { return b.single(s, 64<<10) }},
		} {
			finish := b.profiled(s, step.key)
			got, err := step.run()
			finish()
			if err != nil {
				return fmt.Errorf("%s: %s: %w", s.name(), step.key, err)
			}
			c[step.key] = got
		}
		s.stop()
	}
	for _, p := range parts {
		st, k := costs["stele"][p.key], costs["kafka"][p.key]
		t := target{}
		if p.key == "small" {
			t.ratio = 1
		}
		b.add(p.name+", broker CPU", "s/GB", st.cpuPerGB, k.cpuPerGB, t)
		b.add(p.name+", rate", "MB/s, more is better", st.rate, k.rate, target{})
	}
	return nil
}

// profiled takes a CPU profile of Stele, if one is wanted, until the result is called.
func (b *bench) profiled(s server, name string) (finish func()) {
	st, ok := s.(*stele)
	if !ok || b.profile == "" {
		return func() {}
	}
	done := make(chan error, 1)
	go func() { done <- st.takeProfile(b.profile + "/" + name + ".pprof") }()
	return func() {
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}
