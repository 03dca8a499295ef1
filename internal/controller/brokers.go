package controller

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

func itoa(id int32) string { return strconv.Itoa(int(id)) }

// LostConnectionDelay is how long after a broker's connection was closed by the other side the broker is
// fenced, if its listener refuses connections by then.
const LostConnectionDelay = 500 * time.Millisecond

// contact is the soft state of one broker.
type contact struct {
	// last is when the broker was last heard of; zero means that it has no session.
	last time.Time
	// offset is the last metadata offset the broker has applied, -1 while it is not known.
	offset int64
	// shutdownOffset is the end of the last batch written for the broker's controlled shutdown.
	shutdownOffset int64
	// lost is when the broker's connection was closed by the other side; zero while it stands.
	lost time.Time
	// refused says that its listener refused a connection since then.
	refused bool
}

func (c *Controller) contact(id int32) *contact {
	k := c.contacts[id]
	if k == nil {
		k = &contact{offset: -1}
		c.contacts[id] = k
	}
	return k
}

// Touch counts as a sign of life of a broker whose heartbeat arrived at now. The caller may do so on
// arrival, before the request waits for its turn.
func (c *Controller) Touch(now time.Time, id int32, epoch int64) {
	b, ok := c.img.Broker(id)
	if !ok || b.Epoch != epoch {
		return
	}
	k := c.contact(id)
	if now.After(k.last) {
		k.last = now
	}
	k.lost, k.refused = time.Time{}, false
}

// BrokerConnectionLost says that the connection a broker's heartbeats came over was closed by the broker's
// side. Together with ListenerRefused it fences the broker after LostConnectionDelay, and a new incarnation
// with the same directories need not wait for the session to end.
func (c *Controller) BrokerConnectionLost(now time.Time, id int32) {
	if _, ok := c.img.Broker(id); !ok {
		return
	}
	k := c.contact(id)
	k.lost, k.refused = now, false
}

// BrokerListenerRefused says that, after the connection was lost, a new one to the broker's listener was refused.
func (c *Controller) BrokerListenerRefused(id int32) {
	if k := c.contacts[id]; k != nil && !k.lost.IsZero() {
		k.refused = true
	}
}

func (c *Controller) sessionTimeout() time.Duration {
	return c.opt.Static.Duration("broker.session.timeout.ms")
}

func (c *Controller) sessionValid(now time.Time, id int32) bool {
	k := c.contacts[id]
	return k != nil && !k.last.IsZero() && now.Sub(k.last) < c.sessionTimeout()
}

// RegisterBrokerReply answers BrokerRegistration.
type RegisterBrokerReply struct{ BrokerEpoch int64 }

// RegisterBroker registers a process as a broker. A new incarnation gets the offset of the operation's
// first record as its epoch and starts fenced; what the old one held is cleaned up first.
func (c *Controller) RegisterBroker(at At, req *kmsg.BrokerRegistrationRequest) Result {
	o := c.begin(at)
	if err := o.checkRegistration(req); err != nil {
		return failed(err)
	}
	epoch := at.Next
	rec := registrationRecord(req, epoch)
	old, exists := o.img.Broker(req.BrokerID)
	if exists && old.IncarnationID == rec.IncarnationID {
		epoch = old.Epoch
		rec.BrokerEpoch, rec.Fenced, rec.InControlledShutdown = epoch, old.Fenced, old.InControlledShutdown
		rec.CordonedLogDirs = old.CordonedDirectories
	} else if exists {
		clean := req.Version >= 3 && req.PreviousBrokerEpoch == old.Epoch
		o.leaveISRs(req.BrokerID, !clean)
		k := c.contact(req.BrokerID)
		*k = contact{offset: -1}
	}
	o.add(rec)
	return o.result(false, RegisterBrokerReply{BrokerEpoch: epoch})
}

func registrationRecord(req *kmsg.BrokerRegistrationRequest, epoch int64) *metadata.RegisterBrokerRecord {
	rec := &metadata.RegisterBrokerRecord{BrokerID: req.BrokerID, IncarnationID: req.IncarnationID, BrokerEpoch: epoch, Rack: req.Rack, Fenced: true}
	for _, l := range req.Listeners {
		rec.EndPoints = append(rec.EndPoints, metadata.Endpoint{Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: l.SecurityProtocol})
	}
	for _, f := range req.Features {
		rec.Features = append(rec.Features, metadata.FeatureRange{Name: f.Name, MinSupportedVersion: f.MinSupportedVersion, MaxSupportedVersion: f.MaxSupportedVersion})
	}
	for _, dir := range req.LogDirs {
		rec.LogDirs = append(rec.LogDirs, dir)
	}
	return rec
}

func (o *op) checkRegistration(req *kmsg.BrokerRegistrationRequest) *Error {
	if req.ClusterID != o.c.opt.ClusterID {
		return faultf(ErrInconsistentClusterID, "this cluster is %s, not %s", o.c.opt.ClusterID, req.ClusterID)
	}
	if err := o.checkIncarnation(req); err != nil {
		return err
	}
	if req.IsMigratingZkBroker {
		return faultf(ErrBrokerIDNotRegistered, "a broker that runs with ZooKeeper cannot register")
	}
	if o.img.MetadataVersion() >= metadata.LevelDirectories {
		if err := o.checkDirectories(req); err != nil {
			return err
		}
	}
	return o.checkFeatures(req)
}

// checkIncarnation refuses a second process under one id while the first one lives. It lives while its
// session does, unless its connection was closed by its side and the new one has the same disks.
func (o *op) checkIncarnation(req *kmsg.BrokerRegistrationRequest) *Error {
	old, exists := o.img.Broker(req.BrokerID)
	if !exists || old.IncarnationID == metadata.UUID(req.IncarnationID) || !o.c.sessionValid(o.now, req.BrokerID) {
		return nil
	}
	if k := o.c.contacts[req.BrokerID]; k != nil && !k.lost.IsZero() && sameDirectories(old.Directories, req.LogDirs) {
		return nil
	}
	return faultf(ErrDuplicateBrokerRegistration, "another broker with id %d is registered, incarnation %s", req.BrokerID, old.IncarnationID)
}

func sameDirectories(old []metadata.UUID, now [][16]byte) bool {
	if len(old) == 0 || len(old) != len(now) {
		return false
	}
	for _, dir := range now {
		if !slices.Contains(old, metadata.UUID(dir)) {
			return false
		}
	}
	return true
}

func (o *op) checkDirectories(req *kmsg.BrokerRegistrationRequest) *Error {
	if len(req.LogDirs) == 0 {
		return faultf(ErrInvalidRegistration, "no log directories are given")
	}
	for i, dir := range req.LogDirs {
		id := metadata.UUID(dir)
		if id.Reserved() {
			return faultf(ErrInvalidRegistration, "log directory id %s is reserved", id)
		}
		if slices.Contains(req.LogDirs[:i], dir) {
			return faultf(ErrInvalidRegistration, "log directory %s is given twice", id)
		}
		for _, other := range o.img.Brokers().All() {
			if other.ID != req.BrokerID && slices.Contains(other.Directories, id) {
				return faultf(ErrInvalidRegistration, "log directory %s belongs to broker %d", id, other.ID)
			}
		}
	}
	return nil
}

func (o *op) checkFeatures(req *kmsg.BrokerRegistrationRequest) *Error {
	named := map[string]bool{}
	for _, f := range req.Features {
		named[f.Name] = true
		if f.Name == metadata.FeatureKRaftVersion {
			continue // its level is the quorum's, not a record's
		}
		if level := o.img.Feature(f.Name); level < f.MinSupportedVersion || level > f.MaxSupportedVersion {
			if f.Name == metadata.FeatureMetadataVersion && level == 0 {
				continue
			}
			return faultf(ErrUnsupportedVersion, "%s is at level %d, the broker supports %d to %d", f.Name, level, f.MinSupportedVersion, f.MaxSupportedVersion)
		}
	}
	if !named[metadata.FeatureMetadataVersion] {
		return faultf(ErrInvalidRegistration, "the broker does not say which levels of %s it supports", metadata.FeatureMetadataVersion)
	}
	for name, level := range o.img.Features().All() {
		// What this controller does not serve either was finalized before the disk was taken over from Apache Kafka,
		// when nothing that needs it was in use.
		if _, served := o.c.opt.Supported(name); level > 0 && !named[name] && served {
			return faultf(ErrUnsupportedVersion, "%s is at level %d, the broker does not support it", name, level)
		}
	}
	return nil
}

// UnregisterBroker removes a broker, alive or not; its replicas stay assigned.
func (c *Controller) UnregisterBroker(at At, id int32) Result {
	o := c.begin(at)
	b, ok := o.img.Broker(id)
	if !ok {
		return failed(faultf(ErrBrokerIDNotRegistered, "broker %d is not registered", id))
	}
	o.leaveISRs(id, true)
	o.add(&metadata.UnregisterBrokerRecord{BrokerID: id, BrokerEpoch: b.Epoch})
	return o.result(false, nil)
}

// HeartbeatReply answers BrokerHeartbeat.
type HeartbeatReply struct {
	IsCaughtUp     bool
	IsFenced       bool
	ShouldShutDown bool
}

// Heartbeat takes a broker's sign of life and its wishes.
func (c *Controller) Heartbeat(at At, req *kmsg.BrokerHeartbeatRequest) Result {
	o := c.begin(at)
	b, err := o.checkEpoch(req.BrokerID, req.BrokerEpoch)
	if err != nil {
		return failed(err)
	}
	c.Touch(at.Now, req.BrokerID, req.BrokerEpoch)
	k := c.contact(req.BrokerID)
	k.offset = max(k.offset, req.CurrentMetadataOffset)
	reply := HeartbeatReply{IsCaughtUp: req.CurrentMetadataOffset >= b.RegisteredAt}
	before := len(o.recs)
	o.nextState(b, k, req, &reply)
	o.directoriesFailed(req)
	o.directoriesCordoned(req)
	if b.InControlledShutdown || req.WantShutdown {
		if len(o.recs) > before {
			k.shutdownOffset = at.Next + int64(len(o.recs))
		}
	}
	if reply.ShouldShutDown {
		*k = contact{offset: -1} // it was let go: whoever comes with its id need not wait for its session to end
	}
	// Not atomic: a broker may be in the ISR of more partitions than one batch holds. A cut leaves it unfenced
	// with fewer leaderships, which its next heartbeat carries on from.
	return o.result(false, reply)
}

// nextState moves a broker between fenced, unfenced and shutting down.
func (o *op) nextState(b *metadata.BrokerRegistration, k *contact, req *kmsg.BrokerHeartbeatRequest, reply *HeartbeatReply) {
	switch {
	case b.Fenced && req.WantShutdown:
		reply.IsFenced, reply.ShouldShutDown = true, true
	case b.Fenced && !req.WantFence && reply.IsCaughtUp:
		o.unfence(b)
	case b.Fenced:
		reply.IsFenced = true
	case b.InControlledShutdown:
		if !leadsAny(o.img, b.ID) && o.c.othersHaveSeen(b.ID, k.shutdownOffset) {
			o.fence(b)
			reply.IsFenced, reply.ShouldShutDown = true, true
		}
	case req.WantFence:
		o.fence(b)
		reply.IsFenced, reply.ShouldShutDown = true, req.WantShutdown
	case req.WantShutdown && leadsAny(o.img, b.ID):
		o.add(&metadata.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, InControlledShutdown: 1})
		o.leaveISRs(b.ID, false)
	case req.WantShutdown:
		o.fence(b)
		reply.IsFenced, reply.ShouldShutDown = true, true
	}
}

// othersHaveSeen says whether every active broker has applied the metadata log up to an end offset.
func (c *Controller) othersHaveSeen(except int32, end int64) bool {
	for _, b := range c.img.Brokers().All() {
		if b.ID == except || !b.Active() {
			continue
		}
		if k := c.contacts[b.ID]; k == nil || k.offset < end-1 {
			return false
		}
	}
	return true
}

func (o *op) fence(b *metadata.BrokerRegistration) {
	o.leaveISRs(b.ID, false)
	o.add(&metadata.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, Fenced: 1})
}

func (o *op) unfence(b *metadata.BrokerRegistration) {
	o.add(&metadata.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, Fenced: -1})
	o.takeLeaderless(b.ID)
}

// directoriesFailed takes directories that a broker lists as offline out of its registration, and its
// replicas there out of the in-sync sets.
func (o *op) directoriesFailed(req *kmsg.BrokerHeartbeatRequest) {
	b, ok := o.img.Broker(req.BrokerID)
	if !ok || o.img.MetadataVersion() < metadata.LevelDirectories || len(req.OfflineLogDirs) == 0 {
		return
	}
	var left []metadata.UUID
	failedDirs := map[metadata.UUID]bool{}
	for _, dir := range b.Directories {
		if slices.Contains(req.OfflineLogDirs, [16]byte(dir)) {
			failedDirs[dir] = true
		} else {
			left = append(left, dir)
		}
	}
	if len(failedDirs) == 0 {
		return
	}
	var recs []metadata.Record
	o.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
		dir, ok := p.Directory(b.ID)
		if !ok || !failedDirs[dir] || !slices.Contains(p.ISR, b.ID) {
			return
		}
		change := o.change(topic, p, b.ID, nobody)
		change.isr = without(p.ISR, b.ID)
		if rec := change.build(); rec != nil {
			recs = append(recs, rec)
		}
	})
	o.add(recs...)
	// With nothing left the record cannot say so (an empty list is "no change"); that broker exits.
	if len(left) > 0 {
		o.add(&metadata.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, LogDirs: left})
	}
}

func (o *op) directoriesCordoned(req *kmsg.BrokerHeartbeatRequest) {
	b, ok := o.img.Broker(req.BrokerID)
	if !ok || o.img.MetadataVersion() < metadata.LevelCordonedDirs || req.CordonedLogDirs == nil {
		return
	}
	cordoned := make([]metadata.UUID, len(req.CordonedLogDirs))
	for i, dir := range req.CordonedLogDirs {
		cordoned[i] = dir
	}
	if b.CordonedDirectories != nil && len(cordoned) == len(b.CordonedDirectories) &&
		!slices.ContainsFunc(cordoned, func(dir metadata.UUID) bool { return !slices.Contains(b.CordonedDirectories, dir) }) {
		return
	}
	o.add(&metadata.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, CordonedLogDirs: cordoned})
}

// AssignedReplica is the outcome for one replica's directory.
type AssignedReplica struct {
	Directory metadata.UUID
	TopicID   metadata.UUID
	Partition int32
	Err       *Error
}

// AssignReplicasReply answers AssignReplicasToDirs, in the order of the request.
type AssignReplicasReply struct{ Replicas []AssignedReplica }

// AssignReplicasToDirs notes down where a broker's replicas are. A directory that is not online takes the
// replica out of the ISR: so a broker reports replicas that are lost.
func (c *Controller) AssignReplicasToDirs(at At, req *kmsg.AssignReplicasToDirsRequest) Result {
	o := c.begin(at)
	if o.img.MetadataVersion() < metadata.LevelDirectories {
		return failed(faultf(ErrUnsupportedVersion, "metadata.version is below %d", metadata.LevelDirectories))
	}
	b, err := o.checkEpoch(req.BrokerID, req.BrokerEpoch)
	if err != nil {
		return failed(err)
	}
	var reply AssignReplicasReply
	for _, d := range req.Directories {
		for _, t := range d.Topics {
			for _, r := range t.Partitions {
				out := AssignedReplica{Directory: d.ID, TopicID: t.TopicID, Partition: r.Partition}
				out.Err = o.assignOne(b, out)
				reply.Replicas = append(reply.Replicas, out)
			}
		}
	}
	return o.result(false, reply)
}

func (o *op) assignOne(b *metadata.BrokerRegistration, r AssignedReplica) *Error {
	topic, ok := o.img.TopicByID(r.TopicID)
	if !ok {
		return faultf(ErrUnknownTopicID, "no topic has id %s", r.TopicID)
	}
	p, ok := topic.Partition(r.Partition)
	if !ok {
		return faultf(ErrUnknownTopicOrPartition, "no partition %s-%d", topic.Name, r.Partition)
	}
	if !slices.Contains(p.Replicas, b.ID) {
		return faultf(ErrNotLeaderOrFollower, "broker %d is no replica of %s-%d", b.ID, topic.Name, r.Partition)
	}
	change := o.change(topic, p, nobody, nobody)
	change.dirs[b.ID] = r.Directory
	if !b.DirectoryOnline(r.Directory) {
		change.isr = without(p.ISR, b.ID)
	}
	if rec := change.build(); rec != nil {
		o.add(rec)
	}
	return nil
}
