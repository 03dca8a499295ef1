package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func newClusterFeatures(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "features",
		Short: "The cluster's feature levels: describe, upgrade, downgrade",
		Example: `  stele cluster features describe
  stele cluster features upgrade metadata.version=33 --dry-run
  stele cluster features downgrade eligible.leader.replicas.version=0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFeaturesDescribe(e), newFeaturesChange(e, "upgrade", upgradeFeatures), newFeaturesChange(e, "downgrade", downgradeFeatures))
	return cmd
}

// Ways to change a feature's level, as the protocol numbers them.
const (
	upgradeFeatures   int8 = 1
	downgradeFeatures int8 = 2
)

func newFeaturesDescribe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "describe",
		Short:   "List features with their levels and what is served of them",
		Example: "  stele cluster features describe",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				view := clusterView{Features: []featureView{}}
				if err := describeFeatures(ctx, client, &view); err != nil {
					return err
				}
				return e.show(view.Features, featureTable(view.Features))
			})
		},
	}
}

func featureTable(features []featureView) table {
	t := table{header: []string{"FEATURE", "LEVEL", "SERVED"}}
	for _, f := range features {
		served := fmt.Sprintf("%d-%d", f.Min, f.Max)
		if f.Max == 0 {
			served = "-"
		}
		t.add(f.Name, f.Level, served)
	}
	return t
}

func newFeaturesChange(e *env, word string, kind int8) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   word + " NAME=LEVEL...",
		Short: map[int8]string{upgradeFeatures: "Raise features to levels that every node serves", downgradeFeatures: "Lower features, where that loses nothing"}[kind],
		Long: map[int8]string{
			upgradeFeatures: `Raise features to levels that every node serves, all of them or none. Upgrade every node
first: a level that one of them does not know is refused. There is no way back over a level that
changed what is stored.`,
			downgradeFeatures: `Lower features, all of them or none. Where a level in between changed what is stored, nothing
is changed.`,
		}[kind],
		Example: map[int8]string{
			upgradeFeatures:   "  stele cluster features upgrade metadata.version=33\n  stele cluster features upgrade eligible.leader.replicas.version=1 --dry-run",
			downgradeFeatures: "  stele cluster features downgrade eligible.leader.replicas.version=0",
		}[kind],
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := kmsg.NewPtrUpdateFeaturesRequest()
			req.ValidateOnly = dryRun
			for _, arg := range args {
				name, level, ok := strings.Cut(arg, "=")
				n, err := strconv.ParseInt(level, 10, 16)
				if !ok || name == "" || err != nil {
					return usagef("cluster features %s %s: write name=level, such as metadata.version=33", word, arg)
				}
				one := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
				one.Feature, one.MaxVersionLevel, one.UpgradeType, one.AllowDowngrade = name, int16(n), kind, kind == downgradeFeatures
				req.FeatureUpdates = append(req.FeatureUpdates, one)
			}
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				resp, err := req.RequestWith(ctx, client)
				text := ""
				if err == nil {
					err, text = kerr.ErrorForCode(resp.ErrorCode), textOf(resp.ErrorMessage)
				}
				if err != nil {
					return failed(word+" "+strings.Join(args, " "), err, text)
				}
				if dryRun {
					e.say("the change is valid; nothing was changed")
					return nil
				}
				return e.done(word+"d", args...)
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check the change, and change nothing")
	return cmd
}
