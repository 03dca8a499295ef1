package server

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/wire"
)

// forwardedKeys are the APIs that a broker hands to the active controller, unparsed
// (KIP-590).
var forwardedKeys = []int16{
	int16(kmsg.CreateTopics), int16(kmsg.DeleteTopics), int16(kmsg.CreatePartitions),
	int16(kmsg.DescribeQuorum), int16(kmsg.UpdateFeatures), int16(kmsg.AlterClientQuotas),
	int16(kmsg.ElectLeaders), int16(kmsg.AlterPartitionAssignments), int16(kmsg.ListPartitionReassignments), int16(kmsg.UnregisterBroker),
	int16(kmsg.AddRaftVoter), int16(kmsg.RemoveRaftVoter), int16(kmsg.UnregisterController),
	int16(kmsg.CreateACLs), int16(kmsg.DeleteACLs), int16(kmsg.AlterUserSCRAMCredentials),
	int16(kmsg.CreateDelegationToken), int16(kmsg.RenewDelegationToken), int16(kmsg.ExpireDelegationToken),
}

// forwardTimeout bounds how long a request waits for a controller to take it.
const forwardTimeout = 60 * time.Second

// forward hands a request to the active controller and passes its answer on as it is:
// the correlation id inside is the client's own.
func (a *brokerAPI) forward(r *Request) Response {
	answer, err := a.askController(r, r.body.B)
	if err != nil {
		return notForwarded(r, err)
	}
	frame := kbin.AppendInt32(make([]byte, 0, 4+len(answer)), int32(len(answer)))
	frame = append(frame, answer...)
	return ReplySegments(wire.Segments{List: []wire.Segment{{Bytes: frame}}, Total: len(frame)}, nil).Muting(mutationThrottle(r, answer))
}

// mutationThrottle is how long an answer tells the client to wait: of those that the controller mutation quota concerns,
// all of which begin with it.
func mutationThrottle(r *Request, answer []byte) time.Duration {
	switch kmsg.Key(r.Key) {
	case kmsg.CreateTopics, kmsg.DeleteTopics, kmsg.CreatePartitions:
		_, body, err := wire.DecodeResponseHeader(answer, r.Key, r.Msg.IsFlexible())
		if err != nil || len(body) < 4 {
			return 0
		}
		return time.Duration(int32(binary.BigEndian.Uint32(body))) * time.Millisecond
	}
	return 0
}

// askController hands the frame of a request, from its header on, to the active
// controller, as from the client that sent r.
func (a *brokerAPI) askController(r *Request, frame []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.Context(), forwardTimeout)
	defer cancel()
	return a.Broker.Forward(ctx, broker.Forwarded{
		Request: frame, PrincipalType: r.Principal.Type, PrincipalName: r.Principal.Name, ClientAddress: r.ClientAddr,
	})
}

// notForwarded answers a request that no controller took, in the request's own form.
func notForwarded(r *Request, err error) Response {
	if errors.Is(err, broker.ErrVersionUnknownToController) {
		return CloseConnection(err) // the client must learn the versions anew
	}
	if errors.Is(err, broker.ErrNoController) || errors.Is(err, context.DeadlineExceeded) {
		err = kerr.RequestTimedOut
	} else {
		err = kerr.UnknownServerError
	}
	return Reply(failedResponse(r.Msg, err))
}
