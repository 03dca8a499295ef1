package epoch

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/stelelog/stele/internal/vfs"
)

// CheckpointName is the name of the cache's file in a partition's directory.
const CheckpointName = "leader-epoch-checkpoint"

// CorruptError says why a checkpoint's content was refused.
type CorruptError struct {
	Line   int // 1 based
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: line %d: %s", CheckpointName, e.Line, e.Reason)
}

// Format is the content of the checkpoint: version 0, the number of entries, one "epoch startOffset" per line.
func Format(c Cache) []byte {
	b := make([]byte, 0, 8+16*len(c.entries))
	b = append(b, "0\n"...)
	b = strconv.AppendInt(b, int64(len(c.entries)), 10)
	b = append(b, '\n')
	for _, e := range c.entries {
		b = strconv.AppendInt(b, int64(e.Epoch), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, e.StartOffset, 10)
		b = append(b, '\n')
	}
	return b
}

// Parse reads the content of a checkpoint. Nothing at all, or the version line alone, is an empty cache; whether
// that can be true is for the caller to know. Everything else that is not well formed and ascending is a
// *CorruptError.
func Parse(data []byte) (Cache, error) {
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	if len(data) == 0 {
		return Cache{}, nil
	}
	if v := string(bytes.TrimSpace(lines[0])); v != "0" {
		return Cache{}, &CorruptError{1, fmt.Sprintf("version %.20q is not 0", v)}
	}
	if len(lines) == 1 {
		return Cache{}, nil
	}
	count, err := strconv.Atoi(string(bytes.TrimSpace(lines[1])))
	if err != nil || count < 0 {
		return Cache{}, &CorruptError{2, fmt.Sprintf("entry count %.20q", lines[1])}
	}
	if count != len(lines)-2 {
		return Cache{}, &CorruptError{2, fmt.Sprintf("%d entries announced, %d lines follow", count, len(lines)-2)}
	}
	entries := make([]Entry, 0, count)
	for i, line := range lines[2:] {
		f := bytes.Fields(line)
		if len(f) != 2 {
			return Cache{}, &CorruptError{i + 3, fmt.Sprintf("%d words instead of 2", len(f))}
		}
		e, err1 := strconv.ParseInt(string(f[0]), 10, 32)
		o, err2 := strconv.ParseInt(string(f[1]), 10, 64)
		if err1 != nil || err2 != nil || e < 0 || o < 0 {
			return Cache{}, &CorruptError{i + 3, fmt.Sprintf("%.40q is no epoch and offset", line)}
		}
		if n := len(entries); n > 0 && (int32(e) <= entries[n-1].Epoch || o <= entries[n-1].StartOffset) {
			return Cache{}, &CorruptError{i + 3, fmt.Sprintf("%d:%d does not rise above %d:%d", e, o,
				entries[n-1].Epoch, entries[n-1].StartOffset)}
		}
		entries = append(entries, Entry{int32(e), o})
	}
	return Cache{entries}, nil
}

// Read loads the checkpoint at path. A file that does not exist is an error that satisfies fs.ErrNotExist; one
// that cannot be understood is a *CorruptError.
func Read(fsys vfs.FS, path string) (Cache, error) {
	data, err := vfs.ReadFile(fsys, path)
	if err != nil {
		return Cache{}, err
	}
	return Parse(data)
}

// Write replaces the checkpoint at path, durably: after nil the content survives a crash.
func Write(fsys vfs.FS, path string, c Cache) error {
	if err := vfs.WriteFileAtomic(fsys, path, Format(c)); err != nil {
		return err
	}
	vfs.Failpoint("epoch-assigned")
	return nil
}
