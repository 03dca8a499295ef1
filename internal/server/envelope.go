package server

import (
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// envelope answers a request that a broker forwards on behalf of a client
// (KIP-590): it is authorized as from that client, and its answer travels back
// whole.
func (a *ControllerAPI) envelope(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.EnvelopeRequest)
	data, err := a.openEnvelope(r, req)
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.EnvelopeResponse)
	resp.ResponseData = data
	return resp, nil
}

func (a *ControllerAPI) openEnvelope(r *Request, req *kmsg.EnvelopeRequest) ([]byte, error) {
	principal, ok := decodePrincipal(req.RequestPrincipal)
	if !ok {
		return nil, kerr.PrincipalDeserializationFailure
	}
	if n := len(req.ClientHostAddress); n != net.IPv4len && n != net.IPv6len {
		return nil, kerr.InvalidRequest
	}
	var names wire.Names
	header, body, err := wire.DecodeRequestHeader(req.RequestData, &names)
	if err != nil {
		return nil, kerr.UnsupportedVersion
	}
	handle, forwardable := forwardableHandlers[header.Key]
	if !forwardable {
		return nil, kerr.InvalidRequest
	}
	api, known := wire.Lookup(header.Key)
	if !known || !api.Supports(header.Version) {
		return nil, kerr.UnsupportedVersion
	}
	message := kmsg.RequestForKey(header.Key)
	message.SetVersion(header.Version)
	if err := message.ReadFrom(body); err != nil {
		return nil, kerr.UnsupportedVersion
	}
	inner := &Request{
		Key: header.Key, Version: header.Version, CorrelationID: header.CorrelationID, ClientID: header.ClientID,
		Principal: principal, Listener: r.Listener, Scope: r.Scope, ClientAddr: net.IP(req.ClientHostAddress), ConnID: r.ConnID,
		Received: r.Received, Size: len(req.RequestData), Msg: message, conn: r.conn,
	}
	answer, err := handle(a, inner)
	if errors.Is(err, errUnknownElement) {
		return nil, kerr.UnsupportedVersion // which ends the client's connection
	}
	if err != nil {
		if wrong := protocolError(err); wrong == kerr.NotController || wrong == kerr.NotLeaderForPartition {
			return nil, kerr.NotController // said outside, so that the broker looks for the controller and sends the request again
		}
		answer = failedResponse(message, err)
	}
	answer.SetVersion(header.Version)
	data := wire.AppendResponseHeader(nil, header.Key, header.CorrelationID, answer.IsFlexible())
	return answer.AppendTo(data), nil
}

// decodePrincipal reads DefaultPrincipalData, version 0.
func decodePrincipal(data []byte) (security.Principal, bool) {
	reader := kbin.Reader{Src: data}
	version := reader.Int16()
	principal := security.Principal{Type: reader.CompactString(), Name: reader.CompactString()}
	reader.Bool()
	kmsg.SkipTags(&reader)
	return principal, reader.Complete() == nil && version == 0
}
