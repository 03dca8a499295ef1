package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/consumer"
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
json prints one JSON object per record; --output json means the same.

When a position is moved, because records were deleted by retention, cut by an
election that was not clean, or because the topic was made anew, a note on standard
error says from where, to where and why.`,
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

// settings are what the consumer is made with.
func (o *consumeOptions) settings(shared consumer.Options) (consumer.Options, error) {
	at, err := o.where(time.Now())
	if err != nil {
		return shared, err
	}
	shared.MaxPollRecords, shared.DisableAutoCommit, shared.Logger = 5000, true, slog.New(slog.DiscardHandler)
	switch at.kind {
	case fromEarliest:
		shared.Reset = consumer.Earliest
	case fromLatest:
		shared.Reset = consumer.Latest
	default:
		shared.Reset = consumer.None // mend goes where it says
	}
	switch o.isolation {
	case "read_committed":
		shared.Isolation = consumer.ReadCommitted
	case "read_uncommitted":
		shared.Isolation = consumer.ReadUncommitted
	default:
		return shared, usagef("--isolation %s: use read_committed or read_uncommitted", o.isolation)
	}
	switch {
	case o.group != "" && len(o.partitions) > 0:
		return shared, usagef("--group and --partition exclude each other: a group shares out the partitions itself")
	case o.group != "":
		shared.GroupID, shared.Topics = o.group, o.topics
	}
	return shared, nil
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
	shared, d, err := e.consumerOptions(cmd.Flags())
	if err != nil {
		return err
	}
	settings, err := o.settings(shared)
	if err != nil {
		return err
	}
	if o.count < 0 {
		return usagef("--count %d: a number of records, or 0 for no limit", o.count)
	}
	// The ends are those of before the group is joined, so that a consumer ends even while producers are faster than it is.
	ctx, progress := cmd.Context(), newProgress(o.stopAtEnd)
	if err := e.lookUp(ctx, cmd, &o, progress); err != nil {
		return quiet(ctx, err)
	}
	settings.OnAssigned = progress.assigned
	settings.OnReset = func(ev consumer.ResetEvent) {
		if ev.Cause != consumer.CauseSeek && ev.Cause != consumer.CauseNoCommit {
			fmt.Fprintf(e.err, "note: %s\n", ev)
		}
	}
	c, err := consumer.New(settings)
	if err != nil {
		return err
	}
	defer func() { // leaves the group
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		_ = c.Close(ctx)
	}()
	if o.group == "" {
		if err := progress.begin(c); err != nil {
			return err
		}
	}
	ctx, cancel := d.guard(ctx)
	defer cancel()
	r := &reading{o: &o, c: c, progress: progress, print: print, out: bufio.NewWriterSize(e.out, 64<<10)}
	err = r.run(ctx)
	switch {
	case cmd.Context().Err() != nil:
		return nil
	case err != nil && !errors.Is(err, errOutput):
		return d.explain(failed("consume "+strings.Join(o.topics, ", "), err))
	}
	return err
}

// reading is one consumer that prints.
type reading struct {
	o        *consumeOptions
	c        *consumer.Consumer
	progress *progress
	print    func(io.Writer, *kgo.Record) error
	out      *bufio.Writer
	printed  int64
}

// errOutput marks a failure to print.
var errOutput = errors.New("output")

// run prints until all that was asked for is, or ctx ends.
func (r *reading) run(ctx context.Context) error {
	for !r.progress.done(ctx, r.c) {
		slice, done := context.WithTimeout(ctx, pollSlice)
		fetch, err := r.c.Poll(slice)
		expired := slice.Err() != nil
		done()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && expired:
			continue
		case err != nil:
			if err := r.mend(ctx, err); err != nil {
				return err
			}
			continue
		}
		passed := map[consumer.TopicPartition]consumer.Position{}
		var shown kgo.Record
		for record := range fetch.Records() {
			if !r.progress.wants(record) {
				continue
			}
			show(&shown, record)
			if err := r.print(r.out, &shown); err != nil {
				return fmt.Errorf("%w: %w", errOutput, err)
			}
			passed[record.TopicPartition()] = record.Next()
			if r.printed++; r.o.count > 0 && r.printed >= r.o.count {
				break
			}
		}
		if err := r.out.Flush(); err != nil {
			return fmt.Errorf("%w: %w", errOutput, err)
		}
		if err := r.commit(ctx, passed); err != nil {
			return err
		}
		if r.o.count > 0 && r.printed >= r.o.count {
			return nil
		}
	}
	return nil
}

// mend goes on after an error of a partition, where --from says what to do.
func (r *reading) mend(ctx context.Context, err error) error {
	var none *consumer.NoOffsetError
	var out *consumer.OffsetOutOfRangeError
	switch {
	case errors.As(err, &none):
		at, wrong := r.o.where(time.Now())
		if wrong != nil {
			return wrong
		}
		if at.kind == fromOffset {
			return r.c.Seek(none.TopicPartition, consumer.Position{Offset: at.value})
		}
		found, err := r.c.OffsetsForTimes(ctx, map[consumer.TopicPartition]time.Time{none.TopicPartition: time.UnixMilli(at.value)})
		if err != nil {
			return err
		}
		if first, ok := found[none.TopicPartition]; ok {
			return r.c.Seek(none.TopicPartition, first.Position)
		}
		return r.c.SeekToEnd(none.TopicPartition)
	case errors.As(err, &out):
		return r.c.SeekToNearest(out.TopicPartition)
	}
	return err
}

// show is a record as the printers take it.
func show(k *kgo.Record, r *consumer.Record) {
	*k = kgo.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, LeaderEpoch: -1, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: k.Headers[:0]}
	if r.Timestamp.IsZero() {
		k.Timestamp = time.UnixMilli(-1)
	}
	if epoch, ok := r.LeaderEpoch.Get(); ok {
		k.LeaderEpoch = epoch
	}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
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
func (r *reading) commit(ctx context.Context, positions map[consumer.TopicPartition]consumer.Position) error {
	if r.o.group == "" || len(positions) == 0 {
		return nil
	}
	// What was printed is committed also when the caller has just interrupted us.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	return r.c.CommitPositions(ctx, positions)
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
