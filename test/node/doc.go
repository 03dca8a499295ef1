// Package node tests one whole node from outside: the stele binary as a process, real
// loopback sockets, and requests laid out by hand in any version of the protocol.
//
// Most tests share one node and bring their own topics; those that restart or stop a
// node have one of their own. With STELE_NODE_TARGET=host:port the tests that share a
// node ask that broker instead, whoever made it: run against Apache Kafka they show
// where a test, or Stele, is wrong about it.
package node
