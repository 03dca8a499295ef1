package cli

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/config"
)

// A start that fails, here for a port in use, is one line and status 1, and leaves no directory behind.
func TestFailedStartSaysWhy(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := filepath.Join(t.TempDir(), "data")
	var out, errs bytes.Buffer
	code := Execute([]string{"serve", "--data-dir", dir, "--set", "http.listen=", "--set", "listeners=PLAINTEXT://" + l.Addr().String() + ",CONTROLLER://127.0.0.1:0"}, strings.NewReader(""), &out, &errs)
	if code != 1 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), l.Addr().String()) {
		t.Errorf("status %d, standard error %q", code, errs.String())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory: %v", err)
	}
}

// A data directory that is given and not used, because settings name another, is warned of.
func TestDataDirWithoutEffectIsSaid(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.properties")
	for text, warned := range map[string]bool{"log.dirs=/elsewhere\n": true, "log.dir=/elsewhere\n": true, "num.partitions=2\n": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, warnings, err := serveOptions{configFile: file, dataDir: "/mine", dirGiven: true}.parse()
		said := slices.ContainsFunc(warnings, func(w config.Warning) bool { return w.Source == "--data-dir" && w.Name == "log.dirs" })
		if err != nil || said != warned {
			t.Errorf("%q: %v %v", text, warnings, err)
		}
	}
	if _, warnings, err := (serveOptions{configFile: file, dataDir: "./stele-data", set: []string{"log.dirs=/x"}}).parse(); err != nil || len(warnings) != 0 {
		t.Errorf("nobody asked for the default: %v %v", warnings, err)
	}
	if _, warnings, err := (serveOptions{dataDir: "/mine", dirGiven: true, set: []string{"log.dirs=/x"}}).parse(); err != nil || len(warnings) != 0 {
		t.Errorf("both stand side by side: %v %v", warnings, err)
	}
}
