// Command goclients is a Kafka client that is written in Go and is none of ours, behind a line protocol: one JSON
// request a line on standard input, one JSON answer a line on standard output. The requests are those of
// test/interop/driver_test.go; bytes are base64, null is null.
//
//	goclients sarama VERSION     with Config.Version set to VERSION, or to the newest that it knows for "newest"
//	goclients kafka-go
//
// It is a module of its own, so that Stele's go.mod names nothing that only this needs.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

type record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"` // milliseconds; 0 when producing lets the client choose
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type request struct {
	Op              string            `json:"op"`
	Bootstrap       string            `json:"bootstrap"`
	Topic           string            `json:"topic"`
	Codec           string            `json:"codec"`
	Records         []record          `json:"records"`
	Transaction     string            `json:"transaction"`
	TransactionalID string            `json:"transactional_id"`
	Group           string            `json:"group"`
	Count           int               `json:"count"`
	Member          string            `json:"member"`
	Config          map[string]string `json:"config"`
	Idempotent      bool              `json:"idempotent"`
	MaxBytes        int               `json:"max_bytes"`
	Admin           adminRequest      `json:"admin"`
}

type adminRequest struct {
	Do         string            `json:"do"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Partitions int32             `json:"partitions"`
	Partition  int32             `json:"partition"`
	Offset     int64             `json:"offset"`
	Configs    map[string]string `json:"configs"`
}

type adminAnswer struct {
	Names      []string          `json:"names,omitempty"`
	Partitions int32             `json:"partitions,omitempty"`
	Configs    map[string]string `json:"configs,omitempty"`
	State      string            `json:"state,omitempty"`
	Offset     int64             `json:"offset,omitempty"`
}

type answer struct {
	Error   string      `json:"error,omitempty"`
	Cannot  bool        `json:"cannot,omitempty"`
	Records []record    `json:"records,omitempty"`
	Admin   adminAnswer `json:"admin"`
}

var errCannot = errors.New("the client has no way to do this")

// limit is how long a call goes on.
const limit = 30 * time.Second

// foreign is what a client is asked for.
type foreign interface {
	produce(r request) error             // sends the records in their order
	consume(r request) ([]record, error) // every partition from its beginning to its end
	group(r request) ([]record, error)   // joins, reads exactly Count records, commits, leaves
	join(r request) (*member, error)     // starts a member that consumes and commits
	admin(r request) (adminAnswer, error)
}

// member is a member of a group that consumes and commits until leave is called.
type member struct {
	mu    sync.Mutex
	seen  []record
	err   error
	stop  func() // ends run
	ended chan struct{}
}

// startMember has run consume, and commit, until stop is called.
func startMember(stop func(), run func(m *member) error) *member {
	m := &member{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		if err := run(m); err != nil {
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
		}
	}()
	return m
}

func (m *member) add(r record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = append(m.seen, r)
}

func (m *member) records() ([]record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]record(nil), m.seen...), m.err
}

func (m *member) leave() ([]record, error) {
	m.stop()
	select {
	case <-m.ended:
	case <-time.After(limit):
		return nil, errors.New("the member did not leave in time")
	}
	return m.records()
}

func main() {
	client, err := newClient(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "goclients:", err)
		os.Exit(2)
	}
	members := map[string]*member{}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var r request
		var a answer
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err == nil {
			a, err = handle(client, members, r)
		}
		if err != nil {
			a.Error, a.Cannot = err.Error(), errors.Is(err, errCannot)
		}
		text, err := json.Marshal(a)
		if err != nil {
			fmt.Fprintln(os.Stderr, "goclients:", err)
			os.Exit(1)
		}
		_, _ = out.Write(append(text, '\n'))
		if out.Flush() != nil {
			return
		}
	}
}

func newClient(args []string) (foreign, error) {
	switch {
	case len(args) == 2 && args[0] == "sarama":
		return newSarama(args[1])
	case len(args) == 1 && args[0] == "kafka-go":
		return segmentio{}, nil
	}
	return nil, fmt.Errorf("usage: goclients sarama VERSION | kafka-go")
}

func handle(client foreign, members map[string]*member, r request) (a answer, err error) {
	switch r.Op {
	case "produce":
		err = client.produce(r)
	case "consume":
		a.Records, err = client.consume(r)
	case "group":
		a.Records, err = client.group(r)
	case "admin":
		a.Admin, err = client.admin(r)
	case "join":
		var m *member
		if m, err = client.join(r); err == nil {
			members[r.Member] = m
		}
	case "records":
		a.Records, err = members[r.Member].records()
	case "leave":
		a.Records, err = members[r.Member].leave()
		delete(members, r.Member)
	default:
		err = fmt.Errorf("unknown op %q", r.Op)
	}
	return a, err
}
