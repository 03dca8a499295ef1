package group

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// idOf is the id that a topic of these tests has: its name.
func idOf(name string) (id [16]byte) {
	copy(id[:], name)
	return id
}

func topicName(id [16]byte) string { return strings.TrimRight(string(id[:]), "\x00") }

// setTopics makes the metadata that of these topics: T:4 has four partitions.
func (r *rig) setTopics(words []string) {
	r.images++
	d := metadata.NewDelta(metadata.EmptyImage())
	replay := func(rec metadata.Record) {
		if err := d.Replay(rec, r.images); err != nil {
			panic(err)
		}
	}
	for _, word := range words {
		name, count, _ := strings.Cut(word, ":")
		n := int32(0)
		_, _ = fmt.Sscanf(count, "%d", &n)
		id := metadata.UUID(idOf(name))
		replay(&metadata.TopicRecord{Name: name, TopicID: id})
		for p := range n {
			replay(&metadata.PartitionRecord{PartitionID: p, TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		}
	}
	r.image = d.Apply(r.images, 1)
	r.s.SetImage(r.image)
}

// stepConsumer does the steps of consumer groups:
//
//	topics T:4 U:3                          these are the topics there are
//	hb NAME id= epoch= [instance= names=T,U regex= owned=T:0,1 (or -) rebalance= assignor= rack= v=] (names=-: none)
//	resolve                                 regular expressions that are asked for are resolved
//	describe-consumer
//	join-topics NAME id= topics=T,U [owned=T:0,1] [v=] [instance=]    a classic consumer joins, cooperative: what it owns it says
//	sync-as NAME id= gen= [ID=T:0,1...]     and syncs, as the leader with what members get
//	fetch-as NAME TOPIC-P... [id= epoch=]
func (r *rig) stepConsumer(st step, group, name string) bool {
	switch st.verb {
	case "topics":
		r.setTopics(st.words)
	case "hb":
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch = int16(st.int("v", 1)), group, st.str("id", name), int32(st.int("epoch", 0))
		req.InstanceID, req.RackID, req.ServerAssignor, req.SubscribedTopicRegex = st.pointer("instance"), st.pointer("rack"), st.pointer("assignor"), st.pointer("regex")
		if req.MemberID == "none" {
			req.MemberID = ""
		}
		if req.SubscribedTopicRegex != nil && *req.SubscribedTopicRegex == "-" {
			*req.SubscribedTopicRegex = ""
		}
		req.RebalanceTimeoutMillis = -1
		if req.MemberEpoch == 0 {
			req.RebalanceTimeoutMillis, req.Topics = 60000, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		}
		req.RebalanceTimeoutMillis = int32(st.int("rebalance", int64(req.RebalanceTimeoutMillis)))
		if names, ok := st.args["names"]; ok {
			req.SubscribedTopicNames = []string{}
			if names != "-" {
				req.SubscribedTopicNames = strings.Split(names, ",")
			}
		}
		if owned, ok := st.args["owned"]; ok {
			req.Topics = requestTopics(owned)
		}
		r.apply(r.s.ConsumerGroupHeartbeat(r.now, r.handle(name), RequestContext{ClientID: name, ClientHost: "/10.0.0.1"}, req))
	case "join-topics":
		sub := kmsg.ConsumerMemberMetadata{Version: 1, Topics: strings.Split(st.str("topics", ""), ",")}
		if owned, ok := st.args["owned"]; ok {
			for _, t := range requestTopics(owned) {
				sub.OwnedPartitions = append(sub.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: topicName(t.TopicID), Partitions: t.Partitions})
			}
		}
		req := joinRequest(group, st.str("id", ""), st.str("instance", ""), 45000, 300000, "range:x")
		req.Version, req.ProtocolType = int16(st.int("v", 3)), "consumer"
		req.Protocols[0].Metadata = sub.AppendTo(nil)
		r.apply(r.s.JoinGroup(r.now, r.handle(name), RequestContext{ClientID: name, ClientHost: "/10.0.0.1"}, req))
	case "sync-as":
		protocolType, protocol := "consumer", "range"
		req := &kmsg.SyncGroupRequest{Version: 5, Group: group, MemberID: st.str("id", ""), Generation: int32(st.int("gen", 0)), ProtocolType: &protocolType, Protocol: &protocol}
		for _, word := range st.words[1:] {
			member, text, _ := strings.Cut(word, "=")
			a := kmsg.ConsumerMemberAssignment{}
			for _, t := range requestTopics(text) {
				a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: topicName(t.TopicID), Partitions: t.Partitions})
			}
			req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: member, MemberAssignment: a.AppendTo(nil)})
		}
		r.apply(r.s.SyncGroup(r.now, r.handle(name), req))
	case "resolve":
		jobs := r.jobs
		r.jobs = nil
		for _, job := range jobs {
			r.apply(r.s.RegexesResolved(r.now, job().(*RegexResult)))
		}
	case "describe-consumer":
		d := r.s.DescribeConsumerGroup(group)
		r.printf("%s %s err=%s epoch=%d target=%d assignor=%s", d.Group, d.State, errWord(d.Err), d.Epoch, d.TargetEpoch, d.Assignor)
		for _, m := range d.Members {
			kind := ""
			if m.SpeaksClassic {
				kind = " classic"
			}
			r.printf("  %s instance=%s epoch=%d names=%v regex=%q has=%s target=%s%s", m.ID, optional(m.InstanceID), m.Epoch, m.Topics, m.Regex, describedWords(m.Assigned), describedWords(m.Target), kind)
		}
	case "fetch-as":
		req := FetchRequest{Group: group, From: &Fetcher{MemberID: st.pointer("id"), Epoch: int32(st.int("epoch", -1))}}
		for _, t := range st.topics() {
			req.Topics = append(req.Topics, FetchTopic{Topic: t.Topic, Partitions: []int32{t.Partitions[0].Partition}})
		}
		r.answer(r.handle(name), r.s.FetchCommitted(req))
	default:
		return false
	}
	return true
}

// requestTopics reads T:0,1;U:2, and - for none.
func requestTopics(text string) []kmsg.ConsumerGroupHeartbeatRequestTopic {
	topics := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if text == "-" {
		return topics
	}
	for _, part := range strings.Split(text, ";") {
		name, list, _ := strings.Cut(part, ":")
		t := kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: idOf(name)}
		for _, number := range strings.Split(list, ",") {
			p := int32(0)
			_, _ = fmt.Sscanf(number, "%d", &p)
			t.Partitions = append(t.Partitions, p)
		}
		topics = append(topics, t)
	}
	return topics
}

func describedWords(topics []DescribedTopic) string {
	var list []TopicPartitions
	for _, t := range topics {
		list = append(list, TopicPartitions{TopicID: t.TopicID, Partitions: t.Partitions})
	}
	return partitionWords(list)
}

// assignmentWords shows an assignment of the embedded protocol; others as they are.
func assignmentWords(b []byte) string {
	named, _, ok := readAssignment(b)
	if !ok || len(b) < 6 {
		return string(b)
	}
	set := ownedSet{}
	for topic, partitions := range named {
		for _, p := range partitions {
			set[partitionID{idOf(topic), p}] = struct{}{}
		}
	}
	return partitionWords(listOf(set))
}

func subscriptionWords(b []byte) string {
	if sub, ok := readSubscription(b); ok && len(b) > 6 {
		return strings.Join(sub.topics, ",")
	}
	return string(b)
}

func partitionWords(list []TopicPartitions) string {
	var words []string
	for _, t := range list {
		var numbers []string
		for i, p := range t.Partitions {
			number := fmt.Sprint(p)
			if t.Epochs != nil {
				number += fmt.Sprintf("@%d", t.Epochs[i])
			}
			numbers = append(numbers, number)
		}
		words = append(words, topicName(t.TopicID)+":"+strings.Join(numbers, ","))
	}
	if words == nil {
		return "-"
	}
	return strings.Join(words, ";")
}

func describeConsumerRecord(rec Record) string {
	switch rec := rec.(type) {
	case *ConsumerGroupRecord:
		if rec.Value == nil {
			return "3 tombstone"
		}
		return fmt.Sprintf("3 epoch=%d", rec.Value.Epoch)
	case *ConsumerPartitionsRecord:
		return "4 tombstone"
	case *ConsumerMemberRecord:
		if rec.Value == nil {
			return fmt.Sprintf("5 %s tombstone", rec.Member)
		}
		v := rec.Value
		words := fmt.Sprintf("5 %s names=%v", rec.Member, v.Topics)
		if v.Regex != nil {
			words += fmt.Sprintf(" regex=%q", *v.Regex)
		}
		if v.Classic != nil {
			words += " classic"
		}
		return words
	case *ConsumerTargetRecord:
		if rec.Value == nil {
			return "6 tombstone"
		}
		return fmt.Sprintf("6 epoch=%d", rec.Value.Epoch)
	case *ConsumerTargetMemberRecord:
		if rec.Value == nil {
			return fmt.Sprintf("7 %s tombstone", rec.Member)
		}
		return fmt.Sprintf("7 %s %s", rec.Member, partitionWords(rec.Value.Partitions))
	case *ConsumerCurrentRecord:
		if rec.Value == nil {
			return fmt.Sprintf("8 %s tombstone", rec.Member)
		}
		v := rec.Value
		state := map[int8]string{memberStable: "stable", memberUnrevoked: "unrevoked", memberUnreleased: "unreleased"}[v.State]
		words := fmt.Sprintf("8 %s epoch=%d previous=%d %s %s", rec.Member, v.Epoch, v.PreviousEpoch, state, partitionWords(v.Assigned))
		if len(v.Revoking) > 0 {
			words += " revoking " + partitionWords(v.Revoking)
		}
		return words
	case *ConsumerRegexRecord:
		if rec.Value == nil {
			return fmt.Sprintf("16 %q tombstone", rec.Regex)
		}
		return fmt.Sprintf("16 %q %v", rec.Regex, rec.Value.Topics)
	}
	return "?"
}

func describeConsumerReply(r *ConsumerHeartbeatReply) string {
	if r.Err != nil {
		return "hb " + errWord(r.Err)
	}
	assignment := "null"
	if r.HasAssignment {
		var list []TopicPartitions
		for _, t := range r.Assignment {
			list = append(list, TopicPartitions{TopicID: t.TopicID, Partitions: t.Partitions})
		}
		assignment = partitionWords(list)
	}
	return fmt.Sprintf("hb epoch=%d %s", r.Epoch, assignment)
}

// checkConsumers panics when an invariant of consumer groups does not hold (C-035): a partition has two owners, or a
// member's epoch is above the target's, or the target's above the group's.
func (r *rig) checkConsumers() {
	for id, g := range r.s.replicated.consumers {
		epoch, _ := g.groupEpoch()
		target, _ := g.targetEpoch()
		if target > epoch {
			panic(fmt.Sprintf("%s: target epoch %d above group epoch %d\n%s", id, target, epoch, r.out.String()))
		}
		owners := map[partitionID]string{}
		for _, member := range sortedKeys(g.currents.Newest()) {
			v := g.currentOf(member)
			if v.Epoch > target {
				panic(fmt.Sprintf("%s: %s is in epoch %d, above the target's %d\n%s", id, member, v.Epoch, target, r.out.String()))
			}
			for _, list := range [][]TopicPartitions{v.Assigned, v.Revoking} {
				for p := range eachPartition(list) {
					if other, taken := owners[p]; taken {
						panic(fmt.Sprintf("%s: %s-%d belongs to %s and to %s\n%s", id, topicName(p.topic), p.partition, other, member, r.out.String()))
					}
					owners[p] = member
					if g.owners[p] != member {
						panic(fmt.Sprintf("%s: the owner of %s-%d is %s, and counts as %s", id, topicName(p.topic), p.partition, member, g.owners[p]))
					}
				}
			}
		}
		if len(owners) != len(g.owners) {
			panic(fmt.Sprintf("%s: %d partitions are owned, %d count as such", id, len(owners), len(g.owners)))
		}
	}
}

// sets makes assignments comparable.
func setWords(sets []ownedSet) []string {
	var words []string
	for _, set := range sets {
		words = append(words, partitionWords(listOf(set)))
	}
	return words
}

func TestC022_range(t *testing.T) {
	// Members a, b, c, all on T with 4 partitions and U with 3: a gets T0, T1, U0, b T2, U1, c T3, U2; static members come first, by instance id.
	t.Parallel()
	T, U := idOf("T"), idOf("U")
	partitions := map[[16]byte]int32{T: 4, U: 3}
	members := []assignee{{id: "b", topics: [][16]byte{T, U}}, {id: "c", topics: [][16]byte{T, U}}, {id: "a", topics: [][16]byte{T, U}}}
	if got, want := setWords(assignRange(members, partitions)), []string{"T:2;U:1", "T:3;U:2", "T:0,1;U:0"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	one := "i1"
	members[1].instanceID = &one
	if got, want := setWords(assignRange(members, partitions)), []string{"T:3;U:2", "T:0,1;U:0", "T:2;U:1"}; !slices.Equal(got, want) {
		t.Errorf("with a static member: %v, want %v", got, want)
	}
	members[0].topics = [][16]byte{U}
	if got, want := setWords(assignRange(members, partitions)), []string{"U:2", "T:0,1;U:0", "T:2,3;U:1"}; !slices.Equal(got, want) {
		t.Errorf("with subscriptions that differ: %v, want %v", got, want)
	}
}

// consumerConfig are Kafka's settings, but for the pause between assignments: none unless the conversation sets one.
func consumerConfig(st step) func(*metadata.Image, string) ConsumerSettings {
	return func(*metadata.Image, string) ConsumerSettings {
		return ConsumerSettings{
			SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second,
			AssignmentInterval: time.Duration(st.int("interval", 0)) * time.Millisecond,
		}
	}
}

func TestC025_regex_sees_what_its_client_may(t *testing.T) {
	// Of the topics that match a regular expression only those count that the client may describe.
	t.Parallel()
	r := newRig(Config{})
	r.setTopics([]string{"seen:1", "secret:1"})
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis = 1, "g", "m", 60000
	req.Topics, req.SubscribedTopicRegex = []kmsg.ConsumerGroupHeartbeatRequestTopic{}, kmsg.StringPtr(".*")
	client := RequestContext{MayDescribe: func(topic string) bool { return topic != "secret" }}
	r.apply(r.s.ConsumerGroupHeartbeat(r.now, r.handle("m"), client, req))
	if _, err := r.step(parseStep("resolve")); err != nil {
		t.Fatal(err)
	}
	if v, ok := r.s.replicated.consumers["g"].regexes.Get(".*"); !ok || !slices.Equal(v.Topics, []string{"seen"}) {
		t.Errorf("%+v, %t", v, ok)
	}
}
