package node

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/record"
)

// stamp is the timestamp of the worked examples, in ms.
const stamp = int64(1700000000000)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// The worked examples: A two records, B a commit marker, C an idempotent record with
// headers, D, E and S are A in gzip, lz4 and snappy.
func exampleA() []byte {
	return unhex(`0000000000000000 00000047 ffffffff 02 6702d0b7 0000 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002 14 00 00 00 04 6b31 04 7631 00 14 00 0a 02 04 6b32 04 7632 00`)
}

func exampleB() []byte {
	return unhex(`0000000000000000 00000042 00000007 02 6d218b70 0030 00000000 0000018bcfe56800 0000018bcfe56800
		0000000000000fa0 0005 ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000003 00`)
}

func exampleC() []byte {
	return unhex(`0000000000000000 00000041 ffffffff 02 60b13622 0000 00000000 0000018bcfe56800 0000018bcfe56800
		0000000000000fa0 0005 00000000 00000001 1e 00 00 00 01 01 04 04 6831 02 78 04 6832 01`)
}

func exampleD() []byte {
	return unhex(`0000000000000000 0000005b ffffffff 02 f0041bb0 0001 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		1f8b0800000000000000 1361606060c936642933641061e06262c936622933620000 f95c213b 16000000`)
}

func exampleE() []byte {
	return unhex(`0000000000000000 00000056 ffffffff 02 28eb0646 0003 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		04224d18 60 40 82 16000080 14 00 00 00 04 6b31 04 7631 00 14 00 0a 02 04 6b32 04 7632 00 00000000`)
}

func exampleS() []byte {
	return unhex(`0000000000000000 0000005d ffffffff 02 a39e967a 0002 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		82534e4150505900 00000001 00000001 00000018 16 54 14 00 00 00 04 6b31 04 7631 00 14 00 0a 02 04 6b32 04 7632 00`)
}

// rec is one record to send.
type rec struct {
	stamp      int64
	key, value []byte
}

// batch builds what a producer sends.
func batch(opts record.BuilderOptions, records ...rec) []byte {
	b := record.NewBuilder(opts)
	for _, r := range records {
		if err := b.Append(r.stamp, r.key, r.value, nil); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// plain is a batch of n records from a timestamp on, one ms apart.
func plain(n int, from int64) []byte {
	records := make([]rec, n)
	for i := range records {
		records[i] = rec{from + int64(i), []byte("k"), fmt.Appendf(nil, "v%d", i)}
	}
	return batch(record.BuilderOptions{}, records...)
}

// sized is a batch of one record that takes n bytes in all.
func sized(n int, timestamp int64) []byte {
	for size := n - record.HeaderSize; ; size-- {
		if b := batch(record.BuilderOptions{}, rec{timestamp, nil, make([]byte, size)}); len(b) <= n {
			if len(b) < n {
				panic("no batch has this size")
			}
			return b
		}
	}
}

// idempotent is a batch of n records of a producer.
func idempotent(id int64, epoch int16, sequence int32, n int) []byte {
	records := make([]rec, n)
	for i := range records {
		records[i] = rec{stamp + int64(sequence) + int64(i), []byte("k"), fmt.Appendf(nil, "s%d", int(sequence)+i)}
	}
	return batch(record.BuilderOptions{Producer: &record.Producer{ID: id, Epoch: epoch, BaseSequence: sequence}}, records...)
}

// Offsets of header fields that tests change.
const (
	atLength     = 8
	atEpoch      = 12
	atMagic      = 16
	atCRC        = 17
	atAttributes = 21
	atLastDelta  = 23
	atMaxStamp   = 35
	atProducer   = 43
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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// resealed has the CRC of what it holds now.
func resealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
	return b
}

// withBody replaces the records of a batch.
func withBody(b []byte, attributes int16, body []byte) []byte {
	b = append(append([]byte(nil), b[:record.HeaderSize]...), body...)
	put16(b, atAttributes, attributes)
	put32(b, atLength, int32(len(b)-record.LogOverhead))
	return resealed(b)
}

// batches cuts what was fetched into batches, and checks that each is whole and has
// the CRC it says.
func batches(t testing.TB, b []byte) []record.Batch {
	t.Helper()
	var found []record.Batch
	for one, err := range record.Batches(b) {
		if err != nil {
			t.Fatalf("fetched bytes: %v", err)
		}
		if sum := crc32.Checksum(one[atAttributes:], castagnoli); sum != binary.BigEndian.Uint32(one[atCRC:]) {
			t.Errorf("batch at %d: CRC %08x, says %08x", one.BaseOffset(), sum, one[atCRC:atCRC+4])
		}
		found = append(found, one)
	}
	return found
}
