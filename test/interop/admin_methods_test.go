//go:build interop

package interop

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// compileJava compiles programs of the folder java and returns a class path with them and more.
func compileJava(classpath string, files ...string) (string, error) {
	dir := filepath.Join(scratch, "classes-"+strings.TrimSuffix(filepath.Base(files[0]), ".java"))
	args := append([]string{"-nowarn", "-cp", classpath, "-d", dir}, files...)
	if out, err := exec.Command("javac", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w\n%s", err, out)
	}
	return classpath + ":" + dir, nil
}

// TestAdminMethods calls every method of Kafka's Admin and checks what it answers. java/AdminMethods.java has the
// table, and holds it against the interface itself: a method without a row fails. One whose API is not served yet
// has to be refused with UnsupportedVersionException, and is told of at the end.
func TestAdminMethods(t *testing.T) {
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cp, err := reference.ClassPath(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if cp, err = compileJava(cp, "java/AdminMethods.java"); err != nil {
		t.Fatal(err)
	}
	served := mustCapabilities(t, target.Addr())
	var keys []string
	for _, k := range slices.Sorted(maps.Keys(served)) {
		keys = append(keys, strconv.Itoa(int(k)))
	}
	out, err := reference.Run(ctx, "java", "-cp", cp, "AdminMethods", target.Addr(), strings.Join(keys, ","))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var unserved []string
	rows := 0
	for line := range strings.Lines(out) {
		method, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		status, detail, _ := strings.Cut(rest, "\t")
		rows++
		switch status {
		case "ok":
			results.add("java-admin", method, true)
		case "unserved":
			unserved = append(unserved, method+": "+detail)
		default:
			t.Errorf("%s: %s", method, detail)
			results.add("java-admin", method, false)
		}
	}
	if rows < 60 {
		t.Errorf("only %d rows:\n%s", rows, out)
	}
	results.addUnserved(unserved)
}
