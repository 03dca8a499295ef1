package house

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rule is one habit of the house: a pattern that must not appear in some files,
// and what to write instead.
type rule struct {
	name    string
	pattern *regexp.Regexp
	in      func(path string) bool
	instead string
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

func under(path string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return strings.HasPrefix(path, room+"/") })
}

// pure says that a file belongs to a state machine or a format: what it does follows from its arguments alone.
func pure(path string) bool {
	return !isTest(path) && under(path, "internal/controller", "internal/group", "internal/txn", "internal/metadata", "internal/record", "internal/epoch")
}

var rules = []rule{
	{
		name:    "clock in a pure room",
		pattern: regexp.MustCompile(`\btime\.(Now|Since|Until|After|AfterFunc|NewTimer|NewTicker|Tick)\b`),
		in:      pure,
		instead: "take `now time.Time` as an argument; deadlines are data (NextDeadline, Tick)",
	},
	{
		name:    "goroutine in a pure room",
		pattern: regexp.MustCompile(`^\s*go (func\b|[a-zA-Z_.]+\()|\.Go\(`),
		in:      pure,
		instead: "return effects and let the runtime around the state machine do the IO",
	},
	{
		name:    "chance in a pure room",
		pattern: regexp.MustCompile(`(^|[^.\w])rand\.(Int|Uint|Float|Norm|Exp|Perm|Shuffle|N\b|Read|Text)\w*`),
		in:      pure,
		instead: "draw from the *rand.Rand in the options, so that a seed replays the run",
	},
	{
		name:    "operating system in a pure room",
		pattern: regexp.MustCompile(`^\s*(import )?(_ )?"(os|os/.*|syscall|golang.org/x/sys/.*)"`),
		in:      func(p string) bool { return pure(p) && filepath.Base(p) != "mutant_on.go" }, // reads which bug is planted
		instead: "take what is needed as an argument",
	},
	{
		name:    "file access past the seam",
		pattern: regexp.MustCompile(`\bos\.(Open|OpenFile|Create|Rename|Remove|RemoveAll|Mkdir|MkdirAll|ReadFile|WriteFile|ReadDir|Stat|Truncate)\(`),
		in: func(p string) bool {
			return !isTest(p) && under(p, "internal/log", "internal/epoch", "internal/quorum", "internal/replica", "internal/coordinator", "internal/broker", "internal/controller", "internal/metadata", "internal/group")
		},
		instead: "go through vfs.FS, so that faults and crashes can be tested",
	},
	{
		name:    "sleep",
		pattern: regexp.MustCompile(`\btime\.Sleep\(`),
		in:      func(p string) bool { return under(p, "internal", "consumer", "cmd") },
		instead: "wait for the event itself (channel, condition, testing/synctest); a sleep is a guess",
	},
	{
		name:    "left open",
		pattern: regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`),
		in:      func(p string) bool { return !under(p, "test/house") },
		instead: "finish it, or say in the docs what does not work yet",
	},
	{
		name:    "protocol error codes outside server",
		pattern: regexp.MustCompile(`"github.com/twmb/franz-go/pkg/kerr"`),
		in: func(p string) bool {
			return !isTest(p) && under(p, "internal") && !under(p, "internal/server", "internal/cli", "internal/broker", "internal/console")
		},
		instead: "return a typed error; server's errors.go is the one table (broker reads codes that a controller sent)",
	},
	{
		name:    "printing",
		pattern: regexp.MustCompile(`\bfmt\.(Print|Println|Printf)\(`),
		in:      func(p string) bool { return !isTest(p) && under(p, "internal") && !under(p, "internal/cli") },
		instead: "log with slog, or return a value; only cli writes to the terminal",
	},
	{
		name:    "a path of somebody's machine",
		pattern: regexp.MustCompile(`/home/[a-z]+/|/root/|/work/`),
		in:      func(p string) bool { return !under(p, "test/house") },
		instead: "use t.TempDir, a flag or an environment variable",
	},
}

// files lists the Go files that git tracks, relative to the root.
func files(t *testing.T) []string {
	t.Helper()
	var found []string
	top := root(t)
	err := filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == ".git" || name == "testdata" || name == "stele-data") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".go") {
			relative, err := filepath.Rel(top, path)
			if err != nil {
				return err
			}
			found = append(found, filepath.ToSlash(relative))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// exempt marks a line whose breach of a rule has a reason written beside it.
const exempt = "house:allow "

// No file breaks a rule of the house; the message says what to write instead.
func TestHouseRules(t *testing.T) {
	t.Parallel()
	for _, path := range files(t) {
		file, err := os.Open(filepath.Join(root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(make([]byte, 0, 1<<16), 1<<24)
		for line := 1; scanner.Scan(); line++ {
			text := scanner.Text()
			if strings.Contains(text, exempt) {
				continue
			}
			for _, rule := range rules {
				if rule.in(path) && rule.pattern.MatchString(text) {
					t.Errorf("%s:%d: %s: %s", path, line, rule.name, rule.instead)
				}
			}
		}
		if err := scanner.Err(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		file.Close()
	}
}

// A file has one subject: none outside tests grows past 900 lines, and no package
// is a drawer for odds and ends.
func TestFilesAndPackagesHaveOneSubject(t *testing.T) {
	t.Parallel()
	for _, path := range files(t) {
		content, err := os.ReadFile(filepath.Join(root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(content), "\n"); lines > 900 && !isTest(path) {
			t.Errorf("%s has %d lines: split it where the subject changes", path, lines)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, content, parser.PackageClauseOnly)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if name := parsed.Name.Name; slices.Contains([]string{"util", "utils", "helpers", "common", "misc"}, name) {
			t.Errorf("%s: package %s says nothing; name what lives there", path, name)
		}
	}
}

// Every numbered test opens with a sentence that restates its case, so that a
// reader needs no other document.
func TestNumberedTestsRestateTheirCase(t *testing.T) {
	t.Parallel()
	numbered := regexp.MustCompile(`^Test[AEMSGCTB][0-9]+_`)
	for _, path := range files(t) {
		if !isTest(path) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), path), nil, parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, declaration := range parsed.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || !numbered.MatchString(function.Name.Name) {
				continue
			}
			if function.Doc == nil && !opensWithComment(parsed, function) {
				t.Errorf("%s: %s needs a first sentence that restates its case", path, function.Name.Name)
			}
		}
	}
}

func opensWithComment(file *ast.File, function *ast.FuncDecl) bool {
	if function.Body == nil {
		return false
	}
	first := function.Body.Rbrace
	if len(function.Body.List) > 0 {
		first = function.Body.List[0].Pos()
	}
	return slices.ContainsFunc(file.Comments, func(group *ast.CommentGroup) bool {
		return group.Pos() > function.Body.Lbrace && group.Pos() < first
	})
}

// Every package says in its doc comment what lives there.
func TestPackagesHaveADocComment(t *testing.T) {
	t.Parallel()
	command := exec.Command("go", "list", "-f", "{{.ImportPath}}\t{{.Doc}}", "./...")
	command.Dir = root(t)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(output)) {
		if path, doc, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t"); doc == "" {
			t.Errorf("%s has no package comment", path)
		}
	}
}
