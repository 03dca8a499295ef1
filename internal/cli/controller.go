package cli

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/server"
	"github.com/stelelog/stele/internal/wire"
)

// The controller's part of a node: its voter, its connections to the others, and its registration.

func (n *node) identity() quorum.Identity {
	return quorum.Identity{ClusterID: n.plan.ClusterID, NodeID: n.id, DirectoryID: n.plan.IDs[n.plan.MetadataDir]}
}

// connectControllers makes the mesh by which this controller speaks with the others of controller.quorum.voters.
func (n *node) connectControllers() error {
	voters, err := n.config.QuorumVoters()
	if err != nil {
		return err
	}
	addresses := map[int32]string{}
	for _, v := range voters {
		addresses[v.ID] = net.JoinHostPort(v.Host, strconv.Itoa(int(v.Port)))
	}
	var names []string
	for _, l := range n.config.ControllerListeners() {
		names = append(names, l.Name)
	}
	n.mesh = quorum.NewMesh(quorum.MeshOptions{
		Identity: n.identity(), Addresses: addresses, Listeners: names, Dial: n.seams.Dial,
		Timeout: n.config.Duration("controller.quorum.request.timeout.ms"), ErrorCode: server.ErrorCode, Logger: n.logger,
	})
	n.onUnwind(n.mesh.Close)
	return nil
}

// staticVoters are the ids in controller.quorum.voters, this node's own if there are none.
func (n *node) staticVoters() ([]int32, error) {
	voters, err := n.config.QuorumVoters()
	if err != nil {
		return nil, err
	}
	if len(voters) == 0 {
		return []int32{n.id}, nil
	}
	var ids []int32
	for _, v := range voters {
		ids = append(ids, v.ID)
	}
	if !slices.Contains(ids, n.id) {
		return nil, fmt.Errorf("node %d has the controller role but is not in controller.quorum.voters: add %d@host:port there, on every node, or leave controller out of process.roles", n.id, n.id)
	}
	return ids, nil
}

// formatQuorum prepares a new metadata directory: whole where this node is the only voter, else for formQuorum to
// complete when the others have been heard of.
func (n *node) formatQuorum(dir string, id metadata.UUID) error {
	voters, err := n.staticVoters()
	if err != nil {
		return err
	}
	if len(voters) > 1 {
		if n.config.String("cluster.id") == "" {
			return errors.New("several voters can only form a quorum if they know that they belong together: set cluster.id to the same value on each, for example cluster.id=my-cluster")
		}
		return quorum.MarkForming(n.fs, dir)
	}
	self := quorum.Voter{VoterID: n.id, VoterDirectoryID: id, Endpoints: n.controllerEndpoints(), KRaftVersionFeature: metadata.VersionRange{Min: 0, Max: 1}}
	return n.writeQuorum(dir, id, []quorum.Voter{self})
}

func (n *node) writeQuorum(dir string, id metadata.UUID, voters []quorum.Voter) error {
	return quorum.Format(quorum.FormatOptions{
		FS: n.fs, Dir: dir, Identity: quorum.Identity{ClusterID: n.plan.ClusterID, NodeID: n.id, DirectoryID: id},
		Voters: voters, Bootstrap: metadata.BootstrapRecords(n.newLevel),
	})
}

// joinLater makes this node a controller without a vote: its quorum is there, and knows it by a directory that is gone.
func (n *node) joinLater(why error) error {
	dir := n.plan.MetadataDir
	err := quorum.FormatNoVoter(quorum.FormatOptions{
		FS: n.fs, Dir: dir, Identity: n.identity(), Bootstrap: metadata.BootstrapRecords(n.newLevel),
	})
	if err == nil {
		err = quorum.Formed(n.fs, dir)
	}
	if err != nil {
		return err
	}
	n.logger.Error("this controller has no vote: remove the old voter, then add this one", "node", n.id, "directory", n.plan.IDs[dir].String(),
		"remove", fmt.Sprintf("stele cluster voters remove %d", n.id), "add", fmt.Sprintf("stele cluster voters add %s", n.ownController()), "cause", why)
	return nil
}

// ownController is where this controller listens.
func (n *node) ownController() string {
	for _, e := range n.controllerEndpoints() {
		return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
	}
	return ""
}

// formQuorum waits, in a new quorum of several voters, until all have been heard of, and formats this one's part.
func (n *node) formQuorum(ctx context.Context) error {
	dir := n.plan.MetadataDir
	forming, err := quorum.Forming(n.fs, dir)
	if err != nil || !forming {
		return err
	}
	ids, err := n.staticVoters()
	if err != nil {
		return err
	}
	n.logger.Info("forming the quorum", "cluster", n.plan.ClusterID, "node", n.id, "directory", n.plan.IDs[dir].String(), "voters", ids)
	voters, err := n.mesh.Form(ctx, ids, func(text string) {
		n.logger.Info("waiting for the other voters", "cause", text)
		n.readiness.NotMet(readyStarted, "waits for the other voters of its quorum: "+text)
	})
	var emptied *quorum.EmptiedDiskError
	if errors.As(err, &emptied) {
		return n.joinLater(err)
	}
	if err != nil {
		return err
	}
	if err := n.writeQuorum(dir, n.plan.IDs[dir], voters); err != nil {
		return err
	}
	n.mesh.Wrote()
	if err := quorum.Formed(n.fs, dir); err != nil {
		return err
	}
	n.logger.Info("formatted", "cluster", n.plan.ClusterID, "node", n.id, "metadata_dir", dir, "voters", ids)
	return nil
}

func (n *node) controllerEndpoints() []metadata.VoterEndpoint {
	var endpoints []metadata.VoterEndpoint
	for _, l := range n.config.AdvertisedControllers() {
		l = n.bound(l)
		endpoints = append(endpoints, metadata.VoterEndpoint{Name: l.Name, Host: l.Host, Port: l.Port})
	}
	return endpoints
}

func (n *node) startQuorum(ctx context.Context) error {
	if err := n.formQuorum(ctx); err != nil {
		return err
	}
	host, err := quorum.Open(quorum.Options{
		FS: n.fs, Dir: n.plan.MetadataDir, Identity: n.identity(),
		Controller: controller.Options{NodeID: n.id, ClusterID: n.plan.ClusterID, Static: n.config, Rand: mathrand.New(mathrand.NewPCG(mathrand.Uint64(), mathrand.Uint64()))},
		Config: quorum.Config{
			SegmentBytes: int32(n.config.Int("metadata.log.segment.bytes")), SegmentMs: n.config.Long("metadata.log.segment.ms"),
			Snapshots: quorum.SnapshotRules{
				BytesBetween: n.config.Long("metadata.log.max.record.bytes.between.snapshots"), MaxInterval: n.config.Duration("metadata.log.max.snapshot.interval.ms"),
				RetentionBytes: n.config.Long("metadata.max.retention.bytes"), Retention: n.config.Duration("metadata.max.retention.ms"),
			},
			ElectionTimeout: n.config.Duration("controller.quorum.election.timeout.ms"),
		},
		Endpoints: n.controllerEndpoints(), Transport: n.mesh, ErrorCode: server.ErrorCode, Logger: n.logger,
		NeedRoom: n.makeRoom,
	})
	if err != nil {
		return err
	}
	n.host = host
	if len(host.Status().Voters) == 0 {
		n.readiness.NotMet(readyStarted, fmt.Sprintf("this controller has no vote, its directory being another than that of the voter %d: `stele cluster voters remove %d`, then `stele cluster voters add %s`, at a broker that runs", n.id, n.id, n.ownController()))
	}
	n.mesh.Attach(host)
	host.Start()
	var watching sync.WaitGroup
	watching.Go(func() {
		<-host.Done()
		if err := host.Err(); err != nil {
			n.fail(fmt.Errorf("the metadata log in %s: %w", n.plan.MetadataDir, err))
		}
	})
	n.onUnwind(func() {
		if err := host.Close(); err != nil {
			n.logger.Error("the quorum was not closed cleanly", "cause", err)
		}
		watching.Wait()
	})
	n.image.Store(new(host.Committed))
	n.controllerAPI.Open(host, server.ControllerNode{ID: n.id, Config: n.config, OwnBroker: n.ownBroker(), Logger: n.logger, LogLevel: n.level, Dial: n.seams.Dial, Reach: n.mesh.Reach})
	if len(host.Status().Voters) != 1 {
		// The others may not be there yet, and need this node to be.
		registering, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { n.registerController(registering) })
		n.onUnwind(func() {
			cancel()
			done.Wait()
		})
		return nil
	}
	if err := host.WaitActive(ctx); err != nil {
		return err
	}
	return n.controllerAPI.Register(ctx, n.controllerRegistration())
}

// registerController sees to it that the metadata log names this process among the controllers.
func (n *node) registerController(ctx context.Context) {
	told := ""
	for {
		changed := n.host.Status().Changed()
		if n.host.Committed().MetadataVersion() > 0 {
			if c, ok := n.host.Committed().Controller(n.id); ok && c.IncarnationID == n.incarnation {
				return
			}
			if err := n.tellLeader(ctx); err != nil && err.Error() != told && ctx.Err() == nil {
				told = err.Error()
				n.logger.Debug("not registered with the active controller yet", "cause", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-n.host.Done():
			return
		case <-changed:
		case <-time.After(registerInterval):
		}
	}
}

// registerInterval is how often a controller that is not registered tries to be.
const registerInterval = 200 * time.Millisecond

// tellLeader sends this controller's registration to the active one.
func (n *node) tellLeader(ctx context.Context) error {
	status := n.host.Status()
	if status.Active {
		return n.controllerAPI.Register(ctx, n.controllerRegistration())
	}
	addr := n.mesh.LeaderAddress(status)
	if addr == "" {
		return errors.New("the quorum has no leader")
	}
	limited, cancel := context.WithTimeout(ctx, n.config.Duration("controller.quorum.request.timeout.ms"))
	defer cancel()
	conn, err := wire.Dial(limited, n.seams.Dial, addr, wire.DialOptions{ClientID: fmt.Sprint("controller-", n.id)})
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := conn.Request(limited, n.controllerRegistration())
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.ControllerRegistrationResponse).ErrorCode)
}

// controllerRegistration is what the metadata log is told of this controller.
func (n *node) controllerRegistration() *kmsg.ControllerRegistrationRequest {
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID, req.IncarnationID = n.id, n.incarnation
	for _, l := range n.config.AdvertisedControllers() {
		l = n.bound(l)
		protocol, _ := n.config.SecurityProtocol(l.Name)
		one := kmsg.NewControllerRegistrationRequestListener()
		one.Name, one.Host, one.Port, one.SecurityProtocol = l.Name, l.Host, l.Port, int16(protocol)
		req.Listeners = append(req.Listeners, one)
	}
	for _, f := range metadata.SupportedFeatures() {
		one := kmsg.NewControllerRegistrationRequestFeature()
		one.Name, one.MinSupportedVersion, one.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, one)
	}
	return req
}

// makeRoom gives the metadata log, whose disk is full, part of what is kept for that.
func (n *node) makeRoom() {
	if n.dirs.ReleaseBallast(n.plan.MetadataDir) {
		n.logger.Warn("the disk is full: part of the reserve file is given up for the metadata log", "dir", n.plan.MetadataDir)
	}
}
