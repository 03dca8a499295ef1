package quorum

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
)

// A leader's process that is killed may close a connection before its listener, so that the next one is let in and ended
// too: its followers look until it refuses, and do not wait for an election timeout.
func TestDyingLeaderIsLookedAtUntilItRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tc := newTestCluster(t, Config{})
		defer tc.close()
		id, _ := tc.leader()
		follower := tc.network.hosts[id%3+1]
		tc.network.setCut(id, true)
		answers := []error{syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNREFUSED}
		dials := 0
		m := NewMesh(MeshOptions{
			Identity: identityOf(testVoter(id%3 + 1)), Addresses: map[int32]string{id: "leader:1"}, Timeout: follower.core.o.Config.ElectionTimeout,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				dials++
				return nil, answers[min(dials, len(answers))-1]
			},
			ErrorCode: func(error) int16 { return -1 }, Logger: slog.New(slog.DiscardHandler),
		})
		defer m.Close()
		m.Attach(follower)
		i := slices.IndexFunc(follower.Status().Voters, func(v Voter) bool { return v.VoterID == id })
		lane := newLane(&peer{mesh: m, voter: follower.Status().Voters[i]}, false)
		lane.examine()
		synctest.Wait()
		if leader := follower.Status().LeaderID; leader == id || dials != len(answers) {
			t.Errorf("after %d looks the leader is %d", dials, leader)
		}
		tc.network.setCut(id, false)
	})
}
