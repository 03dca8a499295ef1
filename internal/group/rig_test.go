package group

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/shard"
)

// A rig is a runtime for one shard, in memory and in virtual time: it appends, replays, moves the high
// watermark, lets timers fire, and writes down what happens in the protocol's words.
type rig struct {
	config  Config
	s       *Shard
	start   time.Time
	now     time.Time
	log     []rigRecord
	hw      int
	hold    bool // the high watermark stays where it is
	waiting []rigWrite
	names   map[ReplyTo]string
	uuids   int
	out     strings.Builder
	told    func(name string, response Response) // of each answer; may be nil
	image   *metadata.Image
	images  int64
	jobs    []func() any // asked for and not done yet
}

type rigRecord struct {
	producerID int64
	rec        Record
	end        bool // a marker: no record
	commit     bool
}

type rigWrite struct {
	base, end int
	replies   []Reply
	write     WriteID
}

func newRig(config Config) *rig {
	r := &rig{config: config, start: time.UnixMilli(1700000000000), names: map[ReplyTo]string{}}
	r.now = r.start
	r.config.NewUUID = func() string { r.uuids++; return fmt.Sprintf("u%d", r.uuids) }
	if config.Memory == nil {
		r.config.Memory = &Memory{Max: 1 << 40}
	}
	r.load()
	return r
}

// load makes a shard from the log.
func (r *rig) load() {
	if r.s != nil {
		r.s.Release()
	}
	r.s = NewShard(r.config)
	if r.image != nil {
		r.s.SetImage(r.image)
	}
	for i := range r.log {
		r.replay(int64(i))
	}
	r.s.Committed(int64(r.hw))
	r.apply(r.s.Loaded(r.now))
}

func (r *rig) replay(offset int64) {
	rec := r.log[offset]
	if rec.end {
		r.s.ReplayEndTxn(offset, rec.producerID, rec.commit)
		return
	}
	r.s.Replay(offset, rec.producerID, rec.rec)
}

func (r *rig) printf(format string, args ...any) {
	fmt.Fprintf(&r.out, "t%d ", r.now.Sub(r.start).Milliseconds())
	fmt.Fprintf(&r.out, format, args...)
	r.out.WriteByte('\n')
}

// apply does what effects say. Every record goes through its bytes.
func (r *rig) apply(fx Effects) {
	w := rigWrite{base: len(r.log), write: fx.Write}
	for _, rec := range fx.Records {
		key, value, err := EncodeRecord(rec)
		if err != nil {
			panic(err)
		}
		if rec, err = DecodeRecord(key, value); err != nil {
			panic(err)
		}
		producerID := int64(-1)
		if fx.HasProducer {
			producerID = fx.ProducerID
		}
		r.append(rigRecord{producerID: producerID, rec: rec})
	}
	w.end = len(r.log)
	if fx.Beside != nil {
		r.jobs = append(r.jobs, fx.Beside)
	}
	for _, reply := range fx.Replies {
		if reply.AfterCommit {
			w.replies = append(w.replies, reply)
			continue
		}
		r.answer(reply.To, reply.Response)
	}
	r.waiting = append(r.waiting, w)
	if !r.hold {
		r.release()
	}
	r.checkHeld()
	r.checkConsumers()
}

func (r *rig) append(rec rigRecord) {
	r.log = append(r.log, rec)
	r.replay(int64(len(r.log) - 1))
	r.printf("| %s", describeRecord(rec))
}

// release moves the high watermark to the end.
func (r *rig) release() {
	r.hw = len(r.log)
	r.s.Committed(int64(r.hw))
	done := r.waiting
	r.waiting = nil
	for _, w := range done {
		for _, reply := range w.replies {
			r.answer(reply.To, reply.Response)
		}
		if w.write != 0 {
			r.apply(r.s.Finish(r.now, w.write, nil))
		}
	}
}

// fail loses everything above the high watermark.
func (r *rig) fail(err error) {
	r.log = r.log[:r.hw]
	r.s.Revert(int64(r.hw))
	failed := r.waiting
	r.waiting = nil
	r.printf("append failed: %v", err)
	for _, w := range failed {
		for _, reply := range w.replies {
			r.answer(reply.To, reply.Response.Failed(err))
		}
		if w.write != 0 {
			r.apply(r.s.Finish(r.now, w.write, err))
		}
	}
}

// advance lets time pass, timer by timer.
func (r *rig) advance(to time.Time) {
	for {
		at, ok := r.s.NextDeadline()
		if !ok || at.After(to) {
			break
		}
		if at.After(r.now) {
			r.now = at
		}
		r.apply(r.s.Tick(r.now))
	}
	if to.After(r.now) {
		r.now = to
	}
}

func (r *rig) handle(name string) ReplyTo {
	to := ReplyTo(len(r.names) + 1)
	r.names[to] = name
	return to
}

func (r *rig) answer(to ReplyTo, response Response) {
	if r.told != nil {
		r.told(r.names[to], response)
	}
	name, ok := r.names[to]
	if !ok || strings.HasPrefix(name, "answered ") {
		panic(fmt.Sprintf("request %d %q is answered twice: %s", to, name, describeResponse(response)))
	}
	r.names[to] = "answered " + name
	r.printf("%s <- %s", name, describeResponse(response))
}

func describeRecord(rec rigRecord) string {
	if rec.end {
		return fmt.Sprintf("end transaction producer=%d commit=%t", rec.producerID, rec.commit)
	}
	txn := ""
	if rec.producerID >= 0 {
		txn = fmt.Sprintf(" producer=%d", rec.producerID)
	}
	switch rec := rec.rec.(type) {
	case *GroupMetadataRecord:
		if rec.Value == nil {
			return fmt.Sprintf("group %s tombstone", rec.Group)
		}
		v := rec.Value
		var members []string
		for _, m := range v.Members {
			members = append(members, fmt.Sprintf("%s(%s):%s", m.MemberID, subscriptionWords(m.Subscription), assignmentWords(m.Assignment)))
		}
		return fmt.Sprintf("group %s gen=%d type=%q protocol=%s leader=%s members=[%s]",
			rec.Group, v.Generation, v.ProtocolType, optional(v.Protocol), optional(v.Leader), strings.Join(members, " "))
	case *OffsetCommitRecord:
		key := fmt.Sprintf("offset %s %s-%d", rec.Group, rec.Topic, rec.Partition)
		if rec.Value == nil {
			return key + " tombstone"
		}
		s := fmt.Sprintf("%s = %d epoch=%d metadata=%q%s", key, rec.Value.Offset, rec.Value.LeaderEpoch, shorten(rec.Value.Metadata), txn)
		if rec.Value.ExpireTimestamp >= 0 {
			s += fmt.Sprintf(" expires=%d", rec.Value.ExpireTimestamp-1700000000000)
		}
		return s
	}
	return describeConsumerRecord(rec.rec)
}

func shorten(s string) string {
	if len(s) > 20 {
		return fmt.Sprintf("%.8s... %d bytes", s, len(s))
	}
	return s
}

func optional(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func errWord(err error) string {
	if err == nil {
		return "ok"
	}
	word, _, _ := strings.Cut(err.Error(), ":")
	return strings.ToUpper(strings.ReplaceAll(word, " ", "_"))
}

func describeResponse(response Response) string {
	switch r := response.(type) {
	case *JoinReply:
		if r.Err != nil {
			return fmt.Sprintf("join %s member=%q", errWord(r.Err), r.MemberID)
		}
		var members []string
		for _, m := range r.Members {
			members = append(members, fmt.Sprintf("%s:%s", m.MemberID, subscriptionWords(m.Metadata)))
		}
		skip := ""
		if r.SkipAssignment {
			skip = " skipAssignment"
		}
		return fmt.Sprintf("join gen=%d protocol=%s leader=%s member=%s members=[%s]%s",
			r.Generation, optional(r.Protocol), r.Leader, r.MemberID, strings.Join(members, " "), skip)
	case *SyncReply:
		return fmt.Sprintf("sync %s assignment=%q", errWord(r.Err), assignmentWords(r.Assignment))
	case *HeartbeatReply:
		return "heartbeat " + errWord(r.Err)
	case *LeaveReply:
		s := "leave " + errWord(r.Err)
		for _, m := range r.Members {
			s += fmt.Sprintf(" %q:%s", m.MemberID, errWord(m.Err))
		}
		return s
	case *CommitReply:
		return "commit" + describeResults(r.Topics)
	case *OffsetDeleteReply:
		return "delete-offsets " + errWord(r.Err) + describeResults(r.Topics)
	case *FetchReply:
		s := "fetch " + errWord(r.Err)
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				if p.Err != nil {
					s += fmt.Sprintf(" %s-%d:%s", t.Topic, p.Partition, errWord(p.Err))
					continue
				}
				s += fmt.Sprintf(" %s-%d:%d epoch=%d metadata=%q", t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata)
			}
		}
		return s
	case *ConsumerHeartbeatReply:
		return describeConsumerReply(r)
	case *DeleteReply:
		return fmt.Sprintf("delete %s %s", r.Group, errWord(r.Err))
	}
	return "?"
}

func describeResults(topics []CommittedTopic) string {
	s := ""
	for _, t := range topics {
		for _, p := range t.Partitions {
			s += fmt.Sprintf(" %s-%d:%s", t.Topic, p.Partition, errWord(p.Err))
		}
	}
	return s
}

// dump writes a shard's replicated state, newest and committed, as text to compare.
func (s *Shard) dump() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for group, v := range s.replicated.groups.Newest() {
		add("group %s %+v", group, *v)
	}
	s.replicated.groups.CommittedKeys(func(group string) {
		v, _ := s.replicated.groups.Committed(group)
		add("committed group %s %+v", group, *v)
	})
	for id, g := range s.replicated.consumers {
		dumpTable(add, id+" epoch", g.epoch)
		dumpTable(add, id+" target", g.target)
		dumpTable(add, id+" members", g.members)
		dumpTable(add, id+" targets", g.targets)
		dumpTable(add, id+" currents", g.currents)
		dumpTable(add, id+" regexes", g.regexes)
		add("%s owners %v instances %v topics %v regexes %v assignors %v classic %d unfinished %d", id, g.owners, g.instances, g.byTopic, g.byRegex, g.assignors, g.classic, g.unfinished)
		if g.vacant() {
			add("vacant consumer group %s", id)
		}
	}
	for group, t := range s.replicated.offsets {
		for tp, e := range t.Newest() {
			add("offset %s %v %+v at %d", group, tp, *e.OffsetCommitValue, e.recordOffset)
		}
		t.CommittedKeys(func(tp TopicPartition) {
			e, _ := t.Committed(tp)
			add("committed offset %s %v %+v at %d", group, tp, *e.OffsetCommitValue, e.recordOffset)
		})
		if t.Vacant() {
			add("vacant offsets of %s", group)
		}
	}
	for producerID, t := range s.replicated.pending {
		for key, e := range t.Newest() {
			add("pending %d %v %+v at %d", producerID, key, *e.OffsetCommitValue, e.recordOffset)
		}
		if t.Vacant() {
			add("vacant producer %d", producerID)
		}
	}
	for group, counts := range s.replicated.open {
		add("open %s %v", group, counts)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func joinRequest(group, memberID, instance string, session, rebalance int32, protocols string) *kmsg.JoinGroupRequest {
	req := &kmsg.JoinGroupRequest{
		Version: 9, Group: group, MemberID: memberID, ProtocolType: "consumer",
		SessionTimeoutMillis: session, RebalanceTimeoutMillis: rebalance,
	}
	if instance != "" {
		req.InstanceID = &instance
	}
	for _, p := range strings.Fields(strings.ReplaceAll(protocols, ",", " ")) {
		name, metadata, _ := strings.Cut(p, ":")
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: name, Metadata: []byte(metadata)})
	}
	return req
}

func dumpTable[K comparable, V any](add func(string, ...any), name string, t *shard.Table[K, *V]) {
	for key, v := range t.Newest() {
		add("%s %v %+v", name, key, *v)
	}
	t.CommittedKeys(func(key K) {
		v, _ := t.Committed(key)
		add("committed %s %v %+v", name, key, *v)
	})
}
