package replica

import (
	"cmp"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/log"
)

// LogDirDescription is a log directory with the replicas in it.
type LogDirDescription struct {
	Path string
	// Err is why the directory is offline, nil while it is online; the rest is then empty.
	Err error
	// Total and Usable are the bytes of the volume, -1 when unknown.
	Total, Usable int64
	// Room says how near to full the volume is, nil while that is not known or not looked at; Growing lists the topics
	// that grow fastest there.
	Room    *log.DirRoom
	Growing []log.TopicGrowth
	// Cordoned says that the directory takes no new replicas.
	Cordoned bool
	Replicas []ReplicaDescription
}

// ReplicaDescription is one replica in a log directory.
type ReplicaDescription struct {
	Topic     string
	Partition int32
	Size      int64 // bytes of its segments, indexes not counted
	// OffsetLag is how far the log end is below the high watermark, which is 0 for the replica that serves, or, of a copy that
	// is to take its place, below the log end of that.
	OffsetLag int64
	IsFuture  bool
}

// LogDirs are the paths of the log directories, as MoveReplica knows them.
func (m *Manager) LogDirs() []string { return append(m.o.Dirs.Online(), m.o.Dirs.Offline()...) }

// growingShown is how many of the topics that grow are listed.
const growingShown = 5

// DescribeLogDirs describes every log directory, in the order of the paths, its replicas in order of name.
func (m *Manager) DescribeLogDirs() []LogDirDescription {
	var out []LogDirDescription
	cordoned, rooms := m.o.Dirs.Cordoned(), m.o.Dirs.Room()
	for _, path := range m.o.Dirs.Online() {
		d := LogDirDescription{Path: path, Total: -1, Usable: -1, Cordoned: slices.Contains(cordoned, path)}
		if m.o.Usage != nil {
			if total, usable, err := m.o.Usage(path); err == nil {
				d.Total, d.Usable = total, usable
			}
		}
		if at := slices.IndexFunc(rooms, func(r log.DirRoom) bool { return r.Path == path }); at >= 0 {
			d.Room, d.Growing = &rooms[at], m.o.Dirs.Growing(path, growingShown)
		}
		out = append(out, d)
	}
	for _, path := range m.o.Dirs.Offline() {
		out = append(out, LogDirDescription{Path: path, Total: -1, Usable: -1, Err: &log.StorageError{Dir: path, Op: "use", Err: errOffline, Offline: true}})
	}
	for _, p := range m.partitions() {
		path := p.directory()
		at := slices.IndexFunc(out, func(d LogDirDescription) bool { return d.Path == path })
		if at < 0 || out[at].Err != nil || p.Err() != nil {
			continue
		}
		v := p.log().View()
		out[at].Replicas = append(out[at].Replicas, ReplicaDescription{Topic: p.topic, Partition: p.id, Size: v.Size,
			OffsetLag: max(0, v.HighWatermark-v.EndOffset)})
		v.Release()
	}
	for _, l := range m.o.Dirs.Futures() {
		at := slices.IndexFunc(out, func(d LogDirDescription) bool { return d.Path == l.LogDir() })
		p, err := m.Partition(l.Topic(), l.Partition())
		if at < 0 || err != nil {
			continue
		}
		v := l.View()
		out[at].Replicas = append(out[at].Replicas, ReplicaDescription{Topic: p.topic, Partition: p.id, Size: v.Size,
			OffsetLag: max(0, p.Positions().End-v.EndOffset), IsFuture: true})
		v.Release()
	}
	slices.SortFunc(out, func(a, b LogDirDescription) int { return cmp.Compare(a.Path, b.Path) })
	for i := range out {
		slices.SortFunc(out[i].Replicas, func(a, b ReplicaDescription) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
		})
	}
	return out
}

// ProducerStates are the producers that the log remembers. Any replica answers, whatever its role.
func (p *Partition) ProducerStates() ([]log.ProducerState, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	return p.log().ProducerStates(), nil
}

// lateTxn is how long a coordinator may take to end a transaction whose time is up.
const lateTxn = 5 * time.Minute

// Stats counts the replicas here, for gauges and health.
type Stats struct {
	// Failed are partitions that are not copied any more because of an error here, until their leader epoch rises.
	Failed              int
	Partitions, Leaders int
	// Offline cannot be used: their directory has failed, or their log.
	Offline int
	// Of those led here: with fewer in sync than replicas, and with fewer than min.insync.replicas.
	UnderReplicated, UnderMinISR int
	// AtMinISR of those led here have exactly as many in sync as min.insync.replicas asks for.
	AtMinISR int
	// Waiting is how many requests are parked.
	Waiting int
	// Producers is how many producer ids the logs remember, each counted once for every log.
	Producers int
	// LateTxns counts the partitions with a transaction that is open for longer than any may be: it hangs.
	LateTxns int
}

// Stats counts now.
func (m *Manager) Stats() Stats {
	s := Stats{Waiting: int(m.purgatory.waiting.Load()), Failed: m.fetchers.failed()}
	m.mu.RLock()
	s.Offline = len(m.unopened)
	m.mu.RUnlock()
	for _, p := range m.partitions() {
		s.Partitions++
		if p.Err() != nil {
			s.Offline++
			continue
		}
		s.Producers += p.log().ProducerCount()
		if oldest, ok := p.log().OldestTxn(); ok && m.now().UnixMilli()-oldest > (m.o.TxnMaxTimeout+lateTxn).Milliseconds() {
			s.LateTxns++
		}
		role := p.Role()
		if role.Kind != RoleLeader {
			continue
		}
		s.Leaders++
		if len(role.ISR) < len(role.Replicas) {
			s.UnderReplicated++
		}
		p.mu.Lock()
		switch minISR := p.state.EffectiveMinISR(); {
		case len(role.ISR) < minISR:
			s.UnderMinISR++
		case len(role.ISR) == minISR:
			s.AtMinISR++
		}
		p.mu.Unlock()
	}
	return s
}

// PartitionDescription is how one partition stands on this broker.
type PartitionDescription struct {
	Partition int32
	Positions
	LeaderEpoch int32
	Leading     bool
	InSync      int // replicas in sync, 0 unless leading
	Bytes       int64
	Segments    int
}

// DescribeTopic tells how the usable partitions of a topic stand here, by number.
func (m *Manager) DescribeTopic(topic string) []PartitionDescription {
	var out []PartitionDescription
	for _, p := range m.partitions() {
		if p.topic != topic || p.Err() != nil {
			continue
		}
		role := p.Role()
		d := PartitionDescription{Partition: p.id, Positions: p.Positions(), LeaderEpoch: role.LeaderEpoch, Bytes: p.log().Size(), Segments: p.log().SegmentCount()}
		if d.Leading = role.Kind == RoleLeader; d.Leading {
			d.InSync = len(role.ISR)
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b PartitionDescription) int { return cmp.Compare(a.Partition, b.Partition) })
	return out
}
