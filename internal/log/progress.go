package log

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// progressEvery is how often the log tells how far the logs are loaded.
const progressEvery = 5 * time.Second

// LoadProgress is how far the logs of all directories are loaded.
type LoadProgress struct {
	Logs, LogsDone int64
	// Bytes is about how many bytes have to be read and checked since the last stop was not clean, 0 after a clean one;
	// BytesDone how many have been.
	Bytes, BytesDone int64
	Took             time.Duration
}

// Percent is by bytes where any have to be read, else by logs.
func (p LoadProgress) Percent() float64 {
	done, all := p.LogsDone, p.Logs
	if p.Bytes > 0 {
		done, all = p.BytesDone, p.Bytes
	}
	if all == 0 {
		return 100
	}
	return min(100*float64(done)/float64(all), 100)
}

// Remaining is how long the rest takes at the pace so far; ok is false while there is no pace yet.
func (p LoadProgress) Remaining() (left time.Duration, ok bool) {
	percent := p.Percent()
	if percent <= 0 {
		return 0, false
	}
	return time.Duration(float64(p.Took) * (100 - percent) / percent).Round(time.Second), true
}

func (p LoadProgress) String() string {
	text := fmt.Sprintf("%d of %d logs loaded, %.0f%%", p.LogsDone, p.Logs, p.Percent())
	if p.Bytes > 0 {
		text = fmt.Sprintf("recovering logs: %d of %d MB checked, %d of %d logs loaded, %.0f%%", p.BytesDone>>20, p.Bytes>>20, p.LogsDone, p.Logs, p.Percent())
	}
	if left, ok := p.Remaining(); ok && p.LogsDone < p.Logs {
		text += fmt.Sprintf(", about %v left", left)
	}
	return text
}

// loading counts what Load has done; its methods may be called concurrently.
type loading struct {
	began, logs, logsDone, bytes, bytesDone atomic.Int64
}

func (c *loading) progress(now time.Time) LoadProgress {
	return LoadProgress{Logs: c.logs.Load(), LogsDone: c.logsDone.Load(), Bytes: c.bytes.Load(), BytesDone: c.bytesDone.Load(), Took: now.Sub(time.Unix(0, c.began.Load()))}
}

// expect adds what the recovery of the logs in a directory will have to read: the segments from the one that holds the
// recovery point on.
func (d *Dirs) expect(ld *logDir, names []string) {
	c := &d.loading
	c.logs.Add(int64(len(names)))
	if ld.clean {
		return
	}
	for _, name := range names {
		tp, suffix, ok := parseDirName(name)
		if !ok || suffix != "" {
			continue
		}
		ld.mu.Lock()
		point := ld.recoveryPoints[tp]
		ld.mu.Unlock()
		c.bytes.Add(bytesFrom(d.o.FS, filepath.Join(ld.path, name), point))
	}
}

// bytesFrom is the size of the segments in dir from the one that holds offset point on.
func bytesFrom(fsys vfs.FS, dir string, point int64) (total int64) {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return 0 // loading it will tell
	}
	for i := len(names) - 1; i >= 0; i-- {
		base, ok := fileOffset(names[i])
		if !ok || names[i] != logName(base) {
			continue
		}
		if info, err := fsys.Stat(filepath.Join(dir, names[i])); err == nil {
			total += info.Size()
		}
		if base <= point {
			break
		}
	}
	return total
}

// tellProgress writes a line every few seconds, until done is closed.
func (d *Dirs) tellProgress(done <-chan struct{}) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			p := d.loading.progress(d.o.Now())
			left, _ := p.Remaining()
			d.o.Logger.Info("loading logs", "logs", p.Logs, "loaded", p.LogsDone, "bytesToCheck", p.Bytes, "bytesChecked", p.BytesDone,
				"percent", fmt.Sprintf("%.0f", p.Percent()), "remaining", left.String())
		}
	}
}

// LoadProgress is how far Load has come.
func (d *Dirs) LoadProgress() LoadProgress { return d.loading.progress(d.o.Now()) }
