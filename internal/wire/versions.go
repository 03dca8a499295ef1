package wire

// Keys of the APIs that this package treats by name.
const (
	KeyProduce     int16 = 0
	KeyFetch       int16 = 1
	KeyApiVersions int16 = 18
)

// Scope says on which kinds of listener an API is served.
type Scope uint8

// The kinds of listener.
const (
	ScopeBroker Scope = 1 << iota
	ScopeController
)

// API is one row of the protocol table.
type API struct {
	Key      int16
	Name     string
	Min, Max int16 // as Apache Kafka 4.4 advertises them
	flexible int16 // first flexible version; -1: none
	Scopes   Scope
}

// Flexible reports whether the version has compact lengths and tagged fields. Versions above Max are
// taken for flexible when Max is: that is how the header of an unknown ApiVersions version is read.
func (a API) Flexible(version int16) bool { return a.flexible >= 0 && version >= a.flexible }

// Supports reports whether the version is in the advertised range and may be used. Produce is
// advertised from 0, because older librdkafka silently stops compressing below a minimum of 3, but
// versions 0 to 2 (record formats before v2) are refused when used.
func (a API) Supports(version int16) bool {
	if a.Key == KeyProduce && version < 3 {
		return false
	}
	return version >= a.Min && version <= a.Max
}

// Lookup returns the row of a key.
func Lookup(key int16) (API, bool) {
	if key == KeyQuorumPeer {
		return quorumPeer, true
	}
	if key < 0 || int(key) >= len(byKey) || byKey[key].Name == "" {
		return API{}, false
	}
	return byKey[key], true
}

// APIs returns the whole table in the order of keys.
func APIs() []API { return append([]API(nil), apis...) }

const (
	onBroker     = ScopeBroker
	onController = ScopeController
	onBoth       = ScopeBroker | ScopeController
)

// apis is the table of Apache Kafka 4.4.0. Rows that no handler is registered for are neither
// advertised nor served.
var apis = []API{
	{0, "Produce", 0, 13, 9, onBroker},
	{1, "Fetch", 4, 18, 12, onBoth},
	{2, "ListOffsets", 1, 11, 6, onBroker},
	{3, "Metadata", 0, 13, 9, onBroker},
	{8, "OffsetCommit", 2, 10, 8, onBroker},
	{9, "OffsetFetch", 1, 10, 6, onBroker},
	{10, "FindCoordinator", 0, 6, 3, onBroker},
	{11, "JoinGroup", 0, 9, 6, onBroker},
	{12, "Heartbeat", 0, 4, 4, onBroker},
	{13, "LeaveGroup", 0, 5, 4, onBroker},
	{14, "SyncGroup", 0, 5, 4, onBroker},
	{15, "DescribeGroups", 0, 6, 5, onBroker},
	{16, "ListGroups", 0, 5, 3, onBroker},
	{17, "SaslHandshake", 0, 1, -1, onBoth},
	{18, "ApiVersions", 0, 5, 3, onBoth},
	{19, "CreateTopics", 2, 7, 5, onBoth},
	{20, "DeleteTopics", 1, 6, 4, onBoth},
	{21, "DeleteRecords", 0, 2, 2, onBroker},
	{22, "InitProducerId", 0, 5, 2, onBroker},
	{23, "OffsetForLeaderEpoch", 2, 4, 4, onBroker},
	{24, "AddPartitionsToTxn", 0, 5, 3, onBroker},
	{25, "AddOffsetsToTxn", 0, 4, 3, onBroker},
	{26, "EndTxn", 0, 5, 3, onBroker},
	{27, "WriteTxnMarkers", 1, 2, 1, onBroker},
	{28, "TxnOffsetCommit", 0, 6, 3, onBroker},
	{29, "DescribeAcls", 1, 3, 2, onBoth},
	{30, "CreateAcls", 1, 3, 2, onBoth},
	{31, "DeleteAcls", 1, 3, 2, onBoth},
	{32, "DescribeConfigs", 1, 4, 4, onBoth},
	{33, "AlterConfigs", 0, 2, 2, onBoth},
	{34, "AlterReplicaLogDirs", 1, 2, 2, onBroker},
	{35, "DescribeLogDirs", 1, 5, 2, onBroker},
	{36, "SaslAuthenticate", 0, 2, 2, onBoth},
	{37, "CreatePartitions", 0, 3, 2, onBoth},
	{38, "CreateDelegationToken", 1, 3, 2, onBoth},
	{39, "RenewDelegationToken", 1, 2, 2, onBoth},
	{40, "ExpireDelegationToken", 1, 2, 2, onBoth},
	{41, "DescribeDelegationToken", 1, 3, 2, onBoth},
	{42, "DeleteGroups", 0, 3, 2, onBroker},
	{43, "ElectLeaders", 0, 2, 2, onBoth},
	{44, "IncrementalAlterConfigs", 0, 1, 1, onBoth},
	{45, "AlterPartitionReassignments", 0, 1, 0, onBoth},
	{46, "ListPartitionReassignments", 0, 0, 0, onBoth},
	{47, "OffsetDelete", 0, 0, -1, onBroker},
	{48, "DescribeClientQuotas", 0, 1, 1, onBroker},
	{49, "AlterClientQuotas", 0, 1, 1, onBoth},
	{50, "DescribeUserScramCredentials", 0, 0, 0, onBoth},
	{51, "AlterUserScramCredentials", 0, 0, 0, onBoth},
	{52, "Vote", 0, 2, 0, onController},
	{53, "BeginQuorumEpoch", 0, 1, 1, onController},
	{54, "EndQuorumEpoch", 0, 1, 1, onController},
	{55, "DescribeQuorum", 0, 2, 0, onBoth},
	{56, "AlterPartition", 2, 3, 0, onController},
	{57, "UpdateFeatures", 0, 2, 0, onBoth},
	{58, "Envelope", 0, 0, 0, onController},
	{59, "FetchSnapshot", 0, 1, 0, onController},
	{60, "DescribeCluster", 0, 2, 0, onBoth},
	{61, "DescribeProducers", 0, 0, 0, onBroker},
	{62, "BrokerRegistration", 0, 4, 0, onController},
	{63, "BrokerHeartbeat", 0, 2, 0, onController},
	{64, "UnregisterBroker", 0, 0, 0, onBoth},
	{65, "DescribeTransactions", 0, 0, 0, onBroker},
	{66, "ListTransactions", 0, 2, 0, onBroker},
	{67, "AllocateProducerIds", 0, 0, 0, onController},
	{68, "ConsumerGroupHeartbeat", 0, 1, 0, onBroker},
	{69, "ConsumerGroupDescribe", 0, 1, 0, onBroker},
	{70, "ControllerRegistration", 0, 0, 0, onController},
	{71, "GetTelemetrySubscriptions", 0, 0, 0, onBroker},
	{72, "PushTelemetry", 0, 0, 0, onBroker},
	{73, "AssignReplicasToDirs", 0, 0, 0, onController},
	{74, "ListConfigResources", 0, 1, 0, onBroker},
	{75, "DescribeTopicPartitions", 0, 0, 0, onBroker},
	{76, "ShareGroupHeartbeat", 1, 1, 0, onBroker},
	{77, "ShareGroupDescribe", 1, 1, 0, onBroker},
	{78, "ShareFetch", 1, 2, 0, onBroker},
	{79, "ShareAcknowledge", 1, 2, 0, onBroker},
	{80, "AddRaftVoter", 0, 1, 0, onBoth},
	{81, "RemoveRaftVoter", 0, 0, 0, onBoth},
	{82, "UpdateRaftVoter", 0, 0, 0, onController},
	{83, "InitializeShareGroupState", 0, 0, 0, onBroker},
	{84, "ReadShareGroupState", 0, 0, 0, onBroker},
	{85, "WriteShareGroupState", 0, 1, 0, onBroker},
	{86, "DeleteShareGroupState", 0, 0, 0, onBroker},
	{87, "ReadShareGroupStateSummary", 0, 1, 0, onBroker},
	{88, "StreamsGroupHeartbeat", 0, 1, 0, onBroker},
	{89, "StreamsGroupDescribe", 0, 1, 0, onBroker},
	{90, "DescribeShareGroupOffsets", 0, 1, 0, onBroker},
	{91, "AlterShareGroupOffsets", 0, 0, 0, onBroker},
	{92, "DeleteShareGroupOffsets", 0, 0, 0, onBroker},
	{93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, onBroker},
	{94, "UnregisterController", 0, 0, 0, onBoth},
}

var byKey = func() []API {
	t := make([]API, apis[len(apis)-1].Key+1)
	for _, a := range apis {
		t[a.Key] = a
	}
	return t
}()
