package broker

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// fakeController speaks just enough of a controller listener to lead a broker: it
// serves a metadata log that the test writes, and says what it is told to say.
type fakeController struct {
	t        *testing.T
	listener net.Listener // nil: it is reached by pipes only
	serving  sync.WaitGroup

	mu            sync.Mutex
	grown         chan struct{} // closed and replaced when the log or a rule changes
	log           []record.Batch
	end, hw       int64
	epoch         int32
	snapshot      []byte
	snapshotID    [2]int64 // end offset, epoch
	diverge       *kmsg.FetchResponseTopicPartitionDivergingEpoch
	notController int   // answers NOT_CONTROLLER to so many registrations
	registerCode  int16 // what registrations are answered
	heartbeatCode int16 // what heartbeats are answered
	wantShutdown  bool
	registrations int
	refusePlaces  int                            // so many requests with places are refused
	places        map[replicaPlace]metadata.UUID // what the broker told of its replicas
	asked         []string                       // pieces of snapshots: end offset, epoch, position, under which leader epoch
	onPiece       func(position int64)           // called, without the lock, before a piece is answered
	conns         map[net.Conn]bool
}

func newFakeController(t *testing.T) *fakeController {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeController{t: t, listener: l, grown: make(chan struct{}), epoch: 1, conns: map[net.Conn]bool{}}
	f.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns[conn] = true
			f.mu.Unlock()
			f.serving.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		for conn := range f.conns {
			conn.Close()
		}
		f.mu.Unlock()
		f.change(func() {})
		f.serving.Wait()
	})
	return f
}

// change alters the fake under its lock and wakes parked fetches.
func (f *fakeController) change(alter func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alter()
	close(f.grown)
	f.grown = make(chan struct{})
}

// append writes one batch of records; committed raises the high watermark to its end.
func (f *fakeController) append(committed bool, records ...metadata.Record) {
	f.t.Helper()
	b := record.NewBuilder(record.BuilderOptions{})
	for _, rec := range records {
		value, err := metadata.AppendRecord(nil, rec, metadata.LevelLatest.RecordVersion(rec))
		if err != nil {
			f.t.Fatal(err)
		}
		if err := b.Append(1, nil, value, nil); err != nil {
			f.t.Fatal(err)
		}
	}
	f.change(func() {
		batch := b.Bytes()
		batch.SetBaseOffset(f.end)
		batch.SetPartitionLeaderEpoch(f.epoch)
		f.log = append(f.log, batch)
		f.end = batch.NextOffset()
		if committed {
			f.hw = f.end
		}
	})
}

func (f *fakeController) serve(conn net.Conn) {
	defer conn.Close()
	var names wire.Names
	for {
		frame, err := wire.ReadFrame(conn, wire.DefaultMaxFrame)
		if err != nil {
			return
		}
		header, body, err := wire.DecodeRequestHeader(frame.B, &names)
		if err != nil {
			return
		}
		req := kmsg.RequestForKey(header.Key)
		req.SetVersion(header.Version)
		if err := req.ReadFrom(body); err != nil {
			f.t.Errorf("%T: %v", req, err)
			return
		}
		resp := f.answer(req)
		resp.SetVersion(header.Version)
		out := wire.AppendFrame(nil, func(b []byte) []byte {
			return resp.AppendTo(wire.AppendResponseHeader(b, header.Key, header.CorrelationID, resp.IsFlexible()))
		})
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func (f *fakeController) answer(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
		for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.FetchSnapshot, kmsg.BrokerRegistration, kmsg.BrokerHeartbeat, kmsg.AllocateProducerIDs, kmsg.AssignReplicasToDirs} {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MaxVersion = int16(key), kmsg.RequestForKey(int16(key)).MaxVersion()
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
		return resp
	case *kmsg.FetchRequest:
		return f.fetch(req)
	case *kmsg.FetchSnapshotRequest:
		return f.fetchSnapshot(req)
	case *kmsg.BrokerRegistrationRequest:
		return f.register(req)
	case *kmsg.BrokerHeartbeatRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		resp := req.ResponseKind().(*kmsg.BrokerHeartbeatResponse)
		resp.ErrorCode = f.heartbeatCode
		resp.IsCaughtUp = req.CurrentMetadataOffset >= 0
		resp.IsFenced = req.WantFence
		resp.ShouldShutdown = req.WantShutdown && f.wantShutdown
		return resp
	case *kmsg.AssignReplicasToDirsRequest:
		return f.assign(req)
	case *kmsg.AllocateProducerIDsRequest:
		resp := req.ResponseKind().(*kmsg.AllocateProducerIDsResponse)
		resp.ProducerIDStart, resp.ProducerIDLen = 5000, 3
		return resp
	}
	f.t.Errorf("unexpected request %T", req)
	return req.ResponseKind()
}

func (f *fakeController) register(req *kmsg.BrokerRegistrationRequest) kmsg.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := req.ResponseKind().(*kmsg.BrokerRegistrationResponse)
	f.registrations++
	if f.notController > 0 {
		f.notController--
		resp.ErrorCode = 41
		return resp
	}
	if f.registerCode != 0 {
		resp.ErrorCode = f.registerCode
		return resp
	}
	resp.BrokerEpoch = 77
	return resp
}

func (f *fakeController) fetch(req *kmsg.FetchRequest) kmsg.Response {
	asked := req.Topics[0].Partitions[0]
	deadline := time.NewTimer(time.Duration(req.MaxWaitMillis) * time.Millisecond)
	defer deadline.Stop()
	for expired := false; ; {
		f.mu.Lock()
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		p := kmsg.NewFetchResponseTopicPartition()
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 1, f.epoch
		p.HighWatermark = f.hw
		news := true
		switch {
		case asked.CurrentLeaderEpoch < f.epoch:
			p.ErrorCode = 74
			p.HighWatermark = -1
		case f.snapshot != nil && asked.FetchOffset == 0:
			p.SnapshotID.EndOffset, p.SnapshotID.Epoch = f.snapshotID[0], int32(f.snapshotID[1])
		case f.diverge != nil:
			p.DivergingEpoch, f.diverge = *f.diverge, nil
		default:
			for _, batch := range f.log {
				if batch.BaseOffset() >= asked.FetchOffset {
					p.RecordBatches = append(p.RecordBatches, batch...)
				}
			}
			news = len(p.RecordBatches) > 0 || f.hw > asked.HighWatermark
		}
		grown := f.grown
		f.mu.Unlock()
		if news || expired {
			host := kmsg.NewFetchResponseBroker()
			host.NodeID, host.Host, host.Port = 1, "pipe", 1
			if f.listener != nil {
				addr := f.listener.Addr().(*net.TCPAddr)
				host.Host, host.Port = addr.IP.String(), int32(addr.Port)
			}
			resp.Brokers = append(resp.Brokers, host)
			topic := kmsg.NewFetchResponseTopic()
			topic.TopicID = metadataTopicID
			topic.Partitions = append(topic.Partitions, p)
			resp.Topics = append(resp.Topics, topic)
			return resp
		}
		select {
		case <-grown:
		case <-deadline.C:
			expired = true
		}
	}
}

func (f *fakeController) fetchSnapshot(req *kmsg.FetchSnapshotRequest) kmsg.Response {
	asked := req.Topics[0].Partitions[0]
	if f.onPiece != nil {
		f.onPiece(asked.Position)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf("%d-%d at %d in %d", asked.SnapshotID.EndOffset, asked.SnapshotID.Epoch, asked.Position, asked.CurrentLeaderEpoch))
	resp := req.ResponseKind().(*kmsg.FetchSnapshotResponse)
	p := kmsg.NewFetchSnapshotResponseTopicPartition()
	p.SnapshotID.EndOffset, p.SnapshotID.Epoch = asked.SnapshotID.EndOffset, asked.SnapshotID.Epoch
	p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 1, f.epoch
	switch {
	case asked.CurrentLeaderEpoch < f.epoch:
		p.ErrorCode = 74
	case asked.SnapshotID.EndOffset != f.snapshotID[0]:
		p.ErrorCode = 98
	default:
		p.Size, p.Position = int64(len(f.snapshot)), asked.Position
		p.Bytes = f.snapshot[asked.Position:min(asked.Position+100, p.Size)] // pieces cut anywhere
	}
	topic := kmsg.NewFetchSnapshotResponseTopic()
	topic.Topic = metadataTopic
	topic.Partitions = append(topic.Partitions, p)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

// leadAnew begins another quorum epoch.
func (f *fakeController) leadAnew() { f.change(func() { f.epoch++ }) }

func (f *fakeController) assign(req *kmsg.AssignReplicasToDirsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AssignReplicasToDirsResponse)
	f.change(func() {
		if f.refusePlaces > 0 {
			f.refusePlaces--
			resp.ErrorCode = 77
			return
		}
		for _, dir := range req.Directories {
			d := kmsg.NewAssignReplicasToDirsResponseDirectory()
			d.ID = dir.ID
			for _, topic := range dir.Topics {
				t := kmsg.NewAssignReplicasToDirsResponseDirectoryTopic()
				t.TopicID = topic.TopicID
				for _, partition := range topic.Partitions {
					if f.places == nil {
						f.places = map[replicaPlace]metadata.UUID{}
					}
					f.places[replicaPlace{topic.TopicID, partition.Partition}] = dir.ID
					p := kmsg.NewAssignReplicasToDirsResponseDirectoryTopicPartition()
					p.Partition = partition.Partition
					t.Partitions = append(t.Partitions, p)
				}
				d.Topics = append(d.Topics, t)
			}
			resp.Directories = append(resp.Directories, d)
		}
	})
	return resp
}
