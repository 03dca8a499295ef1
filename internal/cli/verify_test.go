package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// What a first look at a directory in use finds is looked for again before it is called a problem: a batch that was being written,
// an index that was behind, a file that was being rotated are none once the write is through; damage stays, and is told. A stopped
// directory is looked at once: there what is found is so.
func TestVerifyLooksTwice(t *testing.T) {
	t.Parallel()
	batch := func(offset int64) record.Batch {
		b := record.NewBuilder(record.BuilderOptions{BaseOffset: offset})
		if err := b.Append(1, []byte("k"), bytes.Repeat([]byte("v"), 200), nil); err != nil {
			t.Fatal(err)
		}
		out := b.Bytes()
		out.SetPartitionLeaderEpoch(0)
		return out
	}
	const name = "00000000000000000000.log"
	whole := append(append([]byte(nil), batch(0)...), batch(1)...)
	more := append(append([]byte(nil), whole...), batch(2)...)
	broken := append([]byte(nil), whole...)
	broken[100] ^= 1
	for what, c := range map[string]struct {
		first, second []byte // of the log; nil: not there
		live, sound   bool
	}{
		"a batch half written":                   {whole[:len(whole)-50], whole, true, true},
		"half of one, then half of another":      {whole[:len(whole)-50], more[:len(more)-50], true, true},
		"damage":                                 {broken, broken, true, false},
		"damage, and a batch half written":       {broken[:len(broken)-50], broken, true, false},
		"half a batch that stays":                {whole[:len(whole)-50], whole[:len(whole)-50], true, false},
		"a batch half written in a stopped one":  {whole[:len(whole)-50], whole, false, false},
		"a segment that goes while it is listed": {whole, nil, true, true},
		"nothing wrong":                          {whole, more, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "t-0")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, data := range map[string]string{"leader-epoch-checkpoint": "0\n1\n0 0\n", "partition.metadata": "version: 0\ntopic_id: AQIDAAAAAAAAAAAAAAAAAA", name: string(c.first)} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			disk, looks := vfs.NewFault(vfs.OS()), 0
			change := func() {
				if c.second == nil {
					_ = os.Remove(filepath.Join(dir, name))
				} else if err := os.WriteFile(filepath.Join(dir, name), c.second, 0o644); err != nil {
					t.Error(err)
				}
			}
			disk.Watch(func(o vfs.Operation) *vfs.Failure {
				switch {
				case o.Kind == vfs.OpReadDir && o.Name == dir:
					if looks++; looks == 2 {
						change()
					}
				case c.second == nil && o.Kind == vfs.OpOpen && strings.HasSuffix(o.Name, name):
					change() // between the list of names and the first of them
				}
				return nil
			})
			v := &verification{ctx: t.Context(), fs: disk}
			report, _, err := v.partition(dir, c.live)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if (err == nil && len(report.Problems) == 0) != c.sound {
				t.Errorf("%v, %v after %d looks", report.Problems, err, looks)
			}
		})
	}
}
