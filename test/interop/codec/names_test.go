//go:build interop

package codec

import (
	"reflect"
	"strings"
)

// fieldOf finds the field of a structure that Kafka calls name: by that name, by what kmsg makes of such names, or by
// the table below.
func fieldOf(t reflect.Type, name string) (string, bool) {
	cut := strings.TrimPrefix(name, "v3AndBelow")
	bare := strings.TrimSuffix(strings.TrimSuffix(cut, "Filter"), "Ms")
	for _, candidate := range append([]string{name, cut, bare, bare + "Millis"}, otherWords[name]...) {
		f, ok := t.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, candidate) })
		if ok && f.IsExported() {
			return f.Name, true
		}
	}
	return "", false
}

// otherWords says what kmsg, or Stele, may call a field of Kafka's where the rules above do not find it.
var otherWords = map[string][]string{
	"assignment":                  {"MemberAssignment"},
	"assignments":                 {"Assignment", "ReplicaAssignment", "GroupAssignment"},
	"assignorName":                {"Assignor"},
	"authBytes":                   {"SASLAuthBytes"},
	"batchIndex":                  {"RelativeOffset"},
	"batchIndexErrorMessage":      {"ErrorMessage"},
	"brokerId":                    {"NodeID"},
	"brokerIds":                   {"Replicas"},
	"clusterAuthorizedOperations": {"AuthorizedOperations"},
	"committed":                   {"Commit"},
	"committedLeaderEpoch":        {"LeaderEpoch"},
	"committedMetadata":           {"Metadata"},
	"committedOffset":             {"Offset"},
	"configOperation":             {"Op"},
	"configSource":                {"Source"},
	"configurationKeys":           {"ConfigNames"},
	"durationFilter":              {"DurationFilterMillis"},
	"entityName":                  {"Name"},
	"entityType":                  {"Type"},
	"expiryTimePeriodMs":          {"ExpiryPeriodMillis"},
	"filterResults":               {"Results"},
	"forgottenTopicsData":         {"ForgottenTopics"},
	"generationId":                {"Generation"},
	"generationIdOrMemberEpoch":   {"Generation"},
	"groupEpoch":                  {"Epoch"},
	"groupId":                     {"Group"},
	"groupIds":                    {"Groups"},
	"groupInstanceId":             {"InstanceID"},
	"groupState":                  {"State"},
	"groupsNames":                 {"Groups"},
	"index":                       {"Partition"},
	"isFutureKey":                 {"IsFuture"},
	"isrNodes":                    {"ISR"},
	"key":                         {"CoordinatorKey"},
	"keyType":                     {"CoordinatorType"},
	"leader":                      {"LeaderID"},
	"leaderId":                    {"Leader"},
	"logDir":                      {"Dir"},
	"maxSupportedVersion":         {"Max"},
	"mechanisms":                  {"SupportedMechanisms"},
	"memberMetadata":              {"ProtocolMetadata"},
	"metadata":                    {"ProtocolMetadata"},
	"minSupportedVersion":         {"Min"},
	"name":                        {"Topic"},
	"newIsrWithEpochs":            {"NewEpochISR"},
	"nodeEndpoints":               {"Brokers"},
	"partitionData":               {"Partitions"},
	"partitionErrorCode":          {"ErrorCode"},
	"partitionId":                 {"Partition"},
	"partitionIndex":              {"Partition"},
	"partitionIndexes":            {"Partitions"},
	"partitionResponses":          {"Partitions"},
	"partitionResult":             {"Partitions"},
	"partitionSize":               {"Size"},
	"partitions":                  {"NumPartitions"},
	"path":                        {"Dir"},
	"patternType":                 {"ResourcePatternType"},
	"patternTypeFilter":           {"ResourcePatternType"},
	"protocolData":                {"Protocol"},
	"protocolName":                {"Protocol"},
	"rackId":                      {"Rack"},
	"rebalanceTimeout":            {"RebalanceTimeoutMs"},
	"recordErrors":                {"ErrorRecords"},
	"records":                     {"RecordBatches"},
	"renewPeriodMs":               {"RenewTimeMillis"},
	"replicaDirectoryId":          {"CandidateDirectoryID"},
	"replicaElectionResults":      {"Topics"},
	"replicaEpoch":                {"CandidateEpoch", "Epoch"},
	"replicaId":                   {"CandidateID", "ID"},
	"replicaNodes":                {"Replicas"},
	"resourceName":                {"Name"},
	"resourceType":                {"Type"},
	"responses":                   {"Topics", "Resources"},
	"results":                     {"Topics", "Resources", "Dirs", "Groups"},
	"resultsByPartition":          {"Partitions"},
	"resultsByTopicV3AndBelow":    {"Topics"},
	"resultsByTransaction":        {"Transactions"},
	"sessionTimeout":              {"SessionTimeoutMs"},
	"subscribedTopicNames":        {"SubscribedTopics"},
	"synonyms":                    {"ConfigSynonyms"},
	"throttleTimeMs":              {"ThrottleMillis"},
	"tokens":                      {"TokenDetails"},
	"topicAuthorizedOperations":   {"AuthorizedOperations"},
	"topicConfigErrorCode":        {"ConfigErrorCode"},
	"topicConfigs":                {"Configs"},
	"topicData":                   {"Topics"},
	"topicId":                     {"TopidID"},
	"topicName":                   {"Topic"},
	"topicPartitions":             {"Topics"},
	"topicResults":                {"Topics"},
	"transactionResult":           {"Committed"},
	"transactionStartTimeMs":      {"StartTimestamp"},
	"transactionState":            {"State"},
	"transactionTimeoutMs":        {"TimeoutMillis"},
	"transactionalId":             {"TransactionID"},
	"unalignedRecords":            {"Bytes"},
}

// newFields are tagged fields that kmsg writes in every flexible version, though Kafka has them only from this one on
// and refuses them before: whoever fills a message must know.
var newFields = map[string]int16{
	"ProduceResponseTopicPartition.CurrentLeader":           10,
	"ProduceResponse.Brokers":                               10,
	"FetchRequest.ReplicaState":                             15,
	"FetchRequestTopicPartition.ReplicaDirectoryID":         17,
	"FetchRequestTopicPartition.HighWatermark":              18,
	"FetchResponse.Brokers":                                 16,
	"VoteResponse.NodeEndpoints":                            1,
	"BeginQuorumEpochResponse.NodeEndpoints":                1,
	"EndQuorumEpochResponse.NodeEndpoints":                  1,
	"FetchSnapshotRequestTopicPartition.ReplicaDirectoryID": 1,
	"FetchSnapshotResponse.NodeEndpoints":                   1,
	"BrokerHeartbeatRequest.OfflineLogDirs":                 1,
	"BrokerHeartbeatRequest.CordonedLogDirs":                2,
}

// neverNull are fields that kmsg writes as null when they are nil, though Kafka refuses that.
var neverNull = map[string]bool{
	"ShareFetchResponseTopicPartition.Records": true,
}

// unknownAt says whether -1 stands in the field when the bytes were of a version that does not have it.
func unknownAt(t reflect.Type, field string) bool {
	switch t.Name() + "." + field {
	case "OffsetCommitValue.LeaderEpoch", "OffsetCommitValue.ExpireTimestamp",
		"GroupMetadataValue.CurrentStateTimestamp", "GroupMetadataMember.RebalanceTimeoutMs":
		return true
	}
	return false
}
