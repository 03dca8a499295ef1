package server

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// What a Fetch that waits for records holds, about, in bytes.
const (
	fetchParked          = 2 << 10
	fetchParkedPartition = 512
)

// handleFetch reads records for one Fetch. They stay in their files until the answer
// is on the socket.
//
// v5 log start offset. v7 sessions (KIP-227). v9 leader epoch. v10 zstd. v11 rack and
// preferred replica. v12 flexible, last fetched epoch and diverging epoch. v13 topic ids.
// v15 replica state. v16 leaders' addresses (KIP-951).
func (a *brokerAPI) handleFetch(r *Request) Response {
	req := r.Fetch
	resp := &wire.FetchResponse{Version: req.Version}
	release := func() {}
	if session, err := a.sessions.begin(req); err != nil {
		resp.ErrorCode = sessionErrorCode(err)
	} else {
		release = a.fetch(r, req, resp, session)
	}
	frame, err := resp.Append(r.CorrelationID)
	if err != nil {
		release()
		return CloseConnection(err)
	}
	return ReplySegments(frame, release)
}

// fetch fills the answer. Its records stay in their files until release.
func (a *brokerAPI) fetch(r *Request, req *kmsg.FetchRequest, resp *wire.FetchResponse, session *fetchContext) (release func()) {
	targets, refused := a.admitFetch(r, req, session)
	query := replica.FetchRequest{
		ReplicaID: max(req.ReplicaID, replica.DebugConsumerID), ReplicaEpoch: req.ReplicaState.Epoch, Version: req.Version,
		MinBytes: int(req.MinBytes), MaxBytes: int(req.MaxBytes), MaxWait: time.Duration(req.MaxWaitMillis) * time.Millisecond,
		Isolation: replica.Isolation(req.IsolationLevel), RackID: req.Rack, Partitions: targets,
	}
	if len(refused) > 0 {
		query.MaxWait = 0 // an error is news: it does not wait for records of others
	}
	if query.MaxWait > 0 && !r.Park(fetchParked+int64(len(session.targets))*fetchParkedPartition) {
		query.MaxWait = 0 // it may answer with less than was asked for at any time
	}
	result := a.Replicas.Fetch(r.Context(), query)
	a.fetchResponse(r, req, resp, session, refused, result)
	return result.Release
}

func sessionErrorCode(err error) int16 {
	switch {
	case errors.Is(err, errSessionNotFound):
		return kerr.FetchSessionIDNotFound.Code
	case errors.Is(err, errSessionEpochInvalid):
		return kerr.InvalidFetchSessionEpoch.Code
	case errors.Is(err, errSessionTopicID):
		return kerr.FetchSessionTopicIDError.Code
	}
	return kerr.UnknownServerError.Code
}

// admitFetch resolves topics and asks the authorizer. What it refuses is answered
// beside what replicas answer, in the order of the request.
func (a *brokerAPI) admitFetch(r *Request, req *kmsg.FetchRequest, session *fetchContext) ([]replica.FetchPartition, map[int]error) {
	image := a.image()
	clusterDenied := req.ReplicaID >= 0 && !r.mayCluster(security.ClusterAction)
	refused := map[int]error{}
	admitted := make([]replica.FetchPartition, 0, len(session.targets))
	for i := range session.targets {
		t := &session.targets[i]
		name := t.topic
		if t.topicID != ([16]byte{}) {
			topic, ok := image.TopicByID(t.topicID)
			if ok && t.name != topic.Name {
				session.named(t, topic.Name)
			}
			name = t.name // of a session whose topic was deleted: the error is that of the partition, or of its successor's id
		}
		switch {
		case clusterDenied:
			refused[i] = kerr.TopicAuthorizationFailed
		case req.Version >= 13 && name == "":
			refused[i] = kerr.UnknownTopicID
		case req.ReplicaID < 0 && !r.mayTopic(security.Read, name):
			refused[i] = kerr.TopicAuthorizationFailed
		case req.Version < zstdFetch && req.ReplicaID < 0 && a.packsZstd(image, name):
			refused[i] = kerr.UnsupportedCompressionType
		default:
			if _, ok := image.Partition(name, t.partition); !ok {
				refused[i] = kerr.UnknownTopicOrPartition
				continue
			}
			admitted = append(admitted, replica.FetchPartition{
				Topic: name, TopicID: metadata.UUID(t.topicID), Partition: t.partition, CurrentLeaderEpoch: t.currentLeaderEpoch,
				FetchOffset: t.fetchOffset, LastFetchedEpoch: t.lastFetchedEpoch, LogStartOffset: t.logStartOffset, MaxBytes: int(t.maxBytes),
			})
		}
	}
	return admitted, refused
}

// zstdFetch is the first version whose clients are taken to know zstd.
const zstdFetch = 10

// packsZstd says whether a topic's records are all packed with zstd, which older clients cannot read. What producers
// packed so by themselves, into other topics, is passed on as it is.
func (a *brokerAPI) packsZstd(image *metadata.Image, topic string) bool {
	stored := image.Config(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: topic})
	return layers(image, a.Config, a.ID).Topic(stored).String("compression.type") == "zstd"
}

// fetchResponse lays out the answer, partitions of one topic that follow each other
// together.
func (a *brokerAPI) fetchResponse(r *Request, req *kmsg.FetchRequest, resp *wire.FetchResponse, session *fetchContext, refused map[int]error, result *replica.FetchResult) {
	resp.SessionID = session.sessionID
	endpoints := leaderEndpoints{image: a.image(), listener: r.Listener}
	next := 0
	for i := range session.targets {
		t := &session.targets[i]
		p := emptyFetchPartition(t.partition)
		if err := refused[i]; err != nil {
			p.ErrorCode = errorCode(err)
		} else {
			fillFetchPartition(&p, &result.Partitions[next], req, &endpoints)
			next++
		}
		seen := fetched{
			key: t.fetchKey, bytes: p.Range.Length, failed: p.ErrorCode != 0, highWatermark: p.HighWatermark, logStartOffset: p.LogStartOffset,
			redirected: p.PreferredReadReplica >= 0 || p.DivergingEpoch.Epoch >= 0,
		}
		if !session.include(seen) {
			continue
		}
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != t.topic || resp.Topics[n-1].TopicID != t.topicID {
			resp.Topics = append(resp.Topics, wire.FetchResponseTopic{Topic: t.topic, TopicID: t.topicID})
		}
		topic := &resp.Topics[len(resp.Topics)-1]
		topic.Partitions = append(topic.Partitions, p)
	}
	if req.Version >= 16 {
		resp.Brokers = endpoints.found
	}
}

func emptyFetchPartition(partition int32) wire.FetchResponsePartition {
	p := wire.FetchResponsePartition{FetchResponseTopicPartition: kmsg.NewFetchResponseTopicPartition()}
	p.Partition = partition
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset, p.PreferredReadReplica = -1, -1, -1, -1
	p.RecordBatches = []byte{}
	return p
}

func fillFetchPartition(p *wire.FetchResponsePartition, f *replica.FetchedPartition, req *kmsg.FetchRequest, endpoints *leaderEndpoints) {
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = f.HighWatermark, f.LastStableOffset, f.LogStartOffset
	p.PreferredReadReplica = f.PreferredReadReplica
	if f.Err != nil {
		p.ErrorCode = storageErrorBefore(6, req.Version, errorCode(f.Err))
		if current, ok := currentLeader(f.Err); ok && req.Version >= 16 {
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = current.Leader, current.Epoch
			endpoints.add(current.Leader)
		}
		return
	}
	if f.HasDiverging {
		p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = f.DivergingEpoch.Epoch, f.DivergingEpoch.Offset
	}
	if f.Records.Length > 0 {
		p.Range = wire.FileRange{File: f.Records.File, Position: f.Records.Position, Length: f.Records.Length}
	}
	if replica.Isolation(req.IsolationLevel) == replica.ReadCommitted {
		p.AbortedTransactions = abortedOf(f.AbortedTxns)
	}
}

func abortedOf(txns []log.AbortedTxn) []kmsg.FetchResponseTopicPartitionAbortedTransaction {
	aborted := make([]kmsg.FetchResponseTopicPartitionAbortedTransaction, 0, len(txns))
	for _, txn := range txns {
		a := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		a.ProducerID, a.FirstOffset = txn.ProducerID, txn.FirstOffset
		aborted = append(aborted, a)
	}
	return aborted
}

// currentLeader is the leader that an error knows of: those of a wrong or fenced
// leader carry it.
func currentLeader(err error) (replica.LeaderAndEpoch, bool) {
	var elsewhere *replica.NotLeaderOrFollowerError
	var fenced *replica.FencedLeaderEpochError
	switch {
	case errors.As(err, &elsewhere):
		return elsewhere.Current, true
	case errors.As(err, &fenced):
		return fenced.Current, true
	}
	return replica.LeaderAndEpoch{}, false
}
