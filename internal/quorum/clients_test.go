package quorum

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// M-033: of three controllers each that does not lead answers an observer's fetch with 6, or 74 under an older epoch, and
// names the leader either way; an epoch above is 75, another cluster 104, and a fetch that names none is served.
func TestM033_who_does_not_lead_names_the_leader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		leader, active := tc.leader()
		tc.agree()
		epoch := active.Status().LeaderEpoch
		for id, h := range tc.network.hosts {
			for _, c := range []struct {
				what  string
				epoch int32
				code  int16
			}{{"in its epoch", epoch, 6}, {"fresh", 0, 74}, {"an epoch above", epoch + 1, 75}} {
				if id == leader && c.code == 6 {
					c.code = 0
				}
				resp := h.Fetch(t.Context(), fetchRequest(18, c.epoch, 0, 0), "CONTROLLER")
				p := resp.Topics[0].Partitions[0]
				if p.ErrorCode != c.code || p.CurrentLeader.LeaderID != leader || p.CurrentLeader.LeaderEpoch != epoch || len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != leader {
					t.Errorf("controller %d, leader is %d, %s: error %d, leader %+v at %+v", id, leader, c.what, p.ErrorCode, p.CurrentLeader, resp.Brokers)
				}
			}
			other := fetchRequest(18, epoch, 0, 0)
			other.ClusterID = new("another")
			if resp := h.Fetch(t.Context(), other, "CONTROLLER"); resp.ErrorCode != 104 {
				t.Errorf("controller %d, another cluster: error %d", id, resp.ErrorCode)
			}
		}
	})
}

// createTopic asks one controller for a topic, once.
func createTopic(ctx context.Context, h *Host, name string) (id metadata.UUID, err error) {
	reply, err := h.Do(ctx, func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}}
		return c.CreateTopics(controller.At{Now: now, Next: next}, req), nil
	})
	if err != nil {
		return id, err
	}
	created := reply.(controller.CreateTopicsReply).Topics[0]
	if created.Err != nil {
		return id, created.Err
	}
	return created.TopicID, nil
}

// M-055: the active controller is killed, losing what it had not synced, in the middle of 1000 topic creations by many
// clients, twice. Each that was answered is there with the id it was told, one that failed may be; nobody is told anything
// but that this is not the controller any more; no topic is there twice, and one asked for again exists or is made.
func TestM055_controller_killed_amid_creations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		_, active := tc.leader()
		_, err := active.Do(t.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
			return controller.Result{Records: []metadata.Record{&metadata.RegisterBrokerRecord{BrokerID: 9, IncarnationID: metadata.UUID{1}, BrokerEpoch: next, LogDirs: []metadata.UUID{{9}}}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		type outcome struct {
			name string
			id   metadata.UUID
			err  error
		}
		const topics, clients = 1000, 20
		outcomes := make(chan outcome, topics)
		names := make(chan string)
		for range clients {
			go func() {
				for name := range names {
					_, h := tc.current()
					id, err := createTopic(t.Context(), h, name)
					outcomes <- outcome{name, id, err}
				}
			}()
		}
		for i := range topics {
			names <- fmt.Sprint("t", i)
			if i == topics/3 || i == 2*topics/3 {
				killed, _ := tc.current()
				tc.kill(killed)
				tc.leader(killed)
				tc.start(killed)
			}
		}
		close(names)
		answered, failed := map[string]metadata.UUID{}, []string{}
		for range topics {
			o := <-outcomes
			switch {
			case o.err == nil:
				answered[o.name] = o.id
			case errors.Is(o.err, ErrNotController), errors.Is(o.err, ErrClosed):
				failed = append(failed, o.name)
			default:
				t.Errorf("%s: answered %v", o.name, o.err)
			}
		}
		if len(failed) == 0 || len(answered) < topics/2 {
			t.Errorf("%d were answered, %d failed: the test shows too little", len(answered), len(failed))
		}
		tc.agree()
		_, active = tc.leader()
		made := 0
		for _, name := range failed {
			switch _, err := createTopic(t.Context(), active, name); {
			case errors.Is(err, controller.ErrTopicAlreadyExists):
				made++
			case err != nil:
				t.Errorf("%s, asked for again: %v", name, err)
			}
		}
		t.Logf("%d answered, %d failed, of which %d had been made", len(answered), len(failed), made)
		tc.agree()
		ids := map[metadata.UUID]string{}
		for name, topic := range active.Committed().Topics().All() {
			if other, twice := ids[topic.ID]; twice {
				t.Errorf("%s and %s have the same id", name, other)
			}
			ids[topic.ID] = name
		}
		if len(ids) != topics {
			t.Errorf("%d topics, want %d", len(ids), topics)
		}
		for name, id := range answered {
			if ids[id] != name {
				t.Errorf("%s was answered with id %s, which is that of %q", name, id, ids[id])
			}
		}
	})
}

// current is the host that leads, or any while none does: where a client goes that has just been told nothing else.
func (tc *testCluster) current() (id int32, h *Host) {
	tc.network.mu.Lock()
	defer tc.network.mu.Unlock()
	for i, one := range tc.network.hosts {
		if id, h = i, one; one.Status().Active {
			return id, h
		}
	}
	return id, h
}

// M-053 with three controllers: brokers get blocks of producer ids while the active controller is killed again and again, with
// what it had not synced; no id is in two blocks, each block is a thousand, and the numbers only rise.
func TestM053_producer_ids_over_failovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		_, active := tc.leader()
		epoch, err := active.Do(t.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
			return controller.Result{Records: []metadata.Record{&metadata.RegisterBrokerRecord{BrokerID: 9, IncarnationID: metadata.UUID{1}, BrokerEpoch: next, LogDirs: []metadata.UUID{{9}}}}, Reply: next}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		allocate := func(h *Host) (controller.AllocateProducerIDsReply, error) {
			reply, err := h.Do(t.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
				req := kmsg.NewPtrAllocateProducerIDsRequest()
				req.BrokerID, req.BrokerEpoch = 9, epoch.(int64)
				return c.AllocateProducerIDs(controller.At{Now: now, Next: next}, req), nil
			})
			if err != nil {
				return controller.AllocateProducerIDsReply{}, err
			}
			return reply.(controller.AllocateProducerIDsReply), nil
		}
		const rounds, clients = 5, 8
		blocks := make(chan controller.AllocateProducerIDsReply, 10000)
		failed := make(chan error, 10000)
		for round := range rounds {
			id, h := tc.leader()
			done := make(chan struct{})
			for range clients {
				go func() {
					defer func() { done <- struct{}{} }()
					for {
						block, err := allocate(h)
						if err != nil {
							failed <- err
							return
						}
						blocks <- block
						<-time.After(time.Millisecond)
					}
				}()
			}
			<-time.After(time.Duration(3+round)*time.Millisecond - time.Microsecond)
			tc.kill(id)
			for range clients {
				<-done
			}
			tc.leader(id)
			tc.start(id)
		}
		tc.agree()
		close(blocks)
		close(failed)
		for err := range failed {
			if !errors.Is(err, ErrNotController) {
				t.Errorf("answered %v", err)
			}
		}
		seen, n := map[int64]bool{}, 0
		highest := int64(-1)
		for block := range blocks {
			n++
			if block.Length != controller.ProducerIDBlock || block.Start%controller.ProducerIDBlock != 0 || seen[block.Start] {
				t.Errorf("block %+v, given before: %v", block, seen[block.Start])
			}
			seen[block.Start] = true
			highest = max(highest, block.Start)
		}
		_, active = tc.leader()
		if next := active.Committed().NextProducerID(); n == 0 || next < highest+controller.ProducerIDBlock {
			t.Errorf("%d blocks up to %d were given, the next begins at %d", n, highest, next)
		}
		t.Logf("%d blocks of %d in %d reigns", n, controller.ProducerIDBlock, rounds)
	})
}
