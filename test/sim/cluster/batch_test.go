package cluster

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
)

// The record batches of this package's clients and checkers, by the format's description and not by the code under test.

const batchHeader = 61

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// buildBatch makes a batch of one record for each id, whose value begins with it.
func buildBatch(ids []uint64, producer int64, epoch int16, sequence int32, timestamp int64) []byte {
	b := make([]byte, batchHeader, batchHeader+32*len(ids))
	for i, id := range ids {
		var body []byte
		body = append(body, 0)                         // attributes
		body = binary.AppendVarint(body, 0)            // timestamp delta
		body = binary.AppendVarint(body, int64(i))     // offset delta
		body = binary.AppendVarint(body, -1)           // no key
		body = binary.AppendVarint(body, 16)           // value
		body = binary.BigEndian.AppendUint64(body, id) //
		body = append(body, "........"...)             //
		body = binary.AppendVarint(body, 0)            // no headers
		b = binary.AppendVarint(b, int64(len(body)))   //
		b = append(b, body...)                         //
	}
	be := binary.BigEndian
	be.PutUint32(b[8:], uint32(len(b)-12))
	be.PutUint32(b[12:], ^uint32(0)) // the leader's to fill in
	b[16] = 2
	be.PutUint32(b[23:], uint32(len(ids)-1))
	be.PutUint64(b[27:], uint64(timestamp))
	be.PutUint64(b[35:], uint64(timestamp))
	be.PutUint64(b[43:], uint64(producer))
	be.PutUint16(b[51:], uint16(epoch))
	be.PutUint32(b[53:], uint32(sequence))
	be.PutUint32(b[57:], uint32(len(ids)))
	be.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// readBatch is a batch as it was read, and its records' ids.
type readBatch struct {
	base, last int64
	epoch      int32
	crc        uint32
	size       int
	control    bool
	written    time.Time // by the producer's clock
	records    []readRecord
}

type readRecord struct {
	offset int64
	id     uint64 // the first bytes of the value; of internal topics, a hash
	key    []byte
	value  []byte
}

// readBatches takes raw bytes apart. A last batch that is cut off is left out; anything else that is wrong is an error.
func readBatches(raw []byte, ids bool, each func(*readBatch) error) error {
	be := binary.BigEndian
	var b readBatch
	for len(raw) >= batchHeader {
		size := 12 + int(be.Uint32(raw[8:]))
		if size < batchHeader {
			return fmt.Errorf("a batch of %d bytes", size)
		}
		if size > len(raw) {
			return nil
		}
		one := raw[:size]
		raw = raw[size:]
		b = readBatch{base: int64(be.Uint64(one)), epoch: int32(be.Uint32(one[12:])), crc: be.Uint32(one[17:]), size: size, written: time.UnixMilli(int64(be.Uint64(one[27:]))), records: b.records[:0]}
		b.last = b.base + int64(be.Uint32(one[23:]))
		if sum := crc32.Checksum(one[21:], castagnoli); sum != b.crc || one[16] != 2 {
			return fmt.Errorf("batch at offset %d: checksum %08x, bytes have %08x", b.base, b.crc, sum)
		}
		attributes := be.Uint16(one[21:])
		b.control = attributes&0x20 != 0
		if attributes&7 != 0 {
			return fmt.Errorf("batch at offset %d is compressed", b.base)
		}
		if err := b.read(one[batchHeader:], int(be.Uint32(one[57:])), ids); err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.base, err)
		}
		if err := each(&b); err != nil {
			return err
		}
	}
	return nil
}

func (b *readBatch) read(p []byte, count int, ids bool) error {
	bad := false
	varint := func() int64 {
		v, n := binary.Varint(p)
		if n <= 0 {
			bad = true
			return 0
		}
		p = p[n:]
		return v
	}
	bytes := func() []byte {
		n := varint()
		if n < 0 || bad {
			return nil
		}
		if n > int64(len(p)) {
			bad = true
			return nil
		}
		v := p[:n]
		p = p[n:]
		return v
	}
	for range count {
		size := varint()
		if bad || size < 1 || size > int64(len(p)) {
			return fmt.Errorf("a record of %d bytes", size)
		}
		rest := p[size:]
		p = p[1:size:size]
		varint()
		r := readRecord{offset: b.base + varint(), key: bytes(), value: bytes()}
		if bad {
			return fmt.Errorf("a record that cannot be read")
		}
		if ids && len(r.value) >= 8 {
			r.id = binary.BigEndian.Uint64(r.value)
		} else {
			r.id = hashOf(r.key, r.value)
		}
		b.records = append(b.records, r)
		p = rest
	}
	return nil
}

// hashOf is FNV-1a over both.
func hashOf(parts ...[]byte) uint64 {
	h := uint64(14695981039346656037)
	for _, part := range parts {
		for _, c := range part {
			h = (h ^ uint64(c)) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return h
}
