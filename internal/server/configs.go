package server

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// layers are the broker settings under which values of topics, groups and of broker
// id are looked up.
func layers(image *metadata.Image, static *config.Broker, id int32) config.Layers {
	return config.Layers{
		Broker:  image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker, Name: strconv.Itoa(int(id))}),
		Cluster: image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker}),
		Static:  static,
	}
}

// describeConfigs lists settings with their sources, for topics, brokers and groups.
//
// v1 sources and synonyms. v3 types and documentation.
func (a *brokerAPI) describeConfigs(r *Request, req *kmsg.DescribeConfigsRequest) *kmsg.DescribeConfigsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for i := range req.Resources {
		asked := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = asked.ResourceType, asked.ResourceName
		out.Configs = []kmsg.DescribeConfigsResponseResourceConfig{}
		entries, err := a.configEntries(r, asked)
		if err != nil {
			protocol := protocolError(err)
			message := err.Error()
			out.ErrorCode, out.ErrorMessage = protocol.Code, &message
		}
		for _, entry := range entries {
			if len(asked.ConfigNames) == 0 || slices.Contains(asked.ConfigNames, entry.Name) {
				out.Configs = append(out.Configs, describedConfig(entry, req))
			}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// describedError is an error of the protocol with a message of its own.
type describedError struct {
	code    *kerr.Error
	message string
}

func (e *describedError) Error() string { return e.message }
func (e *describedError) Unwrap() error { return e.code }

func (a *brokerAPI) configEntries(r *Request, asked *kmsg.DescribeConfigsRequestResource) ([]config.Entry, error) {
	image := a.image()
	switch asked.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		if !r.mayTopic(security.DescribeConfigs, asked.ResourceName) {
			return nil, kerr.TopicAuthorizationFailed
		}
		if !legalTopicName(asked.ResourceName) {
			return nil, kerr.InvalidTopicException
		}
		if _, ok := image.Topic(asked.ResourceName); !ok {
			return nil, kerr.UnknownTopicOrPartition
		}
		overrides := image.Config(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: asked.ResourceName})
		return layers(image, a.Config, a.ID).DescribeTopic(overrides), nil
	case kmsg.ConfigResourceTypeBroker:
		if !r.mayCluster(security.DescribeConfigs) {
			return nil, kerr.ClusterAuthorizationFailed
		}
		if asked.ResourceName == "" {
			return config.DescribeClusterBroker(image.Config(metadata.ConfigResource{Type: metadata.ResourceBroker})), nil
		}
		id, err := strconv.ParseInt(asked.ResourceName, 10, 32)
		if err != nil {
			return nil, describe(kerr.InvalidRequest, "broker id must be a number, not %q", asked.ResourceName)
		}
		if int32(id) != a.ID {
			return nil, describe(kerr.InvalidRequest, "broker %d was asked for the configuration of broker %d; ask that broker", a.ID, id)
		}
		return layers(image, a.Config, a.ID).DescribeBroker(), nil
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.mayGroup(security.DescribeConfigs, asked.ResourceName) {
			return nil, kerr.GroupAuthorizationFailed
		}
		overrides := image.Config(metadata.ConfigResource{Type: metadata.ResourceGroup, Name: asked.ResourceName})
		return layers(image, a.Config, a.ID).DescribeGroup(overrides), nil
	}
	return nil, describe(kerr.InvalidRequest, "resources of type %d have no configuration here", asked.ResourceType)
}

func describe(err *kerr.Error, format string, args ...any) error {
	return &describedError{code: err, message: fmt.Sprintf(format, args...)}
}

func describedConfig(entry config.Entry, req *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.ReadOnly, out.IsSensitive = entry.Name, entry.Value, entry.ReadOnly, entry.Sensitive
	out.Source, out.IsDefault = kmsg.ConfigSource(entry.Source), entry.Source == config.Default
	out.ConfigType = kmsg.ConfigType(entry.Type)
	if req.IncludeSynonyms {
		for _, s := range entry.Synonyms {
			synonym := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			synonym.Name, synonym.Value, synonym.Source = s.Name, s.Value, kmsg.ConfigSource(s.Source)
			out.ConfigSynonyms = append(out.ConfigSynonyms, synonym)
		}
	}
	if req.IncludeDocumentation {
		out.Documentation = &entry.Doc
	}
	return out
}
