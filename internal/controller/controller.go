// Package controller is the state machine of the cluster: brokers, topics, partitions, settings, features.
//
// It is pure. A request gives records and a reply and changes nothing; the caller appends the records and
// replays them, which is the only way the state changes. There is no goroutine, clock, socket or file here.
//
// What is not in the log is soft state: when each broker was last heard of, which offset it has applied, and
// whether its connection was lost. It belongs to an active controller, is refreshed by requests, and is
// lost with leadership.
//
// Reverting is keeping pointers: images are persistent, and the controller holds the committed image and
// one image per batch that was replayed and is not committed yet.
//
// A Controller is owned by one goroutine. The images it hands out may be shared.
package controller

import (
	"math/rand/v2"
	"time"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

// Options is what a controller is made with.
type Options struct {
	// NodeID is this controller's own node id: its dynamic broker settings are part of topics' defaults.
	NodeID    int32
	ClusterID string
	// Static is the node's configuration; nil stands for all defaults.
	Static *config.Broker
	// Rand drives placement and topic ids. It must not be nil.
	Rand *rand.Rand
	// KRaftVersion is the level of kraft.version, which is the quorum's and stands in no record.
	KRaftVersion int16
	// Supported finds a feature's range in this release; nil: metadata.SupportedFeature.
	Supported func(name string) (metadata.Feature, bool)
}

// Controller is the cluster's state machine. See the package comment.
type Controller struct {
	opt       Options
	img       *metadata.Image
	committed *metadata.Image
	// pending are the images after each replayed batch that is not committed, in order; the last is img.
	pending []*metadata.Image

	// Soft state of an active controller.
	active    bool
	contacts  map[int32]*contact
	schedules schedules
	// buckets are what clients have left of their controller mutation quotas, by mutationQuota's names.
	buckets map[string]*bucket
}

// At is when and where a request is worked on: the time, and the offset that the next record appended gets.
type At struct {
	Now  time.Time
	Next int64
	// Client is whose controller mutation quota the request counts against; nil: nobody's.
	Client *Client
}

// Result is what a request comes to. Records are appended and replayed; Reply is given when they are
// committed, or, when there are none, when everything before the request is.
type Result struct {
	Records []metadata.Record
	// Atomic says that the records must be one batch; otherwise they may be cut anywhere.
	Atomic bool
	// Reply is the request's reply type; nil when Err says that the request as a whole failed.
	Reply any
	// Err is an *Error for the whole request.
	Err error
	// Throttle is how long the client is to wait before its next request, because of its controller mutation quota.
	Throttle time.Duration
}

func failed(err *Error) Result { return Result{Err: err} }

// MaxRecordsPerRequest bounds the records of one user request.
const MaxRecordsPerRequest = 10000

// New makes a controller of an empty cluster. Load a snapshot and the log by Replay and CommittedTo.
func New(opt Options) *Controller {
	if opt.Static == nil {
		opt.Static = config.Defaults()
	}
	if opt.Supported == nil {
		opt.Supported = metadata.SupportedFeature
	}
	img := metadata.EmptyImage()
	return &Controller{opt: opt, img: img, committed: img, contacts: map[int32]*contact{}, buckets: map[string]*bucket{}}
}

// Load replaces all state by an image, as read from a snapshot at or below the high watermark.
func (c *Controller) Load(img *metadata.Image) {
	c.img, c.committed, c.pending = img, img, nil
}

// Image is the latest state, with what is not committed yet.
func (c *Controller) Image() *metadata.Image { return c.img }

// Committed is the latest state that cannot be lost: what readers are shown. An unfinished metadata
// transaction is not part of it.
func (c *Controller) Committed() *metadata.Image { return c.committed.Stable() }

// Replay applies a batch whose first record stands at offset, in the given leader epoch. An empty batch, as
// of control records, only moves the offset: lastOffset is the last of the batch in every case.
// An error means that the log does not fit the state: the caller must stop.
func (c *Controller) Replay(offset, lastOffset int64, epoch int32, recs []metadata.Record) error {
	delta := metadata.NewDelta(c.img)
	for i, rec := range recs {
		if err := delta.Replay(rec, offset+int64(i)); err != nil {
			return err
		}
	}
	c.img = delta.Apply(lastOffset, epoch)
	c.pending = append(c.pending, c.img)
	return nil
}

// CommittedTo says that all offsets below highWatermark are committed.
func (c *Controller) CommittedTo(highWatermark int64) {
	n := 0
	for n < len(c.pending) && c.pending[n].Offset() < highWatermark {
		c.committed = c.pending[n]
		n++
	}
	c.pending = append([]*metadata.Image(nil), c.pending[n:]...)
}

// Revert forgets everything that is not committed.
func (c *Controller) Revert() {
	c.img, c.pending = c.committed, nil
}

// op is the work on one request: the records so far, and the state as it would be after them.
type op struct {
	c     *Controller
	now   time.Time
	next  int64
	delta *metadata.Delta
	img   *metadata.Image
	recs  []metadata.Record
	// settings of topics, resolved once per operation.
	topics map[string]topicSettings
	// client is whose quota is charged, and throttle how long that client is to wait.
	client   *Client
	throttle time.Duration
}

func (c *Controller) begin(at At) *op {
	return &op{c: c, now: at.Now, next: at.Next, delta: metadata.NewDelta(c.img), img: c.img, topics: map[string]topicSettings{}, client: at.Client}
}

// add puts records at the end of the operation. A record that does not fit the state is a mistake of ours.
func (o *op) add(recs ...metadata.Record) {
	for _, rec := range recs {
		if err := o.delta.Replay(rec, o.next+int64(len(o.recs))); err != nil {
			panic("controller: made a record that cannot be replayed: " + err.Error())
		}
		o.recs = append(o.recs, rec)
	}
	o.img = o.delta.Current()
}

func (o *op) result(atomic bool, reply any) Result {
	return Result{Records: o.recs, Atomic: atomic, Reply: reply, Throttle: o.throttle}
}

// topicSettings are the settings of a topic that the controller acts by.
type topicSettings struct {
	unclean bool
	minISR  int
}

func (c *Controller) layers(img *metadata.Image) config.Layers {
	return config.Layers{
		Broker:  img.Config(metadata.ConfigResource{Type: metadata.ResourceBroker, Name: itoa(c.opt.NodeID)}),
		Cluster: img.Config(metadata.ConfigResource{Type: metadata.ResourceBroker}),
		Static:  c.opt.Static,
	}
}

func (o *op) settings(topic string) topicSettings {
	if s, ok := o.topics[topic]; ok {
		return s
	}
	values := o.c.layers(o.img).Topic(o.img.Config(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: topic}))
	s := topicSettings{unclean: values.Bool("unclean.leader.election.enable"), minISR: values.Int("min.insync.replicas")}
	o.topics[topic] = s
	return s
}

// randomBytes reads from the options' random source.
type randomBytes struct{ r *rand.Rand }

func (r randomBytes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.r.Uint64() >> 32)
	}
	return len(p), nil
}

func (c *Controller) newTopicID() metadata.UUID {
	for {
		id := metadata.NewUUID(randomBytes{c.opt.Rand})
		if _, taken := c.img.TopicByID(id); !taken {
			return id
		}
	}
}
