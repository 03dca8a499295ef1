// Package sim holds simulators: one seed, one thread, a virtual clock, and a checker that looks after every
// event. A run that fails prints its seed and the one command that repeats it.
//
// TestGroupSim drives the group coordinator's shard: consumers that join, sync, commit, leave and crash over
// a network that loses, repeats and delays, on a log whose high watermark lags, whose appends fail and whose
// leader moves. The checker is written against the log's bytes and the protocol's answers, and shares no code
// with what it checks.
package sim
