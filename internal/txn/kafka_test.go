package txn

import (
	"testing"

	"github.com/stelelog/stele/internal/record"
)

type keyValue struct{ key, value []byte }

// kafkaRecords are the records of a segment, in order.
func kafkaRecords(t *testing.T, segment []byte) []keyValue {
	t.Helper()
	var all []keyValue
	for b, err := range record.Batches(segment) {
		if err != nil {
			t.Fatal(err)
		}
		for rec, err := range b.Records(record.Limits{}) {
			if err != nil {
				t.Fatal(err)
			}
			one := keyValue{key: append([]byte{}, rec.Key...)}
			if rec.Value != nil {
				one.value = append([]byte{}, rec.Value...)
			}
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		t.Fatal("the segment has no records")
	}
	return all
}
