package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// configTarget is whose configuration a command means.
type configTarget struct {
	topic          string
	broker         int32
	allBrokers     bool
	brokerSelected bool
}

func (t *configTarget) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.topic, "topic", "t", "", "the configuration of this topic")
	cmd.Flags().Int32Var(&t.broker, "broker", -1, "the configuration of this broker")
	cmd.Flags().BoolVar(&t.allBrokers, "all-brokers", false, "the cluster-wide default of all brokers")
}

func (t *configTarget) check(cmd *cobra.Command) error {
	t.brokerSelected = cmd.Flags().Changed("broker")
	chosen := 0
	for _, set := range []bool{t.topic != "", t.brokerSelected, t.allBrokers} {
		if set {
			chosen++
		}
	}
	if chosen != 1 {
		return usagef("%s: name one of --topic, --broker, --all-brokers", shortPath(cmd))
	}
	return nil
}

func (t *configTarget) String() string {
	switch {
	case t.topic != "":
		return "topic " + t.topic
	case t.allBrokers:
		return "all brokers"
	}
	return "broker " + strconv.Itoa(int(t.broker))
}

// command is how the settings of t are listed.
func (t *configTarget) command() string {
	switch {
	case t.topic != "":
		return "stele config get --topic " + t.topic
	case t.allBrokers:
		return "stele config get --all-brokers"
	}
	return "stele config get --broker " + strconv.Itoa(int(t.broker))
}

// failed says of a request that no broker could take why that is so.
func (t *configTarget) failed(what string, err error) error {
	what += " the configuration of " + t.String()
	var protocol *kerr.Error
	if t.brokerSelected && !errors.As(err, &protocol) && strings.Contains(err.Error(), "unknown broker") {
		return fmt.Errorf("%s: there is no such broker; `stele cluster describe` lists them", what)
	}
	return failed(what, err)
}

func (t *configTarget) brokers() []int32 {
	if t.allBrokers {
		return nil
	}
	return []int32{t.broker}
}

func newConfig(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and change the configuration of topics and brokers",
		Example: `  stele config get --topic orders
  stele config set --topic orders retention.ms=3600000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigGet(e), newConfigSet(e))
	return cmd
}

func newConfigGet(e *env) *cobra.Command {
	var target configTarget
	var all bool
	cmd := &cobra.Command{
		Use:   "get [NAME...]",
		Short: "Show settings, their values and where each comes from",
		Example: `  stele config get --topic orders
  stele config get --topic orders retention.ms
  stele config get --broker 1 --all --output json`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := target.check(cmd); err != nil {
				return err
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				entries, err := describeConfigs(ctx, admin, target)
				if err != nil {
					return err
				}
				return e.showConfigs(target, entries, names, all)
			})
		},
	}
	target.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show defaults too, not only what was set")
	return cmd
}

func describeConfigs(ctx context.Context, admin *kadm.Client, target configTarget) ([]kadm.Config, error) {
	var resources kadm.ResourceConfigs
	var err error
	if target.topic != "" {
		resources, err = admin.DescribeTopicConfigs(ctx, target.topic)
	} else {
		resources, err = admin.DescribeBrokerConfigs(ctx, target.brokers()...)
	}
	if err != nil {
		return nil, target.failed("show", err)
	}
	var entries []kadm.Config
	for _, resource := range resources {
		if resource.Err != nil {
			return nil, failed("show the configuration of "+target.String(), resource.Err, resource.ErrMessage)
		}
		entries = append(entries, resource.Configs...)
	}
	slices.SortFunc(entries, func(a, b kadm.Config) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

func (e *env) showConfigs(target configTarget, entries []kadm.Config, names []string, all bool) error {
	rows := []configView{}
	t := table{header: []string{"NAME", "VALUE", "SOURCE"}}
	found := map[string]bool{}
	for _, entry := range entries {
		if len(names) > 0 && !slices.Contains(names, entry.Key) {
			continue
		}
		if len(names) == 0 && !all && entry.Source == kmsg.ConfigSourceDefaultConfig {
			continue
		}
		found[entry.Key] = true
		value := entry.MaybeValue()
		if entry.Sensitive {
			value = "(hidden)"
		}
		rows = append(rows, configView{entry.Key, value, entry.Source.String()})
		t.add(entry.Key, value, entry.Source)
	}
	for _, name := range names {
		if !found[name] {
			return fmt.Errorf("show the configuration of %s: no setting is called %s; `%s --all` lists them", target.String(), name, target.command())
		}
	}
	return e.show(rows, t)
}

func newConfigSet(e *env) *cobra.Command {
	var target configTarget
	var removals []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "set NAME=VALUE...",
		Short: "Change settings, or remove them so that the default holds again",
		Example: `  stele config set --topic orders retention.ms=3600000 flush.messages=1
  stele config set --topic orders --delete retention.ms
  stele config set --all-brokers log.retention.ms=86400000`,
		RunE: func(cmd *cobra.Command, settings []string) error {
			if err := target.check(cmd); err != nil {
				return err
			}
			changes, err := parseChanges(settings, removals)
			if err != nil {
				return err
			}
			if len(changes) == 0 {
				return usagef("config set: nothing to change: give NAME=VALUE or --delete NAME")
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				if err := checkRemovals(ctx, admin, target, removals); err != nil {
					return err
				}
				return e.setConfigs(ctx, admin, target, changes, dryRun)
			})
		},
	}
	target.flags(cmd)
	cmd.Flags().StringArrayVar(&removals, "delete", nil, "setting to remove, by name; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the broker check the change without making it")
	return cmd
}

// checkRemovals refuses to remove what is no setting: brokers take that for done. Of all
// brokers nobody lists what could be set, so any name goes.
func checkRemovals(ctx context.Context, admin *kadm.Client, target configTarget, names []string) error {
	if len(names) == 0 || target.allBrokers {
		return nil
	}
	entries, err := describeConfigs(ctx, admin, target)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(entries, func(c kadm.Config) bool { return c.Key == name }) {
			return fmt.Errorf("change the configuration of %s: no setting is called %s; `%s --all` lists them", target.String(), name, target.command())
		}
	}
	return nil
}

func (e *env) setConfigs(ctx context.Context, admin *kadm.Client, target configTarget, changes []kadm.AlterConfig, dryRun bool) error {
	var results kadm.AlterConfigsResponses
	var err error
	switch {
	case target.topic != "" && dryRun:
		results, err = admin.ValidateAlterTopicConfigs(ctx, changes, target.topic)
	case target.topic != "":
		results, err = admin.AlterTopicConfigs(ctx, changes, target.topic)
	case dryRun:
		results, err = admin.ValidateAlterBrokerConfigs(ctx, changes, target.brokers()...)
	default:
		results, err = admin.AlterBrokerConfigs(ctx, changes, target.brokers()...)
	}
	what := "change the configuration of " + target.String()
	if err != nil {
		return target.failed("change", err)
	}
	for _, result := range results {
		if result.Err != nil {
			return failed(what, result.Err, result.ErrMessage)
		}
	}
	if dryRun {
		if e.output == "json" {
			return e.done("checked", target.String())
		}
		e.say("the change of %s is valid; nothing was changed (--dry-run)", target.String())
		return nil
	}
	awaitConfigs(ctx, admin, target, changes)
	return e.done("changed", target.String())
}

// awaitConfigs waits, for a second at most, until the broker that is asked has read the
// change from the metadata log, so that whoever made it sees it.
func awaitConfigs(ctx context.Context, admin *kadm.Client, target configTarget, changes []kadm.AlterConfig) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		entries, err := describeConfigs(ctx, admin, target)
		shown := map[string]kadm.Config{}
		for _, entry := range entries {
			shown[entry.Key] = entry
		}
		pending := slices.ContainsFunc(changes, func(c kadm.AlterConfig) bool {
			entry, ok := shown[c.Name]
			dynamic := ok && (entry.Source == kmsg.ConfigSourceDynamicTopicConfig || entry.Source == kmsg.ConfigSourceDynamicBrokerConfig || entry.Source == kmsg.ConfigSourceDynamicDefaultBrokerConfig)
			return dynamic != (c.Op == kadm.SetConfig) || dynamic && !entry.Sensitive && entry.MaybeValue() != *c.Value
		})
		if err == nil && !pending {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
