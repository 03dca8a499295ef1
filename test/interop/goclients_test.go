//go:build interop

package interop

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// saramaVersions are the releases of Kafka that sarama is told it speaks to, each another set of versions of the
// requests. With a number it asks the broker for nothing and takes what that release had (B-060); as the newest it does
// as it does by default, and goes down to what the broker advertises.
var saramaVersions = []string{"2.1.0", "2.8.0", "3.6.0", "4.0.0", "newest"}

func init() {
	for _, version := range saramaVersions {
		drivers = append(drivers, func(addr string) (*driver, error) {
			return newGoClient(addr, "sarama-"+version, "sarama", version)
		})
		limits["sarama-"+version] = maps.Clone(saramaLimits)
	}
	limits["sarama-2.1.0"]["admin-incremental-configs"] = limit{"Kafka 2.1 had no IncrementalAlterConfigs", "version of API is not supported"}
	limits["sarama-2.1.0"]["admin-delete-group-offset"] = limit{"Kafka 2.1 had no OffsetDelete", "version of API is not supported"}
	drivers = append(drivers, func(addr string) (*driver, error) { return newGoClient(addr, "kafka-go", "kafka-go") })
	limits["kafka-go"] = map[string]limit{
		"rebalance-consumer":   {"kafka-go knows classic groups only", errCannot.Error()},
		"transaction-commit":   {"kafka-go's Writer has no transactions", errCannot.Error()},
		"transaction-abort":    {"kafka-go's Writer has no transactions", errCannot.Error()},
		"write-idempotent":     {"kafka-go's Writer has no producer id", errCannot.Error()},
		"read-committed":       {"kafka-go hands out the markers of transactions as records", "12 records instead of 6"},
		"read-uncommitted":     {"kafka-go hands out the markers of transactions as records", "12 records instead of 9"},
		"read-empty":           {"kafka-go reads what is empty as null", "null instead of"},
		"admin-delete-records": {"kafka-go has no DeleteRecords", errCannot.Error()},
	}
}

var saramaLimits = map[string]limit{
	"rebalance-consumer": {"sarama knows classic groups only", errCannot.Error()},
}

// goClients builds the module in goclients once for all tests.
var goClients = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "goclients")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = "goclients"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build in goclients: %w\n%s", err, out)
	}
	return path, nil
})

func newGoClient(addr, label string, args ...string) (*driver, error) {
	path, err := goClients()
	if err != nil {
		return nil, err
	}
	d := &driver{label: label, addr: addr, protocols: map[string]bool{"classic": true}}
	return d, d.start(append([]string{path}, args...)...)
}
