//go:build interop

package interop

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// steleCLI is `stele produce` and `stele consume`: one more client, judged as the others are.
type steleCLI struct{ addr string }

// What stands between key and value in its input, and what is read as null.
const (
	steleSeparator = "<|>"
	steleNull      = "<|null|>"
)

func (c steleCLI) name() string { return "stele" }

func (c steleCLI) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, append(args, "--bootstrap-server", c.addr)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// produce runs one process for every run of records that agree in partition and headers.
func (c steleCLI) produce(ctx context.Context, b batch) error {
	if b.transactionalID != "" {
		return errCannot
	}
	text := func(b []byte) string {
		if b == nil {
			return steleNull
		}
		return string(b)
	}
	for rest := b.records; len(rest) > 0; {
		first := rest[0]
		shape := func(r record) string { return fmt.Sprint(r.Partition, r.Headers) }
		n := slices.IndexFunc(rest, func(r record) bool { return shape(r) != shape(first) })
		if n < 0 {
			n = len(rest)
		}
		args := []string{"produce", b.topic, "--compression", b.codec, "--partition", strconv.Itoa(int(first.Partition)),
			"--key-separator", steleSeparator, "--null", steleNull}
		if b.maxBytes > 0 {
			args = append(args, "--max-line-bytes", strconv.Itoa(b.maxBytes))
		}
		for _, h := range first.Headers {
			if h.Value == nil {
				return errCannot
			}
			args = append(args, "--header", h.Name+"="+string(h.Value))
		}
		var in bytes.Buffer
		for _, r := range rest[:n] {
			if r.Timestamp != 0 || bytes.ContainsAny(append(r.Key[:len(r.Key):len(r.Key)], r.Value...), "\r\n") {
				return errCannot
			}
			in.WriteString(text(r.Key) + steleSeparator + text(r.Value) + "\n")
		}
		cmd, err := c.command(ctx, args...)
		if err != nil {
			return err
		}
		cmd.Stdin = &in
		if _, err := run(cmd); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// steleField is bytes in its JSON: text, or base64 in a field of its own, or null.
func steleField(text *string, encoded string) ([]byte, error) {
	switch {
	case text != nil:
		return []byte(*text), nil
	case encoded != "":
		return base64.StdEncoding.DecodeString(encoded)
	}
	return nil, nil
}

func parseStele(line []byte) (record, error) {
	var j struct {
		Partition   int32
		Offset      int64
		Timestamp   int64
		Key         *string
		KeyBase64   string
		Value       *string
		ValueBase64 string
		Headers     []struct {
			Key         string
			Value       *string
			ValueBase64 string
		}
	}
	if err := json.Unmarshal(line, &j); err != nil {
		return record{}, fmt.Errorf("stele consume printed %q: %w", line, err)
	}
	r := record{Partition: j.Partition, Offset: j.Offset, Timestamp: j.Timestamp}
	var err error
	if r.Key, err = steleField(j.Key, j.KeyBase64); err != nil {
		return r, err
	}
	if r.Value, err = steleField(j.Value, j.ValueBase64); err != nil {
		return r, err
	}
	for _, h := range j.Headers {
		value, err := steleField(h.Value, h.ValueBase64)
		if err != nil {
			return r, err
		}
		r.Headers = append(r.Headers, header{h.Key, value})
	}
	return r, nil
}

func (c steleCLI) read(ctx context.Context, args ...string) ([]record, error) {
	cmd, err := c.command(ctx, append([]string{"consume", "--output", "json"}, args...)...)
	if err != nil {
		return nil, err
	}
	out, err := run(cmd)
	if err != nil {
		return nil, err
	}
	var records []record
	for line := range bytes.Lines(out) {
		r, err := parseStele(line)
		if err != nil {
			return records, err
		}
		records = append(records, r)
	}
	return records, nil
}

func (c steleCLI) consume(ctx context.Context, q query) ([]record, error) {
	isolation := "read_uncommitted"
	if q.committed {
		isolation = "read_committed"
	}
	return c.read(ctx, q.topic, "--from", "earliest", "--stop-at-end", "--isolation", isolation)
}

func (c steleCLI) group(ctx context.Context, topic, group string, count int) ([]record, error) {
	return c.read(ctx, topic, "--group", group, "--count", strconv.Itoa(count))
}

func (c steleCLI) join(_ context.Context, topic, group, protocol string) (member, error) {
	if protocol != "classic" {
		return nil, errCannot
	}
	cmd, err := c.command(context.Background(), "consume", "--output", "json", topic, "--group", group)
	if err != nil {
		return nil, err
	}
	return startProcessMember(cmd, "\n", parseStele)
}

// say runs a command and reads its JSON into the answer.
func (c steleCLI) say(ctx context.Context, answer any, args ...string) error {
	cmd, err := c.command(ctx, append(args, "--output", "json")...)
	if err != nil {
		return err
	}
	out, err := run(cmd)
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(out, answer)
}

func (c steleCLI) admin(ctx context.Context, r adminRequest) (a adminAnswer, err error) {
	var settings []string
	for k, v := range r.Configs {
		settings = append(settings, k+"="+v)
	}
	switch r.Do {
	case "create-topic":
		args := []string{"topic", "create", r.Topic, "--partitions", strconv.Itoa(int(r.Partitions))}
		for _, s := range settings {
			args = append(args, "--config", s)
		}
		err = c.say(ctx, nil, args...)
	case "list-topics":
		var list []struct{ Topic string }
		err = c.say(ctx, &list, "topic", "list")
		for _, t := range list {
			a.Names = append(a.Names, t.Topic)
		}
	case "describe-topic", "list-offsets":
		var list []struct {
			Partitions []struct {
				Partition     int32
				HighWatermark int64
			}
		}
		err = c.say(ctx, &list, "topic", "describe", r.Topic)
		for _, t := range list {
			a.Partitions = int32(len(t.Partitions))
			for _, p := range t.Partitions {
				if p.Partition == r.Partition {
					a.Offset = p.HighWatermark
				}
			}
		}
	case "create-partitions":
		err = c.say(ctx, nil, "topic", "alter", r.Topic, "--partitions", strconv.Itoa(int(r.Partitions)))
	case "describe-configs":
		var list []struct{ Name, Value string }
		err = c.say(ctx, &list, "config", "get", "--topic", r.Topic, "--all")
		a.Configs = map[string]string{}
		for _, s := range list {
			a.Configs[s.Name] = s.Value
		}
	case "incremental-configs":
		err = c.say(ctx, nil, append([]string{"config", "set", "--topic", r.Topic}, settings...)...)
	case "list-groups":
		var list []struct{ Group string }
		err = c.say(ctx, &list, "group", "list")
		for _, g := range list {
			a.Names = append(a.Names, g.Group)
		}
	case "describe-group", "group-offset":
		var list []struct {
			State   string
			Offsets []struct {
				Topic           string
				Partition       int32
				CommittedOffset int64
			}
		}
		err = c.say(ctx, &list, "group", "describe", r.Group)
		for _, g := range list {
			a.State = g.State
			for _, o := range g.Offsets {
				if o.Topic == r.Topic && o.Partition == r.Partition {
					a.Offset = o.CommittedOffset
				}
			}
		}
	case "set-group-offset":
		err = c.say(ctx, nil, "group", "reset-offsets", r.Group, "--topic", r.Topic, "--to", strconv.FormatInt(r.Offset, 10), "--execute")
	case "delete-group":
		err = c.say(ctx, nil, "group", "delete", r.Group)
	case "delete-topic":
		err = c.say(ctx, nil, "topic", "delete", r.Topic)
	default: // alter-configs, delete-records, delete-group-offset
		err = errCannot
	}
	return a, err
}

// lines is standard input of n numbered lines.
func lines(by string, n int) (text string, values []string) {
	var s strings.Builder
	values = make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("%s %06d of the many records", by, i)
		s.WriteString(values[i] + "\n")
	}
	return s.String(), values
}
