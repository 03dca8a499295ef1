package replica

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// TopicConfig is what a partition needs of its topic's effective configuration.
type TopicConfig struct {
	Log log.Config
	// MinISR is min.insync.replicas, >= 1.
	MinISR int
	// LeaderThrottled and FollowerThrottled are the partitions of which this broker's replica is bounded by Rates.
	LeaderThrottled, FollowerThrottled Throttled
}

// Options configure a Manager. BrokerID, Dirs and TopicConfig are required; zero durations and limits mean Kafka's
// defaults.
type Options struct {
	BrokerID int32
	// Dirs are the log directories, opened; Close closes them. Their OnOffline should call Manager.DirectoryOffline, their
	// OnEvent Events.LogEvent.
	Dirs *log.Dirs
	// Cleaner says how compaction runs under an image; nil: it does not.
	Cleaner func(img *metadata.Image) log.CleanerOptions
	// Directories are the paths of Dirs by directory id. Without an entry the place of a new replica is chosen here.
	Directories map[metadata.UUID]string
	// TopicConfig is a topic's effective configuration under img. It is called by Apply, several times at once.
	TopicConfig func(img *metadata.Image, topic string) TopicConfig
	// Rates bound replication under an image; nil: not at all.
	Rates func(img *metadata.Image) Rates
	// MoveThreads is how many replicas move to other log directories at once (num.replica.alter.log.dirs.threads, as many as
	// there are directories).
	MoveThreads int
	// Usage is the size of the volume that holds a directory, and how much of it is free, in bytes; nil: not known.
	Usage  func(path string) (total, usable int64, err error)
	Events *Events // nil: counted nowhere
	Logger *slog.Logger
	Now    func() time.Time

	// ReplicaLagMax is how long a follower may lack something and stay in the ISR (replica.lag.time.max.ms, 30 s).
	ReplicaLagMax time.Duration
	// FetchMaxBytes bounds the MaxBytes of every Fetch (fetch.max.bytes, 55 MiB).
	FetchMaxBytes int
	// Leader makes an endpoint of the broker with that id, to copy partitions from; nil: partitions that follow stand still.
	Leader func(id int32) Leader
	// Follow hears what followers make of their leaders' answers, on the goroutine of the fetcher, which may hold locks of
	// the partition; nil: nobody.
	Follow func(FollowEvent)
	// Fetchers is how many goroutines copy from each leader (num.replica.fetchers, 1).
	Fetchers int
	// FetchBackoff is the longest pause of a follower after an error that passes by itself (replica.fetch.backoff.ms, 1 s).
	FetchBackoff time.Duration
	// RackAware sends consumers to a replica in their rack (replica.selector.class).
	RackAware bool
	// MaxWaiting bounds the requests that wait at once; beyond, they are answered as if their time had run out.
	// Default 100000.
	MaxWaiting int

	HighWatermarkCheckpointInterval time.Duration // replica.high.watermark.checkpoint.interval.ms, 5 s
	CheckpointInterval              time.Duration // log.flush.(start.)offset.checkpoint.interval.ms, 60 s
	RetentionInterval               time.Duration // log.retention.check.interval.ms, 5 min
	ProducerExpiryInterval          time.Duration // producer.id.expiration.check.interval.ms, 10 min
	InitialDelay                    time.Duration // log.initial.task.delay.ms, 30 s

	// VerifyTxn asks the transaction coordinator about partitions of a transaction, and returns an error or nil for each, in
	// their order. It may wait, until ctx is done. nil: there is no coordinator, and every answer is ErrTxnUnverified.
	VerifyTxn func(ctx context.Context, v TxnVerification) []error
	// TxnMaxTimeout is the longest time that a transaction may be open (transaction.max.timeout.ms, 15 min).
	TxnMaxTimeout time.Duration

	// AlterPartition asks the controller for an ISR change and calls done, from any goroutine, with its answer. It must
	// not block. nil: the ISR is never changed from here, as on a node that is alone.
	AlterPartition func(topic metadata.UUID, change AlterPartition, done func(outcome AlterOutcome, returned LeaderAndISR))
	// The two below are called from any goroutine, perhaps from within Apply, and must not block, nor call Apply or Close.

	// DirectoryAssigned hears that a replica is in another directory than the metadata says: where it was put when it was
	// new, or metadata.DirLost when its log has become unusable, so that another replica must lead.
	DirectoryAssigned func(topic metadata.UUID, partition int32, directory metadata.UUID)
	// DirectoryFailed hears, once for each, that the directory at path can no longer be used.
	DirectoryFailed func(path string, cause error)
}

// Manager hosts this broker's partitions. Apply is called from one goroutine; everything else concurrently.
type Manager struct {
	o         Options
	events    *Events
	purgatory purgatory
	fetchers  *fetchers
	moves     *moves
	traffic   trafficTable
	// What replication may take and give.
	leaderRate, followerRate, moveRate byteRate
	closing                            chan struct{} // closed when Close begins
	stopped                            sync.WaitGroup
	closeOnce                          sync.Once
	closeErr                           error

	image    atomic.Pointer[metadata.Image]
	applying sync.Mutex      // held by Apply and by Close
	applied  *metadata.Image // the last one that Apply took over, nil none; guarded by applying
	// cleaner is nil when there is none; guarded by applying, as is stopCleaner.
	cleaner     *log.Cleaner
	stopCleaner context.CancelFunc

	mu     sync.RWMutex // guards the maps
	byName map[topicPartition]*Partition
	byID   map[topicIDPartition]*Partition
	// unopened are partitions that belong here and whose logs could not be opened, with the reason.
	unopened map[topicPartition]error

	isrLines   throttle
	epochLines throttle

	failedMu   sync.Mutex
	failedDirs map[string]bool
}

type topicIDPartition struct {
	id        metadata.UUID
	partition int32
}

func (o Options) complete() Options {
	set := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	set(&o.ReplicaLagMax, 30*time.Second)
	set(&o.HighWatermarkCheckpointInterval, 5*time.Second)
	set(&o.CheckpointInterval, time.Minute)
	set(&o.RetentionInterval, 5*time.Minute)
	set(&o.ProducerExpiryInterval, 10*time.Minute)
	set(&o.InitialDelay, 30*time.Second)
	set(&o.TxnMaxTimeout, 15*time.Minute)
	set(&o.FetchBackoff, FetchBackoff)
	o.FetchBackoff = max(o.FetchBackoff, firstBackoff)
	o.Fetchers = max(o.Fetchers, 1)
	if o.MoveThreads <= 0 {
		o.MoveThreads = max(1, len(o.Dirs.Online())+len(o.Dirs.Offline()))
	}
	directories := make(map[metadata.UUID]string, len(o.Directories))
	for id, path := range o.Directories {
		directories[id] = filepath.Clean(path)
	}
	o.Directories = directories
	if o.FetchMaxBytes == 0 {
		o.FetchMaxBytes = 55 << 20
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 100_000
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Events == nil {
		o.Events = &Events{}
	}
	return o
}

// New makes a manager without partitions and starts its scheduler; Apply brings the partitions.
func New(o Options) *Manager {
	m := &Manager{
		o: o.complete(), closing: make(chan struct{}),
		byName: map[topicPartition]*Partition{}, byID: map[topicIDPartition]*Partition{}, unopened: map[topicPartition]error{},
		failedDirs: map[string]bool{}, stopCleaner: func() {},
	}
	m.fetchers = newFetchers(m)
	m.moves = newMoves(m.o.MoveThreads)
	m.events = m.o.Events
	m.purgatory.limit = int64(m.o.MaxWaiting)
	m.image.Store(metadata.EmptyImage())
	m.stopped.Add(1)
	go m.schedule()
	return m
}

// startCleaner begins compaction under the first image.
func (m *Manager) startCleaner(img *metadata.Image) {
	if m.o.Cleaner == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	m.cleaner, m.stopCleaner = log.NewCleaner(m.o.Dirs, m.o.Cleaner(img)), stop
	m.stopped.Go(func() { m.cleaner.Run(ctx) })
}

// CleanerStats are the numbers of compaction; ok is false while there is none.
func (m *Manager) CleanerStats() (s log.CleanerStats, ok bool) {
	m.applying.Lock()
	defer m.applying.Unlock()
	if m.cleaner == nil {
		return s, false
	}
	return m.cleaner.Stats(), true
}

func (m *Manager) now() time.Time { return m.o.Now() }

// broker looks a broker up in the image last applied.
func (m *Manager) broker(id int32) (BrokerStatus, bool) {
	b, ok := m.image.Load().Broker(id)
	if !ok {
		return BrokerStatus{}, false
	}
	rack := ""
	if b.Rack != nil {
		rack = *b.Rack
	}
	return BrokerStatus{Epoch: b.Epoch, Fenced: b.Fenced, ShuttingDown: b.InControlledShutdown, Rack: rack}, true
}

// Partition finds a partition hosted here. Errors: *log.StorageError or *log.CorruptError when its log cannot be used,
// *NotLeaderOrFollowerError when the cluster knows it but it is not here, ErrUnknownTopicOrPartition otherwise.
func (m *Manager) Partition(topic string, partition int32) (*Partition, error) {
	if topic == "" {
		return nil, ErrUnknownTopicOrPartition // and not the topic without an id
	}
	return m.find(topic, metadata.UUID{}, partition)
}

// PartitionByID finds a partition by its topic's id. Errors are Partition's, and ErrUnknownTopicID when the cluster
// knows no topic with that id.
func (m *Manager) PartitionByID(id metadata.UUID, partition int32) (*Partition, error) {
	return m.find("", id, partition)
}

// find finds a partition by name, by id, or by name with its id checked.
func (m *Manager) find(topic string, id metadata.UUID, partition int32) (*Partition, error) {
	m.mu.RLock()
	var p *Partition
	if topic != "" {
		p = m.byName[topicPartition{topic, partition}]
	} else {
		p = m.byID[topicIDPartition{id, partition}]
	}
	m.mu.RUnlock()
	if p == nil {
		return nil, m.notHosted(topic, id, partition)
	}
	if err := p.usable(id); err != nil {
		return nil, err
	}
	return p, nil
}

// notHosted is why a partition was not found.
func (m *Manager) notHosted(topic string, id metadata.UUID, partition int32) error {
	img := m.image.Load()
	t, ok := img.Topic(topic)
	if topic == "" {
		if t, ok = img.TopicByID(id); !ok {
			return ErrUnknownTopicID
		}
	}
	if !ok {
		return ErrUnknownTopicOrPartition
	}
	p, ok := t.Partition(partition)
	if !ok {
		return ErrUnknownTopicOrPartition
	}
	m.mu.RLock()
	why := m.unopened[topicPartition{t.Name, partition}]
	m.mu.RUnlock()
	if why != nil {
		return why
	}
	return &NotLeaderOrFollowerError{Topic: t.Name, Partition: partition, Current: LeaderAndEpoch{Leader: p.Leader, Epoch: p.LeaderEpoch}}
}

// partitions is a copy of the list of all that are hosted.
func (m *Manager) partitions() []*Partition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*Partition, 0, len(m.byName))
	for _, p := range m.byName {
		all = append(all, p)
	}
	return all
}

func (m *Manager) add(p *Partition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byName[topicPartition{p.topic, p.id}] = p
	m.byID[topicIDPartition{p.topicID, p.id}] = p
	delete(m.unopened, topicPartition{p.topic, p.id})
}

func (m *Manager) remove(p *Partition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, topicPartition{p.topic, p.id})
	delete(m.byID, topicIDPartition{p.topicID, p.id})
}

// Close ends all waiting, writes the checkpoints, and closes the logs cleanly, leaving the clean shutdown marker with
// brokerEpoch (-1: not known). When ctx ends first the stop counts as unclean. Requests after it fail with ErrClosed.
func (m *Manager) Close(ctx context.Context, brokerEpoch int64) error {
	m.closeOnce.Do(func() {
		close(m.closing)
		m.applying.Lock()
		defer m.applying.Unlock()
		m.fetchers.close()
		m.moves.close()
		m.stopCleaner()
		m.stopped.Wait()
		for _, p := range m.partitions() {
			p.stop(ErrClosed)
		}
		m.closeErr = errors.Join(m.o.Dirs.CheckpointHighWatermarks(), m.o.Dirs.Close(ctx, brokerEpoch))
	})
	return m.closeErr
}
