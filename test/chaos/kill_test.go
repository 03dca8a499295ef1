//go:build chaos

package chaos

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kill is one death in the loop.
type kill struct {
	Point   string        // the failpoint, "" for a moment at random
	Fired   bool          // the process died at its failpoint
	Restart time.Duration // from exec to the first acknowledged write after it
}

// points are the failpoints that a load passes.
var points = []string{
	"log-roll", "log-append-written", "checkpoint-tmp-written", "checkpoint-renamed", "rename-before", "rename-after",
	"producer-snapshot-part", "producer-snapshot-renamed", "metadata-snapshot-part", "metadata-snapshot-renamed", "epoch-assigned",
	"swap-rename", "swap-decided",
}

// swapPoints are those at which the cleaner is putting what it wrote in the place of what it read.
var swapPoints = []string{"cleaned-written", "swap-rename", "swap-decided", "swap-retire", "swap-retired", "swap-done"}

// hitsOf is among how many hits of a point the one that kills is chosen: a swap renames and retires file by file.
func hitsOf(point string) int {
	if point == "swap-rename" || point == "swap-retire" {
		return 8
	}
	return 3
}

const (
	killCount    = 20
	killsAtPoint = 8
	fastRestart  = 5 * time.Second
)

// TestKillLoop: kill -9 in the middle of 8 producers (4 idempotent) and 4 consumer groups, 20 times in a row with
// immediate restart, at least 8 of them at named failpoints: no acknowledged record missing, none of the idempotent
// producers' records twice, no committed offset behind what was acknowledged, no leader epoch lower than before.
func TestKillLoop(t *testing.T) {
	killLoop(t, killCount, killsAtPoint, points)
}

// flushedPoints are the failpoints at which a log is half way from one state to another.
var flushedPoints = append([]string{"log-roll", "checkpoint-tmp-written", "checkpoint-renamed", "rename-before", "rename-after", "log-append-written",
	"producer-snapshot-part", "producer-snapshot-renamed", "epoch-assigned"}, swapPoints...)

// TestE073_kills_with_flush: the same with flush.messages=1 and segments that roll several times a second, KILLS times (25
// unless it says otherwise), at least half of them at rolls, checkpoints, renames and the cleaner's swaps.
func TestE073_kills_with_flush(t *testing.T) {
	kills := 25
	if text := os.Getenv("KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		kills = n
	}
	var plan []string
	for len(plan) < kills*4/5 {
		plan = append(plan, flushedPoints[len(plan)%len(flushedPoints)])
	}
	killLoop(t, kills, kills/2, plan, "log.flush.interval.messages=1", "log.roll.ms=300")
}

// killLoop kills a node under load so many times, at the points of plan or, where those are fewer, at random; at least
// atPoint times it must have died at one.
func killLoop(t *testing.T, kills, atPoint int, planned []string, settings ...string) {
	random, ledger := source(t), newLedger()
	n := newNode(t, append([]string{
		"offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0",
		"replica.high.watermark.checkpoint.interval.ms=300", "log.flush.offset.checkpoint.interval.ms=400", "log.initial.task.delay.ms=1",
		"metadata.log.max.record.bytes.between.snapshots=2000", "log.cleaner.backoff.ms=50",
	}, settings...)...)
	t.Cleanup(func() {
		if t.Failed() {
			ledger.keep(filepath.Join(n.dir, "history.json"))
		}
	})
	n.start()
	n.mustAck("probe", "probe-start")
	topics := []string{"orders", "clicks", "sensors"}
	createTopics(t, n, 4, 1, topics...)
	judge := newJudge(t, n, ledger, append([]string{"probe"}, topics...)...)
	profiles := newProfiles(t, n)
	judge.also = profiles.wrong
	load := startLoad(n, ledger, topics)
	load.goes(func() { profiles.write(load) })
	t.Cleanup(load.cancel)

	plan := slices.Clone(planned)
	for len(plan) < kills {
		plan = append(plan, "")
	}
	random.Shuffle(len(plan), func(i, k int) { plan[i], plan[k] = plan[k], plan[i] })
	for i := range plan {
		k := kill{Point: plan[i]}
		armed := filepath.Join(n.dir, fmt.Sprintf("armed-%d", i))
		n.kill() // the run that this one replaces; in the first round the one that made the topics
		began := time.Now()
		n.start(fmt.Sprintf("STELE_FAILPOINT=%s:%d@%s", k.Point, 1+random.IntN(hitsOf(k.Point)), armed))
		key := fmt.Sprintf("probe-%d", i)
		at, offset := n.mustAck("probe", key)
		k.Restart = at.Sub(began)
		ledger.acknowledged(acked{topicPartition{"probe", 0}, offset, key})
		judge.judge(fmt.Sprintf("before kill %d", i+1), false)

		time.Sleep(time.Duration(300+random.IntN(900)) * time.Millisecond)
		n.mustRun()
		if k.Point != "" {
			if err := os.WriteFile(armed, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			select {
			case <-n.done:
				if !n.killed() {
					t.Fatalf("kill %d: the process ended by itself: %v\n%s", i+1, n.cmd.ProcessState, n.log())
				}
				k.Fired = true
			case <-time.After(8 * time.Second):
			}
		}
		n.kill()
		ledger.mu.Lock()
		ledger.kills = append(ledger.kills, k)
		ledger.mu.Unlock()
		if i%5 == 4 {
			dieWhileStarting(t, n, points[random.IntN(len(points))], 1+random.IntN(4))
		}
	}
	n.start()
	n.mustAck("probe", "probe-end")
	judge.judge("while the load goes on", false)
	load.cancel()
	judge.judge("at the end", true)
	n.stop()
	n.start()
	n.mustAck("probe", "probe-clean")
	judge.judge("after a clean stop", true)
	if gone := profiles.taken(); gone == 0 {
		t.Error("the cleaner took nothing out of the compacted topic")
	} else {
		t.Logf("%d records of the compacted topic were taken out at a time", gone)
	}
	n.stop()
	verify(t, n)
	t.Logf("members carried on over a restart %d times, had to join again %d times", judge.carried, judge.lost)
	if judge.lost > judge.carried/4 {
		t.Errorf("members had to join again too often")
	}
	report(t, ledger, load, atPoint)
}

// dieWhileStarting kills a process at a failpoint that its start passes, if it does, beside the kills that count.
func dieWhileStarting(t *testing.T, n *node, point string, hit int) {
	n.start(fmt.Sprintf("STELE_FAILPOINT=%s:%d", point, hit))
	if _, _, err := n.firstAck("probe", "probe-starting"); err != nil && !n.killed() {
		t.Fatalf("the process ended by itself: %v\n%s", err, n.log())
	}
	n.kill()
}

func report(t *testing.T, l *ledger, o *load, atPoint int) {
	histogram := map[string]int{}
	var times []time.Duration
	var fired, missed []string
	atRandom := 0
	for _, k := range l.kills {
		times = append(times, k.Restart)
		switch {
		case k.Fired:
			fired = append(fired, k.Point)
			histogram[k.Point]++
		case k.Point != "":
			missed = append(missed, k.Point)
		default:
			atRandom++
		}
	}
	slices.Sort(times)
	groups := 0
	for range l.commits {
		groups++
	}
	t.Logf("%d kills: %d at failpoints; %d at random; not reached: %s", len(l.kills), len(fired), atRandom+len(missed), strings.Join(missed, ", "))
	for _, point := range slices.Sorted(maps.Keys(histogram)) {
		t.Logf("%6d  %s", histogram[point], point)
	}
	t.Logf("%d records acknowledged, %d read by %d groups", o.writes.Load(), o.reads.Load(), groups)
	t.Logf("restart to first acknowledged write: median %v, worst %v", times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	if len(fired) < atPoint {
		t.Errorf("%d kills were at a failpoint, want %d", len(fired), atPoint)
	}
	if median, worst := times[len(times)/2], times[len(times)-1]; (median >= fastRestart || worst >= fastRestart) && !othersWork() {
		t.Errorf("restarts took %v, the worst %v, to the first acknowledged write, want under %v", median, worst, fastRestart)
	}
	if len(l.commits) != 4 {
		t.Errorf("%d groups committed, want 4", len(l.commits))
	}
}

// othersWork says whether the machine is so busy with other things that one slow restart says nothing: this test by
// itself keeps the load under 3 for each processor.
func othersWork() bool {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	return err == nil && load > 3*float64(runtime.NumCPU())
}
