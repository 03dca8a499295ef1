package record

import (
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// Batches that decompress to much at once take turns: one that finds the memory taken waits, one that is
// small does not, and all of it is given back. (Not parallel: the memory is the process's.)
func TestLargeBatchesTakeTurns(t *testing.T) {
	opts := topic()
	opts.MaxMessageBytes = 8 << 20
	content := append(appendVarint(nil, 20<<20), 0, 0, 0, 1)
	content = append(appendVarint(content, 20<<20-10), make([]byte, 20<<20)...)
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(16<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	for codec, large := range map[Codec]Batch{
		Snappy: withPayload(t, Snappy, 1, snappy.Encode(nil, content)),
		Zstd:   withPayload(t, Zstd, 1, enc.EncodeAll(content, nil)),
	} {
		small := bomb(t, codec, 1<<10, 1<<10)
		synctest.Test(t, func(t *testing.T) {
			var others largeTurn
			others.take(1 << 40)
			done := make(chan struct{})
			go func() {
				defer close(done)
				wantCode(t, codec.String()+" large", large, opts, 87)
			}()
			synctest.Wait()
			wantCode(t, codec.String()+" small", small, opts, 87)
			select {
			case <-done:
				t.Errorf("%v: a large batch did not wait for its turn", codec)
			default:
			}
			others.release()
			<-done
			if !largeTurns.TryAcquire(largeTotal) {
				t.Fatalf("%v: a batch kept its turn", codec)
			}
			largeTurns.Release(largeTotal)
		})
	}
}
