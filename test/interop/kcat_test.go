//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kcat is the command line client over librdkafka.
type kcat struct{ addr string }

func (k kcat) name() string { return "kcat" }

func (k kcat) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", k.addr, "-m", "20"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", cmd.Args[0], err, errs.String())
	}
	return out.Bytes(), nil
}

// One kcat has one set of headers and one way to read nulls for all its records, so a batch is cut into runs
// of records that agree in those. A transaction is one kcat, and its records have to be one run.
func (k kcat) runs(b batch) [][]record {
	var out [][]record
	for _, r := range b.records {
		if n := len(out); n > 0 && k.shape(out[n-1][0]) == k.shape(r) {
			out[n-1] = append(out[n-1], r)
			continue
		}
		out = append(out, []record{r})
	}
	return out
}

func (k kcat) shape(r record) string {
	return fmt.Sprint(r.Partition, r.Key == nil, r.Value == nil, r.Headers)
}

// delimiters picks two bytes that no record of a run holds: kcat's input is cut at them.
func delimiters(records []record) (key, end byte) {
	used := [256]bool{}
	for _, r := range records {
		for _, b := range append(r.Key[:len(r.Key):len(r.Key)], r.Value...) {
			used[b] = true
		}
	}
	var free []byte
	for b := byte(1); b < 128 && len(free) < 2; b++ {
		if !used[b] {
			free = append(free, b)
		}
	}
	return free[0], free[1]
}

func (k kcat) produce(ctx context.Context, b batch) error {
	runs := k.runs(b)
	if b.transactionalID != "" && len(runs) != 1 {
		return errCannot
	}
	for _, records := range runs {
		first := records[0]
		if first.Timestamp != 0 {
			return errCannot
		}
		afterKey, end := delimiters(records)
		args := []string{"-P", "-t", b.topic, "-p", strconv.Itoa(int(first.Partition)), "-z", b.codec,
			"-D", fmt.Sprintf(`\x%02x`, end), "-X", "linger.ms=50"}
		if first.Key != nil {
			args = append(args, "-K", fmt.Sprintf(`\x%02x`, afterKey))
		}
		if first.Value == nil {
			args = append(args, "-Z")
		}
		for _, h := range first.Headers {
			if h.Value == nil {
				args = append(args, "-H", h.Name)
			} else {
				args = append(args, "-H", h.Name+"="+string(h.Value))
			}
		}
		if b.idempotent {
			args = append(args, "-X", "enable.idempotence=true")
		}
		if b.maxBytes > 0 {
			args = append(args, "-X", fmt.Sprintf("message.max.bytes=%d", b.maxBytes))
		}
		if b.transactionalID != "" {
			args = append(args, "-X", "transactional.id="+b.transactionalID)
		}
		var text bytes.Buffer
		for _, r := range records {
			if r.Key != nil {
				text.Write(r.Key)
				text.WriteByte(afterKey)
			}
			text.Write(r.Value)
			text.WriteByte(end)
		}
		cmd := k.command(ctx, args...)
		if b.abort {
			if err := k.interrupted(cmd, text.Bytes()); err != nil {
				return err
			}
			continue
		}
		cmd.Stdin = &text
		if _, err := run(cmd); err != nil {
			return err
		}
	}
	return nil
}

// interrupted runs a transactional kcat, whose transaction is aborted when it is interrupted while its
// standard input is still open.
func (k kcat) interrupted(cmd *exec.Cmd, text []byte) error {
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := in.Write(text); err != nil {
		return err
	}
	// Let it send: it has no way to say that it has.
	time.Sleep(time.Second)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	_ = in.Close()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// kcatRecord is a record as kcat -J prints it.
type kcatRecord struct {
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	TS        int64     `json:"ts"`
	Headers   []*string `json:"headers"` // names and values in turns
	Key       *string   `json:"key"`
	Payload   *string   `json:"payload"`
}

func parseKcat(line []byte) (record, error) {
	var k kcatRecord
	if err := json.Unmarshal(line, &k); err != nil {
		return record{}, fmt.Errorf("kcat printed %q: %w", line, err)
	}
	r := record{Partition: k.Partition, Offset: k.Offset, Timestamp: k.TS, Key: fromString(k.Key), Value: fromString(k.Payload)}
	for i := 0; i+1 < len(k.Headers); i += 2 {
		r.Headers = append(r.Headers, header{*k.Headers[i], fromString(k.Headers[i+1])})
	}
	return r, nil
}

func fromString(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

func parseKcatLines(out []byte) ([]record, error) {
	var records []record
	for line := range bytes.Lines(out) {
		r, err := parseKcat(line)
		if err != nil {
			return records, err
		}
		records = append(records, r)
	}
	return records, nil
}

func (k kcat) consume(ctx context.Context, q query) ([]record, error) {
	isolation := "isolation.level=read_uncommitted"
	if q.committed {
		isolation = "isolation.level=read_committed"
	}
	args := []string{"-C", "-t", q.topic, "-o", "beginning", "-e", "-q", "-X", isolation}
	if q.maxBytes > 0 {
		args = append(args, "-X", fmt.Sprintf("fetch.message.max.bytes=%d", q.maxBytes))
	}
	if !q.binary {
		out, err := run(k.command(ctx, append(args, "-J")...))
		if err != nil {
			return nil, err
		}
		return parseKcatLines(out)
	}
	// JSON holds text only; lengths hold anything.
	out, err := run(k.command(ctx, append(args, "-f", `%p %o %T %K %S\n%k%s`)...))
	if err != nil {
		return nil, err
	}
	var records []record
	in := bufio.NewReader(bytes.NewReader(out))
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF && line == "" {
			return records, nil
		}
		var r record
		var key, value int
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "%d %d %d %d %d", &r.Partition, &r.Offset, &r.Timestamp, &key, &value); err != nil {
			return records, fmt.Errorf("kcat printed %q: %w", line, err)
		}
		for _, field := range []struct {
			to *[]byte
			n  int
		}{{&r.Key, key}, {&r.Value, value}} {
			if field.n < 0 {
				continue
			}
			*field.to = make([]byte, field.n)
			if _, err := io.ReadFull(in, *field.to); err != nil {
				return records, err
			}
		}
		records = append(records, r)
	}
}

func (k kcat) groupArgs(group string) []string {
	return []string{"-G", group, "-J", "-q", "-u", "-X", "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=200",
		"-X", "session.timeout.ms=6000"}
}

func (k kcat) group(ctx context.Context, topic, group string, count int) ([]record, error) {
	out, err := run(k.command(ctx, append(k.groupArgs(group), "-c", strconv.Itoa(count), topic)...))
	if err != nil {
		return nil, err
	}
	return parseKcatLines(out)
}

func (k kcat) join(_ context.Context, topic, group, protocol string) (member, error) {
	if protocol != "classic" {
		return nil, errCannot
	}
	return startProcessMember(k.command(context.Background(), append(k.groupArgs(group), topic)...), "\n", parseKcat)
}

// processMember is a member that prints its records until it gets a TERM.
type processMember struct {
	cmd     *exec.Cmd
	done    chan struct{} // closed when its output has ended
	mu      sync.Mutex
	leaving bool
	seen    []record
	err     error
	errs    bytes.Buffer
}

func startProcessMember(cmd *exec.Cmd, end string, parse func([]byte) (record, error)) (*processMember, error) {
	m := &processMember{cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = &m.errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(m.done)
		in := bufio.NewScanner(out)
		in.Buffer(nil, 4<<20)
		in.Split(func(data []byte, _ bool) (int, []byte, error) {
			if i := bytes.Index(data, []byte(end)); i >= 0 {
				return i + len(end), data[:i], nil
			}
			return 0, nil, nil
		})
		for in.Scan() {
			r, err := parse(in.Bytes())
			m.mu.Lock()
			if err != nil {
				m.err = err
			} else {
				m.seen = append(m.seen, r)
			}
			m.mu.Unlock()
		}
	}()
	return m, nil
}

func (m *processMember) records() ([]record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.err
	select {
	case <-m.done:
		if !m.leaving {
			_ = m.cmd.Wait()
			err = errors.Join(err, fmt.Errorf("%s ended by itself: %s", m.cmd.Args[0], tail(m.errs.String(), 20)))
		}
	default:
	}
	return append([]record(nil), m.seen...), err
}

func (m *processMember) leave() ([]record, error) {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("%s had ended: %w", m.cmd.Args[0], err)
	}
	select {
	case <-m.done:
	case <-time.After(20 * time.Second):
		_ = m.cmd.Process.Kill()
		<-m.done
		return nil, fmt.Errorf("%s did not end within 20 s of TERM", m.cmd.Args[0])
	}
	_ = m.cmd.Wait() // its exit status is that of TERM
	return m.records()
}
