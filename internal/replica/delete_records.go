package replica

import (
	"context"
	"time"

	"github.com/stelelog/stele/internal/log"
)

// HighWatermarkOffset, as the offset of DeleteRecords, stands for the high watermark.
const HighWatermarkOffset int64 = -1

// DeleteRecordsPartition asks to delete what lies below Offset.
type DeleteRecordsPartition struct {
	Topic     string
	Partition int32
	Offset    int64
}

// DeletedRecords is what became of it. LowWatermark is the least log start of all live replicas, -1 beside an error.
type DeletedRecords struct {
	Topic        string
	Partition    int32
	LowWatermark int64
	Err          error
}

// DeleteRecords moves log starts up, durably, and waits until the live followers have done the same, for no longer than
// timeout (then ErrTimedOut; the leader's log start has moved all the same).
func (m *Manager) DeleteRecords(ctx context.Context, timeout time.Duration, req []DeleteRecordsPartition) []DeletedRecords {
	out := make([]DeletedRecords, len(req))
	partitions := make([]*Partition, len(req))
	targets := make([]int64, len(req))
	for i, in := range req {
		out[i] = DeletedRecords{Topic: in.Topic, Partition: in.Partition, LowWatermark: NoOffset}
		p, err := m.Partition(in.Topic, in.Partition)
		if err == nil {
			targets[i], err = p.deleteRecords(in.Offset)
		}
		if out[i].Err = err; err == nil {
			partitions[i] = p
		}
	}

	woken := newSignal()
	watches := make([]watch, len(req))
	defer func() {
		for i := range watches {
			watches[i].remove()
		}
	}()
	for i, p := range partitions {
		if p != nil {
			watches[i] = watch{kind: boundAny, waiter: woken}
			p.wait.add(&watches[i])
		}
	}
	timer := time.NewTimer(max(0, timeout))
	defer timer.Stop()
	for expired := false; ; {
		waiting := false
		for i, p := range partitions {
			if p == nil {
				continue
			}
			low, done, err := p.deletedBelow(targets[i])
			switch {
			case err != nil:
				out[i].Err = err
			case done:
				out[i].LowWatermark = low
			case expired:
				out[i].Err = ErrTimedOut
			default:
				waiting = true
				continue
			}
			partitions[i] = nil
		}
		if !waiting {
			return out
		}
		select {
		case <-woken:
		case <-timer.C:
			expired = true
		case <-ctx.Done():
			expired = true
		}
	}
}

// deleteRecords moves the log start up to offset and returns where that is.
func (p *Partition) deleteRecords(offset int64) (target int64, err error) {
	role := p.role.Load()
	if err := p.Err(); err != nil {
		return 0, err
	}
	if err := role.Check(NoEpoch, false, true); err != nil {
		return 0, err
	}
	if c := p.log().Config().Cleanup; c.Compacts() && !c.Deletes() {
		return 0, ErrPolicyViolation
	}
	pos := p.Positions()
	if offset == HighWatermarkOffset {
		offset = pos.HighWatermark
	}
	if offset < 0 || offset > pos.HighWatermark {
		return 0, &OffsetOutOfRangeError{Topic: p.topic, Partition: p.id, Requested: offset, LogStart: pos.LogStart,
			LogEnd: pos.HighWatermark, LastFetchedEpoch: NoEpoch, LatestEpoch: NoEpoch, HighWatermarkBound: true}
	}
	if offset <= pos.LogStart {
		return offset, nil
	}
	p.roleMu.RLock()
	err = p.log().AdvanceLogStart(offset, "DeleteRecords")
	p.roleMu.RUnlock()
	if err != nil {
		return 0, p.failedIO(err)
	}
	p.moved()
	return offset, nil
}

// deletedBelow says whether the log starts of all live replicas have reached target.
func (p *Partition) deletedBelow(target int64) (low int64, done bool, err error) {
	if err := p.Err(); err != nil {
		return NoOffset, true, err
	}
	if role := p.role.Load(); role.Kind != RoleLeader {
		return NoOffset, true, role.notLeader()
	}
	logStart := p.Positions().LogStart
	p.mu.Lock()
	low, known := p.state.LowWatermark(logStart, p.m.broker)
	p.mu.Unlock()
	if copied, ok := p.m.o.Dirs.Future(log.TopicPartition{Topic: p.topic, Partition: p.id}); ok {
		v := copied.View()
		low = min(low, v.LogStartOffset)
		v.Release()
	}
	return low, known && low >= target, nil
}
