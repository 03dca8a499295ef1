package log

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
)

// guarded takes a guard for b, which there must be.
func (x *tester) guarded(b record.Batch, v2 bool) TxnGuard {
	x.t.Helper()
	g, err := x.log.GuardTxn(b, v2)
	if err != nil || !g.Held() {
		x.t.Fatalf("guard: %v, %v", g, err)
	}
	return g
}

// verified appends b with the guard.
func (x *tester) verified(b record.Batch, g TxnGuard) (AppendInfo, error) {
	x.t.Helper()
	return x.try(b, 0, AppendOptions{Guard: g})
}

// A marker that comes while the coordinator is asked ends the transaction that the answer is about: the batch that comes
// with it is refused, and one that was asked about since is not (coordinator answers that are late).
func TestMarkerEndsAVerification(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	b := idempotent(1, 0, 0, 2, true)
	g := x.guarded(b, false)
	x.end(marker(1, 0, false, 0))
	if _, err := x.verified(b, g); !errors.Is(err, ErrInvalidTxnState) || x.leo() != 1 {
		t.Errorf("late answer: %v, end %d", err, x.leo())
	}
	again := x.guarded(b, false)
	if _, err := x.verified(b, g); !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("the old guard beside a new one: %v", err)
	}
	if info, err := x.verified(b, again); err != nil || info.BaseOffset != 1 {
		t.Errorf("%+v, %v", info, err)
	}
	// The transaction is open, and nobody need be asked again, with a guard that is spent or without.
	if g, err := x.log.GuardTxn(idempotent(1, 0, 2, 1, true), false); err != nil || g.Held() {
		t.Errorf("in an open transaction: %v, %v", g, err)
	}
	if _, err := x.verified(idempotent(1, 0, 2, 1, true), again); err != nil {
		t.Error(err)
	}
	if len(x.log.guards) != 0 {
		t.Errorf("%d guards are left", len(x.log.guards))
	}
	// Nor about a duplicate, whatever has become of its transaction since.
	x.end(marker(1, 0, true, 0))
	if g, err := x.log.GuardTxn(idempotent(1, 0, 2, 1, true), false); err != nil || g.Held() {
		t.Errorf("duplicate: %v, %v", g, err)
	}
	if info, err := x.verified(idempotent(1, 0, 2, 1, true), TxnGuard{}); err != nil || !info.Duplicate {
		t.Errorf("duplicate: %+v, %v", info, err)
	}
	if _, err := x.verified(idempotent(1, 0, 3, 1, true), TxnGuard{}); !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("the next transaction, not verified: %v", err)
	}
}

// TestT023_marker_of_the_transaction_before: under transaction.version 2 the next transaction may be verified before the
// marker of the last one comes, which has the same epoch: it leaves the guard.
func TestT023_marker_of_the_transaction_before(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	first := idempotent(1, 0, 0, 2, true)
	if _, err := x.verified(first, x.guarded(first, true)); err != nil {
		t.Fatal(err)
	}
	next := idempotent(1, 1, 0, 1, true)
	g := x.guarded(next, true)
	if _, err := x.log.AppendAsLeader(marker(1, 1, true, 0), 0, AppendOptions{Origin: OriginCoordinator, TxnV2: true}); err != nil {
		t.Fatal(err)
	}
	if info, err := x.verified(next, g); err != nil || info.BaseOffset != 3 {
		t.Errorf("%+v, %v", info, err)
	}
	// A marker of a later epoch is about this one.
	after := idempotent(1, 2, 0, 1, true)
	g = x.guarded(after, true)
	if _, err := x.log.AppendAsLeader(marker(1, 3, false, 0), 0, AppendOptions{Origin: OriginCoordinator, TxnV2: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.verified(after, g); !errors.Is(err, ErrInvalidProducerEpoch) {
		t.Errorf("%v", err)
	}
}

// Of several batches that are verified at once the lowest sequence goes first: a higher one is refused until it is there,
// since it could not be written after. A bumped epoch begins anew. A guard counts for one epoch: an open transaction of an
// older one lets nobody in.
func TestLowestVerifiedSequenceGoesFirst(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	five, zero := idempotent(1, 0, 5, 1, true), idempotent(1, 0, 0, 5, true)
	high := x.guarded(five, false)
	low := x.guarded(zero, false)
	var order *OutOfOrderSequenceError
	if _, err := x.verified(five, high); !errors.As(err, &order) || order.Expected != 0 {
		t.Errorf("5 before 0: %v", err)
	}
	if _, err := x.verified(zero, low); err != nil {
		t.Error(err)
	}
	if _, err := x.verified(five, high); err != nil {
		t.Errorf("5 after 0: %v", err)
	}
	bumped := idempotent(1, 1, 0, 1, true)
	if _, err := x.verified(bumped, TxnGuard{}); !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("another epoch in an open transaction: %v", err)
	}
	x.guarded(idempotent(1, 1, 3, 1, true), false)
	if _, err := x.verified(bumped, x.guarded(bumped, false)); err != nil {
		t.Error(err)
	}
	if _, err := x.log.GuardTxn(five, false); !errors.Is(err, ErrInvalidProducerEpoch) {
		t.Errorf("an older epoch is asked about: %v", err)
	}
}

// A producer of transaction.version 2 that the log does not know begins at sequence 0; another may begin anywhere. Switched
// off, verification lets in what is not verified, but for transactions of version 2, which are asked about all the same.
func TestVerificationOff(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		c := DefaultConfig()
		c.TxnVerificationStrict = strict
		x := newTester(t, c).open()
		five := idempotent(1, 0, 5, 1, true)
		if _, err := x.verified(five, x.guarded(five, true)); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Errorf("strict %t: version 2 begins at 5: %v", strict, err)
		}
		other := idempotent(2, 0, 5, 1, true)
		g, err := x.log.GuardTxn(other, false)
		if err != nil || g.Held() != strict {
			t.Errorf("strict %t: guard %v, %v", strict, g.Held(), err)
		}
		if _, err := x.verified(other, g); err != nil {
			t.Errorf("strict %t: version 1 begins at 5: %v", strict, err)
		}
		_, err = x.verified(idempotent(3, 0, 0, 1, true), TxnGuard{})
		if strict != errors.Is(err, ErrInvalidTxnState) {
			t.Errorf("strict %t: not verified: %v", strict, err)
		}
	}
}

// Guards that nothing came of are forgotten with the producers, and there are never more than so many.
func TestGuardsAreForgotten(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{ProducerExpirationMs: 1000}).open()
	b := idempotent(1, 0, 0, 1, true)
	g := x.guarded(b, false)
	x.now = x.now.Add(999 * time.Millisecond)
	x.log.ExpireProducers()
	if len(x.log.guards) != 1 {
		t.Error("forgotten early")
	}
	x.now = x.now.Add(time.Millisecond)
	x.log.ExpireProducers()
	if _, err := x.verified(b, g); len(x.log.guards) != 0 || !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("%d guards are left; append: %v", len(x.log.guards), err)
	}
	for id := range int64(maxGuards + 5) {
		x.now = x.now.Add(time.Millisecond)
		x.guarded(idempotent(id, 0, 0, 1, true), false)
	}
	if n := len(x.log.guards); n != maxGuards || x.log.guards[4] != nil || x.log.guards[5] == nil {
		t.Errorf("%d guards; 4: %v, 5: %v", n, x.log.guards[4], x.log.guards[5])
	}
}

// A producer whose epoch is used up is fenced with the last one there is, also by a marker that finds its transaction open.
func TestMarkerOfTheLastEpoch(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(idempotent(1, math.MaxInt16, 0, 1, true))
	if _, err := x.log.AppendAsLeader(marker(1, math.MaxInt16, false, 0), 0, AppendOptions{Origin: OriginCoordinator, TxnV2: true}); err != nil {
		t.Error(err)
	}
	if st := x.log.ProducerStates(); st[0].TxnStartOffset != -1 {
		t.Errorf("%+v", st)
	}
}
