package group

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/shard"
)

// Config is what a Shard is set to. The zero value of each field but NewUUID means its default.
type Config struct {
	// MinSessionTimeout and MaxSessionTimeout bound the session timeouts that members may ask for, both
	// inclusive. Defaults 6 s and 30 min. Only JoinGroup looks at them.
	MinSessionTimeout, MaxSessionTimeout time.Duration

	// InitialRebalanceDelay is how long the first rebalance of an Empty group waits for more members.
	// Default 3 s; negative means none.
	InitialRebalanceDelay time.Duration

	// MaxSize is the largest number of members of a group. Default 2147483647.
	MaxSize int

	// NewMemberJoinTimeout is how long a new member may be parked in its first join. Default 5 min.
	NewMemberJoinTimeout time.Duration

	// OffsetMetadataMaxBytes is the longest metadata of a committed offset, counted in UTF-16 units as
	// Kafka counts it. Default 4096; negative means none is allowed.
	OffsetMetadataMaxBytes int

	// OffsetsRetention is how long offsets are kept that no member keeps alive. Default 7 days.
	OffsetsRetention time.Duration

	// RetentionCheckInterval is the time between two looks for expired offsets. Default 10 min.
	RetentionCheckInterval time.Duration

	// ConsumerMaxSize is the largest number of members of a group of the consumer protocol. Default 2147483647.
	ConsumerMaxSize int

	// ConsumerAssignors are the server's assignors that members may ask for, the default first. Default all there are.
	ConsumerAssignors []string

	// NoUpgrade and NoDowngrade: a group with members may not go over to the consumer protocol, or back to the classic one.
	NoUpgrade, NoDowngrade bool

	// RegexRefreshInterval is how long what a regular expression matched is good for, if no topic is made meanwhile.
	// Default 10 min.
	RegexRefreshInterval time.Duration

	// ConsumerSettings are the settings of a group of the consumer protocol; nil: Kafka's defaults.
	ConsumerSettings func(image *metadata.Image, group string) ConsumerSettings

	// Memory, unless nil, counts what all shards that it is given to hold, and limits it.
	Memory *Memory

	// NewUUID makes the random half of member ids, in the form 8-4-4-4-12. It must be set.
	NewUUID func() string
}

func (c Config) withDefaults() Config {
	orDuration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
		*d = max(*d, 0)
	}
	orInt := func(i *int, def int) {
		if *i == 0 {
			*i = def
		}
		*i = max(*i, 0)
	}
	orDuration(&c.MinSessionTimeout, 6*time.Second)
	orDuration(&c.MaxSessionTimeout, 30*time.Minute)
	orDuration(&c.InitialRebalanceDelay, 3*time.Second)
	orDuration(&c.NewMemberJoinTimeout, 5*time.Minute)
	orDuration(&c.OffsetsRetention, 7*24*time.Hour)
	orDuration(&c.RetentionCheckInterval, 10*time.Minute)
	orDuration(&c.RegexRefreshInterval, 10*time.Minute)
	orInt(&c.MaxSize, 1<<31-1)
	orInt(&c.ConsumerMaxSize, 1<<31-1)
	if len(c.ConsumerAssignors) == 0 {
		c.ConsumerAssignors = Assignors()
	}
	orInt(&c.OffsetMetadataMaxBytes, 4096)
	return c
}

// ConsumerSettings are what a group of the consumer protocol may be set to by itself.
type ConsumerSettings struct {
	SessionTimeout     time.Duration // silence after which a member is removed
	HeartbeatInterval  time.Duration // what members are told
	AssignmentInterval time.Duration // between two target assignments; 0: none
}

// A RequestContext is what the shard wants to know of the client behind a request.
type RequestContext struct {
	ClientID   string
	ClientHost string // in Java's form, with a slash before the address: /10.0.0.1
	// MayDescribe says whether the client may know of a topic; nil: it may of all. It must be safe for concurrent use.
	MayDescribe func(topic string) bool
}

// A WriteID names a write whose outcome changes soft state.
type WriteID = shard.WriteID

// Effects is what one event leads to.
type Effects = shard.Effects[Record]

// A Shard is the group coordinator of one partition of __consumer_offsets. The package comment says how it
// is to be driven. It must be used by one goroutine at a time; none of it survives a crash but what is
// replayed from the log.
type Shard struct {
	config     Config
	image      *metadata.Image // the newest, by which topics are known
	replicated *replicated
	soft       softState
	held       *held
}

// softState is all that the log does not hold. A revert leaves it alone.
type softState struct {
	groups    map[string]*classicGroup
	consumers map[string]*softConsumer
	timers    timers
	retention timer
	writes    map[WriteID]finish
	lastWrite WriteID
}

// A finish is what the outcome of a write changes; err is nil when it is committed.
type finish func(id WriteID, now time.Time, err error, fx *Effects)

// NewShard makes an empty shard, ready to replay its log.
func NewShard(config Config) *Shard {
	h := &held{shared: config.Memory}
	return &Shard{
		config:     config.withDefaults(),
		held:       h,
		image:      metadata.EmptyImage(),
		replicated: newReplicated(h),
		soft: softState{
			groups: map[string]*classicGroup{}, consumers: map[string]*softConsumer{},
			writes: map[WriteID]finish{},
		},
	}
}

// SetImage gives the shard the newest metadata: the topics that members of consumer groups subscribe to, and settings of
// groups. It is called before an event is, whenever there is a newer one.
func (s *Shard) SetImage(image *metadata.Image) { s.image = image }

// Replay applies one record of the log at its offset: while loading, and at once for each record that the
// shard's effects had appended. producerID is that of a transactional batch, and -1 for others.
func (s *Shard) Replay(offset, producerID int64, rec Record) {
	s.replicated.replay(offset, producerID, rec)
}

// ReplayEndTxn applies the marker that ends a transaction of producerID: its pending offsets become visible,
// or are dropped. A producer without any is ignored.
func (s *Shard) ReplayEndTxn(offset, producerID int64, commit bool) {
	s.replicated.endTxn(offset, producerID, commit)
}

// Revert takes back every record replayed at or above offset, which must not be below what was committed.
// Finish follows for each write that was among them.
func (s *Shard) Revert(offset int64) { s.replicated.revert(offset) }

// Committed says that records below the high watermark hw can no longer be lost: reads see them, and what
// was kept to revert them is dropped. While loading it should be called now and then, for the same reason.
func (s *Shard) Committed(hw int64) { s.replicated.commit(hw) }

// EndOffset is one above the last offset replayed.
func (s *Shard) EndOffset() int64 { return s.replicated.journal.EndOffset() }

// Finish tells the outcome of a write: err is nil when its records are committed, and otherwise what the
// waiting requests are to be answered. After a failure Revert must come first. An unknown or finished id
// is ignored, so that a write which was given up for lost may commit later.
func (s *Shard) Finish(now time.Time, id WriteID, err error) Effects {
	var fx Effects
	if finish := s.soft.writes[id]; finish != nil {
		delete(s.soft.writes, id)
		finish(id, now, err, &fx)
	}
	return fx
}

// Loaded ends loading: groups with members are Stable, their session clocks start at now, and the first
// look for expired offsets is one interval away. A group with more members than are allowed rebalances.
func (s *Shard) Loaded(now time.Time) Effects {
	var fx Effects
	for _, id := range sortedKeys(s.replicated.groups.Newest()) {
		g := s.group(now, id)
		if len(g.members) > s.config.MaxSize {
			s.prepareRebalance(now, g, &fx)
		}
	}
	s.consumersLoaded(now)
	s.soft.retention.fire = (*Shard).fireRetention
	s.soft.timers.set(&s.soft.retention, now.Add(s.config.RetentionCheckInterval))
	return fx
}

// Unload ends the shard: parked joins and syncs are answered ErrNotCoordinator, and no timer fires again.
func (s *Shard) Unload() Effects {
	var fx Effects
	for _, id := range sortedKeys(s.soft.groups) {
		g := s.soft.groups[id]
		s.held.add(-groupSize)
		for _, m := range g.members {
			g.uncount(m)
			m.answerJoin(joinError(ErrNotCoordinator, m.id), &fx)
			m.answerSync(syncError(ErrNotCoordinator), &fx)
		}
		g.state = Dead
	}
	s.soft = softState{
		groups: map[string]*classicGroup{}, consumers: map[string]*softConsumer{},
		writes: map[WriteID]finish{},
	}
	return fx
}

// NextDeadline is when Tick has something to do, if ever.
func (s *Shard) NextDeadline() (at time.Time, ok bool) { return s.soft.timers.next() }

// Tick runs every clock that has run out at now. Effects with records of offsets that expired are
// Splittable; they come apart from others.
func (s *Shard) Tick(now time.Time) Effects {
	var fx Effects
	for fx.Records == nil {
		t := s.soft.timers.popDue(now)
		if t == nil {
			break
		}
		t.fire(s, now, &fx)
	}
	return fx
}

// onFinish registers what a write's outcome changes.
func (s *Shard) onFinish(fx *Effects, f finish) {
	s.soft.lastWrite++
	fx.Write = s.soft.lastWrite
	s.soft.writes[fx.Write] = f
}

// group finds a classic group, or nil. One that the soft state does not have is made from its record: after
// a load, and when the deletion of a group was reverted.
func (s *Shard) group(now time.Time, id string) *classicGroup {
	if g := s.soft.groups[id]; g != nil {
		return g
	}
	value, ok := s.replicated.groups.Get(id)
	if !ok {
		return nil
	}
	g := groupFromRecord(id, value, s.held)
	s.soft.groups[id] = g
	s.held.add(groupSize)
	for _, m := range g.members {
		s.restartSession(now, g, m)
	}
	return g
}

// forget drops the soft state of a group. Nothing of it may be parked.
func (s *Shard) forget(g *classicGroup) {
	s.held.add(-groupSize)
	for _, m := range g.members {
		g.uncount(m)
		s.soft.timers.stop(&m.session)
	}
	for _, p := range g.pending {
		s.soft.timers.stop(&p.expiry)
	}
	s.soft.timers.stop(&g.joinTimer)
	s.soft.timers.stop(&g.syncTimer)
	g.state = Dead
	delete(s.soft.groups, g.id)
}

// ValidateJoin makes the checks of a JoinGroup that need no group, and so come before whether the shard
// is loaded: ErrInvalidGroupID, ErrInvalidSessionTimeout.
func (c Config) ValidateJoin(req *kmsg.JoinGroupRequest) error {
	c = c.withDefaults()
	if req.Group == "" {
		return ErrInvalidGroupID
	}
	session := millis(req.SessionTimeoutMillis)
	if session < c.MinSessionTimeout || session > c.MaxSessionTimeout {
		return ErrInvalidSessionTimeout
	}
	return nil
}

// ValidateSync makes the check of a SyncGroup that comes even before authorization, of version 5 and up:
// ErrInconsistentGroupProtocol.
func ValidateSync(req *kmsg.SyncGroupRequest) error {
	if req.Version >= 5 && (req.ProtocolType == nil || req.Protocol == nil) {
		return ErrInconsistentGroupProtocol
	}
	return nil
}

func millis(ms int32) time.Duration { return time.Duration(ms) * time.Millisecond }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
