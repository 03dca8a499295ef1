package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/vfs"
)

func newLogVerify(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR...",
		Short: "Check every invariant of a data directory or of one partition; status 1 if one does not hold",
		Long: `Check a data directory, or the directory of one partition, Stele's or Kafka's: every
batch's bytes and records; that offsets rise and leader epochs never fall; that indexes,
producer snapshots, the index of aborted transactions and the epoch checkpoint agree with
the batches. Of the metadata log also that every record follows from those before it, that
each snapshot holds what the log does, and that raft-state and quorum-state fit. Of a data
directory also meta.properties, its checkpoints, and that its partitions are the ones that
the metadata knows.

The exit status is 0 when all of it holds and 1 when not; then each line names the
file, the offset, and what is wrong. A directory that a running node has open is checked
too: what is found is looked for a second time, so that a write under way is no problem.`,
		Example: `  stele log verify stele-data
  stele log verify stele-data/orders-0 --output json
  stele log verify /var/lib/kafka/data`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) error { return e.verify(cmd.Context(), dirs) },
	}
}

// lockDataDir keeps nodes away from the data directory that dir is or lies in. live says that one has it open: its
// files change while they are read. Where there is no lock file no node is, and nothing is made.
func lockDataDir(dir string) (live bool, unlock func()) {
	name := filepath.Join(dir, log.LockName)
	if _, err := os.Stat(name); err != nil {
		return false, func() {}
	}
	lock, err := vfs.OS().Lock(name)
	if err != nil { // only to be read: then nobody writes here as we would
		return errors.Is(err, vfs.ErrLocked), func() {}
	}
	return false, func() { lock.Close() }
}

type problemView struct {
	Dir    string `json:"dir"`
	File   string `json:"file"`
	Offset *int64 `json:"offset"`
	Text   string `json:"text"`
}

type verifyView struct {
	Partitions int           `json:"partitions"`
	Live       bool          `json:"live"`
	Problems   []problemView `json:"problems"`
	// Notes are what is unusual and breaks nothing.
	Notes []string `json:"notes"`
}

// verification checks data directories one after another.
type verification struct {
	ctx  context.Context
	env  *env
	fs   vfs.FS
	view verifyView

	image *metadata.Image // of the metadata log, wherever among the directories it lies
	// logs are what was found in data directories, to be compared with the image.
	logs map[string]map[log.TopicPartition]log.Report
}

func (e *env) verify(ctx context.Context, dirs []string) error {
	v := &verification{ctx: ctx, env: e, fs: vfs.OS(), logs: map[string]map[log.TopicPartition]log.Report{}, view: verifyView{Problems: []problemView{}, Notes: []string{}}}
	for _, dir := range dirs {
		if err := v.dir(filepath.Clean(dir)); err != nil {
			return err
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(v.logs)) {
		v.known(dir, v.logs[dir])
	}
	view := v.view
	if e.output == "json" {
		if err := e.json(view); err != nil {
			return err
		}
	}
	if len(view.Problems) > 0 {
		return fmt.Errorf("log verify: %d problems in %d partitions of %s", len(view.Problems), view.Partitions, strings.Join(dirs, ", "))
	}
	noun := "partitions"
	if view.Partitions == 1 {
		noun = "partition"
	}
	e.say("%d %s, every invariant holds", view.Partitions, noun)
	return nil
}

func (v *verification) dir(dir string) error {
	partitions, err := partitionDirs(dir)
	if err != nil {
		return usagef("log verify: %w", err)
	}
	single := len(partitions) == 1 && partitions[0] == dir
	home := dir
	if single {
		home = filepath.Dir(dir)
	}
	live, unlock := lockDataDir(home)
	defer unlock()
	v.view.Live = v.view.Live || live
	own, err := v.own(dir)
	if err != nil {
		return err
	}
	if len(partitions) == 0 && !own {
		return usagef("log verify: %s holds no partition: name a data directory or a directory in it such as orders-0", dir)
	}
	if live {
		v.env.say("%s is in use by a running node: checked as it changes", home)
	}
	ends := map[log.TopicPartition]log.Report{}
	for _, partition := range partitions {
		report, img, err := v.partition(partition, live)
		if err != nil {
			return fmt.Errorf("log verify: %s cannot be read: %w", partition, err)
		}
		v.view.Partitions++
		v.found(partition, report.Problems)
		if img != nil {
			v.image = img
		}
		if tp, ok := partitionOf(partition); ok {
			ends[tp] = report
		}
	}
	if single {
		return nil
	}
	v.logs[dir] = ends
	return v.checkpoints(dir, live, ends)
}

func (v *verification) found(dir string, problems []log.Problem) {
	for _, p := range problems {
		shown := problemView{Dir: dir, File: p.File, Text: p.Text}
		if p.Offset >= 0 {
			shown.Offset = &p.Offset
		}
		v.view.Problems = append(v.view.Problems, shown)
		v.env.say("%s", filepath.Join(dir, p.String()))
	}
}

func (v *verification) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	v.view.Notes = append(v.view.Notes, text)
	v.env.say("note: %s", text)
}

// settleTime is how long a write that looks like a problem in a live directory may take.
const settleTime = 300 * time.Millisecond

// partition checks one partition. Of a live one, a problem is what two looks at it find alike: positions move on under
// the first one.
func (v *verification) partition(dir string, live bool) (log.Report, *metadata.Image, error) {
	report, image, err := v.look(dir)
	for try := 0; live && try < 3 && (len(report.Problems) > 0 || errors.Is(err, fs.ErrNotExist)); try++ {
		select {
		case <-time.After(settleTime):
		case <-v.ctx.Done():
			return report, nil, v.ctx.Err()
		}
		if _, gone := v.fs.Stat(dir); errors.Is(gone, fs.ErrNotExist) {
			return log.Report{Start: -1, End: -1}, nil, nil // deleted meanwhile
		}
		again, img, err2 := v.look(dir)
		again.Problems = slices.DeleteFunc(again.Problems, func(p log.Problem) bool { return err == nil && !slices.Contains(report.Problems, p) })
		report, image, err = again, img, err2
	}
	return report, image, err
}

func (v *verification) look(dir string) (log.Report, *metadata.Image, error) {
	report, err := log.VerifyPartition(v.fs, dir)
	if err != nil || filepath.Base(dir) != quorum.TopicName+"-0" {
		return report, nil, err
	}
	image, problems, err := quorum.Verify(v.fs, dir)
	report.Problems = append(report.Problems, problems...)
	return report, image, err
}

// partitionOf is the partition that a directory in use is of; ok is false for those that wait for deletion and strays.
func partitionOf(dir string) (tp log.TopicPartition, ok bool) {
	return log.ParsePartitionDir(filepath.Base(dir))
}

// own checks the files that a data directory has of its own, and says whether there are any.
func (v *verification) own(dir string) (any bool, err error) {
	read := func(name string, check func([]byte) error) error {
		data, err := vfs.ReadFile(v.fs, filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("log verify: %w", err)
		}
		any = true
		if err := check(data); err != nil {
			v.found(dir, []log.Problem{{File: name, Offset: -1, Text: strings.TrimPrefix(err.Error(), name+": ")}})
		}
		return nil
	}
	err = read("meta.properties", func(data []byte) error {
		m, err := metadata.ParseMetaProperties(data)
		if err == nil && (m.ClusterID == "" || m.NodeID == nil) {
			err = errors.New("it names no cluster or no node")
		}
		return err
	})
	if err == nil {
		err = read("bootstrap.checkpoint", func([]byte) error { return quorum.VerifySnapshot(v.fs, filepath.Join(dir, "bootstrap.checkpoint")) })
	}
	return any, err
}

// checkpoints compares the checkpoints of a data directory with its logs. After a stop that was not clean they may be
// behind what is there, and ahead of it where synced data was lost only if it was never synced: only what a clean stop
// wrote has to fit.
func (v *verification) checkpoints(dir string, live bool, logs map[log.TopicPartition]log.Report) error {
	_, err := v.fs.Stat(filepath.Join(dir, log.CleanShutdownName))
	clean := err == nil && !live
	for _, name := range []string{log.RecoveryPointCheckpoint, log.LogStartCheckpoint, log.HighWatermarkCheckpoint, log.CleanerCheckpoint} {
		data, err := vfs.ReadFile(v.fs, filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("log verify: %w", err)
		}
		positions, err := log.ParseCheckpoint(data)
		if err != nil {
			v.found(dir, []log.Problem{{File: name, Offset: -1, Text: err.Error()}})
			continue
		}
		for tp, offset := range positions {
			if report, ok := logs[tp]; ok && clean && report.End >= 0 && offset > report.End {
				v.found(dir, []log.Problem{{File: name, Offset: offset, Text: fmt.Sprintf("it names that offset for %s, whose log ends at %d", tp, report.End)}})
			}
		}
	}
	return nil
}

// known compares the partitions of a data directory with the metadata, where that was among the directories.
func (v *verification) known(dir string, logs map[log.TopicPartition]log.Report) {
	if v.image == nil {
		return
	}
	for _, tp := range slices.SortedFunc(maps.Keys(logs), func(a, b log.TopicPartition) int { return strings.Compare(a.String(), b.String()) }) {
		if tp.Topic == quorum.TopicName {
			continue
		}
		id, err := log.ReadPartitionMetadata(v.fs, filepath.Join(dir, tp.String()))
		if err != nil {
			continue // reported with the partition, where it has records
		}
		topic, ok := v.image.Topic(tp.Topic)
		switch {
		case !ok:
			v.note("%s: the metadata has no topic %s; a start would put this partition aside as a stray", filepath.Join(dir, tp.String()), tp.Topic)
		case topic.ID != metadata.UUID(id):
			v.note("%s: it is of topic id %s, the metadata has %s under that name; a start would put it aside as a stray", filepath.Join(dir, tp.String()), metadata.UUID(id), topic.ID)
		}
	}
}
