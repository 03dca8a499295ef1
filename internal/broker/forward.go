package broker

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Forwarded is a client's request on its way to the active controller (KIP-590).
type Forwarded struct {
	Request       []byte // the client's frame from its request header on, unparsed
	PrincipalType string
	PrincipalName string
	ClientAddress net.IP
}

// ErrVersionUnknownToController says that the controller does not speak the
// version of the forwarded request: the client must learn the versions anew, so
// its connection is to be closed.
var ErrVersionUnknownToController = errors.New("the controller does not know this version of the request")

// Forward hands a request to the active controller and returns the frame of its
// answer, response header included. It looks for the controller again until ctx
// ends, which is reported as ErrNoController.
func (b *Broker) Forward(ctx context.Context, f Forwarded) ([]byte, error) {
	req := kmsg.NewPtrEnvelopeRequest()
	req.RequestData = f.Request
	req.RequestPrincipal = encodePrincipal(f.PrincipalType, f.PrincipalName)
	req.ClientHostAddress = rawAddress(f.ClientAddress)
	resp, err := b.forwarding.Do(ctx, req)
	if err != nil {
		return nil, err
	}
	answer := resp.(*kmsg.EnvelopeResponse)
	switch answer.ErrorCode {
	case 0:
		return answer.ResponseData, nil
	case kerr.UnsupportedVersion.Code:
		return nil, ErrVersionUnknownToController
	default:
		return nil, fmt.Errorf("forwarding to the controller: %w", kerr.ErrorForCode(answer.ErrorCode))
	}
}

// encodePrincipal writes the DefaultPrincipalData message, version 0: int16
// version, then flexible {type, name, token authenticated}.
func encodePrincipal(kind, name string) []byte {
	data := kbin.AppendInt16(nil, 0)
	data = kbin.AppendCompactString(data, kind)
	data = kbin.AppendCompactString(data, name)
	data = kbin.AppendBool(data, false)
	return kbin.AppendUvarint(data, 0)
}

// rawAddress is an address as 4 or 16 bytes.
func rawAddress(ip net.IP) []byte {
	if short := ip.To4(); short != nil {
		return short
	}
	return ip
}
