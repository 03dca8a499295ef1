package differential

import (
	"cmp"
	"encoding/binary"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Difference is one difference between Apache Kafka and Stele that was looked at and accepted.
type Difference struct {
	ID     string
	What   string // Kafka's behaviour and Stele's
	Reason string
	// Rare says that some runs do not see it, as it takes a request that few seeds make; the others must.
	Rare bool
	// Matches says that a finding is this difference and nothing else.
	Matches func(f Finding) bool
}

// Accepted is the whole list. docs/compatibility.md is generated from it.
var Accepted = []Difference{
	{"unserved-apis", "ApiVersions lists APIs and features that Stele does not serve yet", "what is not served is not advertised; the table above says which they are", always,
		func(f Finding) bool {
			if f.Key != apiVersions {
				return false
			}
			return f.at("ApiKeys[]") && f.Stele == absent && !slices.Contains(NodeKeys, int16(f.kafkaInt("ApiKey"))) || f.at("ApiKeys[] (count)") ||
				f.at("SupportedFeatures[]", "FinalizedFeatures[]") && f.Stele == absent && slices.Contains(unservedFeatures, f.kafkaText("Name")) ||
				f.at("SupportedFeatures[] (count)", "FinalizedFeatures[] (count)")
		}},
	{"message-text", "the words of an error message, and of the documentation of a setting", "texts are for people; both say what is wrong, Stele in its own words", always,
		func(f Finding) bool {
			return f.ends("ErrorMessage", "Documentation") && f.Kafka != null && f.Stele != null && (f.Kafka == `""`) == (f.Stele == `""`)
		}},
	{"message-missing", "an error goes with a message where Kafka sends none, or an empty one, or the other way round", "the code says the same; a message more helps, one less is one that says no more than the code", always,
		func(f Finding) bool {
			return f.ends("ErrorMessage") && (f.Kafka == null || f.Stele == null || f.Kafka == `""` || f.Stele == `""`) && f.kafkaInt("ErrorCode") != 0 && f.steleInt("ErrorCode") != 0
		}},
	{"order", "the order of topics, partitions, groups, settings or members in an answer", "Kafka's comes from hash tables, or has what is refused in a place of its own; Stele keeps the order of the request, or goes by name", always,
		func(f Finding) bool { return strings.HasSuffix(f.bare(), " (order)") }},
	{"named-twice", "a topic, partition, resource, group, protocol or type of entity that one request names twice", "Kafka keeps one of them, which one depends on a hash table, or refuses; Stele does what it is told for each, or refuses both", always,
		func(f Finding) bool {
			if req, ok := f.Request.(*kmsg.DeleteTopicsRequest); ok && f.Version >= 6 && nameAndID(req) {
				return true
			}
			if req, ok := f.Request.(*kmsg.AlterClientQuotasRequest); ok && slices.ContainsFunc(req.Entries, sameTypeTwice) {
				return true
			}
			return f.Request != nil && namesTwice(f.Request)
		}},
	{"nothing-named", "a Metadata request for a topic with neither name nor id: Kafka answers UNKNOWN_SERVER_ERROR as a whole", "Kafka's handler fails; Stele answers INVALID_REQUEST for that topic, and the others by themselves", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.MetadataRequest)
			nothing := ok && slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.Topic == nil && t.TopicID == [16]byte{} })
			if answer, ok := f.KafkaAnswer.(kmsg.MetadataResponse); ok && f.Version < 13 { // there, each topic has the error, and nothing else is said
				return nothing && len(answer.Brokers) == 0 && len(answer.Topics) > 0 && answer.Topics[0].ErrorCode == -1
			}
			return nothing && f.at("ErrorCode") && f.kafkaInt("ErrorCode") == -1
		}},
	{"invalid-name-spoils", "DescribeTopicPartitions with a name that no topic may have: Kafka answers UNKNOWN_SERVER_ERROR for every topic of the request", "Kafka's handler fails; Stele answers INVALID_TOPIC_EXCEPTION for that name, and each of the others by itself", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.DescribeTopicPartitionsRequest)
			return ok && strings.HasPrefix(f.bare(), "Topics[].") && f.kafkaInt("ErrorCode") == -1 &&
				slices.ContainsFunc(req.Topics, func(t kmsg.DescribeTopicPartitionsRequestTopic) bool {
					return !validTopic.MatchString(t.Topic) || t.Topic == "." || t.Topic == ".."
				})
		}},
	{"broken-utf8", "a name that is no UTF-8, in an answer", "Kafka puts U+FFFD in the place of what it cannot read; Stele sends back what it got", always,
		func(f Finding) bool {
			return f.Malformed && (f.Kafka == absent || f.Stele == absent || f.ends("ResourceName", "Topic", "Group")) && strings.Contains(f.Kafka+f.Stele, "\ufffd") || f.Malformed && strings.Contains(f.Stele, `\ufffd`)
		}},
	{"empty-topic", "a topic without partitions in the request", "Kafka leaves it out of the answer; Stele answers with the topic and no partitions", always,
		func(f Finding) bool {
			return f.Request != nil && emptyTopic(f.Request) && (strings.HasPrefix(f.Path, "Topics[]"))
		}},
	{"no-answer", "Kafka leaves a request without an answer, for ever", "its handler failed (Produce with records of null, AlterConfigs with a resource twice); Stele answers with an error, or closes the connection when the request is malformed", always,
		func(f Finding) bool {
			return f.bare() == "(fate)" && f.Kafka == "silent" && (f.Key == produce || f.Key == 33) && !strings.HasPrefix(f.Stele, "silent")
		}},
	{"unchecked-records", "Kafka answers UNKNOWN_SERVER_ERROR to records it cannot read", "INVALID_RECORD, and CORRUPT_MESSAGE, say that the producer is at fault and must not retry", always,
		func(f Finding) bool {
			return f.Key == produce && f.kafkaInt("ErrorCode") == -1 && (f.steleInt("ErrorCode") == 87 || f.steleInt("ErrorCode") == 2)
		}},
	{"stricter-records", "Kafka stores records with a delete horizon, with offset deltas other than 0, 1, 2 and so on, or with a timestamp type that is the server's to set", "readers would trust them: INVALID_RECORD", always,
		func(f Finding) bool {
			return f.Key == produce && f.kafkaInt("ErrorCode") == 0 && f.steleInt("ErrorCode") == 87
		}},
	{"marker-from-client", "a transaction marker that a client sends without a transactional id: Kafka answers TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_RECORD: no client may write markers, whatever its rights", always,
		func(f Finding) bool {
			return f.Key == produce && f.kafkaInt("ErrorCode") == 53 && f.steleInt("ErrorCode") == 87
		}},
	{"neighbours", "records in one partition that are no batch make Kafka refuse the whole produce request", "an error of one partition does not spoil the others", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.ProduceRequest)
			return ok && f.kafkaInt("ErrorCode") == 2 && f.steleInt("ErrorCode") != 2 && slices.ContainsFunc(req.Topics, func(t kmsg.ProduceRequestTopic) bool {
				return slices.ContainsFunc(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return !oneBatch(p.Records) })
			})
		}},
	{"impossible-producers", "a marker of a producer whose id or epoch, or of a version of transactions that, is below zero: Kafka answers UNKNOWN_SERVER_ERROR, to all that the request asks for or to that marker", "Kafka's handler fails; Stele answers INVALID_REQUEST for that marker, and writes the others", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.WriteTxnMarkersRequest)
			return ok && slices.ContainsFunc(req.Markers, func(m kmsg.WriteTxnMarkersRequestMarker) bool {
				return m.ProducerID < 0 || m.ProducerEpoch < 0 || m.TransactionVersion < 0
			})
		}},
	{"share-coordinator", "the coordinator of share groups, and its topic", "share groups are not served yet: INVALID_REQUEST", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FindCoordinatorRequest)
			return ok && req.CoordinatorType == 2 || f.inTopic("__share_group_state") || f.aboutResource("__share_group_state")
		}},
	{"limits-below-zero", "a fetch with a negative limit of bytes: Kafka answers UNKNOWN_SERVER_ERROR", "taken for 0: the first batch is returned", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FetchRequest)
			return ok && negativeLimit(req) && strings.HasPrefix(f.Path, "Topics[].Partitions[]")
		}},
	{"isolation-level", "an isolation level that does not exist: Kafka answers UNKNOWN_SERVER_ERROR", "taken for read_uncommitted", always,
		func(f Finding) bool {
			switch req := f.Request.(type) {
			case *kmsg.FetchRequest:
				return req.IsolationLevel < 0 || req.IsolationLevel > 1
			case *kmsg.ListOffsetsRequest:
				return req.IsolationLevel < 0 || req.IsolationLevel > 1
			}
			return false
		}},
	{"extreme-session", "a fetch that ends the session of the smallest or largest number there is: Kafka answers UNKNOWN_SERVER_ERROR", "Kafka's handler fails; in Stele these are two more numbers that no session has", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FetchRequest)
			return ok && (req.SessionID == math.MinInt32 || req.SessionID == math.MaxInt32) && f.at("ErrorCode") && f.kafkaInt("ErrorCode") == -1
		}},
	{"zero-topic-id", "a fetch of several partitions of a topic whose id is all zeros: Kafka answers UNKNOWN_SERVER_ERROR as a whole", "Kafka's handler fails; Stele answers UNKNOWN_TOPIC_ID for that topic, and serves the others", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FetchRequest)
			return ok && f.Version >= 13 && f.at("ErrorCode") && f.kafkaInt("ErrorCode") == -1 &&
				slices.ContainsFunc(req.Topics, func(t kmsg.FetchRequestTopic) bool { return t.TopicID == [16]byte{} && len(t.Partitions) > 1 })
		}},
	{"aborted-null", "no aborted transactions: null or empty", "both mean none", always,
		func(f Finding) bool {
			return f.Key == fetch && f.ends("AbortedTransactions") && (f.Kafka == null || f.Stele == null)
		}},
	{"empty-session", "a full fetch without partitions", "Kafka opens a session that ends with the next request; Stele opens none", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FetchRequest)
			return ok && f.at("SessionID") && f.Stele == "0" && !slices.ContainsFunc(req.Topics, func(t kmsg.FetchRequestTopic) bool { return len(t.Partitions) > 0 })
		}},
	{"fetch-as-replica", "a fetch by a replica is told the leader's address too when it asks the wrong one", "Kafka tells consumers alone", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.FetchRequest)
			return ok && (req.ReplicaID >= 0 || req.ReplicaState.ID >= 0) && f.at("Brokers[]", "Brokers[] (count)")
		}},
	{"group-shells", "a classic group without members and offsets: after a join that failed, or when its last offset is gone", "Kafka lists it as Empty until a cleanup, up to ten minutes later; in Stele it does not exist", always,
		func(f Finding) bool {
			switch f.Key {
			case 15:
				return f.kafkaText("State") == "Empty" && f.steleText("State") == "Dead"
			case 16:
				return f.at("Groups[] (count)") || f.at("Groups[]") && f.Stele == absent && f.kafkaText("ProtocolType") == ""
			case 42:
				return f.ends("ErrorCode") && f.Kafka == "0" && f.Stele == "69"
			case 47:
				return f.steleTop(69)
			}
			return false
		}},
	{"protocol-names", "which protocol a group gets when a member has no preference, or names one twice or by the empty string", "unspecified; Stele goes by the leader's list", always,
		func(f Finding) bool { return f.Key == 11 && f.at("Protocol") && f.Stele != null }},
	{"colliding-topics", "two topics in one request whose names differ in dots and underscores alone", "Kafka makes both, though it refuses the second when it comes in a request of its own; Stele refuses it always", always,
		func(f Finding) bool {
			return f.Key == 19 && f.kafkaInt("ErrorCode") == 0 && f.steleInt("ErrorCode") == 17
		}},
	{"eligible-leaders", "min.insync.replicas with eligible leader replicas, which Kafka turns on in a new cluster: a cluster-wide value, and none for single brokers", "served, and off in a new cluster", always,
		func(f Finding) bool {
			switch f.Key {
			case 18:
				return f.at("FinalizedFeatures[]", "FinalizedFeatures[] (count)") && f.Stele == absent && f.kafkaText("Name") == "eligible.leader.replicas.version"
			case 19, 32:
				return f.eitherText("Name") == "min.insync.replicas" || f.Stele == absent && strings.Contains(f.Kafka, `"min.insync.replicas"`) || f.ends("ConfigSynonyms[] (count)") && strings.Contains(f.kafkaText("Name"), "min.insync.replicas")
			case 44:
				return f.ends("ErrorCode", "ErrorMessage") && alters(f.Request, "min.insync.replicas")
			}
			return false
		}},
	{"unknown-operation", "an operation of IncrementalAlterConfigs that does not exist: Kafka answers UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", always,
		func(f Finding) bool {
			return f.Key == 44 && f.kafkaInt("ErrorCode") == -1 && f.steleInt("ErrorCode") == 42
		}},
	{"own-addresses", "settings that hold a server's own address, directory or id", "each has its own", always,
		func(f Finding) bool {
			return f.Key == 32 && f.ends("Value") && slices.Contains(ownSettings, f.kafkaText("Name"))
		}},
	{"own-settings", "broker settings that only one of the two has", "Stele has some of its own, and none for what it does not do", always,
		func(f Finding) bool {
			return f.Key == 32 && (f.at("Resources[].Configs[]") && f.brokerResource() && (f.Kafka == absent || f.Stele == absent) || f.at("Resources[].Configs[] (count)") && f.brokerResource())
		}},
	{"own-defaults", "defaults of replication factors and minimum ISRs of internal topics, of log.dirs and listeners", "one node with no configuration works", always,
		func(f Finding) bool {
			return f.Key == 32 && f.brokerResource() && slices.Contains(ownDefaults, f.eitherText("Name"))
		}},
	{"broker-listeners", "listeners that leave out the controller's: Kafka refuses them at once", "Stele looks at them at the next start", always,
		func(f Finding) bool {
			return f.Key == 44 && alters(f.Request, "listeners") && f.kafkaInt("ErrorCode") == 42 && f.steleInt("ErrorCode") == 0
		}},
	{"kraft-version", "kraft.version can be raised with UpdateFeatures", "Stele's voters are fixed, or changed in another way: INVALID_UPDATE_VERSION", always,
		func(f Finding) bool {
			req, ok := f.Request.(*kmsg.UpdateFeaturesRequest)
			return ok && slices.ContainsFunc(req.FeatureUpdates, func(u kmsg.UpdateFeaturesRequestFeatureUpdate) bool { return u.Feature == "kraft.version" })
		}},
	{"negative-records", "records of a negative length in a compact layout, in a damaged Produce", "Kafka takes them for null; Stele closes the connection, as with any other length that cannot be", rare,
		func(f Finding) bool {
			return f.Key == produce && f.Version >= 9 && f.Path == "(fate) [a negative count]" && f.Stele == "connection closed"
		}},
	{"failed-handler", "values that make no sense, or damaged bytes, to which Kafka answers UNKNOWN_SERVER_ERROR", "an exception of Kafka's that nobody has foreseen is no answer to go by; Stele says what is wrong, or takes the value for the nearest that makes sense", rare,
		func(f Finding) bool {
			return (f.Odd || f.Malformed) && f.ends("ErrorCode") && f.kafkaInt("ErrorCode") == -1 && f.steleInt("ErrorCode") != noNumber
		}},
	{"voter-directory", "DescribeQuorum shows no directory of a voter that stands in the configuration alone", "Stele knows it and shows it", always,
		func(f Finding) bool {
			return f.Key == 55 && f.ends("ReplicaDirectoryID") && strings.Trim(f.Kafka, "0") == ""
		}},
}

// Rare or not.
const (
	always = false
	rare   = true
)

const (
	produce     = 0
	fetch       = 1
	apiVersions = 18

	null   = "null"
	absent = "(absent)"
)

// NodeKeys are the APIs that one node serves, without coordinators of transactions, security, the newer group protocols and share groups.
var NodeKeys = []int16{0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 27, 32, 33, 35, 37, 42, 44, 47, 48, 49, 55, 57, 60, 61, 74, 75}

var unservedFeatures = []string{"transaction.version", "group.version", "share.version", "streams.version"}

var ownSettings = []string{"listeners", "advertised.listeners", "log.dirs", "log.dir", "controller.quorum.voters", "controller.quorum.bootstrap.servers", "node.id", "broker.id"}

var ownDefaults = []string{"offsets.topic.replication.factor", "transaction.state.log.replication.factor", "transaction.state.log.min.isr", "share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr",
	"listeners", "log.dirs", "log.dir", "node.id", "broker.id", "process.roles", "controller.listener.names", "advertised.listeners", "controller.quorum.voters"}

var validTopic = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

var damaged = regexp.MustCompile(` \[[^\]]*\]$`)

// bare is the path without what was done to the bytes of the request.
func (f Finding) bare() string { return damaged.ReplaceAllString(f.Path, "") }

func (f Finding) at(paths ...string) bool { return slices.Contains(paths, f.bare()) }

func (f Finding) ends(names ...string) bool {
	path := f.bare()
	return slices.ContainsFunc(names, func(name string) bool { return path == name || strings.HasSuffix(path, "."+name) })
}

func field(element any, name string) reflect.Value {
	if element == nil {
		return reflect.Value{}
	}
	v := reflect.ValueOf(element).FieldByName(name)
	for v.IsValid() && v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

const noNumber = -1 << 40

func number(element any, name string) int64 {
	if v := field(element, name); v.IsValid() && v.CanInt() {
		return v.Int()
	}
	return noNumber
}

func textOf(element any, name string) string {
	if v := field(element, name); v.IsValid() && v.Kind() == reflect.String {
		return v.String()
	}
	return ""
}

func (f Finding) kafkaInt(name string) int64   { return number(f.KafkaElement, name) }
func (f Finding) steleInt(name string) int64   { return number(f.SteleElement, name) }
func (f Finding) kafkaText(name string) string { return textOf(f.KafkaElement, name) }
func (f Finding) steleText(name string) string { return textOf(f.SteleElement, name) }

// eitherText is a text of the element, which only one of the two may have.
func (f Finding) eitherText(name string) string { return cmp.Or(f.kafkaText(name), f.steleText(name)) }

// aboutResource says that the finding is about a resource of that name, and that Kafka alone has it.
func (f Finding) aboutResource(name string) bool {
	return f.Key == 74 && f.Stele == absent && f.kafkaText("Name") == name ||
		(f.Key == 32 || f.Key == 33 || f.Key == 44) && f.at("Resources[].ErrorCode") && f.kafkaText("ResourceName") == name && f.kafkaInt("ErrorCode") == 0 && f.steleInt("ErrorCode") == 3
}

// steleTop says that Stele's answer as a whole has an error and Kafka's has none.
func (f Finding) steleTop(code int64) bool {
	return number(f.KafkaAnswer, "ErrorCode") == 0 && number(f.SteleAnswer, "ErrorCode") == code
}

// inTopic says that the finding is about one topic.
func (f Finding) inTopic(name string) bool {
	if f.kafkaText("Topic") == name || f.steleText("Topic") == name {
		return true
	}
	// Or that the request is about nothing else.
	names := map[string]bool{}
	if f.Request == nil {
		return false
	}
	topics := field(reflect.ValueOf(f.Request).Elem().Interface(), "Topics")
	if !topics.IsValid() || topics.Kind() != reflect.Slice || topics.Len() == 0 || topics.Type().Elem().Kind() != reflect.Struct {
		return false
	}
	for i := range topics.Len() {
		names[textOf(topics.Index(i).Interface(), "Topic")] = true
	}
	return names[name] && (f.Kafka == absent || f.Stele == absent || len(names) == 1 || strings.HasPrefix(f.bare(), "Topics[].Partitions[]"))
}

// brokerResource says that the request describes a broker.
func (f Finding) brokerResource() bool {
	req, ok := f.Request.(*kmsg.DescribeConfigsRequest)
	return ok && len(req.Resources) > 0 && req.Resources[0].ResourceType == kmsg.ConfigResourceTypeBroker
}

// sameTypeTwice says that a quota's entity has two parts of one type.
func sameTypeTwice(e kmsg.AlterClientQuotasRequestEntry) bool {
	seen := map[string]bool{}
	for _, part := range e.Entity {
		if seen[part.Type] {
			return true
		}
		seen[part.Type] = true
	}
	return false
}

// oneBatch says that records are a whole batch of the current format by their length and magic.
func oneBatch(b []byte) bool {
	return len(b) >= 61 && int64(binary.BigEndian.Uint32(b[8:]))+12 == int64(len(b)) && b[16] == 2
}

func negativeLimit(req *kmsg.FetchRequest) bool {
	if req.MaxBytes < 0 {
		return true
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if p.PartitionMaxBytes < 0 {
				return true
			}
		}
	}
	return false
}

func alters(req kmsg.Request, setting string) bool {
	r, ok := req.(*kmsg.IncrementalAlterConfigsRequest)
	return ok && slices.ContainsFunc(r.Resources, func(res kmsg.IncrementalAlterConfigsRequestResource) bool {
		return res.ResourceType == kmsg.ConfigResourceTypeBroker && slices.ContainsFunc(res.Configs, func(c kmsg.IncrementalAlterConfigsRequestResourceConfig) bool { return c.Name == setting })
	})
}

// namesTwice says that some collection of a request has two elements of the same name.
func namesTwice(req kmsg.Request) bool {
	byID := (req.Key() == produce || req.Key() == fetch) && req.GetVersion() >= 13 // names are not sent then
	return twice(reflect.ValueOf(req).Elem(), byID)
}

func twice(v reflect.Value, byID bool) bool {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Name != "UnknownTags" && twice(v.Field(i), byID) {
				return true
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return false
		}
		seen := map[any]bool{}
		for i := range v.Len() {
			e := v.Index(i)
			var name any
			switch e.Kind() {
			case reflect.Struct:
				var key [4]any
				for k, field := range []string{"Topic", "Partition", "ResourceName", "Name"} {
					if byID && field == "Topic" {
						field = "TopicID"
					}
					if f := e.FieldByName(field); f.IsValid() {
						if f.Kind() == reflect.Pointer && !f.IsNil() {
							f = f.Elem()
						}
						if f.Kind() != reflect.Pointer {
							key[k] = f.Interface()
						} else if id := e.FieldByName("TopicID"); id.IsValid() {
							key[k] = id.Interface()
						}
					}
				}
				name = key
			case reflect.String, reflect.Int32, reflect.Int8:
				name = e.Interface()
			}
			if name != nil && seen[name] {
				return true
			}
			seen[name] = true
			if twice(e, byID) {
				return true
			}
		}
	}
	return false
}

// nameAndID says that a request may mean one topic by its name and by its id.
func nameAndID(req *kmsg.DeleteTopicsRequest) bool {
	return slices.ContainsFunc(req.Topics, func(t kmsg.DeleteTopicsRequestTopic) bool { return t.TopicID != [16]byte{} }) &&
		slices.ContainsFunc(req.Topics, func(t kmsg.DeleteTopicsRequestTopic) bool { return t.Topic != nil })
}

// emptyTopic says that a request has a topic without partitions.
func emptyTopic(req kmsg.Request) bool {
	topics := field(reflect.ValueOf(req).Elem().Interface(), "Topics")
	if !topics.IsValid() || topics.Kind() != reflect.Slice || topics.Type().Elem().Kind() != reflect.Struct {
		return false
	}
	for i := range topics.Len() {
		if p := topics.Index(i).FieldByName("Partitions"); p.IsValid() && p.Kind() == reflect.Slice && p.Len() == 0 {
			return true
		}
	}
	return false
}
