//go:build interop

package codec

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/stelelog/stele/test/reference"
)

// Kinds of what the judge reads and makes.
const (
	kindRequest  = 0
	kindResponse = 1
	kindClass    = 2
)

// question is put to Codec.java, whose comment says what it means.
type question struct {
	kind    byte
	key     int16
	class   string
	version int16
	bytes   []byte // to be read; nil: made from the seed
	seed    int64
	strange bool // with tagged fields that no schema has
}

func (q question) String() string {
	what := q.class
	switch q.kind {
	case kindRequest:
		what = fmt.Sprintf("request %d", q.key)
	case kindResponse:
		what = fmt.Sprintf("response %d", q.key)
	}
	if q.bytes == nil {
		return fmt.Sprintf("%s version %d, made by Kafka from seed %d", what, q.version, q.seed)
	}
	return fmt.Sprintf("%s version %d", what, q.version)
}

func (q question) appendTo(b []byte) []byte {
	op := byte(1)
	if q.bytes == nil {
		op = 2
	}
	b = append(b, op, q.kind)
	b = binary.BigEndian.AppendUint16(b, uint16(q.key))
	b = binary.BigEndian.AppendUint16(b, uint16(len(q.class)))
	b = append(b, q.class...)
	b = binary.BigEndian.AppendUint16(b, uint16(q.version))
	if op == 1 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(q.bytes)))
		return append(b, q.bytes...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(q.seed))
	if q.strange {
		return append(b, 1)
	}
	return append(b, 0)
}

// reading is what Kafka's classes made of bytes: written again, and as JSON.
type reading struct {
	bytes []byte
	json  struct{ Header, Body json.RawMessage }
}

// judge is one Java process with Kafka's classes. It is asked many questions at once, since a round trip each would
// take most of the time.
type judge struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startJudge starts one for a test.
func startJudge(t *testing.T) *judge {
	t.Helper()
	script, err := reference.Script()
	if err != nil {
		t.Fatal(err)
	}
	j := &judge{cmd: exec.Command(script, "java", "Codec.java")}
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	j.cmd.Stderr = os.Stderr
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	j.out = bufio.NewReaderSize(out, 1<<20)
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = j.in.Close()
		_ = j.cmd.Process.Kill()
		_ = j.cmd.Wait()
	})
	return j
}

// ask puts the questions and gives each answer to tell, in order; refusals come as an error.
func (j *judge) ask(qs []question, tell func(q question, r reading, refused error)) error {
	var writing sync.WaitGroup
	var writeErr error
	writing.Go(func() {
		var b []byte
		for _, q := range qs {
			if b = q.appendTo(b); len(b) > 1<<16 {
				if _, writeErr = j.in.Write(b); writeErr != nil {
					return
				}
				b = b[:0]
			}
		}
		_, writeErr = j.in.Write(b)
	})
	for _, q := range qs {
		ok, err := j.out.ReadByte()
		if err != nil {
			return fmt.Errorf("%v: the judge ended: %w", q, err)
		}
		first, err := j.read()
		if err != nil {
			return err
		}
		if ok == 0 {
			tell(q, reading{}, errors.New(string(first)))
			continue
		}
		text, err := j.read()
		if err != nil {
			return err
		}
		r := reading{bytes: first}
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r.json); err != nil {
			return fmt.Errorf("%v: %q: %w", q, text, err)
		}
		tell(q, r, nil)
	}
	writing.Wait()
	return writeErr
}

func (j *judge) read() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(j.out, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(j.out, b)
	return b, err
}
