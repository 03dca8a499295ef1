package group

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchmarkOffsetCommit is one commit of one partition, replayed and committed.
func BenchmarkOffsetCommit(b *testing.B) {
	r := newRig(Config{})
	req := &kmsg.OffsetCommitRequest{Version: 8, Group: "g", Generation: -1, RetentionTimeMillis: -1, Topics: []kmsg.OffsetCommitRequestTopic{{
		Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 5}},
	}}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		fx := r.s.OffsetCommit(r.now, 1, req)
		r.s.Replay(int64(i), -1, fx.Records[0])
		r.s.Committed(int64(i + 1))
	}
}

// BenchmarkHeartbeat is one heartbeat in a group of so many members.
func BenchmarkHeartbeat(b *testing.B) {
	for _, members := range []int{10, 1000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			r := newRig(Config{})
			v := &GroupMetadataValue{ProtocolType: "consumer", Generation: 1, Protocol: ptr("range"), Leader: ptr("m0")}
			for i := range members {
				v.Members = append(v.Members, GroupMetadataMember{MemberID: fmt.Sprintf("m%d", i), SessionTimeoutMs: 45000, RebalanceTimeoutMs: 60000})
			}
			r.log = []rigRecord{{producerID: -1, rec: &GroupMetadataRecord{Group: "g", Value: v}}}
			r.load()
			req := &kmsg.HeartbeatRequest{Group: "g", Generation: 1, MemberID: fmt.Sprintf("m%d", members-1)}
			b.ReportAllocs()
			for b.Loop() {
				if fx := r.s.Heartbeat(r.now, 1, req); fx.Replies[0].Response.(*HeartbeatReply).Err != nil {
					b.Fatal("refused")
				}
			}
		})
	}
}

// BenchmarkReplay is the loading of a log of commits.
func BenchmarkReplay(b *testing.B) {
	s := NewShard(Config{})
	recs := make([]Record, 1000)
	for i := range recs {
		recs[i] = &OffsetCommitRecord{Group: fmt.Sprintf("g%d", i%50), Topic: "t", Partition: int32(i), Value: &OffsetCommitValue{Offset: 1, ExpireTimestamp: -1}}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Replay(int64(i), -1, recs[i%len(recs)])
		s.Committed(int64(i + 1))
	}
}
