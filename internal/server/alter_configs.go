package server

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// configResource names one resource of an alteration.
type configResource struct {
	kind kmsg.ConfigResourceType
	name string
}

// configOp is one change that is asked for.
type configOp struct {
	name  string
	op    kmsg.IncrementalAlterConfigOp
	value *string
}

// screened is what a broker finds wrong with each resource of an alteration before
// the controller sees it; nil for those that are the controller's to judge.
type screened []error

func (s screened) anyRefused() bool {
	return slices.ContainsFunc(s, func(err error) bool { return err != nil })
}

// incrementalAlterConfigs has the controller change settings. What only a broker can
// judge is taken out before: its own settings, and loggers.
func (a *brokerAPI) incrementalAlterConfigs(r *Request) Response {
	req := r.Msg.(*kmsg.IncrementalAlterConfigsRequest)
	resources := make([]configResource, len(req.Resources))
	for i, resource := range req.Resources {
		resources[i] = configResource{resource.ResourceType, resource.ResourceName}
	}
	found := make(screened, len(req.Resources))
	for i, resource := range req.Resources {
		ops := make([]configOp, len(resource.Configs))
		for k, c := range resource.Configs {
			ops[k] = configOp{c.Name, c.Op, c.Value}
		}
		found[i] = a.screen(r, resources, i, ops)
	}
	if !found.anyRefused() {
		return a.forward(r)
	}
	rest := *req
	rest.Resources = nil
	for i, resource := range req.Resources {
		if found[i] == nil {
			rest.Resources = append(rest.Resources, resource)
		}
	}
	answered := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	if len(rest.Resources) > 0 {
		if failed, ok := a.forwardRest(r, &rest, answered); !ok {
			return failed
		}
	}
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	resp.ThrottleMillis = answered.ThrottleMillis
	for i, resource := range resources {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		at := slices.IndexFunc(answered.Resources, func(x kmsg.IncrementalAlterConfigsResponseResource) bool {
			return x.ResourceType == resource.kind && x.ResourceName == resource.name
		})
		switch {
		case found[i] == nil && at >= 0:
			out = answered.Resources[at]
		default:
			out.ErrorCode, out.ErrorMessage = refusal(found[i])
		}
		out.ResourceType, out.ResourceName = resource.kind, resource.name
		resp.Resources = append(resp.Resources, out)
	}
	return Reply(resp)
}

// alterConfigs has the controller replace settings, as incrementalAlterConfigs does.
func (a *brokerAPI) alterConfigs(r *Request) Response {
	req := r.Msg.(*kmsg.AlterConfigsRequest)
	resources := make([]configResource, len(req.Resources))
	for i, resource := range req.Resources {
		resources[i] = configResource{resource.ResourceType, resource.ResourceName}
	}
	found := make(screened, len(req.Resources))
	for i, resource := range req.Resources {
		ops := make([]configOp, len(resource.Configs))
		for k, c := range resource.Configs {
			ops[k] = configOp{c.Name, kmsg.IncrementalAlterConfigOpSet, c.Value}
		}
		found[i] = a.screen(r, resources, i, ops)
	}
	if !found.anyRefused() {
		return a.forward(r)
	}
	rest := *req
	rest.Resources = nil
	for i, resource := range req.Resources {
		if found[i] == nil {
			rest.Resources = append(rest.Resources, resource)
		}
	}
	answered := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	if len(rest.Resources) > 0 {
		if failed, ok := a.forwardRest(r, &rest, answered); !ok {
			return failed
		}
	}
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	resp.ThrottleMillis = answered.ThrottleMillis
	for i, resource := range resources {
		out := kmsg.NewAlterConfigsResponseResource()
		at := slices.IndexFunc(answered.Resources, func(x kmsg.AlterConfigsResponseResource) bool {
			return x.ResourceType == resource.kind && x.ResourceName == resource.name
		})
		switch {
		case found[i] == nil && at >= 0:
			out = answered.Resources[at]
		default:
			out.ErrorCode, out.ErrorMessage = refusal(found[i])
		}
		out.ResourceType, out.ResourceName = resource.kind, resource.name
		resp.Resources = append(resp.Resources, out)
	}
	return Reply(resp)
}

func refusal(err error) (int16, *string) {
	if err == nil {
		err = kerr.UnknownServerError // the controller left it out of its answer
	}
	message := err.Error()
	var plain *kerr.Error
	if errors.As(err, &plain) && message == plain.Error() {
		message = plain.Description
	}
	return protocolError(err).Code, &message
}

// forwardRest sends what is left of a request to the controller and reads its answer
// into resp. When there is none, it returns the answer to the whole request instead.
func (a *brokerAPI) forwardRest(r *Request, rest kmsg.Request, resp kmsg.Response) (failed Response, ok bool) {
	rest.SetVersion(r.Version)
	resp.SetVersion(r.Version)
	frame := wire.AppendRequestHeader(nil, r.Key, r.Version, r.CorrelationID, &r.ClientID, rest.IsFlexible())
	answer, err := a.askController(r, rest.AppendTo(frame))
	if err != nil {
		return notForwarded(r, err), false
	}
	_, body, err := wire.DecodeResponseHeader(answer, r.Key, resp.IsFlexible())
	if err == nil {
		err = resp.ReadFrom(body)
	}
	if err != nil {
		return notForwarded(r, err), false
	}
	return Response{}, true
}

// screen judges the i-th resource as far as a broker can without the controller.
func (a *brokerAPI) screen(r *Request, resources []configResource, i int, ops []configOp) error {
	resource := resources[i]
	for k, other := range resources {
		if k != i && other == resource {
			return describe(kerr.InvalidRequest, "each resource may be named once")
		}
	}
	for k, op := range ops {
		if slices.ContainsFunc(ops[:k], func(earlier configOp) bool { return earlier.name == op.name }) {
			return describe(kerr.InvalidRequest, "%s is given twice", op.name)
		}
		if op.value == nil && op.op != kmsg.IncrementalAlterConfigOpDelete {
			return describe(kerr.InvalidRequest, "the value of %s is null; DELETE takes a setting back to its default", op.name)
		}
	}
	switch resource.kind {
	case kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig:
		return nil
	case kmsg.ConfigResourceTypeBroker:
		if !r.mayCluster(security.AlterConfigs) {
			return kerr.ClusterAuthorizationFailed
		}
		if resource.name != "" {
			if err := a.namesThisBroker(resource.name); err != nil {
				return err
			}
		}
		return a.screenBrokerConfig(resource.name, ops)
	case kmsg.ConfigResourceTypeBrokerLogger:
		if !r.mayCluster(security.AlterConfigs) {
			return kerr.ClusterAuthorizationFailed
		}
		return describe(kerr.InvalidRequest, "this broker has one log level for all of it, given at its start with --log-level")
	}
	return describe(kerr.InvalidRequest, "resources of type %d have no configuration here", resource.kind)
}

func (a *brokerAPI) namesThisBroker(name string) error {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return describe(kerr.InvalidRequest, "broker id must be a number, not %q", name)
	}
	if int32(id) != a.ID {
		return describe(kerr.InvalidRequest, "broker %d was asked to change the configuration of broker %d; ask that broker", a.ID, id)
	}
	return nil
}

// screenBrokerConfig validates what the settings of this broker, or of all, would be:
// the controller knows no broker's settings and takes whatever it is given.
func (a *brokerAPI) screenBrokerConfig(broker string, ops []configOp) error {
	after := map[string]string{}
	stored := a.image().Config(metadata.ConfigResource{Type: metadata.ResourceBroker, Name: broker})
	for _, op := range ops {
		def, err := dynamicSetting(op.name, broker == "")
		if err != nil {
			return err
		}
		switch op.op {
		case kmsg.IncrementalAlterConfigOpDelete:
		case kmsg.IncrementalAlterConfigOpSet:
			after[op.name] = *op.value
		case kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract:
			if def.Type != config.List {
				return describe(kerr.InvalidConfig, "%s is not a list, so nothing can be appended or subtracted", op.name)
			}
			base, ok := stored[op.name]
			if !ok && def.Default != nil {
				base = *def.Default
			}
			after[op.name] = listChanged(base, *op.value, op.op == kmsg.IncrementalAlterConfigOpAppend)
		default:
			return describe(kerr.InvalidRequest, "operation %d is not known", op.op)
		}
		if value, set := after[op.name]; set {
			if err := def.Validate(value); err != nil {
				return describe(kerr.InvalidConfig, "%v", err)
			}
		}
	}
	return nil
}

func listChanged(base, parts string, add bool) string {
	value := config.SplitList(base)
	for _, part := range config.SplitList(parts) {
		switch {
		case !add:
			value = slices.DeleteFunc(value, func(v string) bool { return v == part })
		case !slices.Contains(value, part):
			value = append(value, part)
		}
	}
	return strings.Join(value, ",")
}

// dynamicSetting finds a broker setting that may change while brokers run.
func dynamicSetting(name string, clusterWide bool) (*config.Def, error) {
	plain := name
	if rest, ok := strings.CutPrefix(name, "listener.name."); ok {
		if _, setting, ok := strings.Cut(rest, "."); ok {
			plain = setting
		}
	}
	def, known := config.BrokerDef(plain)
	switch {
	case !known:
		return nil, describe(kerr.InvalidConfig, "Unknown broker config name: %s", name)
	case def.Scope == config.ReadOnly:
		return nil, describe(kerr.InvalidConfig, "Cannot update these configs dynamically: %s is read-only and needs a restart of the broker", name)
	case def.Scope == config.PerBroker && clusterWide:
		return nil, describe(kerr.InvalidConfig, "Cannot update these configs at default cluster level, broker id must be specified: %s", name)
	}
	return def, nil
}
