package node

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestM045_create_topics(t *testing.T) {
	// CreateTopics: each wrong topic gets its own code, alone and among good ones; what is refused at the door is answered last; ValidateOnly creates nothing.
	t.Parallel()
	c := shared(t).dial(t)
	base := c.freshName()
	if codes := c.create(7, false, wanted{name: base + ".there"}); codes[base+".there"] != 0 {
		t.Fatal(codes)
	}
	one := []int32{1}
	rows := map[string]struct {
		topic wanted
		want  int16
	}{
		"empty name":               {wanted{name: ""}, 17},
		"dot":                      {wanted{name: "."}, 17},
		"two dots":                 {wanted{name: ".."}, 17},
		"too long":                 {wanted{name: strings.Repeat("x", 250)}, 17},
		"bad letter":               {wanted{name: base + "/"}, 17},
		"collides":                 {wanted{name: base + "_there"}, 17},
		"exists":                   {wanted{name: base + ".there"}, 36},
		"config value null":        {wanted{name: base + "-null", configs: []string{"retention.ms"}}, 40},
		"unknown config":           {wanted{name: base + "-unknown", configs: []string{"no.such=1"}}, 40},
		"config out of range":      {wanted{name: base + "-range", configs: []string{"segment.bytes=1"}}, 40},
		"assignment and count":     {wanted{name: base + "-both", partitions: 1, factor: 1, assignments: map[int32][]int32{0: one}}, 42},
		"broker twice":             {wanted{name: base + "-twice", assignments: map[int32][]int32{0: {1, 1}}}, 39},
		"unknown broker":           {wanted{name: base + "-nobody", assignments: map[int32][]int32{0: {77}}}, 39},
		"no replicas":              {wanted{name: base + "-none", assignments: map[int32][]int32{0: {}}}, 39},
		"a hole":                   {wanted{name: base + "-hole", assignments: map[int32][]int32{0: one, 2: one}}, 39},
		"factor 0":                 {wanted{name: base + "-rf0", partitions: 1, factor: 0, exact: true}, 38},
		"factor -2":                {wanted{name: base + "-rf-2", partitions: 1, factor: -2, exact: true}, 38},
		"no partitions":            {wanted{name: base + "-p0", partitions: 0, factor: 1, exact: true}, 37},
		"partitions -2":            {wanted{name: base + "-p-2", partitions: -2, factor: 1, exact: true}, 37},
		"factor above the brokers": {wanted{name: base + "-rf2", partitions: 1, factor: 2}, 38},
		"internal":                 {wanted{name: "__cluster_metadata"}, 42},
	}
	good := 0
	for name, row := range rows {
		for version := int16(2); version <= 7; version++ {
			if codes := c.create(version, true, row.topic); codes[row.topic.name] != row.want {
				t.Errorf("%s, v%d, validate only: %d, want %d", name, version, codes[row.topic.name], row.want)
			}
		}
		if codes := c.create(7, false, row.topic); codes[row.topic.name] != row.want {
			t.Errorf("%s: %d, want %d", name, codes[row.topic.name], row.want)
		}
		good++
		before, after := wanted{name: base + "-good-" + string(rune('a'+good))}, wanted{name: base + "-good-" + string(rune('A'+good))}
		codes := c.create(7, false, before, row.topic, after)
		if codes[before.name] != 0 || codes[row.topic.name] != row.want || codes[after.name] != 0 {
			t.Errorf("%s among good ones: %v", name, codes)
		}
	}
	if codes := c.create(7, false, wanted{name: base + "-twice-named"}, wanted{name: base + "-twice-named"}); codes[base+"-twice-named"] != 42 {
		t.Errorf("named twice: %v", codes)
	}
	c.absent(base + "-twice-named")

	last := do[*kmsg.CreateTopicsResponse](c, 7, createRequest(false, wanted{name: "__cluster_metadata"}, wanted{name: base + "-d"}, wanted{name: base + "-d"}, wanted{name: base + "-last"}))
	if n := len(last.Topics); n != 3 || last.Topics[0].Topic != base+"-last" || last.Topics[0].ErrorCode != 0 {
		t.Errorf("order: %+v", last.Topics)
	}

	resp := do[*kmsg.CreateTopicsResponse](c, 7, createRequest(true, wanted{name: base + "-tried", partitions: 3, configs: []string{"retention.ms=5"}})).Topics[0]
	if resp.ErrorCode != 0 || resp.NumPartitions != 3 || resp.ReplicationFactor != 1 || resp.TopicID == [16]byte{} {
		t.Errorf("validate only: %+v", resp)
	}
	c.absent(base + "-tried")
}

func TestM045_created_topics_show_their_settings(t *testing.T) {
	// CreateTopics v5 and up answers with partitions, factor and the effective settings by name; v7 with the topic's id, as Metadata has it.
	t.Parallel()
	c := shared(t).dial(t)
	for version := int16(2); version <= 7; version++ {
		name := c.freshName()
		made := do[*kmsg.CreateTopicsResponse](c, version, createRequest(false, wanted{name: name, partitions: 2, factor: 1, configs: []string{"retention.ms=5000"}})).Topics[0]
		if made.ErrorCode != 0 {
			t.Fatalf("v%d: %d", version, made.ErrorCode)
		}
		there := c.awaitTopic(name)
		if version >= 7 && made.TopicID != there.TopicID {
			t.Errorf("v%d: id %x, Metadata says %x", version, made.TopicID, there.TopicID)
		}
		if version < 5 {
			continue
		}
		if made.NumPartitions != 2 || made.ReplicationFactor != 1 || len(made.Configs) == 0 || made.ConfigErrorCode != 0 {
			t.Errorf("v%d: %+v", version, made)
		}
		if !slices.IsSortedFunc(made.Configs, func(a, b kmsg.CreateTopicsResponseTopicConfig) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("v%d: settings are not sorted", version)
		}
		for _, setting := range made.Configs {
			if setting.Name == "retention.ms" && (deref(setting.Value) != "5000" || setting.Source != int8(kmsg.ConfigSourceDynamicTopicConfig)) {
				t.Errorf("v%d: %+v", version, setting)
			}
		}
	}
}

func TestB036_factor_and_partitions(t *testing.T) {
	// On one broker: factor 2 is 38, 0 is 38, -1 the default; partitions 0 is 37, -1 the default; validate_only answers the same and creates nothing.
	t.Parallel()
	c := shared(t).dial(t)
	base := c.freshName()
	for i, row := range []struct {
		partitions int32
		factor     int16
		want       int16
	}{{1, 2, 38}, {1, 0, 38}, {1, -1, 0}, {0, 1, 37}, {-1, 1, 0}} {
		name := base + string(rune('a'+i))
		w := wanted{name: name, partitions: row.partitions, factor: row.factor, exact: true}
		if codes := c.create(7, true, w); codes[name] != row.want {
			t.Errorf("%+v, validate only: %d", row, codes[name])
		}
		c.absent(name)
		if codes := c.create(7, false, w); codes[name] != row.want {
			t.Errorf("%+v: %d", row, codes[name])
		}
	}
}

func TestB102_existing_and_odd_topics(t *testing.T) {
	// An existing name is 36; a name twice 42; an assignment beside counts 42; a broker twice or a hole 39.
	t.Parallel()
	c := shared(t).dial(t)
	name := c.topic(1).name
	for version := int16(2); version <= 7; version++ {
		resp := do[*kmsg.CreateTopicsResponse](c, version, createRequest(false, wanted{name: name})).Topics[0]
		if resp.ErrorCode != 36 || deref(resp.ErrorMessage) == "" || resp.NumPartitions != -1 && version >= 5 {
			t.Errorf("v%d: %+v", version, resp)
		}
	}
	base := c.freshName()
	for i, row := range []struct {
		topic wanted
		want  int16
	}{
		{wanted{partitions: 1, factor: 1, assignments: map[int32][]int32{0: {1}}}, 42},
		{wanted{partitions: 1, assignments: map[int32][]int32{0: {1}}}, 42},
		{wanted{assignments: map[int32][]int32{0: {1, 1}}}, 39},
		{wanted{assignments: map[int32][]int32{0: {1}, 2: {1}}}, 39},
		{wanted{assignments: map[int32][]int32{1: {1}}}, 39},
		{wanted{assignments: map[int32][]int32{0: {1}, 1: {1}}}, 0},
	} {
		row.topic.name = base + string(rune('a'+i))
		if codes := c.create(7, false, row.topic); codes[row.topic.name] != row.want {
			t.Errorf("%+v: %d, want %d", row.topic, codes[row.topic.name], row.want)
		}
		if row.want != 0 {
			c.absent(row.topic.name)
		}
	}
	twice := do[*kmsg.CreateTopicsResponse](c, 7, createRequest(false, wanted{name: base + "twice"}, wanted{name: base + "beside"}, wanted{name: base + "twice"}))
	for _, topic := range twice.Topics {
		if want := map[string]int16{base + "twice": 42, base + "beside": 0}[topic.Topic]; topic.ErrorCode != want {
			t.Errorf("%s: %d, want %d", topic.Topic, topic.ErrorCode, want)
		}
	}
	c.absent(base + "twice")
}

func TestM047_many_partitions(t *testing.T) {
	// More than 10000 partitions in one request are refused whole with 44; so is a topic whose records are more than 10000.
	t.Parallel()
	c := shared(t).dial(t)
	base := c.freshName()
	codes := c.create(7, true, wanted{name: base + "a", partitions: 10001}, wanted{name: base + "b", partitions: 1})
	if codes[base+"a"] != 44 || codes[base+"b"] != 44 {
		t.Errorf("10001 partitions: %v", codes)
	}
	if codes := c.create(7, true, wanted{name: base + "a", partitions: 10000}); codes[base+"a"] != 44 {
		t.Errorf("10000 partitions: %v", codes)
	}
	if codes := c.create(7, true, wanted{name: base + "a", partitions: 9999}); codes[base+"a"] != 0 {
		t.Errorf("9999 partitions: %v", codes)
	}
	if codes := c.create(7, false, wanted{name: base + "c", partitions: 200}); codes[base+"c"] != 0 {
		t.Errorf("200 partitions: %v", codes)
	}
	if there := c.awaitTopic(base + "c"); len(there.Partitions) != 200 {
		t.Errorf("%d partitions", len(there.Partitions))
	}
}

func (c *client) grow(version int16, validateOnly bool, name string, count int32, assignments ...[]int32) int16 {
	c.t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis, req.ValidateOnly = 10000, validateOnly
	t := kmsg.NewCreatePartitionsRequestTopic()
	t.Topic, t.Count = name, count
	for _, replicas := range assignments {
		a := kmsg.NewCreatePartitionsRequestTopicAssignment()
		a.Replicas = replicas
		t.Assignment = append(t.Assignment, a)
	}
	req.Topics = append(req.Topics, t)
	return do[*kmsg.CreatePartitionsResponse](c, version, req).Topics[0].ErrorCode
}

func TestM048_create_partitions(t *testing.T) {
	// CreatePartitions: unknown 3; the same or fewer 37; assignments of another number 39; an unknown broker 39; a topic twice 42; validate_only changes nothing.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	for version := int16(0); version <= 3; version++ {
		for name, row := range map[string]struct {
			topic       string
			count       int32
			assignments [][]int32
			want        int16
		}{
			"unknown":             {tp.name + "-none", 3, nil, 3},
			"same":                {tp.name, 2, nil, 37},
			"fewer":               {tp.name, 1, nil, 37},
			"too few assignments": {tp.name, 4, [][]int32{{1}}, 39},
			"unknown broker":      {tp.name, 3, [][]int32{{77}}, 39},
			"factor":              {tp.name, 3, [][]int32{{1, 1}}, 39},
		} {
			if code := c.grow(version, false, row.topic, row.count, row.assignments...); code != row.want {
				t.Errorf("v%d %s: %d, want %d", version, name, code, row.want)
			}
		}
		if code := c.grow(version, true, tp.name, 9); code != 0 {
			t.Errorf("v%d validate only: %d", version, code)
		}
	}
	if code := c.grow(3, false, tp.name, 3, []int32{1}); code != 0 {
		t.Errorf("assigned: %d", code)
	}
	if code := c.grow(3, false, tp.name, 5); code != 0 {
		t.Errorf("placed: %d", code)
	}
	c.eventually("5 partitions", func() bool { return len(c.named(9, false, tp.name).Topics[0].Partitions) == 5 })
	req := kmsg.NewPtrCreatePartitionsRequest()
	for range 2 {
		one := kmsg.NewCreatePartitionsRequestTopic()
		one.Topic, one.Count = tp.name, 7
		req.Topics = append(req.Topics, one)
	}
	twice := do[*kmsg.CreatePartitionsResponse](c, 3, req)
	if len(twice.Topics) != 1 || twice.Topics[0].ErrorCode != 42 {
		t.Errorf("twice: %+v", twice.Topics)
	}
}

func TestM048_delete_topics(t *testing.T) {
	// DeleteTopics by name and by id: unknown name 3, unknown id 100, neither or both 42, twice 42, a name and its id together 42.
	t.Parallel()
	c := shared(t).dial(t)
	for version := int16(1); version <= 5; version++ {
		tp := c.topic(1)
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TopicNames, req.TimeoutMillis = []string{tp.name, tp.name + "-none"}, 10000
		codes := map[string]int16{}
		for _, d := range do[*kmsg.DeleteTopicsResponse](c, version, req).Topics {
			codes[deref(d.Topic)] = d.ErrorCode
		}
		if len(codes) != 2 || codes[tp.name] != 0 || codes[tp.name+"-none"] != 3 {
			t.Errorf("v%d: %v", version, codes)
		}
	}
	type target struct {
		name *string
		id   [16]byte
	}
	remove := func(targets ...target) []int16 {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TimeoutMillis = 10000
		for _, x := range targets {
			one := kmsg.NewDeleteTopicsRequestTopic()
			one.Topic, one.TopicID = x.name, x.id
			req.Topics = append(req.Topics, one)
		}
		var codes []int16
		for _, d := range do[*kmsg.DeleteTopicsResponse](c, 6, req).Topics {
			codes = append(codes, d.ErrorCode)
		}
		slices.Sort(codes)
		return slices.Compact(codes) // Kafka answers a name and its id once
	}
	tp, other := c.topic(1), c.topic(1)
	for name, row := range map[string]struct {
		targets []target
		want    []int16
	}{
		"unknown id":       {[]target{{id: [16]byte{1, 2, 3}}}, []int16{100}},
		"neither":          {[]target{{}}, []int16{42}},
		"both":             {[]target{{&tp.name, tp.id}}, []int16{42}},
		"a name and an id": {[]target{{name: &tp.name}, {id: tp.id}}, []int16{42}},
	} {
		if got := remove(row.targets...); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	if got := remove(target{id: tp.id}, target{name: &other.name}); !slices.Equal(got, []int16{0}) {
		t.Errorf("by id and by name: %v", got)
	}
	c.eventually("both are gone", func() bool {
		topics := c.named(12, false, tp.name, other.name).Topics
		return topics[0].ErrorCode == 3 && topics[1].ErrorCode == 3
	})
	if codes := start(t, "delete.topic.enable=false").dial(t); codes != nil {
		c := codes
		kept := c.topic(1)
		for version, want := range map[int16]int16{2: 42, 3: 73, 5: 73} {
			req := kmsg.NewPtrDeleteTopicsRequest()
			req.TopicNames = []string{kept.name}
			if got := do[*kmsg.DeleteTopicsResponse](c, version, req).Topics[0].ErrorCode; got != want {
				t.Errorf("deletion disabled, v%d: %d, want %d", version, got, want)
			}
		}
	}
}

func TestB097_deleting_wakes_who_waits(t *testing.T) {
	// A Fetch that waits is answered promptly when its topic is deleted; of two deletions one succeeds and the other says 3; the name can be used again at once.
	t.Parallel()
	n := shared(t)
	c, waiting, rival := n.dial(t), n.dial(t), n.dial(t)
	tp := c.topic(2)
	idle := at(tp, 0)
	idle.partition = 1
	req := fetchRequest(idle)
	req.MaxWaitMillis = 30000
	correlation := waiting.send(12, req)
	// Five producers go on until they are told that the topic is gone.
	var producers sync.WaitGroup
	ends := make(chan int16, 5)
	for i := range 5 {
		p := n.dial(t)
		producers.Go(func() {
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
				if code := p.produce([]int16{12, 13}[i%2], tp, 0, plain(1, 0)).ErrorCode; code != 0 && code != 6 {
					ends <- code
					return
				}
			}
			ends <- 0
		})
	}
	time.Sleep(50 * time.Millisecond) // a fetch that waits leaves no trace
	begun := time.Now()
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames, del.TimeoutMillis = []string{tp.name}, 10000
	other := rival.send(5, del)
	mine := c.send(5, del)
	codes := []int16{
		rival.answer(5, del, other).(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode,
		c.answer(5, del, mine).(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode,
	}
	slices.Sort(codes)
	if !slices.Equal(codes, []int16{0, 3}) {
		t.Errorf("two deletions: %v", codes)
	}
	fetched := waiting.only(waiting.answer(12, req, correlation).(*kmsg.FetchResponse))
	if took := time.Since(begun); took > 10*time.Second || fetched.ErrorCode != 3 && fetched.ErrorCode != 6 && fetched.ErrorCode != 100 {
		t.Errorf("the fetch: error %d after %s", fetched.ErrorCode, took)
	}
	producers.Wait()
	for range 5 {
		if code := <-ends; code != 3 && code != 100 {
			t.Errorf("a producer ends with error %d", code)
		}
	}
	c.eventually("Metadata knows of the deletion", func() bool { return c.named(12, false, tp.name).Topics[0].ErrorCode == 3 })
	if p := c.produce(12, tp, 0, plain(1, 0)); p.ErrorCode != 3 {
		t.Errorf("produce by name to a deleted topic: %d", p.ErrorCode)
	}
	if p := c.produce(13, tp, 0, plain(1, 0)); p.ErrorCode != 100 {
		t.Errorf("produce by id to a deleted topic: %d", p.ErrorCode)
	}
	again := c.createTopic(tp.name, 1)
	if p := c.produce(13, tp, 0, plain(1, 0)); p.ErrorCode != 100 {
		t.Errorf("produce by the old id: %d", p.ErrorCode)
	}
	if again.id == tp.id {
		t.Error("the same id again")
	}
	if base := c.mustProduce(again, 0, plain(1, 0)); base != 0 {
		t.Errorf("produced at %d", base)
	}
}
