package control

import (
	"bytes"
	"errors"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
)

// A request is one that a broker or an administrator makes of the active controller, and what is known of it besides what
// whoever made it hears.
type request struct {
	w *world
	// run is what the controller does.
	run func(c *controller.Controller, at controller.At) controller.Result
	// holds, when set, says what is wrong with carrying this out in a cluster like that.
	holds func(before *metadata.Image) error
	what  string

	// Where it was computed, if it was.
	ran     bool
	server  int32
	epoch   int32
	next    int64
	image   *metadata.Image
	records []metadata.Record
}

// answer is what whoever asked hears.
type answer struct {
	reply any
	err   error
}

// send brings a request to a controller; done hears the answer, or that there was none in time.
func (r *request) send(from, to int32, within time.Duration, done func(a answer, ok bool)) {
	s := r.w.servers[to]
	r.w.net.call(from, to, within, func(reply func(any)) {
		if !s.up || s.core == nil {
			reply(answer{err: quorum.ErrBrokerNotAvailable})
			return
		}
		r.give(s, reply)
	}, func(a any, ok bool) {
		if !ok {
			done(answer{}, false)
			return
		}
		done(a.(answer), true)
	})
}

func (r *request) give(s *server, reply func(any)) {
	since := r.w.check.image.Epoch()
	s.ask(&quorum.Request{
		Run: func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
			r.ran, r.server, r.epoch, r.next, r.image = true, s.id, s.core.Status().LeaderEpoch, next, c.Image()
			result := r.run(c, controller.At{Now: now, Next: next})
			r.records = result.Records
			r.w.check.computed(r)
			return result, nil
		},
		Done: func(value any, err error) {
			if r.ran && r.epoch < since && !errors.Is(err, quorum.ErrNotController) {
				r.w.fail("controller %d answers %s in epoch %d, which came when epoch %d had begun", s.id, r.what, r.epoch, since)
			}
			if err == nil && r.ran {
				r.w.check.answered(r)
			}
			reply(answer{value, err})
		},
	})
}

// computed holds a controller to it that it computes on what its log comes to, and not before it is known what that is.
func (k *checker) computed(r *request) {
	if r.image.Offset() != r.next-1 {
		k.w.fail("controller %d computes on an image that ends at %d what is to be at %d", r.server, r.image.Offset(), r.next)
	}
	k.claims = append(k.claims, claim{r.next, func() {
		if first, ok := k.first[r.epoch]; !ok || first >= r.next {
			k.w.fail("controller %d is active in epoch %d before its first entry there is committed", r.server, r.epoch)
		}
	}})
}

// committedAs says whether the records of a request are in the truth where they were made for.
func (k *checker) committedAs(r *request) bool {
	i, ok := k.find(r.next)
	if !ok || k.truth[i].raw.PartitionLeaderEpoch() != r.epoch || k.truth[i].raw.IsControl() {
		return false
	}
	level := r.image.MetadataVersion()
	for value := range values(k.truth[i].raw) {
		want, err := metadata.AppendRecord(nil, r.records[0], level.RecordVersion(r.records[0]))
		return err == nil && bytes.Equal(value, want)
	}
	return false
}

// answered holds a controller to what it has answered.
func (k *checker) answered(r *request) {
	k.claims = append(k.claims, claim{r.next + int64(len(r.records)), func() {
		before := k.imageAt(r.next)
		if before == nil || len(r.records) > 0 && !k.committedAs(r) {
			k.w.fail("controller %d has answered %s, whose records for offset %d in epoch %d are not committed", r.server, r.what, r.next, r.epoch)
			return
		}
		if k.looks++; k.looks%50 == 0 {
			k.sameImage("whoever computed "+r.what, r.image)
		}
		if r.holds != nil {
			if err := r.holds(before); err != nil {
				k.w.fail("controller %d has carried out %s at offset %d: %v", r.server, r.what, r.next, err)
			}
		}
	}})
}

// notExecuted says whether an answer means that nothing was done, and nothing will be.
func notExecuted(r *request, err error) bool {
	return !r.ran && (errors.Is(err, quorum.ErrNotController) || errors.Is(err, quorum.ErrBrokerNotAvailable))
}
