// Package group is the group coordinator as a pure state machine: one Shard holds the groups and the
// committed offsets of one partition of __consumer_offsets. A request and the time go in, records and
// replies come out; nothing in here knows a clock, a goroutine, a socket or a file.
//
// # What a runtime does with a Shard
//
//   - It calls a Shard from one goroutine. Nothing here is safe for concurrent use.
//   - Loading: Replay and ReplayEndTxn for every record from the log start to the log end, Committed
//     with the high watermark, then Loaded. An UnknownRecordTypeError is skipped, any other error of
//     DecodeRecord fails the load.
//   - Running: each call returns Effects. Their records are encoded, appended under the expected leader
//     epoch as one batch, and replayed at once at the offsets they got, so that the next request sees
//     them. A reply marked AfterCommit leaves when the high watermark has passed the shard's last
//     record; the others leave at once.
//   - When the append of a batch fails: Revert to the batch's base offset; then, for every operation
//     that was in it, in order, send Failed(err) in place of each AfterCommit reply and call Finish
//     with its Write and the error. When the high watermark passes: Committed, then Finish with nil.
//   - Time: Tick at NextDeadline. Leadership lost: Unload, and the shard is thrown away.
//
// # Replicated and soft state
//
// Offsets and the last GroupMetadata record of each group are replicated: they change in Replay only,
// Revert takes back what was not committed (an undo log per table), and reads of offsets see them as of
// the last committed offset. The members of classic groups, their states, parked requests and clocks are
// soft: a separate value that a revert does not touch, that reads show as it is, and that is rebuilt from
// the replicated records by Loaded. Four writes have a compensation when they fail, in Finish: the
// leader's SyncGroup, the replacement of a static member, the creation of a group, and its deletion.
//
// # Where classic groups differ from Kafka's, on purpose
//
//   - A request that is sent again while its first is parked takes the first one's place, and the first is
//     answered ErrRebalanceInProgress: no request is left without an answer.
//   - A JoinGroup with a bad protocol type or list makes no group and writes nothing.
//   - A static member that restarts is let in even if its group is full: it takes the place it has.
//   - A tie between protocols goes to the leader's preference.
//   - A restarted static member is described with the client id and host of its new process.
//   - When a member is refused for the size of its group, a join phase that waited for it completes at once.
//   - A second sync of the leader, while its first is not committed, is the one that counts.
package group
