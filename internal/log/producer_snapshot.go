package log

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sort"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

const (
	snapshotVersion    = 1
	snapshotHeaderSize = 10
	snapshotEntrySize  = 46
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// formatSnapshot is the content of a producer snapshot file: all producers, each with its last batch only.
func formatSnapshot(p *producers) []byte {
	ids := make([]int64, 0, len(p.byID))
	for id := range p.byID {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	be := binary.BigEndian
	b := make([]byte, snapshotHeaderSize, snapshotHeaderSize+len(ids)*snapshotEntrySize)
	be.PutUint16(b, snapshotVersion)
	be.PutUint32(b[6:], uint32(len(ids)))
	for _, id := range ids {
		st := p.byID[id]
		last := batchMeta{lastSequence: record.NoSequence, lastOffset: -1}
		if m, ok := st.lastBatch(); ok {
			last = m
		}
		b = be.AppendUint64(b, uint64(st.id))
		b = be.AppendUint16(b, uint16(st.epoch))
		b = be.AppendUint32(b, uint32(last.lastSequence))
		b = be.AppendUint64(b, uint64(last.lastOffset))
		b = be.AppendUint32(b, uint32(last.offsetDelta))
		b = be.AppendUint64(b, uint64(st.lastTimestamp))
		b = be.AppendUint32(b, uint32(st.coordinatorEpoch))
		b = be.AppendUint64(b, uint64(st.txnFirstOffset))
	}
	be.PutUint32(b[2:], crc32.Checksum(b[6:], castagnoli))
	return b
}

// parseSnapshot reads a producer snapshot; whatever is not exactly one is an error.
func parseSnapshot(data []byte) (producers, error) {
	be := binary.BigEndian
	var p producers
	if len(data) < snapshotHeaderSize {
		return p, fmt.Errorf("producer snapshot of %d bytes", len(data))
	}
	if v := be.Uint16(data); v != snapshotVersion {
		return p, fmt.Errorf("producer snapshot version %d", v)
	}
	if got, want := crc32.Checksum(data[6:], castagnoli), be.Uint32(data[2:]); got != want {
		return p, fmt.Errorf("producer snapshot CRC is %08x, header says %08x", got, want)
	}
	count := int64(int32(be.Uint32(data[6:])))
	if rest := int64(len(data) - snapshotHeaderSize); count < 0 || count*snapshotEntrySize != rest {
		return p, fmt.Errorf("producer snapshot announces %d entries in %d bytes", count, rest)
	}
	if count > 0 {
		p.byID = make(map[int64]*producerState, count)
	}
	for d := data[snapshotHeaderSize:]; len(d) > 0; d = d[snapshotEntrySize:] {
		st := &producerState{id: int64(be.Uint64(d)), epoch: int16(be.Uint16(d[8:])), lastTimestamp: int64(be.Uint64(d[26:])),
			coordinatorEpoch: int32(be.Uint32(d[34:])), txnFirstOffset: int64(be.Uint64(d[38:]))}
		m := batchMeta{lastSequence: int32(be.Uint32(d[10:])), lastOffset: int64(be.Uint64(d[14:])),
			offsetDelta: int32(be.Uint32(d[22:])), timestamp: st.lastTimestamp}
		if st.id < 0 || p.byID[st.id] != nil || m.offsetDelta < 0 || m.lastOffset < -1 || st.txnFirstOffset < -1 {
			return producers{}, fmt.Errorf("producer snapshot entry of producer %d makes no sense", st.id)
		}
		if m.lastOffset >= 0 {
			if m.firstSequence = m.lastSequence; m.lastSequence >= 0 {
				m.firstSequence = record.DecrementSequence(m.lastSequence, m.offsetDelta)
			}
			st.remember(m)
		}
		st.lastSeen = st.lastTimestamp
		p.byID[st.id] = st
		if st.txnFirstOffset >= 0 {
			p.addOpen(openTxn{st.id, st.txnFirstOffset})
		}
	}
	return p, nil
}

// writeSnapshot writes a producer snapshot of the present state at offset. Without sync its bytes become durable
// with the next flush; until then a crash may lose it, which costs a longer scan.
func (l *Log) writeSnapshot(offset int64, sync bool) error {
	if l.snapshotAt == offset {
		return nil
	}
	l.names = nil
	data, path := formatSnapshot(&l.producers), l.path(snapshotName(offset))
	vfs.Failpoint("producer-snapshot-part")
	var err error
	if sync {
		err = vfs.WriteFileAtomic(l.o.FS, path, data)
	} else {
		err = vfs.ReplaceFile(l.o.FS, path, data)
	}
	if err != nil {
		return err
	}
	vfs.Failpoint("producer-snapshot-renamed")
	l.snapshotAt = offset
	return nil
}
