// Package cli is Stele's command line: `stele serve` and the commands that talk
// to a running cluster, Stele's or Kafka's alike.
//
// Every command takes --bootstrap-server, --command-config and --output. Tables
// are for people, --output json is for scripts. The exit status is 0 when the
// work is done, 1 when it failed, 2 when the command was used wrongly. Errors go
// to standard error, in one line: what failed, on what, and what to do.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses that scripts may rely on.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks errors of the caller's words, as against failed work.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// env is what every command shares: where it reads and writes, and how it
// reaches the cluster.
type env struct {
	in       io.Reader
	out, err io.Writer

	bootstrap     []string
	commandConfig string
	output        string
}

// Execute runs one command line and returns the exit status.
func Execute(args []string, in io.Reader, out, errOut io.Writer) int {
	// Who reads our output may stop reading: that is an error of a write then, which
	// lets a consumer leave its group, and not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, in, out, errOut)
}

// execute is Execute until ctx ends: that is how a command is interrupted.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	output := &reader{Writer: out}
	e := &env{in: in, out: output, err: errOut}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(output)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil || output.closed {
		return exitDone
	}
	fmt.Fprintf(errOut, "stele: %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// reader is whoever takes our output: a terminal, a file, or a program such as head
// that stops reading when it has seen enough, which is no failure of ours.
type reader struct {
	io.Writer
	closed bool
}

func (r *reader) Write(b []byte) (int, error) {
	n, err := r.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		r.closed = true
	}
	return n, err
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "stele",
		Short: "A log that speaks Apache Kafka's protocol, in one binary",
		Long: `Stele is a replicated, partitioned log that speaks Apache Kafka's protocol.

Start a node, then use any Kafka client, or the commands below:

  stele serve
  echo hello | stele produce greetings
  stele consume greetings --from earliest --stop-at-end`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.StringSliceVarP(&e.bootstrap, "bootstrap-server", "b", []string{"127.0.0.1:9092"}, "addresses to find the cluster at, host:port, comma separated")
	flags.StringVar(&e.commandConfig, "command-config", "", "properties file with client settings (bootstrap.servers, client.id, request.timeout.ms, ...)")
	flags.StringVarP(&e.output, "output", "o", "table", "how to print: table or json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if e.output != "table" && e.output != "json" {
			return usagef("--output %s: use table or json", e.output)
		}
		return nil
	}
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(
		newServe(e), newDev(e), newTopic(e), newPartition(e), newProduce(e), newConsume(e), newGroup(e), newTxn(e), newConfig(e), newQuota(e), newCluster(e), newLog(e), newStorage(e),
	)
	// Made here, and not by cobra at the last moment, so that a shell that it does not know is a usage error.
	root.SetOut(e.out)
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		completion.Example = "  source <(stele completion bash)"
		for _, shell := range completion.Commands() {
			shell.Example = map[string]string{
				"bash": "  source <(stele completion bash)", "zsh": "  source <(stele completion zsh)",
				"fish": "  stele completion fish | source", "powershell": "  stele completion powershell | Out-String | Invoke-Expression",
			}[shell.Name()]
		}
	}
	e.addCompletions(root)
	markUsage(root)
	// What only holds other commands is not run by itself.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	return root
}

// markUsage makes cobra's own complaints (unknown flag, wrong number of
// arguments, unknown command) usage errors, in every command.
func markUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s (see `%s --help`)", parserName.ReplaceAllString(err.Error(), ""), c.CommandPath())
	})
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usagef("%s (see `%s --help`)", wrongArguments(c, args), c.CommandPath())
			}
			if slices.Contains(args, "") {
				return usagef("%s: a name is empty (see `%s --help`)", shortPath(c), c.CommandPath())
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		markUsage(child)
	}
}

// shortPath is a command as errors name it, which all begin with "stele: ".
func shortPath(cmd *cobra.Command) string { return strings.TrimPrefix(cmd.CommandPath(), "stele ") }

// parserName is what strconv puts before its complaint; it says nothing to the caller.
var parserName = regexp.MustCompile(`strconv\.\w+: parsing ".*": `)

// wrongArguments says in the command's own words what is missing or too much.
func wrongArguments(cmd *cobra.Command, args []string) string {
	_, takes, _ := strings.Cut(cmd.Use, " ")
	switch {
	case cmd.HasSubCommands() && len(args) > 0:
		text := fmt.Sprintf("%s has no command %q", shortPath(cmd), args[0])
		if !cmd.HasParent() {
			text = fmt.Sprintf("there is no command %q", args[0])
		}
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += fmt.Sprintf("; did you mean `%s %s`?", cmd.CommandPath(), near[0])
		}
		return text
	case takes == "" && len(args) > 0:
		return fmt.Sprintf("%s takes no arguments, but was given %q", shortPath(cmd), args[0])
	case len(args) == 0:
		return fmt.Sprintf("%s: %s is missing", shortPath(cmd), strings.TrimSuffix(takes, "..."))
	}
	return fmt.Sprintf("%s takes one %s, but was given %d arguments", shortPath(cmd), takes, len(args))
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 && (text == "" || text == "(devel)") {
			text = "devel " + setting.Value[:12]
		}
	}
	return text + " " + info.GoVersion
}
