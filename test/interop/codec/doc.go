// Package codec puts the messages of the protocol, and the records that Stele writes for itself in Kafka's formats,
// before two implementations that know nothing of each other: kmsg with the decoders of ours, and the classes that
// Kafka generates. The tests stand behind the build tag interop, since they need a JDK and Maven.
package codec
