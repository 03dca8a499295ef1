//go:build interop

package differential

import (
	"encoding/binary"
	"fmt"

	"github.com/stelelog/stele/internal/record"
)

// stamp is the timestamp of most records, in ms.
const stamp = int64(1_700_000_000_000)

type rec struct {
	stamp      int64
	key, value []byte
	headers    []record.Header
}

func batch(opts record.BuilderOptions, records ...rec) []byte {
	b := record.NewBuilder(opts)
	for _, r := range records {
		if err := b.Append(r.stamp, r.key, r.value, r.headers); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// plain is a batch of n records from a timestamp on, one ms apart.
func plain(n int, from int64) []byte { return batch(record.BuilderOptions{}, some(n, from)...) }

func some(n int, from int64) []rec {
	records := make([]rec, n)
	for i := range records {
		records[i] = rec{stamp: from + int64(i), key: []byte("k"), value: fmt.Appendf(nil, "value %d", i)}
	}
	return records
}

// idempotent is a batch of n records of a producer.
func idempotent(id int64, epoch int16, sequence int32, n int) []byte {
	return batch(record.BuilderOptions{Producer: &record.Producer{ID: id, Epoch: epoch, BaseSequence: sequence}}, some(n, stamp+int64(sequence))...)
}

// Offsets of header fields.
const (
	atBaseOffset = 0
	atLength     = 8
	atEpoch      = 12
	atMagic      = 16
	atCRC        = 17
	atAttributes = 21
	atLastDelta  = 23
	atFirstStamp = 27
	atMaxStamp   = 35
	atProducer   = 43
	atProducerE  = 51
	atSequence   = 53
	atCount      = 57
)

func put16(b []byte, at int, v int16) []byte {
	binary.BigEndian.PutUint16(b[at:], uint16(v))
	return b
}

func put32(b []byte, at int, v int32) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(v))
	return b
}

func put64(b []byte, at int, v int64) []byte {
	binary.BigEndian.PutUint64(b[at:], uint64(v))
	return b
}

// resealed has the CRC of what it holds now.
func resealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[atCRC:], checksum(b))
	return b
}
