package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

type produceOptions struct {
	topic        string
	keySeparator string
	nullToken    string
	headers      []string
	partition    int32
	compression  string
	acks         string
	maxLine      int
	verbose      bool
	file         string
}

// How large lines may be. By default each fits into a batch that a topic takes by
// default; at most, into a request that a broker takes by default.
const (
	batchBytes     = 1 << 20
	batchOverhead  = 4 << 10 // of a batch with one record, without its headers
	defaultMaxLine = batchBytes - batchOverhead
	largestLine    = 96 << 20
)

func newProduce(e *env) *cobra.Command {
	o := produceOptions{}
	cmd := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Write each line of standard input, or of a file, as a record",
		Example: `  echo hello | stele produce greetings
  stele produce orders --key-separator : < orders.txt
  stele produce orders --header source=import --compression zstd --acks 1 --file big.txt
  printf 'k1:NULL\n' | stele produce orders --key-separator : --null NULL   # a tombstone`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.topic = args[0]
			return e.produce(cmd, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.keySeparator, "key-separator", "k", "", "what separates key and value in a line (none: the line is the value, the key is null)")
	flags.StringVar(&o.nullToken, "null", "", "a key or value that reads exactly so is null")
	flags.StringArrayVarP(&o.headers, "header", "H", nil, "header name=value for every record; may be repeated")
	flags.Int32VarP(&o.partition, "partition", "p", -1, "partition to write to (-1: chosen by key)")
	flags.StringVarP(&o.compression, "compression", "z", "none", "none, gzip, snappy, lz4 or zstd")
	flags.StringVarP(&o.acks, "acks", "a", "all", "all, 1 or 0: who must have a record before it counts as written")
	flags.IntVar(&o.maxLine, "max-line-bytes", defaultMaxLine, "longest line accepted; the topic's max.message.bytes must allow it too")
	flags.StringVar(&o.file, "file", "", "read lines from this file instead of standard input")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "print partition and offset of each record written")
	_ = cmd.RegisterFlagCompletionFunc("compression", cobra.FixedCompletions([]string{"none", "gzip", "snappy", "lz4", "zstd"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("acks", cobra.FixedCompletions([]string{"all", "1", "0"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *produceOptions) clientOptions(headers []kgo.RecordHeader) ([]kgo.Opt, error) {
	if o.maxLine < 1 || o.maxLine > largestLine {
		return nil, usagef("--max-line-bytes %d: use 1 to %d", o.maxLine, largestLine)
	}
	if o.partition < -1 {
		return nil, usagef("--partition %d: a partition, or -1 to choose by key", o.partition)
	}
	largest := o.maxLine + batchOverhead
	for _, h := range headers {
		largest += len(h.Key) + len(h.Value) + 16
	}
	options := []kgo.Opt{
		kgo.DefaultProduceTopic(o.topic), kgo.AllowAutoTopicCreation(), kgo.ProducerBatchMaxBytes(int32(max(batchBytes, min(largest, 100<<20)))),
		kgo.MaxBufferedRecords(100_000), kgo.MaxBufferedBytes(256 << 20), kgo.ProducerLinger(0), kgo.MetadataMinAge(50 * time.Millisecond), kgo.RecordDeliveryTimeout(30 * time.Second), kgo.UnknownTopicRetries(-1),
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, ok := codecs[o.compression]
	if !ok {
		return nil, usagef("--compression %s: use none, gzip, snappy, lz4 or zstd", o.compression)
	}
	options = append(options, kgo.ProducerBatchCompression(codec))
	switch o.acks {
	case "all", "-1":
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	default:
		return nil, usagef("--acks %s: use all, 1 or 0", o.acks)
	}
	if o.partition >= 0 {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	return options, nil
}

func (o *produceOptions) parseHeaders() ([]kgo.RecordHeader, error) {
	var headers []kgo.RecordHeader
	for _, header := range o.headers {
		name, value, ok := strings.Cut(header, "=")
		if !ok {
			return nil, usagef("--header %q: write name=value", header)
		}
		headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return headers, nil
}

// outcome gathers what became of the records, from the client's callbacks.
type outcome struct {
	mu      sync.Mutex
	written int64
	lost    int64
	first   error
}

func (o *outcome) add(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.written++
		return
	}
	o.lost++
	if o.first == nil {
		o.first = err
	}
}

func (o *outcome) get() (written, lost int64, first error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written, o.lost, o.first
}

func (e *env) produce(cmd *cobra.Command, o produceOptions) error {
	headers, err := o.parseHeaders()
	if err != nil {
		return err
	}
	options, err := o.clientOptions(headers)
	if err != nil {
		return err
	}
	in, source := e.in, "standard input"
	if o.file != "" {
		file, err := os.Open(o.file)
		if err != nil {
			return usagef("--file: %w", err)
		}
		defer file.Close()
		in, source = file, o.file
	}
	client, d, err := e.connect(cmd.Flags(), options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := d.guard(cmd.Context())
	defer cancel()

	var result outcome
	bar, finish := e.progress("produced")
	stopSaying := e.saysWhy(ctx, client, o.topic, func() int64 { written, _, _ := result.get(); return written })
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 0, min(64<<10, o.maxLine+1)), o.maxLine+1) // with the end of the line
	var bad error                                                          // what is wrong with a line: those before it are written
	for line := int64(1); scanner.Scan(); line++ {
		record := &kgo.Record{Headers: headers, Partition: o.partition}
		if bad = o.fill(record, scanner.Text(), line); bad != nil {
			break
		}
		client.Produce(ctx, record, func(r *kgo.Record, err error) {
			result.add(err)
			bar()
			if err == nil && o.verbose {
				e.wrote(r, o.acks != "0")
			}
			if err != nil {
				cancel() // what cannot be written will not be written by going on
			}
		})
		if ctx.Err() != nil {
			break
		}
	}
	flushErr := client.Flush(ctx)
	stopSaying()
	finish()
	written, lost, first := result.get()
	if first != nil {
		var protocol *kerr.Error
		if o.partition >= 0 && !errors.As(first, &protocol) && strings.Contains(first.Error(), "partitioning choice") {
			first = fmt.Errorf("there is no partition %d; `stele topic describe %s` lists them", o.partition, o.topic)
		}
		return d.explain(failed(fmt.Sprintf("produce to topic %s: %d records written, %d not", o.topic, written, lost), first))
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		bad = fmt.Errorf("a line is longer than %d bytes: raise --max-line-bytes (and the topic's max.message.bytes)", o.maxLine)
	} else if err != nil {
		bad = fmt.Errorf("reading %s: %w", source, err)
	}
	if bad != nil {
		return fmt.Errorf("produce to topic %s: %d records written, then: %w", o.topic, written, bad)
	}
	if flushErr != nil {
		return d.explain(fmt.Errorf("produce to topic %s: interrupted after %d records", o.topic, written))
	}
	if e.output == "json" && o.verbose {
		return nil // each record has its line
	}
	if e.output == "json" {
		return e.json(map[string]any{"topic": o.topic, "records": written})
	}
	noun := "records"
	if written == 1 {
		noun = "record"
	}
	fmt.Fprintf(e.err, "%d %s written to %s\n", written, noun, o.topic)
	return nil
}

// wrote tells where a record went: one JSON object a line for scripts. Its offset is known
// only when the broker answered.
func (e *env) wrote(r *kgo.Record, answered bool) {
	offset := &r.Offset
	if !answered {
		offset = nil
	}
	if e.output == "json" {
		_ = json.NewEncoder(e.out).Encode(struct {
			Topic     string `json:"topic"`
			Partition int32  `json:"partition"`
			Offset    *int64 `json:"offset"`
		}{r.Topic, r.Partition, offset})
		return
	}
	if offset == nil {
		e.say("%s-%d offset -", r.Topic, r.Partition)
		return
	}
	e.say("%s-%d offset %d", r.Topic, r.Partition, *offset)
}

// fill turns a line into key and value.
func (o *produceOptions) fill(record *kgo.Record, line string, number int64) error {
	value := line
	if o.keySeparator != "" {
		key, rest, ok := strings.Cut(line, o.keySeparator)
		if !ok {
			return fmt.Errorf("line %d has no key separator %q", number, o.keySeparator)
		}
		if value = rest; o.nullToken == "" || key != o.nullToken {
			record.Key = []byte(key)
		}
	}
	if o.nullToken == "" || value != o.nullToken {
		record.Value = []byte(value)
	}
	return nil
}

// progress shows a counter on a terminal while long work goes on; elsewhere it
// shows nothing. step counts one, finish clears the line.
func (e *env) progress(what string) (step, finish func()) {
	file, ok := e.err.(*os.File)
	if !ok || !isTerminal(file) {
		return func() {}, func() {}
	}
	container := mpb.New(mpb.WithOutput(file), mpb.WithAutoRefresh(), mpb.WithWidth(40))
	bar := container.New(0, mpb.NopStyle(), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.CurrentNoUnit(what+" %d records")),
		mpb.AppendDecorators(decor.AverageSpeed(0, "%.0f/s"), decor.Elapsed(decor.ET_STYLE_GO)))
	return bar.Increment, func() { bar.SetTotal(-1, true); container.Wait() }
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
