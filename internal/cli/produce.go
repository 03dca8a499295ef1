package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
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
	flags.IntVar(&o.maxLine, "max-line-bytes", 16<<20, "longest line accepted")
	flags.StringVar(&o.file, "file", "", "read lines from this file instead of standard input")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "print partition, offset and leader of each record written")
	_ = cmd.RegisterFlagCompletionFunc("compression", cobra.FixedCompletions([]string{"none", "gzip", "snappy", "lz4", "zstd"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("acks", cobra.FixedCompletions([]string{"all", "1", "0"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *produceOptions) clientOptions() ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.DefaultProduceTopic(o.topic), kgo.AllowAutoTopicCreation(), kgo.ProducerBatchMaxBytes(1 << 20),
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
	options, err := o.clientOptions()
	if err != nil {
		return err
	}
	headers, err := o.parseHeaders()
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
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 0, min(64<<10, o.maxLine)), o.maxLine)
	for line := int64(1); scanner.Scan(); line++ {
		record := &kgo.Record{Headers: headers, Partition: o.partition}
		if err := o.fill(record, scanner.Text(), line); err != nil {
			finish()
			return err
		}
		client.Produce(ctx, record, func(r *kgo.Record, err error) {
			result.add(err)
			bar()
			if err == nil && o.verbose {
				e.say("%s-%d offset %d leader epoch %s", r.Topic, r.Partition, r.Offset, orDash(int64(r.LeaderEpoch)))
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
	finish()
	written, lost, first := result.get()
	if first != nil {
		return d.explain(failed(fmt.Sprintf("produce to topic %s: %d records written, %d not", o.topic, written, lost), first))
	}
	if err := scanner.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("produce to topic %s: a line is longer than %d bytes: raise --max-line-bytes (and the topic's max.message.bytes)", o.topic, o.maxLine)
		}
		return fmt.Errorf("produce to topic %s: reading %s: %w", o.topic, source, err)
	}
	if flushErr != nil {
		return d.explain(fmt.Errorf("produce to topic %s: interrupted after %d records", o.topic, written))
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
