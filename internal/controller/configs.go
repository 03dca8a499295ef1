package controller

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

const maxConfigLength = 32767

// AlteredResource is the outcome for one resource.
type AlteredResource struct {
	Resource metadata.ConfigResource
	Err      *Error
}

// AlterConfigsReply answers IncrementalAlterConfigs and AlterConfigs, in the order of the request.
type AlterConfigsReply struct{ Resources []AlteredResource }

// configChange is one wished change; value is nil for a removal.
type configChange struct {
	name  string
	value *string
}

// IncrementalAlterConfigs changes single settings. A resource is changed whole or not at all. The caller has
// taken out what the principal may not alter.
func (c *Controller) IncrementalAlterConfigs(at At, req *kmsg.IncrementalAlterConfigsRequest) Result {
	o := c.begin(at)
	var reply AlterConfigsReply
	seen := map[metadata.ConfigResource]int{}
	for _, r := range req.Resources {
		seen[metadata.ConfigResource{Type: int8(r.ResourceType), Name: r.ResourceName}]++
	}
	for _, r := range req.Resources {
		resource := metadata.ConfigResource{Type: int8(r.ResourceType), Name: r.ResourceName}
		err := o.checkResource(resource, seen[resource])
		var changes []configChange
		if err == nil {
			changes, err = o.incrementalChanges(resource, r.Configs)
		}
		if err == nil {
			err = o.applyConfigs(resource, changes)
		}
		reply.Resources = append(reply.Resources, AlteredResource{resource, err})
	}
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, reply)
}

// AlterConfigs replaces all settings of resources: those that are not named are removed.
func (c *Controller) AlterConfigs(at At, req *kmsg.AlterConfigsRequest) Result {
	o := c.begin(at)
	var reply AlterConfigsReply
	seen := map[metadata.ConfigResource]int{}
	for _, r := range req.Resources {
		seen[metadata.ConfigResource{Type: int8(r.ResourceType), Name: r.ResourceName}]++
	}
	for _, r := range req.Resources {
		resource := metadata.ConfigResource{Type: int8(r.ResourceType), Name: r.ResourceName}
		err := o.checkResource(resource, seen[resource])
		if err == nil {
			err = o.replaceConfigs(resource, r.Configs)
		}
		reply.Resources = append(reply.Resources, AlteredResource{resource, err})
	}
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, reply)
}

func (o *op) replaceConfigs(resource metadata.ConfigResource, wanted []kmsg.AlterConfigsRequestResourceConfig) *Error {
	stored := o.img.Config(resource)
	var changes []configChange
	named := map[string]bool{}
	for _, w := range wanted {
		if w.Value == nil {
			return faultf(ErrInvalidRequest, "the value of %s is null", w.Name)
		}
		if named[w.Name] {
			return faultf(ErrInvalidRequest, "%s is given twice", w.Name)
		}
		named[w.Name] = true
		changes = append(changes, configChange{w.Name, w.Value})
	}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if !named[name] {
			changes = append(changes, configChange{name, nil})
		}
	}
	return o.applyConfigs(resource, changes)
}

// checkResource says whether a resource can be altered: its type and name, and that it is named once. Whether it exists
// is asked last, after its values have been looked at, as in Kafka.
func (o *op) checkResource(r metadata.ConfigResource, times int) *Error {
	if times > 1 {
		return faultf(ErrInvalidRequest, "the request names the resource more than once")
	}
	switch r.Type {
	case metadata.ResourceTopic:
		if r.Name == "" {
			return faultf(ErrInvalidRequest, "Default topic resources are not allowed.")
		}
		if wrong := ValidTopicName(r.Name); wrong != "" {
			return faultf(ErrInvalidTopic, "%s", wrong)
		}
	case metadata.ResourceBroker:
		if r.Name == "" {
			return nil
		}
		id, err := strconv.ParseInt(r.Name, 10, 32)
		if err != nil || id < 0 {
			return faultf(ErrInvalidRequest, "broker name %q is not an id", r.Name)
		}
	case metadata.ResourceGroup:
		if r.Name == "" {
			return faultf(ErrInvalidRequest, "Default group resources are not allowed.")
		}
	case metadata.ResourceClientMetrics:
		if r.Name == "" {
			return faultf(ErrInvalidRequest, "Subscription name can't be empty")
		}
	case metadata.ResourceBrokerLogger:
		return faultf(ErrInvalidRequest, "loggers are altered at their broker")
	default:
		return faultf(ErrUnsupportedVersion, "config resource type %d is not known", r.Type)
	}
	return nil
}

// resourceExists says whether a topic or node is there; groups and subscriptions need not be.
func (o *op) resourceExists(r metadata.ConfigResource) *Error {
	switch r.Type {
	case metadata.ResourceTopic:
		if _, ok := o.img.Topic(r.Name); !ok {
			return faultf(ErrUnknownTopicOrPartition, "The topic '%s' does not exist.", r.Name)
		}
	case metadata.ResourceBroker:
		if r.Name == "" {
			return nil
		}
		id, err := strconv.ParseInt(r.Name, 10, 32)
		if err != nil {
			return faultf(ErrInvalidRequest, "broker name %q is not an id", r.Name)
		}
		_, isBroker := o.img.Broker(int32(id))
		_, isController := o.img.Controller(int32(id))
		if !isBroker && !isController && int32(id) != o.c.opt.NodeID {
			return faultf(ErrBrokerIDNotRegistered, "no node has id %d", id)
		}
	}
	return nil
}

// incrementalChanges turns operations into values.
func (o *op) incrementalChanges(resource metadata.ConfigResource, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig) ([]configChange, *Error) {
	var changes []configChange
	named := map[string]bool{}
	for _, x := range ops {
		if named[x.Name] {
			return nil, faultf(ErrInvalidRequest, "%s is given twice", x.Name)
		}
		named[x.Name] = true
		switch x.Op {
		case kmsg.IncrementalAlterConfigOpSet:
			changes = append(changes, configChange{x.Name, x.Value})
		case kmsg.IncrementalAlterConfigOpDelete:
			changes = append(changes, configChange{x.Name, nil})
		case kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract:
			def, known := definition(resource.Type, x.Name)
			if !known || def.Type != config.List {
				return nil, faultf(ErrInvalidConfig, "Can't %v to key %s because its type is not LIST.", x.Op, x.Name)
			}
			if x.Value == nil {
				return nil, faultf(ErrInvalidRequest, "the value of %s is null", x.Name)
			}
			value := o.listValue(resource, def)
			for _, part := range config.SplitList(*x.Value) {
				switch {
				case x.Op == kmsg.IncrementalAlterConfigOpSubtract:
					value = slices.DeleteFunc(value, func(v string) bool { return v == part })
				case !slices.Contains(value, part):
					value = append(value, part)
				}
			}
			changes = append(changes, configChange{x.Name, new(strings.Join(value, ","))})
		default:
			return nil, faultf(ErrInvalidRequest, "operation %d is not known", x.Op)
		}
	}
	return changes, nil
}

// definition finds a setting that lists may be appended to: of topics and brokers, as in Kafka, not of groups and
// subscriptions to metrics.
func definition(resource int8, name string) (*config.Def, bool) {
	switch resource {
	case metadata.ResourceTopic:
		return config.TopicDef(name)
	case metadata.ResourceBroker:
		return config.BrokerDef(name)
	}
	return nil, false
}

// listValue is what a list operation works on: the stored value, or else the default.
func (o *op) listValue(resource metadata.ConfigResource, def *config.Def) []string {
	if v, ok := o.img.ConfigValue(resource, def.Name); ok {
		return config.SplitList(v)
	}
	if def.Default != nil {
		return config.SplitList(*def.Default)
	}
	return nil
}

// applyConfigs validates the whole set as it would be and adds the records.
func (o *op) applyConfigs(resource metadata.ConfigResource, changes []configChange) *Error {
	after := o.img.Config(resource)
	for _, ch := range changes {
		if ch.value == nil {
			delete(after, ch.name)
			continue
		}
		if len(*ch.value) > maxConfigLength {
			return faultf(ErrInvalidConfig, "The configuration value cannot be more than %d characters: %s", maxConfigLength, ch.name)
		}
		after[ch.name] = *ch.value
	}
	if err := o.checkConfigs(resource, after, changes); err != nil {
		return err
	}
	if err := o.resourceExists(resource); err != nil {
		return err
	}
	stored := o.img.Config(resource)
	minISRChanged := false
	var recs []metadata.Record
	for _, ch := range changes {
		old, had := stored[ch.name]
		// A broker's settings are written again even when they are the same: the file that a value names may have changed.
		if resource.Type != metadata.ResourceBroker && (ch.value == nil && !had || ch.value != nil && had && old == *ch.value) {
			continue
		}
		minISRChanged = minISRChanged || ch.name == "min.insync.replicas"
		recs = append(recs, &metadata.ConfigRecord{ResourceType: resource.Type, ResourceName: resource.Name, Name: ch.name, Value: ch.value})
	}
	if minISRChanged && o.img.ELREnabled() {
		topic := ""
		if resource.Type == metadata.ResourceTopic {
			topic = resource.Name
		}
		recs = append(recs, &metadata.ClearELRRecord{TopicName: topic})
	}
	o.add(recs...)
	return nil
}

func (o *op) checkConfigs(resource metadata.ConfigResource, after map[string]string, changes []configChange) *Error {
	var err error
	switch resource.Type {
	case metadata.ResourceTopic:
		err = config.ValidateTopic(after)
	case metadata.ResourceGroup:
		err = o.c.layers(o.img).ValidateGroup(after)
	case metadata.ResourceClientMetrics:
		err = config.ValidateClientMetrics(after)
		if wrong := (*config.RequestError)(nil); errors.As(err, &wrong) {
			return faultf(ErrInvalidRequest, "%v", err)
		}
	case metadata.ResourceBroker:
		for _, ch := range changes {
			if ch.name == "min.insync.replicas" && o.img.ELREnabled() && (resource.Name != "" || ch.value == nil) {
				return faultf(ErrInvalidConfig, "with eligible leader replicas, min.insync.replicas is set for topics or for the whole cluster")
			}
			if ch.name == "cordoned.log.dirs" && o.img.MetadataVersion() < metadata.LevelCordonedDirs {
				return faultf(ErrInvalidConfig, "cordoned.log.dirs needs metadata.version %d", metadata.LevelCordonedDirs)
			}
		}
	}
	if err != nil {
		return faultf(ErrInvalidConfig, "%v", err)
	}
	return nil
}
