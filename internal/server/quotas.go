package server

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/security"
)

// describeClientQuotas lists quotas of users, client ids and addresses as this broker's image has them.
func (a *brokerAPI) describeClientQuotas(r *Request, req *kmsg.DescribeClientQuotasRequest) *kmsg.DescribeClientQuotasResponse {
	resp := req.ResponseKind().(*kmsg.DescribeClientQuotasResponse)
	fail := func(code int16, message string) *kmsg.DescribeClientQuotasResponse {
		resp.ErrorCode, resp.ErrorMessage, resp.Entries = code, &message, nil
		return resp
	}
	if !r.mayCluster(security.DescribeConfigs) {
		return fail(kerr.ClusterAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Description)
	}
	found, wrong := controller.DescribeClientQuotas(a.image(), req)
	if wrong != nil {
		return fail(faultCode(wrong), wrong.Message)
	}
	resp.ErrorMessage, resp.Entries = new(""), []kmsg.DescribeClientQuotasResponseEntry{}
	for _, quota := range found {
		entry := kmsg.NewDescribeClientQuotasResponseEntry()
		for _, part := range quota.Entity {
			entity := kmsg.NewDescribeClientQuotasResponseEntryEntity()
			entity.Type, entity.Name = part.EntityType, part.EntityName
			entry.Entity = append(entry.Entity, entity)
		}
		for key, limit := range quota.Values().All() {
			value := kmsg.NewDescribeClientQuotasResponseEntryValue()
			value.Key, value.Value = key, limit
			entry.Values = append(entry.Values, value)
		}
		resp.Entries = append(resp.Entries, entry)
	}
	return resp
}

// hostLookup bounds how long the names of hosts in one request may take to be resolved.
const hostLookup = 5 * time.Second

// alterClientQuotas sets and removes quotas. An entity that names a host that nobody knows is refused here: the
// controller asks nobody.
func (a *ControllerAPI) alterClientQuotas(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AlterClientQuotasRequest)
	if !r.mayCluster(security.AlterConfigs) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	resp := req.ResponseKind().(*kmsg.AlterClientQuotasResponse)
	known := *req
	known.Entries = nil
	lookups, cancel := context.WithTimeout(r.Context(), hostLookup)
	defer cancel()
	for _, entry := range req.Entries {
		answer := kmsg.NewAlterClientQuotasResponseEntry()
		for _, part := range entry.Entity {
			entity := kmsg.NewAlterClientQuotasResponseEntryEntity()
			entity.Type, entity.Name = part.Type, part.Name
			answer.Entity = append(answer.Entity, entity)
		}
		if host, ok := knownHosts(lookups, entry.Entity); ok {
			known.Entries = append(known.Entries, entry)
		} else {
			answer.ErrorCode, answer.ErrorMessage = kerr.InvalidRequest.Code, new(host+" is not a valid IP or resolvable host.")
		}
		resp.Entries = append(resp.Entries, answer)
	}
	reply, err := do[controller.AlterClientQuotasReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterClientQuotas(at, &known)
	})
	if err != nil {
		return nil, err
	}
	outcomes := reply.Entries
	for i := range resp.Entries {
		if answer := &resp.Entries[i]; answer.ErrorCode == 0 {
			answer.ErrorCode, answer.ErrorMessage = faultCode(outcomes[0].Err), faultMessage(outcomes[0].Err)
			outcomes = outcomes[1:]
		}
	}
	return resp, nil
}

// knownHosts says whether the address that an entity names, if it names one, is an address or the name of a host
// that has one; host is the one that is not.
func knownHosts(ctx context.Context, entity []kmsg.AlterClientQuotasRequestEntryEntity) (host string, ok bool) {
	for _, part := range entity {
		if part.Type != "ip" || part.Name == nil || *part.Name == "" {
			continue
		}
		if _, err := netip.ParseAddr(*part.Name); err == nil {
			continue
		}
		if _, err := net.DefaultResolver.LookupHost(ctx, *part.Name); err != nil {
			return *part.Name, false
		}
	}
	return "", true
}
