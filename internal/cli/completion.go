package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

// completionTimeout bounds how long a shell waits for names when TAB is pressed.
const completionTimeout = 2 * time.Second

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// addCompletions lets the shell complete the names of topics and groups, as the cluster
// has them at that moment.
func (e *env) addCompletions(root *cobra.Command) {
	topics := e.complete(func(ctx context.Context, admin *kadm.Client) ([]string, error) {
		listed, err := admin.ListTopics(ctx)
		return listed.Names(), err
	})
	groups := e.complete(func(ctx context.Context, admin *kadm.Client) ([]string, error) {
		listed, err := admin.ListGroups(ctx)
		return listed.Groups(), err
	})
	for path, complete := range map[string]completer{
		"produce": topics, "consume": topics, "topic describe": topics, "topic alter": topics, "topic delete": topics, "topic producers": topics,
		"group describe": groups, "group delete": groups, "group reset-offsets": groups,
	} {
		if cmd, _, err := root.Find(strings.Fields(path)); err == nil {
			cmd.ValidArgsFunction = complete
		}
	}
	none := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveNoFileComp)
	for _, path := range []string{"serve", "topic list", "topic create", "group list", "config get", "config set", "cluster describe", "cluster log-dirs", "cluster unregister", "cluster voters list", "cluster voters add", "cluster voters remove", "quota list", "quota set"} {
		if cmd, _, err := root.Find(strings.Fields(path)); err == nil {
			cmd.ValidArgsFunction = none
		}
	}
	for path, flags := range map[string]map[string]completer{
		"consume": {"group": groups}, "group reset-offsets": {"topic": topics}, "config get": {"topic": topics}, "config set": {"topic": topics},
	} {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			continue
		}
		for flag, complete := range flags {
			_ = cmd.RegisterFlagCompletionFunc(flag, complete)
		}
	}
}

func (e *env) complete(list func(context.Context, *kadm.Client) ([]string, error)) completer {
	return func(cmd *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		var found []string
		err := e.admin(ctx, cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
			names, err := list(ctx, admin)
			for _, name := range names {
				if strings.HasPrefix(name, prefix) {
					found = append(found, name)
				}
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
