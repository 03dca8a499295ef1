package replication

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// E-015: the only replica's broker is stopped: Metadata from the other says LEADER_NOT_AVAILABLE, leader -1 and the next leader
// epoch; when it is back, it leads in the epoch after that.
func TestE015_the_only_replica_stops_and_returns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.create("alone", []int32{2})
	was := c.led("alone", 2, 2)
	ask := func() kmsg.MetadataResponseTopicPartition {
		req := kmsg.NewPtrMetadataRequest()
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr("alone")
		req.Topics = append(req.Topics, topic)
		resp := must[*kmsg.MetadataResponse](c, 1, req)
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			t.Fatalf("metadata %+v", resp.Topics)
		}
		return resp.Topics[0].Partitions[0]
	}
	c.brokers[2].stop()
	c.state("alone", func(s state) bool { return s.leader == -1 })
	if p := ask(); p.ErrorCode != 5 || p.Leader != -1 || p.LeaderEpoch != was.epoch+1 {
		t.Errorf("without its broker: error %d, leader %d, leader epoch %d after %d", p.ErrorCode, p.Leader, p.LeaderEpoch, was.epoch)
	}
	c.brokers[2].start()
	c.led("alone", 2, 2)
	if p := ask(); p.ErrorCode != 0 || p.Leader != 2 || p.LeaderEpoch != was.epoch+2 {
		t.Errorf("with its broker: error %d, leader %d, leader epoch %d after %d", p.ErrorCode, p.Leader, p.LeaderEpoch, was.epoch)
	}
}
