package group

import "testing"

// Each of these runs the conversation of its name in testdata.

func TestB017_null_metadata(t *testing.T) {
	// Null metadata is stored and comes back as the empty string, also after a restart.
	converse(t, "B017")
}

func TestB019_leaving_lets_the_rebalance_finish(t *testing.T) {
	// Three members, a fourth joins, two rejoin, and the third leaves instead: the joins are answered at
	// once.
	converse(t, "B019")
}

func TestB021_member_id_required_by_version(t *testing.T) {
	// Member ids are asked for of version 4 and up only, and never of static members.
	converse(t, "B021")
}

func TestB048_stand_alone_commits(t *testing.T) {
	// Who may commit: anybody where nobody is a member, and members only where somebody is.
	converse(t, "B048")
}

func TestB050_static_member_restarts(t *testing.T) {
	// Static members restart while Preparing: parked with a new id; the old id is fenced everywhere.
	converse(t, "B050")
}

func TestB054_describe_and_list(t *testing.T) {
	// Describing and listing: an unknown group, an Empty one with commits, one with a parked member.
	converse(t, "B054")
}

func TestB072_transaction_partly_refused(t *testing.T) {
	// A transaction in which one partition was refused for its metadata: what was accepted becomes
	// visible, and no fetch is told "unstable" for ever.
	converse(t, "B072")
}

func TestB076_transaction_of_a_stranger(t *testing.T) {
	// Offsets in a transaction are accepted of members only, or of producers that say nothing of the
	// group.
	converse(t, "B076")
}

func TestB093_committed_epoch_comes_back(t *testing.T) {
	// The epoch of a commit comes back as it was sent, before and after a restart; -1 where there was
	// none.
	converse(t, "B093")
}

func TestG003_two_members_initial_delay(t *testing.T) {
	// Two members, and an initial rebalance delay of 3000 ms: the group waits once more because B came
	// during the first wait, and then completes.
	converse(t, "G003")
}

func TestG004_short_rebalance_timeout(t *testing.T) {
	// As G003, but a rebalance timeout of 5000 ms bounds the waiting: the join phase ends 5000 ms after it
	// began.
	converse(t, "G004")
}

func TestG005_no_initial_delay(t *testing.T) {
	// With no delay a single member has its generation at once.
	converse(t, "G005")
}

func TestG006_session_timeout_bounds(t *testing.T) {
	// Session timeouts from 6000 to 1800000 ms are allowed, both inclusive.
	converse(t, "G006")
}

func TestG007_no_such_group(t *testing.T) {
	// An empty group id is invalid everywhere; a member id is unknown in a group that is unknown.
	converse(t, "G007")
}

func TestG009_protocols_refused(t *testing.T) {
	// A join of another protocol type, or with no protocol in common, is refused and disturbs nobody; so
	// is one without type or protocols, and it makes no group.
	converse(t, "G009")
}

func TestG011_group_full(t *testing.T) {
	// A full group refuses a third member, with an empty member id.
	converse(t, "G011")
}

func TestG012_group_too_large_after_load(t *testing.T) {
	// A group of three is loaded where two are the limit: it rebalances, and the last to rejoin is
	// refused.
	converse(t, "G012")
}

func TestG013_protocol_vote(t *testing.T) {
	// Protocols a>b, b>a and b>a: b has the most votes.
	converse(t, "G013")
}

func TestG014_member_dies(t *testing.T) {
	// A member dies. The others learn of it at their next heartbeat, and the one that is left has its new
	// generation as soon as it rejoins.
	converse(t, "G014")
}

func TestG015_leader_leaves(t *testing.T) {
	// The leader leaves; the other member leads.
	converse(t, "G015")
}

func TestG016_join_while_completing(t *testing.T) {
	// A member joins while the leader computes the assignment: the parked sync is told to rejoin, and so
	// is the leader when it comes with an assignment for the old generation.
	converse(t, "G016")
}

func TestG017_sync_timeout(t *testing.T) {
	// The leader never syncs: after the rebalance timeout it is removed, and the others rejoin.
	converse(t, "G017")
}

func TestG018_same_join_while_completing(t *testing.T) {
	// A member that missed its join answer asks again while Completing: it is told the generation as it
	// is, the leader with the members.
	converse(t, "G018")
}

func TestG019_same_join_while_stable(t *testing.T) {
	// The same join again while Stable: a follower is told the generation as it is, the leader causes a
	// rebalance.
	converse(t, "G019")
}

func TestG020_static_follower_restarts(t *testing.T) {
	// A static follower restarts: same generation, its old assignment, and nobody else notices. The old
	// member id is fenced.
	converse(t, "G020")
}

func TestG021_static_leader_restarts(t *testing.T) {
	// A static leader restarts: with version 9 it leads on and skips the assignment; with version 8 it is
	// told the old leader id, so that it acts as a follower.
	converse(t, "G021")
}

func TestG022_static_restart_changes_protocol(t *testing.T) {
	// A static member restarts with protocols that change the choice: a rebalance.
	converse(t, "G022")
}

func TestG023_static_restart_while_completing(t *testing.T) {
	// A static member restarts while Completing: the syncs of the others are told to rejoin.
	converse(t, "G023")
}

func TestG024_static_restart_fences_parked_join(t *testing.T) {
	// A static member restarts while its old join is parked: that one is fenced.
	converse(t, "G024")
}

func TestG025_duplicate_instance(t *testing.T) {
	// Two processes with one instance id: the second wins, and every request of the first is fenced. An
	// administrator removes the member by its instance id alone.
	converse(t, "G025")
}

func TestG026_static_member_absent(t *testing.T) {
	// A static member is silent in a join phase. Its session ends first: it is removed, and the phase
	// completes.
	converse(t, "G026")
}

func TestG027_cooperative(t *testing.T) {
	// Cooperative rebalancing is two ordinary rebalances, no more and no fewer.
	converse(t, "G027")
}

func TestG028_pending_member_expires(t *testing.T) {
	// A pending member that never comes is forgotten after its session timeout, and the join phase
	// completes.
	converse(t, "G028")
}

func TestG029_new_member_parked_too_long(t *testing.T) {
	// A new member is parked for longer than 300000 ms without a completion: it is told so, with no member
	// id.
	converse(t, "G029")
}

func TestG030_sync_names_the_protocol(t *testing.T) {
	// SyncGroup of version 5 and up says protocol type and name, and they must be the group's.
	converse(t, "G030")
}

func TestG031_follower_syncs_first(t *testing.T) {
	// A follower syncs before the leader: both are answered when the assignment is committed.
	converse(t, "G031")
}

func TestG032_leader_omits_a_member(t *testing.T) {
	// The leader leaves a member out and names a stranger: the one gets an empty assignment, the other
	// nothing.
	converse(t, "G032")
}

func TestG033_sync_append_fails(t *testing.T) {
	// The append of the leader's assignment fails: every parked sync is told, and the group is Preparing
	// again.
	converse(t, "G033")
}

func TestG034_heartbeat_while_preparing(t *testing.T) {
	// Heartbeats while Preparing: the right generation is told to rejoin, a wrong one is wrong.
	converse(t, "G034")
}

func TestG036_leave_several(t *testing.T) {
	// Two members and a stranger leave in one request: one rebalance.
	converse(t, "G036")
}

func TestG040_delete_groups(t *testing.T) {
	// DeleteGroups: a group with members stays, an Empty one goes with its offsets, an unknown one is
	// unknown.
	converse(t, "G040")
}

func TestG041_simple_consumer(t *testing.T) {
	// A simple consumer: offsets without a group. They make a group that is listed and described.
	converse(t, "G041")
}

func TestG042_commit_to_empty_group(t *testing.T) {
	// Commits to an Empty group: an administrator's is stored, an old member's is not.
	converse(t, "G042")
}

func TestG044_who_may_commit_when(t *testing.T) {
	// A member may commit while Stable and while Preparing, and not while Completing; a stranger never.
	converse(t, "G044")
}

func TestG045_metadata_size(t *testing.T) {
	// Metadata of 4096 is stored and of 4097 is not, each partition on its own.
	converse(t, "G045")
}

func TestG046_commits_keep_the_session(t *testing.T) {
	// A member that only commits lives.
	converse(t, "G046")
}

func TestG047_retention_from_becoming_empty(t *testing.T) {
	// A group that became Empty keeps its offsets for their retention from then on, however old they are;
	// then the group goes with them.
	converse(t, "G047")
}

func TestG049_other_type_keeps_offsets(t *testing.T) {
	// A group of another protocol type with members keeps its offsets.
	converse(t, "G049")
}

func TestG050_simple_group_expires(t *testing.T) {
	// A simple group goes when its last commit is older than the retention.
	converse(t, "G050")
}

func TestG051_empty_group_without_offsets(t *testing.T) {
	// A group that is Empty and has no offsets goes at the next look, pending member or not.
	converse(t, "G051")
}

func TestG052_retention_of_the_commit(t *testing.T) {
	// A commit of version 4 brings its own retention: it expires by that, and is written in value version
	// 1.
	converse(t, "G052")
}

func TestG053_offset_delete(t *testing.T) {
	// OffsetDelete: not of topics that a consumer group is subscribed to, and not of a living group of
	// another type.
	converse(t, "G053")
}

func TestG054_topic_deleted(t *testing.T) {
	// A topic is deleted and made again: its offsets are gone, those of a later topic of that name stay,
	// and an offset of another topic id is not shown.
	converse(t, "G054")
}

func TestG055_coordinator_moves(t *testing.T) {
	// The coordinator moves while joins and a sync are parked: all are told, and the new one knows the
	// group as it was last written. The members go on from there.
	converse(t, "G055")
}

func TestAllStaticAbsent(t *testing.T) {
	// Only static members, and none of them joins: the join phase is put off until a session ends or one
	// comes.
	converse(t, "all_static_absent")
}

func TestCreationFails(t *testing.T) {
	// The record that makes a group fails: the group is gone again, and whoever waits is told.
	converse(t, "creation_fails")
}

func TestPendingLeaves(t *testing.T) {
	// A pending member leaves: in a Stable group that causes a rebalance.
	converse(t, "pending_leaves")
}

func TestReads(t *testing.T) {
	// Reads see offsets as of the high watermark, stable ones wait for it, and neither sees what was lost.
	converse(t, "reads")
}

func TestRetries(t *testing.T) {
	// A request that is sent again while the first is parked: the first is answered too, so that each has
	// an answer.
	converse(t, "retries")
}

func TestStaticLeaderAbsent(t *testing.T) {
	// The leader is static and does not come to the join phase: it keeps its place, and a member that
	// joined leads.
	converse(t, "static_leader_absent")
}

func TestStaticFollowerLeaves(t *testing.T) {
	// A static member that is not the leader and leaves by its instance id takes the id along: heartbeats with it are of
	// an unknown member, and the next join with it is one of a new member.
	converse(t, "static_follower_leaves")
}

func TestRetentionOfNothing(t *testing.T) {
	// A commit of version 2 to 4 may ask for a retention of 0 ms, which is over at once; -1 stands for the broker's own.
	converse(t, "retention_of_nothing")
}
