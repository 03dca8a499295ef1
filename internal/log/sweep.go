package log

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/vfs"
)

const (
	cleanedSuffix = ".cleaned"
	swapSuffix    = ".swap"
	tmpSuffix     = ".tmp"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// fileOffset is the offset that names a file: 20 digits before the first dot.
func fileOffset(name string) (int64, bool) {
	digits, _, ok := strings.Cut(name, ".")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	o, err := strconv.ParseInt(digits, 10, 64)
	return o, err == nil && o >= 0
}

// snapshotOffset is the offset of a snapshot's name, -1 if it is none.
func snapshotOffset(name string) int64 {
	o, ok := fileOffset(name)
	if !ok || filepath.Ext(name) != ".snapshot" {
		return -1
	}
	return o
}

// sweep finishes or takes back what a crash interrupted in dir: deletions, and the swaps of the cleaner. It returns the
// files that are there then.
func sweep(fsys vfs.FS, dir string) ([]string, error) {
	names, err := fileNames(fsys, dir)
	if err != nil || !slices.ContainsFunc(names, isLeftover) {
		return names, err
	}
	if err := sweepLeftovers(fsys, dir, names); err != nil {
		return nil, err
	}
	return fileNames(fsys, dir)
}

// isLeftover says whether a file's name alone tells that sweep has to do with it.
func isLeftover(name string) bool {
	return strings.HasSuffix(name, deletedSuffix) || strings.HasSuffix(name, tmpSuffix) || strings.HasSuffix(name, cleanedSuffix) || strings.HasSuffix(name, swapSuffix)
}

func sweepLeftovers(fsys vfs.FS, dir string, names []string) error {
	var err error
	remove := func(name string) error { return removeIfExists(fsys, filepath.Join(dir, name)) }
	leastCleaned := int64(math.MaxInt64)
	var kept []string
	for _, n := range names {
		o, named := fileOffset(n)
		switch {
		case !named || strings.Contains(n, ".checkpoint"):
			continue
		case strings.HasSuffix(n, deletedSuffix), strings.HasSuffix(n, tmpSuffix):
			if err := remove(n); err != nil {
				return err
			}
			continue
		case strings.HasSuffix(n, cleanedSuffix):
			leastCleaned = min(leastCleaned, o)
		}
		kept = append(kept, n)
	}
	kept, err = removeMatching(kept, remove, func(n string, o int64) bool {
		return strings.HasSuffix(n, swapSuffix) && o >= leastCleaned
	})
	if err != nil {
		return err
	}
	kept, err = removeMatching(kept, remove, func(n string, _ int64) bool { return strings.HasSuffix(n, cleanedSuffix) })
	if err != nil {
		return err
	}
	return finishSwap(fsys, dir, kept, remove)
}

func removeMatching(names []string, remove func(string) error, matches func(string, int64) bool) ([]string, error) {
	kept := names[:0:0]
	for _, n := range names {
		if o, _ := fileOffset(n); matches(n, o) {
			if err := remove(n); err != nil {
				return nil, err
			}
			continue
		}
		kept = append(kept, n)
	}
	return kept, nil
}

// finishSwap puts finished output in the place of what it was made of.
func finishSwap(fsys vfs.FS, dir string, names []string, remove func(string) error) error {
	from, to := int64(math.MaxInt64), int64(-1)
	swaps := false
	for _, n := range names {
		swaps = swaps || strings.HasSuffix(n, swapSuffix)
		if !strings.HasSuffix(n, ".log"+swapSuffix) {
			continue
		}
		o, _ := fileOffset(n)
		end, err := endOfFile(fsys, filepath.Join(dir, n), o)
		if err != nil {
			return err
		}
		from, to = min(from, o), max(to, end)
	}
	if !swaps {
		return nil
	}
	names, err := removeMatching(names, remove, func(n string, o int64) bool {
		return !strings.HasSuffix(n, swapSuffix) && o >= from && o < to
	})
	if err != nil {
		return err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasSuffix(n, swapSuffix) {
			if err := fsys.Rename(filepath.Join(dir, n), filepath.Join(dir, strings.TrimSuffix(n, swapSuffix))); err != nil {
				return err
			}
		}
	}
	return fsys.SyncDir(dir)
}

// endOfFile is the offset after the last whole batch of the segment file at path.
func endOfFile(fsys vfs.FS, path string, base int64) (int64, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	r := newHeaderReader(f, size)
	defer r.close()
	end := base
	for pos := int64(0); ; {
		b, err := r.header(pos)
		if err != nil {
			return end, nil // the end, or a tail that recovery will cut
		}
		end = b.NextOffset()
		pos += int64(b.Length())
	}
}

// fileNames are the plain files in dir, sorted.
func fileNames(fsys vfs.FS, dir string) ([]string, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}
