package log

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"
)

// After one batch and a clean stop the directory holds exactly the bytes that Kafka's format says.
func TestS021_files_after_a_clean_stop(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	x.topic = [16]byte{1, 2, 3}
	x.open().append(batchA)
	x.close()
	want := batchA.Clone()
	want.SetPartitionLeaderEpoch(0)
	for name, content := range map[string][]byte{
		"00000000000000000000.log":       want,
		"00000000000000000000.index":     {},
		"00000000000000000000.timeindex": unhex("0000018bcfe56805 00000001"),
		"00000000000000000002.snapshot":  unhex("0001 48674bc7 00000000"),
		"leader-epoch-checkpoint":        []byte("0\n1\n0 0\n"),
		"partition.metadata":             []byte("version: 0\ntopic_id: AQIDAAAAAAAAAAAAAAAAAA"),
	} {
		if got := x.file(name); !bytes.Equal(got, content) {
			t.Errorf("%s holds %x, want %x", name, got, content)
		}
	}
	if x.exists("00000000000000000000.txnindex") {
		t.Error("there is a transaction index")
	}
}

// Sixteen batches of 1000 bytes at an interval of 4096 make index entries at batches 6, 11 and 16.
func TestS022_index_interval(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for i := range 16 {
		x.append(exactly(1000, ts0+int64(i)))
	}
	x.close()
	want := "0000000500001388" + "0000000a00002710" + "0000000f00003a98"
	if got := hex.EncodeToString(x.file("00000000000000000000.index")); got != want {
		t.Errorf("index %s, want %s", got, want)
	}
	entries, err := parseTimeIndex(x.file("00000000000000000000.timeindex"))
	if err != nil || fmt.Sprint(entries) != fmt.Sprint([]timeEntry{{ts0 + 5, 5}, {ts0 + 10, 10}, {ts0 + 15, 15}}) {
		t.Errorf("time index %v, %v", entries, err)
	}
}

// Falling timestamps give one time index entry, written when the log is closed.
func TestS023_falling_timestamps(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for i := range 5 {
		x.append(batch(1, 100, ts0-int64(i)))
	}
	x.close()
	entries, err := parseTimeIndex(x.file("00000000000000000000.timeindex"))
	if err != nil || fmt.Sprint(entries) != fmt.Sprint([]timeEntry{{ts0, 0}}) {
		t.Errorf("time index %v, %v", entries, err)
	}
}

// The snapshot of an idempotent producer holds its fields as the format's example does.
func TestS024_producer_snapshot(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(startAt(100))
	p := &producers{}
	p.appended(idempotent(4000, 5, 0, 2, false), 0)
	st := p.byID[4000]
	st.count = 0
	st.remember(batchMeta{firstSequence: 8, lastSequence: 9, offsetDelta: 1, lastOffset: 105, timestamp: ts0 + 5})
	st.coordinatorEpoch, st.lastTimestamp = 3, ts0+5
	p.appended(idempotent(4001, 0, 0, 1, true), 0)
	st = p.byID[4001]
	st.count, st.coordinatorEpoch, st.txnFirstOffset, st.lastTimestamp = 0, 0, 110, ts0
	want := unhex(`0001 fc134988 00000002
		0000000000000fa0 0005 00000009 0000000000000069 00000001 0000018bcfe56805 00000003 ffffffffffffffff
		0000000000000fa1 0000 ffffffff ffffffffffffffff 00000000 0000018bcfe56800 00000000 000000000000006e`)
	if got := formatSnapshot(p); !bytes.Equal(got, want) {
		t.Errorf("snapshot\n%x, want\n%x", got, want)
	}
	back, err := parseSnapshot(want)
	if err != nil || !bytes.Equal(formatSnapshot(&back), want) {
		t.Errorf("reading it back: %v", err)
	}
	x.append(idempotent(4000, 5, 0, 10, false))
	x.close()
	back, err = parseSnapshot(x.file("00000000000000000110.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := back.byID[4000].lastBatch(); !ok || m != (batchMeta{0, 9, 9, 109, ts0 + 9}) {
		t.Errorf("last batch %+v", m)
	}
}
