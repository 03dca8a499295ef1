package cli

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/metadata"
)

// properties reads meta.properties of a directory.
func properties(t *testing.T, dir string) metadata.MetaProperties {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	props, err := metadata.ParseMetaProperties(text)
	if err != nil {
		t.Fatal(err)
	}
	return props
}

// edit replaces what matches in meta.properties of a directory.
func edit(t *testing.T, dir, pattern, with string) {
	t.Helper()
	path := filepath.Join(dir, "meta.properties")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile("(?m)"+pattern).ReplaceAll(text, []byte(with))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// format starts a node on fresh directories and stops it again.
func format(t *testing.T, dir string, set ...string) {
	t.Helper()
	n, err := startFor(t.Context(), dir, set...)
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
}

// picture is what is on a disk: names, sizes and contents.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, entry.Type())
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// refuses runs serve, which must end with status 1 and one line that holds the words,
// and leave dir as it is.
func refuses(t *testing.T, dir string, set []string, words ...string) {
	t.Helper()
	before := picture(t, dir)
	args := []string{"serve", "--data-dir", dir, "--set", "http.listen=", "--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	var out, errs bytes.Buffer
	status := Execute(args, strings.NewReader(""), &out, &errs)
	check(t, result{status, out.String(), errs.String()}, 1, args, words...)
	if after := picture(t, dir); after != before {
		t.Errorf("the disk was changed:\n%s\nwas\n%s", after, before)
	}
}

// M-003: A fresh start writes meta.properties version 1 with three ids, and a restart
// keeps them. Without directory.id a new one is written; a reserved one is refused.
func TestM003_directory_ids(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	format(t, dir)
	first := properties(t, dir)
	if first.Version != 1 || first.ClusterID == "" || first.NodeID == nil || *first.NodeID != 1 || first.DirectoryID == metadata.ZeroUUID {
		t.Fatalf("%+v", first)
	}
	format(t, dir)
	if again := properties(t, dir); again.ClusterID != first.ClusterID || again.DirectoryID != first.DirectoryID {
		t.Errorf("a restart made %+v of %+v", again, first)
	}
	edit(t, dir, `^directory\.id=.*$`, "directory.id=AAAAAAAAAAAAAAAAAAAAAw")
	refuses(t, dir, nil, "meta.properties", "AAAAAAAAAAAAAAAAAAAAAw", "reserved")
}

// A directory that lost only its meta.properties holds somebody's data: the refusal says to restore the file, and
// not to empty the directory.
func TestLostMetaPropertiesIsNoReasonToEmptyADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	format(t, dir)
	if err := os.Remove(filepath.Join(dir, "meta.properties")); err != nil {
		t.Fatal(err)
	}
	refuses(t, dir, nil, "do not empty it", "restore that file")
	for _, damaged := range []string{"", strings.Repeat("\x00", 100)} {
		if err := os.WriteFile(filepath.Join(dir, "meta.properties"), []byte(damaged), 0o644); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, nil, "meta.properties is damaged", "restore it")
	}
}

// M-003: The metadata directory of a voter that lost its directory.id gets one back: its own, since under another
// it would be a stranger to its quorum. The node starts.
func TestM003_directory_id_of_a_voter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	format(t, dir)
	first := properties(t, dir)
	edit(t, dir, `^directory\.id=.*\n?`, "")
	format(t, dir)
	if again := properties(t, dir); again.DirectoryID != first.DirectoryID {
		t.Errorf("a lost id made %+v of %+v", again, first)
	}
}

// M-003: A second log directory that lost its directory.id gets a new one.
func TestM003_new_directory_id(t *testing.T) {
	t.Parallel()
	dir, second := t.TempDir(), t.TempDir()
	dirs := "log.dirs=" + dir + "," + second
	format(t, dir, dirs)
	first := properties(t, second)
	edit(t, second, `^directory\.id=.*\n?`, "")
	format(t, dir, dirs)
	if again := properties(t, second); again.DirectoryID == metadata.ZeroUUID || again.DirectoryID == first.DirectoryID || again.ClusterID != first.ClusterID {
		t.Errorf("a lost id made %+v of %+v", again, first)
	}
}

// M-004: When one of two directories is of another cluster or another node, the start is
// refused, and the message names the file and both values.
func TestM004_other_cluster_or_node(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	a, b := filepath.Join(parent, "a"), filepath.Join(parent, "b")
	dirs := []string{"log.dirs=" + a + "," + b}
	format(t, a, dirs...)
	cluster := properties(t, a).ClusterID
	refuses(t, parent, []string{dirs[0], "node.id=7"}, filepath.Join(a, "meta.properties"), "node.id=1", "7", "set node.id=1")
	refuses(t, parent, []string{dirs[0], "cluster.id=AAAAAAAAAAAAAAAAAAAAQQ"}, cluster, "AAAAAAAAAAAAAAAAAAAAQQ", "another cluster")
	edit(t, b, `^cluster\.id=.*$`, "cluster.id=AAAAAAAAAAAAAAAAAAAAQQ")
	refuses(t, parent, dirs, filepath.Join(a, "meta.properties"), filepath.Join(b, "meta.properties"), cluster, "AAAAAAAAAAAAAAAAAAAAQQ")
}

// A directory that is newer, of something else, unreadable, or in use is refused in one
// line, and stays as it is.
func TestDirectoriesThatAreRefused(t *testing.T) {
	t.Parallel()
	t.Run("newer", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		format(t, dir)
		edit(t, dir, `^version=.*$`, "version=2")
		refuses(t, dir, nil, dir, "version", "2")
	})
	t.Run("something else", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, nil, dir, "thesis.tex", "meta.properties", "name another directory")
	})
	t.Run("unreadable", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "meta.properties"), 0o700); err != nil {
			t.Fatal(err)
		}
		refuses(t, dir, nil, dir, "cannot be read")
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, file, nil, file, "not a directory")
	})
	t.Run("in use", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		n, err := startFor(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer n.stop()
		args := []string{"serve", "--data-dir", dir, "--set", "http.listen=", "--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
		var out, errs bytes.Buffer
		status := Execute(args, strings.NewReader(""), &out, &errs)
		check(t, result{status, out.String(), errs.String()}, 1, args, dir, "in use")
	})
	t.Run("http port in use", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		refuses(t, t.TempDir(), []string{"http.listen=" + l.Addr().String()}, "http.listen", l.Addr().String(), "in use")
	})
}
