package controller

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"hash"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// The bounds of the iterations of a SCRAM credential.
const (
	MinScramIterations = 4096
	MaxScramIterations = 16384
)

// scramHash is the hash of a mechanism (1 SHA-256, 2 SHA-512), nil for one that is not known.
func scramHash(mechanism int8) func() hash.Hash {
	switch mechanism {
	case 1:
		return sha256.New
	case 2:
		return sha512.New
	}
	return nil
}

// UserOutcome is the outcome for one user.
type UserOutcome struct {
	User string
	Err  *Error
}

// AlterScramReply answers AlterUserScramCredentials: each user once, in the order in which the request first names
// them, deletions before upsertions.
type AlterScramReply struct{ Users []UserOutcome }

// scramAlteration is what a request wants of one user; it may want no more than one thing.
type scramAlteration struct {
	rec metadata.Record
	err *Error
}

// AlterUserScramCredentials sets and deletes credentials. A request that names a user twice changes nothing of that
// user. The salted password itself is not kept.
func (c *Controller) AlterUserScramCredentials(at At, req *kmsg.AlterUserSCRAMCredentialsRequest) Result {
	o := c.begin(at)
	wanted := map[string]*scramAlteration{}
	var order []string
	add := func(user string, rec metadata.Record, err *Error) {
		switch earlier := wanted[user]; {
		case earlier == nil:
			order = append(order, user)
			wanted[user] = &scramAlteration{rec, err}
		case earlier.err == nil:
			earlier.err = faultf(ErrDuplicateResource, "A user credential cannot be altered twice in the same request")
		}
	}
	for i := range req.Deletions {
		d := &req.Deletions[i]
		add(d.Name, &metadata.RemoveUserScramCredentialRecord{Name: d.Name, Mechanism: d.Mechanism}, o.checkScramDeletion(d))
	}
	for i := range req.Upsertions {
		u := &req.Upsertions[i]
		if err := o.checkScramUpsertion(u); err != nil {
			add(u.Name, nil, err)
			continue
		}
		add(u.Name, scramRecord(u), nil)
	}
	var reply AlterScramReply
	for _, user := range order {
		w := wanted[user]
		reply.Users = append(reply.Users, UserOutcome{user, w.err})
		if w.err == nil {
			o.add(w.rec)
		}
	}
	return o.result(true, reply)
}

func (o *op) checkScramUser(name string, mechanism int8) *Error {
	switch {
	case o.img.MetadataVersion() < metadata.LevelScram:
		return faultf(ErrUnsupportedVersion, "The current metadata version does not support SCRAM")
	case name == "":
		return faultf(ErrUnacceptableCredential, "Username must not be empty")
	case scramHash(mechanism) == nil:
		return faultf(ErrUnsupportedSASLMechanism, "Unknown SCRAM mechanism")
	}
	return nil
}

func (o *op) checkScramDeletion(d *kmsg.AlterUserSCRAMCredentialsRequestDeletion) *Error {
	if err := o.checkScramUser(d.Name, d.Mechanism); err != nil {
		return err
	}
	if _, ok := o.img.ScramCredentials().Get(metadata.ScramKey{User: d.Name, Mechanism: d.Mechanism}); !ok {
		return faultf(ErrResourceNotFound, "Attempt to delete a user credential that does not exist")
	}
	return nil
}

func (o *op) checkScramUpsertion(u *kmsg.AlterUserSCRAMCredentialsRequestUpsertion) *Error {
	if err := o.checkScramUser(u.Name, u.Mechanism); err != nil {
		return err
	}
	switch {
	case u.Iterations < MinScramIterations:
		return faultf(ErrUnacceptableCredential, "Too few iterations")
	case u.Iterations > MaxScramIterations:
		return faultf(ErrUnacceptableCredential, "Too many iterations")
	case len(u.SaltedPassword) == 0:
		return faultf(ErrUnacceptableCredential, "The salted password must not be empty")
	}
	return nil
}

// scramRecord is what a server has to know of a password (RFC 5802): enough to check it, not to use it elsewhere.
func scramRecord(u *kmsg.AlterUserSCRAMCredentialsRequestUpsertion) *metadata.UserScramCredentialRecord {
	newHash := scramHash(u.Mechanism)
	sign := func(text string) []byte {
		mac := hmac.New(newHash, u.SaltedPassword)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := newHash()
	stored.Write(sign("Client Key"))
	return &metadata.UserScramCredentialRecord{Name: u.Name, Mechanism: u.Mechanism, Salt: u.Salt, StoredKey: stored.Sum(nil), ServerKey: sign("Server Key"), Iterations: u.Iterations}
}

// ScramCredential says which credential a user has: neither salt nor keys are shown.
type ScramCredential struct {
	Mechanism  int8
	Iterations int32
}

// DescribedScramUser is one user's credentials, or why they are not shown.
type DescribedScramUser struct {
	User        string
	Credentials []ScramCredential
	Err         *Error
}

// DescribeUserScramCredentials lists the credentials of an image: of the named users, in that order and each once, or of
// all, by name, when none is named.
func DescribeUserScramCredentials(image *metadata.Image, req *kmsg.DescribeUserSCRAMCredentialsRequest) []DescribedScramUser {
	found := map[string][]ScramCredential{}
	var all, users []string
	for key, rec := range image.ScramCredentials().All() {
		if len(found[key.User]) == 0 {
			all = append(all, key.User)
		}
		found[key.User] = append(found[key.User], ScramCredential{key.Mechanism, rec.Iterations})
	}
	times := map[string]int{}
	for _, u := range req.Users {
		if times[u.Name]++; times[u.Name] == 1 {
			users = append(users, u.Name)
		}
	}
	if len(users) == 0 {
		users = all
	}
	var out []DescribedScramUser
	for _, user := range users {
		one := DescribedScramUser{User: user, Credentials: found[user]}
		switch {
		case times[user] > 1:
			one.Credentials, one.Err = nil, faultf(ErrDuplicateResource, "Cannot describe SCRAM credentials for the same user twice in a single request: %s", user)
		case len(found[user]) == 0:
			one.Err = faultf(ErrResourceNotFound, "Attempt to describe a user credential that does not exist: %s", user)
		}
		out = append(out, one)
	}
	return out
}
