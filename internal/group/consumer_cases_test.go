package group

import "testing"

func TestC005_changing_protocol_when_empty(t *testing.T) {
	// An epoch of a group that is not known, and leaving one, are answered that there is none; a group goes over to the other protocol when it is empty.
	converse(t, "C005")
}

func TestC006_first_member(t *testing.T) {
	// The first member of a group gets all of its topic in epoch 2 (records 5, 3, 7, 6, 8).
	converse(t, "C006")
}

func TestC007_second_member(t *testing.T) {
	// A second member: the first lets go of half, says so, and only then the second gets it.
	converse(t, "C007")
}

func TestC008_assignment_interval(t *testing.T) {
	// With an assignment interval of 1000 a member that joins 300 after the last target waits for the next one.
	converse(t, "C008")
}

func TestC009_lost_reply(t *testing.T) {
	// A member that missed its last answer goes on if it has nothing that it should not have; others that are behind, or ahead, are fenced.
	converse(t, "C009")
}

func TestC010_member_dies(t *testing.T) {
	// A member that is silent for its session is removed, and its partitions go to the other; it has to join anew.
	converse(t, "C010")
}

func TestC011_revocation_too_slow(t *testing.T) {
	// A member that does not let go within its rebalance timeout is removed, although it heartbeats.
	converse(t, "C011")
}

func TestC012_static_leave_and_return(t *testing.T) {
	// A static member that goes for a while keeps its partitions until its session ends; who comes back under its instance id gets them, and the old process is fenced.
	converse(t, "C012")
}

func TestC013_instance_in_use(t *testing.T) {
	// An instance id in use is not given to another process; its owner goes on.
	converse(t, "C013")
}

func TestC014_acknowledging(t *testing.T) {
	// Revocation is acknowledged only by a list of what is owned without it: not by silence, nor by one that still has it.
	converse(t, "C014")
}

func TestC017_names_change(t *testing.T) {
	// A topic that a member does not name any more is taken from it in the same heartbeat, and the epoch rises.
	converse(t, "C017")
}

func TestC019_topics_change(t *testing.T) {
	// Partitions that are added are assigned at the next heartbeat; those of a deleted topic are gone.
	converse(t, "C019")
}

func TestC024_regular_expressions(t *testing.T) {
	// A regular expression subscribes to nothing until it is resolved; then, and when a topic is made that it matches, the epoch rises. A bad one is refused.
	converse(t, "C024")
}

func TestC026_commits_across_epochs(t *testing.T) {
	// A commit of an earlier epoch counts for partitions that the member had in it and still has; others are stale, and then the whole request is. Below version 9 it is refused.
	converse(t, "C026")
}

func TestC033_load(t *testing.T) {
	// After a load every member is as it was, and its session and the time it has to let go begin anew.
	converse(t, "C033")
}

func TestC028_upgrade_and_downgrade(t *testing.T) {
	// A classic group takes in a member of the consumer protocol and goes on; when that leaves it is a classic group again.
	converse(t, "C028")
}

func TestC029_policies(t *testing.T) {
	// Where the policy forbids it a classic group does not take in a member of the consumer protocol, and a consumer group whose last one leaves stays one.
	converse(t, "C029")
}

func TestC030_classic_requests_in_a_consumer_group(t *testing.T) {
	// In a consumer group a sync before its join, of another generation, or by a member of the consumer protocol is refused; so are heartbeats.
	converse(t, "C030")
}

func TestC021_full_group(t *testing.T) {
	// A full group refuses a new member, but not a static one that comes back.
	converse(t, "C021")
}

func TestB115_fenced_members_come_back(t *testing.T) {
	// A member that is two epochs behind is fenced, and comes back under its id with epoch 0 and its whole assignment: when stable, when it has something to let go of, when it waits for something.
	converse(t, "B115")
}

func TestB117_no_partition_before_it_is_free(t *testing.T) {
	// A third member comes: while the first is silent and still has its partitions nobody else gets them; they go when it has let go of them, or, in the second run, when it has not within its rebalance timeout.
	converse(t, "B117")
}

func TestB119_subscriptions_change(t *testing.T) {
	// Each change of a subscription, and of the topics there are, makes a new epoch, and the next assignment has only topics that are subscribed to and exist.
	converse(t, "B119")
}

func TestFailedConversions(t *testing.T) {
	// What was to change a group and could not be written is done again by the next request: an empty consumer group becomes a classic one, topics that grew are assigned; and a heartbeat that is refused leaves an empty classic group as it was.
	converse(t, "failed_conversions")
}
