package group

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// converse runs one conversation of testdata: each line of input is a step, the output is what the shard
// wrote (|) and answered (<-), with the virtual time in milliseconds.
//
//	config max=N delay=MS retention=MS check=MS
//	at MS                                   let time pass
//	join NAME [id= instance= v= session= rebalance= type= protocols=a:meta,b:meta g=]
//	sync NAME id= gen= [instance= assign=ID:bytes,ID:bytes protocol= type= (null: none) v=]
//	heartbeat NAME id= gen= [instance=]
//	leave NAME id= [instance=] [v=]
//	commit NAME TOPIC-P=OFFSET... [id= gen= instance= epoch= metadata= v= keep=MS tid=] (OFFSET/N: with N letters of metadata)
//	txn-commit NAME producer= TOPIC-P=OFFSET...; end-txn producer= commit|abort
//	fetch NAME [stable] [TOPIC-P...] [tid=]; delete-offsets NAME TOPIC-P...; delete NAME; topic-deleted TOPIC [tid=]
//	describe; list [states= types=]
//	hold, release, fail ERROR               the high watermark stays, goes on, or all above it is lost
//	topics, hb, resolve, ...                 of consumer groups, see stepConsumer
//	resign, load                            the partition's leader goes and comes back
func converse(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	rig := newRig(Config{})
	datadriven.RunTest(t, filepath.Join("testdata", name+".txt"), func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "run" {
			return "unknown directive " + d.Cmd
		}
		rig.out.Reset()
		for _, line := range strings.Split(d.Input, "\n") {
			if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
				continue
			}
			if r, err := rig.step(parseStep(line)); err != nil {
				return fmt.Sprintf("%s: %v", line, err)
			} else if r != nil {
				rig = r
			}
		}
		return rig.out.String()
	})
}

type step struct {
	verb  string
	words []string
	args  map[string]string
}

func parseStep(line string) step {
	fields := strings.Fields(line)
	st := step{verb: fields[0], args: map[string]string{}}
	for _, f := range fields[1:] {
		if key, value, ok := strings.Cut(f, "="); ok && !strings.Contains(key, "-") {
			st.args[key] = value
			continue
		}
		st.words = append(st.words, f)
	}
	return st
}

func (st step) int(key string, def int64) int64 {
	s, ok := st.args[key]
	if !ok {
		return def
	}
	var n int64
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil {
		panic(fmt.Sprintf("%s=%s is not a number", key, s))
	}
	return n
}

func (st step) str(key, def string) string {
	if s, ok := st.args[key]; ok {
		return s
	}
	return def
}

func (st step) pointer(key string) *string {
	if s, ok := st.args[key]; ok {
		return &s
	}
	return nil
}

func (st step) id() (id [16]byte) {
	copy(id[:], st.str("tid", ""))
	return id
}

var stepErrors = map[string]error{"NOT_AVAILABLE": ErrCoordinatorNotAvailable, "NOT_COORDINATOR": ErrNotCoordinator}

// step does one step; a rig is returned when the conversation goes on with another.
func (r *rig) step(st step) (*rig, error) {
	group := st.str("g", "g")
	name := ""
	if len(st.words) > 0 {
		name = st.words[0]
	}
	switch st.verb {
	case "config":
		ms := func(key string) time.Duration { return time.Duration(st.int(key, 0)) * time.Millisecond }
		return newRig(Config{
			MaxSize: int(st.int("max", 0)), InitialRebalanceDelay: ms("delay"),
			OffsetsRetention: ms("retention"), RetentionCheckInterval: ms("check"),
			ConsumerMaxSize: int(st.int("consumers", 0)), ConsumerSettings: consumerConfig(st),
			NoUpgrade: st.str("migrate", "") == "downgrade" || st.str("migrate", "") == "disabled", NoDowngrade: st.str("migrate", "") == "upgrade" || st.str("migrate", "") == "disabled",
		}), nil
	case "at":
		var ms int64
		if _, err := fmt.Sscanf(name, "%d", &ms); err != nil {
			return nil, err
		}
		r.advance(r.start.Add(time.Duration(ms) * time.Millisecond))
	case "join":
		req := joinRequest(group, st.str("id", ""), st.str("instance", ""),
			int32(st.int("session", 45000)), int32(st.int("rebalance", 300000)), st.str("protocols", "range:"+strings.ToLower(name)))
		req.Version = int16(st.int("v", 9))
		req.ProtocolType = st.str("type", "consumer")
		r.apply(r.s.JoinGroup(r.now, r.handle(name), RequestContext{ClientID: name, ClientHost: "/10.0.0.1"}, req))
	case "sync":
		req := &kmsg.SyncGroupRequest{
			Version: int16(st.int("v", 5)), Group: group, MemberID: st.str("id", ""), InstanceID: st.pointer("instance"),
			Generation: int32(st.int("gen", 0)),
		}
		if req.Version >= 5 {
			typ, protocol := st.str("type", "consumer"), st.str("protocol", "range")
			req.ProtocolType, req.Protocol = &typ, &protocol
			if typ == "null" {
				req.ProtocolType = nil
			}
		}
		for _, a := range strings.FieldsFunc(st.str("assign", ""), func(r rune) bool { return r == ',' }) {
			id, assignment, _ := strings.Cut(a, ":")
			req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: id, MemberAssignment: []byte(assignment)})
		}
		r.apply(r.s.SyncGroup(r.now, r.handle(name), req))
	case "heartbeat":
		r.apply(r.s.Heartbeat(r.now, r.handle(name), &kmsg.HeartbeatRequest{
			Version: 4, Group: group, MemberID: st.str("id", ""), InstanceID: st.pointer("instance"), Generation: int32(st.int("gen", 0)),
		}))
	case "leave":
		req := &kmsg.LeaveGroupRequest{Version: int16(st.int("v", 5)), Group: group, MemberID: st.str("id", "")}
		for _, id := range strings.Split(st.str("id", ""), ",") {
			req.Members = append(req.Members, kmsg.LeaveGroupRequestMember{MemberID: id, InstanceID: st.pointer("instance")})
		}
		r.apply(r.s.LeaveGroup(r.now, r.handle(name), req))
	case "commit":
		r.apply(r.s.OffsetCommit(r.now, r.handle(name), &kmsg.OffsetCommitRequest{
			Version: int16(st.int("v", 9)), Group: group, MemberID: st.str("id", ""), InstanceID: st.pointer("instance"),
			Generation: int32(st.int("gen", -1)), RetentionTimeMillis: st.int("keep", -1), Topics: st.topics(),
		}))
	case "txn-commit":
		req := &kmsg.TxnOffsetCommitRequest{
			Version: int16(st.int("v", 5)), Group: group, MemberID: st.str("id", ""), InstanceID: st.pointer("instance"),
			Generation: int32(st.int("gen", -1)), ProducerID: st.int("producer", 0),
		}
		for _, t := range st.topics() {
			topic := kmsg.TxnOffsetCommitRequestTopic{Topic: t.Topic, TopicID: t.TopicID}
			for _, p := range t.Partitions {
				topic.Partitions = append(topic.Partitions, kmsg.TxnOffsetCommitRequestTopicPartition{
					Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata,
				})
			}
			req.Topics = append(req.Topics, topic)
		}
		r.apply(r.s.TxnOffsetCommit(r.now, r.handle(name), req))
	case "end-txn":
		r.append(rigRecord{producerID: st.int("producer", 0), end: true, commit: name == "commit"})
		r.apply(Effects{})
	case "fetch":
		req := FetchRequest{Group: group}
		for _, t := range st.topics() {
			f := FetchTopic{Topic: t.Topic, TopicID: st.id()}
			for _, p := range t.Partitions {
				f.Partitions = append(f.Partitions, p.Partition)
			}
			req.Topics = append(req.Topics, f)
		}
		req.All = req.Topics == nil
		if len(st.words) > 1 && st.words[1] == "stable" {
			r.apply(r.s.FetchStable(r.handle(name), req))
			break
		}
		r.answer(r.handle(name), r.s.FetchCommitted(req))
	case "delete-offsets":
		req := &kmsg.OffsetDeleteRequest{Group: group}
		for _, t := range st.topics() {
			topic := kmsg.OffsetDeleteRequestTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				topic.Partitions = append(topic.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: p.Partition})
			}
			req.Topics = append(req.Topics, topic)
		}
		r.apply(r.s.OffsetDelete(r.now, r.handle(name), req))
	case "delete":
		r.apply(r.s.DeleteGroup(r.now, r.handle(name), group))
	case "topic-deleted":
		r.apply(r.s.TopicsDeleted([]DeletedTopic{{Topic: name, TopicID: st.id()}}))
	case "describe":
		d := r.s.DescribeGroup(r.now, group)
		r.printf("%s %s err=%s type=%q protocol=%q", d.Group, d.State, errWord(d.Err), d.ProtocolType, d.Protocol)
		for _, m := range d.Members {
			r.printf("  %s instance=%s metadata=%q assignment=%q", m.MemberID, optional(m.InstanceID), m.Metadata, m.Assignment)
		}
	case "list":
		words := func(key string) []string {
			return strings.FieldsFunc(st.str(key, ""), func(r rune) bool { return r == ',' })
		}
		for _, l := range r.s.ListGroups(r.now, words("states"), words("types")) {
			r.printf("%s %s type=%s protocolType=%q", l.Group, l.State, l.Type, l.ProtocolType)
		}
	case "hold":
		r.hold = true
	case "release":
		r.hold = false
		r.release()
	case "fail":
		r.hold = false
		err := stepErrors[name]
		if err == nil {
			return nil, errors.New("unknown error")
		}
		r.fail(err)
	case "resign":
		for _, w := range r.waiting {
			for _, reply := range w.replies {
				r.answer(reply.To, reply.Response.Failed(ErrNotCoordinator))
			}
		}
		r.waiting = nil
		r.apply(r.s.Unload())
	case "load":
		r.config.MaxSize = int(st.int("max", int64(r.config.MaxSize)))
		r.load()
	default:
		if !r.stepConsumer(st, group, name) {
			return nil, errors.New("unknown step")
		}
	}
	return nil, nil
}

// topics reads the words of the form TOPIC-P or TOPIC-P=OFFSET.
func (st step) topics() []kmsg.OffsetCommitRequestTopic {
	var topics []kmsg.OffsetCommitRequestTopic
	metadata := st.str("metadata", "")
	for _, word := range st.words[1:] {
		var offset int64
		var partition int32
		word, value, _ := strings.Cut(word, "=")
		topic, number, ok := strings.Cut(word, "-")
		if !ok {
			continue
		}
		value, letters, _ := strings.Cut(value, "/")
		_, _ = fmt.Sscanf(value, "%d", &offset)
		_, _ = fmt.Sscanf(number, "%d", &partition)
		m := metadata
		if letters != "" {
			n := 0
			_, _ = fmt.Sscanf(letters, "%d", &n)
			m = strings.Repeat("x", n)
		}
		p := kmsg.OffsetCommitRequestTopicPartition{Partition: partition, Offset: offset, LeaderEpoch: int32(st.int("epoch", -1)), Metadata: &m}
		if st.str("metadata", "") == "null" {
			p.Metadata = nil
		}
		if n := len(topics); n == 0 || topics[n-1].Topic != topic {
			topics = append(topics, kmsg.OffsetCommitRequestTopic{Topic: topic, TopicID: st.id()})
		}
		last := &topics[len(topics)-1]
		last.Partitions = append(last.Partitions, p)
	}
	return topics
}
