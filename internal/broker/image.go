package broker

import (
	"fmt"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// snapshotLimit bounds what one batch of a metadata snapshot may decode to; Kafka
// never compresses them.
const snapshotLimit = 1 << 30

// imageBuilder turns batches of the metadata log into images. Several batches that
// arrive together become one publication; nothing is published in the middle of a
// metadata transaction.
type imageBuilder struct {
	image   *metadata.Image
	open    *metadata.Delta // what a metadata transaction holds back, nil outside of one
	publish func(image *metadata.Image, delta *metadata.Delta) error
}

func newImageBuilder(publish func(*metadata.Image, *metadata.Delta) error) *imageBuilder {
	return &imageBuilder{image: metadata.EmptyImage(), publish: publish}
}

// apply replays committed batches and publishes the image they lead to. A record
// that does not fit is fatal: the image would differ from the controller's.
func (b *imageBuilder) apply(batches []record.Batch) error {
	if len(batches) == 0 {
		return nil
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
	return b.publish(b.image, delta)
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
	return b.publish(b.image, nil)
}
