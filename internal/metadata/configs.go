package metadata

import (
	"cmp"
	"strings"

	"github.com/stelelog/stele/internal/config"
)

// Types of configuration resources.
const (
	ResourceTopic         int8 = 2
	ResourceBroker        int8 = 4
	ResourceBrokerLogger  int8 = 8
	ResourceClientMetrics int8 = 16
	ResourceGroup         int8 = 32
)

// ConfigResource is something that has settings. A broker's name is its id as text, or "" for all brokers.
type ConfigResource struct {
	Type int8
	Name string
}

func (r ConfigResource) compare(o ConfigResource) int {
	return cmp.Or(cmp.Compare(r.Type, o.Type), strings.Compare(r.Name, o.Name))
}

// Config is the stored settings of a resource, a new map each time; empty when it has none.
func (i *Image) Config(resource ConfigResource) map[string]string {
	values, ok := i.configs.Get(resource)
	if !ok {
		return map[string]string{}
	}
	out := make(map[string]string, values.Len())
	for name, value := range values.All() {
		out[name] = value
	}
	return out
}

// ConfigValue is one stored setting of a resource.
func (i *Image) ConfigValue(resource ConfigResource, name string) (string, bool) {
	values, ok := i.configs.Get(resource)
	if !ok {
		return "", false
	}
	return values.Get(name)
}

// ConfigResources are all resources with stored settings.
func (i *Image) ConfigResources() Map[ConfigResource, Map[string, string]] { return i.configs }

func (d *Delta) replayConfig(r *ConfigRecord) {
	i := &d.next
	resource := ConfigResource{r.ResourceType, r.ResourceName}
	values, ok := i.configs.Get(resource)
	if !ok {
		values = newOrderedMap[string, string]()
	}
	if r.Value == nil {
		values = values.Delete(r.Name)
	} else {
		// A topic setting of another release is dropped, so that it is gone with the next snapshot. Broker
		// settings are kept whatever their name: listeners and plug-ins bring names of their own.
		if _, known := config.TopicDef(r.Name); r.ResourceType == ResourceTopic && !known {
			return
		}
		values = values.Set(r.Name, *r.Value)
	}
	d.Configs[resource] = true
	if values.Len() == 0 {
		i.configs = i.configs.Delete(resource)
	} else {
		i.configs = i.configs.Set(resource, values)
	}
}

func (i *Image) configRecords(yield func(Record) bool) bool {
	for resource, values := range i.configs.All() {
		for name, value := range values.All() {
			if !yield(&ConfigRecord{ResourceType: resource.Type, ResourceName: resource.Name, Name: name, Value: new(value)}) {
				return false
			}
		}
	}
	return true
}
