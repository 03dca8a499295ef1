package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// quotaEntity is whose quotas a command means. A name that was not given is not part of it; of those that were,
// an empty one stands for the default of its kind.
type quotaEntity struct {
	user, clientID, ip string
	given              []string // types, in the order of Kafka's names
}

func (q *quotaEntity) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&q.user, "user", "u", "", "quotas of this user; '' for all users that have none of their own")
	cmd.Flags().StringVarP(&q.clientID, "client-id", "c", "", "quotas of this client id; '' for all that have none of their own")
	cmd.Flags().StringVar(&q.ip, "ip", "", "quotas of this address; '' for all that have none of their own")
}

func (q *quotaEntity) check(cmd *cobra.Command) error {
	q.given = nil
	for _, flag := range []string{"user", "client-id", "ip"} {
		if cmd.Flags().Changed(flag) {
			q.given = append(q.given, flag)
		}
	}
	if len(q.given) > 1 && slices.Contains(q.given, "ip") {
		return usagef("%s: --ip stands alone: addresses have quotas of their own", shortPath(cmd))
	}
	return nil
}

func (q *quotaEntity) name(kind string) string {
	return map[string]string{"user": q.user, "client-id": q.clientID, "ip": q.ip}[kind]
}

func (q *quotaEntity) entity() kadm.ClientQuotaEntity {
	var entity kadm.ClientQuotaEntity
	for _, kind := range q.given {
		part := kadm.ClientQuotaEntityComponent{Type: kind}
		if name := q.name(kind); name != "" {
			part.Name = &name
		}
		entity = append(entity, part)
	}
	return entity
}

func (q *quotaEntity) filter() []kadm.DescribeClientQuotaComponent {
	var filter []kadm.DescribeClientQuotaComponent
	for _, kind := range q.given {
		m := kadm.DescribeClientQuotaComponent{Type: kind, MatchType: kmsg.QuotasMatchTypeDefault}
		if name := q.name(kind); name != "" {
			m.MatchName, m.MatchType = &name, kmsg.QuotasMatchTypeExact
		}
		filter = append(filter, m)
	}
	return filter
}

// entityText shows an entity: user=ann,client-id=<default>.
func entityText(entity kadm.ClientQuotaEntity) string {
	var parts []string
	for _, part := range entity {
		name := "<default>"
		if part.Name != nil {
			name = *part.Name
		}
		parts = append(parts, part.Type+"="+name)
	}
	slices.Sort(parts)
	slices.Reverse(parts) // user before client-id
	return strings.Join(parts, ",")
}

func newQuota(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Show and change the quotas of users, client ids and addresses",
		Long: `Show and change the quotas of users, client ids and addresses.

Quotas are stored, and shown to every tool that asks. This version does not hold clients to them yet.`,
		Example: `  stele quota set --user ann producer_byte_rate=1048576
  stele quota list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newQuotaList(e), newQuotaSet(e))
	return cmd
}

type quotaView struct {
	Entity map[string]string  `json:"entity"` // a default's name is ""
	Quotas map[string]float64 `json:"quotas"`
}

func newQuotaList(e *env) *cobra.Command {
	var of quotaEntity
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List quotas, all of them or those of an entity",
		Example: `  stele quota list
  stele quota list --user ann
  stele quota list --user '' --client-id ''`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := of.check(cmd); err != nil {
				return err
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				found, err := admin.DescribeClientQuotas(ctx, false, of.filter())
				if err != nil {
					return failed("list quotas", err)
				}
				return e.showQuotas(found)
			})
		},
	}
	of.flags(cmd)
	return cmd
}

func (e *env) showQuotas(found kadm.DescribedClientQuotas) error {
	slices.SortFunc(found, func(a, b kadm.DescribedClientQuota) int {
		return strings.Compare(entityText(a.Entity), entityText(b.Entity))
	})
	views := []quotaView{}
	t := table{header: []string{"ENTITY", "QUOTA", "VALUE"}}
	for _, quota := range found {
		view := quotaView{Entity: map[string]string{}, Quotas: map[string]float64{}}
		for _, part := range quota.Entity {
			view.Entity[part.Type] = ""
			if part.Name != nil {
				view.Entity[part.Type] = *part.Name
			}
		}
		slices.SortFunc(quota.Values, func(a, b kadm.ClientQuotaValue) int { return strings.Compare(a.Key, b.Key) })
		for _, value := range quota.Values {
			view.Quotas[value.Key] = value.Value
			t.add(entityText(quota.Entity), value.Key, strconv.FormatFloat(value.Value, 'f', -1, 64))
		}
		views = append(views, view)
	}
	return e.show(views, t)
}

func newQuotaSet(e *env) *cobra.Command {
	var of quotaEntity
	var removals []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "set QUOTA=NUMBER...",
		Short: "Set quotas of an entity, or remove them",
		Long: `Set quotas of an entity, or remove them.

Users and client ids: producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage,
controller_mutation_rate. Addresses: connection_creation_rate (per second).

Quotas are stored. This version does not hold clients to them yet.`,
		Example: `  stele quota set --user ann producer_byte_rate=1048576 consumer_byte_rate=2097152
  stele quota set --user ann --client-id import request_percentage=50
  stele quota set --user '' --delete producer_byte_rate
  stele quota set --ip 10.0.0.7 connection_creation_rate=20`,
		RunE: func(cmd *cobra.Command, settings []string) error {
			if err := of.check(cmd); err != nil {
				return err
			}
			if len(of.given) == 0 {
				return usagef("quota set: whose? give --user, --client-id, both, or --ip")
			}
			ops, err := quotaOps(settings, removals)
			if err != nil {
				return err
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				return e.setQuotas(ctx, admin, of, ops, dryRun)
			})
		},
	}
	of.flags(cmd)
	cmd.Flags().StringArrayVar(&removals, "delete", nil, "quota to remove, by name; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the cluster check the change without making it")
	return cmd
}

func quotaOps(settings, removals []string) ([]kadm.AlterClientQuotaOp, error) {
	var ops []kadm.AlterClientQuotaOp
	for _, setting := range settings {
		key, text, ok := strings.Cut(setting, "=")
		value, err := strconv.ParseFloat(text, 64)
		if !ok || key == "" || err != nil {
			return nil, usagef("quota set: %q is no quota; write QUOTA=NUMBER", setting)
		}
		ops = append(ops, kadm.AlterClientQuotaOp{Key: key, Value: value})
	}
	for _, key := range removals {
		ops = append(ops, kadm.AlterClientQuotaOp{Key: key, Remove: true})
	}
	if len(ops) == 0 {
		return nil, usagef("quota set: nothing to change: give QUOTA=NUMBER or --delete QUOTA")
	}
	return ops, nil
}

func (e *env) setQuotas(ctx context.Context, admin *kadm.Client, of quotaEntity, ops []kadm.AlterClientQuotaOp, dryRun bool) error {
	alter := admin.AlterClientQuotas
	if dryRun {
		alter = admin.ValidateAlterClientQuotas
	}
	text := entityText(of.entity())
	results, err := alter(ctx, []kadm.AlterClientQuotaEntry{{Entity: of.entity(), Ops: ops}})
	if err != nil {
		return failed("change the quotas of "+text, err)
	}
	for _, result := range results {
		if result.Err != nil {
			return failed("change the quotas of "+text, result.Err, result.ErrMessage)
		}
	}
	if dryRun {
		if e.output == "json" {
			return e.done("checked", text)
		}
		e.say("the change of %s is valid; nothing was changed (--dry-run)", text)
		return nil
	}
	awaitQuotas(ctx, admin, of, ops)
	fmt.Fprintln(e.err, "note: quotas are stored, and clients are not held to them yet")
	return e.done("changed", text)
}

// awaitQuotas waits, for a second at most, until the broker that is asked has read the change.
func awaitQuotas(ctx context.Context, admin *kadm.Client, of quotaEntity, ops []kadm.AlterClientQuotaOp) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		shown := map[string]float64{}
		found, err := admin.DescribeClientQuotas(ctx, true, of.filter())
		for _, quota := range found {
			for _, value := range quota.Values {
				shown[value.Key] = value.Value
			}
		}
		pending := slices.ContainsFunc(ops, func(op kadm.AlterClientQuotaOp) bool {
			value, ok := shown[op.Key]
			return ok == op.Remove || ok && value != op.Value
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
