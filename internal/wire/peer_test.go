package wire

import (
	"reflect"
	"testing"
)

// A request and its answer come back as they were sent, and no cut or stretched form of them is taken for one.
func TestQuorumPeerMessages(t *testing.T) {
	t.Parallel()
	text := "why"
	req := &QuorumPeerRequest{
		ClusterID: "c", NodeID: 7, DirectoryID: [16]byte{15: 9}, Voters: []byte{1, 2}, Formed: true, Self: []byte{3},
		Messages: [][]byte{{4, 5, 6}, {}, {7}},
	}
	resp := &QuorumPeerResponse{
		ErrorCode: 8, ErrorMessage: &text, NewestVersion: 1, ClusterID: "c", NodeID: 7, DirectoryID: [16]byte{9}, Voters: []byte{1}, Formed: true, Self: []byte{2, 3},
	}
	body := req.AppendTo(nil)
	got := new(QuorumPeerRequest)
	if err := got.ReadFrom(body); err != nil || !reflect.DeepEqual(got, req) {
		t.Errorf("request: %v, %+v", err, got)
	}
	answer := resp.AppendTo(nil)
	back := new(QuorumPeerResponse)
	if err := back.ReadFrom(answer); err != nil || !reflect.DeepEqual(back, resp) {
		t.Errorf("answer: %v, %+v", err, back)
	}
	for n := range body {
		if err := new(QuorumPeerRequest).ReadFrom(body[:n]); err == nil {
			t.Errorf("a request cut to %d of %d bytes is taken", n, len(body))
		}
	}
	for n := range answer {
		if err := new(QuorumPeerResponse).ReadFrom(answer[:n]); err == nil {
			t.Errorf("an answer cut to %d of %d bytes is taken", n, len(answer))
		}
	}
}

// A frame full of messages of no bytes is refused before there is a slice for each of them: anybody who reaches the listener
// may send one.
func TestQuorumPeerBoundsItsMessages(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{MaxQuorumPeerMessages: true, MaxQuorumPeerMessages + 1: false} {
		body := (&QuorumPeerRequest{Messages: make([][]byte, n)}).AppendTo(nil)
		if err := new(QuorumPeerRequest).ReadFrom(body); (err == nil) != ok {
			t.Errorf("%d messages: %v", n, err)
		}
	}
}

// FuzzQuorumPeer: no bytes make the reader panic, and what it takes it writes the same again.
func FuzzQuorumPeer(f *testing.F) {
	f.Add((&QuorumPeerRequest{ClusterID: "c", Messages: [][]byte{{1}}}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		req := new(QuorumPeerRequest)
		if req.ReadFrom(b) != nil {
			return
		}
		again := new(QuorumPeerRequest)
		if err := again.ReadFrom(req.AppendTo(nil)); err != nil || len(again.Messages) != len(req.Messages) {
			t.Fatalf("%v: %+v", err, req)
		}
	})
}
