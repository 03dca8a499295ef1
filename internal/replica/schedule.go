package replica

import "time"

// schedule is the one goroutine that does what comes round: checkpoints, retention, deletions and flushes that are due,
// laggards.
func (m *Manager) schedule() {
	defer m.stopped.Done()
	select {
	case <-time.After(m.o.InitialDelay):
	case <-m.closing:
		return
	}
	highWatermarks := time.NewTicker(m.o.HighWatermarkCheckpointInterval)
	defer highWatermarks.Stop()
	checkpoints := time.NewTicker(m.o.CheckpointInterval)
	defer checkpoints.Stop()
	retention := time.NewTicker(m.o.RetentionInterval)
	defer retention.Stop()
	producers := time.NewTicker(m.o.ProducerExpiryInterval)
	defer producers.Stop()
	housekeeping := time.NewTicker(time.Second)
	defer housekeeping.Stop()
	laggards := time.NewTicker(m.o.ReplicaLagMax / 2)
	defer laggards.Stop()
	for {
		select {
		case <-m.closing:
			return
		case <-highWatermarks.C:
			m.report("checkpoint high watermarks", m.o.Dirs.CheckpointHighWatermarks())
		case <-checkpoints.C:
			m.report("checkpoint recovery points and log starts", m.o.Dirs.CheckpointPositions())
		case <-housekeeping.C:
			m.o.Dirs.Housekeep(m.now())
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
		switch n, err := p.log.Retain(m.now()); {
		case err != nil:
			m.report("retention", p.failedIO(err))
		case n > 0:
			p.moved()
		}
	}
}
