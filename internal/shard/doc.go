// Package shard is what the pure coordinator shards have in common: the effects of an event, the replies among
// them, and replicated tables that can be taken back to an earlier offset. Groups and transactions are built on
// it, and the coordinator's runtime hosts either alike.
//
// Nothing in here knows a clock, a goroutine, a socket or a file, and nothing is safe for concurrent use.
package shard
