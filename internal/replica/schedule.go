package replica

import (
	"errors"
	"time"

	"github.com/stelelog/stele/internal/log"
)

// shortRetention is the time between two runs of retention while a disk is nearly full.
const shortRetention = 5 * time.Second

// schedule is the one goroutine that does what comes round: checkpoints, retention, deletions and flushes that are due,
// laggards.
func (m *Manager) schedule() {
	defer m.stopped.Done()
	// A start has better to do than retention and checkpoints of what was just recovered. What is due by a delay of its
	// own (flush.ms, file.delete.delay.ms) does not wait for that.
	rested := time.After(m.o.InitialDelay)
	checkpoints, retention := stoppedTicker(), stoppedTicker()
	defer checkpoints.Stop()
	defer retention.Stop()
	highWatermarks := time.NewTicker(m.o.HighWatermarkCheckpointInterval)
	defer highWatermarks.Stop()
	producers := time.NewTicker(m.o.ProducerExpiryInterval)
	defer producers.Stop()
	housekeeping := time.NewTicker(time.Second)
	defer housekeeping.Stop()
	laggards := time.NewTicker(m.o.ReplicaLagMax / 2)
	defer laggards.Stop()
	m.o.Dirs.WatchRoom(m.now())
	var early time.Time // when retention last ran for want of room
	for {
		select {
		case <-m.closing:
			return
		case <-rested:
			checkpoints.Reset(m.o.CheckpointInterval)
			retention.Reset(m.o.RetentionInterval)
			m.retain()
		case <-highWatermarks.C:
			m.report("checkpoint high watermarks", m.o.Dirs.CheckpointHighWatermarks())
		case <-checkpoints.C:
			m.report("checkpoint recovery points and log starts", m.o.Dirs.CheckpointPositions())
		case <-housekeeping.C:
			now := m.now()
			if short := m.o.Dirs.WatchRoom(now); short && now.Sub(early) >= shortRetention {
				early = now
				m.retain()
			}
			m.o.Dirs.Housekeep(now)
			m.retryUnopened()
		case <-producers.C:
			m.o.Dirs.ExpireProducers()
		case <-retention.C:
			m.retain()
		case <-laggards.C:
			for _, p := range m.partitions() {
				p.shrinkISR(m.now())
			}
		}
	}
}

// stoppedTicker is a ticker that waits for its first Reset.
func stoppedTicker() *time.Ticker {
	t := time.NewTicker(time.Hour)
	t.Stop()
	return t
}

func (m *Manager) report(what string, err error) {
	if err != nil {
		m.o.Logger.Error("background task failed", "task", what, "error", err)
	}
}

// retain applies retention to every log.
func (m *Manager) retain() {
	for _, p := range m.partitions() {
		select {
		case <-m.closing:
			return
		default:
		}
		if p.Err() != nil {
			continue
		}
		switch n, err := p.log().Retain(m.now()); {
		case errors.Is(err, log.ErrClosed): // it has moved, or is gone
		case err != nil:
			m.report("retention", p.failedIO(err))
		case n > 0:
			p.moved()
		}
	}
}
