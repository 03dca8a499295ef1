package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// producer is a transactional producer, spoken for by hand.
type producer struct {
	c     *client
	txn   string
	id    int64
	epoch int16
}

// transactor begins a transactional producer under a new transactional id.
func (c *client) transactor() *producer {
	c.t.Helper()
	p := &producer{c: c, txn: c.freshName()}
	var last int16
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorKey, find.CoordinatorType = p.txn, 1
		if last = do[*kmsg.FindCoordinatorResponse](c, 2, find).ErrorCode; last != 0 {
			continue
		}
		if last = p.init(5, 60000); last == 0 {
			return p
		}
	}
	c.t.Fatalf("%s has no transaction coordinator: error %d", p.txn, last)
	return nil
}

// init asks for a new epoch, as a producer that has none.
func (p *producer) init(version int16, timeout int32) int16 {
	p.c.t.Helper()
	resp := p.c.initTxn(version, p.txn, timeout, -1, -1)
	if resp.ErrorCode == 0 {
		p.id, p.epoch = resp.ProducerID, resp.ProducerEpoch
	}
	return resp.ErrorCode
}

func (c *client) initTxn(version int16, id string, timeout int32, producerID int64, epoch int16) *kmsg.InitProducerIDResponse {
	c.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &id, timeout, producerID, epoch
	return do[*kmsg.InitProducerIDResponse](c, version, req)
}

// until repeats a request while its answer is that the transaction before is not finished.
func until(t testing.TB, ask func() int16) int16 {
	t.Helper()
	var code int16
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if code = ask(); code != 51 {
			return code
		}
	}
	t.Errorf("the transaction before is never finished")
	return code
}

func (p *producer) add(version int16, tp topic, partitions ...int32) []int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.txn, p.id, p.epoch
	one := kmsg.NewAddPartitionsToTxnRequestTopic()
	one.Topic, one.Partitions = tp.name, partitions
	req.Topics = append(req.Topics, one)
	var codes []int16
	for _, t := range do[*kmsg.AddPartitionsToTxnResponse](p.c, version, req).Topics {
		for _, r := range t.Partitions {
			codes = append(codes, r.ErrorCode)
		}
	}
	return codes
}

// send produces n records from a sequence number on, to partition 0.
func (p *producer) send(version int16, tp topic, sequence int32, n int) int16 {
	p.c.t.Helper()
	req := produceRequest(version, -1, tp, 0, txnBatch(p.id, p.epoch, sequence, n))
	req.TransactionID = &p.txn
	return do[*kmsg.ProduceResponse](p.c, version, req).Topics[0].Partitions[0].ErrorCode
}

// end ends the transaction, and takes on what the answer tells of the next.
func (p *producer) end(version int16, commit bool) int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.txn, p.id, p.epoch, commit
	resp := do[*kmsg.EndTxnResponse](p.c, version, req)
	if resp.ErrorCode == 0 && version >= 5 {
		p.id, p.epoch = resp.ProducerID, resp.ProducerEpoch
	}
	return resp.ErrorCode
}

func (p *producer) mustEnd(version int16, commit bool) {
	p.c.t.Helper()
	if code := p.end(version, commit); code != 0 {
		p.c.t.Fatalf("end: error %d", code)
	}
}

// offsets commits offsets in the transaction.
func (p *producer) offsets(version int16, by committer, tp topic, commits ...commit) []int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = p.txn, by.group, p.id, p.epoch
	req.Generation, req.MemberID, req.InstanceID = by.generation, by.member, by.instance
	one := kmsg.NewTxnOffsetCommitRequestTopic()
	one.Topic, one.TopicID = tp.name, tp.id
	for _, o := range commits {
		part := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		part.Partition, part.Offset, part.LeaderEpoch, part.Metadata = o.partition, o.offset, o.epoch, o.metadata
		one.Partitions = append(one.Partitions, part)
	}
	req.Topics = append(req.Topics, one)
	var codes []int16
	for _, r := range do[*kmsg.TxnOffsetCommitResponse](p.c, version, req).Topics[0].Partitions {
		codes = append(codes, r.ErrorCode)
	}
	return codes
}

// fetchStable fetches the offset of partition 0 for a client that wants none of an open transaction.
func (c *client) fetchStable(group string, tp topic) storedOffset {
	c.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	asked := kmsg.NewOffsetFetchRequestGroup()
	asked.Group = group
	one := kmsg.NewOffsetFetchRequestGroupTopic()
	one.Topic, one.Partitions = tp.name, []int32{0}
	asked.Topics = append(asked.Topics, one)
	req.Groups = append(req.Groups, asked)
	resp := do[*kmsg.OffsetFetchResponse](c, 8, req).Groups[0]
	if resp.ErrorCode != 0 {
		return storedOffset{code: resp.ErrorCode}
	}
	p := resp.Topics[0].Partitions[0]
	return storedOffset{p.ErrorCode, p.Offset, p.LeaderEpoch, deref(p.Metadata)}
}

// settled waits until no transaction holds an offset of the group, and returns what is committed.
func (c *client) settled(group string, tp topic) int64 {
	c.t.Helper()
	var last storedOffset
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if last = c.fetchStable(group, tp); last.code == 0 {
			return last.offset
		}
	}
	c.t.Errorf("the offset stays unstable: %+v", last)
	return -1
}

func TestT001_T002_init(t *testing.T) {
	// Without a transactional id each InitProducerId gives another producer id at epoch 0; an empty id and half of a
	// producer are 42, a timeout of 0 or above the largest 50.
	t.Parallel()
	c := shared(t).dial(t)
	if one, two := c.producerID(), c.producerID(); one == two {
		t.Errorf("twice %d", one)
	}
	p := c.transactor()
	for name, row := range map[string]struct {
		id      string
		timeout int32
		epoch   int16
		want    int16
	}{"empty": {"", 1000, -1, 42}, "timeout 0": {p.txn, 0, -1, 50}, "timeout 900001": {p.txn, 900001, -1, 50}, "epoch without id": {p.txn, 1000, 0, 42}} {
		if resp := c.initTxn(5, row.id, row.timeout, -1, row.epoch); resp.ErrorCode != row.want || resp.ProducerID != -1 || resp.ProducerEpoch != -1 {
			t.Errorf("%s: %+v, want error %d", name, resp, row.want)
		}
	}
	if resp := c.initTxn(3, p.txn, 1000, p.id+1, 0); resp.ErrorCode != 47 {
		t.Errorf("another producer id, version 3: error %d", resp.ErrorCode)
	}
	if resp := c.initTxn(4, p.txn, 1000, p.id+1, 0); resp.ErrorCode != 90 {
		t.Errorf("another producer id, version 4: error %d", resp.ErrorCode)
	}
}

func TestT014_partitions_refused_together(t *testing.T) {
	// AddPartitionsToTxn with an unknown and an internal topic beside a good one: 3, 29 and 55 for the rest, and nothing is added.
	t.Parallel()
	c := shared(t).dial(t)
	tp, p := c.topic(1), c.transactor()
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.txn, p.id, p.epoch
	for _, name := range []string{tp.name, "nobody-made-this", "__consumer_offsets"} {
		one := kmsg.NewAddPartitionsToTxnRequestTopic()
		one.Topic, one.Partitions = name, []int32{0}
		req.Topics = append(req.Topics, one)
	}
	got := ""
	for _, one := range do[*kmsg.AddPartitionsToTxnResponse](c, 3, req).Topics {
		got += fmt.Sprintf("%d ", one.Partitions[0].ErrorCode)
	}
	if got != "55 3 29 " {
		t.Errorf("%s", got)
	}
	if d := c.describeTxn(p.txn); d.State != "Empty" || len(d.Topics) != 0 {
		t.Errorf("%+v", d)
	}
	if codes := p.add(3, tp, 0, 7); codes[0] != 55 || codes[1] != 3 {
		t.Errorf("a partition that is not there: %v", codes)
	}
}

func TestT016_several_transactions(t *testing.T) {
	// AddPartitionsToTxn 4 with a good transaction and a fenced one answers each by itself; VerifyOnly adds nothing.
	t.Parallel()
	c := shared(t).dial(t)
	tp, good, fenced := c.topic(2), c.transactor(), c.transactor()
	ask := func(verify bool) string {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		for _, p := range []*producer{good, fenced} {
			one := kmsg.NewAddPartitionsToTxnRequestTransaction()
			one.TransactionalID, one.ProducerID, one.ProducerEpoch, one.VerifyOnly = p.txn, p.id, p.epoch, verify
			if p == fenced {
				one.ProducerEpoch--
			}
			topic := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
			topic.Topic, topic.Partitions = tp.name, []int32{0, 1}
			one.Topics = append(one.Topics, topic)
			req.Transactions = append(req.Transactions, one)
		}
		resp := do[*kmsg.AddPartitionsToTxnResponse](c, 5, req)
		got := fmt.Sprintf("%d:", resp.ErrorCode)
		for _, one := range resp.Transactions {
			for _, part := range one.Topics[0].Partitions {
				got += fmt.Sprintf(" %d", part.ErrorCode)
			}
		}
		return got
	}
	if code := fenced.init(5, 60000); code != 0 {
		t.Fatal(code)
	}
	for _, step := range []struct {
		verify bool
		want   string
	}{{true, "0: 120 120 90 90"}, {false, "0: 0 0 90 90"}, {true, "0: 0 0 90 90"}} {
		if got := ask(step.verify); got != step.want {
			t.Errorf("verify %t: %s, want %s", step.verify, got, step.want)
		}
	}
}

func TestT019_first_version(t *testing.T) {
	// transaction.version 1: partitions are added by the producer, and a batch for one that was not is refused: 120, and 48
	// for older producers. The epoch stays; an end that is sent again is 0, the other one 48.
	t.Parallel()
	c := shared(t).dial(t)
	tp, other, p := c.topic(1), c.topic(1), c.transactor()
	epoch := p.epoch
	if codes := p.add(3, tp, 0); codes[0] != 0 {
		t.Fatal(codes)
	}
	for version, want := range map[int16]int16{11: 120, 10: 48} {
		if code := p.send(version, other, 0, 1); code != want {
			t.Errorf("a partition that was not added, version %d: error %d, want %d", version, code, want)
		}
	}
	if code := p.send(11, tp, 0, 3); code != 0 {
		t.Errorf("produce: error %d", code)
	}
	if code := p.send(10, tp, 3, 1); code != 0 {
		t.Errorf("produce: error %d", code)
	}
	p.mustEnd(4, true)
	if code := until(t, func() int16 { return p.end(4, true) }); code != 0 {
		t.Errorf("again: error %d", code)
	}
	if code := p.end(4, false); code != 48 {
		t.Errorf("the other end: error %d", code)
	}
	if p.epoch != epoch || c.stable(tp) != 5 || c.end(other) != 0 {
		t.Errorf("epoch %d, stable %d, the other ends at %d", p.epoch, c.stable(tp), c.end(other))
	}
	// A batch after the end, without the partition in a new transaction: nothing is opened for ever.
	if code := p.send(11, tp, 4, 1); code != 120 || c.stable(tp) != 5 {
		t.Errorf("after the end: error %d, stable %d", code, c.stable(tp))
	}
}

func TestT024_T025_T026_sequences(t *testing.T) {
	// transaction.version 2: the partition is added with the batch. A plain batch inside the transaction is 48; after its end
	// the next epoch begins at sequence 0, and only there; a producer that is not known must begin at 0 too.
	t.Parallel()
	c := shared(t).dial(t)
	tp, p := c.topic(1), c.transactor()
	if code := p.send(12, tp, 5, 1); code != 45 {
		t.Errorf("the first batch at sequence 5: error %d", code)
	}
	if code := p.send(12, tp, 0, 2); code != 0 {
		t.Fatalf("the first batch: error %d", code)
	}
	c.refused(11, tp, idempotent(p.id, p.epoch, 2, 1), 48)
	first := p.epoch
	p.mustEnd(5, true)
	if p.epoch != first+1 {
		t.Errorf("epoch %d after %d", p.epoch, first)
	}
	if code := until(t, func() int16 { return p.send(12, tp, 1, 1) }); code != 45 {
		t.Errorf("sequence 1 of the next: error %d", code)
	}
	if code := p.send(12, tp, 0, 1); code != 0 {
		t.Errorf("sequence 0 of the next: error %d", code)
	}
	p.mustEnd(5, false)
	if code := p.send(13, tp, 0, 1); code != 0 && code != 51 {
		t.Errorf("the third: error %d", code)
	}
	old := *p
	old.epoch -= 2
	if code := old.send(12, tp, 3, 1); code != 47 {
		t.Errorf("an epoch of before: error %d", code)
	}
}

func TestT034_E108_offsets_in_a_transaction(t *testing.T) {
	// Offsets of a transaction are unstable for who requires stable ones, the old value for others, and stand with the commit
	// or are dropped with the abort: with an offset commit that adds itself, and with one that is added.
	t.Parallel()
	c := shared(t).dial(t)
	for _, version := range []int16{6, 3} {
		tp, group, p := c.topic(1), c.groupID(), c.transactor()
		endVersion := int16(5)
		if version < 5 {
			endVersion = 4
		}
		prepare := func() {
			if version >= 5 {
				return
			}
			if codes := p.offsets(version, alone(group), tp, commit{offset: 1, epoch: -1}); codes[0] != 48 {
				t.Errorf("v%d without being added: error %d", version, codes[0])
			}
			add := kmsg.NewPtrAddOffsetsToTxnRequest()
			add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = p.txn, p.id, p.epoch, group
			if code := until(t, func() int16 { return do[*kmsg.AddOffsetsToTxnResponse](c, 3, add).ErrorCode }); code != 0 {
				t.Fatalf("add offsets: error %d", code)
			}
		}
		if code := c.commitOffset(8, alone(group), tp, 5); code != 0 {
			t.Fatal(code)
		}
		stored := int64(5)
		for i, committed := range []bool{true, false} {
			prepare()
			want := int64(100 + i)
			if code := until(t, func() int16 { return p.offsets(version, alone(group), tp, commit{offset: want, epoch: 3})[0] }); code != 0 {
				t.Fatalf("v%d: error %d", version, code)
			}
			if got := c.fetchStable(group, tp); got.code != 88 || got.offset != -1 {
				t.Errorf("v%d, open, stable: %+v", version, got)
			}
			if got := c.storedOffset(8, group, tp); got.code != 0 || got.offset != stored {
				t.Errorf("v%d, open: %+v, want %d", version, got, stored)
			}
			p.mustEnd(endVersion, committed)
			if committed {
				stored = want
			}
			if got := c.settled(group, tp); got != stored {
				t.Errorf("v%d, committed %t: %d, want %d", version, committed, got, stored)
			}
		}
	}
}

func TestT035_B149_later_commit_wins(t *testing.T) {
	// Of a transaction's offset and a plain one, that wins whose record is later in the log, not the marker: at once, and
	// after a kill.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	before, after := c.groupID(), c.groupID()
	p := c.transactor()
	if codes := p.offsets(6, alone(before), tp, commit{offset: 9, epoch: -1}); codes[0] != 0 {
		t.Fatal(codes)
	}
	for _, group := range []string{before, after} {
		if code := c.commitOffset(8, alone(group), tp, 12); code != 0 {
			t.Fatal(code)
		}
	}
	if codes := p.offsets(6, alone(after), tp, commit{offset: 9, epoch: -1}); codes[0] != 0 {
		t.Fatal(codes)
	}
	p.mustEnd(5, true)
	look := func(when string) {
		if got := c.settled(before, tp); got != 12 {
			t.Errorf("%s: the plain commit was later, and %d is there", when, got)
		}
		if got := c.settled(after, tp); got != 9 {
			t.Errorf("%s: the transaction's commit was later, and %d is there", when, got)
		}
	}
	look("at once")
	n.kill()
	n.run(t)
	c = n.dial(t)
	c.coordinator(before)
	look("after a kill")
}

func TestT036_members_in_a_transaction(t *testing.T) {
	// Offsets in a transaction, of a group with a member: without any identity 0, of another generation 22, of a fenced
	// instance 82; an unknown group with a generation is 22, and 69 from version 6 on.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp, group, unknown, p := c.topic(1), c.groupID(), c.groupID(), c.transactor()
	instance := "i"
	joined := n.dial(t).join(5, wish{group: group, instance: &instance})
	if joined.ErrorCode != 0 {
		t.Fatalf("join: error %d", joined.ErrorCode)
	}
	member, generation := joined.MemberID, joined.Generation
	for name, row := range map[string]struct {
		version int16
		by      committer
		want    int16
	}{
		"no identity":        {6, alone(group), 0},
		"the member":         {6, committer{group, member, &instance, generation}, 0},
		"another generation": {6, committer{group, member, &instance, generation + 1}, 22},
		"fenced instance":    {6, committer{group, "another", &instance, generation}, 82},
		"unknown group, v5":  {5, committer{unknown, "m", nil, 3}, 22},
		"unknown group, v6":  {6, committer{unknown, "m", nil, 3}, 69},
		"unknown topic, v6":  {6, alone(group), 100},
	} {
		to := tp
		if row.want == 100 {
			to.id[0]++
		}
		if codes := p.offsets(row.version, row.by, to, commit{offset: 1, epoch: -1}); codes[0] != row.want {
			t.Errorf("%s: error %d, want %d", name, codes[0], row.want)
		}
	}
	long := fmt.Sprintf("%5000d", 1)
	if codes := p.offsets(6, alone(group), c.topic(2), commit{offset: 1, epoch: -1}, commit{partition: 1, offset: 1, epoch: -1, metadata: &long}); codes[0] != 0 || codes[1] != 12 {
		t.Errorf("metadata of 5000 bytes in one of two: %v", codes)
	}
	p.mustEnd(5, true)
	if got := c.settled(group, tp); got != 1 {
		t.Errorf("the end leaves %d", got)
	}
}

func (c *client) describeTxn(id string) kmsg.DescribeTransactionsResponseTransactionState {
	c.t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	return do[*kmsg.DescribeTransactionsResponse](c, 0, req).TransactionStates[0]
}

func TestT038_T039_describe_and_list(t *testing.T) {
	// Describing an unknown id is 105, an empty one 42; an open transaction is told in full. A list names the filters of
	// states that do not exist, and then nothing; a bad pattern is 128.
	t.Parallel()
	c := shared(t).dial(t)
	tp, p := c.topic(2), c.transactor()
	for id, want := range map[string]int16{"nobody-made-this": 105, "": 42} {
		if d := c.describeTxn(id); d.ErrorCode != want || d.TransactionalID != id {
			t.Errorf("%q: %+v", id, d)
		}
	}
	p.add(3, tp, 1, 0)
	d := c.describeTxn(p.txn)
	if d.ErrorCode != 0 || d.State != "Ongoing" || d.TimeoutMillis != 60000 || d.StartTimestamp <= 0 || d.ProducerID != p.id || d.ProducerEpoch != p.epoch ||
		len(d.Topics) != 1 || d.Topics[0].Topic != tp.name || fmt.Sprint(d.Topics[0].Partitions) != "[0 1]" {
		t.Errorf("%+v", d)
	}
	if d.UnknownTags.Len() != 2 {
		t.Errorf("%d tags, want the client and its host", d.UnknownTags.Len())
	}
	list := func(fill func(*kmsg.ListTransactionsRequest)) *kmsg.ListTransactionsResponse {
		req := kmsg.NewPtrListTransactionsRequest()
		pattern := p.txn
		req.TransactionalIDPattern = &pattern
		fill(req)
		return do[*kmsg.ListTransactionsResponse](c, 2, req)
	}
	for name, row := range map[string]struct {
		fill func(*kmsg.ListTransactionsRequest)
		want int
	}{
		"by id":                     {func(*kmsg.ListTransactionsRequest) {}, 1},
		"by state":                  {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Ongoing", "Odd"} }, 1},
		"by another state":          {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Empty"} }, 0},
		"by producer":               {func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{p.id} }, 1},
		"by another producer":       {func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{p.id + 1_000_000} }, 0},
		"by a duration":             {func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 3_600_000 }, 0},
		"by a part of the id":       {func(r *kmsg.ListTransactionsRequest) { part := p.txn[:8]; r.TransactionalIDPattern = &part }, 0},
		"by a state that is none's": {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Odd"} }, 0},
	} {
		if resp := list(row.fill); resp.ErrorCode != 0 || len(resp.TransactionStates) != row.want {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	if resp := list(func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Odd", "Empty"} }); len(resp.UnknownStateFilters) != 1 || resp.UnknownStateFilters[0] != "Odd" {
		t.Errorf("%+v", resp)
	}
	if resp := list(func(r *kmsg.ListTransactionsRequest) { bad := "("; r.TransactionalIDPattern = &bad }); resp.ErrorCode != 128 {
		t.Errorf("bad pattern: error %d", resp.ErrorCode)
	}
}

func TestB070_out_of_time(t *testing.T) {
	// A transaction runs out of time: the broker aborts it by itself, and whatever its producer then does is refused as
	// fenced, of old versions and new; InitProducerId works, and the next transaction commits.
	t.Parallel()
	n := start(t, "transaction.abort.timed.out.transaction.cleanup.interval.ms=50")
	c := n.dial(t)
	tp := c.topic(1, calm)
	for _, version := range []int16{12, 11} {
		for _, what := range []string{"produce", "add", "commit", "abort"} {
			p := c.transactor()
			if code := p.init(5, 100); code != 0 {
				t.Fatal(code)
			}
			if version < 12 {
				p.add(3, tp, 0)
			}
			if code := p.send(version, tp, 0, 2); code != 0 {
				t.Fatalf("produce: error %d", code)
			}
			for deadline := time.Now().Add(patience); c.describeTxn(p.txn).State != "CompleteAbort"; {
				if time.Now().After(deadline) {
					t.Fatalf("it is not aborted: %+v", c.describeTxn(p.txn))
				}
			}
			if c.stable(tp) != c.end(tp) {
				t.Errorf("stable %d, end %d", c.stable(tp), c.end(tp))
			}
			end := int16(5)
			if version < 12 {
				end = 4
			}
			var got, want int16
			switch what {
			case "produce":
				got, want = p.send(version, tp, 2, 1), 47
			case "add":
				got, want = p.add(3, tp, 0)[0], 90
			case "commit":
				got, want = p.end(end, true), 90
			case "abort":
				got, want = p.end(end, false), 90
			}
			if got != want {
				t.Errorf("version %d, %s: error %d, want %d", version, what, got, want)
			}
			if old := p.end(1, true); old != 47 {
				t.Errorf("end of version 1: error %d", old)
			}
			if code := p.init(5, 60000); code != 0 {
				t.Fatalf("init: error %d", code)
			}
			if code := p.send(12, tp, 0, 1); code != 0 {
				t.Fatalf("the next: error %d", code)
			}
			p.mustEnd(5, true)
		}
	}
	reader := c.committed(tp, 0)
	if n := len(reader.AbortedTransactions); n != 8 {
		t.Errorf("%d transactions are named as aborted, want 8", n)
	}
}

// What a node has of transactions is there after a kill: an open one goes on, one that was decided is finished.
func TestTransactionsAfterAKill(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp, open, decided := c.topic(1), c.transactor(), c.transactor()
	if code := open.send(12, tp, 0, 1); code != 0 {
		t.Fatal(code)
	}
	if code := decided.send(12, tp, 0, 1); code != 0 {
		t.Fatal(code)
	}
	decided.mustEnd(5, true)
	n.kill()
	n.run(t)
	c = n.dial(t)
	c.led(tp, 1)
	open.c, decided.c = c, c
	again := func(ask func() int16) int16 {
		var code int16
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if code = ask(); code != 51 && code != 14 && code != 15 && code != 16 && code != 19 {
				break
			}
		}
		return code
	}
	if code := again(func() int16 { return open.send(12, tp, 1, 1) }); code != 0 {
		t.Errorf("the open one goes on: error %d", code)
	}
	if code := again(func() int16 { return open.end(5, true) }); code != 0 {
		t.Errorf("and ends: error %d", code)
	}
	if code := again(func() int16 { return decided.send(12, tp, 0, 1) }); code != 0 {
		t.Errorf("the next of the other: error %d", code)
	}
	decided.mustEnd(5, false)
	for deadline := time.Now().Add(patience); c.stable(tp) != c.end(tp); {
		if time.Now().After(deadline) {
			t.Fatalf("stable %d, end %d", c.stable(tp), c.end(tp))
		}
	}
}
