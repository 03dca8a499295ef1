package metadata

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
)

// UUID is an id of a topic, directory, incarnation or access rule.
type UUID [16]byte

// Reserved ids. Those of directories say that a replica's place is not a directory's id.
var (
	// ZeroUUID is "none"; as a directory it is Migrating.
	ZeroUUID = UUID{}
	// DirMigrating: the replica is somewhere on that broker, the place is not known.
	DirMigrating = UUID{}
	// DirUnassigned: the replica has not been placed yet.
	DirUnassigned = UUID{15: 1}
	// DirLost: the replica is in some directory that is offline.
	DirLost = UUID{15: 2}
)

// String is the URL-safe base64 text without padding, 22 characters.
func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// MarshalText writes the text form.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads the text form.
func (u *UUID) UnmarshalText(text []byte) (err error) {
	*u, err = ParseUUID(string(text))
	return err
}

// Reserved says that the id has a meaning of its own: upper half 0, lower half below 100 as a signed number.
func (u UUID) Reserved() bool {
	return bytes.Equal(u[:8], make([]byte, 8)) && (u[8] >= 0x80 || bytes.Equal(u[8:15], make([]byte, 7)) && u[15] < 100)
}

// Compare orders ids by their bytes.
func (u UUID) Compare(o UUID) int { return bytes.Compare(u[:], o[:]) }

// UUIDError is a text that is not an id.
type UUIDError struct{ Text string }

func (e *UUIDError) Error() string {
	return fmt.Sprintf("%q is not an id: 22 characters of URL-safe base64 are wanted", e.Text)
}

// ParseUUID reads the text form.
func ParseUUID(text string) (UUID, error) {
	var u UUID
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil || len(raw) != len(u) {
		return u, &UUIDError{text}
	}
	copy(u[:], raw)
	return u, nil
}

// NewUUID draws a random id (version 4) from random: never a reserved one, and its text never holds a dash,
// so that it can be given to any command line and be told apart from a topic's name and partition.
// It panics when random fails: a node without a random source cannot work.
func NewUUID(random io.Reader) UUID {
	for {
		var u UUID
		if _, err := io.ReadFull(random, u[:]); err != nil {
			panic("metadata: random source: " + err.Error())
		}
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		if !u.Reserved() && !strings.Contains(u.String(), "-") {
			return u
		}
	}
}
