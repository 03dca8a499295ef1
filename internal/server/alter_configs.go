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
// the controller sees it, or errAltered where it has made the change itself; nil for those that are the controller's
// to judge.
type screened []error

func (s screened) anyRefused() bool {
	return slices.ContainsFunc(s, func(err error) bool { return err != nil })
}

// incrementalAlterConfigs has the controller change settings. What only a broker can
// judge is taken out before: its own settings, and loggers.
func (a *brokerAPI) incrementalAlterConfigs(r *Request) Response {
	req := r.Msg.(*kmsg.IncrementalAlterConfigsRequest)
	resources := make([]configResource, len(req.Resources))
	ops := make([][]configOp, len(req.Resources))
	for i, resource := range req.Resources {
		resources[i] = configResource{resource.ResourceType, resource.ResourceName}
		for _, c := range resource.Configs {
			ops[i] = append(ops[i], configOp{c.Name, c.Op, c.Value})
		}
	}
	found := a.screen(r, resources, ops, req.ValidateOnly)
	if !found.anyRefused() {
		return a.forward(r)
	}
	rest := *req
	rest.Resources = left(req.Resources, found)
	answered := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	if len(rest.Resources) > 0 {
		if failed, ok := a.forwardRest(r, &rest, answered); !ok {
			return failed
		}
	}
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	resp.ThrottleMillis = answered.ThrottleMillis
	resp.Resources = found.answers(resources, answered.Resources)
	return Reply(resp)
}

// alterConfigs has the controller replace settings, as incrementalAlterConfigs does.
func (a *brokerAPI) alterConfigs(r *Request) Response {
	req := r.Msg.(*kmsg.AlterConfigsRequest)
	resources := make([]configResource, len(req.Resources))
	ops := make([][]configOp, len(req.Resources))
	for i, resource := range req.Resources {
		resources[i] = configResource{resource.ResourceType, resource.ResourceName}
		for _, c := range resource.Configs {
			ops[i] = append(ops[i], configOp{c.Name, kmsg.IncrementalAlterConfigOpSet, c.Value})
		}
	}
	found := a.screen(r, resources, ops, req.ValidateOnly)
	if !found.anyRefused() {
		return a.forward(r)
	}
	rest := *req
	rest.Resources = left(req.Resources, found)
	answered := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	if len(rest.Resources) > 0 {
		if failed, ok := a.forwardRest(r, &rest, answered); !ok {
			return failed
		}
	}
	var judged []alteredConfig
	for _, answer := range answered.Resources {
		judged = append(judged, alteredConfig(answer))
	}
	resp := alterConfigsResponse(req, found.answers(resources, judged))
	resp.ThrottleMillis = answered.ThrottleMillis
	return Reply(resp)
}

// left are the resources of a request that are the controller's to judge.
func left[T any](resources []T, found screened) []T {
	var out []T
	for i, resource := range resources {
		if found[i] == nil {
			out = append(out, resource)
		}
	}
	return out
}

// answers puts the refusals and what the controller answered for the rest in the order of the request.
func (s screened) answers(resources []configResource, judged []alteredConfig) []alteredConfig {
	byResource := make(map[configResource]alteredConfig, len(judged))
	for _, answer := range judged {
		byResource[configResource{answer.ResourceType, answer.ResourceName}] = answer
	}
	answers := make([]alteredConfig, len(resources))
	for i, resource := range resources {
		answer := &answers[i]
		var known bool
		if *answer, known = byResource[resource]; s[i] != nil || !known {
			answer.ErrorCode, answer.ErrorMessage = refusal(s[i])
		}
		answer.ResourceType, answer.ResourceName = resource.kind, resource.name
	}
	return answers
}

func refusal(err error) (int16, *string) {
	if errors.Is(err, errAltered) {
		return 0, nil
	}
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

// screen judges the resources as far as a broker can without the controller.
func (a *brokerAPI) screen(r *Request, resources []configResource, ops [][]configOp, validateOnly bool) screened {
	named := map[configResource]int{}
	for _, resource := range resources {
		named[resource]++
	}
	found := make(screened, len(resources))
	for i, resource := range resources {
		if named[resource] > 1 {
			found[i] = describe(kerr.InvalidRequest, "each resource may be named once")
		} else {
			found[i] = a.screenOne(r, resource, ops[i], validateOnly)
		}
	}
	return found
}

func (a *brokerAPI) screenOne(r *Request, resource configResource, ops []configOp, validateOnly bool) error {
	if err := checkOps(ops); err != nil {
		return err
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
		if r.Key == int16(kmsg.AlterConfigs) {
			break
		}
		return nodeLoggers{a.ID, a.LogLevel}.alter(resource.name, ops, validateOnly)
	}
	return describe(kerr.InvalidRequest, "Unknown resource type %d", int8(resource.kind))
}

// checkOps says whether each setting is named once, and with a value unless it is to be deleted.
func checkOps(ops []configOp) error {
	named := map[string]bool{}
	for _, op := range ops {
		if named[op.name] {
			return describe(kerr.InvalidRequest, "%s is given twice", op.name)
		}
		named[op.name] = true
		if op.value == nil && op.op != kmsg.IncrementalAlterConfigOpDelete {
			return describe(kerr.InvalidRequest, "Null value not supported for : %s; DELETE takes a setting back to its default", op.name)
		}
	}
	return nil
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
				return describe(kerr.InvalidConfig, "Can't %v to key %s because its type is not LIST.", op.op, op.name)
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
				return describe(kerr.InvalidRequest, "%v", err) // a broker says so of its own settings, unlike the controller of a topic's
			}
			if err := a.screenCordoned(op.name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// screenCordoned refuses to cordon what is no log directory: it would have no effect, and nobody would know.
func (a *brokerAPI) screenCordoned(name, value string) error {
	if name != "cordoned.log.dirs" {
		return nil
	}
	for _, dir := range config.SplitList(value) {
		if dir != "*" && !slices.ContainsFunc(a.Config.LogDirs(), func(path string) bool { return SameDirectory(dir, path) }) {
			return describe(kerr.InvalidConfig, "cordoned.log.dirs names %s, which is none of log.dirs: %s", dir, strings.Join(a.Config.LogDirs(), ", "))
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
		return nil, describe(kerr.InvalidRequest, "Cannot update these configs dynamically: %s is read-only and needs a restart of the broker", name)
	case def.Scope == config.PerBroker && clusterWide:
		return nil, describe(kerr.InvalidRequest, "Cannot update these configs at default cluster level, broker id must be specified: %s", name)
	}
	return def, nil
}
