package consumer

// Shared is the address of a node that runs for the examples.
var Shared = shared
