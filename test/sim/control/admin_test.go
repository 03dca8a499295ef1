package control

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
)

// admin is an administrator: one operation after another, each brought to whoever is thought to be the active controller.
type admin struct {
	w      *world
	id     int32
	leader int32
}

const (
	topicNames = 8
	userNames  = 3
)

// operation is one that an administrator makes; in and out are for the history, in nil where it has no model.
type operation struct {
	key  string
	in   *input
	what string
	run  func(c *controller.Controller, at controller.At) controller.Result
	// read turns the reply into what the model says of it.
	read func(reply any) output
}

func (a *admin) start() { a.w.after(a.w.between(0, time.Second), a.next) }

func (a *admin) next() {
	op := a.choose()
	a.w.count("admin operations")
	called := a.w.now
	r := &request{w: a.w, what: op.what, run: op.run}
	a.try(r, op, called, 0)
}

// try brings the request to one controller after another until one has carried it out, or may have.
func (a *admin) try(r *request, op *operation, called time.Duration, attempts int) {
	if a.leader < 0 {
		a.leader = pick(a.w.loop, a.w.serverIDs)
	}
	rest := func() { a.w.after(a.w.between(0, 700*time.Millisecond), a.next) }
	r.send(a.id, a.leader, 3*time.Second, func(x answer, ok bool) {
		if !ok || x.err != nil && !isFault(x.err) {
			a.leader = -1
		}
		switch {
		case ok && x.err == nil || ok && isFault(x.err):
			a.w.counts["admin operations answered"]++
			a.w.mark("answer", int64(a.id), r.next)
			a.w.history.add(a, op, r, called, a.w.now, op.result(x))
			rest()
		case ok && notExecuted(r, x.err) && attempts < 20:
			a.w.after(a.w.between(10*time.Millisecond, 200*time.Millisecond), func() { a.try(r, op, called, attempts+1) })
		default:
			a.w.count("admin operations in doubt")
			a.w.history.doubt(a, op, r, called)
			rest()
		}
	})
}

func isFault(err error) bool {
	var fault *controller.Error
	return errors.As(err, &fault)
}

func (op *operation) result(x answer) output {
	if x.err != nil {
		return output{fault: cause(x.err)}
	}
	if op.read == nil {
		return output{}
	}
	return op.read(x.reply)
}

// cause is the fault without its text.
func cause(err error) error {
	var fault *controller.Error
	if errors.As(err, &fault) && fault != nil {
		return fault.Err
	}
	return err
}

func faultOf(e *controller.Error) error {
	if e == nil {
		return nil
	}
	return e.Err
}

func (a *admin) choose() *operation {
	name := fmt.Sprint("topic-", a.w.rng.IntN(topicNames))
	switch n := a.w.rng.IntN(100); {
	case n < 16:
		return a.create(name)
	case n < 24:
		return a.remove(name)
	case n < 31:
		return a.grow(name)
	case n < 45:
		return a.configure(metadata.ResourceTopic, name)
	case n < 65:
		return a.look(name)
	case n < 70:
		return a.configure(metadata.ResourceBroker, "")
	case n < 80:
		return a.quota(fmt.Sprint("user-", a.w.rng.IntN(userNames)))
	case n < 88:
		return a.reassign(name)
	case n < 94:
		return a.elect(name)
	case n < 97:
		return a.feature()
	case a.w.calm:
		return a.look(name)
	default:
		return a.unregister()
	}
}

func (a *admin) create(name string) *operation {
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, 1+a.w.rng.Int32N(5), 1+int16(a.w.rng.IntN(3))
	if a.w.chance(30) {
		unclean := kmsg.NewCreateTopicsRequestTopicConfig()
		unclean.Name, unclean.Value = "unclean.leader.election.enable", new("true")
		t.Configs = append(t.Configs, unclean)
	}
	if a.w.chance(30) {
		minimum := kmsg.NewCreateTopicsRequestTopicConfig()
		minimum.Name, minimum.Value = "min.insync.replicas", new("2")
		t.Configs = append(t.Configs, minimum)
	}
	req.Topics = append(req.Topics, t)
	in := &input{kind: opCreate, number: t.NumPartitions}
	return &operation{key: name, in: in, what: "creating " + name, run: func(c *controller.Controller, at controller.At) controller.Result {
		result := c.CreateTopics(at, req)
		if reply, ok := result.Reply.(controller.CreateTopicsReply); ok {
			in.id = reply.Topics[0].TopicID
		}
		return result
	}, read: func(reply any) output {
		return output{fault: faultOf(reply.(controller.CreateTopicsReply).Topics[0].Err)}
	}}
}

func (a *admin) remove(name string) *operation {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	return &operation{key: name, in: &input{kind: opDelete}, what: "deleting " + name, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.DeleteTopics(at, req)
	}, read: func(reply any) output {
		return output{fault: faultOf(reply.(controller.DeleteTopicsReply).Topics[0].Err)}
	}}
}

func (a *admin) grow(name string) *operation {
	req := kmsg.NewPtrCreatePartitionsRequest()
	t := kmsg.NewCreatePartitionsRequestTopic()
	t.Topic, t.Count = name, 2+a.w.rng.Int32N(7)
	req.Topics = append(req.Topics, t)
	return &operation{key: name, in: &input{kind: opGrow, number: t.Count}, what: "adding partitions to " + name, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreatePartitions(at, req)
	}, read: func(reply any) output {
		return output{fault: faultOf(reply.(controller.CreatePartitionsReply).Topics[0].Err)}
	}}
}

func (a *admin) configure(kind int8, name string) *operation {
	setting, key := "retention.ms", name
	if kind == metadata.ResourceBroker {
		setting, key = "log.retention.ms", "cluster"
	}
	a.w.serial++
	in := &input{kind: opSet, value: fmt.Sprint(1_000_000 + a.w.serial)}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceType(kind), name
	one := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	one.Name, one.Op, one.Value = setting, kmsg.IncrementalAlterConfigOpSet, &in.value
	if a.w.chance(15) {
		one.Op, one.Value, in.value = kmsg.IncrementalAlterConfigOpDelete, nil, ""
	}
	res.Configs = append(res.Configs, one)
	req.Resources = append(req.Resources, res)
	return &operation{key: key, in: in, what: "configuring " + key, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.IncrementalAlterConfigs(at, req)
	}, read: func(reply any) output {
		return output{fault: faultOf(reply.(controller.AlterConfigsReply).Resources[0].Err)}
	}}
}

// look reads a topic, or a register, as everything before left it.
func (a *admin) look(name string) *operation {
	key := name
	switch {
	case a.w.chance(10):
		key = "cluster"
	case a.w.chance(20):
		key = fmt.Sprint("user-", a.w.rng.IntN(userNames))
	case a.w.chance(10):
		key = "metadata.version"
	}
	return &operation{key: key, in: &input{kind: opRead}, what: "reading " + key, run: func(c *controller.Controller, _ controller.At) controller.Result {
		return controller.Result{Reply: state(c.Image(), key)}
	}, read: func(reply any) output { return output{state: reply.(register)} }}
}

func entity(user string) []metadata.QuotaEntity {
	return []metadata.QuotaEntity{{EntityType: "user", EntityName: &user}}
}

func (a *admin) quota(user string) *operation {
	a.w.serial++
	in := &input{kind: opSet, value: fmt.Sprint(1000 + a.w.serial)}
	req := kmsg.NewPtrAlterClientQuotasRequest()
	e := kmsg.NewAlterClientQuotasRequestEntry()
	e.Entity = append(e.Entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: "user", Name: &user})
	op := kmsg.NewAlterClientQuotasRequestEntryOp()
	op.Key, op.Value = "producer_byte_rate", float64(1000+a.w.serial)
	if a.w.chance(20) {
		op.Remove, in.value = true, ""
	}
	e.Ops = append(e.Ops, op)
	req.Entries = append(req.Entries, e)
	return &operation{key: user, in: in, what: "a quota of " + user, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterClientQuotas(at, req)
	}, read: func(reply any) output {
		return output{fault: faultOf(reply.(controller.AlterClientQuotasReply).Entries[0].Err)}
	}}
}

func (a *admin) reassign(name string) *operation {
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	t.Topic = name
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition = a.w.rng.Int32N(3)
	if !a.w.chance(20) {
		for _, i := range a.w.rng.Perm(len(a.w.brokers))[:1+a.w.rng.IntN(3)] {
			p.Replicas = append(p.Replicas, a.w.brokers[i].id)
		}
	}
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return &operation{what: "reassigning " + name, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterPartitionAssignments(at, req)
	}}
}

func (a *admin) elect(name string) *operation {
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType = int8(a.w.rng.IntN(2))
	if !a.w.chance(30) {
		t := kmsg.NewElectLeadersRequestTopic()
		t.Topic, t.Partitions = name, []int32{0, 1}
		req.Topics = append(req.Topics, t)
	}
	return &operation{what: "electing leaders of " + name, run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.ElectLeaders(at, req)
	}}
}

// feature moves metadata.version or turns eligible leaders on or off.
func (a *admin) feature() *operation {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.Version = 1
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.UpgradeType = int8(1 + a.w.rng.IntN(2))
	if a.w.chance(50) {
		u.Feature, u.MaxVersionLevel = metadata.FeatureELR, int16(a.w.rng.IntN(2))
		req.FeatureUpdates = append(req.FeatureUpdates, u)
		return &operation{what: "a feature", run: func(c *controller.Controller, at controller.At) controller.Result {
			return c.UpdateFeatures(at, req)
		}}
	}
	u.Feature, u.MaxVersionLevel = metadata.FeatureMetadataVersion, int16(metadata.LevelLatest)-int16(a.w.rng.IntN(4))
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	in := &input{kind: opSet, value: fmt.Sprint(u.MaxVersionLevel)}
	return &operation{key: "metadata.version", in: in, what: "metadata.version", run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.UpdateFeatures(at, req)
	}}
}

func (a *admin) unregister() *operation {
	id := pick(a.w.loop, a.w.brokers).id
	return &operation{what: fmt.Sprint("unregistering broker ", id), run: func(c *controller.Controller, at controller.At) controller.Result {
		return c.UnregisterBroker(at, id)
	}}
}
