// Package broker is a broker's life: it registers with the active controller,
// heartbeats, follows the metadata log as an observer, publishes what it reads
// there to the parts of the node, forwards administrative requests, and stops
// in an orderly way.
//
// A node that is broker and controller at once runs this very code over its own
// controller listener: the broker acts only on what it reads in the metadata log,
// never on what a controller in the same process happens to know.
//
// The metadata image is held in memory only. At start the broker asks for the
// newest snapshot and the log behind it (KIP-630), so it keeps no copy that could
// disagree with the quorum's.
package broker
