// Package storage holds the simulators of one node's disks: real logs, their cleaner and their checkpoints over a file
// system in memory that fails and loses power on purpose, and a ledger of what was promised to whom.
//
// TestFaultAtEveryOperation goes over every file operation of a small workload with every failure that it can have.
// TestStorageSim runs large random workloads from seeds. TestPowerLoss drops what was not synced, aimed at the moments
// at which that is least convenient.
//
// The checker reads logs as consumers and followers do and compares with the ledger; it shares no code with them.
package storage
