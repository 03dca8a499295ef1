package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// The last batches below an end may hold nothing that is shown: records of an aborted transaction whose marker lies above
// the end, or batches that compaction has emptied. The client passes them without a word, so that its consumer would wait
// for ever for the last offset. Whoever stops at the end and hears nothing looks for himself.

// passRest moves the position of partitions to their ends where nothing is left to be shown below them.
func (o *consumeOptions) passRest(ctx context.Context, client *kgo.Client, p *progress) error {
	for at, from := range p.unfinished() {
		next := from
		for next < p.endOf(at) {
			batches, aborted, err := o.fetchOnce(ctx, client, at, next)
			if err != nil {
				return failed("consume "+at.Topic, err)
			}
			before := next
			if next = passed(batches, aborted, from, next, p.endOf(at)); next == before {
				break
			}
		}
		if next >= p.endOf(at) {
			p.pass(at, next)
		}
	}
	return nil
}

// passed is the offset after those batches from next on that show nothing at or above from.
func passed(batches []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, from, next, end int64) int64 {
	slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(a.FirstOffset, b.FirstOffset)
	})
	hidden := map[int64]bool{}
	for b, err := range record.Batches(batches) {
		if err != nil || next >= end {
			break // a batch that was cut short, or the end
		}
		for len(aborted) > 0 && aborted[0].FirstOffset <= b.LastOffset() {
			hidden[aborted[0].ProducerID], aborted = true, aborted[1:]
		}
		switch m, isMarker, err := record.ParseEndTxnMarker(b); {
		case err != nil:
			return next
		case isMarker && !m.Commit:
			delete(hidden, b.ProducerID())
		case !b.IsControl() && b.Count() > 0 && b.LastOffset() >= from && !(b.IsTransactional() && hidden[b.ProducerID()]):
			return next
		}
		next = max(next, b.NextOffset())
	}
	return next
}

// fetchOnce reads one partition from an offset, without waiting.
func (o *consumeOptions) fetchOnce(ctx context.Context, client *kgo.Client, at topicPartition, offset int64) ([]byte, []kmsg.FetchResponseTopicPartitionAbortedTransaction, error) {
	metadata, err := kadm.NewClient(client).Metadata(ctx, at.Topic)
	if err != nil {
		return nil, nil, err
	}
	topic := metadata.Topics[at.Topic]
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset, p.PartitionMaxBytes = at.Partition, offset, -1, -1, -1, 1<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID, t.Partitions = at.Topic, topic.ID, append(t.Partitions, p)
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.SessionEpoch, req.Topics = -1, 1<<20, -1, append(req.Topics, t)
	if o.isolation == "read_committed" {
		req.IsolationLevel = 1
	}
	resp, err := client.Broker(int(topic.Partitions[at.Partition].Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range resp.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			return p.RecordBatches, p.AbortedTransactions, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return nil, nil, kerr.ErrorForCode(resp.(*kmsg.FetchResponse).ErrorCode)
}
