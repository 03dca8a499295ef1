// Record makes the golden data directory of Apache Kafka that every version of Stele takes over:
//
//	go run ./test/golden/kafka/record -out test/golden/testdata/kafka-4.4.0
//
// It needs a JDK and Maven (test/reference). It runs a node, fills it (../workload.go), writes down what clients see
// of it, stops it cleanly, and packs its data directory, which stays as Kafka left it: data.tar.gz and state.json.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stelelog/stele/test/golden/kafka"
	"github.com/stelelog/stele/test/reference"
)

func main() {
	out := flag.String("out", "", "folder to fill")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := record(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, out string) error {
	temp, err := os.MkdirTemp("", "stele-golden-kafka-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	node, err := reference.NewNode(ctx, temp, "SteleGoldenKafka440000", kafka.Settings...)
	if err != nil {
		return err
	}
	defer node.Kill()
	if err := node.Start(ctx); err != nil {
		return err
	}
	golden := kafka.Golden{}
	if golden.Producer, err = kafka.Workload(ctx, node.Addr()); err != nil {
		return err
	}
	if err := cleaned(ctx, node); err != nil {
		return err
	}
	if golden.State, err = kafka.Observe(ctx, node.Addr(), kafka.Classic, kafka.Static); err != nil {
		return err
	}
	if golden.Consumer, err = kafka.Commits(ctx, node.Addr(), kafka.Consumer); err != nil {
		return err
	}
	if err := node.Stop(); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(golden, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "state.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return kafka.Pack(node.Data(), filepath.Join(out, "data.tar.gz"))
}

// cleaned returns when the cleaner has been over the compacted topic.
func cleaned(ctx context.Context, node *reference.Node) error {
	for {
		text, err := os.ReadFile(filepath.Join(node.Data(), "cleaner-offset-checkpoint"))
		if err == nil && strings.Contains(string(text), "compacted 0 9") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cleaner did not come to the end of compacted-0: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
