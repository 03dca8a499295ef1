package shard

import "errors"

// Errors of every coordinator, under Kafka's names.
var (
	ErrCoordinatorNotAvailable = errors.New("coordinator not available")
	ErrNotCoordinator          = errors.New("not coordinator")
	ErrUnknownServer           = errors.New("unknown server error")
)

// A ReplyTo is the runtime's handle of one request that waits for its answer. The shard keeps handles of
// parked requests, gives each back exactly once, and never looks inside.
type ReplyTo uint64

// A Reply answers one request.
type Reply struct {
	To       ReplyTo
	Response Response
	// AfterCommit: the reply must wait until the high watermark has passed the effects' last record, or,
	// if they have none, every record of the shard so far. When that append fails, Failed goes instead.
	AfterCommit bool
}

// A Response is the content of an answer, in no version.
type Response interface {
	// Failed is the answer to the same request if its records could not be committed for err.
	Failed(err error) Response
}

// A WriteID names a write whose outcome changes soft state. The runtime hands it to Finish, once.
type WriteID uint64

// Effects is what one event leads to, in the order: append and replay the records, then send the replies
// that are due. R is the shard's kind of record. The zero value is no effect.
type Effects[R any] struct {
	Records []R
	// ProducerID and ProducerEpoch: when HasProducer, the records are one transactional batch of that
	// producer's, and are replayed with its id.
	ProducerID    int64
	ProducerEpoch int16
	HasProducer   bool
	// Guard is the runtime's: what the log wants to see with a transactional batch.
	Guard any
	// Splittable: the records need not be in one batch. Otherwise they are written together or not at all.
	Splittable bool
	Replies    []Reply
	// Write, unless 0, is to be given to Finish when the records are committed or have failed.
	Write WriteID
	// Beside, unless nil, is work that takes long and touches nothing of the shard: it is to be done on another
	// goroutine, and its outcome given to the shard as an event.
	Beside func() any
}

// Append adds records.
func (fx *Effects[R]) Append(recs ...R) { fx.Records = append(fx.Records, recs...) }

// Reply adds a reply that leaves at once.
func (fx *Effects[R]) Reply(to ReplyTo, r Response) {
	fx.Replies = append(fx.Replies, Reply{To: to, Response: r})
}

// ReplyAfterCommit adds one that waits for the records.
func (fx *Effects[R]) ReplyAfterCommit(to ReplyTo, r Response) {
	fx.Replies = append(fx.Replies, Reply{To: to, Response: r, AfterCommit: true})
}
