package epoch

import (
	"testing"

	"pgregory.net/rapid"
)

func cache(t *testing.T, pairs ...int64) Cache {
	t.Helper()
	var es []Entry
	for i := 0; i < len(pairs); i += 2 {
		es = append(es, Entry{int32(pairs[i]), pairs[i+1]})
	}
	c, err := New(es...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// One running cache takes every kind of assignment; only real changes are reported as changes.
func TestEpochVectorsAssign(t *testing.T) {
	t.Parallel()
	var c Cache
	for _, s := range []struct {
		epoch   int32
		start   int64
		want    string
		changed bool
		fails   bool
	}{
		{0, 0, "{0:0}", true, false},
		{0, 5, "{0:0}", false, false},
		{2, 10, "{0:0, 2:10}", true, false},
		{2, 8, "{0:0, 2:8}", true, false},
		{5, 8, "{0:0, 5:8}", true, false},
		{7, 20, "{0:0, 5:8, 7:20}", true, false},
		{6, 30, "{0:0, 5:8, 6:30}", true, false},
		{7, 40, "{0:0, 5:8, 6:30, 7:40}", true, false},
		{9, 0, "{9:0}", true, false},
		{-1, 0, "{9:0}", false, true},
		{3, -1, "{9:0}", false, true},
	} {
		before := c
		was := c.String()
		next, changed, err := c.Assign(s.epoch, s.start)
		if next.String() != s.want || changed != s.changed || (err != nil) != s.fails {
			t.Errorf("assign(%d,%d) = %v, %v, %v; want %s", s.epoch, s.start, next, changed, err, s.want)
		}
		if before.String() != was {
			t.Errorf("assign(%d,%d) changed the old value to %v", s.epoch, s.start, before)
		}
		c = next
	}
}

// Cutting at either end keeps exactly the epochs that still have offsets, and clamps the one that is cut.
func TestEpochVectorsTruncation(t *testing.T) {
	t.Parallel()
	c := cache(t, 2, 6, 3, 8, 4, 11)
	for x, want := range map[int64]string{12: c.String(), 11: "{2:6, 3:8}", 9: "{2:6, 3:8}", 8: "{2:6}", 6: "{}", 0: "{}", -1: c.String()} {
		if got := c.TruncateFromEnd(x).String(); got != want {
			t.Errorf("fromEnd(%d) = %s, want %s", x, got, want)
		}
	}
	for x, want := range map[int64]string{-1: c.String(), 5: c.String(), 6: c.String(), 7: "{2:7, 3:8, 4:11}", 8: "{3:8, 4:11}",
		9: "{3:9, 4:11}", 11: "{4:11}", 15: "{4:15}"} {
		if got := c.TruncateFromStart(x).String(); got != want {
			t.Errorf("fromStart(%d) = %s, want %s", x, got, want)
		}
	}
	if c.String() != "{2:6, 3:8, 4:11}" {
		t.Errorf("the value changed: %v", c)
	}
}

// Lookups by epoch, by offset and by range on a cache with gaps give the tabled answers, unknown being -1 or none.
func TestEpochVectorsLookup(t *testing.T) {
	t.Parallel()
	c := cache(t, 2, 20, 3, 35, 6, 50, 7, 80)
	for _, v := range []struct {
		asked, epoch int32
		end          int64
	}{{-1, -1, -1}, {-2, -2, 20}, {0, 0, 20}, {1, 1, 20}, {2, 2, 35}, {3, 3, 50}, {4, 3, 50}, {5, 3, 50}, {6, 6, 80}, {7, 7, 100}, {8, -1, -1}} {
		if e, o := c.EndOffsetFor(v.asked, 100); e != v.epoch || o != v.end {
			t.Errorf("endOffsetFor(%d) = (%d,%d), want (%d,%d)", v.asked, e, o, v.epoch, v.end)
		}
		if e, o := (Cache{}).EndOffsetFor(v.asked, 100); e != -1 || o != -1 {
			t.Errorf("empty: endOffsetFor(%d) = (%d,%d)", v.asked, e, o)
		}
	}
	for o, want := range map[int64]int32{0: -1, 19: -1, 20: 2, 34: 2, 35: 3, 49: 3, 50: 6, 79: 6, 80: 7, 99: 7, 100: 7, 1000: 7} {
		got, ok := c.ForOffset(o)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("epochForOffset(%d) = %d, %v; want %d", o, got, ok, want)
		}
	}
	for _, v := range []struct {
		from, to int64
		want     string
	}{{40, 60, "{3:40, 6:50}"}, {-1, 60, "{2:20, 3:35, 6:50}"}, {50, 80, "{6:50}"}, {0, 20, "{}"}, {81, 200, "{7:81}"}} {
		if got := c.Range(v.from, v.to).String(); got != v.want {
			t.Errorf("range(%d,%d) = %s, want %s", v.from, v.to, got, v.want)
		}
	}
}

// Whatever is assigned and cut, in any order, the entries strictly rise in both fields and no older value changes.
func TestCacheAlwaysRises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c Cache
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before, was := c, c.String()
			o := rapid.Int64Range(-1, 60).Draw(t, "offset")
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				c, _, _ = c.Assign(rapid.Int32Range(-1, 20).Draw(t, "epoch"), o)
			case 1:
				c = c.TruncateFromEnd(o)
			case 2:
				c = c.TruncateFromStart(o)
			}
			if before.String() != was {
				t.Fatalf("a value changed from %s to %v", was, before)
			}
			if _, err := New(c.Entries()...); err != nil {
				t.Fatal(err)
			}
		}
	})
}
