package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

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
		case format[i] == '%' && i+1 == len(format):
			return nil, usagef("--format %q: a %% at the end: write %%%% for a percent sign", format)
		case format[i] == '%':
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
