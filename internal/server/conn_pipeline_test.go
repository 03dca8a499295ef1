package server

import (
	"testing"
	"time"
)

// Small Produce requests that come together are answered in order, whatever each has to wait for: nothing, something
// that is there already, or something that comes later; a throttled one and one that wants no answer between them. What
// precedes a closed connection is still answered.
func TestPipelinedProduceIsAnsweredInOrder(t *testing.T) {
	t.Parallel()
	const closing = 1000
	closed := make(chan struct{})
	close(closed)
	n := 0 // Produce requests of a connection are appended one after the other
	_, addr := start(t, Options{Handlers: []Handler{
		produceHandler(func(r *Request) Response {
			n++
			reply := func() Response { return okProduce(r) }
			switch n % 6 {
			case 0:
				return okProduce(r)
			case 1:
				return Later(closed, reply)
			case 2:
				later := make(chan struct{})
				time.AfterFunc(time.Millisecond, func() { close(later) })
				return Later(later, reply)
			case 3:
				return Later(closed, func() Response { return Later(closed, reply) })
			case 4:
				return Later(closed, func() Response { return okProduce(r).Muting(time.Millisecond) })
			default:
				if r.CorrelationID == closing {
					return CloseConnection(errIdle)
				}
				return NoReply()
			}
		}),
		metadataHandler(okMetadata),
	}})
	c := dialRaw(t, addr)
	var all []byte
	var answered []int32
	produced := 0
	// produce adds a request, and says whether the handler's count makes it one of those without an answer.
	produce := func(correlation int32) (silent bool) {
		all = append(all, frame(produceRequest(1), correlation)...)
		produced++
		return produced%6 == 5
	}
	for i := range int32(300) {
		if i%50 == 49 {
			all, answered = append(all, frame(metadataRequest(), i)...), append(answered, i)
		} else if !produce(i) {
			answered = append(answered, i)
		}
	}
	for produced%6 != 4 {
		produce(500)
		answered = append(answered, 500)
	}
	produce(closing)
	c.send(all)
	for _, i := range answered {
		c.wantAnswer(i)
	}
	c.wantClosed()
}
