//go:build interop

package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// What is built on Kafka's clients: Connect and Streams. Each has a pom.xml in apps.

// appClasses resolves the pom.xml of a folder in apps, compiles the programs beside it, and returns a class path with
// all.
func appClasses(folder string) (string, error) {
	script, err := reference.Script()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(script, "classpath")
	if cmd.Env, err = appEnv(folder); err != nil {
		return "", err
	}
	cmd.Stderr = clientLog(folder)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kafka.sh classpath for %s: %w; see %s.log", folder, err, folder)
	}
	cp := strings.TrimSpace(string(out))
	programs, err := filepath.Glob(filepath.Join("apps", folder, "*.java"))
	if err != nil || len(programs) == 0 {
		return cp, err
	}
	return compileJava(cp, programs...)
}

func appEnv(folder string) ([]string, error) {
	pom, err := filepath.Abs(filepath.Join("apps", folder, "pom.xml"))
	return append(os.Environ(), "STELE_REFERENCE_POM="+pom), err
}

// app is a running application.
type app struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed

	mu    sync.Mutex
	lines []string // of standard output
}

// startApp runs a main class with the class path of a folder in apps.
func startApp(t *testing.T, name, folder, cp string, args ...string) *app {
	t.Helper()
	script, err := reference.Script()
	if err != nil {
		t.Fatal(err)
	}
	a := &app{name: name, done: make(chan struct{})}
	a.cmd = exec.Command(script, append([]string{"java", "-cp", cp}, args...)...)
	if a.cmd.Env, err = appEnv(folder); err != nil {
		t.Fatal(err)
	}
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	a.cmd.Stderr = clientLog(name)
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := clientLog(name)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			_, _ = io.WriteString(log, lines.Text()+"\n")
			a.mu.Lock()
			a.lines = append(a.lines, lines.Text())
			a.mu.Unlock()
		}
		a.err = a.cmd.Wait()
		close(a.done)
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-a.done
	})
	return a
}

// says waits for a line of its output.
func (a *app) says(ctx context.Context, line string) error {
	return eventually(ctx, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, l := range a.lines {
			if l == line {
				return nil
			}
		}
		return fmt.Errorf("%s has not said %s", a.name, line)
	})
}

// stop ends it with TERM and waits.
func (a *app) stop() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(40 * time.Second):
		return fmt.Errorf("%s did not end within 40 s of TERM", a.name)
	}
	// 143 is a JVM's exit status after it has run its shutdown hooks for TERM.
	if exit := (*exec.ExitError)(nil); errors.As(a.err, &exit) && exit.ExitCode() == 143 {
		return nil
	}
	return a.err
}

// TestStreams runs the two applications of apps/streams/StreamsApp.java. The counts that come out have to be those of the
// words that went in: after a clean stop of the application, after one that lost its state directory and restores
// its store from the changelog, and after a stop of the broker under the running application.
func TestStreams(t *testing.T) {
	cp, err := appClasses("streams")
	if err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	state := filepath.Join(t.TempDir(), "state")
	for topic, partitions := range map[string]int32{"lines": 3, "loud": 3, "counts": 2} {
		if err := createTopic(ctx, target.Addr(), topic, partitions, nil); err != nil {
			t.Fatal(err)
		}
	}
	step := func(name string, err error) {
		t.Helper()
		results.add("kafka-streams", name, err == nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	start := func(name, to string) *app {
		a := startApp(t, name, "streams", cp, "StreamsApp", target.Addr(), name, "lines", to, state, "at_least_once")
		step("start-"+name, a.says(ctx, "RUNNING"))
		return a
	}

	random := rand.New(rand.NewPCG(1, 2))
	words, loud := map[string]int{}, map[string]int{}
	write := func(lines int) {
		t.Helper()
		var records []record
		for i := range lines {
			var line []string
			for range 1 + random.IntN(8) {
				// Some words are much more frequent than others.
				line = append(line, fmt.Sprintf("word%d", random.IntN(1+random.IntN(300))))
			}
			if random.IntN(10) == 0 {
				line[0] = "#"
			}
			text := strings.Join(line, " ")
			for _, w := range line {
				words[w]++
			}
			if line[0] != "#" {
				loud[strings.ToUpper(text)]++
			}
			records = append(records, record{Partition: int32(i % 3), Key: fmt.Appendf(nil, "%d", i), Value: []byte(text)})
		}
		if err := (franz{target.Addr()}).produce(ctx, batch{topic: "lines", codec: "lz4", records: records}); err != nil {
			t.Fatal(err)
		}
	}
	// census compares what stands in a topic with what should, until it does.
	census := func(topic string, want map[string]int, of func([]record) map[string]int) error {
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return eventually(short, func() error {
			time.Sleep(200 * time.Millisecond) // it reads everything each time
			records, err := (franz{target.Addr()}).consume(short, query{topic: topic})
			if err != nil {
				return err
			}
			got := of(records)
			wrong, example := 0, ""
			for k, n := range want {
				if got[k] != n {
					wrong, example = wrong+1, fmt.Sprintf("%s: %d instead of %d", k, got[k], n)
				}
			}
			if wrong > 0 || len(got) != len(want) {
				return mismatch(fmt.Sprintf("%d entries instead of %d, %d of them wrong: %s", len(got), len(want), wrong, example))
			}
			return nil
		})
	}
	counted := func() error {
		return census("counts", words, func(records []record) map[string]int {
			last := map[string]int{}
			for _, r := range records {
				var n int
				_, _ = fmt.Sscan(string(r.Value), &n)
				last[string(r.Key)] = n
			}
			return last
		})
	}
	shouted := func() error {
		return census("loud", loud, func(records []record) map[string]int {
			n := map[string]int{}
			for _, r := range records {
				n[string(r.Value)]++
			}
			return n
		})
	}

	write(2000)
	shout, count := start("shout", "loud"), start("count", "counts")
	step("stateless", shouted())
	step("stateful", counted())
	step("internal-topics", streamsTopics(ctx, target.Addr()))

	step("stop-stateful", count.stop())
	write(1000)
	count = start("count", "counts")
	step("stateful-after-restart", counted())
	step("stop-stateful-again", count.stop())
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	write(1000)
	count = start("count", "counts")
	step("stateful-restored-from-changelog", counted())

	// Both of them go on by themselves.
	if err := errors.Join(target.Stop(), target.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	write(1000)
	step("stateful-after-broker-restart", counted())
	step("stateless-after-broker-restart", shouted())
	step("stop", errors.Join(shout.stop(), count.stop()))
}

// streamsTopics looks at the topics that Streams made for itself: a compacted changelog with all keys, and a
// repartition topic, of which it deletes what it has read.
func streamsTopics(ctx context.Context, addr string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	const changelog, repartition = "count-counts-changelog", "count-words-repartition"
	list, err := adm.DescribeTopicConfigs(ctx, changelog, repartition)
	if err != nil {
		return err
	}
	for topic, want := range map[string]string{changelog: "cleanup.policy=compact", repartition: "retention.ms=-1"} {
		r, err := list.On(topic, nil)
		if err = errors.Join(err, r.Err); err != nil {
			return err
		}
		found := false
		for _, c := range r.Configs {
			found = found || c.Value != nil && c.Key+"="+*c.Value == want
		}
		if !found {
			return mismatch(topic + " has not " + want)
		}
	}
	return eventually(ctx, func() error {
		starts, err := adm.ListStartOffsets(ctx, repartition)
		if err != nil {
			return err
		}
		deleted := int64(0)
		starts.Each(func(o kadm.ListedOffset) { deleted += o.Offset })
		if deleted == 0 {
			return mismatch("nothing of the repartition topic was deleted")
		}
		return nil
	})
}
