package broker

import (
	"fmt"
	"sync/atomic"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// snapshotLimit bounds what one batch of a metadata snapshot may decode to; Kafka
// never compresses them.
const snapshotLimit = 1 << 30

// imageBuilder turns batches of the metadata log into images. Several batches that
// arrive together become one publication; nothing is published in the middle of a
// metadata transaction.
//
// The first publication waits until the image has all that was committed when it
// could be made: a snapshot, or the first piece of a long log, does not know the
// topics that came later, and their partitions on disk would be taken for strays.
// It also waits until the image has this process's own registration. What is older
// names this broker as the leader of epochs in which an earlier process led: to lead
// in them again, with a log that may have lost its end, would put other records at
// offsets of the same epoch, which no follower could tell apart.
type imageBuilder struct {
	image   *metadata.Image
	open    *metadata.Delta // what a metadata transaction holds back, nil outside of one
	begun   bool            // the first publication was made
	publish func(image *metadata.Image, delta *metadata.Delta) error
	// registered says whether an image has this process's registration.
	registered func(*metadata.Image) bool
	// followed is the newest image while nothing is published yet.
	followed atomic.Pointer[metadata.Image]
}

func newImageBuilder(registered func(*metadata.Image) bool, publish func(*metadata.Image, *metadata.Delta) error) *imageBuilder {
	b := &imageBuilder{image: metadata.EmptyImage(), registered: registered, publish: publish}
	b.followed.Store(b.image)
	return b
}

// apply replays committed batches and publishes the image they lead to. A record
// that does not fit is fatal: the image would differ from the controller's.
// highWatermark is what the leader said it is.
func (b *imageBuilder) apply(batches []record.Batch, highWatermark int64) error {
	if len(batches) == 0 {
		return b.begin(highWatermark)
	}
	delta := b.open
	if delta == nil {
		delta = metadata.NewDelta(b.image)
	}
	for _, batch := range batches {
		if batch.IsControl() {
			continue // leaders and voters are the quorum's business; the offset still counts
		}
		if err := replay(delta, batch); err != nil {
			return err
		}
	}
	if delta.InTransaction() {
		b.open = delta // what came before its beginning waits with it
		return nil
	}
	last := batches[len(batches)-1]
	b.open, b.image = nil, delta.Apply(last.LastOffset(), last.PartitionLeaderEpoch())
	if !b.begun {
		return b.begin(highWatermark)
	}
	return b.publish(b.image, delta)
}

// begin makes the first publication, once the image has caught up.
func (b *imageBuilder) begin(highWatermark int64) error {
	if b.begun || b.image.Offset() < 0 || b.image.Offset()+1 < highWatermark {
		return nil
	}
	// An image without metadata.version is one from before the quorum's first
	// records: nothing may be shown of it yet.
	if b.image.MetadataVersion() == 0 {
		return nil
	}
	if !b.registered(b.image) && !mutantAppliesUnregistered {
		b.followed.Store(b.image)
		return nil
	}
	b.begun = true
	return b.publish(b.image, nil)
}

func replay(delta *metadata.Delta, batch record.Batch) error {
	for rec, err := range batch.Records(record.Limits{MaxDecompressed: snapshotLimit}) {
		if err != nil {
			return fatalf("batch at offset %d: %v", batch.BaseOffset(), err)
		}
		decoded, _, err := metadata.DecodeRecord(rec.Value)
		if err != nil {
			return fatalf("offset %d: %v", batch.OffsetOf(rec), err)
		}
		if err := delta.Replay(decoded, batch.OffsetOf(rec)); err != nil {
			return fatalf("%v", err)
		}
	}
	return nil
}

// restore replaces the image by that of a snapshot file: a header, data batches, a
// footer. A file that lacks either, or whose checksums are wrong, is not adopted.
func (b *imageBuilder) restore(snapshot []byte, endOffset int64, epoch int32) error {
	delta := metadata.NewDelta(metadata.EmptyImage())
	header, footer := false, false
	for rest := snapshot; len(rest) > 0; {
		size, err := record.Peek(rest)
		if err != nil {
			return fmt.Errorf("metadata snapshot %d-%d: %w", endOffset, epoch, err)
		}
		if size > len(rest) {
			return fmt.Errorf("metadata snapshot %d-%d ends inside a batch", endOffset, epoch)
		}
		batch := record.Batch(rest[:size:size])
		rest = rest[size:]
		if err := batch.VerifyCRC(); err != nil {
			return fmt.Errorf("metadata snapshot %d-%d: %w", endOffset, epoch, err)
		}
		if !batch.IsControl() {
			if err := replay(delta, batch); err != nil {
				return err
			}
			continue
		}
		for rec, err := range batch.Records(record.Limits{MaxDecompressed: snapshotLimit}) {
			if err != nil {
				return fmt.Errorf("metadata snapshot %d-%d: %w", endOffset, epoch, err)
			}
			kind, err := record.ParseControlKey(rec.Key)
			if err != nil {
				return fmt.Errorf("metadata snapshot %d-%d: %w", endOffset, epoch, err)
			}
			header = header || kind == record.SnapshotHeader
			footer = footer || kind == record.SnapshotFooter && len(rest) == 0
		}
	}
	if !header || !footer {
		return fmt.Errorf("metadata snapshot %d-%d is not whole: header %t, footer %t", endOffset, epoch, header, footer)
	}
	b.open, b.image = nil, delta.Apply(endOffset-1, epoch)
	if !b.begun {
		return nil
	}
	return b.publish(b.image, nil)
}
