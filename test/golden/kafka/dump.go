package kafka

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// CompareDump compares what Apache Kafka's DumpLogSegments says of one file with what `stele log dump --records
// --output json` says of it: entries of indexes and producer snapshots, batches, and records of internal topics with
// every field that both show. It returns how many entries were compared.
func CompareDump(kafkas, steles []byte) (int, error) {
	var want []fields
	for lines := bufio.NewScanner(bytes.NewReader(kafkas)); lines.Scan(); {
		if f := kafkaLine(lines.Text()); f != nil {
			want = append(want, f)
		}
	}
	var got []fields
	for dec := json.NewDecoder(bytes.NewReader(steles)); dec.More(); {
		f := fields{}
		if err := dec.Decode(&f); err != nil {
			return 0, err
		}
		if f["kind"] == "problem" {
			return 0, fmt.Errorf("%v", f)
		}
		got = append(got, steleLine(f))
	}
	if len(want) != len(got) {
		return 0, fmt.Errorf("%d entries, Kafka has %d", len(got), len(want))
	}
	var err error
	for i := range want {
		for name, w := range want[i] {
			if g := got[i][name]; !reflect.DeepEqual(w, g) {
				err = errors.Join(err, fmt.Errorf("entry %d: %s is %v, Kafka says %v", i, name, g, w))
			}
		}
	}
	return len(want), err
}

type fields = map[string]any

var word = regexp.MustCompile(`(\w+): (\S+)`)

// kafkaLine reads one line of Kafka's, nil where it is none of an entry.
func kafkaLine(line string) fields {
	f := fields{}
	switch {
	case strings.HasPrefix(line, "| offset: "):
		head, rest, _ := strings.Cut(line, " headerKeys: ")
		f["kind"] = "record"
		for _, m := range word.FindAllStringSubmatch(head, -1) {
			if m[1] == "offset" {
				f["offset"] = number(m[2])
			}
		}
		internal(rest, f)
		return f
	case strings.HasPrefix(line, "baseOffset: "):
		f["kind"] = "batch"
	case strings.HasPrefix(line, "offset: "):
		f["kind"] = "index"
	case strings.HasPrefix(line, "timestamp: "):
		f["kind"] = "timeindex"
	case strings.HasPrefix(line, "version: "):
		f["kind"] = "abortedTransaction"
	case strings.HasPrefix(line, "producerId: "):
		f["kind"] = "producer"
	default:
		return nil
	}
	for _, m := range word.FindAllStringSubmatch(line, -1) {
		name, value := m[1], m[2]
		switch {
		case f["kind"] == "batch" && name == "partitionLeaderEpoch":
			name = "leaderEpoch"
		case f["kind"] == "batch" && (name == "CreateTime" || name == "LogAppendTime"):
			name = "maxTimestamp"
		case f["kind"] == "batch" && name == "compresscodec":
			if name = "codec"; value == "none" {
				value = "uncompressed"
			}
		case f["kind"] == "producer" && name == "lastTimestamp":
			name = "timestamp"
		case f["kind"] == "producer" && name == "currentTxnFirstOffset":
			name = "transactionFirstOffset"
			if value = strings.Trim(strings.TrimPrefix(value, "OptionalLong"), "[]."); value == "empty" {
				value = "-1"
			}
		case name == "version", name == "firstSequence", name == "magic", name == "isvalid", name == "deleteHorizonMs":
			continue
		}
		f[name] = number(value)
	}
	return f
}

func number(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return float64(n)
	}
	if b, err := strconv.ParseBool(text); err == nil {
		return b
	}
	return text
}

// internal reads the key and the value of a record of an internal topic, where the tool decoded them.
func internal(rest string, f fields) {
	if key, payload, ok := strings.Cut(strings.TrimPrefix(rest, "[] "), " payload: "); ok && strings.HasPrefix(key, `key: {"type":`) {
		var k struct{ Data any }
		var v struct{ Data any }
		if json.Unmarshal([]byte(strings.TrimPrefix(key, "key: ")), &k) != nil {
			return
		}
		f["key"] = plain(k.Data)
		f["value"] = nil
		if payload != "<DELETE>" && json.Unmarshal([]byte(payload), &v) == nil {
			f["value"] = plain(v.Data)
		}
		return
	}
	var m struct {
		Type    string
		Version float64
		Data    any
	}
	if text, ok := strings.CutPrefix(rest, "[] payload: {\"type\":"); ok && json.Unmarshal([]byte("{\"type\":"+text), &m) == nil {
		f["type"], f["version"] = strings.ReplaceAll(strings.ToLower(m.Type), "_", ""), m.Version
		f["value"] = plain(m.Data)
	}
}

// plain makes the two ways of showing the same record one: names without regard to capitals, and without fields that
// have their defaults, which each shows as it likes. A member's subscription and assignment are bytes to Stele.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			name = strings.ToLower(name)
			if value = plain(value); !isDefault(value) && name != "unknown" && name != "subscription" && name != "assignment" {
				out[alias(name)] = value
			}
		}
		return out
	case []any:
		out := []any{}
		for _, one := range v {
			out = append(out, plain(one))
		}
		return out
	}
	return v
}

// alias is Kafka's name of a field that Stele shows under a shorter one.
func alias(name string) string {
	for _, pair := range [][2]string{{"groupinstanceid", "instanceid"}, {"rebalancetimeout", "rebalancetimeoutms"}, {"sessiontimeout", "sessiontimeoutms"}} {
		if name == pair[0] {
			return pair[1]
		}
	}
	return name
}

func isDefault(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	case string:
		return v == "" || v == "AAAAAAAAAAAAAAAAAAAAAA"
	case float64:
		return v == 0 || v == -1
	case bool:
		return !v
	}
	return false
}

// steleLine brings a line of Stele's into the same form.
func steleLine(f fields) fields {
	payload, ok := f["payload"].(map[string]any)
	if !ok {
		return f
	}
	delete(f, "key")
	delete(f, "value")
	if key, ok := payload["key"]; ok {
		f["key"], f["value"] = plain(key), nil
		if payload["value"] != nil {
			f["value"] = plain(payload["value"])
		}
		return f
	}
	if rec, ok := payload["record"]; ok {
		f["version"], f["value"] = payload["version"], plain(rec)
		f["type"] = strings.ToLower(fmt.Sprint(f["type"]))
		return f
	}
	if group, ok := payload["Group"]; ok {
		key := map[string]any{"group": group}
		for _, name := range []string{"Topic", "Partition"} {
			if part, ok := payload[name]; ok {
				key[name] = part
			}
		}
		f["key"], f["value"] = plain(key), nil
		if payload["Value"] != nil {
			f["value"] = plain(payload["Value"])
		}
	}
	return f
}
