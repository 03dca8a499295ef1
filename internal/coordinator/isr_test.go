package coordinator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
)

func joinOf(groupID, member string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 3, groupID, member, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10000, 10000
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name, protocol.Metadata = "range", []byte("m")
	req.Protocols = append(req.Protocols, protocol)
	return req
}

func syncOf(groupID, member string, generation int32) *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 3, groupID, member, generation
	assignment := kmsg.NewSyncGroupRequestGroupAssignment()
	assignment.MemberID, assignment.MemberAssignment = member, []byte("a")
	req.GroupAssignment = append(req.GroupAssignment, assignment)
	return req
}

// While the offsets partition lacks in-sync replicas, a join that makes a group, a leader's sync and a commit are
// told that the coordinator is not available, and nothing of them is visible, then or after. A stable fetch that
// waits for a write which is not replicated in time ends likewise, which the server tells as 16.
func TestG057_min_isr_is_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		if reply, err := r.OffsetCommit(t.Context(), commitOf("kept", 0, 5, 3)); err != nil || commitError(reply) != nil {
			t.Fatalf("%+v, %v", reply, err)
		}
		waiting, err := r.JoinGroup(t.Context(), group.RequestContext{}, joinOf("waiting", ""), nil)
		if err != nil || waiting.Err != nil {
			t.Fatalf("%+v, %v", waiting, err)
		}
		records := p.count()

		p.fail(errNotEnough)
		if joined, err := r.JoinGroup(t.Context(), group.RequestContext{}, joinOf("new", ""), nil); err != nil || !errors.Is(joined.Err, group.ErrCoordinatorNotAvailable) {
			t.Errorf("join: %+v, %v", joined, err)
		}
		if synced, err := r.SyncGroup(t.Context(), syncOf("waiting", waiting.MemberID, waiting.Generation), nil); err != nil || !errors.Is(synced.Err, group.ErrCoordinatorNotAvailable) || len(synced.Assignment) != 0 {
			t.Errorf("sync: %+v, %v", synced, err)
		}
		for _, id := range []string{"kept", "fresh"} {
			if reply, err := r.OffsetCommit(t.Context(), commitOf(id, 0, 9, 3)); err != nil || !errors.Is(commitError(reply), group.ErrCoordinatorNotAvailable) {
				t.Errorf("commit to %s: %+v, %v", id, reply, err)
			}
		}
		nothingNew := func() {
			t.Helper()
			listed, err := r.ListGroups(t.Context(), nil, nil)
			for _, g := range listed {
				if g.Group == "new" || g.Group == "fresh" {
					t.Errorf("%s is listed", g.Group)
				}
			}
			if err != nil || p.count() != records {
				t.Errorf("%d batches were written, %v", p.count()-records, err)
			}
			for _, stable := range []bool{false, true} {
				if reply, err := r.OffsetFetch(t.Context(), fetchOf("kept"), stable); err != nil || reply.Err != nil || reply.Topics[0].Partitions[0].Offset != 5 {
					t.Errorf("stable %t: %+v, %v", stable, reply, err)
				}
			}
		}
		nothingNew()
		p.fail(nil)
		nothingNew()

		p.hold() // appended, and not replicated
		go func() { _, _ = r.OffsetCommit(t.Context(), commitOf("kept", 0, 6, 3)) }()
		synctest.Wait()
		before := time.Now()
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("kept"), true); err == nil && !errors.Is(reply.Err, group.ErrCoordinatorNotAvailable) || err != nil && !errors.Is(err, group.ErrCoordinatorNotAvailable) || time.Since(before) > 5*time.Second {
			t.Errorf("stable fetch behind a write that is not replicated: %+v, %v, after %v", reply, err, time.Since(before))
		}
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("kept"), false); err != nil || reply.Topics[0].Partitions[0].Offset != 5 {
			t.Errorf("a write that is not replicated is visible: %+v, %v", reply, err)
		}
		p.release()
		synctest.Wait()
		if joined, err := r.JoinGroup(t.Context(), group.RequestContext{}, joinOf("new", ""), nil); err != nil || joined.Err != nil || joined.Generation != 1 {
			t.Errorf("join afterwards: %+v, %v", joined, err)
		}
	})
}
