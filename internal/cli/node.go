package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/server"
	"github.com/stelelog/stele/internal/telemetry"
	"github.com/stelelog/stele/internal/txn"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/stelelog/stele/internal/wire"
)

// node is one running `stele serve`: it connects the parts and owns their order of
// starting and stopping, nothing else.
type node struct {
	config     *config.Broker
	authorizer security.Authorizer
	fs         vfs.FS
	seams      Seams
	logger     *slog.Logger
	level      *slog.LevelVar // of logger, nil when it cannot be changed
	id         int32

	plan          *broker.DirectoryPlan
	takeover      *takeover // nil: the directories are ours already
	incarnation   metadata.UUID
	newLevel      metadata.Level // metadata.version of a cluster that this node begins alone
	server        *server.Server
	controllerAPI *server.ControllerAPI
	mesh          *quorum.Mesh // to the other controllers; nil without that role
	brokerAPI     *server.BrokerAPI
	host          *quorum.Host
	dirs          *log.Dirs
	replicas      *replica.Manager
	groups        *coordinator.Runtime
	txns          *coordinator.Transactions
	txnChannel    *broker.TxnChannel
	broker        *broker.Broker
	failed        chan error
	events        replica.Events
	closers       []func()
	// image is where ApiVersions, which is answered before anything else is there, finds the cluster's features;
	// nil before there are any.
	image atomic.Pointer[func() *metadata.Image]

	http      *telemetry.Endpoint
	readiness *telemetry.Readiness
	running   atomic.Bool // all parts above are there for good
}

// startNode brings a node up to the point where its broker registers. Whatever is
// wrong with ports, directories or settings is found before anything is changed on
// disk. authorizer is asked on every API; nil allows everything.
func startNode(ctx context.Context, c *config.Broker, logger *slog.Logger, level *slog.LevelVar, authorizer security.Authorizer) (*node, error) {
	return startNodeOn(ctx, c, logger, level, authorizer, Seams{})
}

// startNodeOn is startNode on other disks and another network than this machine's.
func startNodeOn(ctx context.Context, c *config.Broker, logger *slog.Logger, level *slog.LevelVar, authorizer security.Authorizer, seams Seams) (*node, error) {
	seams = seams.complete()
	n := &node{
		authorizer: authorizer, config: c, fs: seams.FS, seams: seams, logger: logger, level: level, id: int32(c.Int("node.id")),
		incarnation: metadata.NewUUID(rand.Reader), newLevel: metadata.LevelLatest, failed: make(chan error, 1),
	}
	if err := n.start(ctx); err != nil {
		n.unwind()
		return nil, err
	}
	return n, nil
}

func (n *node) start(ctx context.Context) (err error) {
	c := n.config
	if err := refuseUnprotected(c); err != nil {
		return err
	}
	if n.plan, err = broker.PlanDirectories(n.fs, c.LogDirs(), c.MetadataDir(), n.id, c.String("cluster.id")); err != nil {
		return err
	}
	if n.takeover, err = n.surveyKafka(ctx); err != nil {
		return err
	}
	defer n.takeover.release()
	if err := n.listen(); err != nil {
		return err
	}
	if err := n.listenHTTP(); err != nil {
		return err
	}
	if err := n.takeOver(); err != nil {
		return err
	}
	if err := n.openDirectories(); err != nil {
		return err
	}
	if c.HasRole("controller") {
		if err := n.startQuorum(ctx); err != nil {
			return err
		}
	}
	if c.HasRole("broker") {
		if err := n.startBroker(); err != nil {
			return err
		}
	}
	n.started()
	return nil
}

// onUnwind notes what undoes the step just taken; unwind runs them backwards.
func (n *node) onUnwind(f func()) { n.closers = append(n.closers, f) }

func (n *node) unwind() {
	for i := len(n.closers) - 1; i >= 0; i-- {
		n.closers[i]()
	}
	n.closers = nil
}

// listen binds every listener. Requests that come before their part is there wait.
func (n *node) listen() error {
	overrides, err := n.config.ConnectionsPerIPOverrides()
	if err != nil {
		return err
	}
	opts := server.Options{
		Logger: n.logger, ClusterID: n.plan.ClusterID, NodeID: n.id, Features: n.features, Authorizer: n.authorizer,
		MaxRequest: n.config.Int("socket.request.max.bytes"), RequestMemory: n.config.Long("queued.max.request.bytes"),
		MaxIdle: n.config.Duration("connections.max.idle.ms"), WriteTimeout: writeTimeout(n.config.Duration("connections.max.idle.ms")), MaxConnections: maxConnections(orNever(n.config.Int("max.connections")), n.config.Int("log.max.open.files"), handleLimit()),
		MaxConnectionsPerIP: orNever(n.config.Int("max.connections.per.ip")), MaxConnectionsPerIPOverrides: overrides,
		Listen: n.seams.Listen,
	}
	if n.config.HasRole("broker") {
		n.brokerAPI = server.NewBrokerAPI()
		opts.Handlers = append(opts.Handlers, n.brokerAPI.Handlers()...)
		for _, l := range n.config.ClientListeners() {
			opts.Listeners = append(opts.Listeners, n.listener(l, wire.ScopeBroker))
		}
		n.onUnwind(n.brokerAPI.Close)
	}
	if n.config.HasRole("controller") {
		if err := n.connectControllers(); err != nil {
			return err
		}
		opts.Handlers = append(opts.Handlers, server.QuorumPeer(n.mesh.Serve))
		n.controllerAPI = server.NewControllerAPI(n.plan.ClusterID)
		opts.OnPeerClosed = n.controllerAPI.PeerClosed
		n.onUnwind(n.controllerAPI.Close)
		opts.Handlers = append(opts.Handlers, n.controllerAPI.Handlers()...)
		for _, l := range n.config.ControllerListeners() {
			opts.Listeners = append(opts.Listeners, n.listener(l, wire.ScopeController))
		}
	}
	n.server = server.New(opts)
	if err := n.server.Start(); err != nil {
		return err
	}
	if n.mesh != nil {
		n.mesh.SetEndpoints(n.controllerEndpoints())
	}
	n.onUnwind(func() {
		drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := n.server.Shutdown(drain); err != nil {
			n.logger.Warn("connections were cut off", "cause", err)
		}
	})
	return nil
}

func (n *node) listener(l config.Listener, scope wire.Scope) server.Listener {
	protocol, err := n.config.SecurityProtocol(l.Name)
	return server.Listener{Name: l.Name, Address: l.Address(), Scope: scope, Protected: err == nil && protocol != config.Plaintext}
}

// openDirectories locks the data directories, then formats those that are new.
func (n *node) openDirectories() error {
	dirs, err := log.OpenDirs(log.DirsOptions{
		FS: n.fs, Paths: n.config.LogDirs(), RecoveryThreads: n.config.Int("num.recovery.threads.per.data.dir"), Logger: n.logger,
		OnEvent:      func(e log.Event) { n.replicaEvents().LogEvent(e) },
		OnOffline:    func(dir string, cause error) { n.directoryOffline(dir, cause) },
		Failed:       n.plan.Failed,
		MaxOpenFiles: maxOpenFiles(n.config.Int("log.max.open.files"), handleLimit()),
		Limits:       log.RoomLimits{Soft: n.config.Long("log.dir.soft.limit.bytes"), Reserve: n.config.Long("log.dir.reserve.bytes")},
	})
	if err != nil {
		n.plan.RemoveMissing(n.fs)
		return err
	}
	n.dirs = dirs
	n.onUnwind(func() {
		// A node that did not get as far as to register has changed nothing: the last clean stop is still that.
		if err := dirs.Close(context.Background(), n.cleanBrokerEpoch()); err != nil {
			n.logger.Warn("log directories were not closed cleanly", "cause", err)
		}
	})
	var format func(string, metadata.UUID) error
	if n.config.HasRole("controller") {
		format = n.formatQuorum
	}
	fresh := n.plan.FormatsQuorum()
	if err := n.plan.Carry(n.fs, format); err != nil {
		n.plan.Undo(n.fs)
		dirs.Abandon()
		n.plan.RemoveMissing(n.fs)
		return err
	}
	if fresh {
		n.logger.Info("formatted", "cluster", n.plan.ClusterID, "node", n.id, "metadata_dir", n.plan.MetadataDir)
	}
	return nil
}

// cleanBrokerEpoch is the broker epoch of the last run if that was stopped cleanly, else -1.
func (n *node) cleanBrokerEpoch() int64 {
	if epoch, ok := n.dirs.CleanBrokerEpoch(); ok {
		return epoch
	}
	return -1
}

// bound is a listener's address as clients should use it, with the port it got.
func (n *node) bound(l config.Listener) config.Listener {
	if l.Port == 0 && n.server != nil {
		if addr, ok := n.server.Addr(l.Name).(*net.TCPAddr); ok {
			l.Port = uint16(addr.Port)
		}
	}
	if l.Host == "" || l.Host == "0.0.0.0" || l.Host == "::" {
		l.Host = "127.0.0.1"
	}
	return l
}

// ownBroker is the id of the broker in this process, -1 for none.
func (n *node) ownBroker() int32 {
	if n.config.HasRole("broker") {
		return n.id
	}
	return -1
}

func (n *node) fail(err error) {
	select {
	case n.failed <- err:
	default:
	}
}

// advertised are the endpoints that clients are told.
func (n *node) advertised() []broker.Endpoint {
	var endpoints []broker.Endpoint
	for _, l := range n.config.AdvertisedListeners() {
		l = n.bound(l)
		protocol, _ := n.config.SecurityProtocol(l.Name)
		endpoints = append(endpoints, broker.Endpoint{Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: int16(protocol)})
	}
	return endpoints
}

// controllers are the places where this broker looks for the quorum.
func (n *node) controllers() ([]broker.Controller, error) {
	voters, err := n.config.QuorumVoters()
	if err != nil {
		return nil, err
	}
	var controllers []broker.Controller
	for _, voter := range voters {
		controllers = append(controllers, broker.Controller{ID: voter.ID, Addr: net.JoinHostPort(voter.Host, strconv.Itoa(int(voter.Port)))})
	}
	for _, addr := range n.config.List("controller.quorum.bootstrap.servers") {
		controllers = append(controllers, broker.Controller{ID: -1, Addr: addr})
	}
	if len(controllers) == 0 && n.host != nil {
		for _, e := range n.controllerEndpoints() {
			controllers = append(controllers, broker.Controller{ID: n.id, Addr: net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))})
		}
	}
	return controllers, nil
}

func (n *node) startBroker() error {
	controllers, err := n.controllers()
	if err != nil {
		return err
	}
	paths := map[metadata.UUID]string{}
	var ids [][16]byte
	for _, path := range n.dirs.Online() {
		id := n.plan.IDs[path]
		paths[id] = path
		ids = append(ids, id)
	}
	n.replicas = replica.New(replica.Options{
		BrokerID: n.id, Dirs: n.dirs, Directories: paths, Usage: n.fs.Usage, Events: n.replicaEvents(), Logger: n.logger,
		TopicConfig: func(image *metadata.Image, topic string) replica.TopicConfig {
			return broker.TopicConfig(image, n.config, n.id, topic)
		},
		Rates:         func(image *metadata.Image) replica.Rates { return broker.ReplicationRates(image, n.config, n.id) },
		MoveThreads:   n.moveThreads(),
		Cleaner:       func(image *metadata.Image) log.CleanerOptions { return broker.CleanerConfig(image, n.config, n.id) },
		ReplicaLagMax: n.config.Duration("replica.lag.time.max.ms"), FetchMaxBytes: n.config.Int("fetch.max.bytes"),
		HighWatermarkCheckpointInterval: n.config.Duration("replica.high.watermark.checkpoint.interval.ms"),
		CheckpointInterval:              n.config.Duration("log.flush.offset.checkpoint.interval.ms"),
		RetentionInterval:               n.config.Duration("log.retention.check.interval.ms"),
		ProducerExpiryInterval:          n.config.Duration("producer.id.expiration.check.interval.ms"),
		InitialDelay:                    n.config.Duration("log.initial.task.delay.ms"),
		TxnMaxTimeout:                   n.config.Duration("transaction.max.timeout.ms"),
		DirectoryFailed:                 n.directoryFailed,
		Leader:                          n.leader, Follow: n.seams.Follow,
		Fetchers: n.config.Int("num.replica.fetchers"), FetchBackoff: orNever(n.config.Duration("replica.fetch.backoff.ms")),
		RackAware: rackAware(n.config.String("replica.selector.class")),
		AlterPartition: func(topic metadata.UUID, change replica.AlterPartition, done func(replica.AlterOutcome, replica.LeaderAndISR)) {
			n.broker.AlterPartition(topic, change, done)
		},
		VerifyTxn: func(ctx context.Context, v replica.TxnVerification) []error {
			return n.txnChannel.VerifyProduce(ctx, v)
		},
		DirectoryAssigned: func(topic metadata.UUID, partition int32, dir metadata.UUID) {
			n.broker.ReportPlace(topic, partition, dir)
		},
	})
	n.onUnwind(func() {
		epoch := n.cleanBrokerEpoch()
		if n.broker != nil && n.broker.Epoch() >= 0 {
			epoch = n.broker.Epoch()
		}
		if err := n.replicas.Close(context.Background(), epoch); err != nil {
			n.logger.Warn("partitions were not closed cleanly", "cause", err)
		}
	})
	n.groups = coordinator.New(coordinator.Options{
		Config: group.Config{
			MinSessionTimeout: n.config.Duration("group.min.session.timeout.ms"), MaxSessionTimeout: n.config.Duration("group.max.session.timeout.ms"),
			InitialRebalanceDelay: orNever(n.config.Duration("group.initial.rebalance.delay.ms")), MaxSize: n.config.Int("group.max.size"),
			OffsetMetadataMaxBytes: n.config.Int("offset.metadata.max.bytes"), OffsetsRetention: time.Duration(n.config.Long("offsets.retention.minutes")) * time.Minute,
			RetentionCheckInterval: n.config.Duration("offsets.retention.check.interval.ms"), NewUUID: newMemberUUID,
			Memory:          &group.Memory{Max: n.config.Long("group.coordinator.max.bytes")},
			ConsumerMaxSize: n.config.Int("group.consumer.max.size"), ConsumerAssignors: n.config.List("group.consumer.assignors"),
			NoUpgrade: !mayMigrate(n.config, "upgrade"), NoDowngrade: !mayMigrate(n.config, "downgrade"),
			RegexRefreshInterval: n.config.Duration("group.consumer.regex.refresh.interval.ms"), ConsumerSettings: consumerSettings(n.config),
		},
		CommitTimeout: n.config.Duration("offsets.commit.timeout.ms"), Logger: n.logger,
	})
	n.onUnwind(n.groups.Close)
	previous := n.cleanBrokerEpoch()
	n.broker = broker.New(broker.Options{
		NodeID: n.id, ClusterID: n.plan.ClusterID, IncarnationID: n.incarnation, Rack: n.config.String("broker.rack"), Advertised: n.advertised(),
		Features: brokerFeatures(), LogDirIDs: ids, MetadataDirID: n.plan.IDs[n.plan.MetadataDir], PreviousBrokerEpoch: previous,
		Controllers: controllers, Dial: n.seams.Dial,
		HeartbeatInterval:    n.config.Duration("broker.heartbeat.interval.ms"),
		RegistrationTimeout:  n.config.Duration("initial.broker.registration.timeout.ms"),
		QuorumRequestTimeout: n.config.Duration("controller.quorum.request.timeout.ms"),
		ShutdownTimeout:      30 * time.Second,
		LogDirFailureTimeout: n.config.Duration("log.dir.failure.timeout.ms"),
		Publish:              n.publish, OnStanding: n.standing, Logger: n.logger,
	})
	n.startTransactions()
	n.image.Store(new(n.broker.Image))
	n.broker.Start()
	n.onUnwind(n.broker.Stop)
	return nil
}

// startTransactions makes the transaction coordinator, and what carries its words to other brokers.
func (n *node) startTransactions() {
	n.txnChannel = broker.NewTxnChannel(n.broker, func() *coordinator.Transactions { return n.txns }, broker.TxnChannelOptions{
		Listener: n.config.InterBrokerListener(), Replicas: n.replicas, Groups: n.groups, RequestTimeout: n.config.Duration("request.timeout.ms"),
		RetryBackoff: n.config.Duration("add.partitions.to.txn.retry.backoff.ms"), RetryMax: n.config.Duration("add.partitions.to.txn.retry.backoff.max.ms"),
	})
	n.onUnwind(n.txnChannel.Close)
	n.txns = coordinator.NewTransactions(coordinator.TransactionOptions{
		Config: txn.Config{
			MaxTimeout: n.config.Duration("transaction.max.timeout.ms"), IDExpiration: n.config.Duration("transactional.id.expiration.ms"),
			AbortInterval:  n.config.Duration("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
			ExpiryInterval: n.config.Duration("transaction.remove.expired.transaction.cleanup.interval.ms"), NextProducerID: n.broker.TryProducerID,
		},
		CommitTimeout: n.config.Duration("request.timeout.ms"), ProducerID: n.broker.WaitProducerID, WriteMarkers: n.txnChannel.WriteMarkers, Logger: n.logger,
	})
	n.onUnwind(n.txns.Close)
}

// leader is the broker with that id, as a source of its partitions.
func (n *node) leader(id int32) replica.Leader {
	return n.seams.Leader(id, n.broker.Leader(id, n.followOptions()))
}

// mayMigrate says whether groups with members may move between the classic protocol and that of KIP-848 in a direction.
func mayMigrate(c *config.Broker, direction string) bool {
	policy := c.String("group.consumer.migration.policy")
	return policy == "bidirectional" || policy == direction
}

// consumerSettings are those of a group: its own, or else the node's.
func consumerSettings(static *config.Broker) func(*metadata.Image, string) group.ConsumerSettings {
	return func(image *metadata.Image, id string) group.ConsumerSettings {
		own := image.Config(metadata.ConfigResource{Type: metadata.ResourceGroup, Name: id})
		values := config.Layers{Static: static, Cluster: image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker})}.Group(own)
		return group.ConsumerSettings{
			SessionTimeout:     values.Duration("consumer.session.timeout.ms"),
			HeartbeatInterval:  values.Duration("consumer.heartbeat.interval.ms"),
			AssignmentInterval: values.Duration("consumer.assignment.interval.ms"),
		}
	}
}

// moveThreads is num.replica.alter.log.dirs.threads, 0 when it is not set.
func (n *node) moveThreads() int {
	if n.config.IsSet("num.replica.alter.log.dirs.threads") {
		return n.config.Int("num.replica.alter.log.dirs.threads")
	}
	return 0
}

// followOptions say how partitions are copied from other brokers.
func (n *node) followOptions() broker.FollowOptions {
	return broker.FollowOptions{
		Listener: n.config.InterBrokerListener(), MaxWait: n.config.Duration("replica.fetch.wait.max.ms"), MinBytes: int32(n.config.Int("replica.fetch.min.bytes")),
		MaxBytes: int32(n.config.Int("replica.fetch.max.bytes")), ResponseMaxBytes: int32(n.config.Int("replica.fetch.response.max.bytes")),
		SocketTimeout: n.config.Duration("replica.socket.timeout.ms"),
	}
}

// rackAware says whether replica.selector.class names Kafka's selector by rack.
func rackAware(class string) bool { return strings.HasSuffix(class, "RackAwareReplicaSelector") }

// standing shows in /readyz how the broker stands with its controller.
func (n *node) standing(trouble string) {
	if trouble == "" {
		n.readiness.Met(readyBroker)
		return
	}
	n.readiness.NotMet(readyBroker, trouble)
}

// publish hands an image to the parts, the log first and the coordinators last.
func (n *node) publish(image *metadata.Image, delta *metadata.Delta) error {
	if delta == nil && n.broker.Image().Offset() < 0 {
		n.readiness.Explain(readyStarted, func() string { return n.dirs.LoadProgress().String() })
		err := n.replicas.Load(context.Background(), image)
		n.readiness.Explain(readyStarted, nil)
		if err != nil {
			return err
		}
	}
	n.cordon(image)
	own := broker.Settings(image, n.config, n.id)
	n.dirs.SetRoomLimits(log.RoomLimits{Soft: own.Long("log.dir.soft.limit.bytes"), Reserve: own.Long("log.dir.reserve.bytes")})
	n.replicas.Apply(image, delta)
	n.groups.Apply(n.id, n.replicas, image, delta)
	n.txns.Apply(n.id, n.replicas, image, delta)
	return nil
}

// cordon keeps new replicas out of the directories that cordoned.log.dirs names, and tells the controller.
func (n *node) cordon(image *metadata.Image) {
	before := n.dirs.Cordoned()
	var named []string
	for _, dir := range broker.Settings(image, n.config, n.id).List("cordoned.log.dirs") {
		for _, path := range n.config.LogDirs() {
			if server.SameDirectory(dir, path) {
				dir = path
			}
		}
		named = append(named, dir)
	}
	n.dirs.Cordon(named)
	after := n.dirs.Cordoned()
	if slices.Equal(before, after) {
		return
	}
	n.logger.Info("cordoned log directories", "before", before, "after", after)
	ids := [][16]byte{}
	for _, path := range after {
		ids = append(ids, n.plan.IDs[path])
	}
	n.broker.SetCordonedDirs(ids)
}

func brokerFeatures() []broker.FeatureRange {
	var ranges []broker.FeatureRange
	for _, f := range metadata.SupportedFeatures() {
		ranges = append(ranges, broker.FeatureRange{Name: f.Name, Min: f.Min, Max: f.Max})
	}
	return ranges
}

// features are what ApiVersions shows.
func (n *node) features() server.Features {
	var shown server.Features
	for _, f := range metadata.SupportedFeatures() {
		supported := kmsg.NewApiVersionsResponseSupportedFeature()
		supported.Name, supported.MinVersion, supported.MaxVersion = f.Name, f.Min, f.Max
		shown.Supported = append(shown.Supported, supported)
	}
	image := metadata.EmptyImage()
	if newest := n.image.Load(); newest != nil {
		image = (*newest)()
		if n.host != nil && n.host.KRaftVersion() > 0 { // the quorum's own, which no record finalizes
			finalized := kmsg.NewApiVersionsResponseFinalizedFeature()
			finalized.Name, finalized.MinVersionLevel, finalized.MaxVersionLevel = metadata.FeatureKRaftVersion, n.host.KRaftVersion(), n.host.KRaftVersion()
			shown.Finalized = append(shown.Finalized, finalized)
		}
	}
	shown.FinalizedEpoch = image.Offset()
	for name, level := range image.Features().All() {
		finalized := kmsg.NewApiVersionsResponseFinalizedFeature()
		finalized.Name, finalized.MinVersionLevel, finalized.MaxVersionLevel = name, level, level
		shown.Finalized = append(shown.Finalized, finalized)
	}
	return shown
}

// ready waits until clients may come, then lets them through.
func (n *node) ready(ctx context.Context) error {
	if n.broker == nil {
		if err := n.host.WaitLed(ctx); err != nil {
			return err
		}
		n.readiness.Met(readyStarted)
		return nil
	}
	if err := n.broker.Ready(ctx); err != nil {
		return err
	}
	n.brokerAPI.Open(server.Node{
		ID: n.id, ClusterID: n.plan.ClusterID, Config: n.config, Broker: n.broker, Replicas: n.replicas, Groups: n.groups, Txns: n.txns, Txn: n.txnChannel,
		Logger: n.logger, LogLevel: n.level,
	})
	n.readiness.Met(readyStarted)
	return nil
}

// stop hands leaderships over, which needs the quorum, then takes everything down:
// what began last ends first. Clients that still ask meanwhile are told to look
// elsewhere; their connections end last.
func (n *node) stop() {
	n.readiness.NotMet(readyStarted, "is over: the node is stopping")
	if n.broker != nil && n.config.Bool("controlled.shutdown.enable") {
		if err := n.broker.ControlledShutdown(context.Background()); err != nil {
			n.logger.Warn("stopping without the controller's consent", "cause", err)
		}
	}
	n.unwind()
}

func (n *node) replicaEvents() *replica.Events { return &n.events }

// directoryOffline is told by the log directories, directoryFailed by the replicas:
// either way the partitions in it stop, and the controller is told.
func (n *node) directoryOffline(dir string, cause error) {
	if n.replicas != nil {
		n.replicas.DirectoryOffline(dir, cause)
	}
}

func (n *node) directoryFailed(dir string, cause error) {
	n.logger.Error("log directory failed", "dir", dir, "cause", cause)
	if len(n.dirs.Online()) == 0 || dir == n.plan.MetadataDir {
		n.readiness.NotMet(readyMetadata, "has failed")
		n.fail(fmt.Errorf("log directory %s failed: %w", dir, cause))
		return
	}
	var offline [][16]byte
	for _, path := range n.dirs.Offline() {
		if id, known := n.plan.IDs[path]; known {
			offline = append(offline, id)
		}
	}
	if n.broker != nil {
		n.broker.SetOfflineDirs(offline)
	}
}

// newMemberUUID is the random half of a member id, in the common 8-4-4-4-12 form.
func newMemberUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// writeTimeout is how long a client may take nothing of an answer: 30 seconds, or less where a connection may not be
// idle for as long.
func writeTimeout(idle time.Duration) time.Duration {
	if idle <= 0 {
		return 0 // the server's own
	}
	return min(idle, 30*time.Second)
}

// orNever turns a configured zero into "none": parts take zero for their default.
func orNever[T int | time.Duration](n T) T {
	if n == 0 {
		return -1
	}
	return n
}
