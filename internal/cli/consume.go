package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

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
	flags.StringVarP(&o.from, "from", "f", "", "earliest, latest, an offset, a time, or a duration back such as -1h (default: latest; in a group: its commits, else earliest)")
	flags.Int32SliceVarP(&o.partitions, "partition", "p", nil, "only these partitions; not in a group")
	flags.BoolVarP(&o.stopAtEnd, "stop-at-end", "e", false, "stop at what is the end of the log now, instead of waiting for more")
	flags.Int64VarP(&o.count, "count", "n", 0, "stop after this many records (0: no limit)")
	flags.StringVar(&o.format, "format", "%v", "how to print a record")
	flags.StringVar(&o.isolation, "isolation", "read_committed", "read_committed or read_uncommitted")
	_ = cmd.RegisterFlagCompletionFunc("isolation", cobra.FixedCompletions([]string{"read_committed", "read_uncommitted"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions([]string{"earliest", "latest"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *consumeOptions) start(now time.Time) (kgo.Offset, error) {
	text := o.from
	if text == "" {
		if text = "latest"; o.group != "" || o.stopAtEnd {
			text = "earliest"
		}
	}
	at, err := parsePosition(text, now)
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
	return kgo.Offset{}, usagef("--from %s: a shift needs a position to start from; use earliest, latest, an offset, a time or a duration back", text)
}

func (o *consumeOptions) clientOptions() ([]kgo.Opt, error) {
	start, err := o.start(time.Now())
	if err != nil {
		return nil, err
	}
	options := []kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond), kgo.ConsumeResetOffset(start)}
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
		options = append(options, kgo.ConsumeTopics(o.topics...), kgo.ConsumerGroup(o.group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	case len(o.partitions) > 0:
		chosen := map[string]map[int32]kgo.Offset{}
		for _, topic := range o.topics {
			chosen[topic] = map[int32]kgo.Offset{}
			for _, partition := range o.partitions {
				chosen[topic][partition] = start
			}
		}
		options = append(options, kgo.ConsumePartitions(chosen))
	default:
		options = append(options, kgo.ConsumeTopics(o.topics...))
	}
	return options, nil
}

func (e *env) consume(cmd *cobra.Command, o consumeOptions) error {
	if e.output == "json" {
		o.format = "json"
	}
	print, err := recordPrinter(o.format)
	if err != nil {
		return err
	}
	options, err := o.clientOptions()
	if err != nil {
		return err
	}
	client, d, err := e.connect(cmd.Flags(), options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if o.group != "" {
		defer client.LeaveGroup()
	}
	var ends map[topicPartition]int64
	if ends, err = o.endOffsets(cmd.Context(), client); err != nil {
		return d.explain(err)
	}
	ctx := cmd.Context()
	if o.stopAtEnd && len(ends) == 0 {
		return nil
	}
	reached := map[topicPartition]bool{}
	for printed := int64(0); ; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetchError(fetches); err != nil {
			return d.explain(failed("consume "+strings.Join(o.topics, ", "), err))
		}
		var last []*kgo.Record
		for records := fetches.RecordIter(); !records.Done(); {
			record := records.Next()
			at := topicPartition{record.Topic, record.Partition}
			if end, bounded := ends[at]; o.stopAtEnd && (!bounded || record.Offset >= end) {
				reached[at] = true
				continue
			}
			if err := print(e.out, record); err != nil {
				return err
			}
			last = append(last, record)
			if o.stopAtEnd && record.Offset+1 >= ends[at] {
				reached[at] = true
			}
			if printed++; o.count > 0 && printed >= o.count {
				return o.commit(ctx, client, last)
			}
		}
		if err := o.commit(ctx, client, last); err != nil {
			return err
		}
		client.AllowRebalance()
		if o.stopAtEnd && o.allReached(client, ends, reached) {
			return nil
		}
	}
}

// commit records in the group what was printed, never what was only fetched.
func (o *consumeOptions) commit(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	if o.group == "" || len(records) == 0 {
		return nil
	}
	if err := client.CommitRecords(ctx, records...); err != nil {
		return failed("commit offsets of group "+o.group, err)
	}
	return nil
}

// allReached tells whether every partition stands at the end it had at the start.
// A partition whose tail holds no record to print (control batches, holes left by
// compaction) is judged by the client's own position.
func (o *consumeOptions) allReached(client *kgo.Client, ends map[topicPartition]int64, reached map[topicPartition]bool) bool {
	positions := client.UncommittedOffsets()
	for at, end := range ends {
		if reached[at] {
			continue
		}
		if position, ok := positions[at.Topic][at.Partition]; !ok || position.Offset < end {
			return false
		}
	}
	return true
}

// endOffsets are the ends that --stop-at-end stops at; empty partitions are left out.
func (o *consumeOptions) endOffsets(ctx context.Context, client *kgo.Client) (map[topicPartition]int64, error) {
	if !o.stopAtEnd {
		return nil, nil
	}
	admin := kadm.NewClient(client)
	listEnds := admin.ListEndOffsets
	if o.isolation == "read_committed" {
		listEnds = admin.ListCommittedOffsets
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := listEnds(ctx, o.topics...)
	if err != nil {
		return nil, failed("look up the end of "+strings.Join(o.topics, ", "), err)
	}
	starts, err := admin.ListStartOffsets(ctx, o.topics...)
	if err != nil {
		return nil, failed("look up the start of "+strings.Join(o.topics, ", "), err)
	}
	from, err := o.start(time.Now())
	if err != nil {
		return nil, err
	}
	ends := map[topicPartition]int64{}
	var problem error
	found.Each(func(end kadm.ListedOffset) {
		if end.Err != nil {
			problem = failed("look up the end of topic "+end.Topic, end.Err)
			return
		}
		start, _ := starts.Lookup(end.Topic, end.Partition)
		wanted := len(o.partitions) == 0
		for _, p := range o.partitions {
			wanted = wanted || p == end.Partition
		}
		if wanted && end.Offset > start.Offset && from.EpochOffset().Offset < end.Offset {
			ends[topicPartition{end.Topic, end.Partition}] = end.Offset
		}
	})
	return ends, problem
}

func fetchError(fetches kgo.Fetches) error {
	var found error
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, kerr.UnknownTopicOrPartition) && found != nil:
		case errors.As(err, &loss):
			found = fmt.Errorf("%s-%d was truncated below the position: consumed up to %d, the log now continues at %d", topic, partition, loss.ConsumedTo, loss.ResetTo)
		default:
			found = err
		}
	})
	return found
}

// recordPrinter compiles a format.
func recordPrinter(format string) (func(io.Writer, *kgo.Record) error, error) {
	if format == "json" {
		return printJSON, nil
	}
	type piece func(*strings.Builder, *kgo.Record)
	var pieces []piece
	literal := func(text string) {
		pieces = append(pieces, func(b *strings.Builder, _ *kgo.Record) { b.WriteString(text) })
	}
	fields := map[byte]piece{
		'k': func(b *strings.Builder, r *kgo.Record) { writeBytes(b, r.Key) },
		'v': func(b *strings.Builder, r *kgo.Record) { writeBytes(b, r.Value) },
		't': func(b *strings.Builder, r *kgo.Record) { b.WriteString(r.Topic) },
		'p': func(b *strings.Builder, r *kgo.Record) { fmt.Fprint(b, r.Partition) },
		'o': func(b *strings.Builder, r *kgo.Record) { fmt.Fprint(b, r.Offset) },
		'e': func(b *strings.Builder, r *kgo.Record) { b.WriteString(orDash(int64(r.LeaderEpoch))) },
		'T': func(b *strings.Builder, r *kgo.Record) { b.WriteString(r.Timestamp.UTC().Format(time.RFC3339Nano)) },
		'h': func(b *strings.Builder, r *kgo.Record) {
			for i, h := range r.Headers {
				if i > 0 {
					b.WriteByte(',')
				}
				b.WriteString(h.Key + "=")
				writeBytes(b, h.Value)
			}
		},
		'%': func(b *strings.Builder, _ *kgo.Record) { b.WriteByte('%') },
	}
	for i := 0; i < len(format); i++ {
		switch {
		case format[i] == '%' && i+1 < len(format):
			i++
			field, ok := fields[format[i]]
			if !ok {
				return nil, usagef("--format %q: %%%c is no field; use %%k %%v %%h %%t %%p %%o %%e %%T %%%%", format, format[i])
			}
			pieces = append(pieces, field)
		case format[i] == '\\' && i+1 < len(format) && strings.IndexByte("nt", format[i+1]) >= 0:
			i++
			literal(map[byte]string{'n': "\n", 't': "\t"}[format[i]])
		default:
			literal(format[i : i+1])
		}
	}
	return func(w io.Writer, r *kgo.Record) error {
		var b strings.Builder
		for _, p := range pieces {
			p(&b, r)
		}
		b.WriteByte('\n')
		_, err := io.WriteString(w, b.String())
		return err
	}, nil
}

func writeBytes(b *strings.Builder, data []byte) {
	if data == nil {
		b.WriteString("null")
		return
	}
	b.Write(data)
}

// jsonRecord is one record for scripts. Bytes that are not UTF-8 are given in
// base64, in a field that says so.
type jsonRecord struct {
	Topic       string       `json:"topic"`
	Partition   int32        `json:"partition"`
	Offset      int64        `json:"offset"`
	LeaderEpoch int32        `json:"leaderEpoch"`
	Timestamp   int64        `json:"timestamp"`
	Key         *string      `json:"key"`
	KeyBase64   string       `json:"keyBase64,omitempty"`
	Value       *string      `json:"value"`
	ValueBase64 string       `json:"valueBase64,omitempty"`
	Headers     []jsonHeader `json:"headers,omitempty"`
}

type jsonHeader struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 string  `json:"valueBase64,omitempty"`
}

func printJSON(w io.Writer, r *kgo.Record) error {
	record := jsonRecord{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Timestamp: r.Timestamp.UnixMilli()}
	record.Key, record.KeyBase64 = jsonText(r.Key)
	record.Value, record.ValueBase64 = jsonText(r.Value)
	for _, h := range r.Headers {
		header := jsonHeader{Key: h.Key}
		header.Value, header.ValueBase64 = jsonText(h.Value)
		record.Headers = append(record.Headers, header)
	}
	return json.NewEncoder(w).Encode(record)
}

func jsonText(data []byte) (*string, string) {
	if data == nil {
		return nil, ""
	}
	if !utf8.Valid(data) {
		return nil, base64.StdEncoding.EncodeToString(data)
	}
	text := string(data)
	return &text, ""
}
