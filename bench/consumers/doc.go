// Package consumers measures the consumer package beside kgo's own consumer, on the same topic of the same node:
//
//	go test -bench . -benchtime 5x ./bench/consumers
//
// The node is a process of its own. With BENCH_BROKER=host:port it is one that runs already, Apache Kafka for instance.
package consumers
