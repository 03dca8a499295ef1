package record

// Varints are zigzag encoded, seven bits per byte, low bits first. A varint of 32 bits takes at most
// five bytes and a varlong of 64 bits at most ten; an encoding that is longer, or whose value does not
// fit, is malformed.

const (
	maxVarintLen  = 5
	maxVarlongLen = 10
)

// varint reads a 32-bit varint from the start of b and returns how many bytes it took; 0 means that b
// ends inside it, or that it is malformed.
func varint(b []byte) (int32, int) {
	if len(b) > 0 && b[0] < 0x80 { // nearly every length and delta
		return int32(b[0]>>1) ^ -int32(b[0]&1), 1
	}
	return longVarint(b)
}

// tinyVarint reads a varint of one byte; 0 bytes when it is none. Unlike varint it is small enough to be inlined.
func tinyVarint(b []byte) (int32, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return int32(b[0]>>1) ^ -int32(b[0]&1), 1
	}
	return 0, 0
}

// longVarint is varint where one byte is not all.
func longVarint(b []byte) (int32, int) {
	if len(b) > 1 && b[0] >= 0x80 && b[1] < 0x80 { // the length of a record of some hundred bytes
		u := uint32(b[0]&0x7f) | uint32(b[1])<<7
		return int32(u>>1) ^ -int32(u&1), 2
	}
	var u uint32
	for i := 0; i < len(b) && i < maxVarintLen; i++ {
		c := b[i]
		if i == maxVarintLen-1 && c > 0x0f {
			return 0, 0
		}
		u |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int32(u>>1) ^ -int32(u&1), i + 1
		}
	}
	return 0, 0
}

// varlong reads a 64-bit varint like varint does.
func varlong(b []byte) (int64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return int64(b[0]>>1) ^ -int64(b[0]&1), 1
	}
	return longVarlong(b)
}

func longVarlong(b []byte) (int64, int) {
	var u uint64
	for i := 0; i < len(b) && i < maxVarlongLen; i++ {
		c := b[i]
		if i == maxVarlongLen-1 && c > 1 {
			return 0, 0
		}
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), i + 1
		}
	}
	return 0, 0
}

func appendVarint(b []byte, v int32) []byte {
	u := uint32(v<<1) ^ uint32(v>>31)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

func appendVarlong(b []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

func sizeVarint(v int32) int { return sizeVarlong(int64(v)) }

func sizeVarlong(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}
