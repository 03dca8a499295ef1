package differential

import "github.com/twmb/franz-go/pkg/kmsg"

// Finding is one difference between an answer of Apache Kafka and Stele's answer to the same request.
type Finding struct {
	Key, Version int16
	// Path is the field, such as Topics[].Partitions[].ErrorCode, or "(fate)" for what became of the request as a whole.
	Path string
	// Kafka and Stele are the two values as text.
	Kafka, Stele string
	// Request is what was sent, with symbols for ids; nil when the bytes were none.
	Request kmsg.Request
	// KafkaElement and SteleElement are the innermost structs of the two answers around the field, nil when there is none.
	KafkaElement, SteleElement any
	// KafkaAnswer and SteleAnswer are the outermost, nil when there is none.
	KafkaAnswer, SteleAnswer any
	// Malformed says that the bytes of the request were damaged on purpose, Odd that some of its fields were.
	Malformed, Odd bool
}
