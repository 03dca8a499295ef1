package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// stuckAfter is how long nothing may come back before a command says what it waits for, and stuckAgain how long it
	// then is silent.
	stuckAfter = 3 * time.Second
	stuckAgain = 30 * time.Second
)

// saysWhy tells on standard error what a producer waits for while no record is written, until the function it returns is
// called. progress is how many have been.
func (e *env) saysWhy(ctx context.Context, client *kgo.Client, topic string, progress func() int64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		last, since, told := progress(), time.Now(), time.Time{}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(stuckAfter / 6):
			}
			if n := progress(); n != last || client.BufferedProduceRecords() == 0 {
				last, since = n, time.Now()
				continue
			}
			if time.Since(since) < stuckAfter || time.Since(told) < stuckAgain {
				continue
			}
			told = time.Now()
			if why := whyStuck(ctx, client, topic); why != "" && ctx.Err() == nil {
				fmt.Fprintf(e.err, "waiting: %s\n", why)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// whyStuck is what keeps records from being written to a topic, "" when nothing is found.
func whyStuck(ctx context.Context, client *kgo.Client, topic string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*stuckAfter)
	defer cancel()
	metadata, err := kadm.NewClient(client).Metadata(ctx, topic)
	if err != nil {
		return fmt.Sprintf("no answer from the cluster (%v)", err)
	}
	var leaderless []string
	for _, p := range metadata.Topics[topic].Partitions.Sorted() {
		if p.Leader < 0 {
			leaderless = append(leaderless, fmt.Sprint(p.Partition))
		}
	}
	if len(leaderless) > 0 {
		return fmt.Sprintf("partition %s of %s has no leader; `stele topic describe %s` and `stele cluster log-dirs` say more", strings.Join(leaderless, ", "), topic, topic)
	}
	var brokers []brokerView
	for _, b := range metadata.Brokers {
		brokers = append(brokers, brokerView{Broker: b.NodeID})
	}
	dirs, err := volumes(ctx, client, brokers)
	if err != nil {
		return ""
	}
	for _, d := range dirs {
		if d.Room != nil && d.Room.Level == "reserve" {
			return fmt.Sprintf("log directory %s of broker %d is full (%s free); writes go on by themselves when there is room", d.Dir, d.Broker, bytesOf(d.Usable))
		}
	}
	return ""
}

// withLeaders lets pass that offsets could not be listed of partitions without a leader: those of the others were.
func withLeaders(err error) error {
	var shards *kadm.ShardErrors
	if !errors.As(err, &shards) {
		return err
	}
	for _, shard := range shards.Errs {
		if !errors.Is(shard.Err, kerr.LeaderNotAvailable) {
			return err
		}
	}
	return nil
}
