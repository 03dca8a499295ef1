package record

import (
	"runtime"
	"testing"

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
		var others largeTurn
		others.take(largeTotal - 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantCode(t, codec.String()+" large", large, opts, 87)
		}()
		// The byte that is left can be had until someone waits in line.
		for largeTurns.TryAcquire(1) {
			largeTurns.Release(1)
			select {
			case <-done:
				t.Fatalf("%v: a large batch did not wait for its turn", codec)
			default:
				runtime.Gosched()
			}
		}
		wantCode(t, codec.String()+" small", small, opts, 87)
		others.release()
		<-done
		if !largeTurns.TryAcquire(largeTotal) {
			t.Fatalf("%v: a batch kept its turn", codec)
		}
		largeTurns.Release(largeTotal)
	}
}
