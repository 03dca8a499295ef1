package quorum

import (
	pb "go.etcd.io/raft/v3/raftpb"
)

// initialState is the quorum state of a voter that has never voted. The log's first batch gets raft index 2: whoever
// knows nothing of the quorum is then at an index no log reaches down to, and is sent a snapshot, which brings the
// membership; from entries alone it could take itself for the only voter.
func initialState(self Identity, voters []Voter) state {
	start := position{Index: 1}
	members := &pb.ConfState{}
	for _, v := range voters {
		members.Voters = append(members.Voters, raftIDOf(v))
	}
	return state{self: self, commit: start.Index, base: start, snapshot: start, membership: members, voters: voters}
}
