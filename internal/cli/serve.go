package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/telemetry"
)

type serveOptions struct {
	configFile string
	set        []string
	dataDir    string
	dirGiven   bool // dataDir is the caller's, not the default
	logFormat  string
	logLevel   string
}

func newServe(e *env) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node: broker, controller, or both",
		Long: `Run a node. Without arguments it is a broker and a controller in one process, on
127.0.0.1:9092 for clients and 127.0.0.1:9093 for controllers, with its data in
./stele-data, which is formatted on first start.

Settings have Kafka's names. A setting is looked for in --set, then the environment
(STELE_ and its name in upper case with _ for .), then the file, then its default.`,
		Example: `  stele serve
  stele serve --data-dir /var/lib/stele --set num.partitions=6
  stele serve --config server.properties
  stele serve --set listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093 \
              --set advertised.listeners=PLAINTEXT://broker-1.example.com:9092`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.dirGiven = cmd.Flags().Changed("data-dir")
			return e.serve(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	o.nodeFlags(cmd)
	flags.StringVar(&o.logFormat, "log-format", "text", "text or json")
	flags.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	_ = cmd.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o serveOptions) parse() (*config.Broker, []config.Warning, error) {
	sources := config.Sources{Set: o.set, Env: os.Environ(), FileName: o.configFile, DataDir: o.dataDir}
	if o.configFile != "" {
		text, err := os.ReadFile(o.configFile)
		if err != nil {
			return nil, nil, usagef("--config: %w", err)
		}
		sources.File = string(text)
	}
	c, warnings, err := config.Parse(sources)
	if err != nil {
		return nil, warnings, usageError{err}
	}
	set := slices.ContainsFunc(o.set, func(s string) bool { return strings.HasPrefix(s, "log.dirs=") }) // beside it: meant so
	if dirs, _ := c.Given("log.dirs"); o.dirGiven && !set && dirs != o.dataDir {
		warnings = append(warnings, config.Warning{Source: "--data-dir", Name: "log.dirs", Message: "without effect: log.dirs or log.dir is given elsewhere; --set log.dirs=" + o.dataDir + " would take its place"})
	}
	return c, warnings, nil
}

// serve runs a node until it is told to stop, or something ends it.
func (e *env) serve(ctx context.Context, o serveOptions) error {
	c, warnings, err := o.parse()
	if err != nil {
		return err
	}
	logger, level, err := telemetry.NewLogger(e.err, o.logFormat, o.logLevel)
	if err != nil {
		return usageError{err}
	}
	for _, w := range warnings {
		logger.Warn("setting", "source", w.Source, "name", w.Name, "cause", w.Message)
	}
	tend, stopTending := context.WithCancel(ctx)
	var tending sync.WaitGroup
	tending.Go(func() { tendMemory(tend) })
	defer tending.Wait()
	defer stopTending()

	started := time.Now()
	n, err := startNode(ctx, c, logger, level, nil)
	if err != nil && ctx.Err() != nil {
		return nil // stopped while starting
	}
	if err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		n.unwind()
		if ctx.Err() != nil {
			return nil // stopped while starting
		}
		return err
	}
	n.announce()
	logger.Info("ready", "cluster", n.plan.ClusterID, "node", n.id, "took", time.Since(started).Round(time.Millisecond).String())

	var failure error
	failed := make(<-chan error)
	if n.broker != nil {
		failed = n.broker.Failed()
	}
	select {
	case <-ctx.Done():
		logger.Info("stopping")
		n.stop()
		logger.Info("stopped")
	case failure = <-n.failed:
		n.unwind()
	case failure = <-failed:
		n.unwind()
	}
	return failure
}

// announce says what each listener tells clients, and tries whether that is true from
// here: an advertised address that cannot be reached is the commonest trouble there is.
func (n *node) announce() {
	for _, endpoint := range n.advertised() {
		addr := net.JoinHostPort(endpoint.Host, strconv.Itoa(int(endpoint.Port)))
		n.logger.Info("listener", "name", endpoint.Name, "bound", fmt.Sprint(n.server.Addr(endpoint.Name)), "clients_are_told", addr)
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			n.logger.Warn("clients are told an address that cannot be reached from here; set advertised.listeners to one that clients can reach", "listener", endpoint.Name, "address", addr, "cause", err)
			continue
		}
		conn.Close()
	}
	if addr := n.httpAddr(); addr != nil {
		n.logger.Info("http", "bound", addr.String(), "paths", "/readyz /livez /metrics /debug/pprof/")
	}
	for _, l := range n.config.ControllerListeners() {
		n.logger.Info("controller listener", "name", l.Name, "bound", fmt.Sprint(n.server.Addr(l.Name)))
	}
}
