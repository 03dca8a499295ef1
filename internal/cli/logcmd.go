package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/vfs"
)

func newLog(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Look into the files of a data directory, and check them",
		Example: `  stele log dump --records stele-data/orders-0
  stele log verify stele-data`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLogDump(e), newLogVerify(e))
	return cmd
}

func newLogDump(e *env) *cobra.Command {
	var o dumpOptions
	cmd := &cobra.Command{
		Use:   "dump FILE|DIR...",
		Short: "Show what is in log files: batches, records, indexes, snapshots, checkpoints",
		Long: `Show what is in the files of a partition, Stele's or Kafka's: .log, .index,
.timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, partition.metadata, and the
.checkpoint files of the metadata log. Of a directory every such file is shown.

Records of __consumer_offsets and __cluster_metadata are decoded. Files may be those of
a running node; its newest batch may then look torn. With --output json each entry is
one line.`,
		Example: `  stele log dump stele-data/orders-0
  stele log dump --records stele-data/orders-0/00000000000000000000.log
  stele log dump --records --output json stele-data/__consumer_offsets-7 | jq .
  stele log dump --records stele-data/__cluster_metadata-0`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			d := &dumper{env: e, fs: vfs.OS(), dumpOptions: o}
			for _, path := range paths {
				if err := d.path(path); err != nil {
					return err
				}
			}
			return d.failure()
		},
	}
	cmd.Flags().BoolVarP(&o.records, "records", "r", false, "show records too, with keys, values and headers")
	return cmd
}

func newLogVerify(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR...",
		Short: "Check every invariant of a data directory or of one partition; status 1 if one does not hold",
		Long: `Check a data directory, or the directory of one partition: every batch's bytes and
records, that offsets rise and leader epochs never fall, and that indexes, producer
snapshots and the epoch checkpoint agree with the batches. What a start checks for
itself is not looked at: meta.properties, the directory's own checkpoints, and the
raft-state and snapshots beside the metadata log.

The exit status is 0 when all of it holds and 1 when not; then each line names the
file, the offset, and what is wrong. The directory is locked meanwhile:
one that a running node has open is refused.`,
		Example: `  stele log verify stele-data
  stele log verify stele-data/orders-0 --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, dirs []string) error { return e.verify(dirs) },
	}
}

// partitionDir is how the directory of a partition is named: also while it waits for
// deletion, or stands apart from what the cluster knows.
var partitionDir = regexp.MustCompile(`^.+-[0-9]+(\.[0-9a-f]+-(delete|future|stray))?$`)

// partitionDirs are the partitions in dir, or dir itself when it is one.
func partitionDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	var own bool
	for _, entry := range entries {
		if entry.IsDir() && partitionDir.MatchString(entry.Name()) {
			found = append(found, filepath.Join(dir, entry.Name()))
		}
		own = own || strings.HasSuffix(entry.Name(), ".log")
	}
	if own || len(found) == 0 && partitionDir.MatchString(filepath.Base(dir)) {
		return []string{dir}, nil
	}
	return found, nil
}

// lockDataDir keeps nodes away from the data directory that dir is or lies in, and fails
// when one has it open: its files change while they are read. Where there is no lock file
// no node is, and nothing is made.
func lockDataDir(dir string, partitions []string) (unlock func(), err error) {
	if len(partitions) == 1 && partitions[0] == dir {
		dir = filepath.Join(dir, "..")
	}
	name := filepath.Join(dir, log.LockName)
	if _, err := os.Stat(name); err != nil {
		return func() {}, nil
	}
	lock, err := vfs.OS().Lock(name)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("log verify: %s is in use by a running node: stop it first (`stele log dump` reads a running node's files)", dir)
	}
	if err != nil {
		return func() {}, nil // only to be read: then nobody writes here as we would
	}
	return func() { lock.Close() }, nil
}

type problemView struct {
	Dir    string `json:"dir"`
	File   string `json:"file"`
	Offset *int64 `json:"offset"`
	Text   string `json:"text"`
}

type verifyView struct {
	Partitions int           `json:"partitions"`
	Problems   []problemView `json:"problems"`
}

func (e *env) verify(dirs []string) error {
	view := verifyView{Problems: []problemView{}}
	for _, dir := range dirs {
		partitions, err := partitionDirs(dir)
		if err != nil {
			return usagef("log verify: %w", err)
		}
		unlock, err := lockDataDir(dir, partitions)
		if err != nil {
			return err
		}
		defer unlock()
		if len(partitions) == 0 {
			return usagef("log verify: %s holds no partition: name a data directory or a directory in it such as orders-0", dir)
		}
		for _, partition := range partitions {
			problems, err := log.Verify(vfs.OS(), partition)
			if err != nil {
				return fmt.Errorf("log verify: %s cannot be read: %w", partition, err)
			}
			view.Partitions++
			for _, p := range problems {
				shown := problemView{Dir: partition, File: p.File, Text: p.Text}
				if p.Offset >= 0 {
					shown.Offset = &p.Offset
				}
				view.Problems = append(view.Problems, shown)
				e.say("%s", filepath.Join(partition, p.String()))
			}
		}
	}
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

// dumpable are the kinds of file that dump reads, in the order in which it shows them.
var dumpable = []string{".checkpoint", ".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata"}

func dumpKind(path string) int {
	base := filepath.Base(path)
	return slices.IndexFunc(dumpable, func(kind string) bool { return strings.HasSuffix(base, kind) })
}

// path dumps a file, or every file of a directory that dump knows.
func (d *dumper) path(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return usagef("log dump: %w", err)
	}
	if !info.IsDir() {
		return d.file(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("log dump: %w", err)
	}
	var names []string
	partition := ""
	for _, entry := range entries {
		if entry.IsDir() && partitionDir.MatchString(entry.Name()) && (partition == "" || strings.HasPrefix(partition, "__")) {
			partition = entry.Name()
		}
		if !entry.IsDir() && dumpKind(entry.Name()) >= 0 {
			names = append(names, entry.Name())
		}
	}
	if partition != "" {
		return usagef("log dump: %s is a data directory: name a partition in it, such as %s", path, filepath.Join(path, partition))
	}
	if len(names) == 0 {
		return usagef("log dump: %s holds no file of a partition: name one such as stele-data/orders-0", path)
	}
	slices.SortStableFunc(names, func(a, b string) int { return dumpKind(a) - dumpKind(b) })
	for _, name := range names {
		if err := d.file(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// failure sums up what could not be read: the rest was shown all the same.
func (d *dumper) failure() error {
	if len(d.bad) == 0 {
		return nil
	}
	return errors.Join(d.bad...)
}
