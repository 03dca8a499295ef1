package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// KafkaLog is what a look at a metadata log found that Apache Kafka's own quorum wrote last. TakeOver makes it this
// quorum's.
type KafkaLog struct {
	Dir string // of the partition
	// Image is the cluster at EndOffset, without a metadata transaction that was left open.
	Image *metadata.Image
	// EndOffset is where the last whole batch ends, Epoch its leader epoch, Timestamp its largest, in milliseconds.
	EndOffset int64
	Epoch     int32
	Timestamp int64
	// QuorumEpoch is the epoch that quorum-state names, at least Epoch: nobody voted in a later one.
	QuorumEpoch int32
	// Voters are the ids of the members of Kafka's quorum, as far as they are told anywhere.
	Voters []int32
	// KRaftVersion is 1 where the voters stand in the log; VoterSet is that record then.
	KRaftVersion int16
	VoterSet     []Voter
	// Torn describes what follows EndOffset in the last segment and is no batch; "" if nothing does.
	Torn string
	// Prepared is how many records other than feature levels a format command left for a cluster that never started.
	Prepared int
	// Returned says that Stele had the directory before: Kafka went on from there.
	Returned bool
}

// KafkaLogError says why a metadata log that Kafka wrote cannot be read. Nothing was changed.
type KafkaLogError struct {
	File string
	Err  error
}

func (e *KafkaLogError) Error() string {
	return fmt.Sprintf("metadata log of Apache Kafka: %s: %v", e.File, e.Err)
}
func (e *KafkaLogError) Unwrap() error { return e.Err }

// InspectKafka looks at the metadata log in a metadata directory and changes nothing. It is nil where there is none,
// or where this quorum has its own: a log whose newest leader Kafka named is Kafka's, and so is one that Kafka went on
// with after Stele. A log without raft-state that was this quorum's is not: what it voted for is lost, and Open says so.
func InspectKafka(fsys vfs.FS, metadataDir string, nodeID int32) (*KafkaLog, error) {
	dir := partitionDir(metadataDir)
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k := &kafkaReader{fs: fsys, KafkaLog: KafkaLog{Dir: dir, Epoch: -1, QuorumEpoch: -1}}
	own, formatted, err := k.stele()
	if err != nil || own {
		return nil, err
	}
	if !formatted {
		// What a quorum that is being formed here has is no format of Kafka's.
		if forming, err := Forming(fsys, metadataDir); err != nil || forming {
			return nil, err
		}
	}
	if err := k.read(entries); err != nil {
		return nil, err
	}
	switch {
	case formatted && k.leader != kafkaLeader:
		return nil, nil
	case k.leader == steleLeader:
		return nil, nil
	case k.leader == noLeader && k.EndOffset > 0 && !k.registeredByKafka(nodeID):
		return nil, nil
	case k.EndOffset == 0 && !k.bootstrap:
		return nil, nil // nothing here: not even what a format command leaves
	}
	k.Returned = formatted
	return &k.KafkaLog, nil
}

// Who named the newest leader: Kafka's LeaderChange names one, this quorum's cannot.
type leaderKind uint8

const (
	noLeader leaderKind = iota
	kafkaLeader
	steleLeader
)

// kafkaReader reads a log into a KafkaLog.
type kafkaReader struct {
	KafkaLog
	fs        vfs.FS
	leader    leaderKind
	since     uint64 // leaders of this epoch or an earlier one do not count
	bootstrap bool
	delta     *metadata.Delta
}

// stele looks whether the quorum state here is the newest thing: own. formatted says that there is one.
func (k *kafkaReader) stele() (own, formatted bool, err error) {
	data, err := vfs.ReadFile(k.fs, filepath.Join(k.Dir, stateFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	st, err := decodeState(data)
	if err != nil {
		return true, true, nil // Open says what is wrong with it
	}
	newest, err := k.newestEpoch()
	if err != nil || uint64(newest) <= st.term {
		return true, true, err
	}
	k.since, k.QuorumEpoch = st.term, int32(st.term)
	return false, true, nil
}

// newestEpoch is the newest epoch that the files beside the log tell of, 0 for none: Kafka writes down the one it
// votes in, and the one of the log. What cannot be read says nothing.
func (k *kafkaReader) newestEpoch() (int32, error) {
	newest := int32(0)
	text, err := vfs.ReadFile(k.fs, filepath.Join(k.Dir, epoch.CheckpointName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if cache, err := epoch.Parse(text); err == nil {
		if last, ok := cache.Latest(); ok {
			newest = last.Epoch
		}
	}
	text, err = vfs.ReadFile(k.fs, filepath.Join(k.Dir, quorumStateName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if q, err := metadata.ParseQuorumState(text); err == nil {
		newest = max(newest, q.LeaderEpoch)
	}
	return newest, nil
}

func (k *kafkaReader) read(entries []fs.DirEntry) error {
	var snapshots []SnapshotID
	var segments []string
	for _, e := range entries {
		if id, ok := parseSnapshotName(e.Name()); ok {
			snapshots = append(snapshots, id)
		} else if strings.HasSuffix(e.Name(), ".log") && len(e.Name()) == 24 {
			segments = append(segments, e.Name())
		}
	}
	slices.SortFunc(snapshots, compareSnapshots)
	slices.Sort(segments)
	k.delta = metadata.NewDelta(metadata.EmptyImage())
	for _, id := range snapshots {
		if id == (SnapshotID{}) {
			if err := k.format(); err != nil {
				return err
			}
		}
	}
	k.bootstrap = k.bootstrap || k.exists(filepath.Join(filepath.Dir(k.Dir), bootstrapName))
	if n := len(snapshots); n > 0 && snapshots[n-1] != (SnapshotID{}) {
		if err := k.snapshot(snapshots[n-1]); err != nil {
			return err
		}
	}
	for i, name := range segments {
		if err := k.segment(name, i == len(segments)-1); err != nil {
			return err
		}
	}
	img := k.delta.Apply(k.EndOffset-1, k.Epoch)
	k.Image = img.Stable()
	return k.quorumState()
}

func (k *kafkaReader) exists(name string) bool {
	_, err := k.fs.Stat(name)
	return err == nil
}

// format reads the checkpoint that a format command left: its control records count, its data only for a cluster that
// never started.
func (k *kafkaReader) format() error {
	name := filepath.Join(k.Dir, SnapshotID{}.file())
	prepared := 0
	err := k.file(name, func(rec metadata.Record) error {
		if _, ok := rec.(*metadata.FeatureLevelRecord); !ok {
			prepared++
		}
		return nil
	})
	k.bootstrap, k.Prepared = true, prepared
	return err
}

// snapshot reads a snapshot as the beginning of the image.
func (k *kafkaReader) snapshot(id SnapshotID) error {
	name := filepath.Join(k.Dir, id.file())
	err := k.file(name, func(rec metadata.Record) error { return k.delta.Replay(rec, id.EndOffset-1) })
	k.EndOffset, k.Epoch = id.EndOffset, id.Epoch
	return err
}

// file reads a snapshot's records, and takes note of its control records.
func (k *kafkaReader) file(name string, f func(metadata.Record) error) error {
	err := readSnapshotWith(k.fs, name, func(value []byte) error {
		rec, _, err := metadata.DecodeRecord(value)
		if err != nil {
			return err
		}
		return f(rec)
	}, func(rec metadata.ControlRecord) {
		if h, ok := rec.(*metadata.SnapshotHeader); ok {
			k.Timestamp = max(k.Timestamp, h.LastContainedLogTimestamp)
		}
		k.control(rec, 0)
	})
	if err != nil {
		return &KafkaLogError{File: name, Err: err}
	}
	return nil
}

// control takes note of what a control record says of the quorum.
func (k *kafkaReader) control(rec metadata.ControlRecord, at int32) {
	switch rec := rec.(type) {
	case *metadata.LeaderChange:
		if rec.LeaderID < 0 {
			k.leader = steleLeader
			return
		}
		if uint64(at) > k.since || k.since == 0 {
			k.leader = kafkaLeader
		}
		k.Voters = nil
		for _, v := range rec.Voters {
			k.Voters = append(k.Voters, v.VoterID)
		}
	case *metadata.KRaftVersion:
		k.KRaftVersion = rec.KRaftVersion
	case *metadata.Voters:
		k.VoterSet = rec.Voters
	}
}

// segment reads the batches of a segment that the image does not hold yet. Only the last one may end in bytes that
// are no batch, and only if none follows them: then they were never acknowledged.
func (k *kafkaReader) segment(name string, last bool) error {
	path := filepath.Join(k.Dir, name)
	err := log.ScanSegment(k.fs, path, func(_ int64, b record.Batch) error { return k.batch(b) })
	var corrupt *log.CorruptError
	if errors.As(err, &corrupt) && last {
		whole, scanErr := k.batchFollows(path, corrupt.Offset)
		if scanErr != nil {
			return scanErr
		}
		if !whole {
			k.Torn = fmt.Sprintf("%s at position %d: %v", name, corrupt.Offset, corrupt.Err)
			return nil
		}
	}
	if err != nil {
		return &KafkaLogError{File: path, Err: err}
	}
	return nil
}

func (k *kafkaReader) batch(b record.Batch) error {
	controls, records, err := recordsOf(b)
	if err != nil {
		return fmt.Errorf("offset %d: %w", b.BaseOffset(), err)
	}
	// What a snapshot holds already is read all the same: who led is told nowhere else.
	for _, rec := range controls {
		k.control(rec, b.PartitionLeaderEpoch())
	}
	if b.NextOffset() <= k.EndOffset {
		return nil
	}
	switch {
	case b.BaseOffset() != k.EndOffset:
		return fmt.Errorf("batch at offset %d where %d was expected", b.BaseOffset(), k.EndOffset)
	case b.PartitionLeaderEpoch() < k.Epoch:
		return fmt.Errorf("batch at offset %d of epoch %d follows epoch %d", b.BaseOffset(), b.PartitionLeaderEpoch(), k.Epoch)
	}
	for i, rec := range records {
		if err := k.delta.Replay(rec, b.BaseOffset()+int64(i)); err != nil {
			return err
		}
	}
	k.EndOffset, k.Epoch, k.Timestamp = b.NextOffset(), b.PartitionLeaderEpoch(), b.MaxTimestamp()
	return nil
}

// recordsOf decodes a batch of the metadata log. Control records of unknown types say nothing.
func recordsOf(b record.Batch) (controls []metadata.ControlRecord, records []metadata.Record, err error) {
	if !b.IsControl() {
		records, err = decodeRecords(b)
		return nil, records, err
	}
	it := record.NewRecordIterator(b, record.Limits{MaxDecompressed: maxControlBytes})
	defer it.Close()
	for it.Next() {
		kind, err := metadata.ParseControlKey(it.Record().Key)
		if err != nil {
			return nil, nil, err
		}
		rec, err := metadata.DecodeControl(kind, it.Record().Value)
		var unknown *metadata.UnknownControlTypeError
		if errors.As(err, &unknown) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		controls = append(controls, rec)
	}
	return controls, nil, it.Err()
}

// batchFollows says whether a whole batch lies behind the damaged one at that position.
func (k *kafkaReader) batchFollows(path string, position int64) (bool, error) {
	data, err := vfs.ReadFile(k.fs, path)
	if err != nil {
		return false, err
	}
	if position > int64(len(data)) {
		return false, nil
	}
	for data = data[position:]; len(data) > record.HeaderSize; data = data[1:] {
		b := record.Batch(data)
		size := b.Length()
		if data[16] != record.Magic || size < record.HeaderSize || size > len(data) || b.BaseOffset() < k.EndOffset {
			continue
		}
		if record.Batch(data[:size:size]).VerifyCRC() == nil {
			return true, nil
		}
	}
	return false, nil
}

// quorumState reads who votes, and the last epoch anybody voted in.
func (k *kafkaReader) quorumState() error {
	k.QuorumEpoch = max(k.QuorumEpoch, k.Epoch)
	name := filepath.Join(k.Dir, quorumStateName)
	text, err := vfs.ReadFile(k.fs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	q, err := metadata.ParseQuorumState(text)
	if err != nil {
		return &KafkaLogError{File: name, Err: err}
	}
	k.QuorumEpoch = max(k.QuorumEpoch, q.LeaderEpoch)
	if len(q.CurrentVoters) > 0 {
		k.Voters = q.CurrentVoters
	}
	if k.KRaftVersion > 0 {
		k.Voters = nil
		for _, v := range k.VoterSet {
			k.Voters = append(k.Voters, v.VoterID)
		}
	}
	return nil
}

// registeredByKafka says whether this node's controller told the cluster of features that no Stele ever told of.
func (k *kafkaReader) registeredByKafka(nodeID int32) bool {
	c, ok := k.Image.Controllers().Get(nodeID)
	if !ok {
		return false
	}
	return slices.ContainsFunc(c.Features, func(f metadata.FeatureRange) bool {
		_, ours := metadata.SupportedFeature(f.Name)
		return !ours
	})
}

// Problems are the reasons why this node alone cannot go on with the log, none if it can.
func (k *KafkaLog) Problems(self Identity) []string {
	var found []string
	if len(k.Voters) > 0 && !slices.Equal(k.Voters, []int32{self.NodeID}) {
		found = append(found, fmt.Sprintf("the quorum has the voters %s: only a quorum of this node (%d) alone is taken over", idList(k.Voters), self.NodeID))
	}
	for _, v := range k.VoterSet {
		if v.VoterID == self.NodeID && v.VoterDirectoryID != self.DirectoryID {
			found = append(found, fmt.Sprintf("the quorum knows this node under the directory id %s, meta.properties says %s: this is not the disk that voted", v.VoterDirectoryID, self.DirectoryID))
		}
	}
	if k.Prepared > 0 && k.EndOffset == 0 {
		found = append(found, fmt.Sprintf("the cluster was formatted and never started, and %d records beside feature levels (SCRAM credentials) wait in its first checkpoint: start Apache Kafka once, or format anew", k.Prepared))
	}
	if k.EndOffset > 0 && k.Image.MetadataVersion() == 0 {
		found = append(found, "the cluster's first start was not finished: no metadata.version is in the log; start Apache Kafka once more")
	}
	return found
}

func idList(ids []int32) string {
	var text []string
	for _, id := range ids {
		text = append(text, strconv.Itoa(int(id)))
	}
	return strings.Join(text, ", ")
}
