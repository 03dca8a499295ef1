package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/server"
	"github.com/stelelog/stele/internal/telemetry"
	"github.com/stelelog/stele/internal/wire"
	"github.com/stelelog/stele/test/differential"
)

var update = flag.Bool("update", false, "write the generated pages of docs/ anew")

// The generated pages of docs/ say what the tables in the code say.
// `go test ./internal/cli -run TestDocs -update` writes them.
func TestDocs(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{"configuration.md": configurationPage(), "compatibility.md": compatibilityPage(), "metrics.md": metricsPage()} {
		path := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != page {
			t.Errorf("docs/%s is not what the tables say: go test ./internal/cli -run TestDocs -update", name)
		}
	}
}

func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

Generated from the tables in the code; ` + "`go test ./internal/cli -run TestDocs -update`" + ` writes it anew.

` + "`http.listen`" + ` (default ` + "`127.0.0.1:9644`" + `) answers ` + "`/metrics`" + ` in Prometheus's text format: the numbers below, those of the Go runtime (` + "`go_`" + `) and of the process (` + "`process_`" + `). The last column names the MBean of Apache Kafka that tells the same, to help with moving dashboards and alerts over. Kafka's ` + "`...PerSec`" + ` are counters here: take ` + "`rate(...[1m])`" + `; its percentiles come from ` + "`histogram_quantile`" + ` over the buckets.

The number of series does not grow with partitions: what concerns single partitions is asked for by topic, at ` + "`/metrics/partitions?topic=NAME`" + `, and at most ` + "`metrics.max.topics`" + ` topics have series of their own. A topic gets them with its first traffic, the busiest first, and keeps them until it is deleted.
`)
	table := func(title string, metrics []telemetry.Metric) {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | kind | says | Kafka |\n| --- | --- | --- | --- |\n", title)
		for _, m := range metrics {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(m.Name), m.Kind, cell(m.Help), code(m.Kafka))
		}
	}
	table("Clients and requests", server.Metrics())
	table("Node, partitions, topics, groups and disks", nodeMetrics.Metrics())
	table("One topic: `/metrics/partitions?topic=NAME`", partitionCatalog.Metrics())
	return b.String()
}

func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + cell(text) + "`"
}

func configurationPage() string {
	var b strings.Builder
	b.WriteString(`# Configuration

Generated from the table that parses the settings; ` + "`go test ./internal/cli -run TestDocs -update`" + ` writes it anew.

Names, types and defaults are Apache Kafka's. A setting is looked for in this order: ` + "`--set name=value`" + `, the environment (` + "`STELE_`" + ` and the name in upper case with ` + "`_`" + ` for ` + "`.`" + `), the file of ` + "`--config`" + `, ` + "`--data-dir`" + ` (for ` + "`log.dirs`" + ` alone), the default. *Read-only* settings need a restart; *per-broker* and *cluster-wide* ones are changed with ` + "`stele config set --broker ID`" + ` or ` + "`--all-brokers`" + `. Names that are not known are kept, with a warning.

`)
	section := func(title, lead string, defs []*config.Def, scope bool, want func(*config.Def) bool) {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", title, lead)
		if scope {
			b.WriteString("| name | type | default | range | changes | what it does |\n| --- | --- | --- | --- | --- | --- |\n")
		} else {
			b.WriteString("| name | type | default | range | what it does |\n| --- | --- | --- | --- | --- |\n")
		}
		for _, d := range defs {
			if d.Internal || !want(d) {
				continue
			}
			value := "null"
			if d.Default != nil {
				if value = code(*d.Default); value == "" {
					value = "(empty)"
				}
			}
			doc := d.Doc
			for _, alt := range d.Alternates {
				doc += " Also: `" + alt.Name + "`."
			}
			fmt.Fprintf(&b, "| `%s` | %v | %s | %s | ", d.Name, d.Type, value, code(d.Check.Text))
			if scope {
				fmt.Fprintf(&b, "%v | ", d.Scope)
			}
			fmt.Fprintf(&b, "%s |\n", cell(strings.TrimSpace(doc)))
		}
		b.WriteByte('\n')
	}
	works := func(d *config.Def) bool { return !d.Accepted }
	section("Node", "What a node itself uses.", config.BrokerDefs(), true, works)
	section("Topic", "Set with `stele topic create --config`, `stele topic alter --config` or `stele config set --topic`.", config.TopicDefs(), false, works)
	section("Group", "Settings of one consumer group.", config.GroupDefs(), false, works)
	b.WriteString("## Accepted, without effect\n\nThese are known, checked and described, so that a configuration of Kafka's can be used as it is; setting one on a node is warned about at start.\n\n")
	for _, table := range []struct {
		title string
		defs  []*config.Def
	}{{"Node", config.BrokerDefs()}, {"Topic", config.TopicDefs()}, {"Group", config.GroupDefs()}} {
		var names []string
		for _, d := range table.defs {
			if d.Accepted && !d.Internal {
				names = append(names, "`"+d.Name+"`")
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "%s: %s\n\n", table.title, strings.Join(names, ", "))
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// served is by key and listener the newest version that a node answers.
func served() (map[int16]int16, map[int16]int16) {
	onBroker, onController := map[int16]int16{}, map[int16]int16{}
	add := func(h server.Handler) {
		api, _ := wire.Lookup(h.Key)
		newest := api.Max
		if h.MaxVersion > 0 {
			newest = min(newest, h.MaxVersion)
		}
		if h.Scopes&wire.ScopeBroker != 0 {
			onBroker[h.Key] = newest
		}
		if h.Scopes&wire.ScopeController != 0 {
			onController[h.Key] = newest
		}
	}
	for _, h := range server.NewBrokerAPI().Handlers() {
		add(h)
	}
	for _, h := range server.NewControllerAPI("").Handlers() {
		add(h)
	}
	// ApiVersions is answered by the listener itself.
	add(server.Handler{Key: wire.KeyApiVersions, Scopes: wire.ScopeBroker | wire.ScopeController})
	return onBroker, onController
}

// raftsOwn are the APIs by which Kafka's controllers agree: Vote, BeginQuorumEpoch,
// EndQuorumEpoch, UpdateRaftVoter. Ours agree over raft's own transport.
var raftsOwn = []int16{52, 53, 54, 82}

func compatibilityPage() string {
	onBroker, onController := served()
	var b strings.Builder
	b.WriteString(`# Compatibility

Generated from the protocol table and the handlers that a node registers; ` + "`go test ./internal/cli -run TestDocs -update`" + ` writes it anew.

Kafka's column is what Apache Kafka 4.4.0 advertises. An API that is missing here is not advertised either, so that clients choose another way or say clearly what they lack.

| key | API | Kafka 4.4 | clients | controllers |
| --- | --- | --- | --- | --- |
`)
	count, missing := 0, 0
	column := func(api wire.API, scope wire.Scope, versions map[int16]int16) string {
		newest, ok := versions[api.Key]
		switch {
		case ok && api.Min == newest:
			return fmt.Sprint(newest)
		case ok:
			return fmt.Sprintf("%d-%d", api.Min, newest)
		case slices.Contains(raftsOwn, api.Key):
			return "never"
		case api.Scopes&scope != 0:
			return "not yet"
		}
		return "-"
	}
	for _, api := range wire.APIs() {
		kafka := fmt.Sprintf("%d-%d", api.Min, api.Max)
		if api.Min == api.Max {
			kafka = fmt.Sprint(api.Max)
		}
		clients, controllers := column(api, wire.ScopeBroker, onBroker), column(api, wire.ScopeController, onController)
		if api.Scopes&wire.ScopeBroker != 0 {
			if count++; clients == "not yet" {
				missing++
			}
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", api.Key, api.Name, kafka, clients, controllers)
	}
	fmt.Fprintf(&b, "\nOf the %d APIs that Kafka serves to clients, %d are served and %d are not yet. Produce is advertised from version 0, as Kafka does, and served from 3. What is marked never is the consensus of Kafka's controllers; Stele's agree by raft ([differences](differences.md)).\n\n## Features\n\n| feature | levels | level of a new cluster |\n| --- | --- | --- |\n", count, count-missing, missing)
	for _, f := range metadata.SupportedFeatures() {
		fmt.Fprintf(&b, "| `%s` | %d-%d | %d |\n", f.Name, f.Min, f.Max, f.Default)
	}
	b.WriteString(`
## Files

| file | read | written |
| --- | --- | --- |
| record batches (` + "`.log`" + `) | version 2 | version 2 |
| ` + "`meta.properties`" + ` | 0, 1 | 1 (0 stays 0) |
| ` + "`.index .timeindex .txnindex .snapshot`" + `, checkpoints | Kafka 4.4's | the same |
| ` + "`__consumer_offsets`" + ` | Kafka 4.4's records | the same |
| ` + "`__cluster_metadata`" + ` and its snapshots | Kafka 4.0 to 4.4 | Kafka 4.4's records |
`)
	b.WriteString("\n## Accepted differences\n\n`test/differential` sends the same requests, whole, odd and broken, to Apache Kafka 4.4.0 and to Stele, and compares the answers field by field. What may differ stands here, and nothing else; one of these that a run no longer sees fails it, so that none outlives its cause; those marked rare take a request that few runs make.\n\n| | difference | why |\n| --- | --- | --- |\n")
	for _, d := range differential.Accepted {
		id := d.ID
		if d.Rare {
			id += " (rare)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", id, cell(d.What), cell(d.Reason))
	}
	return b.String()
}
