package group

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Memory counts what the shards of a node hold of groups, their members and committed offsets, roughly, in bytes.
// Clients make up groups, members and offsets as they like, so somebody has to. Shards that share one may be used
// concurrently.
type Memory struct {
	// Max is how much there may be before new members and offsets are refused: ErrGroupMaxSizeReached and
	// ErrInvalidCommitOffsetSize. What is there already goes on.
	Max int64
	n   atomic.Int64
}

// Bytes is how much there is.
func (m *Memory) Bytes() int64 { return m.n.Load() }

// What things take beside the strings and bytes in them, about.
const (
	groupSize    = 1024
	memberSize   = 768
	protocolSize = 64
	offsetSize   = 256

	consumerGroupSize = 2 * groupSize
)

// held is a shard's part of the memory. A nil shared one counts nothing and has no limit.
type held struct {
	shared *Memory
	n      int64
}

func (h *held) add(n int64) {
	if h != nil && h.shared != nil && n != 0 {
		h.n += n
		h.shared.n.Add(n)
	}
}

// room says whether n bytes more may be held.
func (h *held) room(n int64) bool {
	return n <= 0 || h == nil || h.shared == nil || h.shared.n.Load()+n <= h.shared.Max
}

// Release takes what the shard holds off its Memory. The shard must not be used afterwards.
func (s *Shard) Release() { s.held.add(-s.held.n) }

// count brings what is held up to what the member takes now.
func (g *classicGroup) count(m *member) {
	n := int64(memberSize + 2*len(m.id) + len(m.clientID) + len(m.clientHost) + len(m.assignment))
	for i := range m.protocols {
		n += int64(protocolSize + len(m.protocols[i].name) + len(m.protocols[i].metadata))
	}
	g.held.add(n - m.counted)
	m.counted = n
}

func (g *classicGroup) uncount(m *member) {
	g.held.add(-m.counted)
	m.counted = 0
}

// roomToJoin says whether what a join brings may be held: in place of what is held of the member, if it is known.
func (s *Shard) roomToJoin(known *member, req *kmsg.JoinGroupRequest) bool {
	n := int64(memberSize)
	for i := range req.Protocols {
		n += int64(protocolSize + len(req.Protocols[i].Name) + len(req.Protocols[i].Metadata))
	}
	if known != nil {
		n -= known.counted
	}
	return s.held.room(n)
}

func offsetBytes(topic string, v *OffsetCommitValue) int64 {
	return int64(offsetSize + len(topic) + len(v.Metadata))
}

func groupValueBytes(id string, v *GroupMetadataValue) int64 {
	n := int64(groupSize/2 + len(id))
	for i := range v.Members {
		m := &v.Members[i]
		n += int64(memberSize/2 + len(m.MemberID) + len(m.ClientID) + len(m.ClientHost) + len(m.Subscription) + len(m.Assignment))
	}
	return n
}
