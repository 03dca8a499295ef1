// Package control holds the simulator of the control plane: the controllers' quorum, the controller and what brokers and
// administrators ask of it, on one thread, from one seed, in virtual time, over a network and disks that fail on purpose.
//
// What decides is real: internal/quorum's Core (raft, its storage, formation, voter changes, snapshots, the log as
// observers fetch it) and internal/controller. Simulated are the machines around them: clocks that go wrong, processes
// that stop and crash, disks that are slow, fail, lose what was not synced or are empty, connections that lose, delay,
// repeat and reorder; and brokers' control side, scripted leaders and administrators.
//
// After every step the checker compares what each controller holds as committed with the truth: the first that committed
// an offset says what stands there. TestControlSim says what else it demands.
package control
