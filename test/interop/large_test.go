//go:build interop

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

const (
	largeValue = 10 << 20
	largeLimit = 11 << 20 // of the topics and of the clients: the default is about 1 MiB on both sides
)

// tenMiB is one record of 10 MiB, text that hardly shrinks, between two small ones.
func tenMiB(by string) []record {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	seed := [32]byte{}
	copy(seed[:], by)
	source := rand.NewChaCha8(seed)
	value := make([]byte, largeValue)
	_, _ = source.Read(value)
	for i, b := range value {
		value[i] = letters[b%64]
	}
	return []record{{Key: []byte("before"), Value: []byte("small")}, {Key: []byte(by), Value: value}, {Key: []byte("after"), Value: []byte("small")}}
}

// large has every client write and read records of 10 MiB, on topics that allow them, and be told when a topic
// does not.
func (s *suite) large(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := franz{s.target.Addr()}
	configs := map[string]string{"max.message.bytes": strconv.Itoa(largeLimit)}
	if err := createTopic(ctx, s.target.Addr(), "large", 1, configs); err != nil {
		t.Fatal(err)
	}
	want := tenMiB("all")
	if err := f.produce(ctx, batch{topic: "large", codec: "lz4", records: want, maxBytes: largeLimit}); err != nil {
		t.Fatal(err)
	}
	if err := createTopic(ctx, s.target.Addr(), "large-refused", 1, nil); err != nil {
		t.Fatal(err)
	}
	s.each(t, "large", func(t *testing.T, c client) {
		s.check(t, c, "large-read", func(ctx context.Context) error {
			got, err := c.consume(ctx, query{topic: "large", count: len(want), maxBytes: largeLimit})
			if err != nil {
				return err
			}
			return differ("large", compare(want, got, false))
		})
		s.check(t, c, "large-write", func(ctx context.Context) error {
			topic, records := "large-by-"+c.name(), tenMiB(c.name())
			if err := createTopic(ctx, s.target.Addr(), topic, 1, configs); err != nil {
				return err
			}
			err := c.produce(ctx, batch{topic: topic, codec: "none", records: records, maxBytes: largeLimit})
			if err != nil {
				return err
			}
			return s.stored(ctx, topic, "none", records)
		})
		s.check(t, c, "large-refused", func(ctx context.Context) error {
			records := tenMiB(c.name())[1:2]
			err := c.produce(ctx, batch{topic: "large-refused", codec: "none", records: records, maxBytes: largeLimit})
			if err == nil {
				return mismatch("a record beyond the topic's limit was taken, says the client")
			}
			if ctx.Err() != nil {
				return fmt.Errorf("the client did not give up: %w", err)
			}
			return says("a record beyond the topic's limit", err, "large")
		})
	})
}
