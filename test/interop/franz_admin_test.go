//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// admin is kadm.
func (f franz) admin(ctx context.Context, r adminRequest) (a adminAnswer, err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return a, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	set := func(op kadm.IncrementalOp) (list []kadm.AlterConfig) {
		for k, v := range r.Configs {
			list = append(list, kadm.AlterConfig{Op: op, Name: k, Value: &v})
		}
		return list
	}
	switch r.Do {
	case "create-topic":
		configs := map[string]*string{}
		for k, v := range r.Configs {
			configs[k] = &v
		}
		_, err = adm.CreateTopic(ctx, r.Partitions, 1, configs, r.Topic)
	case "list-topics":
		list, err := adm.ListTopics(ctx)
		a.Names = list.Names()
		return a, err
	case "describe-topic":
		list, err := adm.ListTopics(ctx, r.Topic)
		a.Partitions = int32(len(list[r.Topic].Partitions))
		return a, errors.Join(err, list[r.Topic].Err)
	case "create-partitions":
		list, err := adm.UpdatePartitions(ctx, int(r.Partitions), r.Topic)
		return a, errors.Join(err, list.Error())
	case "describe-configs":
		list, err := adm.DescribeTopicConfigs(ctx, r.Topic)
		if err != nil {
			return a, err
		}
		of, err := list.On(r.Topic, nil)
		a.Configs = map[string]string{}
		for _, c := range of.Configs {
			a.Configs[c.Key] = c.MaybeValue()
		}
		return a, errors.Join(err, of.Err)
	case "alter-configs":
		list, err := adm.AlterTopicConfigsState(ctx, set(kadm.SetConfig), r.Topic)
		if err != nil {
			return a, err
		}
		_, err = list.On(r.Topic, func(x *kadm.AlterConfigsResponse) error { return x.Err })
		return a, err
	case "incremental-configs":
		list, err := adm.AlterTopicConfigs(ctx, set(kadm.SetConfig), r.Topic)
		if err != nil {
			return a, err
		}
		_, err = list.On(r.Topic, func(x *kadm.AlterConfigsResponse) error { return x.Err })
		return a, err
	case "list-offsets":
		list, err := adm.ListEndOffsets(ctx, r.Topic)
		o, _ := list.Lookup(r.Topic, r.Partition)
		a.Offset = o.Offset
		return a, errors.Join(err, o.Err)
	case "delete-records":
		var to kadm.Offsets
		to.AddOffset(r.Topic, r.Partition, r.Offset, -1)
		list, err := adm.DeleteRecords(ctx, to)
		return a, errors.Join(err, list.Error())
	case "list-groups":
		list, err := adm.ListGroups(ctx)
		a.Names = list.Groups()
		return a, err
	case "describe-group":
		list, err := adm.DescribeGroups(ctx, r.Group)
		a.State = list[r.Group].State
		return a, errors.Join(err, list[r.Group].Err)
	case "group-offset":
		list, err := adm.FetchOffsets(ctx, r.Group)
		o, ok := list.Lookup(r.Topic, r.Partition)
		if !ok {
			return a, errors.Join(err, errors.New("the group has no offset there"))
		}
		a.Offset = o.At
		return a, errors.Join(err, o.Err)
	case "set-group-offset":
		var to kadm.Offsets
		to.AddOffset(r.Topic, r.Partition, r.Offset, -1)
		err = adm.CommitAllOffsets(ctx, r.Group, to)
	case "delete-group-offset":
		var which kadm.TopicsSet
		which.Add(r.Topic, r.Partition)
		list, err := adm.DeleteOffsets(ctx, r.Group, which)
		return a, errors.Join(err, list.Error())
	case "delete-group":
		_, err = adm.DeleteGroup(ctx, r.Group)
	case "delete-topic":
		_, err = adm.DeleteTopic(ctx, r.Topic)
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	return a, err
}
