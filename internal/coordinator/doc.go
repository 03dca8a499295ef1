// Package coordinator hosts the pure coordinator shards on the partitions of
// internal topics: it loads a shard when this broker becomes the leader of its
// partition, runs its events one by one, appends the records they lead to under
// the expected leader epoch, and lets replies leave when the high watermark has
// passed them.
//
// One goroutine owns each shard. Records are replayed into the shard before they
// are appended, so that the next request in the queue sees them; when the append
// fails, the shard is taken back to the base of the batch and every operation in
// it fails. Everything queued meanwhile goes into one batch: under load a commit
// costs a share of an append, at rest it waits for nobody.
package coordinator
