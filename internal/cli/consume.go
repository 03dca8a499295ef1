package cli

import (
	"bufio"
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
)

type consumeOptions struct {
	topics     []string
	group      string
	from       string
	partitions []int32
	stopAtEnd  bool
	count      int64
	format     string
	isolation  string
}

func newConsume(e *env) *cobra.Command {
	o := consumeOptions{}
	cmd := &cobra.Command{
		Use:   "consume TOPIC...",
		Short: "Read records and print them",
		Long: `Read records and print them, each on its own line.

--format takes text with these fields: %k key, %v value, %h headers, %t topic,
%p partition, %o offset, %e leader epoch, %T time, %% percent, \n and \t. The word
json prints one JSON object per record; --output json means the same.`,
		Example: `  stele consume greetings --from earliest --stop-at-end
  stele consume orders --group billing
  stele consume orders --from -1h --format '%p/%o@%e %k = %v'
  stele consume orders --partition 0 --from 1000 --count 10 --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.topics = args
			return e.consume(cmd, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.group, "group", "g", "", "consume as a member of this group, and commit what was printed")
	flags.StringVarP(&o.from, "from", "f", "", "earliest, latest, an offset, a time, or a duration back such as -1h (default: latest; with --stop-at-end: earliest; in a group: its commits, else earliest)")
	flags.Int32SliceVarP(&o.partitions, "partition", "p", nil, "only these partitions; not in a group")
	flags.BoolVarP(&o.stopAtEnd, "stop-at-end", "e", false, "stop at what is the end of the log now, instead of waiting for more")
	flags.Int64VarP(&o.count, "count", "n", 0, "stop after this many records (0: no limit)")
	flags.StringVar(&o.format, "format", "%v", "how to print a record")
	flags.StringVar(&o.isolation, "isolation", "read_committed", "read_committed or read_uncommitted")
	_ = cmd.RegisterFlagCompletionFunc("isolation", cobra.FixedCompletions([]string{"read_committed", "read_uncommitted"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions([]string{"earliest", "latest"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// where is the position to start from; in a group it holds for partitions without a commit.
func (o *consumeOptions) where(now time.Time) (position, error) {
	text := o.from
	if text == "" {
		if text = "latest"; o.group != "" || o.stopAtEnd {
			text = "earliest"
		}
	}
	at, err := parsePosition(text, now)
	if err == nil && at.kind == fromShift {
		err = usagef("--from %s: a shift needs a position to start from; use earliest, latest, an offset, a time or a duration back", text)
	}
	return at, err
}

func (o *consumeOptions) start(now time.Time) (kgo.Offset, error) {
	at, err := o.where(now)
	if err != nil {
		return kgo.Offset{}, err
	}
	switch at.kind {
	case fromEarliest:
		return kgo.NewOffset().AtStart(), nil
	case fromLatest:
		return kgo.NewOffset().AtEnd(), nil
	case fromOffset:
		return kgo.NewOffset().At(at.value), nil
	case fromTime:
		return kgo.NewOffset().AfterMilli(at.value), nil
	}
	return kgo.NewOffset().AtStart(), nil
}

func (o *consumeOptions) clientOptions(progress *progress) ([]kgo.Opt, error) {
	start, err := o.start(time.Now())
	if err != nil {
		return nil, err
	}
	// Control records are asked for because they move the position: the end of a log
	// may hold nothing else.
	options := []kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond), kgo.ConsumeResetOffset(start), kgo.KeepControlRecords()}
	switch o.isolation {
	case "read_committed":
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	case "read_uncommitted":
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadUncommitted()))
	default:
		return nil, usagef("--isolation %s: use read_committed or read_uncommitted", o.isolation)
	}
	switch {
	case o.group != "" && len(o.partitions) > 0:
		return nil, usagef("--group and --partition exclude each other: a group shares out the partitions itself")
	case o.group != "":
		options = append(options, kgo.ConsumeTopics(o.topics...), kgo.ConsumerGroup(o.group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
			kgo.AdjustFetchOffsetsFn(progress.adjust), kgo.OnPartitionsAssigned(progress.assigned), kgo.OnPartitionsRevoked(progress.revoked), kgo.OnPartitionsLost(progress.revoked))
	}
	return options, nil
}

// pollSlice is how long one poll waits before the ends are looked at again.
const pollSlice = 200 * time.Millisecond

func (e *env) consume(cmd *cobra.Command, o consumeOptions) error {
	if e.output == "json" {
		o.format = "json"
	}
	print, err := recordPrinter(o.format)
	if err != nil {
		return err
	}
	progress := newProgress(o.stopAtEnd)
	options, err := o.clientOptions(progress)
	if err != nil {
		return err
	}
	if o.count < 0 {
		return usagef("--count %d: a number of records, or 0 for no limit", o.count)
	}
	ctx, what := cmd.Context(), "consume "+strings.Join(o.topics, ", ")
	if o.stopAtEnd || o.group == "" {
		// The ends are those of before the group is joined, so that a consumer ends even
		// while producers are faster than it is.
		if err := e.lookUp(ctx, cmd, &o, progress); err != nil {
			return quiet(ctx, err)
		}
		if o.group == "" {
			options = append(options, kgo.ConsumePartitions(progress.begin()))
		}
	}
	if progress.done() {
		return nil
	}
	client, d, err := e.connect(cmd.Flags(), options...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance() // leaves the group
	ctx, cancel := d.guard(ctx)
	defer cancel()
	out := bufio.NewWriterSize(e.out, 64<<10)
	var printed int64
	for {
		slice, done := context.WithTimeout(ctx, pollSlice)
		fetches := client.PollFetches(slice)
		done()
		if cmd.Context().Err() != nil {
			return nil
		}
		if ctx.Err() != nil {
			return d.explain(failed(what, ctx.Err()))
		}
		if err := fetchError(fetches); err != nil {
			return d.explain(failed(what, err))
		}
		var last []*kgo.Record
		for records := fetches.RecordIter(); !records.Done() && (o.count == 0 || printed < o.count); {
			record := records.Next()
			if !progress.wants(record) {
				continue
			}
			last = append(last, record)
			if record.Attrs.IsControl() {
				continue
			}
			if err := print(out, record); err != nil {
				return err
			}
			printed++
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if err := o.commit(ctx, client, last); err != nil {
			return err
		}
		if len(last) == 0 && o.stopAtEnd {
			if err := o.passRest(ctx, client, progress); err != nil {
				return d.explain(err)
			}
		}
		if o.count > 0 && printed >= o.count || progress.done() {
			return nil
		}
		client.AllowRebalance()
	}
}

// quiet turns an error that is only the caller's wish to stop into none.
func quiet(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// commit records in the group what was printed, never what was only fetched.
func (o *consumeOptions) commit(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	if o.group == "" || len(records) == 0 {
		return nil
	}
	// What was printed is committed also when the caller has just interrupted us.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if err := client.CommitRecords(ctx, records...); err != nil {
		return failed("commit offsets of group "+o.group, err)
	}
	return nil
}

// lookUp finds where every partition begins and ends now, and where reading starts.
func (e *env) lookUp(ctx context.Context, cmd *cobra.Command, o *consumeOptions, progress *progress) error {
	return e.admin(ctx, cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
		listEnds := admin.ListEndOffsets
		if o.isolation == "read_committed" {
			listEnds = admin.ListCommittedOffsets
		}
		what := "look up the offsets of " + strings.Join(o.topics, ", ")
		starts, err := settledOffsets(ctx, admin.ListStartOffsets, o.topics...)
		if err != nil {
			return failed(what, err)
		}
		ends, err := settledOffsets(ctx, listEnds, o.topics...)
		if err != nil {
			return failed(what, err)
		}
		at, err := o.where(time.Now())
		if err != nil {
			return err
		}
		from := starts
		switch at.kind {
		case fromLatest:
			from = ends
		case fromTime:
			if from, err = admin.ListOffsetsAfterMilli(ctx, at.value, o.topics...); err != nil {
				return failed(what, err)
			}
		}
		seen := map[int32]bool{}
		var problem error
		beyond := at.kind == fromOffset
		furthest := int64(0)
		ends.Each(func(end kadm.ListedOffset) {
			start, _ := starts.Lookup(end.Topic, end.Partition)
			begin, _ := from.Lookup(end.Topic, end.Partition)
			if end.Partition >= 0 && len(o.partitions) > 0 && !slices.Contains(o.partitions, end.Partition) {
				return
			}
			for _, err := range []error{end.Err, start.Err, begin.Err} {
				if err != nil {
					problem = failed("look up the offsets of topic "+end.Topic, err)
					return
				}
			}
			seen[end.Partition] = true
			first := begin.Offset
			if at.kind == fromOffset {
				first = at.value
			}
			beyond, furthest = beyond && first > end.Offset, max(furthest, end.Offset)
			progress.bounds(topicPartition{end.Topic, end.Partition}, max(first, start.Offset), end.Offset)
		})
		for _, partition := range o.partitions {
			if problem == nil && !seen[partition] {
				problem = fmt.Errorf("consume %s: there is no partition %d; `stele topic describe` lists them", strings.Join(o.topics, ", "), partition)
			}
		}
		if problem == nil && beyond && o.group == "" {
			fmt.Fprintf(e.err, "note: --from %d is beyond the end: the next offset to be written is %d\n", at.value, furthest)
		}
		return problem
	})
}

func fetchError(fetches kgo.Fetches) error {
	var found error
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, kerr.UnknownTopicOrPartition) && found != nil:
		case errors.As(err, &loss):
			found = fmt.Errorf("%s-%d was truncated below the position: consumed up to %d, the log now continues at %d", topic, partition, loss.ConsumedTo, loss.ResetTo)
		default:
			found = err
		}
	})
	return found
}
