package quorum

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// KeptQuorumState is where Kafka's quorum-state lies after a take-over, beside the one that this quorum writes.
const KeptQuorumState = "quorum-state.kafka"

// TakeOver makes a metadata log that Apache Kafka wrote this quorum's, of which self is the only voter. Kafka's bytes
// stay where they are: a snapshot of the image at the log's end is put beside them, and the quorum's state begins
// there, in Kafka's last epoch, so that the first leader's is above any that Kafka knew. The state comes last and is
// what makes the log this quorum's: after a crash before it, the directory is still Kafka's and the take-over is done
// again; after it, it is done. k must be what InspectKafka found, and the directory locked since.
func TakeOver(fsys vfs.FS, k *KafkaLog, self Identity, voter Voter) error {
	keep, err := vfs.ReadFile(fsys, filepath.Join(k.Dir, quorumStateName))
	if err == nil {
		err = vfs.WriteFileAtomic(fsys, filepath.Join(k.Dir, KeptQuorumState), keep)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	vfs.Failpoint("takeover-kept")
	if k.EndOffset == 0 {
		st := initialState(self, []Voter{voter})
		st.term = uint64(max(k.QuorumEpoch, 0))
		return writeState(fsys, k.Dir, &st)
	}
	place := position{Index: 1, Term: uint64(k.Epoch), EndOffset: k.EndOffset, Timestamp: k.Timestamp}
	values, err := k.Image.Encoded()
	if err != nil {
		return err
	}
	var head []metadata.ControlRecord
	if k.KRaftVersion > 0 {
		head = append(head, &metadata.KRaftVersion{KRaftVersion: k.KRaftVersion}, &metadata.Voters{Voters: []Voter{voter}})
	}
	if err := writeSnapshot(fsys, k.Dir, place.snapshotID(), place.Timestamp, slices.Values(values), head...); err != nil {
		return err
	}
	vfs.Failpoint("takeover-snapshot")
	st := initialState(self, []Voter{voter})
	st.term, st.base, st.snapshot = uint64(k.QuorumEpoch), place, place
	return writeState(fsys, k.Dir, &st)
}
