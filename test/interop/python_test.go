//go:build interop

package interop

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

func init() {
	drivers = append(drivers,
		func(addr string) (*driver, error) {
			return newFromPyPI(addr, "confluent-kafka-pypi", "driver.py", "classic", "consumer")
		},
		func(addr string) (*driver, error) {
			return newFromPyPI(addr, "kafka-python", "kafka_python.py", "classic")
		},
		func(addr string) (*driver, error) { return newFromPyPI(addr, "aiokafka", "aio_kafka.py", "classic") },
	)
	limits["confluent-kafka-pypi"] = map[string]limit{
		"admin-delete-group-offset": {"confluent-kafka has no OffsetDelete", errCannot.Error()},
	}
	patient["confluent-kafka-pypi"] = map[string]bool{"rebalance-consumer": true}
	limits["kafka-python"] = map[string]limit{
		"rebalance-consumer":  {"kafka-python knows classic groups only", errCannot.Error()},
		"write-both-null":     {"kafka-python refuses a record without key and value", "Need at least one: key or value"},
		"write-header-nulls":  {"kafka-python takes no header without a value", "must be (str, bytes) tuples"},
		"admin-alter-configs": {"kafka-python sends along what the topic has, so that nothing goes back to its default", "retention.ms: 7654321 instead of 604800000"},
	}
	limits["aiokafka"] = map[string]limit{
		"rebalance-consumer":        {"aiokafka knows classic groups only", errCannot.Error()},
		"write-both-null":           {"aiokafka refuses a record without key and value", "Need at least one: key or value"},
		"admin-incremental-configs": {"aiokafka has AlterConfigs only", errCannot.Error()},
		"admin-delete-group-offset": {"aiokafka has no OffsetDelete", errCannot.Error()},
		"admin-delete-group":        {"aiokafka has no DeleteGroups", errCannot.Error()},
	}
}

// pythonEnv is the virtual environment with the clients that PyPI has and Debian has not, or not as new.
var pythonEnv = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("python/venv.sh")
	cmd.Stderr = clientLog("python-venv")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("python/venv.sh: %w; see python-venv.log", err)
	}
	return strings.TrimSpace(string(out)), nil
})

func newFromPyPI(addr, label, file string, protocols ...string) (*driver, error) {
	env, err := pythonEnv()
	if err != nil {
		return nil, err
	}
	d := &driver{label: label, addr: addr, protocols: map[string]bool{}}
	for _, p := range protocols {
		d.protocols[p] = true
	}
	return d, d.start(env+"/bin/python", "-B", "python/"+file)
}
