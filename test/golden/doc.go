// Package golden keeps a data directory of every landed version, and opens each with the
// newest code: records, offsets, leader epochs, commits and settings must be those that
// were written, and every file must hold what `stele log verify` asks for.
//
// A new version's directory is written by that version's own node:
//
//	go test ./test/golden -run TestWrite -update=v0.2
//
// It is never written again: later code has to read it as it is. Beside them lies a directory that Apache Kafka wrote
// (kafka/record makes one), which each version has to take over.
package golden
