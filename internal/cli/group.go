package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func newGroup(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List, describe and delete consumer groups, and move their offsets",
		Example: `  stele group list
  stele group describe billing`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGroupList(e), newGroupDescribe(e), newGroupExplain(e), newGroupDelete(e), newGroupReset(e))
	return cmd
}

func newGroupList(e *env) *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List groups and their states",
		Example: "  stele group list\n  stele group list --state Stable --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := parseGroupStates(states)
			if err != nil {
				return err
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				groups, err := admin.ListGroups(ctx, wanted...)
				if err != nil {
					return failed("list groups", err)
				}
				type row struct {
					Group        string `json:"group"`
					State        string `json:"state"`
					ProtocolType string `json:"protocolType"`
					Coordinator  int32  `json:"coordinator"`
				}
				rows := []row{}
				t := table{header: []string{"GROUP", "STATE", "PROTOCOL TYPE", "COORDINATOR"}}
				for _, g := range groups.Sorted() {
					rows = append(rows, row{g.Group, g.State, g.ProtocolType, g.Coordinator})
					kind := g.ProtocolType
					if kind == "" {
						kind = "-"
					}
					t.add(g.Group, g.State, kind, g.Coordinator)
				}
				return e.show(rows, t)
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only groups in these states: "+strings.Join(groupStates, ", "))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(groupStates, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// groupStates are the states of every kind of group, as Kafka names them.
var groupStates = []string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling", "NotReady"}

// parseGroupStates reads states in any case: a broker lists no group for a name that
// it does not know.
func parseGroupStates(texts []string) ([]string, error) {
	var states []string
	for _, text := range texts {
		at := slices.IndexFunc(groupStates, func(state string) bool { return strings.EqualFold(state, text) })
		if at < 0 {
			return nil, usagef("--state %s: use %s", text, strings.Join(groupStates, ", "))
		}
		states = append(states, groupStates[at])
	}
	return states, nil
}

// groupOffsetView is a partition that the group committed for or that is assigned to a member. What is not known, or
// not committed, is -1.
type groupOffsetView struct {
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	CommittedOffset int64  `json:"committedOffset"`
	CommittedEpoch  int32  `json:"committedLeaderEpoch"`
	HighWatermark   int64  `json:"highWatermark"`
	Lag             int64  `json:"lag"`
	MemberID        string `json:"memberId,omitempty"`
	Metadata        string `json:"metadata,omitempty"`
}

type groupMemberView struct {
	MemberID   string             `json:"memberId"`
	InstanceID string             `json:"instanceId,omitempty"`
	ClientID   string             `json:"clientId"`
	Host       string             `json:"host"`
	Assigned   map[string][]int32 `json:"assigned"`
}

type groupView struct {
	Group       string            `json:"group"`
	State       string            `json:"state"`
	Protocol    string            `json:"protocol"`
	Coordinator int32             `json:"coordinator"`
	Members     []groupMemberView `json:"members"`
	Offsets     []groupOffsetView `json:"offsets"`
}

func newGroupDescribe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "describe GROUP...",
		Short:   "Show members, committed offsets with their leader epoch, and lag",
		Example: "  stele group describe billing\n  stele group describe billing --output json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, groups []string) error {
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				return describeEach(e, groups, e.showGroup, func(group string) (groupView, error) { return describeGroup(ctx, admin, group) })
			})
		},
	}
}

func describeGroup(ctx context.Context, admin *kadm.Client, group string) (groupView, error) {
	what := "describe group " + group
	x, owner, err := membersOf(ctx, admin, what, group)
	if err != nil {
		return groupView{}, err
	}
	committed, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return groupView{}, failed(what, err)
	}
	if x.State == "Dead" && len(committed) == 0 {
		return groupView{}, fmt.Errorf("%s: no such group; `stele group list` shows those that exist", what)
	}
	view := groupView{Group: group, State: x.State, Protocol: x.Protocol, Coordinator: x.Coordinator, Members: x.Members, Offsets: []groupOffsetView{}}
	offsets := committed.Sorted()
	for tp := range owner {
		if _, ok := committed.Lookup(tp.Topic, tp.Partition); !ok { // assigned, and nothing committed yet
			offsets = append(offsets, kadm.OffsetResponse{Offset: kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: -1, LeaderEpoch: -1}})
		}
	}
	slices.SortFunc(offsets, func(a, b kadm.OffsetResponse) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	var topics []string
	for _, offset := range offsets {
		if !slices.Contains(topics, offset.Topic) {
			topics = append(topics, offset.Topic)
		}
	}
	var ends kadm.ListedOffsets
	if len(topics) > 0 {
		if ends, err = settledOffsets(ctx, admin.ListEndOffsets, topics...); withLeaders(err) != nil {
			return groupView{}, failed(what, err)
		}
	}
	for _, offset := range offsets {
		row := groupOffsetView{
			Topic: offset.Topic, Partition: offset.Partition, CommittedOffset: offset.At, CommittedEpoch: offset.LeaderEpoch,
			HighWatermark: -1, Lag: -1, Metadata: offset.Metadata,
			MemberID: owner[topicPartition{Topic: offset.Topic, Partition: offset.Partition}],
		}
		if end, ok := ends.Lookup(offset.Topic, offset.Partition); ok && end.Err == nil {
			row.HighWatermark = end.Offset
			if offset.At >= 0 {
				row.Lag = max(end.Offset-offset.At, 0)
			}
		}
		view.Offsets = append(view.Offsets, row)
	}
	return view, nil
}

// classicMembers are the members of a group of the classic protocol, with what each has.
func classicMembers(g kadm.DescribedGroup) []groupMemberView {
	members := []groupMemberView{}
	for _, m := range g.Members {
		member := groupMemberView{MemberID: m.MemberID, ClientID: m.ClientID, Host: m.ClientHost, Assigned: map[string][]int32{}}
		if m.InstanceID != nil {
			member.InstanceID = *m.InstanceID
		}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				member.Assigned[topic.Topic] = topic.Partitions
			}
		}
		members = append(members, member)
	}
	return members
}

func (e *env) showGroup(view groupView) error {
	e.say("%s  %s  protocol %s  coordinator %d", view.Group, view.State, orNone(view.Protocol), view.Coordinator)
	if len(view.Members) > 0 {
		t := table{header: []string{"  MEMBER", "INSTANCE", "CLIENT", "HOST", "ASSIGNED"}}
		for _, m := range view.Members {
			var assigned []string
			for topic, partitions := range m.Assigned {
				assigned = append(assigned, fmt.Sprintf("%s:%s", topic, joinInts(partitions)))
			}
			slices.Sort(assigned)
			t.add("  "+m.MemberID, orNone(m.InstanceID), m.ClientID, m.Host, orNone(strings.Join(assigned, " ")))
		}
		if err := e.show(nil, t); err != nil {
			return err
		}
	}
	t := table{header: []string{"  TOPIC", "PARTITION", "COMMITTED", "EPOCH", "HIGH WATERMARK", "LAG", "MEMBER"}}
	for _, o := range view.Offsets {
		t.add("  "+o.Topic, o.Partition, orDash(o.CommittedOffset), orDash(int64(o.CommittedEpoch)), orDash(o.HighWatermark), orDash(o.Lag), orNone(o.MemberID))
	}
	return e.show(nil, t)
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func newGroupDelete(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "delete GROUP...",
		Short:   "Delete groups that have no members, with their offsets",
		Example: "  stele group delete billing",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, groups []string) error {
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				results, err := admin.DeleteGroups(ctx, groups...)
				if err != nil {
					return failed("delete groups", err)
				}
				var errs []error
				var deleted []string
				for _, group := range groups {
					if result := results[group]; result.Err != nil {
						errs = append(errs, failed("delete group "+group, result.Err))
					} else {
						deleted = append(deleted, group)
					}
				}
				if err := e.done("deleted", deleted...); err != nil {
					return err
				}
				return errors.Join(errs...)
			})
		},
	}
}

// resetTarget is where a reset moves the offsets of a group to.
type resetTarget struct {
	to      string
	topics  []string
	confirm bool
}

func newGroupReset(e *env) *cobra.Command {
	var target resetTarget
	cmd := &cobra.Command{
		Use:   "reset-offsets GROUP",
		Short: "Move the committed offsets of a group that has no members",
		Long: `Move the committed offsets of a group that has no members.

Without --execute nothing changes: the plan is printed. Offsets are committed with
the leader epoch of the record before them where the broker knows it, so that a
consumer can tell later whether the log was truncated below its position.

--to takes earliest, latest, an offset, a time (2026-01-31T10:00:00Z), a duration
back from now (-1h), or +n / -n offsets from the present position. What is before the
start or after the end of a log becomes its start or end.`,
		Example: `  stele group reset-offsets billing --topic orders --to earliest
  stele group reset-offsets billing --topic orders --to 2026-01-31T10:00:00Z --execute`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if target.to == "" || len(target.topics) == 0 {
				return usagef("group reset-offsets %s: say where: --topic TOPIC --to earliest|latest|OFFSET|TIME|+n|-n", args[0])
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				return e.resetOffsets(ctx, admin, args[0], target)
			})
		},
	}
	cmd.Flags().StringArrayVarP(&target.topics, "topic", "t", nil, "topic whose offsets move; may be repeated")
	cmd.Flags().StringVar(&target.to, "to", "", "earliest, latest, an offset, a time, a duration such as -1h, or +n / -n")
	cmd.Flags().BoolVar(&target.confirm, "execute", false, "do it; without this the plan is only shown")
	return cmd
}

func (e *env) resetOffsets(ctx context.Context, admin *kadm.Client, group string, target resetTarget) error {
	what := "reset offsets of group " + group
	x, _, err := membersOf(ctx, admin, what, group)
	if err != nil {
		return err
	}
	if len(x.Members) > 0 {
		return fmt.Errorf("%s: the group is %s with %d members; stop its consumers first", what, x.State, len(x.Members))
	}
	committed, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return failed(what, err)
	}
	starts, err := settledOffsets(ctx, admin.ListStartOffsets, target.topics...)
	if err != nil {
		return failed(what, err)
	}
	ends, err := settledOffsets(ctx, admin.ListEndOffsets, target.topics...)
	if err != nil {
		return failed(what, err)
	}
	wanted, err := targetOffsets(ctx, admin, target, committed, starts, ends)
	if err != nil {
		return err
	}
	type row struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		From      int64  `json:"from"`
		To        int64  `json:"to"`
		Epoch     int32  `json:"leaderEpoch"`
	}
	rows := []row{}
	t := table{header: []string{"TOPIC", "PARTITION", "FROM", "TO", "EPOCH"}}
	commit := kadm.Offsets{}
	for _, end := range ends.Offsets().Sorted() {
		at, ok := wanted[topicPartition{Topic: end.Topic, Partition: end.Partition}]
		if !ok {
			continue
		}
		from := int64(-1)
		if old, ok := committed.Lookup(end.Topic, end.Partition); ok {
			from = old.At
		}
		rows = append(rows, row{end.Topic, end.Partition, from, at.Offset, at.LeaderEpoch})
		t.add(end.Topic, end.Partition, orDash(from), at.Offset, orDash(int64(at.LeaderEpoch)))
		commit.Add(kadm.Offset{Topic: end.Topic, Partition: end.Partition, At: at.Offset, LeaderEpoch: at.LeaderEpoch})
	}
	if target.confirm {
		if err := admin.CommitAllOffsets(ctx, group, commit); err != nil {
			return failed(what, err)
		}
	}
	if err := e.show(rows, t); err != nil {
		return err
	}
	if len(committed) == 0 && x.State == "Dead" {
		text := "note: there is no group %s yet; --execute makes it\n"
		if target.confirm {
			text = "note: there was no group %s; it was made\n"
		}
		fmt.Fprintf(e.err, text, group)
	}
	if !target.confirm {
		e.say("nothing was changed; add --execute to do it")
	}
	return nil
}

type offsetTarget struct {
	Offset      int64
	LeaderEpoch int32
}

// targetOffsets turns the wish into an offset per partition, clamped to what the
// log holds.
func targetOffsets(ctx context.Context, admin *kadm.Client, target resetTarget, committed kadm.OffsetResponses, starts, ends kadm.ListedOffsets) (map[topicPartition]offsetTarget, error) {
	listed, shift, fixed := ends, int64(0), int64(-1)
	relative := false
	switch position, err := parsePosition(target.to, time.Now()); {
	case err != nil:
		return nil, err
	case position.kind == fromEarliest:
		listed = starts
	case position.kind == fromLatest:
	case position.kind == fromOffset:
		fixed = position.value
	case position.kind == fromTime:
		if listed, err = admin.ListOffsetsAfterMilli(ctx, position.value, target.topics...); err != nil {
			return nil, failed("look up the time "+target.to, err)
		}
	case position.kind == fromShift:
		relative, shift = true, position.value
	}
	wanted := map[topicPartition]offsetTarget{}
	var problem error
	ends.Each(func(end kadm.ListedOffset) {
		if end.Err != nil {
			problem = failed("look up offsets of topic "+end.Topic, end.Err)
			return
		}
		key := topicPartition{Topic: end.Topic, Partition: end.Partition}
		start, _ := starts.Lookup(end.Topic, end.Partition)
		at := offsetTarget{Offset: end.Offset, LeaderEpoch: -1}
		switch {
		case relative:
			old, ok := committed.Lookup(end.Topic, end.Partition)
			if !ok || old.At < 0 {
				return
			}
			at.Offset = old.At + shift
		case fixed >= 0:
			at.Offset = fixed
		default:
			if found, ok := listed.Lookup(end.Topic, end.Partition); ok && found.Offset >= 0 {
				at = offsetTarget{Offset: found.Offset, LeaderEpoch: found.LeaderEpoch}
			}
		}
		switch {
		case at.Offset <= start.Offset:
			at = offsetTarget{Offset: start.Offset, LeaderEpoch: start.LeaderEpoch}
		case at.Offset >= end.Offset:
			at = offsetTarget{Offset: end.Offset, LeaderEpoch: end.LeaderEpoch}
		}
		wanted[key] = at
	})
	return wanted, problem
}

// position is a place in a log as a person writes it.
type position struct {
	kind  positionKind
	value int64
}

type positionKind int

const (
	fromEarliest positionKind = iota
	fromLatest
	fromOffset
	fromTime  // value: milliseconds since the epoch
	fromShift // value: offsets to move by
)

// parsePosition reads earliest, latest, an offset, a time or a duration back from now.
func parsePosition(text string, now time.Time) (position, error) {
	switch text {
	case "earliest", "beginning", "start":
		return position{kind: fromEarliest}, nil
	case "latest", "end":
		return position{kind: fromLatest}, nil
	}
	if number, err := strconv.ParseInt(text, 10, 64); err == nil {
		if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
			return position{kind: fromShift, value: number}, nil
		}
		return position{kind: fromOffset, value: number}, nil
	}
	if back, err := time.ParseDuration(text); err == nil && back <= 0 {
		return position{kind: fromTime, value: now.Add(back).UnixMilli()}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return position{kind: fromTime, value: at.UnixMilli()}, nil
		}
	}
	return position{}, usagef("%q is no position: write earliest, latest, an offset, a time such as 2026-01-31T10:00:00Z, or a duration back such as -1h", text)
}
