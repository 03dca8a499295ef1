package sim

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
)

// A checker looks after every event whether the promises hold:
//
//   - committed offsets are what the log below the high watermark says, with their epochs; an acknowledged
//     commit is below the high watermark, so it is never lost, and nothing else moves an offset (P9);
//   - stable fetches answer what the log said when they came, and nothing while a transaction is open;
//   - in one generation a partition has one owner and the group one leader; generations do not fall in a
//     reign, nor below one whose assignment was given out; nothing is accepted for another generation;
//   - each request is answered once, and within what its timeouts allow; a sync waits only while Completing;
//   - a member of a Stable group is not removed before its session timeout has passed in silence.
type checker struct {
	w   *world
	err error

	committed model // of the log below the high watermark
	reign     reign
	owners    map[string]map[int32]string // by group and generation, then partition
	given     map[string]int32            // highest generation whose assignment was given out, by group
	acked     int64                       // highest log offset of an acknowledged commit
	turn      int
	// counts of what the run has seen, so that a run which tests nothing is noticed
	syncs, commits, stableFetches, unstable int
}

// A reign is what is known of the present coordinator.
type reign struct {
	since       time.Time
	generations map[string]int32
	leaders     map[string]string    // by group and generation
	contact     map[string]time.Time // last answered sync, heartbeat or commit, by member id
	synced      map[string]int32     // generation of the last answered sync, by member id
}

func newChecker(w *world) *checker {
	return &checker{w: w, committed: newModel(), owners: map[string]map[int32]string{}, given: map[string]int32{}, acked: -1}
}

func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

// elected begins a reign: generations are those of the log.
func (k *checker) elected() {
	k.reign = reign{since: k.w.now, generations: map[string]int32{}, leaders: map[string]string{}, contact: map[string]time.Time{}, synced: map[string]int32{}}
	for _, e := range k.w.log {
		k.written(e)
	}
}

// written notes the generation of a group's record.
func (k *checker) written(e entry) {
	id, v := groupMetadata(e)
	if v == nil {
		return
	}
	k.reign.generations[id] = max(k.reign.generations[id], v.Generation)
}

func (k *checker) truncated(end int64) {
	if k.acked >= end {
		k.fail("acknowledged commit at offset %d is lost: the log ends at %d", k.acked, end)
	}
}

func (k *checker) reverted(offset int64) {
	if offset < k.w.hw {
		k.fail("reverted to %d, below the high watermark %d", offset, k.w.hw)
	}
}

func (k *checker) answeredAll() {
	for to, r := range k.w.handles {
		k.fail("request %d (%T) has no answer from a coordinator that resigned", to, r.body)
	}
}

// arrived notes at which generation a request came.
func (k *checker) arrived(r *request) { r.generation = k.reign.generations[groupOf(r.body)] }

func groupOf(body any) string {
	switch b := body.(type) {
	case *kmsg.JoinGroupRequest:
		return b.Group
	case *kmsg.SyncGroupRequest:
		return b.Group
	case *kmsg.HeartbeatRequest:
		return b.Group
	case *kmsg.OffsetCommitRequest:
		return b.Group
	}
	return ""
}

// answered looks at one answer.
func (k *checker) answered(r *request, response group.Response) {
	id := groupOf(r.body)
	switch reply := response.(type) {
	case *group.JoinReply:
		if reply.Err == nil {
			k.joined(id, reply)
		}
	case *group.SyncReply:
		if req := r.body.(*kmsg.SyncGroupRequest); reply.Err == nil {
			k.sameGeneration(r, req.Generation)
			k.synced(id, req, reply)
		}
	case *group.HeartbeatReply:
		if req := r.body.(*kmsg.HeartbeatRequest); reply.Err == nil {
			k.sameGeneration(r, req.Generation)
			k.alive(req.MemberID, r.at)
		}
	case *group.CommitReply:
		k.commit(r, reply)
	case *group.FetchReply:
		if stable, ok := r.body.(fetchStable); ok && reply.Err == nil {
			k.stableFetches++
			k.compare(modelOf(k.w.log[:r.end]), true, stable.req.Group, reply)
		}
	}
}

func (k *checker) alive(memberID string, at time.Time) {
	if at.After(k.reign.contact[memberID]) {
		k.reign.contact[memberID] = at
	}
}

// sameGeneration demands that what was accepted named the generation that the group then had.
func (k *checker) sameGeneration(r *request, generation int32) {
	if generation != r.generation {
		k.fail("%T for generation %d is accepted at generation %d", r.body, generation, r.generation)
	}
}

func (k *checker) joined(id string, reply *group.JoinReply) {
	if now := k.reign.generations[id]; reply.Generation < now {
		k.fail("group %s: generation falls from %d to %d", id, now, reply.Generation)
	}
	if given := k.given[id]; reply.Generation < given {
		k.fail("group %s: generation %d after the assignment of %d was given out", id, reply.Generation, given)
	}
	k.reign.generations[id] = reply.Generation
	key := fmt.Sprintf("%s/%d", id, reply.Generation)
	leader, known := k.reign.leaders[key]
	if known && leader != identity(reply.Leader) {
		k.fail("generation %s is led by %s and by %s", key, leader, reply.Leader)
	}
	k.reign.leaders[key] = identity(reply.Leader)
	for _, m := range reply.Members {
		if identity(m.MemberID) != string(m.Metadata) {
			k.fail("generation %s: %s has the metadata of %s", key, m.MemberID, m.Metadata)
		}
	}
}

func (k *checker) synced(id string, req *kmsg.SyncGroupRequest, reply *group.SyncReply) {
	k.syncs++
	key := fmt.Sprintf("%s/%d", id, req.Generation)
	if k.owners[key] == nil {
		k.owners[key] = map[int32]string{}
	}
	member := identity(req.MemberID)
	for _, p := range reply.Assignment {
		if owner, ok := k.owners[key][int32(p)]; ok && owner != member {
			k.fail("generation %s: partition %d is given to %s and to %s", key, p, owner, member)
		}
		k.owners[key][int32(p)] = member
	}
	k.given[id] = max(k.given[id], req.Generation)
	k.reign.synced[req.MemberID] = req.Generation
	k.alive(req.MemberID, k.w.now)
}

func (k *checker) commit(r *request, reply *group.CommitReply) {
	n := 0
	for _, t := range reply.Topics {
		for _, p := range t.Partitions {
			if p.Err == nil {
				n++
			}
		}
	}
	if n == 0 {
		return
	}
	k.commits++
	if n != len(r.positions) {
		k.fail("%d partitions are acknowledged, %d records were written", n, len(r.positions))
	}
	for _, position := range r.positions {
		if position >= k.w.hw {
			k.fail("the commit at offset %d is acknowledged at high watermark %d", position, k.w.hw)
			return
		}
		k.acked = max(k.acked, position)
	}
	req, ok := r.body.(*kmsg.OffsetCommitRequest)
	if !ok {
		return
	}
	written := modelOf(k.w.log[r.positions[0]:r.end])
	for _, p := range req.Topics[0].Partitions {
		got := written.offsets[offsetKey{req.Group, p.Partition}]
		if got.offset != p.Offset || got.epoch != p.LeaderEpoch {
			k.fail("the commit of offset %d epoch %d is in the log as %d and %d", p.Offset, p.LeaderEpoch, got.offset, got.epoch)
		}
	}
	if req.Generation >= 0 {
		k.sameGeneration(r, req.Generation)
		k.alive(req.MemberID, r.at)
	}
}

// compare demands that a fetch answers what the model says.
func (k *checker) compare(m model, stable bool, id string, reply *group.FetchReply) {
	for _, t := range reply.Topics {
		for _, p := range t.Partitions {
			key := offsetKey{id, p.Partition}
			if p.Err != nil {
				k.unstable++
			}
			if open := stable && m.open(key); (p.Err != nil) != open {
				k.fail("%v: fetch says %v, a transaction is open: %t", key, p.Err, open)
			}
			if p.Err != nil {
				continue
			}
			want, ok := m.offsets[key]
			if !ok {
				want = position{offset: -1, epoch: -1}
			}
			if p.Offset != want.offset || p.LeaderEpoch != want.epoch {
				k.fail("%v: fetch says offset %d epoch %d, the log %d and %d", key, p.Offset, p.LeaderEpoch, want.offset, want.epoch)
			}
		}
	}
}

// look is done after every event.
func (k *checker) look() {
	for ; k.committed.end < k.w.hw; k.committed.end++ {
		k.committed.apply(k.committed.end, k.w.log[k.committed.end])
	}
	for to, r := range k.w.handles {
		if age := k.w.now.Sub(r.at); age > bound(r.body) {
			k.fail("request %d (%T) of %s has waited for %v", to, r.body, nameOf(r), age)
		}
		if req, ok := r.body.(*kmsg.SyncGroupRequest); ok {
			if state := k.w.lead.shard.DescribeGroup(k.w.now, req.Group).State; state != group.CompletingRebalance {
				k.fail("the sync %d of %s is parked while group %s is %s", to, nameOf(r), req.Group, state)
			}
		}
	}
	if k.w.lead == nil {
		return
	}
	k.turn++
	id := []string{"simple", "c0", "c1"}[k.turn%3]
	reply := k.w.lead.shard.FetchCommitted(group.FetchRequest{Group: id, Topics: []group.FetchTopic{{Topic: topic, Partitions: []int32{0, 1, 2, 3}}}})
	k.compare(k.committed, false, id, reply)
}

// bound is the longest that a request may wait.
func bound(body any) time.Duration {
	switch body.(type) {
	case *kmsg.JoinGroupRequest, *kmsg.SyncGroupRequest:
		return maxRebalance + initialDelay + writeTimeout
	}
	return writeTimeout
}

// tick runs the coordinator's clocks, and demands of each member that disappears that it was silent.
func (k *checker) tick(groups []string) {
	c := k.w.lead
	before := make([]group.DescribedGroup, len(groups))
	generations := make([]int32, len(groups))
	for i, id := range groups {
		before[i] = c.shard.DescribeGroup(k.w.now, id)
		generations[i] = k.reign.generations[id]
	}
	c.apply(c.shard.Tick(k.w.now), nil)
	for i, was := range before {
		if was.State != group.Stable {
			continue
		}
		still := map[string]bool{}
		for _, m := range c.shard.DescribeGroup(k.w.now, groups[i]).Members {
			still[m.MemberID] = true
		}
		for _, m := range was.Members {
			gen, synced := k.reign.synced[m.MemberID]
			if still[m.MemberID] || !synced || gen != generations[i] {
				continue
			}
			if silent := k.w.now.Sub(k.reign.contact[m.MemberID]); silent < k.w.sessions[identity(m.MemberID)] {
				k.fail("%s is removed from a Stable group after %v of silence", m.MemberID, silent)
			}
		}
	}
}

// A model is what a log says about offsets, read with another decoder and in the plainest way.
type model struct {
	offsets map[offsetKey]position
	pending map[int64]map[offsetKey]position
	end     int64
}

type offsetKey struct {
	group     string
	partition int32
}

type position struct {
	offset int64
	epoch  int32
	at     int64 // log offset of the record
}

func newModel() model {
	return model{offsets: map[offsetKey]position{}, pending: map[int64]map[offsetKey]position{}}
}

func modelOf(log []entry) model {
	m := newModel()
	for i, e := range log {
		m.apply(int64(i), e)
	}
	return m
}

func (m *model) apply(at int64, e entry) {
	if e.marker {
		for key, p := range m.pending[e.producerID] {
			if e.commit && (m.offsets[key].at < p.at || m.offsets[key] == position{}) {
				m.offsets[key] = p
			}
		}
		delete(m.pending, e.producerID)
		return
	}
	var key kmsg.OffsetCommitKey
	if len(e.key) < 2 || e.key[1] > 1 || key.ReadFrom(e.key) != nil {
		return
	}
	var value kmsg.OffsetCommitValue
	if err := value.ReadFrom(e.value); err != nil {
		panic(fmt.Sprintf("offset %d: value %x: %v", at, e.value, err))
	}
	k, p := offsetKey{key.Group, key.Partition}, position{value.Offset, value.LeaderEpoch, at}
	if e.producerID < 0 {
		m.offsets[k] = p
		return
	}
	if m.pending[e.producerID] == nil {
		m.pending[e.producerID] = map[offsetKey]position{}
	}
	m.pending[e.producerID][k] = p
}

func (m *model) open(key offsetKey) bool {
	for _, pending := range m.pending {
		if _, ok := pending[key]; ok {
			return true
		}
	}
	return false
}

// groupMetadata reads a group's record with another decoder; nil for others and for tombstones.
func groupMetadata(e entry) (string, *kmsg.GroupMetadataValue) {
	var key kmsg.GroupMetadataKey
	if e.marker || e.value == nil || len(e.key) < 2 || e.key[1] != 2 || key.ReadFrom(e.key) != nil {
		return "", nil
	}
	var v kmsg.GroupMetadataValue
	if err := v.ReadFrom(e.value); err != nil {
		panic(fmt.Sprintf("group %s: value %x: %v", key.Group, e.value, err))
	}
	return key.Group, &v
}
