package metadata

import (
	"slices"
	"strings"
)

// BrokerRegistration is a registered broker. It must not be changed.
type BrokerRegistration struct {
	ID            int32
	Epoch         int64
	IncarnationID UUID
	Endpoints     []Endpoint
	Features      []FeatureRange
	// Rack is nil when there is none.
	Rack                 *string
	Fenced               bool
	InControlledShutdown bool
	// Directories are the online log directories; none means that all count as online.
	Directories []UUID
	// CordonedDirectories is nil when the broker never said.
	CordonedDirectories []UUID
	// RegisteredAt is the offset of the latest RegisterBroker record: the broker must have seen it to be unfenced.
	RegisteredAt int64

	isMigratingZkBroker bool
}

func newBrokerRegistration(r *RegisterBrokerRecord, offset int64) *BrokerRegistration {
	return &BrokerRegistration{
		ID: r.BrokerID, Epoch: r.BrokerEpoch, IncarnationID: r.IncarnationID, Endpoints: r.EndPoints, Features: byName(r.Features),
		Rack: r.Rack, Fenced: r.Fenced, InControlledShutdown: r.InControlledShutdown, Directories: r.LogDirs,
		CordonedDirectories: r.CordonedLogDirs, RegisteredAt: offset, isMigratingZkBroker: r.IsMigratingZkBroker,
	}
}

// byName sorts features, which Kafka writes in no order: equal registrations make equal images.
func byName(features []FeatureRange) []FeatureRange {
	out := slices.Clone(features)
	slices.SortFunc(out, func(a, b FeatureRange) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Record is the registration as a record.
func (b *BrokerRegistration) Record() *RegisterBrokerRecord {
	return &RegisterBrokerRecord{
		BrokerID: b.ID, IsMigratingZkBroker: b.isMigratingZkBroker, IncarnationID: b.IncarnationID, BrokerEpoch: b.Epoch,
		EndPoints: b.Endpoints, Features: b.Features, Rack: b.Rack, Fenced: b.Fenced, InControlledShutdown: b.InControlledShutdown,
		LogDirs: b.Directories, CordonedLogDirs: b.CordonedDirectories,
	}
}

func (b *BrokerRegistration) change(r *BrokerRegistrationChangeRecord) {
	switch {
	case r.Fenced > 0:
		b.Fenced = true
	case r.Fenced < 0:
		b.Fenced = false
	}
	if r.InControlledShutdown != 0 {
		b.InControlledShutdown = r.InControlledShutdown > 0
	}
	if len(r.LogDirs) > 0 {
		b.Directories = r.LogDirs
	}
	if r.CordonedLogDirs != nil {
		b.CordonedDirectories = r.CordonedLogDirs
	}
}

// Active says that the broker may be in an ISR and lead: neither fenced nor shutting down.
func (b *BrokerRegistration) Active() bool { return !b.Fenced && !b.InControlledShutdown }

// Endpoint is the broker's address for a listener.
func (b *BrokerRegistration) Endpoint(listener string) (Endpoint, bool) {
	return endpointOf(b.Endpoints, listener)
}

func endpointOf(endpoints []Endpoint, listener string) (Endpoint, bool) {
	at := slices.IndexFunc(endpoints, func(e Endpoint) bool { return e.Name == listener })
	if at < 0 {
		return Endpoint{}, false
	}
	return endpoints[at], true
}

// DirectoryOnline says whether replicas in this directory can be read and written.
func (b *BrokerRegistration) DirectoryOnline(dir UUID) bool {
	switch dir {
	case DirUnassigned, DirMigrating:
		return true
	case DirLost:
		return false
	}
	return len(b.Directories) == 0 || slices.Contains(b.Directories, dir)
}

// AllCordoned says that no directory of the broker takes new replicas.
func (b *BrokerRegistration) AllCordoned() bool {
	if len(b.Directories) == 0 {
		return false
	}
	for _, dir := range b.Directories {
		if !slices.Contains(b.CordonedDirectories, dir) {
			return false
		}
	}
	return true
}

// Supports says whether the broker works at this level of a feature; a feature it did not name is 0 only.
func (b *BrokerRegistration) Supports(feature string, level int16) bool {
	return rangeHolds(b.Features, feature, level)
}

func rangeHolds(features []FeatureRange, name string, level int16) bool {
	for _, f := range features {
		if f.Name == name {
			return level >= f.MinSupportedVersion && level <= f.MaxSupportedVersion
		}
	}
	return level == 0
}

// ControllerRegistration is a registered controller. It must not be changed.
type ControllerRegistration struct {
	ID            int32
	IncarnationID UUID
	Endpoints     []Endpoint
	Features      []FeatureRange

	zkMigrationReady bool
}

func newControllerRegistration(r *RegisterControllerRecord) *ControllerRegistration {
	return &ControllerRegistration{ID: r.ControllerID, IncarnationID: r.IncarnationID, Endpoints: r.EndPoints, Features: byName(r.Features), zkMigrationReady: r.ZkMigrationReady}
}

// Endpoint is the controller's address for a listener.
func (c *ControllerRegistration) Endpoint(listener string) (Endpoint, bool) {
	return endpointOf(c.Endpoints, listener)
}

// Supports says whether the controller works at this level of a feature.
func (c *ControllerRegistration) Supports(feature string, level int16) bool {
	return rangeHolds(c.Features, feature, level)
}

// Brokers are the registered brokers by id, fenced ones too.
func (i *Image) Brokers() Map[int32, *BrokerRegistration] { return i.brokers }

// Broker returns a registered broker.
func (i *Image) Broker(id int32) (*BrokerRegistration, bool) { return i.brokers.Get(id) }

// Controllers are the registered controllers by id.
func (i *Image) Controllers() Map[int32, *ControllerRegistration] { return i.controllers }

// Controller returns a registered controller.
func (i *Image) Controller(id int32) (*ControllerRegistration, bool) { return i.controllers.Get(id) }

func (i *Image) brokerRecords(yield func(Record) bool) bool {
	for _, b := range i.brokers.All() {
		if !yield(b.Record()) {
			return false
		}
	}
	return true
}

func (i *Image) controllerRecords(yield func(Record) bool) bool {
	if i.MetadataVersion() < LevelControllerRecords {
		return true
	}
	for _, c := range i.controllers.All() {
		if !yield(&RegisterControllerRecord{ControllerID: c.ID, IncarnationID: c.IncarnationID, ZkMigrationReady: c.zkMigrationReady, EndPoints: c.Endpoints, Features: c.Features}) {
			return false
		}
	}
	return true
}
