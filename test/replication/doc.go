// Package replication tests what several brokers do together: real processes, one controller and two or three brokers,
// over their own protocol, with kills and pauses. Each test has a cluster of its own.
package replication
