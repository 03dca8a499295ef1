package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/server"
)

func newTxn(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "txn",
		Short: "List and describe transactions, and find and abort those that hold consumers up",
		Long: `List and describe transactions, and find and abort those that hold consumers up.

Consumers that read committed records see nothing from the first offset of the
earliest open transaction of a partition on (its last stable offset).`,
		Example: `  stele txn list --state Ongoing
  stele txn find-hanging --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTxnList(e), newTxnDescribe(e), newTxnFindHanging(e), newTxnAbort(e))
	return cmd
}

// txnAdmin is both clients that commands about transactions need.
type txnAdmin struct {
	*kadm.Client
	client *kgo.Client
}

func (e *env) txnAdmin(cmd *cobra.Command, work func(ctx context.Context, a txnAdmin) error) error {
	client, d, err := e.connect(cmd.Flags())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := d.guard(cmd.Context())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, 2*requestTimeout)
	defer stop()
	if err := work(ctx, txnAdmin{kadm.NewClient(client), client}); err != nil {
		return d.explain(err)
	}
	return nil
}

// txnStates are the states of transactional ids, as Kafka names them.
var txnStates = []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}

// listedTxn is one transactional id in a list.
type listedTxn struct {
	ID          string `json:"transactionalId"`
	State       string `json:"state"`
	ProducerID  int64  `json:"producerId"`
	Coordinator int32  `json:"coordinator"`
}

func newTxnList(e *env) *cobra.Command {
	var states []string
	var producers []int64
	var longer time.Duration
	var pattern string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List transactional ids and their states",
		Example: "  stele txn list\n  stele txn list --state Ongoing --longer-than 1m --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := kmsg.NewPtrListTransactionsRequest()
			req.ProducerIDFilters = producers
			for _, text := range states {
				at := slices.IndexFunc(txnStates, func(state string) bool { return strings.EqualFold(state, text) })
				if at < 0 {
					return usagef("--state %s: use %s", text, strings.Join(txnStates, ", "))
				}
				req.StateFilters = append(req.StateFilters, txnStates[at])
			}
			if longer > 0 {
				req.DurationFilterMillis = longer.Milliseconds()
			}
			if pattern != "" {
				req.TransactionalIDPattern = &pattern
			}
			return e.txnAdmin(cmd, func(ctx context.Context, a txnAdmin) error {
				rows, err := a.list(ctx, req)
				if err != nil {
					return err
				}
				t := table{header: []string{"TRANSACTIONAL ID", "STATE", "PRODUCER", "COORDINATOR"}}
				for _, r := range rows {
					t.add(r.ID, r.State, r.ProducerID, r.Coordinator)
				}
				return e.show(rows, t)
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only ids in these states: "+strings.Join(txnStates, ", "))
	cmd.Flags().Int64SliceVar(&producers, "producer-id", nil, "only ids of these producers")
	cmd.Flags().DurationVar(&longer, "longer-than", 0, "only transactions that are open for longer, such as 1m")
	cmd.Flags().StringVar(&pattern, "pattern", "", "only ids that match this regular expression as a whole")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(txnStates, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// list asks every broker: each knows of those that it coordinates.
func (a txnAdmin) list(ctx context.Context, req *kmsg.ListTransactionsRequest) ([]listedTxn, error) {
	const what = "list transactions"
	rows := []listedTxn{}
	for _, shard := range a.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, failed(what, shard.Err)
		}
		resp := shard.Resp.(*kmsg.ListTransactionsResponse)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return nil, failed(what, err)
		}
		for _, s := range resp.TransactionStates {
			rows = append(rows, listedTxn{s.TransactionalID, s.TransactionState, s.ProducerID, shard.Meta.NodeID})
		}
	}
	slices.SortFunc(rows, func(a, b listedTxn) int { return strings.Compare(a.ID, b.ID) })
	return rows, nil
}

// txnView is one transactional id. -1 and "" stand for what is not known.
type txnView struct {
	ID            string             `json:"transactionalId"`
	State         string             `json:"state"`
	ProducerID    int64              `json:"producerId"`
	ProducerEpoch int16              `json:"producerEpoch"`
	TimeoutMs     int32              `json:"timeoutMs"`
	Start         int64              `json:"startTimestamp"` // ms
	AgeMs         int64              `json:"ageMs"`          // of an open transaction
	Coordinator   int32              `json:"coordinator"`
	ClientID      string             `json:"clientId"`
	ClientHost    string             `json:"clientHost"`
	Partitions    map[string][]int32 `json:"partitions"`
}

func (v *txnView) open() bool {
	return v.State == "Ongoing" || v.State == "PrepareCommit" || v.State == "PrepareAbort"
}

func (v *txnView) holds(tp topicPartition) bool {
	return v.open() && slices.Contains(v.Partitions[tp.Topic], tp.Partition)
}

func newTxnDescribe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "describe ID...",
		Short: "Show a transaction: its producer, client and host, age and partitions",
		Long: `Show a transaction: its producer, client and host, age and partitions.

The client is that which last spoke to the coordinator, "-" after the coordinator
has moved to another node and until it is heard of there, and with coordinators that
are not Stele's.`,
		Example: "  stele txn describe billing-1\n  stele txn describe billing-1 --output json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return e.txnAdmin(cmd, func(ctx context.Context, a txnAdmin) error {
				return describeEach(e, ids, e.showTxn, func(id string) (txnView, error) { return a.describe(ctx, id) })
			})
		},
	}
}

func (a txnAdmin) describe(ctx context.Context, id string) (txnView, error) {
	what := "describe transaction " + id
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	for _, shard := range a.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return txnView{}, failed(what, shard.Err)
		}
		for _, s := range shard.Resp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			if s.TransactionalID != id {
				continue
			}
			if err := kerr.ErrorForCode(s.ErrorCode); err != nil {
				return txnView{}, failed(what, err)
			}
			v := txnView{ID: id, State: s.State, ProducerID: s.ProducerID, ProducerEpoch: s.ProducerEpoch, TimeoutMs: s.TimeoutMillis, Start: s.StartTimestamp, AgeMs: -1,
				Coordinator: shard.Meta.NodeID, Partitions: map[string][]int32{}}
			client := server.TransactionClient(&s)
			v.ClientID, v.ClientHost = client.ID, client.Host
			for _, t := range s.Topics {
				v.Partitions[t.Topic] = t.Partitions
			}
			if v.open() && v.Start >= 0 {
				v.AgeMs = max(time.Now().UnixMilli()-v.Start, 0)
			}
			return v, nil
		}
	}
	return txnView{}, failed(what, kerr.TransactionalIDNotFound)
}

func (e *env) showTxn(v txnView) error {
	e.say("%s  %s  coordinator %d", v.ID, v.State, v.Coordinator)
	e.say("  producer   %d, epoch %d", v.ProducerID, v.ProducerEpoch)
	e.say("  client     %s at %s", orNone(v.ClientID), orNone(v.ClientHost))
	e.say("  open for   %s of %s", age(v.AgeMs), time.Duration(v.TimeoutMs)*time.Millisecond)
	t := table{header: []string{"  TOPIC", "PARTITIONS"}}
	var topics []string
	for topic := range v.Partitions {
		topics = append(topics, topic)
	}
	slices.Sort(topics)
	for _, topic := range topics {
		t.add("  "+topic, joinInts(v.Partitions[topic]))
	}
	return e.show(nil, t)
}

// age is a time for people.
func age(ms int64) string {
	if ms < 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).Truncate(time.Second).String()
}

// heldView is an open transaction in one partition, and who is behind it.
type heldView struct {
	Topic            string `json:"topic"`
	Partition        int32  `json:"partition"`
	StartOffset      int64  `json:"startOffset"` // of the transaction; the partition's last stable offset, if it is the first
	ProducerID       int64  `json:"producerId"`
	ProducerEpoch    int16  `json:"producerEpoch"`
	CoordinatorEpoch int32  `json:"coordinatorEpoch"`
	AgeMs            int64  `json:"ageMs"` // since it began, or, if nobody knows when, since it wrote last
	ID               string `json:"transactionalId"`
	State            string `json:"state"`
	ClientID         string `json:"clientId"`
	ClientHost       string `json:"clientHost"`
	// Hanging: its coordinator will never end it, since it does not know of it (any more).
	Hanging bool `json:"hanging"`
}

// longestTransaction is how long a transaction may be open, unless the brokers' transaction.max.timeout.ms is set.
const longestTransaction = 15 * time.Minute

func newTxnFindHanging(e *env) *cobra.Command {
	var topics []string
	var atLeast time.Duration
	var all bool
	cmd := &cobra.Command{
		Use:   "find-hanging",
		Short: "Find open transactions that nobody will end, or with --all any that hold consumers up",
		Long: `Find open transactions that nobody will end, or with --all any that hold consumers up.

A transaction hangs when it has been open in a partition for longer than any may be
(--older-than) and its coordinator does not know of it there: such are left behind by
old clients and brokers, and hold the last stable offset back for ever. Each is shown
with the producer behind it and, if its coordinator knows, the client and its host.`,
		Example: `  stele txn find-hanging
  stele txn find-hanging --all --topic orders --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.txnAdmin(cmd, func(ctx context.Context, a txnAdmin) error {
				rows, err := a.held(ctx, topics, atLeast)
				if err != nil {
					return err
				}
				if !all {
					rows = slices.DeleteFunc(rows, func(r heldView) bool { return !r.Hanging })
				}
				t := table{header: []string{"TOPIC", "PARTITION", "FROM OFFSET", "PRODUCER", "EPOCH", "AGE", "TRANSACTIONAL ID", "STATE", "CLIENT", "HOST", "HANGING"}}
				for _, r := range rows {
					t.add(r.Topic, r.Partition, r.StartOffset, r.ProducerID, r.ProducerEpoch, age(r.AgeMs), orNone(r.ID), orNone(r.State), orNone(r.ClientID), orNone(r.ClientHost), r.Hanging)
				}
				return e.show(rows, t)
			})
		},
	}
	cmd.Flags().StringArrayVarP(&topics, "topic", "t", nil, "only in this topic; may be repeated")
	cmd.Flags().DurationVar(&atLeast, "older-than", longestTransaction, "how long no transaction may be open: the brokers' transaction.max.timeout.ms")
	cmd.Flags().BoolVar(&all, "all", false, "also those that are open and will end")
	return cmd
}

// held are the open transactions of topics, all of them if none is named, with what their coordinators know.
func (a txnAdmin) held(ctx context.Context, topics []string, atLeast time.Duration) ([]heldView, error) {
	const what = "find hanging transactions"
	details, err := a.ListTopicsWithInternal(ctx, topics...)
	if err != nil {
		return nil, failed(what, err)
	}
	var asked kadm.TopicsSet
	for _, topic := range details.Sorted() {
		if topic.Err != nil {
			return nil, failed(what+" in "+topic.Topic, topic.Err)
		}
		asked.Add(topic.Topic, topic.Partitions.Numbers()...)
	}
	rows := []heldView{}
	if len(asked) == 0 {
		return rows, nil
	}
	described, err := a.DescribeProducers(ctx, asked)
	if err != nil {
		return nil, failed(what, err)
	}
	for _, p := range described.SortedPartitions() {
		if p.Err != nil {
			return nil, failed(fmt.Sprintf("%s in %s-%d", what, p.Topic, p.Partition), p.Err, p.ErrMessage)
		}
		for _, d := range p.ActiveProducers.Sorted() {
			if d.CurrentTxnStartOffset >= 0 {
				rows = append(rows, heldView{Topic: p.Topic, Partition: p.Partition, StartOffset: d.CurrentTxnStartOffset, ProducerID: d.ProducerID, ProducerEpoch: d.ProducerEpoch,
					CoordinatorEpoch: d.CoordinatorEpoch, AgeMs: max(time.Now().UnixMilli()-d.LastTimestamp, 0)})
			}
		}
	}
	return rows, a.owners(ctx, rows, atLeast)
}

// owners fills in who is behind open transactions.
func (a txnAdmin) owners(ctx context.Context, rows []heldView, atLeast time.Duration) error {
	if len(rows) == 0 {
		return nil
	}
	req := kmsg.NewPtrListTransactionsRequest()
	for _, r := range rows {
		if !slices.Contains(req.ProducerIDFilters, r.ProducerID) {
			req.ProducerIDFilters = append(req.ProducerIDFilters, r.ProducerID)
		}
	}
	listed, err := a.list(ctx, req)
	if err != nil {
		return err
	}
	views := map[int64]txnView{}
	for _, one := range listed {
		view, err := a.describe(ctx, one.ID)
		if errors.Is(err, kerr.TransactionalIDNotFound) {
			continue // it was forgotten just now
		}
		if err != nil {
			return err
		}
		views[one.ProducerID] = view
	}
	for i := range rows {
		r := &rows[i]
		view, known := views[r.ProducerID]
		if known {
			r.ID, r.State, r.ClientID, r.ClientHost = view.ID, view.State, view.ClientID, view.ClientHost
			if view.holds(topicPartition{Topic: r.Topic, Partition: r.Partition}) {
				if view.AgeMs >= 0 {
					r.AgeMs = view.AgeMs
				}
				continue
			}
		}
		r.Hanging = r.AgeMs >= atLeast.Milliseconds()
	}
	return nil
}

func newTxnAbort(e *env) *cobra.Command {
	var producer int64
	var force bool
	cmd := &cobra.Command{
		Use:   "abort TOPIC PARTITION",
		Short: "Abort a transaction that hangs in a partition",
		Long: `Abort a transaction that hangs in a partition, so that consumers go on.

The partition's leader is told, not the coordinator: a transaction that the
coordinator still has open there is refused, unless --force is given. Its producer
would only learn of the abort by an error, and partitions that are committed later
would not fit to it. One that is younger than 15 minutes is refused too, even if no
coordinator lists it: a coordinator that is just moving lists nothing.`,
		Example: "  stele txn find-hanging\n  stele txn abort orders 3 --producer-id 4001",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			partition, err := parsePartition(args[1])
			if err != nil {
				return err
			}
			if producer < 0 {
				return usagef("txn abort: say which transaction: --producer-id N; `stele txn find-hanging --all` shows them")
			}
			return e.txnAdmin(cmd, func(ctx context.Context, a txnAdmin) error {
				if err := a.abort(ctx, topicPartition{Topic: args[0], Partition: partition}, producer, force); err != nil {
					return err
				}
				return e.done("aborted", fmt.Sprintf("transaction of producer %d in %s-%d", producer, args[0], partition))
			})
		},
	}
	cmd.Flags().Int64Var(&producer, "producer-id", -1, "the producer whose transaction hangs")
	cmd.Flags().BoolVar(&force, "force", false, "abort it although its coordinator has it open, or it is young")
	return cmd
}

func parsePartition(text string) (int32, error) {
	var partition int32
	if n, err := fmt.Sscanf(text, "%d", &partition); err != nil || n != 1 || partition < 0 || fmt.Sprint(partition) != text {
		return 0, usagef("%s: a partition is a number from 0 on", text)
	}
	return partition, nil
}

func (a txnAdmin) abort(ctx context.Context, tp topicPartition, producer int64, force bool) error {
	what := fmt.Sprintf("abort transaction of producer %d in %s-%d", producer, tp.Topic, tp.Partition)
	rows, err := a.held(ctx, []string{tp.Topic}, 0)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(rows, func(r heldView) bool { return r.Partition == tp.Partition && r.ProducerID == producer })
	if at < 0 {
		return fmt.Errorf("%s: it has no open transaction there; `stele txn find-hanging --all` shows those that are", what)
	}
	row := rows[at]
	switch {
	case force:
	case !row.Hanging:
		return fmt.Errorf("%s: its coordinator has it open, as %s in state %s, of client %s at %s: end it there, or add --force", what, row.ID, row.State, orNone(row.ClientID), orNone(row.ClientHost))
	case row.AgeMs < longestTransaction.Milliseconds(): // its coordinator may be on its way to another node, and list nothing
		return fmt.Errorf("%s: no coordinator lists it, but it is only %s old and may still end by itself: wait until it is %s old, or add --force", what, age(row.AgeMs), age(longestTransaction.Milliseconds()))
	}
	marker := kadm.TxnMarkers{ProducerID: producer, ProducerEpoch: row.ProducerEpoch, CoordinatorEpoch: max(row.CoordinatorEpoch, 0)}
	marker.Topics.Add(tp.Topic, tp.Partition)
	written, err := a.WriteTxnMarkers(ctx, marker)
	if err != nil {
		return failed(what, err)
	}
	for _, p := range written.SortedPartitions() {
		if p.Err != nil {
			return failed(what, p.Err)
		}
	}
	return nil
}
