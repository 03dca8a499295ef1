// Package cluster runs a whole cluster of real code in one process: controllers, brokers, replication and clients, in
// virtual time (testing/synctest), on a network and on disks in memory that fail as the seed says.
//
// The seed fixes faults and load, not the order of goroutines: a failure may need its seed more than once. What is
// checked is written against the logs' bytes, the metadata log and the protocol's answers.
package cluster
