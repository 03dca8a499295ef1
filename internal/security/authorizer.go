package security

import "net"

// Operation is what is asked for, with Kafka's numbers (as ACLs store them).
type Operation int8

// Kafka's operations.
const (
	Read            Operation = 3
	Write           Operation = 4
	Create          Operation = 5
	Delete          Operation = 6
	Alter           Operation = 7
	Describe        Operation = 8
	ClusterAction   Operation = 9
	DescribeConfigs Operation = 10
	AlterConfigs    Operation = 11
	IdempotentWrite Operation = 12
	CreateTokens    Operation = 13
	DescribeTokens  Operation = 14
	TwoPhaseCommit  Operation = 15
)

var operationNames = map[Operation]string{
	Read: "READ", Write: "WRITE", Create: "CREATE", Delete: "DELETE", Alter: "ALTER", Describe: "DESCRIBE",
	ClusterAction: "CLUSTER_ACTION", DescribeConfigs: "DESCRIBE_CONFIGS", AlterConfigs: "ALTER_CONFIGS",
	IdempotentWrite: "IDEMPOTENT_WRITE", CreateTokens: "CREATE_TOKENS", DescribeTokens: "DESCRIBE_TOKENS",
	TwoPhaseCommit: "TWO_PHASE_COMMIT",
}

func (o Operation) String() string {
	if name, ok := operationNames[o]; ok {
		return name
	}
	return "UNKNOWN"
}

// ResourceType is the kind of thing an operation is asked for on, with Kafka's numbers.
type ResourceType int8

// Kafka's resource types.
const (
	Topic           ResourceType = 2
	Group           ResourceType = 3
	Cluster         ResourceType = 4
	TransactionalID ResourceType = 5
	DelegationToken ResourceType = 6
	User            ResourceType = 7
)

var resourceNames = map[ResourceType]string{
	Topic: "TOPIC", Group: "GROUP", Cluster: "CLUSTER", TransactionalID: "TRANSACTIONAL_ID",
	DelegationToken: "DELEGATION_TOKEN", User: "USER",
}

func (t ResourceType) String() string {
	if name, ok := resourceNames[t]; ok {
		return name
	}
	return "UNKNOWN"
}

// Resource is one thing that operations are allowed or denied on.
type Resource struct {
	Type ResourceType
	Name string
}

// TheCluster is the only resource of type Cluster, under Kafka's name for it.
var TheCluster = Resource{Type: Cluster, Name: "kafka-cluster"}

// RequestContext says on whose behalf, from where and for which API a question is asked.
type RequestContext struct {
	Principal  Principal
	ClientAddr net.IP
	Listener   string
	APIKey     int16
	APIVersion int16
	ClientID   string
}

// Authorizer answers whether an operation is allowed. It is asked on every API, by many goroutines
// at once, and must not block.
type Authorizer interface {
	Authorize(ctx RequestContext, op Operation, resource Resource) bool
}

// AllowAll allows everything: a node without an authorizer configured.
type AllowAll struct{}

// Authorize implements Authorizer.
func (AllowAll) Authorize(RequestContext, Operation, Resource) bool { return true }
