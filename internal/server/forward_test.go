package server

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/wire"
)

// A request that no controller took is answered in its own form: 7 when none was
// found in time, -1 when one answered oddly, and a closed connection when the
// controller does not know the version.
func TestM026_requests_that_no_controller_took(t *testing.T) {
	t.Parallel()
	keys := append([]int16{int16(kmsg.AlterConfigs), int16(kmsg.IncrementalAlterConfigs)}, forwardedKeys...)
	for _, key := range keys {
		api, ok := wire.Lookup(key)
		if !ok {
			t.Fatalf("key %d is not in the table", key)
		}
		for version := api.Min; version <= api.Max; version++ {
			name := fmt.Sprintf("%s v%d", kmsg.NameForKey(key), version)
			r := &Request{Key: key, Version: version, Msg: oneItem(key)}
			r.Msg.SetVersion(version)
			for _, row := range []struct {
				err  error
				want int16
			}{
				{fmt.Errorf("%w: refused", broker.ErrNoController), 7},
				{context.DeadlineExceeded, 7},
				{errors.New("forwarding to the controller: odd"), -1},
			} {
				resp := notForwarded(r, row.err)
				if resp.msg == nil {
					t.Fatalf("%s: no answer", name)
				}
				resp.msg.SetVersion(version)
				read := r.Msg.ResponseKind()
				read.SetVersion(version)
				if err := read.ReadFrom(resp.msg.AppendTo(nil)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := firstCode(read); got != row.want {
					t.Errorf("%s after %v: %d, want %d", name, row.err, got, row.want)
				}
			}
			if notForwarded(r, broker.ErrVersionUnknownToController).closing == nil {
				t.Errorf("%s: a version that the controller does not know leaves the connection open", name)
			}
		}
	}
}

func oneItem(key int16) kmsg.Request {
	req := kmsg.RequestForKey(key)
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		req.Topics = append(req.Topics, kmsg.NewCreateTopicsRequestTopic())
	case *kmsg.DeleteTopicsRequest:
		req.TopicNames = []string{"t"}
		req.Topics = append(req.Topics, kmsg.NewDeleteTopicsRequestTopic())
	case *kmsg.CreatePartitionsRequest:
		req.Topics = append(req.Topics, kmsg.NewCreatePartitionsRequestTopic())
	case *kmsg.AlterConfigsRequest:
		req.Resources = append(req.Resources, kmsg.NewAlterConfigsRequestResource())
	case *kmsg.IncrementalAlterConfigsRequest:
		req.Resources = append(req.Resources, kmsg.NewIncrementalAlterConfigsRequestResource())
	case *kmsg.AlterClientQuotasRequest:
		req.Entries = append(req.Entries, kmsg.NewAlterClientQuotasRequestEntry())
	case *kmsg.ElectLeadersRequest:
		req.Topics = append(req.Topics, kmsg.ElectLeadersRequestTopic{Partitions: []int32{0}})
	case *kmsg.CreateACLsRequest:
		req.Creations = append(req.Creations, kmsg.NewCreateACLsRequestCreation())
	case *kmsg.DeleteACLsRequest:
		req.Filters = append(req.Filters, kmsg.NewDeleteACLsRequestFilter())
	case *kmsg.AlterUserSCRAMCredentialsRequest:
		req.Deletions = append(req.Deletions, kmsg.NewAlterUserSCRAMCredentialsRequestDeletion())
	}
	return req
}

func firstCode(resp kmsg.Response) int16 {
	switch resp := resp.(type) {
	case *kmsg.CreateTopicsResponse:
		return resp.Topics[0].ErrorCode
	case *kmsg.DeleteTopicsResponse:
		return resp.Topics[0].ErrorCode
	case *kmsg.CreatePartitionsResponse:
		return resp.Topics[0].ErrorCode
	case *kmsg.AlterConfigsResponse:
		return resp.Resources[0].ErrorCode
	case *kmsg.IncrementalAlterConfigsResponse:
		return resp.Resources[0].ErrorCode
	case *kmsg.AlterClientQuotasResponse:
		return resp.Entries[0].ErrorCode
	case *kmsg.ElectLeadersResponse:
		return resp.Topics[0].Partitions[0].ErrorCode
	case *kmsg.AlterPartitionAssignmentsResponse:
		return resp.ErrorCode
	case *kmsg.ListPartitionReassignmentsResponse:
		return resp.ErrorCode
	case *kmsg.UnregisterBrokerResponse:
		return resp.ErrorCode
	case *kmsg.AddRaftVoterResponse:
		return resp.ErrorCode
	case *kmsg.RemoveRaftVoterResponse:
		return resp.ErrorCode
	case *kmsg.DescribeQuorumResponse:
		return resp.ErrorCode
	case *kmsg.UpdateFeaturesResponse:
		return resp.ErrorCode
	case *kmsg.CreateACLsResponse:
		return resp.Results[0].ErrorCode
	case *kmsg.DeleteACLsResponse:
		return resp.Results[0].ErrorCode
	case *kmsg.AlterUserSCRAMCredentialsResponse:
		return resp.Results[0].ErrorCode
	case *kmsg.UnregisterControllerResponse:
		return resp.ErrorCode
	case *kmsg.CreateDelegationTokenResponse:
		return resp.ErrorCode
	case *kmsg.RenewDelegationTokenResponse:
		return resp.ErrorCode
	case *kmsg.ExpireDelegationTokenResponse:
		return resp.ErrorCode
	}
	return 0
}
