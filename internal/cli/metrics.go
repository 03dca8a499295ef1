package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/log"
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
	endpoint, err := telemetry.Start(addr, telemetry.Handler(metrics, n.readiness))
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

func gauge(name, help string) telemetry.Metric {
	return telemetry.Metric{Name: name, Help: help, Kind: telemetry.Gauge}
}

func counter(name, help string) telemetry.Metric {
	return telemetry.Metric{Name: name, Help: help, Kind: telemetry.Counter}
}

// collect gives the numbers of everything but the listeners.
func (n *node) collect(emit telemetry.Emit) {
	counts := n.events.Counts()
	for role, count := range counts.RoleChanges {
		emit(counter("stele_leader_changes_total", "Changes of a partition's leader or leader epoch, by the role that this broker has after it."), float64(count), "role", role.String())
	}
	for kind, count := range counts.LogEvents {
		emit(counter("stele_log_events_total", "Truncations, moves of log start, recoveries and other events of logs."), float64(count), "event", strings.ReplaceAll(kind.String(), " ", "_"))
	}
	isr := counter("stele_isr_changes_total", "Committed changes of in-sync sets that this broker leads.")
	emit(isr, float64(counts.ISRShrinks), "change", "shrink")
	emit(isr, float64(counts.ISRExpands), "change", "expand")
	emit(counter("stele_produce_timeouts_total", "Partitions of Produce requests that were not acknowledged in time."), float64(counts.ProduceTimeouts))
	refused := counter("stele_epochs_refused_total", "Requests whose leader epoch was older (fenced) or newer (unknown) than the one here.")
	emit(refused, float64(counts.EpochsFenced), "why", "fenced")
	emit(refused, float64(counts.EpochsUnknown), "why", "unknown")
	if !n.running.Load() {
		return
	}
	n.collectDirs(emit)
	if n.host != nil {
		status := n.host.Status()
		active := 0.0
		if status.Active {
			active = 1
		}
		emit(gauge("stele_active_controller", "1 on the node whose controller is active."), active)
		emit(gauge("stele_metadata_high_watermark", "Offset below which the metadata log is committed, -1 while unknown."), float64(status.HighWatermark))
		emit(gauge("stele_quorum_leader_epoch", "Epoch of the metadata quorum."), float64(status.LeaderEpoch))
	}
	if n.broker != nil {
		emit(gauge("stele_broker_state", "Kafka's number for the state of this broker: 3 is running."), float64(n.broker.State()), "state", n.broker.State().String())
		emit(gauge("stele_broker_epoch", "Broker epoch of this registration, -1 before it."), float64(n.broker.Epoch()))
		emit(gauge("stele_metadata_image_offset", "Offset of the metadata image that this broker acts on."), float64(n.broker.Image().Offset()))
		n.collectReplicas(emit, n.replicas.Stats())
	}
}

func (n *node) collectReplicas(emit telemetry.Emit, s replica.Stats) {
	emit(gauge("stele_partitions", "Partitions that have a replica here."), float64(s.Partitions))
	emit(gauge("stele_leaders", "Partitions that are led here."), float64(s.Leaders))
	emit(gauge("stele_offline_partitions", "Partitions whose directory or log has failed."), float64(s.Offline))
	emit(gauge("stele_under_replicated_partitions", "Partitions led here with fewer in sync than replicas."), float64(s.UnderReplicated))
	emit(gauge("stele_under_min_isr_partitions", "Partitions led here with fewer in sync than min.insync.replicas."), float64(s.UnderMinISR))
	emit(gauge("stele_waiting_requests", "Requests that wait for records, replication or time."), float64(s.Waiting))
}

func (n *node) collectDirs(emit telemetry.Emit) {
	online := n.dirs.Online()
	for _, dir := range slices.Sorted(maps.Keys(n.plan.IDs)) {
		state := 0.0
		if slices.Contains(online, dir) {
			state = 1
		}
		emit(gauge("stele_log_dir_online", "1 while a log directory works."), state, "dir", dir)
		if total, usable, err := n.fs.Usage(dir); err == nil {
			emit(gauge("stele_log_dir_bytes", "Size of the volume that a log directory is on."), float64(total), "dir", dir)
			emit(gauge("stele_log_dir_usable_bytes", "Free bytes on it."), float64(usable), "dir", dir)
		}
	}
	sizes := map[string]int64{}
	for _, l := range n.dirs.Logs() {
		if dir, ok := n.dirs.DirOf(log.TopicPartition{Topic: l.Topic(), Partition: l.Partition()}); ok {
			sizes[dir] += l.Size()
		}
	}
	for dir, size := range sizes {
		emit(gauge("stele_log_bytes", "Bytes of all segments in a log directory."), float64(size), "dir", dir)
	}
}
