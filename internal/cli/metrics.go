package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/telemetry"
)

// What must hold before /readyz says so.
const (
	readyStarted  = "start"
	readyMetadata = "metadata directory"
	readyBroker   = "broker"
)

// listenHTTP opens the listener for metrics, health and profiles, first of all, so that
// whoever waits for the node sees it come up. An empty http.listen opens none.
func (n *node) listenHTTP() error {
	n.readiness = telemetry.NewReadiness(readyStarted, readyMetadata, readyBroker)
	n.readiness.Met(readyMetadata)
	n.readiness.Met(readyBroker)
	addr := n.config.String("http.listen")
	if addr == "" {
		return nil
	}
	metrics := telemetry.NewRegistry()
	metrics.Register(n.server.Collect)
	metrics.Register(n.collect)
	pages := telemetry.Handler(metrics, n.readiness)
	pages.HandleFunc("GET /metrics/partitions", n.partitionMetrics)
	endpoint, err := telemetry.Start(addr, pages)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("http.listen: %s is in use by another process; stop it, or give this node another with --set http.listen=host:port (empty: none)", addr)
	}
	if err != nil {
		return err
	}
	n.http = endpoint
	n.onUnwind(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := endpoint.Stop(ctx); err != nil {
			n.logger.Warn("requests to http.listen were cut off", "cause", err)
		}
	})
	return nil
}

// httpAddr is where metrics and health are, nil for nowhere.
func (n *node) httpAddr() net.Addr {
	if n.http == nil {
		return nil
	}
	return n.http.Addr()
}

// started publishes the parts to the goroutines that collect metrics.
func (n *node) started() { n.running.Store(true) }

// nodeMetrics lists what a node tells beside its server, for the reference page.
var nodeMetrics telemetry.Catalog

var (
	metricController     = nodeMetrics.Gauge("stele_active_controller", "1 on the node whose controller is active.", "kafka.controller:type=KafkaController,name=ActiveControllerCount")
	metricHighWatermark  = nodeMetrics.Gauge("stele_metadata_high_watermark", "Offset below which the metadata log is committed, -1 while unknown.", "kafka.server:type=raft-metrics high-watermark")
	metricQuorumEpoch    = nodeMetrics.Gauge("stele_quorum_leader_epoch", "Epoch of the metadata quorum.", "kafka.server:type=raft-metrics current-epoch")
	metricTopics         = nodeMetrics.Gauge("stele_cluster_topics", "Topics of the cluster; told by the active controller.", "kafka.controller:type=KafkaController,name=GlobalTopicCount")
	metricAllPartitions  = nodeMetrics.Gauge("stele_cluster_partitions", "Partitions of the cluster; told by the active controller.", "kafka.controller:type=KafkaController,name=GlobalPartitionCount")
	metricLeaderless     = nodeMetrics.Gauge("stele_cluster_leaderless_partitions", "Partitions of the cluster without a leader; told by the active controller.", "kafka.controller:type=KafkaController,name=OfflinePartitionsCount")
	metricNotPreferred   = nodeMetrics.Gauge("stele_cluster_not_preferred_leaders", "Partitions of the cluster that another replica leads than the preferred one; told by the active controller.", "kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount")
	metricBrokers        = nodeMetrics.Gauge("stele_cluster_brokers", "Registered brokers, active or fenced; told by the active controller.", "kafka.controller:type=KafkaController,name=ActiveBrokerCount and FencedBrokerCount")
	metricBrokerState    = nodeMetrics.Gauge("stele_broker_state", "Kafka's number for the state of this broker: 3 is running.", "kafka.server:type=KafkaServer,name=BrokerState")
	metricBrokerEpoch    = nodeMetrics.Gauge("stele_broker_epoch", "Broker epoch of this registration, -1 before it.", "")
	metricImageOffset    = nodeMetrics.Gauge("stele_metadata_image_offset", "Offset of the metadata image that this broker acts on.", "kafka.server:type=broker-metadata-metrics last-applied-record-offset")
	metricPartitions     = nodeMetrics.Gauge("stele_partitions", "Partitions that have a replica here.", "kafka.server:type=ReplicaManager,name=PartitionCount")
	metricLeaders        = nodeMetrics.Gauge("stele_leaders", "Partitions that are led here.", "kafka.server:type=ReplicaManager,name=LeaderCount")
	metricOffline        = nodeMetrics.Gauge("stele_offline_partitions", "Partitions here whose directory or log has failed.", "kafka.server:type=ReplicaManager,name=OfflineReplicaCount")
	metricFailed         = nodeMetrics.Gauge("stele_failed_partitions", "Partitions that are not copied from their leader any more, because of an error here, until the leader epoch rises.", "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount")
	metricUnderReplica   = nodeMetrics.Gauge("stele_under_replicated_partitions", "Partitions led here with fewer in sync than replicas.", "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions")
	metricUnderMinISR    = nodeMetrics.Gauge("stele_under_min_isr_partitions", "Partitions led here with fewer in sync than min.insync.replicas.", "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount")
	metricAtMinISR       = nodeMetrics.Gauge("stele_at_min_isr_partitions", "Partitions led here that may lose no replica more.", "kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount")
	metricISRChanges     = nodeMetrics.Counter("stele_isr_changes_total", "Committed changes of in-sync sets that this broker leads.", "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec and IsrExpandsPerSec")
	metricRoles          = nodeMetrics.Counter("stele_leader_changes_total", "Changes of a partition's leader or leader epoch, by the role that this broker has after it.", "kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs")
	metricUnclean        = nodeMetrics.Counter("stele_unclean_elections_total", "How often this broker came to lead a partition without being known to have all that was acknowledged.", "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec")
	metricCut            = nodeMetrics.Counter("stele_truncated_offsets_total", "Offsets that followers here have cut because their leader's log has others: above the high watermark (uncommitted), where only acks=1 or 0 had acknowledged anything, and below it (committed), after an unclean election or the loss of a disk.", "")
	metricLogEvents      = nodeMetrics.Counter("stele_log_events_total", "Truncations, moves of log start, recoveries and other events of logs.", "")
	metricRefused        = nodeMetrics.Counter("stele_epochs_refused_total", "Requests whose leader epoch was older (fenced) or newer (unknown) than the one here.", "")
	metricProduceTimeout = nodeMetrics.Counter("stele_produce_timeouts_total", "Partitions of Produce requests that were not acknowledged in time.", "kafka.server:type=DelayedOperationExpirationMetrics,name=ExpiresPerSec")
	metricWaiting        = nodeMetrics.Gauge("stele_waiting_requests", "Requests that wait for records, replication or time.", "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize")
	metricProducers      = nodeMetrics.Gauge("stele_producer_ids", "Producer ids that the logs here remember, counted for each log.", "kafka.server:type=ReplicaManager,name=ProducerIdCount")
	metricLateTxns       = nodeMetrics.Gauge("stele_late_transactions", "Partitions here with a transaction that is open for longer than transaction.max.timeout.ms and five minutes: it hangs, and read_committed consumers with it.", "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount")
	metricRecordsIn      = nodeMetrics.Counter("stele_records_in_total", "Records appended for clients.", "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec")
	metricBytesIn        = nodeMetrics.Counter("stele_bytes_in_total", "Bytes of record batches appended for clients.", "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec")
	metricBytesOut       = nodeMetrics.Counter("stele_bytes_out_total", "Bytes of record batches given to consumers.", "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec")
	metricBytesFollowers = nodeMetrics.Counter("stele_replication_bytes_out_total", "Bytes of record batches given to followers.", "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec")
	metricBytesRejected  = nodeMetrics.Counter("stele_bytes_rejected_total", "Bytes of record batches that were refused, for whatever reason.", "kafka.server:type=BrokerTopicMetrics,name=BytesRejectedPerSec")
	metricProduces       = nodeMetrics.Counter("stele_produce_partitions_total", "Partitions in Produce requests.", "kafka.server:type=BrokerTopicMetrics,name=TotalProduceRequestsPerSec")
	metricProducesFailed = nodeMetrics.Counter("stele_produce_failures_total", "Those of them that were answered with an error.", "kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec")
	metricFetches        = nodeMetrics.Counter("stele_fetch_partitions_total", "Partitions in consumers' Fetch requests.", "kafka.server:type=BrokerTopicMetrics,name=TotalFetchRequestsPerSec")
	metricFetchesFailed  = nodeMetrics.Counter("stele_fetch_failures_total", "Those of them that were answered with an error.", "kafka.server:type=BrokerTopicMetrics,name=FailedFetchRequestsPerSec")
	metricGroups         = nodeMetrics.Gauge("stele_groups", "Groups coordinated here, by state.", "kafka.server:type=group-coordinator-metrics group-count (NumGroups, NumGroupsStable, ...)")
	metricMembers        = nodeMetrics.Gauge("stele_group_members", "Members of the groups coordinated here.", "")
	metricOffsets        = nodeMetrics.Gauge("stele_group_offsets", "Committed offsets kept here.", "kafka.coordinator.group:type=GroupMetadataManager,name=NumOffsets")
	metricShards         = nodeMetrics.Gauge("stele_group_shards", "Partitions of __consumer_offsets that are coordinated here and loaded.", "kafka.server:type=group-coordinator-metrics num-partitions")
	metricTxnIDs         = nodeMetrics.Gauge("stele_transactional_ids", "Transactional ids coordinated here, by state.", "")
	metricTxnCommits     = nodeMetrics.Counter("stele_transactions_committed_total", "Transactions coordinated here that were committed.", "")
	metricTxnAborts      = nodeMetrics.Counter("stele_transactions_aborted_total", "Transactions coordinated here that were aborted, by whomever.", "")
	metricTxnTimeouts    = nodeMetrics.Counter("stele_transactions_timed_out_total", "Those of them that were open for longer than their producer had asked for.", "")
	metricTxnMarkers     = nodeMetrics.Gauge("stele_transaction_markers_waiting", "Partitions of decided transactions that have no marker yet.", "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize and the like")
	metricTxnShards      = nodeMetrics.Gauge("stele_transaction_shards", "Partitions of __transaction_state that are coordinated here and loaded.", "")
	metricDirOnline      = nodeMetrics.Gauge("stele_log_dir_online", "1 while a log directory works.", "kafka.log:type=LogManager,name=LogDirectoryOffline (the opposite)")
	metricDirBytes       = nodeMetrics.Gauge("stele_log_dir_bytes", "Size of the volume that a log directory is on.", "")
	metricDirUsable      = nodeMetrics.Gauge("stele_log_dir_usable_bytes", "Free bytes on it.", "")
	metricDirLevel       = nodeMetrics.Gauge("stele_log_dir_room_level", "How near to full the volume of a log directory is: 0 plenty, 1 filling, 2 soft limit, 3 reserve.", "")
	metricDirPace        = nodeMetrics.Gauge("stele_log_dir_fill_bytes_per_second", "Bytes per second that the volume of a log directory has been losing; negative when it wins some; absent while not known.", "")
	metricDirLeft        = nodeMetrics.Gauge("stele_log_dir_seconds_to_full", "Forecast of when clients' writes will be refused at that pace; absent when the volume does not fill.", "")
	metricDirRefused     = nodeMetrics.Counter("stele_log_dir_refused_writes_total", "Batches of clients that were refused because a log directory was down to its reserve.", "")
	metricDirThrottled   = nodeMetrics.Counter("stele_log_dir_throttle_seconds_total", "Time that producers were told to wait because a log directory was nearly full.", "")
	metricOpenFiles      = nodeMetrics.Gauge("stele_log_open_files", "Files of segments that are open (log.max.open.files).", "")
	metricFilesOpened    = nodeMetrics.Counter("stele_log_files_opened_total", "Files of segments that were opened; a high rate says that log.max.open.files is too low for what is used at once.", "")
	metricLogBytes       = nodeMetrics.Gauge("stele_log_bytes", "Bytes of all segments in a log directory.", "kafka.log:type=Log,name=Size, summed up")
	metricCleanerPasses  = nodeMetrics.Counter("stele_cleaner_passes_total", "Logs that were compacted.", "kafka.log:type=LogCleaner,name=cleaner-recopy-percent and the like")
	metricCleanerBytes   = nodeMetrics.Counter("stele_cleaner_bytes_total", "Bytes of segments before and after.", "")
	metricCleanerDirty   = nodeMetrics.Gauge("stele_cleaner_max_dirty_ratio", "The largest share of a compacted log that was not compacted, when the cleaner last looked.", "kafka.log:type=LogCleanerManager,name=max-dirty-percent")
	metricUncleanable    = nodeMetrics.Gauge("stele_log_uncleanable", "1 for a partition whose compaction has stopped, since the bytes at the offset cannot be read. The others go on; the next start tries again.", "kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count")
	metricUncleanBytes   = nodeMetrics.Gauge("stele_log_uncleanable_bytes", "Bytes of partitions whose compaction has stopped.", "kafka.log:type=LogCleanerManager,name=uncleanable-bytes")
	metricTopicsShown    = nodeMetrics.Gauge("stele_topics_shown", "Topics that have series of their own, at most metrics.max.topics.", "")

	metricTopicRecordsIn      = nodeMetrics.Counter("stele_topic_records_in_total", "stele_records_in_total of one topic.", "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=")
	metricTopicBytesIn        = nodeMetrics.Counter("stele_topic_bytes_in_total", "stele_bytes_in_total of one topic.", "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=")
	metricTopicBytesOut       = nodeMetrics.Counter("stele_topic_bytes_out_total", "stele_bytes_out_total of one topic.", "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic=")
	metricTopicProducesFailed = nodeMetrics.Counter("stele_topic_produce_failures_total", "stele_produce_failures_total of one topic.", "kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec,topic=")
	metricTopicFetchesFailed  = nodeMetrics.Counter("stele_topic_fetch_failures_total", "stele_fetch_failures_total of one topic.", "kafka.server:type=BrokerTopicMetrics,name=FailedFetchRequestsPerSec,topic=")
)

// partitionCatalog lists what /metrics/partitions tells.
var partitionCatalog telemetry.Catalog

var (
	metricPartitionStart    = partitionCatalog.Gauge("stele_partition_log_start_offset", "First offset that can be read.", "kafka.log:type=Log,name=LogStartOffset")
	metricPartitionEnd      = partitionCatalog.Gauge("stele_partition_log_end_offset", "Offset of the next record.", "kafka.log:type=Log,name=LogEndOffset")
	metricPartitionMark     = partitionCatalog.Gauge("stele_partition_high_watermark", "Offset below which consumers may read.", "")
	metricPartitionBytes    = partitionCatalog.Gauge("stele_partition_bytes", "Bytes of all segments.", "kafka.log:type=Log,name=Size")
	metricPartitionSegments = partitionCatalog.Gauge("stele_partition_segments", "Segments.", "kafka.log:type=Log,name=NumLogSegments")
	metricPartitionEpoch    = partitionCatalog.Gauge("stele_partition_leader_epoch", "Leader epoch that this broker knows, -1 none.", "")
	metricPartitionLeader   = partitionCatalog.Gauge("stele_partition_leader", "1 where this broker leads.", "")
	metricPartitionISR      = partitionCatalog.Gauge("stele_partition_in_sync_replicas", "Replicas in sync; told by the leader.", "kafka.cluster:type=Partition,name=InSyncReplicasCount")
)

// collect gives the numbers of everything but the listeners.
func (n *node) collect(s telemetry.Sink) {
	counts := n.events.Counts()
	for role, count := range counts.RoleChanges {
		s.Value(metricRoles, float64(count), "role", role.String())
	}
	for kind, count := range counts.LogEvents {
		s.Value(metricLogEvents, float64(count), "event", strings.ReplaceAll(kind.String(), " ", "_"))
	}
	s.Value(metricISRChanges, float64(counts.ISRShrinks), "change", "shrink")
	s.Value(metricISRChanges, float64(counts.ISRExpands), "change", "expand")
	s.Value(metricUnclean, float64(counts.UncleanElections))
	s.Value(metricCut, float64(counts.CutUncommitted), "part", "uncommitted")
	s.Value(metricCut, float64(counts.CutCommitted), "part", "committed")
	s.Value(metricProduceTimeout, float64(counts.ProduceTimeouts))
	s.Value(metricRefused, float64(counts.EpochsFenced), "why", "fenced")
	s.Value(metricRefused, float64(counts.EpochsUnknown), "why", "unknown")
	if !n.running.Load() {
		return
	}
	n.collectDirs(s)
	if n.host != nil {
		status := n.host.Status()
		active := 0.0
		if status.Active {
			active = 1
			collectCluster(s, n.host.Committed())
		}
		s.Value(metricController, active)
		s.Value(metricHighWatermark, float64(status.HighWatermark))
		s.Value(metricQuorumEpoch, float64(status.LeaderEpoch))
	}
	if n.broker != nil {
		s.Value(metricBrokerState, float64(n.broker.State()), "state", n.broker.State().String())
		s.Value(metricBrokerEpoch, float64(n.broker.Epoch()))
		s.Value(metricImageOffset, float64(n.broker.Image().Offset()))
		n.brokerAPI.Collect(s)
		collectReplicas(s, n.replicas.Stats())
		n.collectTraffic(s)
		n.collectCleaner(s)
		n.collectGroups(s)
		n.collectTransactions(s)
	}
}

// collectCluster gives what the controller knows of the whole cluster.
func collectCluster(s telemetry.Sink, img *metadata.Image) {
	partitions, leaderless, notPreferred := 0, 0, 0
	for _, topic := range img.Topics().All() {
		for _, p := range topic.Partitions().All() {
			partitions++
			switch {
			case p.Leader == metadata.NoLeader:
				leaderless++
			case p.Leader != p.Replicas[0]:
				notPreferred++
			}
		}
	}
	s.Value(metricTopics, float64(img.Topics().Len()))
	s.Value(metricAllPartitions, float64(partitions))
	s.Value(metricLeaderless, float64(leaderless))
	s.Value(metricNotPreferred, float64(notPreferred))
	fenced := 0
	for _, b := range img.Brokers().All() {
		if b.Fenced {
			fenced++
		}
	}
	s.Value(metricBrokers, float64(img.Brokers().Len()-fenced), "state", "active")
	s.Value(metricBrokers, float64(fenced), "state", "fenced")
}

func collectReplicas(s telemetry.Sink, st replica.Stats) {
	s.Value(metricPartitions, float64(st.Partitions))
	s.Value(metricLeaders, float64(st.Leaders))
	s.Value(metricOffline, float64(st.Offline))
	s.Value(metricFailed, float64(st.Failed))
	s.Value(metricUnderReplica, float64(st.UnderReplicated))
	s.Value(metricUnderMinISR, float64(st.UnderMinISR))
	s.Value(metricAtMinISR, float64(st.AtMinISR))
	s.Value(metricWaiting, float64(st.Waiting))
	s.Value(metricProducers, float64(st.Producers))
	s.Value(metricLateTxns, float64(st.LateTxns))
}

// collectTraffic gives what went through all topics, and through those that have series of their own.
func (n *node) collectTraffic(s telemetry.Sink) {
	all := n.replicas.Traffic()
	s.Value(metricRecordsIn, float64(all.RecordsIn))
	s.Value(metricBytesIn, float64(all.BytesIn))
	s.Value(metricBytesOut, float64(all.BytesOut))
	s.Value(metricBytesFollowers, float64(all.BytesOutFollowers))
	s.Value(metricBytesRejected, float64(all.BytesRejected))
	s.Value(metricProduces, float64(all.Produces))
	s.Value(metricProducesFailed, float64(all.ProducesFailed))
	s.Value(metricFetches, float64(all.Fetches))
	s.Value(metricFetchesFailed, float64(all.FetchesFailed))
	topics := n.replicas.TopicTraffic(n.config.Int("metrics.max.topics"))
	s.Value(metricTopicsShown, float64(len(topics)))
	for _, t := range topics {
		s.Value(metricTopicRecordsIn, float64(t.RecordsIn), "topic", t.Topic)
		s.Value(metricTopicBytesIn, float64(t.BytesIn), "topic", t.Topic)
		s.Value(metricTopicBytesOut, float64(t.BytesOut), "topic", t.Topic)
		s.Value(metricTopicProducesFailed, float64(t.ProducesFailed), "topic", t.Topic)
		s.Value(metricTopicFetchesFailed, float64(t.FetchesFailed), "topic", t.Topic)
	}
}

// maxUncleanableShown bounds the series of partitions that cannot be compacted.
const maxUncleanableShown = 100

func (n *node) collectCleaner(s telemetry.Sink) {
	st, ok := n.replicas.CleanerStats()
	if !ok {
		return
	}
	s.Value(metricCleanerPasses, float64(st.Passes))
	s.Value(metricCleanerBytes, float64(st.BytesRead), "when", "before")
	s.Value(metricCleanerBytes, float64(st.BytesWritten), "when", "after")
	s.Value(metricCleanerDirty, st.MaxDirtyRatio)
	s.Value(metricUncleanBytes, float64(st.UncleanableBytes))
	shown := 0
	for tp, why := range st.Uncleanable {
		if shown++; shown <= maxUncleanableShown {
			s.Value(metricUncleanable, 1, "topic", tp.Topic, "partition", strconv.Itoa(int(tp.Partition)), "dir", why.Dir, "offset", strconv.FormatInt(why.Offset, 10))
		}
	}
}

// collectTimeout bounds how long a look at the metrics waits for busy group shards.
const collectTimeout = time.Second

func (n *node) collectGroups(s telemetry.Sink) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	st, shards := n.groups.Stats(ctx)
	for _, state := range slices.Sorted(maps.Keys(st.Groups)) {
		s.Value(metricGroups, float64(st.Groups[state]), "state", state)
	}
	s.Value(metricMembers, float64(st.Members))
	s.Value(metricOffsets, float64(st.Offsets))
	s.Value(metricShards, float64(shards))
}

func (n *node) collectTransactions(s telemetry.Sink) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	st, shards := n.txns.Stats(ctx)
	for _, state := range slices.Sorted(maps.Keys(st.IDs)) {
		s.Value(metricTxnIDs, float64(st.IDs[state]), "state", state)
	}
	s.Value(metricTxnCommits, float64(st.Commits))
	s.Value(metricTxnAborts, float64(st.Aborts))
	s.Value(metricTxnTimeouts, float64(st.TimedOut))
	s.Value(metricTxnMarkers, float64(st.Markers))
	s.Value(metricTxnShards, float64(shards))
}

func (n *node) collectDirs(s telemetry.Sink) {
	online := n.dirs.Online()
	dirs := slices.Concat(slices.Collect(maps.Keys(n.plan.IDs)), slices.Collect(maps.Keys(n.plan.Failed)))
	slices.Sort(dirs)
	for _, dir := range dirs {
		state := 0.0
		if slices.Contains(online, dir) {
			state = 1
		}
		s.Value(metricDirOnline, state, "dir", dir)
		if total, usable, err := n.fs.Usage(dir); err == nil {
			s.Value(metricDirBytes, float64(total), "dir", dir)
			s.Value(metricDirUsable, float64(usable), "dir", dir)
		}
	}
	for _, r := range n.dirs.Room() {
		s.Value(metricDirLevel, float64(r.Level), "dir", r.Path)
		if r.HasPace {
			s.Value(metricDirPace, r.Pace, "dir", r.Path)
		}
		if r.HasTimeLeft {
			s.Value(metricDirLeft, r.TimeLeft.Seconds(), "dir", r.Path)
		}
		s.Value(metricDirRefused, float64(r.Refused), "dir", r.Path)
		s.Value(metricDirThrottled, r.Throttled.Seconds(), "dir", r.Path)
	}
	files := n.dirs.Handles()
	s.Value(metricOpenFiles, float64(files.Open))
	s.Value(metricFilesOpened, float64(files.Opened))
	sizes := map[string]int64{}
	for _, l := range n.dirs.Logs() {
		if dir, ok := n.dirs.DirOf(log.TopicPartition{Topic: l.Topic(), Partition: l.Partition()}); ok {
			sizes[dir] += l.Size()
		}
	}
	for dir, size := range sizes {
		s.Value(metricLogBytes, float64(size), "dir", dir)
	}
}

// partitionMetrics answers /metrics/partitions?topic=NAME: the numbers of each partition of one topic here. They are
// not part of /metrics, which must stay small on a broker with many partitions.
func (n *node) partitionMetrics(w http.ResponseWriter, r *http.Request) {
	topic := r.URL.Query().Get("topic")
	if topic == "" {
		http.Error(w, "name a topic: /metrics/partitions?topic=NAME", http.StatusBadRequest)
		return
	}
	if !n.running.Load() || n.broker == nil {
		http.Error(w, "this node hosts no partitions, or does not do so yet", http.StatusServiceUnavailable)
		return
	}
	described := n.replicas.DescribeTopic(topic)
	if len(described) == 0 {
		http.Error(w, fmt.Sprintf("no partition of topic %q is on this node", topic), http.StatusNotFound)
		return
	}
	metrics := telemetry.NewSubset()
	metrics.Register(func(s telemetry.Sink) {
		for _, p := range described {
			labels := []string{"topic", topic, "partition", strconv.Itoa(int(p.Partition))}
			leader := 0.0
			if p.Leading {
				leader = 1
				s.Value(metricPartitionISR, float64(p.InSync), labels...)
			}
			s.Value(metricPartitionLeader, leader, labels...)
			s.Value(metricPartitionEpoch, float64(p.LeaderEpoch), labels...)
			s.Value(metricPartitionStart, float64(p.LogStart), labels...)
			s.Value(metricPartitionEnd, float64(p.End), labels...)
			s.Value(metricPartitionMark, float64(p.HighWatermark), labels...)
			s.Value(metricPartitionBytes, float64(p.Bytes), labels...)
			s.Value(metricPartitionSegments, float64(p.Segments), labels...)
		}
	})
	metrics.Handler().ServeHTTP(w, r)
}
