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
	"github.com/stelelog/stele/internal/quorum"
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
		Short: "Show what is in the files of a data directory: batches, records, indexes, snapshots, checkpoints",
		Long: `Show what is in the files of a data directory, Stele's or Kafka's. Of a partition: .log,
.index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, partition.metadata. Of
the metadata log also its .checkpoint snapshots, quorum-state and raft-state. Beside the
partitions: meta.properties, the *-offset-checkpoint files, .kafka_cleanshutdown,
bootstrap.checkpoint. Of a directory every such file is shown.

Records of __consumer_offsets, __transaction_state and __cluster_metadata are decoded;
what this version does not know is shown as it is, with the reason. Files may be those
of a running node; its newest batch may then look torn. With --output json each entry
is one line.`,
		Example: `  stele log dump stele-data/orders-0
  stele log dump --records stele-data/orders-0/00000000000000000000.log
  stele log dump --records --output json stele-data/__consumer_offsets-7 | jq .
  stele log dump --records stele-data/__cluster_metadata-0
  stele log dump /var/lib/kafka/data/meta.properties`,
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

// dumpable are the kinds of file that dump reads, by the ends of their names, in the order in which it shows them.
var dumpable = []string{
	"meta.properties", log.CleanShutdownName, "-offset-checkpoint", "quorum-state", quorum.KeptQuorumState, "raft-state", ".checkpoint",
	".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata",
}

func dumpKind(path string) int {
	base := filepath.Base(path)
	return slices.IndexFunc(dumpable, func(kind string) bool { return strings.HasSuffix(base, kind) })
}

// path dumps a file, or every file of a directory that dump knows. Of a data directory those are the files beside the
// partitions, which are named.
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
	var names, partitions []string
	for _, entry := range entries {
		switch {
		case entry.IsDir() && partitionDir.MatchString(entry.Name()):
			partitions = append(partitions, entry.Name())
		case !entry.IsDir() && dumpKind(entry.Name()) >= 0:
			names = append(names, entry.Name())
		}
	}
	if len(names) == 0 && len(partitions) > 0 {
		return usagef("log dump: %s is a data directory: name a partition in it, such as %s", path, filepath.Join(path, partitions[len(partitions)-1]))
	}
	if len(names) == 0 {
		return usagef("log dump: %s holds no file that dump knows: name a data directory, or one of a partition such as stele-data/orders-0", path)
	}
	slices.SortStableFunc(names, func(a, b string) int { return dumpKind(a) - dumpKind(b) })
	for _, name := range names {
		if err := d.file(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	for _, name := range partitions {
		if err := d.line(filepath.Join(path, name), "partition", filepath.Join(path, name), map[string]any{}); err != nil {
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
