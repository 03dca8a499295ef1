package metadata

import (
	"cmp"
	"fmt"
	"strings"
)

// ScramKey is a user's credential for one mechanism (1 SHA-256, 2 SHA-512).
type ScramKey struct {
	User      string
	Mechanism int8
}

func (k ScramKey) compare(o ScramKey) int {
	return cmp.Or(strings.Compare(k.User, o.User), cmp.Compare(k.Mechanism, o.Mechanism))
}

// ACLs are the access rules by id. The records must not be changed.
func (i *Image) ACLs() Map[UUID, *AccessControlEntryRecord] { return i.acls }

// ScramCredentials are all credentials. The records must not be changed.
func (i *Image) ScramCredentials() Map[ScramKey, *UserScramCredentialRecord] { return i.scram }

// DelegationTokens are all tokens by id. The records must not be changed.
func (i *Image) DelegationTokens() Map[string, *DelegationTokenRecord] { return i.tokens }

func (d *Delta) replaySecurity(rec Record) string {
	i := &d.next
	switch r := rec.(type) {
	case *AccessControlEntryRecord:
		d.ACLs = true
		i.acls = i.acls.Set(r.ID, r)
	case *RemoveAccessControlEntryRecord:
		if _, ok := i.acls.Get(r.ID); !ok {
			return fmt.Sprintf("no access rule has id %s", r.ID)
		}
		d.ACLs = true
		i.acls = i.acls.Delete(r.ID)
	case *UserScramCredentialRecord:
		d.Scram = true
		i.scram = i.scram.Set(ScramKey{r.Name, r.Mechanism}, r)
	case *RemoveUserScramCredentialRecord:
		key := ScramKey{r.Name, r.Mechanism}
		if _, ok := i.scram.Get(key); !ok {
			return fmt.Sprintf("user %s has no credential of mechanism %d", r.Name, r.Mechanism)
		}
		d.Scram = true
		i.scram = i.scram.Delete(key)
	case *DelegationTokenRecord:
		d.Tokens = true
		i.tokens = i.tokens.Set(r.TokenID, r)
	case *RemoveDelegationTokenRecord:
		d.Tokens = true
		i.tokens = i.tokens.Delete(r.TokenID)
	}
	return ""
}

func (i *Image) aclRecords(yield func(Record) bool) bool {
	for _, r := range i.acls.All() {
		if !yield(r) {
			return false
		}
	}
	return true
}

func (i *Image) scramRecords(yield func(Record) bool) bool {
	for _, r := range i.scram.All() {
		if !yield(r) {
			return false
		}
	}
	return true
}

func (i *Image) tokenRecords(yield func(Record) bool) bool {
	for _, r := range i.tokens.All() {
		if !yield(r) {
			return false
		}
	}
	return true
}
