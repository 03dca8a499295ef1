//go:build interop

package interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stelelog/stele/test/reference"
)

// toolbox is one JVM that runs Apache Kafka's tools one after another: a tool takes a tenth of what it takes in a JVM of its
// own. It is for one goroutine.
type toolbox struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

var toolClasses = sync.OnceValues(func() (string, error) {
	cp, err := reference.ClassPath(context.Background())
	if err != nil {
		return "", err
	}
	return compileJava(cp, "java/Tools.java")
})

func newToolbox(t *testing.T) *toolbox {
	t.Helper()
	cp, err := toolClasses()
	if err != nil {
		t.Fatal(err)
	}
	script, err := reference.Script()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "java", "-cp", cp, "Tools")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = clientLog("tools-of-" + t.Name())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &toolbox{cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}
}

// run runs a tool, named as for kafka.sh, and returns what it printed. A status other than 0 is an error.
func (b *toolbox) run(tool string, args ...string) (string, error) {
	class := reference.ToolClass(tool)
	if _, err := io.WriteString(b.in, strings.Join(append([]string{class}, args...), "\x1f")+"\n"); err != nil {
		return "", err
	}
	var text strings.Builder
	for {
		line, err := b.out.ReadString('\n')
		if err != nil {
			return text.String(), fmt.Errorf("%s %v: %w", tool, args, err)
		}
		if status, ok := strings.CutPrefix(line, "\x1e"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(status)); err != nil || n != 0 {
				return text.String(), fmt.Errorf("%s %v: exit status %s\n%s", tool, args, strings.TrimSpace(status), text.String())
			}
			return text.String(), nil
		}
		text.WriteString(line)
	}
}
