package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/stelelog/stele"

// arrows is the law: what of ours each package may import directly. A package
// missing here may not exist; an import missing here may not be made. "*" allows
// every package that stands earlier in `order`.
var arrows = map[string][]string{
	"internal/vfs":         {},
	"internal/record":      {},
	"internal/wire":        {},
	"internal/config":      {},
	"internal/quota":       {},
	"internal/telemetry":   {},
	"internal/epoch":       {"internal/vfs"},
	"internal/metadata":    {"internal/config"},
	"internal/log":         {"internal/record", "internal/epoch", "internal/vfs"},
	"internal/tier":        {"internal/log", "internal/record", "internal/epoch", "internal/vfs"},
	"internal/security":    {"internal/metadata"},
	"internal/controller":  {"internal/metadata", "internal/config"},
	"internal/shard":       {},
	"internal/group":       {"internal/metadata", "internal/shard"},
	"internal/txn":         {"internal/metadata", "internal/shard"},
	"internal/quorum":      {"internal/controller", "internal/metadata", "internal/log", "internal/record", "internal/epoch", "internal/wire", "internal/vfs"},
	"internal/replica":     {"internal/log", "internal/tier", "internal/epoch", "internal/record", "internal/metadata"},
	"internal/coordinator": {"internal/shard", "internal/group", "internal/txn", "internal/replica", "internal/metadata", "internal/record"},
	"internal/broker":      {"*"},
	"internal/server":      {"*"},
	"internal/console":     {},
	"consumer":             {"internal/record"},
	"internal/cli":         {"*", "consumer"},
	"cmd/stele":            {"internal/cli"},
}

// order is the list of rooms from the cellar up; "*" in arrows means "anything
// above me in this list", which is anything written earlier.
var order = []string{
	"internal/vfs", "internal/record", "internal/wire", "internal/config", "internal/quota", "internal/telemetry",
	"internal/epoch", "internal/metadata", "internal/log", "internal/tier", "internal/security", "internal/controller",
	"internal/shard", "internal/group", "internal/txn", "internal/quorum", "internal/replica", "internal/coordinator", "internal/broker",
	"internal/server", "internal/console", "consumer", "internal/cli", "cmd/stele",
}

// networkless packages hold state machines, formats or files: they may not reach a
// network package, also not through a library.
var networkless = []string{
	"internal/controller", "internal/shard", "internal/group", "internal/txn", "internal/metadata", "internal/config", "internal/record", "internal/epoch", "internal/log", "internal/vfs",
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func listPackages(t *testing.T, patterns ...string) []goPackage {
	t.Helper()
	// With the tags that add to packages: what they link counts too.
	command := exec.Command("go", append([]string{"list", "-tags=mutants,failpoints", "-deps=false", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	command.Dir = root(t)
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list output: %v", err)
		}
		packages = append(packages, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// room gives the house's name of a package of ours ("internal/log" also for its
// subpackages), and false for packages outside the house (test, bench).
func room(importPath string) (string, bool) {
	path, ours := strings.CutPrefix(importPath, module+"/")
	if !ours {
		return "", false
	}
	for _, name := range order {
		if path == name || strings.HasPrefix(path, name+"/") {
			return name, true
		}
	}
	return path, !strings.HasPrefix(path, "test/") && !strings.HasPrefix(path, "bench")
}

func allowed(from, to string) bool {
	if from == to {
		return true
	}
	law := arrows[from]
	if slices.Contains(law, to) {
		return true
	}
	return slices.Contains(law, "*") && slices.Index(order, to) >= 0 && slices.Index(order, to) < slices.Index(order, from)
}

// reach is everything that the law lets a room arrive at, following arrows to the end.
func reach(from string) map[string]bool {
	seen := map[string]bool{from: true}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, to := range order {
			if !seen[to] && allowed(queue[0], to) {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	return seen
}

// Every import between packages of ours follows an arrow of the house, directly
// and to the end of the chain.
func TestImportsFollowTheArrows(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./...") {
		from, ours := room(p.ImportPath)
		if !ours {
			continue
		}
		if _, known := arrows[from]; !known {
			t.Errorf("%s: this room is not in the house; if it must exist, add it to `arrows` and `order` with what it may import", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if to, ours := room(imported); ours && !allowed(from, to) {
				t.Errorf("%s imports %s: %s may import only %v; if two rooms need each other, put the third idea below both", p.ImportPath, imported, from, arrows[from])
			}
		}
		reachable := reach(from)
		for _, dep := range p.Deps {
			if to, ours := room(dep); ours && !reachable[to] {
				t.Errorf("%s reaches %s, which no chain of arrows allows", p.ImportPath, dep)
			}
			if strings.HasPrefix(dep, module+"/test/") || strings.HasPrefix(dep, module+"/bench") {
				t.Errorf("%s reaches %s: nothing imports tests or benchmarks", p.ImportPath, dep)
			}
		}
	}
}

// The state machines and formats link no network package, also transitively: that
// is what lets the simulator run them on one thread.
func TestPureRoomsLinkNoNetwork(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "./internal/...") {
		from, _ := room(p.ImportPath)
		if !slices.Contains(networkless, from) {
			continue
		}
		for _, dep := range p.Deps {
			if dep == "net" || strings.HasPrefix(dep, "net/http") {
				t.Errorf("%s links %s: keep IO at the edges (find the chain with: go list -deps %s)", p.ImportPath, dep, p.ImportPath)
			}
		}
	}
}
