package server

import (
	"container/list"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Errors of fetch sessions (KIP-227, KIP-516).
var (
	errSessionNotFound     = errors.New("fetch session not found")
	errSessionEpochInvalid = errors.New("fetch session epoch is not the expected one")
	errSessionTopicID      = errors.New("fetch session was begun with topic names and continued with ids, or the reverse")
)

const (
	finalSessionEpoch   int32 = -1 // this fetch belongs to no session, and ends the one named
	initialSessionEpoch int32 = 0  // this fetch asks for a new session
)

// fetchKey names a partition of a session: by topic id from version 13 on, by name
// before.
type fetchKey struct {
	topic     string
	topicID   [16]byte
	partition int32
}

// fetchTarget is one partition to fetch, and where from.
type fetchTarget struct {
	fetchKey
	name               string // of a topic named by id: its name as last known, empty while none was
	currentLeaderEpoch int32
	fetchOffset        int64
	lastFetchedEpoch   int32
	logStartOffset     int64
	maxBytes           int32
}

// sentState is what the last answer of a session said of a partition; an
// incremental answer leaves out what has not changed. Unsent values are below -1.
type sentState struct {
	highWatermark  int64
	logStartOffset int64
	failed         bool
}

var neverSent = sentState{highWatermark: -2, logStartOffset: -2}

// fetchSession remembers the partitions a fetcher wants, in the order in which
// they are served next. It is used under its mutex.
type fetchSession struct {
	id       int32
	follower bool
	byID     bool // topics are named by id
	created  time.Time
	lastUsed time.Time
	size     int // partitions when it was last looked at, for eviction
	held     int // its share of the sessions' memory, in bytes

	mu         sync.Mutex // taken before that of the sessions
	epoch      int32      // expected in the next request
	memory     int        // about what its partitions take, in bytes
	order      *list.List
	partitions map[fetchKey]*list.Element
}

type sessionPartition struct {
	target fetchTarget
	sent   sentState
}

// partitionMemory is about what a session keeps of one partition, its topic's name left out.
const partitionMemory = 256

// fetchSessions holds the sessions of this broker, at most slots of them
// (max.incremental.fetch.session.cache.slots) in maxMemory bytes (max.incremental.fetch.session.cache.bytes): whoever
// finds no room is served without a session. Safe for concurrent use.
type fetchSessions struct {
	slots      int
	maxMemory  int
	evictAfter time.Duration // a session idle for so long may be evicted by any newcomer
	now        func() time.Time

	mu       sync.Mutex
	sessions map[int32]*fetchSession
	memory   int // sum of what the sessions hold
	evicted  int // sessions that made room for others, ever
}

func newFetchSessions(slots, maxMemory int, now func() time.Time) *fetchSessions {
	return &fetchSessions{slots: slots, maxMemory: maxMemory, evictAfter: 2 * time.Minute, now: now, sessions: map[int32]*fetchSession{}}
}

// fetchContext is one fetch on its way: what to read, and how to put the answer.
type fetchContext struct {
	targets []fetchTarget
	session *fetchSession // nil when this fetch belongs to none
	// incremental: partitions with nothing new are left out of the answer.
	incremental bool
	sessionID   int32
}

// begin finds out what a Fetch asks for. The errors are answered at the top level.
func (c *fetchSessions) begin(req *kmsg.FetchRequest) (*fetchContext, error) {
	byID := req.Version >= 13
	switch {
	case req.Version < 7 || req.SessionEpoch == finalSessionEpoch:
		if req.SessionID != 0 {
			c.close(req.SessionID)
		}
		return &fetchContext{targets: targetsOf(req, byID)}, nil
	case req.SessionEpoch == initialSessionEpoch:
		if req.SessionID != 0 {
			c.close(req.SessionID)
		}
		targets := targetsOf(req, byID)
		session := c.create(targets, req.ReplicaID >= 0, byID)
		ctx := &fetchContext{targets: targets, session: session}
		if session != nil {
			ctx.sessionID = session.id
		}
		return ctx, nil
	}
	return c.resume(req, byID)
}

func targetsOf(req *kmsg.FetchRequest, byID bool) []fetchTarget {
	n := 0
	for i := range req.Topics {
		n += len(req.Topics[i].Partitions)
	}
	targets := make([]fetchTarget, 0, n)
	for i := range req.Topics {
		topic := &req.Topics[i]
		for k := range topic.Partitions {
			targets = append(targets, targetOf(topic, &topic.Partitions[k], byID))
		}
	}
	return targets
}

func targetOf(topic *kmsg.FetchRequestTopic, p *kmsg.FetchRequestTopicPartition, byID bool) fetchTarget {
	t := fetchTarget{
		fetchKey: fetchKey{partition: p.Partition}, currentLeaderEpoch: p.CurrentLeaderEpoch, fetchOffset: p.FetchOffset,
		lastFetchedEpoch: p.LastFetchedEpoch, logStartOffset: p.LogStartOffset, maxBytes: p.PartitionMaxBytes,
	}
	if byID {
		t.topicID = topic.TopicID
	} else {
		t.topic = topic.Topic
	}
	return t
}

func (c *fetchSessions) close(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sessions[id]; s != nil {
		c.removeLocked(s)
	}
}

func (c *fetchSessions) removeLocked(s *fetchSession) {
	delete(c.sessions, s.id)
	c.memory -= s.held
}

// create makes a session, or returns nil when there is no room: the fetcher is then
// served without one.
func (c *fetchSessions) create(targets []fetchTarget, follower, byID bool) *fetchSession {
	if len(targets) == 0 {
		return nil
	}
	s := &fetchSession{
		follower: follower, byID: byID, epoch: 1, size: len(targets),
		order: list.New(), partitions: make(map[fetchKey]*list.Element, len(targets)),
	}
	for _, t := range targets {
		s.put(t)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	s.created, s.lastUsed, s.held = now, now, s.memory
	if !c.roomLocked(s, now) {
		return nil
	}
	c.memory += s.held
	for s.id == 0 || c.sessions[s.id] != nil {
		s.id = rand.Int32N(1<<31-1) + 1
	}
	c.sessions[s.id] = s
	return s
}

// roomLocked makes room for next: in memory by evicting idle sessions, and among the
// slots by evicting one session, an idle one, or one that matters less. Followers
// matter more than consumers, larger sessions more than smaller.
func (c *fetchSessions) roomLocked(next *fetchSession, now time.Time) bool {
	if c.slots <= 0 {
		return false
	}
	idle := func(s *fetchSession) bool { return s != nil && now.Sub(s.lastUsed) > c.evictAfter }
	for c.memory+next.held > c.maxMemory {
		oldest := c.oldestLocked()
		if !idle(oldest) {
			return false
		}
		c.removeLocked(oldest)
		c.evicted++
	}
	if len(c.sessions) < c.slots {
		return true
	}
	var least *fetchSession
	for _, s := range c.sessions {
		if least == nil || less(s, least) {
			least = s
		}
	}
	victim := least
	oldest := c.oldestLocked()
	switch {
	case idle(oldest):
		victim = oldest
	case less(least, next) && (least.follower != next.follower || now.Sub(least.created) > c.evictAfter):
	default:
		return false
	}
	c.removeLocked(victim)
	c.evicted++
	return true
}

// oldestLocked is the session that was not used for the longest time, nil if there is none.
func (c *fetchSessions) oldestLocked() *fetchSession {
	var oldest *fetchSession
	for _, s := range c.sessions {
		if oldest == nil || s.lastUsed.Before(oldest.lastUsed) {
			oldest = s
		}
	}
	return oldest
}

func less(a, b *fetchSession) bool {
	if a.follower != b.follower {
		return b.follower
	}
	return a.size < b.size
}

// resume takes the next fetch of a session: what it adds, changes and forgets.
func (c *fetchSessions) resume(req *kmsg.FetchRequest, byID bool) (*fetchContext, error) {
	c.mu.Lock()
	s := c.sessions[req.SessionID]
	if s != nil {
		s.lastUsed = c.now()
	}
	c.mu.Unlock()
	if s == nil {
		return nil, errSessionNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case req.SessionEpoch != s.epoch:
		return nil, errSessionEpochInvalid
	case s.byID != byID:
		return nil, errSessionTopicID
	}
	for _, t := range targetsOf(req, byID) {
		s.put(t)
	}
	for i := range req.ForgottenTopics {
		topic := &req.ForgottenTopics[i]
		for _, partition := range topic.Partitions {
			key := fetchKey{topic: topic.Topic, partition: partition}
			if byID {
				key.topic, key.topicID = "", topic.TopicID
			}
			s.forget(key)
		}
	}
	ctx := &fetchContext{targets: s.targets(), session: s, incremental: true, sessionID: s.id}
	if len(ctx.targets) == 0 {
		c.close(s.id)
		return &fetchContext{}, nil
	}
	if s.epoch++; s.epoch <= 0 {
		s.epoch = 1
	}
	if !c.resize(s, len(ctx.targets)) {
		return nil, errSessionNotFound // its fetcher begins anew
	}
	return ctx, nil
}

// named keeps the name of a topic that the fetcher names by id, so that the session still knows it when the topic is gone.
func (c *fetchContext) named(t *fetchTarget, name string) {
	t.name = name
	if c.session == nil {
		return
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if e := c.session.partitions[t.fetchKey]; e != nil {
		e.Value.(*sessionPartition).target.name = name
	}
}

// resize takes note of a session, which is locked, that has grown or shrunk. One that has outgrown the memory
// is removed.
func (c *fetchSessions) resize(s *fetchSession, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.id] != s {
		return true // evicted meanwhile: this fetch is its last
	}
	c.memory += s.memory - s.held
	s.size, s.held = size, s.memory
	if c.memory > c.maxMemory {
		c.removeLocked(s)
		return false
	}
	return true
}

// put adds a partition, or changes where it is read from. What the fetcher was told
// before stays told, but a partition that is added again starts anew.
func (s *fetchSession) put(t fetchTarget) {
	if e := s.partitions[t.fetchKey]; e != nil {
		known := e.Value.(*sessionPartition)
		t.name = known.target.name
		known.target = t
		return
	}
	s.partitions[t.fetchKey] = s.order.PushBack(&sessionPartition{target: t, sent: neverSent})
	s.memory += partitionMemory + len(t.topic)
}

func (s *fetchSession) forget(key fetchKey) {
	if e := s.partitions[key]; e != nil {
		s.order.Remove(e)
		delete(s.partitions, key)
		s.memory -= partitionMemory + len(key.topic)
	}
}

func (s *fetchSession) targets() []fetchTarget {
	targets := make([]fetchTarget, 0, s.order.Len())
	for e := s.order.Front(); e != nil; e = e.Next() {
		targets = append(targets, e.Value.(*sessionPartition).target)
	}
	return targets
}

// fetched is what an answer would say of one partition.
type fetched struct {
	key            fetchKey
	bytes          int
	failed         bool
	redirected     bool // a preferred replica or a diverging epoch is named
	highWatermark  int64
	logStartOffset int64
}

// include decides whether the answer names this partition, and remembers what it
// says. Partitions that had records go to the end of the line, so that in a
// crowded answer the others come first next time.
func (ctx *fetchContext) include(f fetched) bool {
	if ctx.session == nil {
		return true
	}
	s := ctx.session
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.partitions[f.key]
	if e == nil {
		return !ctx.incremental // forgotten meanwhile
	}
	p := e.Value.(*sessionPartition)
	next := sentState{highWatermark: f.highWatermark, logStartOffset: f.logStartOffset, failed: f.failed}
	changed := !ctx.incremental || f.bytes > 0 || f.failed || f.redirected || next != p.sent
	if !changed {
		return false
	}
	p.sent = next
	if f.bytes > 0 {
		s.order.MoveToBack(e)
	}
	return true
}
