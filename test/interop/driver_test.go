//go:build interop

package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/stelelog/stele/test/reference"
)

// driver is a client in a process of its own, asked by JSON lines: java/Driver.java, python/driver.py and the others
// speak the same protocol. One request is under way at a time.
type driver struct {
	label string
	addr  string
	// protocols holds the group protocols that the client knows.
	protocols map[string]bool

	mu      sync.Mutex
	command []string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	members int
}

type request struct {
	Op              string            `json:"op"`
	Bootstrap       string            `json:"bootstrap"`
	Topic           string            `json:"topic,omitempty"`
	Codec           string            `json:"codec,omitempty"`
	Records         []record          `json:"records,omitempty"`
	Transaction     string            `json:"transaction,omitempty"` // commit or abort
	TransactionalID string            `json:"transactional_id,omitempty"`
	Group           string            `json:"group,omitempty"`
	Count           int               `json:"count,omitempty"`
	Member          string            `json:"member,omitempty"`
	Config          map[string]string `json:"config,omitempty"` // in the client's own names
	Idempotent      bool              `json:"idempotent,omitempty"`
	MaxBytes        int               `json:"max_bytes,omitempty"` // for records and batches; 0 for the client's own limit
	Admin           *adminRequest     `json:"admin,omitempty"`     // of the op admin
}

type answer struct {
	Error   string      `json:"error"`
	Cannot  bool        `json:"cannot"` // the error is that the client has no way to do this
	Records []record    `json:"records"`
	Admin   adminAnswer `json:"admin"`
}

// drivers starts each client that is behind a driver. A file adds its own.
var drivers = []func(addr string) (*driver, error){newJava, newPython}

// javaClasses compiles java/Driver.java once and returns a class path with it and Kafka.
var javaClasses = sync.OnceValues(func() (string, error) {
	cp, err := reference.ClassPath(context.Background())
	if err != nil {
		return "", err
	}
	dir := filepath.Join(scratch, "classes")
	if out, err := exec.Command("javac", "-cp", cp, "-d", dir, "java/Driver.java").CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w\n%s", err, out)
	}
	return cp + ":" + dir, nil
})

func newJava(addr string) (*driver, error) {
	cp, err := javaClasses()
	if err != nil {
		return nil, err
	}
	script, err := reference.Script()
	if err != nil {
		return nil, err
	}
	d := &driver{label: "java", addr: addr, protocols: map[string]bool{"classic": true, "consumer": true}}
	return d, d.start(script, "java", "-cp", cp, "Driver")
}

func newPython(addr string) (*driver, error) {
	d := &driver{label: "confluent-kafka", addr: addr, protocols: map[string]bool{"classic": true}}
	// Debian's interpreter, which has Debian's confluent-kafka.
	return d, d.start("/usr/bin/python3", "-B", "python/driver.py")
}

// start says what the driver is; the first request runs it.
func (d *driver) start(command ...string) error {
	d.command = command
	return nil
}

// run starts the process unless it runs. It is called with mu held.
func (d *driver) run() error {
	if d.cmd != nil {
		return nil
	}
	cmd := exec.Command(d.command[0], d.command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = clientLog(d.label)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd, d.in, d.out = cmd, in, bufio.NewReaderSize(out, 1<<20)
	return nil
}

func (d *driver) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
}

// kill ends the process; the next request runs a new one. It is called with mu held.
func (d *driver) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.in.Close()
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	d.cmd = nil
}

// call asks and waits for the answer. A driver that does not answer in time is replaced by a new one.
func (d *driver) call(ctx context.Context, r request) ([]record, error) {
	a, err := d.ask(ctx, r)
	return a.Records, err
}

func (d *driver) ask(ctx context.Context, r request) (answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Bootstrap = d.addr
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	if err := d.run(); err != nil {
		return answer{}, fmt.Errorf("%s driver: %w", d.label, err)
	}
	process := d.cmd.Process
	stop := context.AfterFunc(ctx, func() { _ = process.Kill() })
	_, err = d.in.Write(append(line, '\n'))
	var text []byte
	if err == nil {
		text, err = d.out.ReadBytes('\n')
	}
	if !stop() || err != nil {
		d.kill()
		return answer{}, errors.Join(fmt.Errorf("%s driver ended: %w", d.label, err), ctx.Err())
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, fmt.Errorf("%s driver said %q: %w", d.label, text, err)
	}
	switch {
	case a.Cannot:
		return a, errCannot
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (d *driver) name() string { return d.label }

func (d *driver) produce(ctx context.Context, b batch) error {
	r := request{Op: "produce", Topic: b.topic, Codec: b.codec, Records: b.records,
		Idempotent: b.idempotent, MaxBytes: b.maxBytes}
	if b.transactionalID != "" {
		r.TransactionalID, r.Transaction = b.transactionalID, "commit"
		if b.abort {
			r.Transaction = "abort"
		}
	}
	_, err := d.call(ctx, r)
	return err
}

func (d *driver) consume(ctx context.Context, q query) ([]record, error) {
	r := request{Op: "consume", Topic: q.topic, Count: q.count, MaxBytes: q.maxBytes, Config: map[string]string{"isolation.level": "read_uncommitted"}}
	if q.committed {
		r.Config["isolation.level"] = "read_committed"
	}
	return d.call(ctx, r)
}

func (d *driver) admin(ctx context.Context, r adminRequest) (adminAnswer, error) {
	a, err := d.ask(ctx, request{Op: "admin", Admin: &r})
	return a.Admin, err
}

func (d *driver) group(ctx context.Context, topic, group string, count int) ([]record, error) {
	return d.call(ctx, request{Op: "group", Topic: topic, Group: group, Count: count})
}

func (d *driver) join(ctx context.Context, topic, group, protocol string) (member, error) {
	if !d.protocols[protocol] {
		return nil, errCannot
	}
	d.mu.Lock()
	d.members++
	m := driverMember{d, fmt.Sprintf("m%d", d.members)}
	d.mu.Unlock()
	r := request{Op: "join", Topic: topic, Group: group, Member: m.id}
	if len(d.protocols) > 1 {
		r.Config = map[string]string{"group.protocol": protocol}
	}
	_, err := d.call(ctx, r)
	return m, err
}

type driverMember struct {
	d  *driver
	id string
}

func (m driverMember) records() ([]record, error) {
	return m.d.call(context.Background(), request{Op: "records", Member: m.id})
}

func (m driverMember) leave() ([]record, error) {
	return m.d.call(context.Background(), request{Op: "leave", Member: m.id})
}
