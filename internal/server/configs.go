package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/controller"
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

// describeConfigs lists settings with their sources: those of topics, groups and subscriptions to clients' metrics,
// and of this broker.
//
// v1 sources and synonyms. v3 types and documentation.
func (a *brokerAPI) describeConfigs(r *Request, req *kmsg.DescribeConfigsRequest) *kmsg.DescribeConfigsResponse {
	return configView{a.image(), a.Config, nodeLoggers{a.ID, a.LogLevel}}.describe(r, req)
}

// describeConfigs is the same by a controller: of its own node's settings, and of the committed state.
func (a *ControllerAPI) describeConfigs(r *Request, req *kmsg.DescribeConfigsRequest) *kmsg.DescribeConfigsResponse {
	return configView{a.host.Committed(), a.node.Config, nodeLoggers{a.node.ID, a.node.LogLevel}}.describe(r, req)
}

// configView is what the settings of a cluster are to one node.
type configView struct {
	image   *metadata.Image
	static  *config.Broker
	loggers nodeLoggers
}

func (v configView) describe(r *Request, req *kmsg.DescribeConfigsRequest) *kmsg.DescribeConfigsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for i := range req.Resources {
		asked := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = asked.ResourceType, asked.ResourceName
		out.Configs, out.ErrorMessage = []kmsg.DescribeConfigsResponseResourceConfig{}, new("")
		entries, err := v.entries(r, asked)
		if err != nil {
			out.ErrorCode = protocolError(err).Code
			if own := (*describedError)(nil); errors.As(err, &own) {
				out.ErrorMessage = &own.message
			}
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

func (v configView) entries(r *Request, asked *kmsg.DescribeConfigsRequestResource) ([]config.Entry, error) {
	stored := func(kind int8) map[string]string {
		return v.image.Config(metadata.ConfigResource{Type: kind, Name: asked.ResourceName})
	}
	switch asked.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		if !r.mayTopic(security.DescribeConfigs, asked.ResourceName) {
			return nil, kerr.TopicAuthorizationFailed
		}
		if wrong := controller.ValidTopicName(asked.ResourceName); wrong != "" {
			return nil, describe(kerr.InvalidTopicException, "%s", wrong)
		}
		if _, ok := v.image.Topic(asked.ResourceName); !ok {
			return nil, kerr.UnknownTopicOrPartition
		}
		return layers(v.image, v.static, v.loggers.id).DescribeTopic(stored(metadata.ResourceTopic)), nil
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.mayGroup(security.DescribeConfigs, asked.ResourceName) {
			return nil, kerr.GroupAuthorizationFailed
		}
		if asked.ResourceName == "" {
			return nil, describe(kerr.InvalidRequest, "Group name must not be empty")
		}
		return layers(v.image, v.static, v.loggers.id).DescribeGroup(stored(metadata.ResourceGroup)), nil
	}
	if !r.mayCluster(security.DescribeConfigs) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	switch asked.ResourceType {
	case kmsg.ConfigResourceTypeBroker:
		if asked.ResourceName == "" {
			return config.DescribeClusterBroker(stored(metadata.ResourceBroker)), nil
		}
		id, err := strconv.ParseInt(asked.ResourceName, 10, 32)
		if err != nil {
			return nil, describe(kerr.InvalidRequest, "Broker id must be an integer, but it is: %s", asked.ResourceName)
		}
		if int32(id) != v.loggers.id {
			return nil, describe(kerr.InvalidRequest, "Unexpected broker id, expected %d or empty string, but received %s; ask that node", v.loggers.id, asked.ResourceName)
		}
		return layers(v.image, v.static, v.loggers.id).DescribeBroker(), nil
	case kmsg.ConfigResourceTypeBrokerLogger:
		return v.loggers.describe(asked.ResourceName)
	case kmsg.ConfigResourceTypeClientMetrics:
		if asked.ResourceName == "" {
			return nil, describe(kerr.InvalidRequest, "Client metrics subscription name must not be empty")
		}
		return config.DescribeClientMetrics(stored(metadata.ResourceClientMetrics)), nil
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
