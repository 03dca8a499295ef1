package controller

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// ProducerIDBlock is how many producer ids a broker gets at once.
const ProducerIDBlock = 1000

// AllocateProducerIDsReply answers AllocateProducerIds: the ids from Start, Length of them.
type AllocateProducerIDsReply struct {
	Start  int64
	Length int32
}

// AllocateProducerIDs gives a broker the next block of producer ids. Blocks are never taken back.
func (c *Controller) AllocateProducerIDs(at At, req *kmsg.AllocateProducerIDsRequest) Result {
	o := c.begin(at)
	if _, err := o.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return failed(err)
	}
	start := o.img.NextProducerID()
	o.add(&metadata.ProducerIDsRecord{BrokerID: req.BrokerID, BrokerEpoch: req.BrokerEpoch, NextProducerID: start + ProducerIDBlock})
	return o.result(true, AllocateProducerIDsReply{start, ProducerIDBlock})
}

// RegisterController notes down a controller's addresses and features.
func (c *Controller) RegisterController(at At, req *kmsg.ControllerRegistrationRequest) Result {
	o := c.begin(at)
	if o.img.MetadataVersion() < metadata.LevelControllerRecords {
		return failed(faultf(ErrUnsupportedVersion, "metadata.version is below %d", metadata.LevelControllerRecords))
	}
	rec := &metadata.RegisterControllerRecord{ControllerID: req.ControllerID, IncarnationID: req.IncarnationID, ZkMigrationReady: req.ZkMigrationReady}
	for _, l := range req.Listeners {
		rec.EndPoints = append(rec.EndPoints, metadata.Endpoint{Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: l.SecurityProtocol})
	}
	for _, f := range req.Features {
		rec.Features = append(rec.Features, metadata.FeatureRange{Name: f.Name, MinSupportedVersion: f.MinSupportedVersion, MaxSupportedVersion: f.MaxSupportedVersion})
		if level := o.img.Feature(f.Name); f.Name != metadata.FeatureKRaftVersion && (level < f.MinSupportedVersion || level > f.MaxSupportedVersion) {
			return failed(faultf(ErrUnsupportedVersion, "%s is at level %d, the controller supports %d to %d", f.Name, level, f.MinSupportedVersion, f.MaxSupportedVersion))
		}
	}
	o.add(rec)
	return o.result(true, nil)
}

// UnregisterController removes a controller that is no voter. The caller knows the voters.
func (c *Controller) UnregisterController(at At, id int32, isVoter bool) Result {
	o := c.begin(at)
	switch _, known := o.img.Controller(id); {
	case o.img.MetadataVersion() < metadata.LevelUnregisterCtl:
		return failed(faultf(ErrUnsupportedVersion, "metadata.version is below %d", metadata.LevelUnregisterCtl))
	case id == c.opt.NodeID:
		return failed(faultf(ErrInvalidRequest, "Controller cannot unregister itself while it is active."))
	case isVoter:
		return failed(faultf(ErrInvalidRequest, "Controller %d is a voter: remove its vote first.", id))
	case !known:
		return failed(faultf(ErrControllerIDNotRegistered, "Controller ID %d is not currently registered.", id))
	}
	o.add(&metadata.UnregisterControllerRecord{ControllerID: id})
	return o.result(true, nil)
}
