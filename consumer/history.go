package consumer

import "sort"

// reign is an epoch and the first offset of it that was consumed.
type reign struct {
	epoch int32
	start int64
}

// history is the epochs of the batches consumed since an assignment, up to the position and without a gap: epochs and
// starts rise strictly. It answers as a follower's epoch cache does, with the position as the end of the log.
type history struct{ reigns []reign }

// maxReigns bounds a history; the oldest epochs are forgotten first, and it then reaches back less far.
const maxReigns = 256

func (h *history) clear() { h.reigns = h.reigns[:0] }

// assign notes that records of an epoch were consumed from start on.
func (h *history) assign(epoch int32, start int64) {
	n := len(h.reigns)
	if n > 0 && h.reigns[n-1].epoch == epoch && start >= h.reigns[n-1].start {
		return
	}
	for n > 0 && (h.reigns[n-1].epoch >= epoch || h.reigns[n-1].start >= start) {
		n--
	}
	if h.reigns = append(h.reigns[:n], reign{epoch, start}); len(h.reigns) > maxReigns {
		h.reigns = h.reigns[:copy(h.reigns, h.reigns[1:])]
	}
}

// cut forgets what is at or above an offset.
func (h *history) cut(offset int64) {
	for n := len(h.reigns); n > 0 && h.reigns[n-1].start >= offset; n-- {
		h.reigns = h.reigns[:n-1]
	}
}

// first is where the history begins.
func (h *history) first() (reign, bool) {
	if len(h.reigns) == 0 {
		return reign{}, false
	}
	return h.reigns[0], true
}

// endOffsetFor is the largest known epoch that is not above the one asked, and where it ends; end is that of the whole.
// It must not be asked for an epoch below the first.
func (h *history) endOffsetFor(epoch int32, end int64) (int32, int64) {
	i := sort.Search(len(h.reigns), func(i int) bool { return h.reigns[i].epoch > epoch })
	if i == len(h.reigns) {
		return h.reigns[i-1].epoch, end
	}
	return h.reigns[i-1].epoch, h.reigns[i].start
}

// epochBefore is the epoch of the last record before an offset, if that record was consumed.
func (h *history) epochBefore(offset int64) Epoch {
	i := sort.Search(len(h.reigns), func(i int) bool { return h.reigns[i].start >= offset })
	if i == 0 {
		return Epoch{}
	}
	return Known(h.reigns[i-1].epoch)
}
