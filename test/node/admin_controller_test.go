package node

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// shadow speaks to a controller as a broker does.
type shadow struct {
	*client
	id          int32
	incarnation [16]byte
	dir         [16]byte
	cluster     string
	epoch       int64
	listener    string // host:port it says it listens on
}

func newUUID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

// shadow makes a broker that is not there, with a listener nobody serves.
func (n *node) shadow(t testing.TB, id int32) *shadow {
	t.Helper()
	cluster := do[*kmsg.DescribeClusterResponse](n.dial(t), 0, kmsg.NewPtrDescribeClusterRequest()).ClusterID
	return &shadow{client: n.controller(t), id: id, incarnation: newUUID(), dir: newUUID(), cluster: cluster, epoch: -1, listener: "127.0.0.1:1"}
}

func (s *shadow) registration() *kmsg.BrokerRegistrationRequest {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.BrokerID, req.ClusterID, req.IncarnationID, req.PreviousBrokerEpoch = s.id, s.cluster, s.incarnation, -1
	req.LogDirs = [][16]byte{s.dir}
	host, port, _ := strings.Cut(s.listener, ":")
	l := kmsg.NewBrokerRegistrationRequestListener()
	l.Name, l.Host = "PLAINTEXT", host
	for _, c := range port {
		l.Port = l.Port*10 + uint16(c-'0')
	}
	req.Listeners = append(req.Listeners, l)
	for _, f := range metadata.SupportedFeatures() {
		one := kmsg.NewBrokerRegistrationRequestFeature()
		one.Name, one.MinSupportedVersion, one.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, one)
	}
	return req
}

func (s *shadow) register() int16 {
	s.t.Helper()
	resp := do[*kmsg.BrokerRegistrationResponse](s.client, 4, s.registration())
	if resp.ErrorCode == 0 {
		s.epoch = resp.BrokerEpoch
	}
	return resp.ErrorCode
}

func (s *shadow) heartbeat(offset int64, wantFence, wantShutDown bool) *kmsg.BrokerHeartbeatResponse {
	s.t.Helper()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch, req.CurrentMetadataOffset, req.WantFence, req.WantShutdown = s.id, s.epoch, offset, wantFence, wantShutDown
	return do[*kmsg.BrokerHeartbeatResponse](s.client, 1, req)
}

// logged is one record of the metadata log with its offset.
type logged struct {
	offset int64
	record metadata.Record
}

// metadataLog reads the log of a node whose process may run: what is there is whole.
func (n *node) metadataLog(t testing.TB) []logged {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "__cluster_metadata-0", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no metadata log: %v", err)
	}
	var all []logged
	for _, file := range files {
		for b, err := range record.Batches(n.read(t, file)) {
			if err != nil {
				break // being written
			}
			if b.IsControl() {
				continue
			}
			it := record.NewRecordIterator(b, record.Limits{MaxDecompressed: 1 << 20})
			for it.Next() {
				rec, _, err := metadata.DecodeRecord(it.Record().Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, logged{b.OffsetOf(it.Record()), rec})
			}
			it.Close()
		}
	}
	return all
}

// since are the records from an offset on, without NoOps.
func (n *node) since(t testing.TB, offset int64) []logged {
	t.Helper()
	var out []logged
	for _, l := range n.metadataLog(t) {
		if _, idle := l.record.(*metadata.NoOpRecord); l.offset >= offset && !idle {
			out = append(out, l)
		}
	}
	return out
}

func TestM003_meta_properties(t *testing.T) {
	// A fresh node writes meta.properties v1 with its three ids and keeps them over a restart; without directory.id a new one is written; with a reserved one it does not start.
	t.Parallel()
	n := start(t)
	path := filepath.Join(n.dir, "meta.properties")
	properties := func() map[string]string {
		values := map[string]string{}
		for line := range strings.Lines(string(n.read(t, path))) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
				values[name] = value
			}
		}
		return values
	}
	first := properties()
	if first["version"] != "1" || first["node.id"] != "1" || len(first["cluster.id"]) != 22 || len(first["directory.id"]) != 22 {
		t.Fatalf("%v", first)
	}
	n.restart(t)
	if again := properties(); again["cluster.id"] != first["cluster.id"] || again["directory.id"] != first["directory.id"] {
		t.Errorf("after a restart: %v, before %v", again, first)
	}
	n.stop(t)
	reserved := strings.Replace(string(n.read(t, path)), first["directory.id"], "AAAAAAAAAAAAAAAAAAAAAw", 1)
	if err := os.WriteFile(path, []byte(reserved), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.launch(built(t)); err == nil {
		t.Error("a node with a reserved directory id starts")
	} else if !strings.Contains(err.Error(), "AAAAAAAAAAAAAAAAAAAAAw") {
		t.Errorf("the error does not name the id: %v", err)
	}
}

func TestM004_foreign_directory(t *testing.T) {
	// A directory of another cluster or node in the set: the start is refused with one line that names the file and both values.
	t.Parallel()
	one, two := start(t), start(t)
	one.stop(t)
	two.stop(t)
	for name, change := range map[string]func(string) string{
		"cluster": func(s string) string { return s },
		"node":    func(s string) string { return strings.Replace(s, "node.id=1", "node.id=9", 1) },
	} {
		mixed := &node{dir: one.dir, set: []string{"log.dirs=" + one.dir + "," + two.dir, "metadata.log.dir=" + one.dir}}
		path := filepath.Join(two.dir, "meta.properties")
		kept := string(two.read(t, path))
		if err := os.WriteFile(path, []byte(change(kept)), 0o644); err != nil {
			t.Fatal(err)
		}
		err := mixed.launch(built(t))
		if err == nil {
			mixed.kill()
			t.Errorf("%s: started", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name %s: %v", name, path, err)
		}
		if err := os.WriteFile(path, []byte(kept), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestM005_first_records(t *testing.T) {
	// The log of a fresh node: LeaderChange, a transaction with the feature levels that Stele serves, its own controller, its own broker, unfenced.
	t.Parallel()
	n := start(t)
	all := n.since(t, 0)
	if len(all) < 6 {
		t.Fatalf("%d records", len(all))
	}
	begin, ok := all[0].record.(*metadata.BeginTransactionRecord)
	if !ok || all[0].offset != 1 || begin.Name == nil || *begin.Name != "Bootstrap records" {
		t.Errorf("offset %d: %T %+v", all[0].offset, all[0].record, all[0].record)
	}
	i := 1
	for ; i < len(all); i++ {
		f, ok := all[i].record.(*metadata.FeatureLevelRecord)
		if !ok {
			break
		}
		if i == 1 && (f.Name != "metadata.version" || f.FeatureLevel != 33) {
			t.Errorf("%+v", f)
		}
	}
	if _, ok := all[i].record.(*metadata.EndTransactionRecord); !ok || i < 2 {
		t.Fatalf("record %d is %T", i, all[i].record)
	}
	if c, ok := all[i+1].record.(*metadata.RegisterControllerRecord); !ok || c.ControllerID != 1 || len(c.EndPoints) != 1 {
		t.Errorf("%T %+v", all[i+1].record, all[i+1].record)
	}
	if b, ok := all[i+2].record.(*metadata.RegisterBrokerRecord); !ok || b.BrokerID != 1 || !b.Fenced || b.BrokerEpoch != all[i+2].offset {
		t.Errorf("%T %+v", all[i+2].record, all[i+2].record)
	}
}

func TestM016_features_in_api_versions(t *testing.T) {
	// ApiVersions v3 leaves out features whose minimum is 0, v4 has them, on both listeners; the finalized epoch is the image's offset.
	t.Parallel()
	n := start(t)
	for name, c := range map[string]*client{"broker": n.dial(t), "controller": n.controller(t)} {
		for version := int16(3); version <= 4; version++ {
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "node-test", "1"
			got := do[*kmsg.ApiVersionsResponse](c, version, req)
			levels := map[string]int16{}
			for _, f := range got.SupportedFeatures {
				levels[f.Name] = f.MinVersion
			}
			if _, ok := levels["metadata.version"]; !ok {
				t.Errorf("%s v%d: %+v", name, version, got.SupportedFeatures)
			}
			if min, ok := levels["kraft.version"]; version == 3 && ok {
				t.Errorf("%s v3 shows kraft.version from %d", name, min)
			}
			for f, min := range levels {
				if version == 3 && min == 0 {
					t.Errorf("%s v3 shows %s from 0", name, f)
				}
			}
			if len(got.FinalizedFeatures) == 0 {
				t.Errorf("%s v%d: %+v", name, version, got.FinalizedFeatures)
			}
			// The image's offset is the last one of the metadata log below its high watermark, once all is applied.
			c.eventually("the epoch is the offset of the image", func() bool {
				before := n.highWatermark(t)
				got := do[*kmsg.ApiVersionsResponse](c, version, req)
				return n.highWatermark(t) == before && got.FinalizedFeaturesEpoch == before-1
			})
		}
	}
}

// updateFeatures changes levels; kind is 1 for up, 2 for down.
func (c *client) updateFeatures(version int16, validateOnly bool, kind int8, levels map[string]int16) *kmsg.UpdateFeaturesResponse {
	c.t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.TimeoutMillis, req.ValidateOnly = 10000, validateOnly
	for name, level := range levels {
		one := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		one.Feature, one.MaxVersionLevel, one.UpgradeType, one.AllowDowngrade = name, level, kind, kind == 2
		req.FeatureUpdates = append(req.FeatureUpdates, one)
	}
	return do[*kmsg.UpdateFeaturesResponse](c, version, req)
}

// finalized is the level of a feature in ApiVersions, -1 when it is not finalized.
func (c *client) finalized(name string) int16 {
	c.t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "node-test", "1"
	for _, f := range do[*kmsg.ApiVersionsResponse](c, 4, req).FinalizedFeatures {
		if f.Name == name {
			return f.MaxVersionLevel
		}
	}
	return -1
}

func TestM013_two_features_one_bad(t *testing.T) {
	// Two features, one bad: 95 at the top with a message and nothing changes; good ones are listed one by one by v0 and v1, and not by v2; validate_only changes nothing.
	t.Parallel()
	n := start(t)
	for name, c := range map[string]*client{"broker": n.dial(t), "controller": n.controller(t)} {
		for version := int16(0); version <= 2; version++ {
			for _, other := range []string{"transaction.version", "kraft.version", "no.such.version"} {
				if got := c.updateFeatures(version, false, 1, map[string]int16{"metadata.version": 33, other: 1}); got.ErrorCode != 95 || deref(got.ErrorMessage) == "" || len(got.Results) != 0 {
					t.Errorf("%s v%d, with %s: %+v", name, version, other, got)
				}
			}
			good := c.updateFeatures(version, version > 0, 1, map[string]int16{"metadata.version": 33})
			if good.ErrorCode != 0 || (len(good.Results) == 1) != (version <= 1) || version <= 1 && (good.Results[0].Feature != "metadata.version" || good.Results[0].ErrorCode != 0) {
				t.Errorf("%s v%d, good: %+v", name, version, good)
			}
			if down := c.updateFeatures(version, false, 2, map[string]int16{"metadata.version": 32}); down.ErrorCode != 95 {
				t.Errorf("%s v%d, down to 32: %+v", name, version, down)
			}
		}
		if level := c.finalized("metadata.version"); level != 33 {
			t.Errorf("%s: metadata.version is %d", name, level)
		}
	}
}

func TestM018_registration_checks(t *testing.T) {
	// A registration that is wrong in two ways gets the earlier error: cluster 104, ZooKeeper 102, directories 119, feature range 35, no metadata.version 119.
	t.Parallel()
	n := start(t)
	s := n.shadow(t, 77)
	type fault struct {
		name   string
		change func(*kmsg.BrokerRegistrationRequest)
		want   int16
	}
	faults := []fault{
		{"cluster", func(r *kmsg.BrokerRegistrationRequest) { r.ClusterID = "AAAAAAAAAAAAAAAAAAAAAA" }, 104},
		{"ZooKeeper", func(r *kmsg.BrokerRegistrationRequest) { r.IsMigratingZkBroker = true }, 102},
		{"no directories", func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs = nil }, 119},
		{"range", func(r *kmsg.BrokerRegistrationRequest) {
			for i := range r.Features {
				if r.Features[i].Name == "metadata.version" {
					r.Features[i].MaxSupportedVersion = 30
				}
			}
		}, 35},
	}
	for i, first := range faults {
		for _, second := range faults[i:] {
			req := s.registration()
			first.change(req)
			second.change(req)
			if resp := do[*kmsg.BrokerRegistrationResponse](s.client, 4, req); resp.ErrorCode != first.want || resp.BrokerEpoch != -1 {
				t.Errorf("%s and %s: %d, epoch %d; want %d", first.name, second.name, resp.ErrorCode, resp.BrokerEpoch, first.want)
			}
		}
	}
	for name, change := range map[string]func(*kmsg.BrokerRegistrationRequest){
		"twice":    func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs = append(r.LogDirs, r.LogDirs[0]) },
		"reserved": func(r *kmsg.BrokerRegistrationRequest) { r.LogDirs = [][16]byte{{15: 1}} },
		"no metadata.version": func(r *kmsg.BrokerRegistrationRequest) {
			r.Features = nil
		},
	} {
		req := s.registration()
		change(req)
		if resp := do[*kmsg.BrokerRegistrationResponse](s.client, 4, req); resp.ErrorCode != 119 {
			t.Errorf("%s: %d", name, resp.ErrorCode)
		}
	}
}

func TestM020_broker_epochs_are_offsets(t *testing.T) {
	// A broker's epoch is the offset of the first record of its registration, with and without clean-up records before it; the same incarnation keeps its epoch.
	t.Parallel()
	n := start(t)
	s := n.shadow(t, 77)
	if code := s.register(); code != 0 {
		t.Fatalf("register: %d", code)
	}
	first := s.epoch
	written := n.since(t, first)
	if b, ok := written[0].record.(*metadata.RegisterBrokerRecord); !ok || written[0].offset != first || b.BrokerEpoch != first {
		t.Errorf("offset %d: %T", written[0].offset, written[0].record)
	}
	if code := s.register(); code != 0 || s.epoch != first {
		t.Errorf("again: %d, epoch %d, want %d", code, s.epoch, first)
	}
	s.incarnation = newUUID() // without a heartbeat there is no session to wait for
	if code := s.register(); code != 0 || s.epoch <= first {
		t.Errorf("another incarnation: %d, epoch %d after %d", code, s.epoch, first)
	}
}

func TestM021_caught_up(t *testing.T) {
	// A broker is unfenced only when it has applied its own registration: one offset less is not caught up and stays fenced.
	t.Parallel()
	n := start(t)
	s := n.shadow(t, 77)
	if code := s.register(); code != 0 {
		t.Fatalf("register: %d", code)
	}
	if got := s.heartbeat(s.epoch-1, false, false); got.ErrorCode != 0 || got.IsCaughtUp || !got.IsFenced {
		t.Errorf("one less: %+v", got)
	}
	if got := s.heartbeat(s.epoch, true, false); got.ErrorCode != 0 || !got.IsCaughtUp || !got.IsFenced {
		t.Errorf("wants to stay fenced: %+v", got)
	}
	if got := s.heartbeat(s.epoch, false, false); got.ErrorCode != 0 || !got.IsCaughtUp || got.IsFenced {
		t.Errorf("caught up: %+v", got)
	}
	s.epoch++
	if got := s.heartbeat(s.epoch, false, false); got.ErrorCode != 77 {
		t.Errorf("another epoch: %+v", got)
	}
}

func TestM022_heartbeat_states(t *testing.T) {
	// The table of broker states by raw heartbeats, with the records each step writes.
	t.Parallel()
	n := start(t)
	s := n.shadow(t, 77)
	s.register()
	far := int64(1 << 40)
	step := func(name string, wantFence, wantShutDown, fenced, shutDown bool, records ...string) {
		t.Helper()
		from := int64(0)
		if all := n.metadataLog(t); len(all) > 0 {
			from = all[len(all)-1].offset + 1
		}
		got := s.heartbeat(far, wantFence, wantShutDown)
		if got.ErrorCode != 0 || got.IsFenced != fenced || got.ShouldShutdown != shutDown {
			t.Errorf("%s: error %d, fenced %t, shut down %t", name, got.ErrorCode, got.IsFenced, got.ShouldShutdown)
		}
		var wrote []string
		for _, l := range n.since(t, from) {
			change, ok := l.record.(*metadata.BrokerRegistrationChangeRecord)
			switch {
			case !ok:
				wrote = append(wrote, "another")
			case change.BrokerID != 77 || change.BrokerEpoch != s.epoch:
				wrote = append(wrote, "of another broker")
			case change.Fenced == 1:
				wrote = append(wrote, "fenced")
			case change.Fenced == -1:
				wrote = append(wrote, "unfenced")
			case change.InControlledShutdown != 0:
				wrote = append(wrote, "shutting down")
			}
		}
		if strings.Join(wrote, ",") != strings.Join(records, ",") {
			t.Errorf("%s wrote %v, want %v", name, wrote, records)
		}
	}
	step("fenced, nothing wanted but fence", true, false, true, false)
	step("fenced, shut down wanted", true, true, true, true)
	step("fenced, unfence", false, false, false, false, "unfenced")
	step("unfenced, stays", false, false, false, false)
	step("unfenced, fence", true, false, true, false, "fenced")
	step("unfence again", false, false, false, false, "unfenced")
	step("unfenced, fence and shut down", true, true, true, true, "fenced")
	step("unfence a third time", false, false, false, false, "unfenced")
	step("unfenced, leads nothing, shut down", false, true, true, true, "fenced")
}

func TestM019_second_incarnation(t *testing.T) {
	// While a broker's session is valid another incarnation is refused with 101; when its connection was closed by its side, one with the same directories is taken at once.
	t.Parallel()
	n := start(t)
	s := n.shadow(t, 77)
	s.register()
	s.heartbeat(1<<40, false, false)
	rival := &shadow{client: n.controller(t), id: 77, incarnation: newUUID(), dir: s.dir, cluster: s.cluster, listener: s.listener}
	if code := rival.register(); code != 101 {
		t.Errorf("while the session is valid: %d", code)
	}
	stranger := &shadow{client: n.controller(t), id: 77, incarnation: newUUID(), dir: newUUID(), cluster: s.cluster, listener: s.listener}
	s.conn.Close()
	begun := time.Now()
	rival.eventually("the new incarnation is taken", func() bool {
		if code := stranger.register(); code != 101 && rival.epoch < 0 && time.Since(begun) < 400*time.Millisecond {
			t.Errorf("another disk: %d", code)
		}
		return rival.register() == 0
	})
	if took := time.Since(begun); took > 5*time.Second || rival.epoch <= s.epoch {
		t.Errorf("after %s with epoch %d, before %d", took, rival.epoch, s.epoch)
	}
}

func TestDeadBrokerIsFencedAtOnce(t *testing.T) {
	// A broker whose connection was closed by its side and whose listener refuses is fenced after half a second; one whose listener takes connections is not; a late sign of an old incarnation says nothing of the new one.
	t.Parallel()
	n := start(t)
	fenced := func(id int32) bool {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.IncludeFencedBrokers = true
		for _, b := range do[*kmsg.DescribeClusterResponse](n.dial(t), 2, req).Brokers {
			if b.NodeID == id {
				return b.IsFenced
			}
		}
		return false
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dead, alive := n.shadow(t, 77), n.shadow(t, 78)
	alive.listener = l.Addr().String()
	for _, s := range []*shadow{dead, alive} {
		if code := s.register(); code != 0 {
			t.Fatalf("register: %d", code)
		}
		if got := s.heartbeat(1<<40, false, false); got.IsFenced {
			t.Fatalf("%+v", got)
		}
	}
	begun := time.Now()
	dead.conn.Close()
	alive.conn.Close()
	dead.client = n.dial(t)
	dead.eventually("the dead broker is fenced", func() bool { return fenced(77) })
	if took := time.Since(begun); took < 450*time.Millisecond || took > 6*time.Second {
		t.Errorf("fenced after %s", took)
	}
	if fenced(78) {
		t.Error("a broker that takes connections was fenced")
	}

	old := n.shadow(t, 79)
	old.register()
	old.heartbeat(1<<40, false, false)
	young := &shadow{client: n.controller(t), id: 79, incarnation: newUUID(), dir: old.dir, cluster: old.cluster, listener: old.listener}
	old.conn.Close()
	young.eventually("the new incarnation registers", func() bool { return young.register() == 0 })
	if got := young.heartbeat(1<<40, false, false); got.IsFenced {
		t.Fatalf("%+v", got)
	}
	young.eventually("the new incarnation is seen to be unfenced", func() bool { return !fenced(79) })
	for deadline := time.Now().Add(1200 * time.Millisecond); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if fenced(79) {
			t.Fatal("the new incarnation was fenced for the death of the old one")
		}
	}
}

func TestM053_producer_id_blocks(t *testing.T) {
	// Blocks of producer ids are 0, 1000, 2000 over restarts; no id is given twice.
	t.Parallel()
	n := start(t)
	seen := map[int64]bool{}
	for round := range int64(3) {
		c := n.dial(t)
		for range 3 {
			id := c.producerID()
			if seen[id] || id < round*1000 || id >= (round+1)*1000 {
				t.Errorf("round %d: id %d", round, id)
			}
			seen[id] = true
		}
		if round == 0 {
			n.kill()
			n.run(t)
		} else {
			n.restart(t)
		}
	}
	s := n.shadow(t, 77)
	s.register()
	var last int64 = -1
	for range 3 {
		req := kmsg.NewPtrAllocateProducerIDsRequest()
		req.BrokerID, req.BrokerEpoch = 77, s.epoch
		got := do[*kmsg.AllocateProducerIDsResponse](s.client, 0, req)
		if got.ErrorCode != 0 || got.ProducerIDLen != 1000 || got.ProducerIDStart%1000 != 0 || last >= 0 && got.ProducerIDStart != last+1000 {
			t.Errorf("%+v after %d", got, last)
		}
		last = got.ProducerIDStart
	}
	req := kmsg.NewPtrAllocateProducerIDsRequest()
	req.BrokerID, req.BrokerEpoch = 77, s.epoch+1
	if got := do[*kmsg.AllocateProducerIDsResponse](s.client, 0, req); got.ErrorCode != 77 {
		t.Errorf("wrong epoch: %+v", got)
	}
}

func principalOf(kind, name string) []byte {
	data := kbin.AppendInt16(nil, 0)
	data = kbin.AppendCompactString(data, kind)
	data = kbin.AppendCompactString(data, name)
	data = kbin.AppendBool(data, false)
	return kbin.AppendUvarint(data, 0)
}

func TestM057_envelope(t *testing.T) {
	// An Envelope by hand: good; principal garbage 97; an address of 5 bytes 42; an inner Fetch 42; an inner version 99 or a broken body 35.
	t.Parallel()
	n := start(t)
	c := n.controller(t)
	id := "inner"
	inner := func(version int16, req kmsg.Request) []byte {
		req.SetVersion(version)
		return req.AppendTo(wire.AppendRequestHeader(nil, req.Key(), version, 4711, &id, req.IsFlexible()))
	}
	create := func() kmsg.Request { return createRequest(false, wanted{name: "enveloped"}) }
	versioned := inner(7, create())
	versioned[3] = 99
	for name, row := range map[string]struct {
		data, principal, address []byte
		want                     int16
	}{
		"principal": {inner(7, create()), []byte{9, 9}, []byte{127, 0, 0, 1}, 97},
		"address":   {inner(7, create()), principalOf("User", "alice"), []byte{127, 0, 0, 1, 5}, 42},
		"fetch":     {inner(12, fetchRequest()), principalOf("User", "alice"), []byte{127, 0, 0, 1}, 42},
		"heartbeat": {inner(1, kmsg.NewPtrBrokerHeartbeatRequest()), principalOf("User", "alice"), []byte{127, 0, 0, 1}, 42},
		"version":   {versioned, principalOf("User", "alice"), []byte{127, 0, 0, 1}, 35},
		"body":      {inner(7, create())[:30], principalOf("User", "alice"), []byte{127, 0, 0, 1}, 35},
		"header":    {[]byte{0}, principalOf("User", "alice"), []byte{127, 0, 0, 1}, 35},
		"good":      {inner(7, create()), principalOf("User", "alice"), make([]byte, 16), 0},
	} {
		req := kmsg.NewPtrEnvelopeRequest()
		req.RequestData, req.RequestPrincipal, req.ClientHostAddress = row.data, row.principal, row.address
		got := do[*kmsg.EnvelopeResponse](c, 0, req)
		if got.ErrorCode != row.want || row.want != 0 && got.ResponseData != nil {
			t.Errorf("%s: error %d, %d bytes; want %d", name, got.ErrorCode, len(got.ResponseData), row.want)
		}
		if row.want == 0 {
			asked := create()
			asked.SetVersion(7)
			answer := c.decode(7, asked, 4711, got.ResponseData).(*kmsg.CreateTopicsResponse)
			if answer.Topics[0].ErrorCode != 0 || answer.Topics[0].Topic != "enveloped" {
				t.Errorf("%+v", answer.Topics)
			}
		}
	}
	n.dial(t).awaitTopic("enveloped")
}

// highWatermark is that of the metadata log.
func (n *node) highWatermark(t testing.TB) int64 {
	t.Helper()
	req := kmsg.NewPtrDescribeQuorumRequest()
	one := kmsg.NewDescribeQuorumRequestTopic()
	one.Topic = "__cluster_metadata"
	one.Partitions = append(one.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, one)
	return do[*kmsg.DescribeQuorumResponse](n.dial(t), 2, req).Topics[0].Partitions[0].HighWatermark
}
