//go:build interop

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// TestDump has Apache Kafka's DumpLogSegments read every file that a mixed workload left behind: logs with every
// batch and record, indexes against their logs, producer snapshots, transaction indexes, the metadata log and
// its snapshots, committed offsets and transactions. It reports no mismatch, and finds what was written.
func TestDump(t *testing.T) {
	target := newTarget(t, "log.index.size.max.bytes=4096", "metadata.log.max.record.bytes.between.snapshots=4000")
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	served := mustCapabilities(t, target.Addr())
	want, err := mixedWorkload(ctx, t, target)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Stop(); err != nil {
		t.Fatal(err)
	}
	d := &dumper{t: t, dir: target.Data(), files: map[string][]string{}}
	if err := d.find(); err != nil {
		t.Fatal(err)
	}

	check := func(name string, f func() error) {
		err := f()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		results.add("kafka-dump", name, err == nil)
	}
	check("logs", func() error {
		out, err := d.dump(ctx, d.files["log"], "--deep-iteration", "--print-data-log")
		if err != nil {
			return err
		}
		for topic, n := range want {
			if got := countRecords(out, topic); got != n {
				err = errors.Join(err, fmt.Errorf("%s: %d records in the dump, %d were written", topic, got, n))
			}
		}
		return err
	})
	check("offset-indexes", func() error {
		_, err := d.dump(ctx, d.files["index"])
		return err
	})
	check("offset-indexes-sanity", func() error { return d.sane(ctx, d.files["index"]) })
	check("time-indexes", func() error {
		_, err := d.dump(ctx, d.files["timeindex"])
		return err
	})
	check("time-indexes-sanity", func() error { return d.sane(ctx, d.files["timeindex"]) })
	check("indexes-have-entries", func() error {
		out, err := d.dump(ctx, d.files["index"])
		if err == nil && !regexp.MustCompile(`(?m)^offset: \d+ position: [1-9]`).MatchString(out) {
			err = errors.New("no offset index has an entry, although index.interval.bytes is small")
		}
		return err
	})
	check("producer-snapshots", func() error {
		out, err := d.dump(ctx, d.files["snapshot"])
		if err == nil && !strings.Contains(out, "producerId: ") {
			err = errors.New("no producer in any snapshot")
		}
		return err
	})
	checkServed := func(name string, f func() error) {
		if _, missing := served.missing(name); !missing {
			check(name, f)
		}
	}
	checkServed("transaction-indexes", func() error {
		out, err := d.dump(ctx, d.files["txnindex"])
		if err == nil && !strings.Contains(out, "lastStableOffset: ") {
			err = errors.New("no aborted transaction in any index")
		}
		return err
	})
	check("metadata-log", func() error {
		out, err := d.dump(ctx, d.files["metadata"], "--cluster-metadata-decoder", "--deep-iteration")
		for _, w := range []string{`"type":"TOPIC_RECORD","version":0,"data":{"name":"dump-zstd"`, `"type":"REGISTER_BROKER_RECORD"`,
			`"type":"REMOVE_TOPIC_RECORD"`, `"type":"PRODUCER_IDS_RECORD"`, `LeaderChange`} {
			if err == nil && !strings.Contains(out, w) {
				err = fmt.Errorf("no %s in the metadata log", w)
			}
		}
		return err
	})
	check("metadata-snapshots", func() error {
		out, err := d.dump(ctx, d.files["checkpoint"], "--cluster-metadata-decoder", "--deep-iteration")
		if err == nil && !strings.Contains(out, "SnapshotFooter") {
			err = errors.New("no footer in any metadata snapshot")
		}
		return err
	})
	check("committed-offsets", func() error {
		out, err := d.dump(ctx, d.files["offsets"], "--offsets-decoder", "--deep-iteration")
		for _, w := range []string{`"group":"dump-group","topic":"dump-none"`, `"type":"2"`} {
			if err == nil && !strings.Contains(out, w) {
				err = fmt.Errorf("no %s in __consumer_offsets", w)
			}
		}
		return err
	})
	if err := d.seesDamage(ctx); err != nil {
		t.Error(err)
	}
	checkServed("transactions", func() error {
		out, err := d.dump(ctx, d.files["transactions"], "--transaction-log-decoder", "--deep-iteration")
		for _, w := range []string{`"transactionalId":"dump-tx"`, `"transactionStatus":"CompleteAbort"`, `"transactionStatus":"CompleteCommit"`} {
			if err == nil && !strings.Contains(out, w) {
				err = fmt.Errorf("no %s in __transaction_state", w)
			}
		}
		return err
	})
}

// seesDamage shows that the judge does not pass everything: an index whose entry points elsewhere is complained of.
func (d *dumper) seesDamage(ctx context.Context) error {
	for _, name := range d.files["index"] {
		path := filepath.Join(d.dir, name)
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(name, "dump-") || len(content) < 16 {
			continue
		}
		damaged := bytes.Clone(content)
		damaged[3]++ // the first entry's offset
		if err := os.WriteFile(path, damaged, 0o644); err != nil {
			return err
		}
		_, complaint := d.dump(ctx, []string{name})
		if complaint == nil {
			return fmt.Errorf("%s was damaged, and nothing is said of it", name)
		}
		return os.WriteFile(path, content, 0o644)
	}
	return errors.New("no offset index has two entries")
}

// mixedWorkload writes a bit of everything, with a kill in the middle, and returns how many data records each
// topic holds whose log was not cut.
func mixedWorkload(ctx context.Context, t *testing.T, target target) (map[string]int, error) {
	s := newSuite(t, target)
	f := franz{target.Addr()}
	small := map[string]string{"segment.ms": "60000", "index.interval.bytes": "200"}
	want := map[string]int{}
	start := time.Now().Add(-50 * time.Minute).Truncate(time.Millisecond)
	write := func(codec string, segment int) error {
		topic := "dump-" + codec
		// Timestamps five minutes apart roll segments.
		at := start.Add(time.Duration(segment) * 5 * time.Minute).UnixMilli()
		for range 4 {
			records := slices.Concat(plainRecords(codec), nullRecords, headerRecords)
			for i := range records {
				records[i].Timestamp = at
				at += 10
			}
			if err := f.produce(ctx, batch{topic: topic, codec: codec, records: records}); err != nil {
				return err
			}
			want[topic] += len(records)
		}
		return nil
	}
	for _, codec := range codecs {
		if err := createTopic(ctx, target.Addr(), "dump-"+codec, 1, small); err != nil {
			return nil, err
		}
		for segment := range 2 {
			if err := write(codec, segment); err != nil {
				return nil, err
			}
		}
	}
	rolls := map[string]string{"segment.bytes": "1048576", "index.interval.bytes": "1024"}
	if err := createTopic(ctx, target.Addr(), "dump-rolls", 1, rolls); err != nil {
		return nil, err
	}
	for _, topic := range []string{"dump-clients", "dump-tx", "dump-deleted", "dump-gone"} {
		if err := createTopic(ctx, target.Addr(), topic, 1, nil); err != nil {
			return nil, err
		}
	}
	// A failure here is reported, but leaves the other files to be judged.
	alone := 0
	transaction := func(c client, abort bool) {
		id := "dump-tx"
		if c.name() == "platformatic" {
			// It says of itself that it has producer id 0 and epoch 0, which fences it, by Apache Kafka too, where the id is known.
			alone++
			id = fmt.Sprintf("dump-tx-%d", alone)
		}
		b := batch{topic: "dump-tx", codec: "none", records: plainRecords("tx")[:5], transactionalID: id, abort: abort}
		if err := c.produce(ctx, b); err != nil {
			t.Errorf("a transaction of %s: %v", c.name(), err)
			return
		}
		want["dump-tx"] += len(b.records)
	}
	for _, c := range s.clients {
		if err := c.produce(ctx, batch{topic: "dump-clients", codec: "lz4", records: plainRecords(c.name())}); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(), err)
		}
		want["dump-clients"] += len(plainRecords(c.name()))
		// Every client's share is more than half a segment, so that each of them sees a roll.
		if err := c.produce(ctx, batch{topic: "dump-rolls", codec: "none", records: largeRecords(c.name())}); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(), err)
		}
		if _, limited := limits[c.name()]["transaction-abort"]; limited {
			continue // see limits
		}
		for _, abort := range []bool{false, true, false} {
			transaction(c, abort)
		}
	}
	transaction(f, true)
	if _, err := f.group(ctx, "dump-none", "dump-group", 20); err != nil {
		return nil, err
	}

	cl, err := kgo.NewClient(kgo.SeedBrokers(target.Addr()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if err := f.produce(ctx, batch{topic: "dump-deleted", codec: "none", records: plainRecords("deleted")}); err != nil {
		return nil, err
	}
	cut := kadm.Offsets{}
	cut.Add(kadm.Offset{Topic: "dump-rolls", Partition: 0, At: 333, LeaderEpoch: -1})
	cut.Add(kadm.Offset{Topic: "dump-deleted", Partition: 0, At: 11, LeaderEpoch: -1})
	deleted, err := adm.DeleteRecords(ctx, cut)
	if err := errors.Join(err, deleted.Error()); err != nil {
		return nil, err
	}
	gone, err := adm.DeleteTopics(ctx, "dump-gone")
	if err := errors.Join(err, gone.Error()); err != nil {
		return nil, err
	}
	if err := s.decided(ctx, "dump-tx"); err != nil {
		return nil, err
	}

	target.Kill()
	if err := target.Start(ctx); err != nil {
		return nil, err
	}
	for _, codec := range codecs {
		if err := write(codec, 3); err != nil {
			return nil, err
		}
	}
	if _, err := f.group(ctx, "dump-none", "dump-group", 20); err != nil {
		return nil, err
	}
	return want, nil
}

// largeRecords come to 0.7 MB.
func largeRecords(by string) []record {
	var out []record
	for i := range 140 {
		out = append(out, record{Key: fmt.Appendf(nil, "%s-%d", by, i), Value: []byte(strings.Repeat(string(rune('a'+i%26)), 5000))})
	}
	return out
}

// dumper knows the files of a data directory by what they are.
type dumper struct {
	t     *testing.T
	dir   string
	files map[string][]string
}

func (d *dumper) find() error {
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasSuffix(path, "-delete") || strings.HasSuffix(path, "-stray")) {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(d.dir, path)
		if err != nil {
			return err
		}
		kind := strings.TrimPrefix(filepath.Ext(rel), ".")
		if kind == "metadata" {
			return nil // partition.metadata is text
		}
		if onKafka() && strings.HasPrefix(rel, "__cluster_metadata") && strings.HasSuffix(kind, "index") {
			return nil // Kafka leaves these two preallocated, and its own tool stumbles over the unused entries
		}
		if kind == "log" {
			switch {
			case strings.HasPrefix(rel, "__cluster_metadata"):
				kind = "metadata"
			case strings.HasPrefix(rel, "__consumer_offsets"):
				kind = "offsets"
			case strings.HasPrefix(rel, "__transaction_state"):
				kind = "transactions"
			}
		}
		d.files[kind] = append(d.files[kind], rel)
		return nil
	})
	if err != nil {
		return err
	}
	kinds := []string{"log", "index", "timeindex", "snapshot", "metadata", "checkpoint", "offsets", "txnindex", "transactions"}
	for _, kind := range kinds {
		if len(d.files[kind]) == 0 {
			d.t.Errorf("the workload left no file of kind %s in %s", kind, d.dir)
		}
	}
	return nil
}

// complaint is what the tool says, in one way or another, when a file is not as it should be.
var complaint = regexp.MustCompile(`(?i)mismatch|non-consecutive|out of order|invalid bytes|isvalid: false|exception|could not|failed|corrupt|error at`)

// dump runs the tool over files and returns what it printed. A complaint is an error, and so is a file that it
// did not read.
func (d *dumper) dump(ctx context.Context, files []string, flags ...string) (string, error) {
	if len(files) == 0 {
		return "", errors.New("there is no such file")
	}
	script, err := reference.Script()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, script, append([]string{"tool", "DumpLogSegments", "--files", strings.Join(files, ",")}, flags...)...)
	cmd.Dir = d.dir
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	err = cmd.Run()
	out := said.String()
	if err != nil {
		return out, fmt.Errorf("DumpLogSegments %s: %w: %s", strings.Join(flags, " "), err, errs.String())
	}
	// Mismatches are on standard error, at the end.
	if text := judgement(errs.String()); text != "" {
		return out, fmt.Errorf("DumpLogSegments %s says: %s", strings.Join(flags, " "), text)
	}
	for line := range strings.Lines(out) {
		// What is in a record is not the tool's own word.
		said, _, _ := strings.Cut(line, "payload:")
		if complaint.MatchString(said) {
			return out, fmt.Errorf("DumpLogSegments %s says: %s", strings.Join(flags, " "), strings.TrimSpace(line))
		}
	}
	for _, f := range files {
		if !strings.Contains(out, "Dumping "+f) {
			return out, fmt.Errorf("DumpLogSegments did not get to %s:\n%s", f, tail(out, 5))
		}
	}
	return out, nil
}

var (
	nonConsecutive = regexp.MustCompile(`^Non-consecutive offsets in (?:.*/)?(\d{20})\.log$`)
	followedBy     = regexp.MustCompile(`^\s*-1 is followed by (\d+)$`)
)

// judgement is what the tool says on standard error, without what it says of every log that does not begin at
// offset 0: it compares the first offset with -1.
func judgement(text string) string {
	var s strings.Builder
	header, base := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := nonConsecutive.FindStringSubmatch(line); m != nil {
			header, base = line, strings.TrimLeft(m[1], "0")
			continue
		}
		if m := followedBy.FindStringSubmatch(line); m != nil && base != "" && m[1] == base {
			continue
		}
		if strings.TrimSpace(line) != "" {
			fmt.Fprintln(&s, header)
			fmt.Fprintln(&s, line)
		}
	}
	return strings.TrimSpace(s.String())
}

// sane has the tool make the check that a starting broker makes of its indexes.
func (d *dumper) sane(ctx context.Context, files []string) error {
	out, err := d.dump(ctx, files, "--index-sanity-check")
	if err != nil {
		return err
	}
	for _, f := range files {
		if !strings.Contains(out, f+" passed sanity check.") && !strings.Contains(out, f+" is empty.") {
			return fmt.Errorf("%s did not pass the sanity check:\n%s", f, tail(out, 5))
		}
	}
	return nil
}

var dumpedRecord = regexp.MustCompile(`^\| offset: \d+ `)

// countRecords counts the data records of a topic in a dump of many files.
func countRecords(dump, topic string) int {
	n, in := 0, false
	for line := range strings.Lines(dump) {
		if f, ok := strings.CutPrefix(line, "Dumping "); ok {
			in = strings.HasPrefix(f, topic+"-0/")
		} else if in && dumpedRecord.MatchString(line) && !strings.Contains(line, "endTxnMarker") {
			n++
		}
	}
	return n
}
