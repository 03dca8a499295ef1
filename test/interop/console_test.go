//go:build interop

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// console is Apache Kafka's ConsoleProducer and ConsoleConsumer.
type console struct{ addr string }

// What stands between the parts of a printed record: nothing that a record of these tests holds.
const (
	consoleSeparator = "<|>"
	consoleEnd       = "<|end|>"
	consoleHeaders   = "~header~"
	consoleNull      = "<|null|>"
)

func (c console) name() string { return "kafka-console" }

func (c console) command(ctx context.Context, tool string, args ...string) (*exec.Cmd, error) {
	script, err := reference.Script()
	if err != nil {
		return nil, err
	}
	args = append([]string{"tool", tool, "--bootstrap-server", c.addr}, args...)
	cmd := exec.CommandContext(ctx, script, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func consoleText(b []byte) string {
	if b == nil {
		return consoleNull
	}
	return string(b)
}

// produce writes one line a record: headers, key, value. The tool has no way to choose a partition or a
// timestamp, so it is up to the topic that a record comes where it should.
func (c console) produce(ctx context.Context, b batch) error {
	args := []string{"--topic", b.topic, "--compression-codec", b.codec, "--timeout", "50",
		"--reader-property", "parse.headers=true", "--reader-property", "headers.delimiter=" + consoleSeparator,
		"--reader-property", "headers.separator=" + consoleHeaders,
		"--reader-property", "parse.key=true", "--reader-property", "key.separator=" + consoleSeparator,
		"--reader-property", "null.marker=" + consoleNull}
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	var out watched
	if b.transactionalID != "" {
		// It fails at once, but then waits in its close for what it never sent: not longer than a moment here.
		out.word, out.seen = "initTransactions", func() { time.AfterFunc(200*time.Millisecond, cancel) }
		args = append(args, "--command-property", "transactional.id="+b.transactionalID)
	}
	if b.maxBytes > 0 {
		args = append(args, "--command-property", fmt.Sprintf("max.request.size=%d", b.maxBytes))
	}
	var text strings.Builder
	for _, r := range b.records {
		if r.Timestamp != 0 {
			return errCannot
		}
		headers := consoleNull
		if len(r.Headers) > 0 {
			var list []string
			for _, h := range r.Headers {
				list = append(list, h.Name+":"+consoleText(h.Value))
			}
			headers = strings.Join(list, consoleHeaders)
		}
		text.WriteString(headers + consoleSeparator + consoleText(r.Key) + consoleSeparator + consoleText(r.Value) + "\n")
	}
	cmd, err := c.command(ctx, "ConsoleProducer", args...)
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(text.String())
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	// A record that could not be sent is an ERROR line and exit status 0.
	if err != nil || strings.Contains(out.String(), "ERROR") {
		return fmt.Errorf("ConsoleProducer: %v: %s", err, out.String())
	}
	return nil
}

// watched is output that is kept, and calls seen when it first holds a word.
type watched struct {
	text []byte
	word string
	seen func()
}

func (w *watched) String() string { return string(w.text) }

func (w *watched) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	if w.seen != nil && bytes.Contains(w.text, []byte(w.word)) {
		w.seen()
		w.seen = nil
	}
	return len(p), nil
}

func consoleFormat() []string {
	var args []string
	for _, p := range []string{"print.timestamp=true", "print.partition=true", "print.offset=true", "print.headers=true",
		"print.key=true", "key.separator=" + consoleSeparator, "line.separator=" + consoleEnd,
		"headers.separator=" + consoleHeaders, "null.literal=" + consoleNull} {
		args = append(args, "--formatter-property", p)
	}
	return args
}

func consoleBytes(s string) []byte {
	if s == consoleNull {
		return nil
	}
	return []byte(s)
}

// parseConsole reads CreateTime:T, Partition:P, Offset:O, headers, key, value.
func parseConsole(line []byte) (record, error) {
	text := strings.TrimSuffix(string(line), consoleEnd)
	fields := strings.SplitN(text, consoleSeparator, 6)
	var r record
	var numbers [3]int64
	for i, prefix := range []string{"CreateTime:", "Partition:", "Offset:"} {
		if i >= len(fields) {
			return r, fmt.Errorf("ConsoleConsumer printed %q", text)
		}
		n, err := strconv.ParseInt(strings.TrimPrefix(fields[i], prefix), 10, 64)
		if err != nil {
			return r, fmt.Errorf("ConsoleConsumer printed %q: %w", text, err)
		}
		numbers[i] = n
	}
	if len(fields) != 6 {
		return r, fmt.Errorf("ConsoleConsumer printed %q", text)
	}
	r.Timestamp, r.Partition, r.Offset = numbers[0], int32(numbers[1]), numbers[2]
	if fields[3] != "NO_HEADERS" {
		for h := range strings.SplitSeq(fields[3], consoleHeaders) {
			name, value, _ := strings.Cut(h, ":")
			r.Headers = append(r.Headers, header{name, consoleBytes(value)})
		}
	}
	r.Key, r.Value = consoleBytes(fields[4]), consoleBytes(fields[5])
	return r, nil
}

func (c console) read(ctx context.Context, args ...string) ([]record, error) {
	cmd, err := c.command(ctx, "ConsoleConsumer", append(args, consoleFormat()...)...)
	if err != nil {
		return nil, err
	}
	out, err := run(cmd)
	if err != nil {
		return nil, err
	}
	var records []record
	for line := range strings.SplitAfterSeq(string(out), consoleEnd) {
		if line == "" {
			continue
		}
		r, err := parseConsole([]byte(line))
		if err != nil {
			return records, err
		}
		records = append(records, r)
	}
	return records, nil
}

func (c console) consume(ctx context.Context, q query) ([]record, error) {
	isolation := "read_uncommitted"
	if q.committed {
		isolation = "read_committed"
	}
	return c.read(ctx, "--topic", q.topic, "--from-beginning", "--max-messages", strconv.Itoa(q.count),
		"--timeout-ms", "15000", "--isolation-level", isolation)
}

func (c console) group(ctx context.Context, topic, group string, count int) ([]record, error) {
	return c.read(ctx, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", strconv.Itoa(count),
		"--timeout-ms", "20000")
}

func (c console) join(_ context.Context, topic, group, protocol string) (member, error) {
	args := append([]string{"--topic", topic, "--group", group, "--from-beginning",
		"--command-property", "group.protocol=" + protocol}, consoleFormat()...)
	cmd, err := c.command(context.Background(), "ConsoleConsumer", args...)
	if err != nil {
		return nil, err
	}
	return startProcessMember(cmd, consoleEnd, parseConsole)
}
