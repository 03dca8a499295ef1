package quorum

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/metadata"
)

// Identity says which disk of which node speaks: what a transport's handshake carries and what a voter is known
// by. A node that lost its disk comes back with another directory id and is therefore somebody else.
type Identity struct {
	ClusterID   string
	NodeID      int32
	DirectoryID metadata.UUID
}

func (i Identity) String() string {
	return fmt.Sprintf("node %d, directory %s, cluster %s", i.NodeID, i.DirectoryID, i.ClusterID)
}

// Voter is a member of the quorum as the Voters control record describes it.
type Voter = metadata.VotersEntry

// endpointOf is the address of a voter on that listener; ok is false if it has none there.
func endpointOf(v Voter, listener string) (metadata.VoterEndpoint, bool) {
	for _, e := range v.Endpoints {
		if e.Name == listener {
			return e, true
		}
	}
	return metadata.VoterEndpoint{}, false
}

// RaftID is what raft calls the pair of node and directory. It is a hash of both, so it is never used again for a
// new disk, needs no registry that could be lost with one, and is the same on every voter. It is never 0 (raft's
// "nobody") nor one of the two largest values (raft's local threads).
func RaftID(nodeID int32, directoryID metadata.UUID) uint64 {
	seed := make([]byte, 0, 21)
	seed = binary.BigEndian.AppendUint32(seed, uint32(nodeID))
	if !mutantWipedVotes {
		seed = append(seed, directoryID[:]...)
	}
	for round := byte(0); ; round++ {
		sum := sha256.Sum256(append(seed, round))
		if id := binary.BigEndian.Uint64(sum[:8]); id != 0 && id < 1<<64-2 {
			return id
		}
	}
}

func raftIDOf(v Voter) uint64 { return RaftID(v.VoterID, v.VoterDirectoryID) }

// ErrNotFormatted says that a directory holds no state of a quorum. A voter never makes one up: a disk that forgot
// its vote could vote twice in one epoch.
var ErrNotFormatted = errors.New("the metadata directory holds no quorum state: format it, or add this node to its quorum again under its new directory id")

// ForeignDiskError says that the quorum state in a directory was written for somebody else.
type ForeignDiskError struct {
	Dir  string
	Want Identity
	Got  Identity
}

func (e *ForeignDiskError) Error() string {
	return fmt.Sprintf("quorum state in %s belongs to %s, this is %s", e.Dir, e.Got, e.Want)
}

// ForeignVoterError says that a peer is refused: its cluster is another, or no voter has that node and directory
// id. Registered is the directory id that the quorum knows for the node, if it knows the node.
type ForeignVoterError struct {
	Peer       Identity
	ClusterID  string
	Registered metadata.UUID
	Known      bool
}

func (e *ForeignVoterError) Error() string {
	switch {
	case e.Peer.ClusterID != e.ClusterID:
		return fmt.Sprintf("peer (%s) is of another cluster, this is %s", e.Peer, e.ClusterID)
	case e.Known:
		return fmt.Sprintf("peer (%s) is not the voter of that node, whose directory is %s: an emptied disk is added as a new voter after the old one was removed", e.Peer, e.Registered)
	default:
		return fmt.Sprintf("peer (%s) is not a voter", e.Peer)
	}
}

// admit checks the identity a peer showed in its handshake against the voters known here.
func admit(clusterID string, voters []Voter, peer Identity) error {
	refused := &ForeignVoterError{Peer: peer, ClusterID: clusterID}
	for _, v := range voters {
		if v.VoterID != peer.NodeID {
			continue
		}
		if (v.VoterDirectoryID == peer.DirectoryID || mutantWipedVotes) && peer.ClusterID == clusterID {
			return nil
		}
		refused.Registered, refused.Known = v.VoterDirectoryID, true
	}
	return refused
}
