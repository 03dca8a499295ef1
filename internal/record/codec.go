package record

import "fmt"

// Codec is how the records of a batch are compressed; the values are those of the attributes' low bits.
type Codec int8

const (
	None   Codec = 0
	Gzip   Codec = 1
	Snappy Codec = 2
	LZ4    Codec = 3
	Zstd   Codec = 4
)

// Known says whether the codec exists.
func (c Codec) Known() bool { return c >= None && c <= Zstd }

var codecNames = [...]string{None: "uncompressed", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

// String is the codec's name as compression.type has it.
func (c Codec) String() string {
	if !c.Known() {
		return fmt.Sprintf("codec(%d)", int8(c))
	}
	return codecNames[c]
}

// ParseCodec reads a codec's name as compression.type has it; "none", which producers say for
// "uncompressed", too. "producer" is no codec.
func ParseCodec(name string) (Codec, bool) {
	if name == "none" {
		return None, true
	}
	for c, n := range codecNames {
		if n == name {
			return Codec(c), true
		}
	}
	return None, false
}

// minZstdProduceVersion is the first version of Produce in which clients may send zstd.
const minZstdProduceVersion = 7

// CheckProduceVersion answers an UnsupportedCodecError when b's codec may not be sent in a Produce request
// of this version. b may be what SplitProduce returned.
func CheckProduceVersion(b Batch, version int16) error {
	if b.Codec() == Zstd && version < minZstdProduceVersion {
		return &UnsupportedCodecError{Codec: Zstd, Version: version}
	}
	return nil
}
