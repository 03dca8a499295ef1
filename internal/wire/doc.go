// Package wire is Kafka's protocol below the meaning of its messages: frames, request and response
// headers, the table of APIs and their versions, buffers, decoders and encoders for the two APIs
// that carry records, and the dialling end of a connection.
//
// All other messages are decoded by kmsg. Nothing in this package trusts a length or a count that
// it has read: each is checked against the bytes that are really there before memory is made for it.
package wire
