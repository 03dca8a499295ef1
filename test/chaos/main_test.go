//go:build chaos

package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

var (
	scratch string // of this run; kept when a test fails
	stele   string // the binary, with failpoints
	seed    uint64
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(crowdEnv); addr != "" {
		os.Exit(beCrowd(addr))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "chaos: these tests mount file systems and need root")
		return 1
	}
	seed = uint64(time.Now().UnixNano()) % 1_000_000
	if v := os.Getenv("CHAOS_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos: CHAOS_SEED:", err)
			return 1
		}
		seed = n
	}
	var err error
	if scratch, err = os.MkdirTemp("", "stele-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	stele = filepath.Join(scratch, "stele")
	build := exec.Command("go", "build", "-tags", "failpoints", "-o", stele, "./cmd/stele")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: go build: %v\n%s", err, out)
		return 1
	}
	fmt.Println("chaos: seed", seed)
	code := m.Run()
	if code == 0 {
		os.RemoveAll(scratch)
		return 0
	}
	fmt.Printf("chaos: data directories, logs and histories are in %s\nchaos: this repeats it: CHAOS_SEED=%d test/chaos/run.sh -run '%s'\n", scratch, seed, flag.Lookup("test.run").Value)
	return code
}

// source is the randomness of one test: the same for the same seed, whatever other tests run.
func source(t *testing.T) *rand.Rand {
	var h uint64
	for _, c := range t.Name() {
		h = h*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(seed, h))
}

// folder is a directory of this test inside scratch; it goes when the test has passed.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp(scratch, filepath.Base(t.Name())+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})
	return dir
}
