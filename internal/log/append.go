package log

// AppendOrigin says who appends.
type AppendOrigin uint8

// The origins of an append.
const (
	// OriginClient batches are held to every rule of a produce.
	OriginClient AppendOrigin = iota
	// OriginCoordinator batches are the broker's own: records of internal topics, transaction markers.
	OriginCoordinator
	// OriginQuorum batches are stored as they are, offsets and epochs included; they must continue the log.
	OriginQuorum
)

// AppendOptions say how to append as a leader. The zero value is a client's produce of the newest version.
type AppendOptions struct {
	Origin AppendOrigin
	// RequestVersion is the Produce request's version; 0: not to be checked.
	RequestVersion int16
	// CheckEndOffset makes the append fail with *UnexpectedOffsetError unless the end offset is ExpectedEndOffset.
	CheckEndOffset    bool
	ExpectedEndOffset int64
	// TxnVerified says that the transaction coordinator has confirmed the batch's transaction (KIP-890).
	TxnVerified bool
	// TxnV2 marks a marker or batch of transaction.version 2.
	TxnV2 bool
}

// AppendInfo says what an append did.
type AppendInfo struct {
	// BaseOffset and LastOffset are the first and last offset given. When nothing was stored (all batches of a
	// follower's fetch were of a newer epoch) LastOffset is BaseOffset-1.
	BaseOffset, LastOffset int64
	// LogAppendTime in ms, -1 on a CreateTime topic.
	LogAppendTime  int64
	LogStartOffset int64
	// Duplicate says that the batch had been stored before: the offsets are the old ones.
	Duplicate bool
	// MaxTimestamp is the largest timestamp, -1 when no record has one.
	MaxTimestamp int64
	// Bytes that were stored.
	Bytes int
	// Rebuilt says that the batch was compressed anew.
	Rebuilt bool
}

// batchInfo is what an append needs to remember of a batch.
type batchInfo struct {
	at, size     int
	base, last   int64
	epoch        int32
	maxTimestamp int64
}
