package cli

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
