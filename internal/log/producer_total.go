package log

import (
	"slices"
	"sync/atomic"
)

// ProducerTotal counts the producers that the logs of a node remember, all together. A client can make up as many
// producer ids as it likes, so somebody has to. The zero value is ready; it may be used concurrently.
type ProducerTotal struct{ n atomic.Int64 }

// Count is how many there are.
func (t *ProducerTotal) Count() int64 { return t.n.Load() }

// countProducers makes the number of producers known. mu is held.
func (l *Log) countProducers(n int) {
	if old := l.producerCount.Swap(int32(n)); int(old) != n && l.o.Producers != nil {
		l.o.Producers.n.Add(int64(n) - int64(old))
	}
}

// limitProducers makes room for the producers that an append has added, when the node remembers too many
// (producer.id.max.count). The log that got them forgets as many of its own, or more at a time when it has many: those
// that were silent for longest, and none with an open transaction. A batch that such a producer sends again is not
// recognised as a duplicate any more; what it sends next is taken as from a new one. mu is held.
func (l *Log) limitProducers(added int) {
	most := l.config.Load().MaxProducers
	if added <= 0 || l.o.Producers == nil || l.o.Producers.Count()+int64(added) <= most {
		return
	}
	l.producers.forgetSilent(max(added, len(l.producers.byID)/16), added)
}

// forgetSilent forgets up to n producers, so that at least keep are left.
func (p *producers) forgetSilent(n, keep int) {
	var seen []int64
	for _, st := range p.byID {
		if st.txnFirstOffset < 0 {
			seen = append(seen, st.lastSeen)
		}
	}
	n = min(n, len(p.byID)-keep, len(seen))
	if n <= 0 {
		return
	}
	slices.Sort(seen)
	last := seen[n-1]
	atLast := n // how many of those seen last at that very time may go
	for _, at := range seen[:n] {
		if at < last {
			atLast--
		}
	}
	for id, st := range p.byID {
		switch {
		case st.txnFirstOffset >= 0 || st.lastSeen > last:
			continue
		case st.lastSeen == last:
			if atLast == 0 {
				continue
			}
			atLast--
		}
		delete(p.byID, id)
	}
}
