package record

import (
	"encoding/binary"
	"math/bits"
)

const (
	xxPrime1 uint32 = 2654435761
	xxPrime2 uint32 = 2246822519
	xxPrime3 uint32 = 3266489917
	xxPrime4 uint32 = 668265263
	xxPrime5 uint32 = 374761393
)

// xxhash32 is the checksum of LZ4 frames: xxHash, 32 bits, seed 0.
func xxhash32(b []byte) uint32 {
	h := xxPrime5
	length := uint32(len(b))
	if len(b) >= 16 {
		p1, p2 := xxPrime1, xxPrime2
		v1, v2, v3, v4 := p1+p2, p2, uint32(0), -p1
		for len(b) >= 16 {
			v1 = xxRound(v1, b)
			v2 = xxRound(v2, b[4:])
			v3 = xxRound(v3, b[8:])
			v4 = xxRound(v4, b[12:])
			b = b[16:]
		}
		h = bits.RotateLeft32(v1, 1) + bits.RotateLeft32(v2, 7) + bits.RotateLeft32(v3, 12) + bits.RotateLeft32(v4, 18)
	}
	h += length
	for ; len(b) >= 4; b = b[4:] {
		h += binary.LittleEndian.Uint32(b) * xxPrime3
		h = bits.RotateLeft32(h, 17) * xxPrime4
	}
	for _, c := range b {
		h += uint32(c) * xxPrime5
		h = bits.RotateLeft32(h, 11) * xxPrime1
	}
	h = (h ^ h>>15) * xxPrime2
	h = (h ^ h>>13) * xxPrime3
	return h ^ h>>16
}

func xxRound(v uint32, b []byte) uint32 {
	return bits.RotateLeft32(v+binary.LittleEndian.Uint32(b)*xxPrime2, 13) * xxPrime1
}
