package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A batch is damaged below the recovery point, where nothing is scanned and nothing may be cut: whoever reads it gets
// KAFKA_STORAGE_ERROR, never other bytes or a shorter log; that log is lost, loudly and alone, the controller is told and names no leader
// for it any more; the other partitions serve on. After a stop that was clean and after one that was not.
func TestABadBatchBelowTheRecoveryPointLosesThatLogAlone(t *testing.T) {
	t.Parallel()
	for _, unclean := range []bool{false, true} {
		n := start(t)
		c := n.dial(t)
		tp, other := c.topic(1, "segment.bytes=1048576"), c.topic(1)
		for range 4 {
			c.mustProduce(tp, 0, sized(400_000, stamp))
		}
		c.mustProduce(other, 0, plain(3, stamp))
		n.stop(t)
		path := n.path(tp.name, "00000000000000000000.log")
		data := n.read(t, path)
		before := len(data)
		second := 12 + int(uint32(data[8])<<24|uint32(data[9])<<16|uint32(data[10])<<8|uint32(data[11]))
		copy(data[second+8:], []byte{0x7f, 0xff, 0xff, 0xff})
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if unclean {
			if err := os.Remove(n.dir + "/.kafka_cleanshutdown"); err != nil {
				t.Fatal(err)
			}
		}
		n.run(t)
		c = n.dial(t)
		c.led(tp, 1)
		c.led(other, 1)
		if end := c.end(tp); end != 4 {
			t.Errorf("unclean %v: the log ends at %d, want 4: nothing below the recovery point is cut", unclean, end)
		}
		if p := c.fetch(11, at(tp, 1)); p.ErrorCode != 56 || len(p.RecordBatches) != 0 {
			t.Errorf("unclean %v: reading the damage: error %d, %d bytes", unclean, p.ErrorCode, len(p.RecordBatches))
		}
		for deadline := time.Now().Add(patience); ; {
			p := c.metadata(tp).Partitions[0]
			if p.Leader == -1 && p.ErrorCode == 5 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("unclean %v: the controller has not taken the leader away: %+v\n%s", unclean, p, n.log())
			}
		}
		if p := c.produce(9, tp, 0, exampleA()); p.ErrorCode != 56 && p.ErrorCode != 6 {
			t.Errorf("unclean %v: a lost log takes records: error %d", unclean, p.ErrorCode)
		}
		if base := c.mustProduce(other, 0, exampleA()); base != 3 {
			t.Errorf("unclean %v: the other partition stores at %d", unclean, base)
		}
		if got := len(n.read(t, path)); got != before {
			t.Errorf("unclean %v: the damaged file has %d bytes, had %d", unclean, got, before)
		}
		told := false
		for line := range strings.Lines(n.log()) {
			told = told || strings.Contains(line, `"level":"ERROR"`) && strings.Contains(line, fmt.Sprintf("%q", tp.name)) && strings.Contains(line, "00000000000000000000.log")
		}
		if !told {
			t.Errorf("unclean %v: no error in the log names the partition and the file:\n%s", unclean, n.log())
		}
		dirs := do[*kmsg.DescribeLogDirsResponse](c, 4, kmsg.NewPtrDescribeLogDirsRequest())
		if len(dirs.Dirs) != 1 || dirs.Dirs[0].ErrorCode != 0 {
			t.Errorf("unclean %v: the directory is not online: %+v", unclean, dirs.Dirs)
		}
		n.stop(t)
	}
}
