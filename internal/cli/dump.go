package cli

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

type dumpOptions struct{ records bool }

// dumper shows files. It reads indexes and snapshots by itself, entry by entry, rather
// than through internal/log: that refuses a damaged file, and whoever dumps one wants
// to see the damage.
type dumper struct {
	dumpOptions
	env *env
	fs  vfs.FS
	bad []error
}

// line shows one entry: as text for people, as a JSON object with the file's name for
// scripts.
func (d *dumper) line(path, kind, text string, fields map[string]any) error {
	if d.env.output != "json" {
		_, err := fmt.Fprintln(d.env.out, "  "+text)
		return err
	}
	fields["file"], fields["kind"] = path, kind
	return json.NewEncoder(d.env.out).Encode(fields)
}

// broken notes damage, and shows it where it was met.
func (d *dumper) broken(path, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.bad = append(d.bad, fmt.Errorf("%s: %s", path, text))
	return d.line(path, "problem", "! "+text, map[string]any{"text": text})
}

func (d *dumper) file(path string) error {
	kind := dumpKind(path)
	if kind < 0 {
		return usagef("log dump: %s is no file that dump knows (%s)", path, strings.Join(dumpable, ", "))
	}
	d.env.say("%s", path)
	switch dumpable[kind] {
	case ".log", ".checkpoint":
		return d.segment(path)
	}
	data, err := vfs.ReadFile(d.fs, path)
	if err != nil {
		return fmt.Errorf("log dump: %w", err)
	}
	switch dumpable[kind] {
	case ".index":
		return d.entries(path, data, 8, func(i int, e []byte) error {
			offset, position := d.base(path)+int64(binary.BigEndian.Uint32(e)), int64(binary.BigEndian.Uint32(e[4:]))
			return d.line(path, "index", fmt.Sprintf("offset %d position %d", offset, position), map[string]any{"offset": offset, "position": position})
		})
	case ".timeindex":
		return d.entries(path, data, 12, func(i int, e []byte) error {
			timestamp, offset := int64(binary.BigEndian.Uint64(e)), d.base(path)+int64(binary.BigEndian.Uint32(e[8:]))
			return d.line(path, "timeindex", fmt.Sprintf("timestamp %d offset %d", timestamp, offset), map[string]any{"timestamp": timestamp, "offset": offset})
		})
	case ".txnindex":
		return d.entries(path, data, 34, func(i int, e []byte) error {
			be := binary.BigEndian
			producer, first, last, stable := int64(be.Uint64(e[2:])), int64(be.Uint64(e[10:])), int64(be.Uint64(e[18:])), int64(be.Uint64(e[26:]))
			return d.line(path, "abortedTransaction", fmt.Sprintf("version %d producer %d first offset %d last offset %d last stable offset %d", be.Uint16(e), producer, first, last, stable),
				map[string]any{"producerId": producer, "firstOffset": first, "lastOffset": last, "lastStableOffset": stable})
		})
	case ".snapshot":
		return d.producers(path, data)
	case "leader-epoch-checkpoint":
		return d.epochs(path, data)
	case "-offset-checkpoint":
		return d.offsets(path, data)
	case "raft-state":
		return d.raftState(path, data)
	case "meta.properties":
		return d.metaProperties(path, data)
	case "quorum-state", quorum.KeptQuorumState:
		return d.quorumState(path, data)
	case log.CleanShutdownName:
		text := strings.TrimSpace(string(data))
		return d.line(path, "cleanShutdown", orNone(text), map[string]any{"text": text})
	}
	text := strings.TrimSpace(string(data))
	return d.line(path, "partitionMetadata", strings.ReplaceAll(text, "\n", "  "), map[string]any{"text": text})
}

// base is the offset in a file's name.
func (d *dumper) base(path string) int64 {
	digits, _, _ := strings.Cut(filepath.Base(path), ".")
	base, _ := strconv.ParseInt(digits, 10, 64)
	return base
}

// entries walks a file of entries of one size. A tail of zeros is room that Kafka
// reserves for entries to come.
func (d *dumper) entries(path string, data []byte, size int, show func(int, []byte) error) error {
	for i := 0; len(data) >= size; i++ {
		if allZero(data) && i > 0 {
			return nil
		}
		if err := show(i, data[:size]); err != nil {
			return err
		}
		data = data[size:]
	}
	if len(data) > 0 && !allZero(data) {
		return d.broken(path, "%d bytes after the last entry", len(data))
	}
	return nil
}

func allZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

func (d *dumper) producers(path string, data []byte) error {
	const header, size = 10, 46
	be := binary.BigEndian
	if len(data) < header {
		return d.broken(path, "a producer snapshot of %d bytes", len(data))
	}
	if got, want := crc32.Checksum(data[6:], crc32.MakeTable(crc32.Castagnoli)), be.Uint32(data[2:]); got != want {
		if err := d.broken(path, "CRC is %08x, the header says %08x", got, want); err != nil {
			return err
		}
	}
	return d.entries(path, data[header:], size, func(_ int, e []byte) error {
		id, producerEpoch, sequence := int64(be.Uint64(e)), int16(be.Uint16(e[8:])), int32(be.Uint32(e[10:]))
		offset, delta, timestamp := int64(be.Uint64(e[14:])), int32(be.Uint32(e[22:])), int64(be.Uint64(e[26:]))
		coordinator, txn := int32(be.Uint32(e[34:])), int64(be.Uint64(e[38:]))
		return d.line(path, "producer", fmt.Sprintf("producer %d epoch %d last sequence %d last offset %d offset delta %d timestamp %d coordinator epoch %d transaction since %s", id, producerEpoch, sequence, offset, delta, timestamp, coordinator, orDash(txn)),
			map[string]any{"producerId": id, "producerEpoch": producerEpoch, "lastSequence": sequence, "lastOffset": offset, "offsetDelta": delta, "timestamp": timestamp, "coordinatorEpoch": coordinator, "transactionFirstOffset": txn})
	})
}

func (d *dumper) epochs(path string, data []byte) error {
	cache, err := epoch.Parse(data)
	if err != nil {
		return d.broken(path, "%v", err)
	}
	for _, e := range cache.Entries() {
		if err := d.line(path, "leaderEpoch", fmt.Sprintf("leader epoch %d starts at offset %d", e.Epoch, e.StartOffset), map[string]any{"leaderEpoch": e.Epoch, "startOffset": e.StartOffset}); err != nil {
			return err
		}
	}
	return nil
}

// offsets shows a checkpoint of the data directory: an offset for each partition.
func (d *dumper) offsets(path string, data []byte) error {
	positions, err := log.ParseCheckpoint(data)
	if err != nil {
		return d.broken(path, "%v", err)
	}
	partitions := slices.SortedFunc(maps.Keys(positions), func(a, b log.TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, tp := range partitions {
		if err := d.line(path, "offset", fmt.Sprintf("%s offset %d", tp, positions[tp]), map[string]any{"topic": tp.Topic, "partition": tp.Partition, "offset": positions[tp]}); err != nil {
			return err
		}
	}
	return nil
}

func (d *dumper) metaProperties(path string, data []byte) error {
	m, err := metadata.ParseMetaProperties(data)
	if err != nil {
		return d.broken(path, "%v", err)
	}
	node, directory := int64(-1), ""
	if m.NodeID != nil {
		node = int64(*m.NodeID)
	}
	if m.DirectoryID != metadata.ZeroUUID {
		directory = m.DirectoryID.String()
	}
	return d.line(path, "metaProperties", fmt.Sprintf("version %d cluster %s node %s directory %s", m.Version, orNone(m.ClusterID), orDash(node), orNone(directory)),
		map[string]any{"version": m.Version, "clusterId": m.ClusterID, "nodeId": node, "directoryId": directory})
}

func (d *dumper) quorumState(path string, data []byte) error {
	q, err := metadata.ParseQuorumState(data)
	if err != nil {
		return d.broken(path, "%v", err)
	}
	return d.line(path, "quorumState", fmt.Sprintf("leader %s epoch %d voted for %s voters %v version %d", orDash(int64(q.LeaderID)), q.LeaderEpoch, orDash(int64(q.VotedID)), q.CurrentVoters, q.DataVersion),
		map[string]any{"leaderId": q.LeaderID, "leaderEpoch": q.LeaderEpoch, "votedId": q.VotedID, "voters": q.CurrentVoters, "version": q.DataVersion})
}

func (d *dumper) raftState(path string, data []byte) error {
	st, err := quorum.ParseState(data)
	if err != nil {
		return d.broken(path, "%v", err)
	}
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return d.line(path, "raftState", string(text), map[string]any{"state": st})
}

// segment shows the batches of a .log, or of a snapshot of the metadata log.
func (d *dumper) segment(path string) error {
	decode := decoderFor(path)
	err := log.ScanSegment(d.fs, path, func(position int64, b record.Batch) error {
		if err := d.batch(path, position, b); err != nil {
			return err
		}
		if !d.records {
			return nil
		}
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				return d.broken(path, "position %d: %v", position, err)
			}
			if err := d.record(path, b, r, decode); err != nil {
				return err
			}
		}
		return nil
	})
	var corrupt *log.CorruptError
	if errors.As(err, &corrupt) {
		return d.broken(path, "position %d: %v", corrupt.Offset, corrupt.Err)
	}
	if err != nil {
		return fmt.Errorf("log dump: %w", err)
	}
	return nil
}

func (d *dumper) batch(path string, position int64, b record.Batch) error {
	var marks []string
	if b.IsTransactional() {
		marks = append(marks, "transactional")
	}
	if b.IsControl() {
		marks = append(marks, "control")
	}
	if horizon, ok := b.DeleteHorizon(); ok {
		marks = append(marks, fmt.Sprintf("delete horizon %d", horizon))
	}
	producer := ""
	if b.HasProducerID() {
		producer = fmt.Sprintf(" producer %d epoch %d sequence %d-%d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LastSequence())
	}
	text := fmt.Sprintf("batch %d-%d leader epoch %s records %d position %d bytes %d codec %v timestamp %d (%v) crc %08x%s %s",
		b.BaseOffset(), b.LastOffset(), orDash(int64(b.PartitionLeaderEpoch())), b.Count(), position, b.Length(), b.Codec(), b.MaxTimestamp(), b.TimestampType(), b.CRC(), producer, strings.Join(marks, " "))
	return d.line(path, "batch", strings.TrimSpace(text), map[string]any{
		"baseOffset": b.BaseOffset(), "lastOffset": b.LastOffset(), "leaderEpoch": b.PartitionLeaderEpoch(), "count": b.Count(), "position": position, "size": b.Length(),
		"codec": b.Codec().String(), "maxTimestamp": b.MaxTimestamp(), "timestampType": b.TimestampType().String(), "crc": b.CRC(), "producerId": b.ProducerID(), "producerEpoch": b.ProducerEpoch(),
		"baseSequence": b.BaseSequence(), "lastSequence": b.LastSequence(), "isTransactional": b.IsTransactional(), "isControl": b.IsControl(),
	})
}

func (d *dumper) record(path string, b record.Batch, r *record.Record, decode decoder) error {
	offset, timestamp := b.OffsetOf(r), b.TimestampOf(r)
	if b.IsControl() {
		decode = decodeControl
	}
	if decode != nil {
		name, value := decode(b, r)
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		return d.line(path, "record", fmt.Sprintf("| offset %d timestamp %d %s %s", offset, timestamp, name, text), map[string]any{"offset": offset, "timestamp": timestamp, "type": name, "payload": value})
	}
	var headers []jsonHeader
	shown := ""
	for _, h := range r.Headers {
		header := jsonHeader{Key: string(h.Key)}
		header.Value, header.ValueBase64 = jsonText(h.Value)
		headers = append(headers, header)
		shown += fmt.Sprintf(" header %q=%s", h.Key, quoted(h.Value))
	}
	fields := map[string]any{"offset": offset, "timestamp": timestamp}
	put := func(name string, data []byte) {
		text, encoded := jsonText(data)
		if fields[name] = text; encoded != "" {
			fields[name+"Base64"] = encoded
		}
	}
	put("key", r.Key)
	put("value", r.Value)
	if headers != nil {
		fields["headers"] = headers
	}
	return d.line(path, "record", fmt.Sprintf("| offset %d timestamp %d key %s value %s%s", offset, timestamp, quoted(r.Key), quoted(r.Value), shown), fields)
}

// quoted shows bytes on one line: null, text in quotes, or base64.
func quoted(data []byte) string {
	text, encoded := jsonText(data)
	switch {
	case text != nil:
		return strconv.Quote(*text)
	case encoded != "":
		return "base64:" + base64.StdEncoding.EncodeToString(data)
	}
	return "null"
}
