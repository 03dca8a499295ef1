package probe

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc on Linux, whatever the kernel's own.
const clockTick = 10 * time.Millisecond

// RSS is a process's resident memory in bytes.
func RSS(pid int) (int64, error) { return status(pid, "VmRSS:") }

// PeakRSS is the most resident memory, in bytes, that a process has had since ResetPeak.
func PeakRSS(pid int) (int64, error) { return status(pid, "VmHWM:") }

// ResetPeak makes PeakRSS begin anew.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o200)
}

func status(pid int, field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s (it has ended)", pid, field)
}

// CPU is the processor time, user and system, that a process has used.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command, in parentheses, may hold anything; fields 14 and 15 count from the state after it.
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick, err
}
