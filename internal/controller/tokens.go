package controller

import (
	"crypto/hmac"
	"crypto/sha512"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// Principals stand in tokens as Kafka writes them: "User:alice".

// userPrincipal is the only type of principal that may renew tokens.
const userPrincipal = "User"

// TokenReply answers the requests that change a delegation token: the token as it is now, and its HMAC, which is
// the token's password. Times are in milliseconds of Unix time.
type TokenReply struct {
	Token metadata.DelegationTokenRecord
	HMAC  []byte
}

// tokenHMAC is the password of a token, which every node that knows the secret can compute and no record holds.
func tokenHMAC(secret, tokenID string) []byte {
	mac := hmac.New(sha512.New, []byte(secret))
	mac.Write([]byte(tokenID))
	return mac.Sum(nil)
}

// tokenSecret is delegation.token.secret.key, or why there are no tokens.
func (o *op) tokenSecret() (string, *Error) {
	secret := o.c.opt.Static.String("delegation.token.secret.key")
	switch {
	case secret == "":
		return "", faultf(ErrTokenAuthDisabled, "delegation.token.secret.key is not set")
	case o.img.MetadataVersion() < metadata.LevelDelegationTokens:
		return "", faultf(ErrUnsupportedVersion, "delegation tokens need metadata.version %d", metadata.LevelDelegationTokens)
	}
	return secret, nil
}

// lifetime is what is asked for (milliseconds; 0 and less: as long as may be), no longer than the setting of that name.
func (o *op) lifetime(asked int64, setting string) time.Duration {
	longest := o.c.opt.Static.Duration(setting)
	if asked > 0 && asked < longest.Milliseconds() {
		return time.Duration(asked) * time.Millisecond
	}
	return longest
}

// CreateDelegationToken makes a token for owner, whom requester may make one for: the caller has seen to that.
func (c *Controller) CreateDelegationToken(at At, req *kmsg.CreateDelegationTokenRequest, owner, requester string) Result {
	o := c.begin(at)
	secret, err := o.tokenSecret()
	if err != nil {
		return failed(err)
	}
	var renewers []string
	for _, r := range req.Renewers {
		if r.PrincipalType != userPrincipal {
			return failed(faultf(ErrInvalidPrincipalType, "a renewer is a %s, not a %s", userPrincipal, r.PrincipalType))
		}
		renewers = append(renewers, r.PrincipalType+":"+r.PrincipalName)
	}
	last := at.Now.Add(o.lifetime(req.MaxLifetimeMillis, "delegation.token.max.lifetime.ms"))
	rec := &metadata.DelegationTokenRecord{
		Owner: owner, Requester: requester, Renewers: renewers, TokenID: metadata.NewUUID(randomBytes{c.opt.Rand}).String(),
		IssueTimestamp: at.Now.UnixMilli(), MaxTimestamp: last.UnixMilli(),
		ExpirationTimestamp: min(last.UnixMilli(), at.Now.Add(o.lifetime(0, "delegation.token.expiry.time.ms")).UnixMilli()),
	}
	o.add(rec)
	return o.result(true, TokenReply{*rec, tokenHMAC(secret, rec.TokenID)})
}

// findToken is the token with that HMAC, if principal may renew it and it has not expired.
func (o *op) findToken(given []byte, principal string) (*metadata.DelegationTokenRecord, *Error) {
	secret, err := o.tokenSecret()
	if err != nil {
		return nil, err
	}
	var found *metadata.DelegationTokenRecord
	for id, rec := range o.img.DelegationTokens().All() {
		if hmac.Equal(given, tokenHMAC(secret, id)) {
			found = rec
		}
	}
	now := o.now.UnixMilli()
	switch {
	case found == nil:
		return nil, faultf(ErrTokenNotFound, "no token has this HMAC")
	case principal != found.Owner && !slices.Contains(found.Renewers, principal):
		return nil, faultf(ErrTokenOwnerMismatch, "%s is neither owner nor renewer of the token", principal)
	case found.MaxTimestamp < now || found.ExpirationTimestamp < now:
		return nil, faultf(ErrTokenExpired, "the token has expired")
	}
	return found, nil
}

// reissue writes a token whole, with another time of expiry but never one beyond its last.
func (o *op) reissue(token *metadata.DelegationTokenRecord, expires time.Time) Result {
	rec := *token
	rec.ExpirationTimestamp = min(rec.MaxTimestamp, expires.UnixMilli())
	o.add(&rec)
	return o.result(true, TokenReply{Token: rec})
}

// RenewDelegationToken lets a token live on, as long as asked for or as long as may be.
func (c *Controller) RenewDelegationToken(at At, req *kmsg.RenewDelegationTokenRequest, principal string) Result {
	o := c.begin(at)
	token, err := o.findToken(req.HMAC, principal)
	if err != nil {
		return failed(err)
	}
	return o.reissue(token, at.Now.Add(o.lifetime(req.RenewTimeMillis, "delegation.token.expiry.time.ms")))
}

// ExpireDelegationToken sets when a token ends: so long from now, or, for a negative time, at once.
func (c *Controller) ExpireDelegationToken(at At, req *kmsg.ExpireDelegationTokenRequest, principal string) Result {
	o := c.begin(at)
	token, err := o.findToken(req.HMAC, principal)
	if err != nil {
		return failed(err)
	}
	if req.ExpiryPeriodMillis < 0 {
		o.add(&metadata.RemoveDelegationTokenRecord{TokenID: token.TokenID})
		ended := *token
		ended.ExpirationTimestamp = at.Now.UnixMilli()
		return o.result(true, TokenReply{Token: ended})
	}
	left := min(req.ExpiryPeriodMillis, token.MaxTimestamp-at.Now.UnixMilli()) // a longer time than any duration holds ends there too
	return o.reissue(token, at.Now.Add(time.Duration(left)*time.Millisecond))
}

// expireTokens removes tokens whose time is over. more says that it was cut short.
func (o *op) expireTokens() (more bool) {
	now := o.now.UnixMilli()
	var recs []metadata.Record
	for id, rec := range o.img.DelegationTokens().All() {
		if rec.MaxTimestamp >= now && rec.ExpirationTimestamp >= now {
			continue
		}
		if len(recs) == recordsPerRun {
			more = true
			break
		}
		recs = append(recs, &metadata.RemoveDelegationTokenRecord{TokenID: id})
	}
	o.add(recs...)
	return more
}

// DescribeDelegationTokens lists the tokens of an image that visible lets through, with their HMACs under secret.
func DescribeDelegationTokens(image *metadata.Image, secret string, visible func(*metadata.DelegationTokenRecord) bool) []TokenReply {
	var out []TokenReply
	for id, rec := range image.DelegationTokens().All() {
		if visible(rec) {
			out = append(out, TokenReply{*rec, tokenHMAC(secret, id)})
		}
	}
	return out
}

// SplitPrincipal takes a principal apart that was written as "User:alice".
func SplitPrincipal(text string) (kind, name string) {
	kind, name, _ = strings.Cut(text, ":")
	return kind, name
}
