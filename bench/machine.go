package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/test/reference"
)

// machine is where and with what a report was made.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_mb"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	JVM    string `json:"jvm"`
	Kafka  string `json:"kafka"`
	Stele  string `json:"stele"`
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d MB of memory, Linux %s, %s, %s, Apache Kafka %s, Stele %s", m.Cores, m.CPU, m.Memory, m.Kernel, m.Go, m.JVM, m.Kafka, m.Stele)
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: procField("/proc/cpuinfo", "model name")}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int64(info.Totalram) * int64(info.Unit) >> 20
	}
	m.JVM = firstLine(exec.Command("java", "-version"))
	m.Stele = firstLine(exec.Command("git", "describe", "--always", "--dirty"))
	if script, err := reference.Script(); err == nil {
		m.Kafka = firstLine(exec.Command(script, "version"))
	}
	return m
}

func firstLine(cmd *exec.Cmd) string {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// procField is the value of the first line "name : value" of a file.
func procField(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
