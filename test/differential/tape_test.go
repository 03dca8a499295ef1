//go:build interop

package differential

import (
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// tape holds what Apache Kafka answered in an earlier run, so that the requests of the same seed can be judged again
// without it: STELE_DIFFERENTIAL_RECORD=file writes one, STELE_DIFFERENTIAL_REPLAY=file reads it.
type tape struct {
	mu       sync.Mutex
	replayed bool
	started  time.Time
	said     map[string][]said
	next     map[string]int
	missed   int
}

// said is what became of one request.
type said struct {
	Fate  fate
	Frame []byte
}

func newTape() *tape { return &tape{said: map[string][]said{}, next: map[string]int{}} }

func loadTape(path string) (*tape, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := newTape()
	t.replayed = true
	in := gob.NewDecoder(f)
	return t, errors.Join(in.Decode(&t.started), in.Decode(&t.said))
}

func (t *tape) save(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := gob.NewEncoder(f)
	return errors.Join(out.Encode(t.started), out.Encode(t.said), f.Close())
}

// label names a request by its lane, connection and bytes.
func label(lane, connection string, b []byte) string {
	sum := sha256.Sum256(b)
	return lane + " " + connection + " " + hex.EncodeToString(sum[:10])
}

// tell keeps an outcome.
func (t *tape) tell(name string, step int, o outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range []string{name, fmt.Sprint(name, " ", step)} {
		t.said[name] = append(t.said[name], said{o.fate, o.frame})
	}
}

// told is what was said to the same request at the same step, or else the same number of times before; the last saying
// is repeated.
func (t *tape) told(name string, step int, key, version int16) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	if here := fmt.Sprint(name, " ", step); len(t.said[here]) > 0 {
		name = here
	}
	all := t.said[name]
	if len(all) == 0 {
		t.missed++
		return outcome{fate: untold}
	}
	i := min(t.next[name], len(all)-1)
	t.next[name]++
	if all[i].Frame == nil {
		return outcome{fate: all[i].Fate}
	}
	o := decode(all[i].Frame, key, version)
	if o.fate == answered {
		o.fate = all[i].Fate
	}
	return o
}

// untold is what becomes of a request that a tape does not hold.
const untold fate = "not on the tape"
