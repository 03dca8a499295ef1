package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/consumer"
	_ "github.com/stelelog/stele/internal/cli" // what is built and run: without it a result from before a change of the node is taken from the cache
)

// written makes a topic with some records on the node that the examples read from.
func written(topic string, values ...string) (broker string) {
	broker, err := consumer.Shared()
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, v := range values {
		if err := client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
	return broker
}

// A member of a group that handles each record once it comes; its offsets are committed, with their epochs, as it goes.
func Example() {
	broker := written("orders", "tea", "bread", "milk")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := consumer.New(consumer.Options{
		BootstrapServers: []string{broker},
		GroupID:          "billing",
		Topics:           []string{"orders"},
		Reset:            consumer.Earliest,
		Logger:           slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for record, err := range c.Records(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(record.Offset, string(record.Value))
		if record.Offset == 2 {
			break
		}
	}
	// Output:
	// 0 tea
	// 1 bread
	// 2 milk
}

// Every move of a position is told, with its cause and what it costs.
func ExampleResetEvent() {
	broker := written("readings", "17", "18", "19")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := consumer.New(consumer.Options{
		BootstrapServers: []string{broker},
		Reset:            consumer.Earliest,
		Logger:           slog.New(slog.DiscardHandler),
		OnReset:          func(e consumer.ResetEvent) { fmt.Println(e) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	readings := consumer.TopicPartition{Topic: "readings"}
	if err := c.Assign(readings); err != nil {
		log.Fatal(err)
	}
	if err := c.Seek(readings, consumer.Position{Offset: 100}); err != nil {
		log.Fatal(err)
	}
	for record, err := range c.Records(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(record.Value))
		break
	}
	// Output:
	// readings-0: moved from no position to 100: seek
	// readings-0: moved from 100 to 0@0: above-log-end, log [0, 3), 100 repeated
	// 17
}

// Without a reset policy a position that is no longer good is an error, which says where the log is.
func ExampleOffsetOutOfRangeError() {
	broker := written("events", "started")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := consumer.New(consumer.Options{BootstrapServers: []string{broker}, Reset: consumer.None})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	events := consumer.TopicPartition{Topic: "events"}
	if err := c.Assign(events); err != nil {
		log.Fatal(err)
	}
	if err := c.Seek(events, consumer.Position{Offset: 7}); err != nil {
		log.Fatal(err)
	}
	_, err = c.Poll(ctx)
	var out *consumer.OffsetOutOfRangeError
	if errors.As(err, &out) {
		fmt.Println("the log holds", out.LogStart, "to", out.LogEnd)
	}
	// Output:
	// the log holds 0 to 1
}

// A program that works in batches, and commits by itself when one is done.
func ExampleConsumer_Poll() {
	broker := written("clicks", "a", "b", "c")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := consumer.New(consumer.Options{
		BootstrapServers:  []string{broker},
		GroupID:           "counting",
		Topics:            []string{"clicks"},
		Reset:             consumer.Earliest,
		DisableAutoCommit: true,
		Logger:            slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for total := 0; total < 3; {
		fetch, err := c.Poll(ctx)
		if err != nil {
			log.Fatal(err)
		}
		for batch := range fetch.Batches() {
			for range batch.Records() {
				total++
			}
		}
		if err := c.Commit(ctx); err != nil {
			log.Fatal(err)
		}
	}
	committed, err := c.Committed(ctx, consumer.TopicPartition{Topic: "clicks"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(committed)
	// Output:
	// map[clicks-0:3@0]
}
