//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const many = 100_000

// TestManyRecords moves 100,000 records from each of the command line producers to each of the command line
// consumers: every record once, and in every partition in the order in which they were written.
func TestManyRecords(t *testing.T) {
	addr := newTarget(t).Addr()
	kc, java, own := kcat{addr}, console{addr}, steleCLI{addr}
	const partitions = 3
	writers := []struct {
		name    string
		command func(ctx context.Context, topic string) (*exec.Cmd, error)
	}{
		{kc.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			// Without idempotence librdkafka sends again out of order, which is its right.
			return kc.command(ctx, "-P", "-t", topic, "-X", "enable.idempotence=true"), nil
		}},
		{java.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			return java.command(ctx, "ConsoleProducer", "--topic", topic)
		}},
		{own.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			return own.command(ctx, "produce", topic)
		}},
	}
	// Each prints partition, tab, value.
	readers := []struct {
		name    string
		command func(ctx context.Context, topic string) (*exec.Cmd, error)
	}{
		{kc.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			return kc.command(ctx, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", `%p\t%s\n`), nil
		}},
		{java.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			return java.command(ctx, "ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", strconv.Itoa(many),
				"--timeout-ms", "30000", "--formatter-property", "print.partition=true")
		}},
		{own.name(), func(ctx context.Context, topic string) (*exec.Cmd, error) {
			return own.command(ctx, "consume", topic, "--from", "earliest", "--stop-at-end", "--format", `%p\t%v`)
		}},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, w := range writers {
		topic := "many-by-" + w.name
		text, want := lines(w.name, many)
		written := func() error {
			if err := createTopic(ctx, addr, topic, partitions, nil); err != nil {
				return err
			}
			cmd, err := w.command(ctx, topic)
			if err != nil {
				return err
			}
			cmd.Stdin = strings.NewReader(text)
			_, err = run(cmd)
			return err
		}()
		if written != nil {
			t.Errorf("%s writes: %v", w.name, written)
		}
		for _, r := range readers {
			err := written
			if err == nil {
				err = func() error {
					cmd, err := r.command(ctx, topic)
					if err != nil {
						return err
					}
					out, err := run(cmd)
					if err != nil {
						return err
					}
					return sameLines(string(out), want, partitions)
				}()
				if err != nil {
					t.Errorf("%s writes, %s reads: %v", w.name, r.name, err)
				}
			}
			results.add(r.name, "many-from-"+w.name, err == nil)
		}
	}
}

// sameLines compares lines of partition, tab, value with what was written. The values ascend, so the order of
// a partition is right when it ascends.
func sameLines(out string, want []string, partitions int) error {
	last := map[string]string{}
	got := make([]string, 0, len(want))
	for line := range strings.Lines(out) {
		partition, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			return fmt.Errorf("printed %q", line)
		}
		partition = strings.TrimPrefix(partition, "Partition:")
		if value <= last[partition] {
			return fmt.Errorf("partition %s has %q after %q", partition, value, last[partition])
		}
		last[partition] = value
		got = append(got, value)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%d records instead of %d, or not the same", len(got), len(want))
	}
	for p := range partitions {
		delete(last, strconv.Itoa(p))
	}
	if len(last) > 0 {
		return fmt.Errorf("records of unknown partitions: %v", last)
	}
	return nil
}
