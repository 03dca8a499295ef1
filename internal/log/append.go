package log

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// AppendOrigin says who appends.
type AppendOrigin uint8

// The origins of an append.
const (
	// OriginClient batches are held to every rule of a produce.
	OriginClient AppendOrigin = iota
	// OriginCoordinator batches are the broker's own: records of internal topics, transaction markers.
	OriginCoordinator
	// OriginQuorum batches are stored as they are, offsets and epochs included; they must continue the log.
	OriginQuorum
)

// AppendOptions say how to append as a leader. The zero value is a client's produce of the newest version.
type AppendOptions struct {
	Origin AppendOrigin
	// RequestVersion is the Produce request's version; 0: not to be checked.
	RequestVersion int16
	// CheckEndOffset makes the append fail with *UnexpectedOffsetError unless the end offset is ExpectedEndOffset.
	CheckEndOffset    bool
	ExpectedEndOffset int64
	// Guard is what GuardTxn gave for a transactional batch of a client, and the transaction coordinator has confirmed since.
	Guard TxnGuard
	// TxnVerified says that a transactional batch of a client needs no guard: whoever appends answers for its transaction.
	TxnVerified bool
	// TxnV2 marks a marker or batch of transaction.version 2; a batch with a guard has it from there.
	TxnV2 bool
	// Alone says that there is no other replica: the high watermark goes to the end offset with the append.
	Alone bool
	// Deferred leaves a flush that flush.messages asks for to the background, where one flush serves all that have come in
	// the meantime: nothing of the batch may be acknowledged before View.AckEnd has passed it. Options.OnFlushed tells.
	Deferred bool
}

// AppendInfo says what an append did.
type AppendInfo struct {
	// BaseOffset and LastOffset are the first and last offset given. When nothing was stored (all batches of a
	// follower's fetch were of a newer epoch) LastOffset is BaseOffset-1.
	BaseOffset, LastOffset int64
	// LogAppendTime in ms, -1 on a CreateTime topic.
	LogAppendTime  int64
	LogStartOffset int64
	// Duplicate says that the batch had been stored before: the offsets are the old ones.
	Duplicate bool
	// MaxTimestamp is the largest timestamp, -1 when no record has one.
	MaxTimestamp int64
	// Bytes that were stored.
	Bytes int
	// Rebuilt says that the batch was compressed anew.
	Rebuilt bool
	// Replicated says that the high watermark has passed the batch: AppendOptions.Alone.
	Replicated bool
	// Held says that the batch, or the one that it repeats, waits for a flush: AppendOptions.Deferred.
	Held bool
	// Throttle is how long the writer should wait before it writes again, since the disk is nearly full.
	Throttle time.Duration
}

// batchInfo is what an append needs to remember of a batch.
type batchInfo struct {
	at, size     int // where it is in the bytes of the append
	base, last   int64
	epoch        int32
	maxTimestamp int64
}

func describeBatch(b record.Batch, at int) batchInfo {
	return batchInfo{at: at, size: len(b), base: b.BaseOffset(), last: b.LastOffset(), epoch: b.PartitionLeaderEpoch(),
		maxTimestamp: b.MaxTimestamp()}
}

// AppendAsLeader checks one batch, gives it the next offsets and the leader epoch, and stores it. records may be
// changed in place, and is not kept.
//
// Errors: record's own; *UnexpectedEpochError when leaderEpoch is older than the log's latest; those of the
// producer state; *RecordListTooLargeError; *StorageError, *CorruptError. After any error nothing of the batch is
// stored or ever will be seen, and its offsets are given to the next one.
//
// Batches of OriginQuorum go the follower's way: several at once, stored as they are.
func (l *Log) AppendAsLeader(records []byte, leaderEpoch int32, o AppendOptions) (AppendInfo, error) {
	if o.Origin == OriginQuorum {
		return l.appendAsIs(records, math.MaxInt32, &o)
	}
	batch, err := record.SplitProduce(records)
	if err != nil {
		return AppendInfo{}, err
	}
	c := l.config.Load()
	info := AppendInfo{LogAppendTime: -1}
	opts := validateOptions(c, &o)
	opts.Now = l.now().UnixMilli()
	valid, err := record.ValidateForAppend(batch, opts)
	if err != nil {
		return AppendInfo{}, err
	}
	batch, info.Rebuilt, info.MaxTimestamp, info.Bytes = valid.Batch, valid.Rebuilt, valid.MaxTimestamp, len(valid.Batch)
	if c.LogAppendTime {
		info.LogAppendTime = batch.MaxTimestamp()
	}
	if len(batch) > int(c.SegmentBytes) {
		return AppendInfo{}, &RecordListTooLargeError{len(batch), int(c.SegmentBytes)}
	}
	if o.Origin == OriginClient {
		if info.Throttle, err = l.o.room.admit(len(batch), l.o.Now); err != nil {
			return AppendInfo{}, l.refused("append", err)
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.leaderMayAppend(leaderEpoch, &o); err != nil {
		return AppendInfo{}, err
	}
	duplicate, err := l.checkProducer(batch, &o, c)
	if err != nil {
		return AppendInfo{}, err
	}
	if duplicate != nil {
		return AppendInfo{BaseOffset: duplicate.baseOffset(), LastOffset: duplicate.lastOffset, LogAppendTime: duplicate.timestamp,
			LogStartOffset: l.logStart, Duplicate: true, MaxTimestamp: duplicate.timestamp, Held: l.held(duplicate.lastOffset), Throttle: info.Throttle}, nil
	}
	batch.SetBaseOffset(l.leo)
	batch.SetPartitionLeaderEpoch(leaderEpoch)
	l.batches = append(l.batches[:0], describeBatch(batch, 0))
	info.BaseOffset, info.LastOffset = batch.BaseOffset(), batch.LastOffset()
	if err := l.store(batch, l.batches, o.Alone, o.Deferred); err != nil {
		return AppendInfo{}, err
	}
	info.LogStartOffset, info.Held = l.logStart, l.held(info.LastOffset)
	info.Replicated = o.Alone && !info.Held
	return info, nil
}

func validateOptions(c *Config, o *AppendOptions) record.ValidateOptions {
	v := record.ValidateOptions{
		ProduceVersion: o.RequestVersion, BeforeMaxMs: c.TimestampBeforeMaxMs, AfterMaxMs: c.TimestampAfterMaxMs,
		MaxMessageBytes: int(c.MaxMessageBytes), Compact: c.Cleanup.Compacts(), MaxDecompressed: c.MaxDecompressedBytes,
	}
	if o.Origin != OriginClient {
		v.Origin = record.FromCoordinator
	}
	if c.LogAppendTime {
		v.TimestampType = record.LogAppendTime
	}
	if codec, ok := record.ParseCodec(c.CompressionType); ok {
		v.Convert, v.Codec = true, codec
		switch codec {
		case record.Gzip:
			v.Level = c.GzipLevel
		case record.LZ4:
			v.Level = c.LZ4Level
		case record.Zstd:
			v.Level = c.ZstdLevel
		}
	}
	return v
}

func (l *Log) leaderMayAppend(leaderEpoch int32, o *AppendOptions) error {
	if err := l.usable(); err != nil {
		return err
	}
	if last, ok := l.epochs.Latest(); ok && last.Epoch > leaderEpoch {
		return &UnexpectedEpochError{Latest: last.Epoch, Got: leaderEpoch, Offset: l.leo}
	}
	if o.CheckEndOffset && o.ExpectedEndOffset != l.leo {
		return &UnexpectedOffsetError{Expected: l.leo, Got: o.ExpectedEndOffset}
	}
	return nil
}

func (l *Log) checkProducer(b record.Batch, o *AppendOptions, c *Config) (*batchMeta, error) {
	if !b.HasProducerID() {
		return nil, nil
	}
	if !b.IsControl() {
		return l.producers.check(b, o, l.guards[b.ProducerID()], c.TxnVerificationStrict)
	}
	m, ok, err := record.ParseEndTxnMarker(b)
	if err != nil || !ok {
		return nil, err
	}
	return nil, l.producers.checkMarker(m, o.TxnV2)
}

// AppendAsFollower stores batches as the leader sent them, offsets and epochs included, up to the first whose
// leader epoch is above maxEpoch; a batch cut short at the end is ignored. Offsets must not lie below the end
// offset, nor epochs below the latest.
//
// Errors: record's *CorruptError for damaged batches, *UnexpectedOffsetError, *UnexpectedEpochError, and nothing
// is stored; *StorageError, *CorruptError, and the log ends with a whole batch, perhaps not the last one given.
func (l *Log) AppendAsFollower(records []byte, maxEpoch int32) (AppendInfo, error) {
	return l.appendAsIs(records, maxEpoch, &AppendOptions{})
}

// AppendAsFollowerDeferred is AppendAsFollower, except that a flush that flush.messages asks for is left to the background:
// until it is done View.AckEnd is below the end.
func (l *Log) AppendAsFollowerDeferred(records []byte, maxEpoch int32) (AppendInfo, error) {
	return l.appendAsIs(records, maxEpoch, &AppendOptions{Deferred: true})
}

func (l *Log) appendAsIs(records []byte, maxEpoch int32, o *AppendOptions) (AppendInfo, error) {
	for b, err := range record.Batches(records) {
		if err == nil {
			err = b.VerifyCRC()
		}
		if err != nil {
			return AppendInfo{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return AppendInfo{}, err
	}
	if o.CheckEndOffset && o.ExpectedEndOffset != l.leo {
		return AppendInfo{}, &UnexpectedOffsetError{Expected: l.leo, Got: o.ExpectedEndOffset}
	}
	info := AppendInfo{BaseOffset: l.leo, LastOffset: l.leo - 1, LogAppendTime: -1, MaxTimestamp: record.NoTimestamp,
		LogStartOffset: l.logStart}
	if err := l.followerMayAppend(records, maxEpoch, o.Origin == OriginQuorum); err != nil {
		return AppendInfo{}, err
	}
	if len(l.batches) == 0 {
		return info, nil
	}
	info.BaseOffset = l.batches[0].base
	for _, b := range l.batches {
		info.MaxTimestamp = max(info.MaxTimestamp, b.maxTimestamp)
		info.Bytes += b.size
	}
	info.LastOffset = l.batches[len(l.batches)-1].last
	err := l.store(records, l.batches, false, o.Deferred)
	info.LogStartOffset = l.logStart
	if err != nil {
		return AppendInfo{}, err
	}
	return info, nil
}

// followerMayAppend fills l.batches with the batches to store. contiguous allows no gaps between them.
func (l *Log) followerMayAppend(records []byte, maxEpoch int32, contiguous bool) error {
	l.batches = l.batches[:0]
	expected, at := l.leo, 0
	latest := record.NoLeaderEpoch
	if last, ok := l.epochs.Latest(); ok {
		latest = last.Epoch
	}
	for b := range record.Batches(records) {
		i := describeBatch(b, at)
		if i.epoch > maxEpoch {
			return nil
		}
		if i.base < expected || contiguous && i.base != expected || i.last < i.base {
			return &UnexpectedOffsetError{Expected: expected, Got: i.base}
		}
		if i.epoch >= 0 {
			if i.epoch < latest {
				return &UnexpectedEpochError{Latest: latest, Got: i.epoch, Offset: i.base}
			}
			latest = i.epoch
		}
		l.batches = append(l.batches, i)
		expected = i.last + 1
		at += i.size
	}
	return nil
}

// store writes batches that may be appended: epochs first, then run by run, one run per segment. Then it flushes
// if that is due, or has it done in the background, and publishes, with the high watermark at the end if the log is alone
// and nothing is to be waited for. mu is held. A panic where it is not expected leaves nobody knowing what the log holds:
// it ends the log, until it is opened anew.
func (l *Log) store(data []byte, batches []batchInfo, alone, deferred bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = l.corrupt(l.leo, fmt.Errorf("%w: %v", errPanic, r))
		}
	}()
	if err := l.savePositionsDue(); err != nil {
		return err
	}
	if err := l.syncFound(); err != nil {
		return err
	}
	if err := l.assignEpochs(batches); err != nil {
		return err
	}
	published := l.leo
	for len(batches) > 0 {
		if l.mustRoll(&batches[0], l.active.size, l.active.size > 0) {
			if err := l.roll(l.nextBase(&batches[0])); err != nil {
				return l.afterFailure(published, l.diskError("roll", err))
			}
		}
		n, size := 1, batches[0].size
		for n < len(batches) && !l.mustRoll(&batches[n], l.active.size+int64(size), true) && l.indexRoomFor(n) {
			size += batches[n].size
			n++
		}
		if err := l.writeRun(data[batches[0].at:batches[0].at+size], batches[:n]); err != nil {
			return l.afterFailure(published, err)
		}
		batches = batches[n:]
	}
	if l.pendingIndex() > pendingIndexEntries {
		if err := l.writeIndexes(false); err != nil {
			l.indexTrouble(err)
		}
	}
	if c := l.config.Load(); l.leo-l.recoveryPoint.Load() >= c.FlushMessages || l.heldFrom >= 0 {
		if deferred {
			l.flushLater(published)
		} else if err := l.flushLocked(); err != nil {
			return err
		}
	}
	if alone && l.heldFrom < 0 {
		l.setHighWatermark(l.leo)
	}
	l.publish()
	return nil
}

// nextBase is the base of a segment that begins with batch b: the end offset, also when b lies above it, so that a
// segment always ends where the next one begins unless compaction took its end. Recovery can then tell when the end
// of a segment is missing.
func (l *Log) nextBase(b *batchInfo) int64 {
	if b.last-l.leo > math.MaxInt32 {
		return b.base
	}
	return l.leo
}

// afterFailure publishes the whole batches of earlier runs, which stay, and passes the error on. Epochs of batches
// that are not in the log go; the checkpoint may keep them until the next append.
func (l *Log) afterFailure(published int64, err error) error {
	if c := l.epochs.TruncateFromEnd(l.leo + 1); !c.Equal(l.epochs) {
		l.epochs, l.epochsStale = c, true
		published = -1 // a roll has shown them
	}
	if l.leo != published {
		l.publish()
	}
	return err
}

// indexRoomFor says whether n more index entries are sure to fit.
func (l *Log) indexRoomFor(n int) bool {
	c := l.config.Load()
	return len(l.active.offsets.entries)+n < c.maxOffsetEntries() && len(l.active.times.entries)+n < c.maxTimeEntries()
}

func (l *Log) pendingIndex() int {
	return len(l.active.offsets.entries) - max(l.activeMeta.offsetsWritten, 0)
}

// assignEpochs makes sure that the checkpoint has the epochs of the batches before a byte of them is written. On
// failure the cache is as it was.
func (l *Log) assignEpochs(batches []batchInfo) error {
	before := l.epochs
	for i := range batches {
		if batches[i].epoch < 0 {
			continue
		}
		next, changed, err := l.epochs.Assign(batches[i].epoch, batches[i].base)
		if err != nil {
			return err
		}
		if changed {
			l.epochs, l.epochsStale = next, true
		}
	}
	if err := l.persistEpochs(); err != nil {
		l.epochs, l.epochsStale = before, true // the file may hold either
		return l.diskError("write "+epoch.CheckpointName, err)
	}
	return nil
}

// diskError is what becomes of an error of the disk that left everything as it was: a full disk may be tried
// again, anything else takes the directory offline.
func (l *Log) diskError(op string, err error) error {
	var se *StorageError
	if errors.As(err, &se) && (!se.Offline || l.failed != nil) {
		return err
	}
	if IsFull(err) || outOfHandles(err) {
		return l.refused(op, err)
	}
	return l.offline(op, err)
}

// IsFull says whether an error is that the disk has no room: that passes, and takes nothing offline.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// mustRoll says whether the batch needs a new segment, when the last one would have size bytes before it.
func (l *Log) mustRoll(b *batchInfo, size int64, notEmpty bool) bool {
	base := l.list.last().base
	if b.last-base > math.MaxInt32 {
		return true
	}
	if !notEmpty {
		return false
	}
	c := l.config.Load()
	if size > int64(c.SegmentBytes)-int64(b.size) || size+int64(b.size) > math.MaxInt32 {
		return true
	}
	if len(l.active.offsets.entries) >= c.maxOffsetEntries() || len(l.active.times.entries) >= c.maxTimeEntries() {
		return true
	}
	return l.tooOld(b, c)
}

// tooOld compares the batch with the first one of the segment. A first timestamp of 0
// tells nothing: the metadata log begins with a batch that has it by convention, and
// would otherwise roll at its second.
func (l *Log) tooOld(b *batchInfo, c *Config) bool {
	limit := c.segmentMs() - l.activeMeta.jitterMs
	if first := l.activeMeta.firstTimestamp; first > 0 {
		return b.maxTimestamp-first > limit
	}
	return l.active.size > 0 && l.now().UnixMilli()-l.activeMeta.created.UnixMilli() > limit
}

// roll seals the last segment and begins a new one at base.
func (l *Log) roll(base int64) error {
	vfs.Failpoint("log-roll")
	old := l.list.last()
	if l.active.size == 0 && old.base == base {
		return nil
	}
	sealed, err := l.seal()
	if err != nil {
		return err
	}
	if l.recoveryPoint.Load() >= base {
		// All batches are synced already, so once there is another segment recovery will not look at this one again: its
		// indexes must be synced before.
		if err := l.syncIndexes(l.o.Dir, old.base); err != nil {
			return l.offline("roll", err)
		}
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return l.offline("roll", err)
		}
	}
	next, err := l.createSegment(base)
	if err != nil {
		return err
	}
	if err := l.writeSnapshot(base, false); err != nil {
		l.o.Logger.Warn("producer snapshot not written", "topic", l.o.Topic, "partition", l.o.Partition, "offset", base, "cause", err)
	}
	old.sealed = sealed
	l.setSegments(append(slices.Clip(l.list.segs), next))
	l.active, l.activeMeta = emptyState(base), l.newMeta()
	l.publish()
	if l.recoveryPoint.Load() >= base {
		if err := l.syncFile(l.path(snapshotName(base))); err != nil {
			return l.offline("roll", err)
		}
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return l.offline("roll", err)
		}
		l.dirSynced = l.dirChanges
	}
	l.event(Event{Kind: EventSegmentRolled, From: old.base, To: base, Cause: "append"})
	l.queueSync()
	return nil
}

// setSegments replaces the segment list; publish comes next.
func (l *Log) setSegments(segs []*segment) {
	old := l.list
	for _, s := range segs {
		if s.lent == nil {
			s.lent = lentFile{s.file, l}
		}
	}
	l.list, l.loaded = newSegmentList(segs), loadedState{}
	l.sealedSize = 0
	for _, s := range segs[:len(segs)-1] {
		l.sealedSize += s.sealed.size
	}
	if old != nil {
		old.release()
	}
}

// writeRun writes batches that all go to the last segment, whole or not at all. What the segment will be is
// computed before the bytes are written, and takes effect after.
func (l *Log) writeRun(data []byte, batches []batchInfo) (err error) {
	seg, pos := l.list.last(), l.active.size
	written, committing := false, false
	defer func() {
		if r := recover(); r != nil {
			err = l.afterPanic(fmt.Errorf("%w: %v", errPanic, r), written, committing, seg, pos)
		}
	}()
	st, meta := l.active, l.activeMeta
	if mutantLazyLargest {
		takeLargest(seg, &st)
	}
	interval := int64(l.config.Load().IndexIntervalBytes)
	for i := range batches {
		if st.size == 0 {
			meta.firstTimestamp = batches[i].maxTimestamp
		}
		st.add(seg.base, &batches[i], &meta.sinceIndexEntry, interval)
	}
	written = true
	if n, err := seg.file.WriteAt(data, pos); err != nil {
		if mutantReusesOffset && n == len(data) {
			l.active, l.activeMeta = st, meta
			return l.refused("append", err)
		}
		return l.takeBack(seg, pos, err)
	}
	vfs.Failpoint("log-append-written")

	committing = true
	wall := l.now().UnixMilli()
	known := len(l.producers.byID)
	for i := range batches {
		b := record.Batch(data[batches[i].at-batches[0].at:][:batches[i].size])
		if aborted, ok := l.producers.appended(b, wall); ok {
			st.txns = append(st.txns, aborted)
		}
		l.unguard(b)
	}
	l.limitProducers(len(l.producers.byID) - known)
	if mutantLazyLargest {
		keepLargest(seg, &st)
	}
	l.active, l.activeMeta, l.leo = st, meta, st.end
	return nil
}

// takeBack cuts the file back to pos after a write that failed, durably: the dead bytes must never come back at
// offsets that are then given to other records.
func (l *Log) takeBack(seg *segment, pos int64, cause error) error {
	if err := seg.file.Truncate(pos); err != nil {
		return l.offline("take back an append", errors.Join(err, cause))
	}
	if err := seg.file.Sync(); err != nil {
		return l.offline("take back an append", errors.Join(err, cause))
	}
	l.activeMeta.allocated = false
	l.event(Event{Kind: EventAppendTakenBack, From: l.leo, To: l.leo, Cause: cause.Error()})
	return l.refused("append", cause)
}

// afterPanic treats a panic during an append as a failed write. If it struck when the state was already changing,
// that cannot be trusted any more: the bytes go, and the log with them until it is opened anew.
func (l *Log) afterPanic(cause error, written, committing bool, seg *segment, pos int64) error {
	if !written {
		return l.corrupt(l.leo, cause)
	}
	err := l.takeBack(seg, pos, cause)
	if committing && l.failed == nil {
		return l.corrupt(l.leo, cause)
	}
	return err
}
