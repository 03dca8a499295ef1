package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What a partition comes to, from the worst down. Consumers that are running know better than their last commit does,
// and are told by their own events; this is what the next owner of the partition would find.
const (
	findTopicGone     = "topic-gone"
	findUnavailable   = "unavailable"
	findTruncated     = "truncated"
	findEpochUnknown  = "epoch-unknown"
	findBelowLogStart = "below-log-start"
	findAboveLogEnd   = "above-log-end"
	findAtRisk        = "at-risk"
	findHistory       = "history-differs"
	findNobody        = "nobody-consumes"
	findTransaction   = "open-transaction"
	findNoCommit      = "no-commit"
	findBehind        = "behind"
	findUnchecked     = "unchecked"
	findFine          = "fine"
)

var gravity = []string{findTopicGone, findUnavailable, findTruncated, findEpochUnknown, findBelowLogStart, findAboveLogEnd, findAtRisk, findHistory, findNobody, findTransaction, findNoCommit, findBehind, findUnchecked, findFine}

// riskTime is how near retention may come to records that are not consumed before it is said.
const riskTime = time.Hour

// measure computes lags and what retention leaves.
func (p *partitionExplanation) measure(now time.Time) {
	if p.CommittedOffset < 0 || p.HighWatermark < 0 {
		return
	}
	from := max(p.CommittedOffset, p.LogStart)
	p.Lag = max(0, p.HighWatermark-from)
	if p.LastStableOffset >= 0 {
		p.StableLag = max(0, p.LastStableOffset-from)
	}
	if p.Lag == 0 {
		zero := seconds(0)
		p.LagTime = &zero
	} else if p.NextTime != nil {
		age := seconds(max(0, now.Sub(*p.NextTime)))
		p.LagTime = &age
	}
	if left, ok := p.untilRetention(now); ok {
		s := seconds(left)
		p.UntilRetention = &s
	}
}

// untilRetention is when retention takes the first record that is not consumed, at the earliest: segments go whole, by
// their newest record. By size it follows from the rate at which the log was written.
func (p *partitionExplanation) untilRetention(now time.Time) (left time.Duration, ok bool) {
	if !p.retention.deletes || p.CommittedOffset < p.LogStart || p.Lag <= 0 {
		return 0, false
	}
	if p.retention.ms >= 0 && p.NextTime != nil {
		left, ok = max(0, p.NextTime.Add(time.Duration(p.retention.ms)*time.Millisecond).Sub(now)), true
	}
	if p.retention.bytes >= 0 && p.size > 0 && p.HighWatermark > p.LogStart && p.LogStartTime != nil && p.LogEndTime != nil {
		perRecord := float64(p.size) / float64(p.HighWatermark-p.LogStart)
		span := p.LogEndTime.Sub(*p.LogStartTime).Seconds()
		if room := float64(p.retention.bytes) - perRecord*float64(p.Lag); span > 0 {
			bySize := time.Duration(max(0, room) / (float64(p.size) / span) * float64(time.Second))
			if !ok || bySize < left {
				left, ok = bySize, true
			}
		}
	}
	return left, ok
}

// rates measures producers and consumers since an earlier look.
func (x *explanation) rates(before *explanation) {
	span := x.At.Sub(before.At).Seconds()
	for i := range x.Partitions {
		p := &x.Partitions[i]
		j := slices.IndexFunc(before.Partitions, func(b partitionExplanation) bool { return b.Topic == p.Topic && b.Partition == p.Partition })
		if j < 0 || span <= 0 {
			continue
		}
		b := before.Partitions[j]
		if p.HighWatermark >= 0 && b.HighWatermark >= 0 {
			rate := float64(p.HighWatermark-b.HighWatermark) / span
			p.ProduceRate = &rate
		}
		if p.CommittedOffset >= 0 && b.CommittedOffset >= 0 {
			rate := float64(p.CommittedOffset-b.CommittedOffset) / span
			p.ConsumeRate = &rate
		}
	}
}

// judge says what the facts come to, of each partition and of the group: the worst of them.
func (x *explanation) judge() {
	counts := map[string]int{}
	for i := range x.Partitions {
		p := &x.Partitions[i]
		p.judge(len(x.Members) > 0)
		counts[p.Finding]++
	}
	var parts []string
	for _, f := range gravity {
		if n := counts[f]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, f))
		}
	}
	switch {
	case len(x.Partitions) == 0 && len(x.Members) == 0:
		x.Verdict = "no member and no committed offset: the group expired, or never began"
	case len(x.Partitions) == 0:
		x.Verdict = fmt.Sprintf("%d members, and no partition is assigned or committed: their subscription may match no topic", len(x.Members))
	case counts[findFine] == len(x.Partitions):
		x.Verdict = "all is well"
	default:
		x.Verdict = "of " + plural(len(x.Partitions), "partition") + ": " + strings.Join(parts, ", ")
	}
	if len(x.Members) == 0 && len(x.Partitions) > 0 {
		x.Verdict += "; it has no member, and its offsets expire offsets.retention.minutes after the last one left"
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *partitionExplanation) say(finding, verdict, advice string) {
	p.Finding, p.Verdict, p.Advice = finding, verdict, advice
}

func (p *partitionExplanation) judge(members bool) {
	if p.judgePosition() {
		return
	}
	p.judgeProgress(members)
}

// judgePosition says what is wrong with the commit, if something is.
func (p *partitionExplanation) judgePosition() bool {
	switch {
	case p.topicGone:
		p.say(findTopicGone, "the topic or the partition does not exist any more; the commit was left behind", fmt.Sprintf("if that is as it should be: stele group delete, or let it expire; a new topic %s would not begin at this offset", p.Topic))
	case p.Leader < 0 || p.HighWatermark < 0 || p.LogStart < 0:
		cause := "its leader does not answer"
		if p.Leader < 0 {
			cause = "no leader"
		}
		if p.problem != "" {
			cause += " (" + p.problem + ")"
		}
		p.say(findUnavailable, cause+": nobody can read or write it", fmt.Sprintf("stele topic describe %s shows its replicas; start their nodes", p.Topic))
	case p.CommittedOffset < 0:
		p.say(findNoCommit, "nothing is committed: whoever begins does so by auto.offset.reset", "")
		if p.MemberID != "" {
			p.Verdict = "assigned, and nothing is committed yet: it began, and begins again, by auto.offset.reset"
		}
	case p.CommittedEpoch >= 0 && p.EpochAnswered >= 0 && p.EpochEnd < p.CommittedOffset:
		p.say(findTruncated, fmt.Sprintf("records below the commit were cut, by an election that was not clean: the log differs from %d on or below, %s before the commit", p.EpochEnd, plural(int(p.CommittedOffset-p.EpochEnd), "record")),
			fmt.Sprintf("the stele and Java consumers go on at %d; what they processed of %d to %d is no longer in the log, other records have those offsets", p.EpochEnd, p.EpochEnd, p.CommittedOffset-1))
	case p.CommittedEpoch >= 0 && p.EpochAnswered < 0 && p.CommittedEpoch > p.LeaderEpoch && p.LeaderEpoch >= 0:
		p.say(findEpochUnknown, fmt.Sprintf("epoch %d was committed, and the partition is only at %d: the topic was made anew, or the commit is another cluster's", p.CommittedEpoch, p.LeaderEpoch),
			"consumers reset by auto.offset.reset; set the place with stele group reset-offsets")
	case p.CommittedOffset < p.LogStart:
		p.say(findBelowLogStart, fmt.Sprintf("%s from %d to %d were deleted before they were consumed: the log starts at %d", plural(int(p.LogStart-p.CommittedOffset), "record"), p.CommittedOffset, p.LogStart-1, p.LogStart),
			fmt.Sprintf("consumers reset by auto.offset.reset: earliest goes to %d, latest skips %s more; lengthen retention.ms or retention.bytes of %s, or consume faster", p.LogStart, plural(int(p.HighWatermark-p.LogStart), "record"), p.Topic))
		if p.LogStartTime != nil {
			p.Verdict += fmt.Sprintf(", with a record of %s", p.LogStartTime.Format(time.RFC3339))
		}
	case p.CommittedOffset > p.HighWatermark && (p.CommittedEpoch < 0 || p.EpochAnswered < 0):
		p.say(findAboveLogEnd, fmt.Sprintf("the commit is %s beyond the end of the log at %d, and has no epoch to find out why: the log was cut or made anew, or the offset is another's", plural(int(p.CommittedOffset-p.HighWatermark), "record"), p.HighWatermark),
			"consumers reset by auto.offset.reset; commit with epochs (records or positions, not bare offsets)")
	case p.CommittedEpoch >= 0 && p.EpochAnswered >= 0 && p.EpochAnswered < p.CommittedEpoch:
		p.say(findHistory, fmt.Sprintf("the leader knows no epoch %d, and has records of epoch %d up to %d instead: if records of epoch %d were consumed, others stand in their place", p.CommittedEpoch, p.EpochAnswered, p.EpochEnd, p.CommittedEpoch),
			"compare what was consumed with the log below the commit; no client can tell by itself")
	default:
		return false
	}
	return true
}

// judgeProgress says how a commit that is right gets on.
func (p *partitionExplanation) judgeProgress(members bool) {
	behind := plural(int(p.Lag), "record") + " behind"
	if p.LagTime != nil && p.Lag > 0 {
		behind += ", the first of them " + inWords(time.Duration(*p.LagTime)) + " old"
	}
	switch {
	case p.UntilRetention != nil && time.Duration(*p.UntilRetention) < min(riskTime, time.Duration(max(0, p.retention.ms/2))*time.Millisecond):
		p.say(findAtRisk, fmt.Sprintf("%s; retention may delete from %d on in %s", behind, p.CommittedOffset, inWords(time.Duration(*p.UntilRetention))),
			fmt.Sprintf("stele topic alter %s --config retention.ms=... (now %d), or consume faster", p.Topic, p.retention.ms))
	case p.Lag > 0 && p.MemberID == "" && members:
		p.say(findNobody, behind+"; no member has this partition", "do the members subscribe to "+p.Topic+"? stele group describe shows what each has")
	case p.Lag > 0 && p.MemberID == "":
		p.say(findNobody, behind+"; no member consumes", "start its consumers")
	case p.Lag > 0 && p.StableLag == 0:
		p.say(findTransaction, fmt.Sprintf("%s for read_uncommitted; read_committed consumers have all that is decided, up to %d", behind, p.LastStableOffset), fmt.Sprintf("stele topic producers %s --partition %d --open shows whose transaction is open", p.Topic, p.Partition))
		if p.OpenTransactionFrom >= 0 {
			p.Verdict += fmt.Sprintf(": the transaction of producer id %d is open from %d on", p.OpenProducer, p.OpenTransactionFrom)
		}
	case p.Lag > 0:
		p.say(findBehind, behind, "")
		if p.ConsumeRate != nil && p.ProduceRate != nil {
			p.Verdict += fmt.Sprintf("; %.0f/s are written, %.0f/s consumed", *p.ProduceRate, *p.ConsumeRate)
			switch gain := *p.ConsumeRate - *p.ProduceRate; {
			case *p.ConsumeRate == 0:
				p.Verdict += ": it stands still"
				p.Advice = "is the consumer stuck at a record, or slow to commit? its log says"
			case gain > 0:
				p.Verdict += ": caught up in " + inWords(time.Duration(float64(p.Lag)/gain*float64(time.Second)))
			default:
				p.Verdict += ": it falls behind"
				p.Advice = "more members (there are as many as partitions at most), or less work for each record"
			}
		}
	case p.CommittedEpoch < 0:
		p.say(findUnchecked, "caught up; the commit has no epoch: a cut of the log below it would go unnoticed", "commit records or positions, not bare offsets")
	default:
		p.say(findFine, "caught up", "")
	}
	if p.CommittedEpoch < 0 && p.Finding != findUnchecked {
		p.Verdict += "; the commit has no epoch, and cannot be checked"
	}
}

// inWords is a duration in the largest unit that fits, with one more.
func inWords(d time.Duration) string {
	switch {
	case d < time.Second:
		return "under a second"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// showExplanation prints one look.
func (e *env) showExplanation(x explanation, again bool) error {
	if e.output == "json" {
		return e.json(x)
	}
	if again {
		e.say("")
	}
	e.say("%s  %s  protocol %s  coordinator %d  %s  %s", x.Group, orNone(x.State), orNone(x.Protocol), x.Coordinator, plural(len(x.Members), "member"), x.At.Format(time.TimeOnly))
	e.say("  %s", x.Verdict)
	t := table{header: []string{"  TOPIC", "PARTITION", "COMMITTED", "EPOCH", "LOG", "LAG", "LAG TIME", "RETENTION IN", "MEMBER", "FINDING"}}
	for _, p := range x.Partitions {
		log, lagTime, left := "-", "-", "-"
		if p.HighWatermark >= 0 {
			log = fmt.Sprintf("[%d, %d)", p.LogStart, p.HighWatermark)
		}
		if p.LagTime != nil && p.Lag > 0 {
			lagTime = inWords(time.Duration(*p.LagTime))
		}
		if p.UntilRetention != nil {
			left = inWords(time.Duration(*p.UntilRetention))
		}
		t.add("  "+p.Topic, p.Partition, orDash(p.CommittedOffset), orDash(int64(p.CommittedEpoch)), log, orDash(p.Lag), lagTime, left, orNone(p.MemberID), p.Finding)
	}
	if len(x.Partitions) > 0 {
		if err := e.show(nil, t); err != nil {
			return err
		}
	}
	for _, p := range x.Partitions {
		if p.Finding == findFine {
			continue
		}
		e.say("  %s-%d: %s", p.Topic, p.Partition, p.Verdict)
		if p.Advice != "" {
			e.say("    -> %s", p.Advice)
		}
	}
	return nil
}
