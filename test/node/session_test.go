package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// session is an incremental fetch session on one connection.
type session struct {
	c       *client
	version int16
	id      int32
	epoch   int32
	first   *kmsg.FetchResponse
}

// session begins a session over positions.
func (c *client) session(version int16, positions ...position) *session {
	c.t.Helper()
	req := fetchRequest(positions...)
	req.SessionEpoch = 0
	resp := c.fetchAll(version, req)
	if resp.ErrorCode != 0 || resp.SessionID == 0 {
		c.t.Fatalf("no session: error %d, id %d", resp.ErrorCode, resp.SessionID)
	}
	return &session{c: c, version: version, id: resp.SessionID, epoch: 1, first: resp}
}

// request is the next fetch of the session; positions are added or changed.
func (s *session) request(wait time.Duration, positions ...position) *kmsg.FetchRequest {
	req := fetchRequest(positions...)
	req.SessionID, req.SessionEpoch, req.MaxWaitMillis = s.id, s.epoch, int32(wait.Milliseconds())
	s.epoch++
	return req
}

// next sends the next fetch, and fails on an error of the session.
func (s *session) next(wait time.Duration, positions ...position) *kmsg.FetchResponse {
	s.c.t.Helper()
	return s.send(s.request(wait, positions...))
}

func (s *session) send(req *kmsg.FetchRequest) *kmsg.FetchResponse {
	s.c.t.Helper()
	resp := s.c.fetchAll(s.version, req)
	if resp.ErrorCode != 0 {
		s.c.t.Fatalf("session %d, epoch %d: error %d", s.id, req.SessionEpoch, resp.ErrorCode)
	}
	return resp
}

func forget(req *kmsg.FetchRequest, tp topic, partitions ...int32) *kmsg.FetchRequest {
	forgotten := kmsg.NewFetchRequestForgottenTopic()
	forgotten.Topic, forgotten.TopicID, forgotten.Partitions = tp.name, tp.id, partitions
	req.ForgottenTopics = append(req.ForgottenTopics, forgotten)
	return req
}

// TestB042_idle_session: an incremental fetch of 50 idle partitions waits its time and lists none of them;
// after a produce to one, the answer comes at once with exactly that one.
func TestB042_idle_session(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(50)
	var positions []position
	for p := range 50 {
		where := at(tp, 0)
		where.partition = int32(p)
		positions = append(positions, where)
	}
	s := c.session(13, positions...)
	if got := len(s.first.Topics[0].Partitions); got != 50 {
		t.Errorf("the first answer lists %d partitions, want 50", got)
	}
	for range 3 {
		before := time.Now()
		resp := s.next(100 * time.Millisecond)
		if waited := time.Since(before); len(resp.Topics) != 0 || waited < 100*time.Millisecond || waited > 5*time.Second {
			t.Errorf("idle: %d topics after %v", len(resp.Topics), waited)
		}
	}
	req := s.request(30 * time.Second)
	correlation := c.send(13, req)
	n.dial(t).mustProduce(tp, 17, exampleA())
	before := time.Now()
	p := c.only(c.answer(13, req, correlation).(*kmsg.FetchResponse))
	if waited := time.Since(before); p.Partition != 17 || len(p.RecordBatches) != len(exampleA()) || waited > patience/2 {
		t.Errorf("partition %d with %d bytes after %v", p.Partition, len(p.RecordBatches), waited)
	}
}

// TestB156_forgotten_by_id: a partition forgotten by topic id is not served any more; added again it is
// served from its new offset; forgetting all ends the session.
func TestB156_forgotten_by_id(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	one, two := c.topic(2), c.topic(1)
	second := at(one, 0)
	second.partition = 1
	for _, version := range []int16{13, 12} { // by id, and by name
		s := c.session(version, at(one, 0), second, at(two, 0))
		resp := s.send(forget(s.request(0), one, 0))
		if len(resp.Topics) != 0 {
			t.Errorf("v%d: forgetting is answered with %+v", version, resp.Topics)
		}
		base := c.mustProduce(one, 0, exampleA())
		if resp := s.next(0); len(resp.Topics) != 0 {
			t.Errorf("v%d: a forgotten partition is served: %+v", version, resp.Topics)
		}
		p := c.only(s.next(0, at(one, base+1)))
		if p.Partition != 0 || len(p.RecordBatches) == 0 || batches(t, p.RecordBatches)[0].BaseOffset() != base {
			t.Errorf("v%d: added again at %d: %+v", version, base+1, p)
		}
		resp = s.send(forget(forget(s.request(0), one, 0, 1), two, 0))
		if len(resp.Topics) != 0 || resp.SessionID != 0 {
			t.Errorf("v%d: all forgotten: session %d, %+v", version, resp.SessionID, resp.Topics)
		}
		if resp := c.fetchAll(version, s.request(0)); resp.ErrorCode != 70 {
			t.Errorf("v%d: the session goes on after all was forgotten: error %d, want 70", version, resp.ErrorCode)
		}
	}
}

// TestFetch_session_errors: an unknown session is 70, a wrong epoch 71, names where ids were or the reverse
// 106, and an epoch that is wrong besides goes first; the answers list nothing.
func TestFetch_session_errors(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	s := c.session(13, at(tp, 0))
	for _, test := range []struct {
		name      string
		version   int16
		id, epoch int32
		want      int16
	}{
		{"unknown id", 13, s.id ^ 0x55, 1, 70},
		{"epoch too high", 13, s.id, 2, 71},
		{"epoch negative", 13, s.id, -2, 71},
		{"by name", 12, s.id, 1, 106},
		{"by name, epoch too high", 12, s.id, 9, 71},
		{"no session at all", 13, 0, 5, 70},
	} {
		req := fetchRequest(at(tp, 0))
		req.SessionID, req.SessionEpoch = test.id, test.epoch
		if resp := c.fetchAll(test.version, req); resp.ErrorCode != test.want || len(resp.Topics) != 0 {
			t.Errorf("%s: error %d with %d topics, want %d", test.name, resp.ErrorCode, len(resp.Topics), test.want)
		}
	}
	if resp := s.next(0); len(resp.Topics) != 0 {
		t.Errorf("the session was harmed: %+v", resp.Topics)
	}
	// A full fetch that names the session ends it.
	req := fetchRequest(at(tp, 0))
	req.SessionID, req.SessionEpoch = s.id, -1
	if resp := c.fetchAll(13, req); resp.ErrorCode != 0 || resp.SessionID != 0 || len(resp.Topics) != 1 {
		t.Errorf("closing: error %d, session %d", resp.ErrorCode, resp.SessionID)
	}
	if resp := c.fetchAll(13, s.request(0)); resp.ErrorCode != 70 {
		t.Errorf("a closed session goes on: error %d", resp.ErrorCode)
	}
}

// TestFetch_session_rotation: where the answer has no room for all, partitions that had none are first in
// the next one, so that each is served in its turn.
func TestFetch_session_rotation(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(4)
	var positions []position
	for p := range int32(4) {
		c.mustProduce(tp, p, sized(1000, stamp))
		c.mustProduce(tp, p, sized(1000, stamp))
		where := at(tp, 2) // at the end: nothing yet
		where.partition = p
		positions = append(positions, where)
	}
	s := c.session(13, positions...)
	for i := range positions {
		positions[i].offset = 0
	}
	served := map[int32]int{}
	changes := positions
	for range 8 {
		req := s.request(0, changes...)
		req.MaxBytes = 1000
		changes = nil
		for _, topic := range s.send(req).Topics {
			for _, p := range topic.Partitions {
				if len(p.RecordBatches) > 0 {
					served[p.Partition]++
				}
			}
		}
	}
	if fmt.Sprint(served) != "map[0:2 1:2 2:2 3:2]" {
		t.Errorf("in 8 answers with room for one batch partitions were served %v times, want twice each", served)
	}
}

// TestSession_deleted_topic: a session by topic id whose topic is deleted answers UNKNOWN_TOPIC_OR_PARTITION, and once a
// topic of the same name is there again INCONSISTENT_TOPIC_ID; a fetch that never knew the id answers UNKNOWN_TOPIC_ID.
func TestSession_deleted_topic(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	gone, stays := c.topic(1), c.topic(1)
	s := c.session(13, at(gone, 0), at(stays, 0))
	code := func(resp *kmsg.FetchResponse) (code int16) {
		t.Helper()
		for _, topic := range resp.Topics {
			if topic.TopicID == gone.id {
				return topic.Partitions[0].ErrorCode
			}
		}
		t.Fatalf("the topic is not in the answer: %+v", resp.Topics)
		return -1
	}
	c.deleteTopic(gone)
	if got := code(s.next(0)); got != 3 {
		t.Errorf("deleted: error %d, want 3", got)
	}
	if got := code(s.next(0, at(gone, 0))); got != 3 {
		t.Errorf("deleted, and asked for again: error %d, want 3", got)
	}
	outside := func() int16 { return code(c.fetchAll(13, fetchRequest(at(gone, 0)))) }
	for end := time.Now().Add(patience); outside() != 100; {
		if time.Now().After(end) {
			t.Fatalf("outside of the session: error %d, want 100", outside())
		}
		time.Sleep(time.Millisecond) // what the node knows of topics follows its partitions by a moment
	}
	c.createTopic(gone.name, 1)
	if got := code(s.next(0)); got != 103 {
		t.Errorf("made again: error %d, want 103", got)
	}
}
