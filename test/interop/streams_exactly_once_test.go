//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStreamsExactlyOnce runs the two applications of apps/streams/StreamsApp.java with exactly_once_v2: its producers
// commit what they write, the offsets of what they read, and the changelog of the store in one transaction. Applications
// and the broker are killed under way; what comes out, as whoever reads committed records sees it, is each loud line
// once, and the counts of the words that went in.
func TestStreamsExactlyOnce(t *testing.T) {
	cp, err := appClasses("streams")
	if err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	for topic, partitions := range map[string]int32{"lines": 2, "loud": 2, "counts": 2} {
		if err := createTopic(ctx, target.Addr(), topic, partitions, nil); err != nil {
			t.Fatal(err)
		}
	}
	step := func(name string, err error) {
		t.Helper()
		results.add("kafka-streams-exactly-once", name, err == nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	states := 0
	start := func(name, to string) *app {
		states++
		a := startApp(t, fmt.Sprint(name, "-", states), "streams", cp, "StreamsApp", target.Addr(), name, "lines", to, filepath.Join(t.TempDir(), fmt.Sprint(states)), "exactly_once_v2")
		step("start-"+name, a.says(ctx, "RUNNING"))
		return a
	}
	words, loud, written := map[string]int{}, map[string]int{}, 0
	write := func(lines int) {
		t.Helper()
		var records []record
		for range lines {
			text := fmt.Sprintf("line%d word%d word%d", written, written%7, written%30)
			written++
			for _, w := range strings.Fields(text) {
				words[w]++
			}
			loud[strings.ToUpper(text)]++
			records = append(records, record{Partition: int32(written % 2), Key: []byte(text), Value: []byte(text)})
		}
		if err := (franz{target.Addr()}).produce(ctx, batch{topic: "lines", codec: "none", records: records}); err != nil {
			t.Fatal(err)
		}
	}
	census := func() error {
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return eventually(short, func() error {
			shouted, err := (franz{target.Addr()}).consume(short, query{topic: "loud", committed: true})
			if err != nil {
				return err
			}
			counted, err := (franz{target.Addr()}).consume(short, query{topic: "counts", committed: true})
			if err != nil {
				return err
			}
			got, last := map[string]int{}, map[string]int{}
			for _, r := range shouted {
				got[string(r.Value)]++
			}
			for _, r := range counted {
				var n int
				_, _ = fmt.Sscan(string(r.Value), &n)
				last[string(r.Key)] = n
			}
			for line, n := range loud {
				if got[line] != n {
					return mismatch(fmt.Sprintf("%q came out %d times instead of %d", line, got[line], n))
				}
			}
			for word, n := range words {
				if last[word] != n {
					return mismatch(fmt.Sprintf("%s was counted %d times instead of %d", word, last[word], n))
				}
			}
			return nil
		})
	}
	write(500)
	shout, count := start("shout", "loud"), start("count", "counts")
	step("whole", census())

	write(300)
	_, _ = shout.cmd.Process.Kill(), count.cmd.Process.Kill() // in the middle of it
	<-shout.done
	<-count.done
	write(200)
	shout, count = start("shout", "loud"), start("count", "counts")
	step("after-a-kill", census())

	write(300)
	target.Kill()
	if err := target.Start(ctx); err != nil {
		t.Fatal(err)
	}
	write(200)
	step("after-the-broker-was-killed", census())
	step("stop", errors.Join(shout.stop(), count.stop()))
}
