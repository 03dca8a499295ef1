package consumers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/consumer"
)

const (
	records    = 1_000_000
	recordSize = 100
	partitions = 4
)

var prepared struct {
	once   sync.Once
	broker string
	topic  string
	err    error
	stop   func()
}

func TestMain(m *testing.M) {
	status := m.Run()
	if prepared.stop != nil {
		prepared.stop()
	}
	os.Exit(status)
}

// prepare starts a node, if none is given, and fills a topic.
func prepare(b *testing.B) (broker, topic string) {
	b.Helper()
	prepared.once.Do(func() {
		if prepared.broker = os.Getenv("BENCH_BROKER"); prepared.broker == "" {
			prepared.broker, prepared.stop, prepared.err = startNode()
		}
		if prepared.err == nil {
			prepared.topic, prepared.err = fill(prepared.broker)
		}
	})
	if prepared.err != nil {
		b.Fatal(prepared.err)
	}
	return prepared.broker, prepared.topic
}

func startNode() (broker string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "stele-bench-consumers")
	if err != nil {
		return "", nil, err
	}
	stele := filepath.Join(dir, "stele")
	if out, err := exec.Command("go", "build", "-o", stele, "github.com/stelelog/stele/cmd/stele").CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("building stele: %w\n%s", err, out)
	}
	cmd := exec.Command(stele, "serve", "--log-format", "json", "--data-dir", filepath.Join(dir, "data"), "--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--set", "http.listen=")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		var line struct{ Msg, Name, Bound string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if line.Msg == "listener" && line.Name == "PLAINTEXT" {
			broker = line.Bound
		}
		if line.Msg == "ready" {
			go func() { _, _ = io.Copy(io.Discard, pipe) }()
			return broker, stop, nil
		}
	}
	stop()
	return "", nil, errors.New("stele ended while starting")
}

func fill(broker string) (topic string, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(64<<10))
	if err != nil {
		return "", err
	}
	defer client.Close()
	topic = fmt.Sprintf("bench-consumers-%d", time.Now().UnixNano())
	ctx := context.Background()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return "", err
	}
	value := make([]byte, recordSize)
	for i := range records {
		client.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: value}, func(_ *kgo.Record, e error) {
			if e != nil {
				err = e
			}
		})
	}
	if e := client.Flush(ctx); e != nil {
		return "", e
	}
	return topic, err
}

// report says how fast all records were read, and what each cost in allocations.
func report(b *testing.B) {
	b.SetBytes(records * recordSize)
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func ours(b *testing.B, read func(*consumer.Consumer) int) {
	broker, topic := prepare(b)
	b.ReportAllocs()
	for b.Loop() {
		c, err := consumer.New(consumer.Options{BootstrapServers: []string{broker}, Reset: consumer.Earliest, MaxPollRecords: 10_000, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		var all []consumer.TopicPartition
		for p := range int32(partitions) {
			all = append(all, consumer.TopicPartition{Topic: topic, Partition: p})
		}
		if err := c.Assign(all...); err != nil {
			b.Fatal(err)
		}
		if n := read(c); n < records {
			b.Fatalf("%d records", n)
		}
		if err := c.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	report(b)
}

func BenchmarkStelePoll(b *testing.B) {
	ours(b, func(c *consumer.Consumer) (n int) {
		for n < records {
			f, err := c.Poll(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			for range f.Records() {
				n++
			}
		}
		return n
	})
}

func BenchmarkSteleRecords(b *testing.B) {
	ours(b, func(c *consumer.Consumer) (n int) {
		for _, err := range c.Records(context.Background()) {
			if err != nil {
				b.Fatal(err)
			}
			if n++; n == records {
				break
			}
		}
		return n
	})
}

func BenchmarkKgo(b *testing.B) {
	broker, topic := prepare(b)
	b.ReportAllocs()
	for b.Loop() {
		client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond))
		if err != nil {
			b.Fatal(err)
		}
		for n := 0; n < records; {
			f := client.PollFetches(context.Background())
			if err := f.Err(); err != nil {
				b.Fatal(err)
			}
			for it := f.RecordIter(); !it.Done(); it.Next() {
				n++
			}
		}
		client.Close()
	}
	report(b)
}
