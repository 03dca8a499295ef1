//go:build interop

package interop

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

func init() {
	for _, js := range []struct {
		label, file string
		protocols   []string
	}{
		{"kafkajs", "kafkajs", []string{"classic"}},
		{"confluent-javascript", "confluent", []string{"classic", "consumer"}},
		{"platformatic", "platformatic", []string{"classic", "consumer"}},
	} {
		drivers = append(drivers, func(addr string) (*driver, error) {
			return newJavaScript(addr, js.label, js.file, js.protocols...)
		})
	}
	const object = "it keeps headers in an object, which loses the order of names that come twice"
	limits["kafkajs"] = map[string]limit{
		"write-headers":             {object, "record 1: header 1"},
		"write-header-nulls":        {"kafkajs cannot encode a null header", "Received null"},
		"rebalance-consumer":        {"kafkajs knows classic groups only", errCannot.Error()},
		"admin-incremental-configs": {"kafkajs has AlterConfigs only", errCannot.Error()},
		"admin-delete-group-offset": {"kafkajs has no OffsetDelete", errCannot.Error()},
	}
	limits["confluent-javascript"] = map[string]limit{
		"write-headers":             {object, "record 1: header 1"},
		"write-header-nulls":        {"it leaves out null headers", "record 0: 1 headers instead of 2"},
		"admin-create-partitions":   {"its admin has no CreatePartitions", errCannot.Error()},
		"admin-describe-configs":    {"its admin has no configs", errCannot.Error()},
		"admin-alter-configs":       {"its admin has no configs", errCannot.Error()},
		"admin-incremental-configs": {"its admin has no configs", errCannot.Error()},
		"admin-delete-group-offset": {"its admin has no OffsetDelete", errCannot.Error()},
	}
	patient["confluent-javascript"] = map[string]bool{"rebalance-consumer": true} // as librdkafka is
	limits["platformatic"] = map[string]limit{
		"write-timestamps": {"it encodes times that are over 25 days apart in a batch wrongly", "timestamp"},
	}
	for _, c := range []string{"kafka-console", "kcat", "stele"} {
		limits[c]["write-timestamps"] = limits[c]["write-timestamp"]
	}
}

// nodeModules installs the JavaScript clients once and returns the folder that has them and their node.
var nodeModules = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("node/resolve.sh")
	cmd.Stderr = clientLog("node-resolve")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("node/resolve.sh: %w; see node-resolve.log", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// newJavaScript starts node/driver.mjs for one of the clients beside it.
func newJavaScript(addr, label, file string, protocols ...string) (*driver, error) {
	modules, err := nodeModules()
	if err != nil {
		return nil, err
	}
	d := &driver{label: label, addr: addr, protocols: map[string]bool{}}
	for _, p := range protocols {
		d.protocols[p] = true
	}
	return d, d.start(filepath.Join(modules, "node_modules/node-here/bin/node"), "node/driver.mjs", modules, file)
}

// seenBy has records as a client is able to show them: kafkajs and confluent-javascript keep a record's headers in an
// object, where headers of one name stand together, and the latter shows a null header as an empty one. What the
// others are given to read is not changed.
func seenBy(c client, records []record) []record {
	if c.name() != "kafkajs" && c.name() != "confluent-javascript" {
		return records
	}
	out := make([]record, len(records))
	for i, r := range records {
		out[i] = r
		out[i].Headers = nil
		done := map[string]bool{}
		for _, h := range r.Headers {
			if done[h.Name] {
				continue
			}
			done[h.Name] = true
			for _, same := range r.Headers {
				if same.Name != h.Name {
					continue
				}
				if same.Value == nil && c.name() == "confluent-javascript" {
					same.Value = []byte{}
				}
				out[i].Headers = append(out[i].Headers, same)
			}
		}
	}
	return out
}
