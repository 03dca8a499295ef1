package server

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// listConfigResources lists the names of resources that have settings: groups and subscriptions to clients'
// metrics that were given some, and all brokers and topics. v0 knows subscriptions alone; v1 asks by type.
func (a *brokerAPI) listConfigResources(r *Request, req *kmsg.ListConfigResourcesRequest) *kmsg.ListConfigResourcesResponse {
	resp := req.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	if !r.mayCluster(security.DescribeConfigs) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	kinds := []int8{metadata.ResourceGroup, metadata.ResourceClientMetrics, metadata.ResourceBrokerLogger, metadata.ResourceBroker, metadata.ResourceTopic}
	if req.Version == 0 {
		kinds = []int8{metadata.ResourceClientMetrics}
	}
	for _, wanted := range req.ResourceTypes {
		if !slices.Contains(kinds, wanted) {
			resp.ErrorCode = kerr.UnsupportedVersion.Code
			return resp
		}
	}
	image := a.image()
	for _, kind := range kinds {
		if len(req.ResourceTypes) > 0 && !slices.Contains(req.ResourceTypes, kind) {
			continue
		}
		for _, name := range configResources(image, kind, r.Listener) {
			resource := kmsg.NewListConfigResourcesResponseConfigResource()
			resource.Name, resource.Type = name, kind
			resp.ConfigResources = append(resp.ConfigResources, resource)
		}
	}
	return resp
}

func configResources(image *metadata.Image, kind int8, listener string) []string {
	var names []string
	switch kind {
	case metadata.ResourceTopic:
		for name := range image.Topics().All() {
			names = append(names, name)
		}
	case metadata.ResourceBroker, metadata.ResourceBrokerLogger:
		for id, registration := range image.Brokers().All() {
			if _, ok := registration.Endpoint(listener); ok {
				names = append(names, strconv.Itoa(int(id)))
			}
		}
	default:
		for resource := range image.ConfigResources().All() {
			if resource.Type == kind {
				names = append(names, resource.Name)
			}
		}
	}
	return names
}
