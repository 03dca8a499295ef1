package log

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

// What is open in a partition that Apache Kafka wrote is found with and without its producer snapshots and indexes,
// and what was ended is not.
func TestOpenTransactionsOfKafka(t *testing.T) {
	t.Parallel()
	const kafkas = "../../test/reference/testdata/kafka-4.4.0/datadir"
	for _, damage := range []func(dir string) error{
		func(string) error { return nil },
		func(dir string) error {
			for _, pattern := range []string{"*.snapshot", "*.index"} {
				found, err := filepath.Glob(filepath.Join(dir, pattern))
				if err != nil {
					return err
				}
				for _, name := range found {
					if err := os.Remove(name); err != nil {
						return err
					}
				}
			}
			return nil
		},
		func(dir string) error { // entries that point between batches
			found, err := filepath.Glob(filepath.Join(dir, "*.index"))
			for _, name := range found {
				if err := os.WriteFile(name, []byte{0, 0, 0, 0, 0, 0, 0, 7}, 0o600); err != nil {
					return err
				}
			}
			return err
		},
	} {
		for partition, want := range map[string]int{"open-0": 1, "transactions-0": 0, "idempotent-0": 0, "__consumer_offsets-0": 0, "rolled-0": 0, "shapes-2": 0} {
			dir := filepath.Join(t.TempDir(), partition)
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(kafkas, partition))); err != nil {
				t.Fatal(err)
			}
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			open, err := OpenTransactions(vfs.OS(), dir)
			if err != nil || len(open) != want || want > 0 && (open[0].FirstOffset != 0 || open[0].ProducerID < 0) {
				t.Errorf("%s: %+v %v", partition, open, err)
			}
		}
	}
}
