package security

import "testing"

// The words in logs are Kafka's.
func TestNamesAreKafkas(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Anonymous.String():       "User:ANONYMOUS",
		IdempotentWrite.String(): "IDEMPOTENT_WRITE",
		TransactionalID.String(): "TRANSACTIONAL_ID",
		Operation(99).String():   "UNKNOWN",
		ResourceType(1).String(): "UNKNOWN",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !(AllowAll{}).Authorize(RequestContext{}, Delete, TheCluster) {
		t.Error("AllowAll denies")
	}
}
