// Record runs Apache Kafka and keeps what it answered and what it wrote, as fixtures for tests that need no
// Java. Its one flag is the folder to fill; what was there before is replaced.
//
//	go run ./test/reference/record -out test/reference/testdata/kafka-4.4.0
package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/test/reference"
)

// clusterID is fixed so that a new recording differs from the last only where it must.
const clusterID = "SteleReferenceCluster1"

func main() {
	out := flag.String("out", "", "folder to fill")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := record(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	for _, sub := range []string{"api", "datadir", "dump"} {
		if err := os.RemoveAll(filepath.Join(out, sub)); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp("", "stele-record-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := recordAPI(ctx, filepath.Join(temp, "api"), filepath.Join(out, "api")); err != nil {
		return fmt.Errorf("answers: %w", err)
	}
	if err := recordData(ctx, filepath.Join(temp, "data"), out); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

// write makes a file and the folders above it.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// recordAPI asks a node whose settings are kafka.sh's alone, before and after its first topic.
func recordAPI(ctx context.Context, dir, out string) error {
	node, err := reference.NewNode(ctx, dir, clusterID)
	if err != nil {
		return err
	}
	if err := node.Start(ctx); err != nil {
		return err
	}
	defer node.Kill()
	if _, err := reference.Run(ctx, "tool", "TopicCommand", "--bootstrap-server", node.Addr(),
		"--create", "--topic", "fresh", "--partitions", "2"); err != nil {
		return err
	}
	broker, controller := node.Addr(), node.ControllerAddr()

	apiVersions := func() *kmsg.ApiVersionsRequest {
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "recorder", "1"
		return r
	}
	for _, l := range []struct{ name, addr string }{{"broker", broker}, {"controller", controller}} {
		for v := int16(0); v <= 5; v++ {
			if err := keep(out, l.name, l.addr, apiVersions(), v); err != nil {
				return err
			}
		}
		// A version that nobody has: the answer is in version 0 and holds the range that is known.
		r := apiVersions()
		answer, err := exchange(l.addr, r, 99)
		if err != nil {
			return err
		}
		if err := keepAnswer(out, "ApiVersions-"+l.name+"-v99", r, 0, answer); err != nil {
			return err
		}
		for name, change := range map[string]func(*kmsg.ApiVersionsRequest){
			"empty-name":      func(r *kmsg.ApiVersionsRequest) { r.ClientSoftwareName = "" },
			"other-cluster":   func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr("other"), 1 },
			"other-node":      func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr(clusterID), 7 },
			"right-node":      func(r *kmsg.ApiVersionsRequest) { r.ClusterID, r.NodeID = kmsg.StringPtr(clusterID), 1 },
			"node-no-cluster": func(r *kmsg.ApiVersionsRequest) { r.NodeID = 1 },
		} {
			r := apiVersions()
			change(r)
			if err := keep(out, l.name+"-"+name, l.addr, r, 5); err != nil {
				return err
			}
		}
	}

	for _, c := range []struct {
		name string
		addr string
		kind kmsg.ConfigResourceType
		of   string
	}{
		{"broker", broker, kmsg.ConfigResourceTypeBroker, "1"},
		{"every-broker", broker, kmsg.ConfigResourceTypeBroker, ""},
		{"topic", broker, kmsg.ConfigResourceTypeTopic, "fresh"},
		{"unknown-topic", broker, kmsg.ConfigResourceTypeTopic, "nowhere"},
		{"logger", broker, kmsg.ConfigResourceTypeBrokerLogger, "1"},
		{"client-metrics", broker, kmsg.ConfigResourceType(16), "m"},
		{"group", broker, kmsg.ConfigResourceType(32), "g"},
	} {
		r := kmsg.NewPtrDescribeConfigsRequest()
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = c.kind, c.of
		r.Resources = append(r.Resources, resource)
		r.IncludeSynonyms = true // not the documentation: those are sentences of Kafka's
		if err := keepJSON(out, c.name, c.addr, r, 4); err != nil {
			return err
		}
	}

	metadata := func(topics ...string) *kmsg.MetadataRequest {
		r := kmsg.NewPtrMetadataRequest()
		for _, t := range topics {
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = kmsg.StringPtr(t)
			r.Topics = append(r.Topics, topic)
		}
		return r
	}
	for v := int16(0); v <= 13; v++ {
		if err := keep(out, "fresh", broker, metadata("fresh"), v); err != nil {
			return err
		}
	}
	if err := keep(out, "all", broker, metadata(), 13); err != nil {
		return err
	}
	if err := keep(out, "unknown", broker, metadata("nowhere"), 13); err != nil {
		return err
	}

	cluster := kmsg.NewPtrDescribeClusterRequest()
	cluster.EndpointType, cluster.IncludeFencedBrokers = 1, true
	if err := keep(out, "brokers", broker, cluster, 2); err != nil {
		return err
	}
	cluster = kmsg.NewPtrDescribeClusterRequest()
	cluster.EndpointType = 2
	if err := keep(out, "controllers", controller, cluster, 2); err != nil {
		return err
	}

	quorum := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	quorum.Topics = append(quorum.Topics, topic)
	if err := keep(out, "broker", broker, quorum, 2); err != nil {
		return err
	}
	if err := keep(out, "controller", controller, quorum, 2); err != nil {
		return err
	}
	return node.Stop()
}

// keep exchanges one request and keeps the answer as bytes and as JSON. The name of the files is the
// request's, then name, then the version.
func keep(out, name, addr string, req kmsg.Request, version int16) error {
	answer, err := exchange(addr, req, version)
	if err != nil {
		return err
	}
	return keepAnswer(out, fmt.Sprintf("%s-%s-v%d", kmsg.NameForKey(req.Key()), name, version), req, version, answer)
}

func keepAnswer(out, file string, req kmsg.Request, version int16, answer []byte) error {
	if err := write(filepath.Join(out, file+".hex"), []byte(hexLines(answer))); err != nil {
		return err
	}
	// Kafka answers a version that it does not have in version 0.
	resp, err := decode(req, version, answer)
	if err != nil {
		if resp, err = decode(req, 0, answer); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	text, err := pretty(plain(reflect.ValueOf(resp)))
	if err != nil {
		return err
	}
	return write(filepath.Join(out, file+".json"), text)
}

// keepJSON is keep without the bytes, for long answers.
func keepJSON(out, name, addr string, req kmsg.Request, version int16) error {
	if err := keep(out, name, addr, req, version); err != nil {
		return err
	}
	return os.Remove(filepath.Join(out, fmt.Sprintf("%s-%s-v%d.hex", kmsg.NameForKey(req.Key()), name, version)))
}

// hexLines is 32 bytes a line.
func hexLines(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(32, len(b))
		s.WriteString(hex.EncodeToString(b[:n]))
		s.WriteByte('\n')
		b = b[n:]
	}
	return s.String()
}

// dataSettings keep the directory small and make the metadata log take several snapshots.
var dataSettings = []string{
	"offsets.topic.num.partitions=1",
	"transaction.state.log.num.partitions=1",
	"log.index.size.max.bytes=4096",
	"log.cleaner.backoff.ms=100",
	"log.cleaner.dedupe.buffer.size=4194304",
	"log.retention.check.interval.ms=300000",
	"log.initial.task.delay.ms=100",
	"metadata.log.max.record.bytes.between.snapshots=4000",
	"metadata.max.idle.interval.ms=2000",
	"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"allow.everyone.if.no.acl.found=true",
	"super.users=User:ANONYMOUS",
}

func recordData(ctx context.Context, dir, out string) error {
	node, err := reference.NewNode(ctx, dir, clusterID, dataSettings...)
	if err != nil {
		return err
	}
	if err := node.Start(ctx); err != nil {
		return err
	}
	defer node.Kill()
	script, err := reference.Script()
	if err != nil {
		return err
	}
	workload := filepath.Join(filepath.Dir(script), "record", "Workload.java")
	said, err := reference.Run(ctx, "java", workload, node.Addr())
	if err != nil {
		return err
	}
	if err := waitCleaned(ctx, node); err != nil {
		return err
	}
	if err := node.Stop(); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(out, "datadir"), os.DirFS(node.Data())); err != nil {
		return err
	}
	if err := trimMetadataIndexes(filepath.Join(out, "datadir", "__cluster_metadata-0")); err != nil {
		return err
	}
	if err := write(filepath.Join(out, "datadir.txt"), []byte(said)); err != nil {
		return err
	}
	return dump(ctx, filepath.Join(out, "datadir"), filepath.Join(out, "dump"))
}

// trimMetadataIndexes cuts the unused entries off the metadata log's indexes. Kafka does so on a clean stop for
// every other log, but leaves these preallocated, at 10 MiB each; that alone is why the fixture does not.
func trimMetadataIndexes(dir string) error {
	for pattern, entry := range map[string]int{"*.index": 8, "*.timeindex": 12} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			used := len(bytes.TrimRight(b, "\x00"))
			if err := os.Truncate(f, int64((used+entry-1)/entry*entry)); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitCleaned returns when the cleaner has been over the first two segments of the compacted topic.
func waitCleaned(ctx context.Context, node *reference.Node) error {
	for {
		text, err := os.ReadFile(filepath.Join(node.Data(), "cleaner-offset-checkpoint"))
		if err == nil && strings.Contains(string(text), "compacted 0 20") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cleaner did not come to offset 20 of compacted-0: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// dump has Kafka's own tool say what each file of the directory holds.
func dump(ctx context.Context, data, out string) error {
	var files []string
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch filepath.Ext(path) {
		case ".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint":
			rel, err := filepath.Rel(data, path)
			if err != nil {
				return err
			}
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sort.Strings(files)
	for _, f := range files {
		args := []string{"tool", "DumpLogSegments", "--files", f}
		switch ext := filepath.Ext(f); {
		case ext == ".checkpoint" || ext == ".log" && strings.HasPrefix(f, "__cluster_metadata"):
			args = append(args, "--cluster-metadata-decoder")
		case ext == ".log" && strings.HasPrefix(f, "__consumer_offsets"):
			args = append(args, "--offsets-decoder")
		case ext == ".log" && strings.HasPrefix(f, "__transaction_state"):
			args = append(args, "--transaction-log-decoder")
		case ext == ".log":
			args = append(args, "--print-data-log")
		}
		if filepath.Ext(f) == ".log" || filepath.Ext(f) == ".checkpoint" {
			args = append(args, "--deep-iteration")
		}
		text, err := reference.RunIn(ctx, data, "", args...)
		if err != nil {
			if _, ok := err.(*exec.Error); ok {
				return err
			}
			// What the tool could not read is said in the recording.
			text += "\n" + err.Error() + "\n"
		}
		if err := write(filepath.Join(out, f+".txt"), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}
