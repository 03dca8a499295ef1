package controller

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// Codes of access rules that mean something here. 0 is unknown everywhere, 1 any.
const (
	aclAny            int8 = 1
	aclMaxResource    int8 = 7
	aclResourceOfAll  int8 = 4
	aclPatternMatch   int8 = 2
	aclPatternLiteral int8 = 3
	aclPatternPrefix  int8 = 4
	aclMaxOperation   int8 = 15
	aclDeny           int8 = 2
	aclAllow          int8 = 3

	// ClusterResourceName is the only name of a resource of type cluster.
	ClusterResourceName = "kafka-cluster"
)

// ACLFilter picks access rules. Absent texts pick any.
type ACLFilter struct {
	ResourceType   int8
	ResourceName   *string
	PatternType    int8
	Principal      *string
	Host           *string
	Operation      int8
	PermissionType int8
}

// Unknown says whether a field of a filter, or of a rule to be made, is the code for "unknown", with which no client may come.
func (f ACLFilter) Unknown() bool {
	return f.ResourceType == 0 || f.PatternType == 0 || f.Operation == 0 || f.PermissionType == 0
}

// matches is Kafka's: a name is looked for as a whole, except that the pattern type "match" finds the rules that
// concern the resource of that name.
func (f ACLFilter) matches(r *metadata.AccessControlEntryRecord) bool {
	is := func(wanted *string, text string) bool { return wanted == nil || *wanted == text }
	code := func(wanted, has int8) bool { return wanted == aclAny || wanted == has }
	if !code(f.ResourceType, r.ResourceType) || !is(f.Principal, r.Principal) || !is(f.Host, r.Host) ||
		!code(f.Operation, r.Operation) || !code(f.PermissionType, r.PermissionType) {
		return false
	}
	if f.PatternType != aclPatternMatch {
		return code(f.PatternType, r.PatternType) && is(f.ResourceName, r.ResourceName)
	}
	if f.ResourceName == nil {
		return true
	}
	if r.PatternType == aclPatternPrefix {
		return strings.HasPrefix(*f.ResourceName, r.ResourceName)
	}
	return r.ResourceName == *f.ResourceName || r.ResourceName == "*"
}

// aclKey is what makes two rules the same.
type aclKey struct {
	resourceType, patternType, operation, permission int8
	name, principal, host                            string
}

func keyOfACL(r *metadata.AccessControlEntryRecord) aclKey {
	return aclKey{r.ResourceType, r.PatternType, r.Operation, r.PermissionType, r.ResourceName, r.Principal, r.Host}
}

// CreateACLsReply answers CreateAcls, in the order of the request: nil for success.
type CreateACLsReply struct{ Errs []*Error }

// CreateACLs adds access rules. One that is there already is a success without a record. The rules are stored;
// whether they are used is the authorizer's affair.
func (c *Controller) CreateACLs(at At, req *kmsg.CreateACLsRequest) Result {
	o := c.begin(at)
	known := map[aclKey]bool{}
	for _, rec := range o.img.ACLs().All() {
		known[keyOfACL(rec)] = true
	}
	var reply CreateACLsReply
	var recs []metadata.Record
	for i := range req.Creations {
		rec, err := o.newACL(&req.Creations[i])
		reply.Errs = append(reply.Errs, err)
		if err != nil || known[keyOfACL(rec)] {
			continue
		}
		known[keyOfACL(rec)] = true
		rec.ID = c.newACLID()
		if recs = append(recs, rec); len(recs) > MaxRecordsPerRequest {
			return failed(errTooManyRecords)
		}
	}
	o.add(recs...)
	return o.result(true, reply)
}

func (c *Controller) newACLID() metadata.UUID {
	for {
		id := metadata.NewUUID(randomBytes{c.opt.Rand})
		if _, taken := c.img.ACLs().Get(id); !taken {
			return id
		}
	}
}

func (o *op) newACL(a *kmsg.CreateACLsRequestCreation) (*metadata.AccessControlEntryRecord, *Error) {
	rec := &metadata.AccessControlEntryRecord{
		ResourceType: int8(a.ResourceType), ResourceName: a.ResourceName, PatternType: int8(a.ResourcePatternType),
		Principal: a.Principal, Host: a.Host, Operation: int8(a.Operation), PermissionType: int8(a.PermissionType),
	}
	switch {
	case rec.ResourceType == aclResourceOfAll && rec.ResourceName != ClusterResourceName:
		return nil, faultf(ErrInvalidRequest, "The only valid name for the CLUSTER resource is %s", ClusterResourceName)
	case rec.ResourceName == "":
		return nil, faultf(ErrInvalidRequest, "Invalid empty resource name")
	case rec.ResourceType <= aclAny || rec.ResourceType > aclMaxResource:
		return nil, faultf(ErrInvalidRequest, "Invalid resourceType %s", anyOrUnknown(rec.ResourceType))
	case rec.PatternType != aclPatternLiteral && rec.PatternType != aclPatternPrefix:
		return nil, faultf(ErrInvalidRequest, "Invalid patternType %s", anyOrUnknown(rec.PatternType))
	case !strings.Contains(rec.Principal, ":"):
		return nil, faultf(ErrInvalidRequest, "Could not parse principal from `%s` (no colon is present separating the principal type from the principal name)", rec.Principal)
	case rec.Host == "":
		return nil, faultf(ErrInvalidRequest, "Host pattern cannot be null or empty")
	case rec.Operation <= aclAny || rec.Operation > aclMaxOperation:
		return nil, faultf(ErrInvalidRequest, "Invalid operation %s", anyOrUnknown(rec.Operation))
	case rec.PermissionType != aclDeny && rec.PermissionType != aclAllow:
		return nil, faultf(ErrInvalidRequest, "Invalid permissionType %s", anyOrUnknown(rec.PermissionType))
	}
	return rec, o.checkACLHost(rec.Host)
}

// anyOrUnknown names a code that no stored rule can have.
func anyOrUnknown(code int8) string {
	switch code {
	case aclAny:
		return "ANY"
	case aclPatternMatch:
		return "MATCH"
	}
	return "UNKNOWN"
}

// checkACLHost looks at hosts that are ranges of addresses; any other text is taken for the name of a host.
func (o *op) checkACLHost(host string) *Error {
	address, bits, isRange := strings.Cut(host, "/")
	if !isRange {
		return nil
	}
	if o.img.MetadataVersion() < metadata.LevelCIDR {
		return faultf(ErrUnsupportedVersion, "Ranges of addresses in access rules need metadata.version %d", metadata.LevelCIDR)
	}
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Zone() != "" {
		return faultf(ErrInvalidRequest, "Invalid CIDR notation '%s': Could not parse [%s]", host, host)
	}
	n, err := strconv.ParseUint(bits, 10, 16)
	if err != nil {
		return faultf(ErrInvalidRequest, "Invalid CIDR notation '%s': Could not parse [%s]", host, host)
	}
	if n > uint64(ip.BitLen()) {
		return faultf(ErrInvalidRequest, "Invalid CIDR notation '%s': Value [%d] not in range [0,%d]", host, n, ip.BitLen())
	}
	return nil
}

// DescribeACLs lists the access rules of an image that match, by resource, then by principal, host, operation and permission.
// The records must not be changed.
func DescribeACLs(image *metadata.Image, filter ACLFilter) []*metadata.AccessControlEntryRecord {
	var out []*metadata.AccessControlEntryRecord
	for _, rec := range image.ACLs().All() {
		if filter.matches(rec) {
			out = append(out, rec)
		}
	}
	slices.SortFunc(out, func(a, b *metadata.AccessControlEntryRecord) int {
		return cmp.Or(cmp.Compare(a.ResourceType, b.ResourceType), strings.Compare(a.ResourceName, b.ResourceName), cmp.Compare(a.PatternType, b.PatternType),
			strings.Compare(a.Principal, b.Principal), strings.Compare(a.Host, b.Host), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.PermissionType, b.PermissionType))
	})
	return out
}

// DeleteACLsReply answers DeleteAcls: the rules that each filter matched, in the order of the request.
type DeleteACLsReply struct {
	Matched [][]*metadata.AccessControlEntryRecord
}

// DeleteACLs removes the rules that match any of the filters. A rule that several match is removed once and shown by each.
func (c *Controller) DeleteACLs(at At, req *kmsg.DeleteACLsRequest) Result {
	o := c.begin(at)
	var reply DeleteACLsReply
	removed := map[metadata.UUID]bool{}
	var recs []metadata.Record
	for i := range req.Filters {
		f := &req.Filters[i]
		filter := ACLFilter{int8(f.ResourceType), f.ResourceName, int8(f.ResourcePatternType), f.Principal, f.Host, int8(f.Operation), int8(f.PermissionType)}
		matched := DescribeACLs(o.img, filter)
		for _, rec := range matched {
			if removed[rec.ID] {
				continue
			}
			removed[rec.ID] = true
			if recs = append(recs, &metadata.RemoveAccessControlEntryRecord{ID: rec.ID}); len(recs) > MaxRecordsPerRequest {
				return failed(faultf(ErrInvalidRequest, "the filters match more than %d rules: delete fewer at a time", MaxRecordsPerRequest))
			}
		}
		reply.Matched = append(reply.Matched, matched)
	}
	o.add(recs...)
	return o.result(true, reply)
}
