// Package security says who a client is and what it may do.
package security

// Principal is who a connection speaks for, as Kafka writes it: "User:alice".
type Principal struct {
	Type string
	Name string
}

// Anonymous is the principal of every connection on a PLAINTEXT listener.
var Anonymous = Principal{Type: "User", Name: "ANONYMOUS"}

func (p Principal) String() string { return p.Type + ":" + p.Name }
