package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/stelelog/stele/internal/replica"
)

// rows are what a run is to have seen: what followers do with answers (4.2), how they cut their logs (4.3), out of range (4.6), and how
// leaders are elected (4.8).
var rows = []string{
	"follow: records appended",
	"follow: diverging epoch, cut",
	"follow: offset out of range (1)",
	"follow: moved to tiered storage (109)",
	"follow: fenced epoch (74), stopped",
	"follow: fenced epoch (74), answer to an older epoch",
	"follow: unknown epoch, not leader, unknown topic (75 6 3 100 103), backed off",
	"follow: corrupt records (2 87, CRC), backed off",
	"follow: failure here (56, out of order), stopped as failed",
	"follow: records of a later epoch than the request's left out (KAFKA-18723)",
	"cut: the leader's epoch is ours, least of both ends",
	"cut: the leader's epoch is not ours, asked again",
	"cut: nothing but an empty reign",
	"range: the leader begins later, started over",
	"elect: a member leaves, ISR at or above min",
	"elect: ISR falls under min, the member becomes eligible",
	"elect: the last member leaves, no leader, last known noted",
	"elect: an eligible replica is elected",
	"elect: ISR back at min, nobody eligible beside it",
	"elect: an unclean stop ends eligibility",
	"elect: nobody eligible any more, last known stays",
	"elect: the last known leader, recovering",
	"elect: unclean by configuration",
	"elect: another in-sync replica",
}

type coverage struct{ counts []atomic.Int64 }

func newCoverage() *coverage { return &coverage{counts: make([]atomic.Int64, len(rows))} }

func (c *coverage) hit(row string) {
	i := slices.Index(rows, row)
	if i < 0 {
		panic("no such row: " + row)
	}
	c.counts[i].Add(1)
}

// followed is told what followers do.
func (c *coverage) followed(e replica.FollowEvent) {
	if e.Cut != nil {
		switch {
		case e.Cut.Finished && e.Cut.Epoch >= 0:
			c.hit("cut: the leader's epoch is ours, least of both ends")
		case !e.Cut.Finished:
			c.hit("cut: the leader's epoch is not ours, asked again")
		}
		if e.Cut.To == e.Partition.Positions().End {
			c.hit("cut: nothing but an empty reign")
		}
		return
	}
	switch err := e.Answer.Err; {
	case e.Answer.Diverging && e.Step != replica.FollowIgnore:
		c.hit("follow: diverging epoch, cut")
	case errors.Is(err, replica.ErrFencedLeaderEpoch) && e.Step == replica.FollowIgnore:
		c.hit("follow: fenced epoch (74), answer to an older epoch")
	case e.Step == replica.FollowIgnore:
	case errors.Is(err, replica.ErrOffsetOutOfRange):
		c.hit("follow: offset out of range (1)")
		if e.Step == replica.FollowAppend && e.Partition.Positions().LogStart > 0 {
			c.hit("range: the leader begins later, started over")
		}
	case errors.Is(err, replica.ErrOffsetMovedToTieredStorage):
		c.hit("follow: moved to tiered storage (109)")
	case errors.Is(err, replica.ErrFencedLeaderEpoch):
		c.hit("follow: fenced epoch (74), stopped")
	case e.Step == replica.FollowFail:
		c.hit("follow: failure here (56, out of order), stopped as failed")
	case errors.Is(err, replica.ErrCorrupt), e.Step == replica.FollowBackoff && err == nil && !strings.Contains(e.Err.Error(), "leader epoch that is not known"):
		c.hit("follow: corrupt records (2 87, CRC), backed off")
	case e.Step == replica.FollowBackoff && err == nil:
		c.hit("follow: records of a later epoch than the request's left out (KAFKA-18723)")
	case err != nil:
		c.hit("follow: unknown epoch, not leader, unknown topic (75 6 3 100 103), backed off")
	default:
		c.hit("follow: records appended")
	}
}

// decided is told of each change of a partition by the controllers.
func (c *coverage) decided(was, is *partitionState, leaderSet bool, _ map[int32]*brokerState) {
	if is.topic.kind == nil {
		return
	}
	minimum := min(is.topic.kind.minISR, len(is.replicas))
	left := len(is.isr) < len(was.isr)
	switch {
	case left && len(is.isr) == 0 && is.leader == -1 && len(is.lastKnown) > 0:
		c.hit("elect: the last member leaves, no leader, last known noted")
	case left && len(is.isr) < minimum && len(is.elr) > len(was.elr):
		c.hit("elect: ISR falls under min, the member becomes eligible")
	case left && len(is.isr) >= minimum:
		c.hit("elect: a member leaves, ISR at or above min")
	case len(is.isr) > len(was.isr) && len(was.isr) < minimum && len(is.isr) >= minimum && len(is.elr) == 0:
		c.hit("elect: ISR back at min, nobody eligible beside it")
	}
	if len(is.elr) < len(was.elr) && len(is.isr) <= len(was.isr) {
		c.hit("elect: an unclean stop ends eligibility")
		if len(is.elr) == 0 && len(is.isr) == 0 && len(is.lastKnown) > 0 {
			c.hit("elect: nobody eligible any more, last known stays")
		}
	}
	if !leaderSet || is.leader < 0 {
		return
	}
	switch {
	case slices.Contains(was.isr, is.leader):
		c.hit("elect: another in-sync replica")
	case slices.Contains(was.elr, is.leader):
		c.hit("elect: an eligible replica is elected")
	case slices.Contains(was.lastKnown, is.leader):
		c.hit("elect: the last known leader, recovering")
	default:
		c.hit("elect: unclean by configuration")
	}
}

func (c *coverage) String() string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "%8d  %s\n", c.counts[i].Load(), row)
	}
	return b.String()
}
