package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// takeover is a start on data directories that Apache Kafka ran last: what they hold is looked at as a whole, and
// either refused with every reason at once and nothing changed, or made this node's.
type takeover struct {
	fs      vfs.FS
	dirs    []string // log directories, and the metadata directory
	logDirs []string
	self    quorum.Identity
	ids     map[metadata.UUID]string // directories by id

	log   *quorum.KafkaLog
	clean bool
	// problems are why this version cannot go on with what is there, kept what it keeps without serving it.
	problems, kept []string
	// what internal topics hold that is kept
	otherGroups map[string]bool
	unlock      func()
}

// TakeoverError refuses directories that Apache Kafka ran last. Nothing in them was changed.
type TakeoverError struct {
	Dir      string
	Problems []string
}

func (e *TakeoverError) Error() string {
	return fmt.Sprintf("data directory %s was run by Apache Kafka and cannot be taken over (nothing was changed): %s", e.Dir, strings.Join(e.Problems, "; "))
}

// surveyKafka looks whether the metadata directory is Apache Kafka's, and if so at all that is there. It is nil where
// nothing is to be taken over. The directories stay locked until release.
func (n *node) surveyKafka(ctx context.Context) (_ *takeover, err error) {
	if !n.config.HasRole("controller") || n.plan.FormatsQuorum() {
		return nil, nil
	}
	found, err := quorum.InspectKafka(n.fs, n.plan.MetadataDir, n.id)
	if err != nil || found == nil {
		return nil, err
	}
	t := &takeover{fs: n.fs, self: n.identity(), log: found, logDirs: n.config.LogDirs(), ids: map[metadata.UUID]string{}, otherGroups: map[string]bool{}}
	for dir, id := range n.plan.IDs {
		t.ids[id] = dir
		t.dirs = append(t.dirs, dir)
	}
	slices.Sort(t.dirs)
	if err := t.lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.release()
		}
	}()
	// Again, now that nobody else writes.
	if t.log, err = quorum.InspectKafka(n.fs, n.plan.MetadataDir, n.id); err != nil {
		return nil, err
	}
	if t.log == nil {
		return nil, fmt.Errorf("data directory %s changed while it was looked at: start again", n.plan.MetadataDir)
	}
	if !n.config.HasRole("broker") {
		t.problem("this node is configured without the role broker: only a node that is broker and controller is taken over")
	}
	if voters, err := n.staticVoters(); err != nil {
		return nil, err
	} else if len(voters) > 1 {
		t.problem("controller.quorum.voters names %d voters: a single node is taken over by itself, more can join it later", len(voters))
	}
	if err := t.survey(ctx); err != nil {
		return nil, err
	}
	if len(t.problems) > 0 {
		return nil, &TakeoverError{Dir: n.plan.MetadataDir, Problems: t.problems}
	}
	return t, nil
}

// lock keeps Kafka and others out. A lock file that was not there goes again with release.
func (t *takeover) lock() error {
	var held []func()
	t.unlock = func() {
		for _, f := range held {
			f()
		}
		held = nil
	}
	for _, dir := range t.dirs {
		name := filepath.Join(dir, log.LockName)
		_, missing := t.fs.Stat(name)
		lock, err := t.fs.Lock(name)
		if err != nil {
			t.unlock()
			if errors.Is(err, vfs.ErrLocked) {
				return fmt.Errorf("log directory %s is in use: %w", dir, err)
			}
			return err
		}
		held = append(held, func() {
			if errors.Is(missing, fs.ErrNotExist) {
				_ = t.fs.Remove(name)
			}
			lock.Close()
		})
	}
	return nil
}

func (t *takeover) release() {
	if t != nil && t.unlock != nil {
		t.unlock()
	}
}

func (t *takeover) problem(format string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

func (t *takeover) keep(format string, args ...any) {
	t.kept = append(t.kept, fmt.Sprintf(format, args...))
}

func (t *takeover) survey(ctx context.Context) error {
	t.problems = append(t.problems, t.log.Problems(t.self)...)
	t.clean = true
	for _, dir := range t.logDirs {
		if _, err := t.fs.Stat(filepath.Join(dir, log.CleanShutdownName)); err != nil {
			t.clean = false
		}
	}
	img := t.log.Image
	if err := t.neverStarted(); err != nil {
		return err
	}
	for id := range img.Brokers().All() {
		if id != t.self.NodeID {
			t.problem("broker %d is registered too: only a single node is taken over (unregister brokers that are gone for good)", id)
		}
	}
	t.metadataKept(img)
	for _, topic := range img.Topics().All() {
		if v, _ := img.ConfigValue(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: topic.Name}, "remote.storage.enable"); v == "true" {
			t.problem("topic %s keeps records in remote storage (remote.storage.enable), which this version does not read", topic.Name)
		}
		for _, p := range topic.Partitions().All() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.partition(topic, p); err != nil {
				return err
			}
		}
	}
	if n := len(t.otherGroups); n > 0 {
		t.keep("records of %d share or streams groups without members: %s", n, strings.Join(slices.Sorted(maps.Keys(t.otherGroups)), " "))
	}
	return nil
}

// neverStarted makes sure that a metadata log without a record is of a cluster that never was: where there are
// partitions, it was lost.
func (t *takeover) neverStarted() error {
	if t.log.EndOffset > 0 {
		return nil
	}
	for _, dir := range t.logDirs {
		entries, err := t.fs.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if tp, ok := log.ParsePartitionDir(entry.Name()); ok && entry.IsDir() && tp.Topic != quorum.TopicName {
				t.problem("the metadata log is empty, but there are partitions, such as %s: it was lost, put it back from a copy", filepath.Join(dir, entry.Name()))
				return nil
			}
		}
	}
	return nil
}

// metadataKept lists what of the metadata is kept and not served.
func (t *takeover) metadataKept(img *metadata.Image) {
	var features []string
	for name, level := range img.Features().All() {
		if f, _ := metadata.SupportedFeature(name); level > f.Max {
			features = append(features, fmt.Sprintf("%s=%d", name, level))
		}
	}
	if len(features) > 0 {
		t.keep("finalized features that this version does not serve: %s", strings.Join(features, " "))
	}
	for _, kind := range []struct {
		n    int
		what string
	}{
		{img.ACLs().Len(), "ACLs, which are not enforced"}, {img.ScramCredentials().Len(), "SCRAM credentials"}, {img.DelegationTokens().Len(), "delegation tokens"},
	} {
		if kind.n > 0 {
			t.keep("%d %s", kind.n, kind.what)
		}
	}
}

// partition looks at one partition on disk.
func (t *takeover) partition(topic *metadata.Topic, p *metadata.Partition) error {
	name := fmt.Sprintf("%s-%d", topic.Name, p.ID)
	if !slices.Contains(p.Replicas, t.self.NodeID) {
		t.problem("partition %s has no replica on this node", name)
		return nil
	}
	if id, ok := p.Directory(t.self.NodeID); ok && !id.Reserved() && t.ids[id] == "" {
		t.problem("partition %s lies in the directory with id %s, which is none of log.dirs", name, id)
		return nil
	}
	dir := ""
	for _, d := range t.logDirs {
		if _, err := t.fs.Stat(filepath.Join(d, name)); err == nil {
			dir = filepath.Join(d, name)
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if dir == "" {
		// Kafka makes it when it hears of the partition, so an unclean stop may come before.
		if t.clean {
			t.problem("partition %s has no directory %s in any of log.dirs: put it back, it would come up empty", name, name)
		}
		return nil
	}
	switch topic.Name {
	case "__consumer_offsets":
		return t.groups(name, dir)
	case "__transaction_state":
		return t.transactions(name, dir)
	}
	return nil
}

// newest is the newest value of each key in a compacted partition that is wanted; removed keys are not in it.
func (t *takeover) newest(name, dir string, wanted func(key []byte) bool) (map[string][]byte, error) {
	values := map[string][]byte{}
	torn, err := log.ScanPartition(t.fs, dir, func(b record.Batch) error {
		if b.IsControl() {
			return nil
		}
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				return fmt.Errorf("%s: batch at offset %d: %w", dir, b.BaseOffset(), err)
			}
			switch {
			case !wanted(r.Key):
			case r.Value == nil:
				delete(values, string(r.Key))
			default:
				values[string(r.Key)] = slices.Clone(r.Value)
			}
		}
		return nil
	})
	if torn != nil && t.clean {
		t.problem("partition %s is damaged although Kafka was stopped cleanly: %v", name, torn)
	}
	return values, err
}

// Types of keys in __consumer_offsets that stand for a member of a group of a kind that is not served.
var memberKeys = map[int16]string{10: "share", 19: "streams"}

// servedGroupKey says whether a key is of classic groups, of offsets, or of groups of the consumer protocol.
func servedGroupKey(typ int16) bool { return typ <= 8 || typ == 16 }

// groups looks for groups in use that are of a kind which is not served.
func (t *takeover) groups(name, dir string) error {
	values, err := t.newest(name, dir, func(key []byte) bool {
		typ, _, ok := groupKey(key)
		return ok && !servedGroupKey(typ)
	})
	if err != nil {
		return err
	}
	members := map[string]int{}
	for key := range values {
		typ, group, _ := groupKey([]byte(key))
		t.otherGroups[group] = true
		if kind := memberKeys[typ]; kind != "" {
			members[kind+" group "+group]++
		}
	}
	for _, group := range slices.Sorted(maps.Keys(members)) {
		t.problem("%s has %d members: this version serves classic and consumer groups only; stop them under Apache Kafka first", group, members[group])
	}
	return nil
}

// groupKey is the type and the group in a key of __consumer_offsets.
func groupKey(key []byte) (typ int16, group string, ok bool) {
	if len(key) < 4 {
		return 0, "", false
	}
	n := int(binary.BigEndian.Uint16(key[2:]))
	if n > len(key)-4 {
		return 0, "", false
	}
	return int16(binary.BigEndian.Uint16(key)), string(key[4 : 4+n]), true
}

// transactions looks for transactions that were not ended.
func (t *takeover) transactions(name, dir string) error {
	values, err := t.newest(name, dir, func([]byte) bool { return true })
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var k kmsg.TxnMetadataKey
		var v kmsg.TxnMetadataValue
		if err := k.ReadFrom([]byte(key)); err != nil {
			t.problem("partition %s has a record that cannot be read: key %x: %v", name, key, err)
			continue
		}
		if err := v.ReadFrom(values[key]); err != nil {
			t.problem("partition %s has a record of transactional id %q that cannot be read: %v", name, k.TransactionalID, err)
			continue
		}
	}
	return nil
}

// takeOver makes the directories this node's. Locks are held until then, and the clean-shutdown marker is still there.
func (n *node) takeOver() error {
	t := n.takeover
	if t == nil {
		return nil
	}
	img := t.log.Image
	partitions := 0
	for _, topic := range img.Topics().All() {
		partitions += topic.NumPartitions()
	}
	n.logger.Info("taking over the data directory of an Apache Kafka node: its files stay, a snapshot of the metadata and this quorum's raft-state are put beside its metadata log",
		"metadata_dir", n.plan.MetadataDir, "cluster", n.plan.ClusterID, "node", n.id, "metadata_version", img.MetadataVersion().String(), "end_offset", t.log.EndOffset, "epoch", t.log.Epoch,
		"topics", img.Topics().Len(), "partitions", partitions, "clean_stop", t.clean, "returned", t.log.Returned)
	if t.log.Torn != "" {
		n.logger.Warn("the metadata log ends in bytes that were never acknowledged, and are cut", "metadata_dir", n.plan.MetadataDir, "cause", t.log.Torn)
	}
	started := time.Now()
	voter := quorum.Voter{VoterID: n.id, VoterDirectoryID: t.self.DirectoryID, Endpoints: n.controllerEndpoints(), KRaftVersionFeature: metadata.VersionRange{Min: 0, Max: 1}}
	if err := quorum.TakeOver(n.fs, t.log, t.self, voter); err != nil {
		return fmt.Errorf("data directory %s could not be taken over and is still Apache Kafka's: %w", n.plan.MetadataDir, err)
	}
	n.logger.Info("taken over", "metadata_dir", n.plan.MetadataDir, "kept_aside", quorum.KeptQuorumState, "took", time.Since(started).Round(time.Millisecond).String())
	for _, what := range t.kept {
		n.logger.Warn("kept, and not served by this version", "what", what)
	}
	t.release()
	return nil
}
