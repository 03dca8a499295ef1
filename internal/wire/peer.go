package wire

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KeyQuorumPeer is the API by which Stele's controllers speak with each other, in place of Kafka's own consensus (52 to
// 54): served on controller listeners, never advertised, and far from any key that Kafka may come to use.
const KeyQuorumPeer int16 = 32000

var quorumPeer = API{KeyQuorumPeer, "QuorumPeer", 0, 0, 0, onController}

// RequestForKey is an empty request of an API, nil if there is no such API: kmsg's, and ours.
func RequestForKey(key int16) kmsg.Request {
	if key == KeyQuorumPeer {
		return new(QuorumPeerRequest)
	}
	return kmsg.RequestForKey(key)
}

// MaxQuorumPeerMessages is how many of raft's messages one request brings at most.
const MaxQuorumPeerMessages = 1 << 12

// QuorumPeerRequest is what one controller says to another: who it is, what it knows of a quorum that is being formed,
// and raft's messages, if any. Each request says who sends it, so that nothing is remembered with a connection.
type QuorumPeerRequest struct {
	Version int16

	ClusterID   string
	NodeID      int32
	DirectoryID [16]byte
	// Voters is the body of a Voters record: the members as the sender knows them, or would form the quorum of. Empty
	// while it has not heard of all.
	Voters []byte
	// Formed: the sender has these voters on disk.
	Formed bool
	// Self is the body of a Voters record with the sender alone, its endpoints and all.
	Self []byte
	// Messages are raft's, each as its protobuf encoding.
	Messages [][]byte
}

// QuorumPeerResponse is the answer: who was reached, and the same of it.
type QuorumPeerResponse struct {
	Version int16

	ErrorCode    int16
	ErrorMessage *string
	// NewestVersion of this API that the receiver speaks.
	NewestVersion int16
	ClusterID     string
	NodeID        int32
	DirectoryID   [16]byte
	Voters        []byte
	Formed        bool
	Self          []byte
}

func (*QuorumPeerRequest) Key() int16            { return KeyQuorumPeer }
func (*QuorumPeerRequest) MaxVersion() int16     { return quorumPeer.Max }
func (r *QuorumPeerRequest) SetVersion(v int16)  { r.Version = v }
func (r *QuorumPeerRequest) GetVersion() int16   { return r.Version }
func (*QuorumPeerRequest) IsFlexible() bool      { return true }
func (*QuorumPeerResponse) Key() int16           { return KeyQuorumPeer }
func (*QuorumPeerResponse) MaxVersion() int16    { return quorumPeer.Max }
func (r *QuorumPeerResponse) SetVersion(v int16) { r.Version = v }
func (r *QuorumPeerResponse) GetVersion() int16  { return r.Version }
func (*QuorumPeerResponse) IsFlexible() bool     { return true }

// ResponseKind is an empty answer to the request.
func (r *QuorumPeerRequest) ResponseKind() kmsg.Response {
	return &QuorumPeerResponse{Version: r.Version}
}

// RequestKind is an empty request that such an answer could answer.
func (r *QuorumPeerResponse) RequestKind() kmsg.Request {
	return &QuorumPeerRequest{Version: r.Version}
}

// AppendTo appends the request's bytes.
func (r *QuorumPeerRequest) AppendTo(dst []byte) []byte {
	dst = kbin.AppendCompactString(dst, r.ClusterID)
	dst = kbin.AppendInt32(dst, r.NodeID)
	dst = kbin.AppendUuid(dst, r.DirectoryID)
	dst = kbin.AppendCompactBytes(dst, r.Voters)
	dst = kbin.AppendBool(dst, r.Formed)
	dst = kbin.AppendCompactBytes(dst, r.Self)
	dst = kbin.AppendCompactArrayLen(dst, len(r.Messages))
	for _, m := range r.Messages {
		dst = kbin.AppendCompactBytes(dst, m)
	}
	return append(dst, 0)
}

// AppendTo appends the answer's bytes.
func (r *QuorumPeerResponse) AppendTo(dst []byte) []byte {
	dst = kbin.AppendInt16(dst, r.ErrorCode)
	dst = kbin.AppendCompactNullableString(dst, r.ErrorMessage)
	dst = kbin.AppendInt16(dst, r.NewestVersion)
	dst = kbin.AppendCompactString(dst, r.ClusterID)
	dst = kbin.AppendInt32(dst, r.NodeID)
	dst = kbin.AppendUuid(dst, r.DirectoryID)
	dst = kbin.AppendCompactBytes(dst, r.Voters)
	dst = kbin.AppendBool(dst, r.Formed)
	dst = kbin.AppendCompactBytes(dst, r.Self)
	return append(dst, 0)
}

// ReadFrom reads a request. The byte slices alias src.
func (r *QuorumPeerRequest) ReadFrom(src []byte) error {
	b := kbin.Reader{Src: src}
	r.ClusterID, r.NodeID, r.DirectoryID = b.CompactString(), b.Int32(), b.Uuid()
	r.Voters, r.Formed, r.Self = b.CompactBytes(), b.Bool(), b.CompactBytes()
	n := b.CompactArrayLen()
	if !b.Ok() || n < 0 || int(n) > min(len(b.Src), MaxQuorumPeerMessages) {
		return errors.Join(malformed("QuorumPeer names more messages than it has, or may have"), b.Complete())
	}
	r.Messages = make([][]byte, 0, n)
	for range n {
		r.Messages = append(r.Messages, b.CompactBytes())
	}
	skipTags(&b)
	return b.Complete()
}

// ReadFrom reads an answer.
func (r *QuorumPeerResponse) ReadFrom(src []byte) error {
	b := kbin.Reader{Src: src}
	r.ErrorCode, r.ErrorMessage, r.NewestVersion = b.Int16(), b.CompactNullableString(), b.Int16()
	r.ClusterID, r.NodeID, r.DirectoryID = b.CompactString(), b.Int32(), b.Uuid()
	r.Voters, r.Formed, r.Self = b.CompactBytes(), b.Bool(), b.CompactBytes()
	skipTags(&b)
	return b.Complete()
}
