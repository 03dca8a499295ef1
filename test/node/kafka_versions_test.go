package node

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// notYet are the APIs that Apache Kafka advertises and Stele does not, by the capability that brings each.
var notYet = map[int16]string{
	17: "security", 36: "security",
	76: "share groups", 77: "share groups", 78: "share groups", 79: "share groups", 83: "share groups", 84: "share groups", 85: "share groups", 86: "share groups", 87: "share groups",
	90: "share groups", 91: "share groups", 92: "share groups",
	88: "streams groups", 89: "streams groups", 93: "streams groups",
	52: "never: Kafka's own consensus", 53: "never: Kafka's own consensus", 54: "never: Kafka's own consensus", 82: "never: Kafka's own consensus",
}

// featuresNotYet likewise.
var featuresNotYet = map[string]string{
	"share.version": "share groups", "streams.version": "streams groups",
}

// offByDefault are features that are served and that a new cluster of Kafka's begins with, and one of ours does not.
var offByDefault = map[string]string{"eligible.leader.replicas.version": "has to be turned on"}

// recordedVersions is what Apache Kafka answered to ApiVersions.
func recordedVersions(t *testing.T, name string, version int16) *kmsg.ApiVersionsResponse {
	t.Helper()
	text, err := os.ReadFile("../reference/testdata/kafka-4.4.0/api/ApiVersions-" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = version
	if err := resp.ReadFrom(b[4:]); err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestSameVersionsAsKafka(t *testing.T) {
	// On either listener, every version of ApiVersions advertises Apache Kafka's keys with Kafka's whole ranges, and its features; what is missing is listed with the capability that brings it, and nothing more is there.
	t.Parallel()
	n := start(t)
	for listener, dial := range map[string]func() *client{
		"broker":     func() *client { return n.dial(t) },
		"controller": func() *client { return n.controller(t) },
	} {
		for version := int16(0); version <= 5; version++ {
			kafka := recordedVersions(t, listener+"-v"+string(rune('0'+version)), version)
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "node-test", "1"
			ours := do[*kmsg.ApiVersionsResponse](dial(), version, req)
			have := map[int16]kmsg.ApiVersionsResponseApiKey{}
			for _, k := range ours.ApiKeys {
				have[k.ApiKey] = k
			}
			for _, want := range kafka.ApiKeys {
				got, ok := have[want.ApiKey]
				delete(have, want.ApiKey)
				name, why := kmsg.NameForKey(want.ApiKey), notYet[want.ApiKey]
				switch {
				case ok && why != "":
					t.Errorf("%s v%d: %s is served now; take it off the list", listener, version, name)
				case !ok && why == "":
					t.Errorf("%s v%d: %s %d to %d is missing", listener, version, name, want.MinVersion, want.MaxVersion)
				case ok && (got.MinVersion != want.MinVersion || got.MaxVersion != want.MaxVersion):
					t.Errorf("%s v%d: %s is %d to %d, at Kafka %d to %d", listener, version, name, got.MinVersion, got.MaxVersion, want.MinVersion, want.MaxVersion)
				}
			}
			for key := range have {
				t.Errorf("%s v%d: Kafka does not advertise %s here", listener, version, kmsg.NameForKey(key))
			}
			sameFeatures(t, kafka, ours)
			if ours.ErrorCode != kafka.ErrorCode || ours.ThrottleMillis != kafka.ThrottleMillis || ours.ZkMigrationReady != kafka.ZkMigrationReady {
				t.Errorf("%s v%d: %+v", listener, version, ours)
			}
		}
	}
}

func sameFeatures(t *testing.T, kafka, ours *kmsg.ApiVersionsResponse) {
	t.Helper()
	supported := map[string][2]int16{}
	for _, f := range ours.SupportedFeatures {
		supported[f.Name] = [2]int16{f.MinVersion, f.MaxVersion}
	}
	for _, f := range kafka.SupportedFeatures {
		got, ok := supported[f.Name]
		delete(supported, f.Name)
		if why := featuresNotYet[f.Name]; ok == (why != "") || ok && got != [2]int16{f.MinVersion, f.MaxVersion} {
			t.Errorf("v%d: feature %s is %v, there %t, at Kafka %d to %d", ours.Version, f.Name, got, ok, f.MinVersion, f.MaxVersion)
		}
	}
	finalized := map[string][2]int16{}
	for _, f := range ours.FinalizedFeatures {
		finalized[f.Name] = [2]int16{f.MinVersionLevel, f.MaxVersionLevel}
	}
	for _, f := range kafka.FinalizedFeatures {
		got, ok := finalized[f.Name]
		delete(finalized, f.Name)
		if why := featuresNotYet[f.Name] + offByDefault[f.Name]; ok == (why != "") || ok && got != [2]int16{f.MinVersionLevel, f.MaxVersionLevel} {
			t.Errorf("v%d: feature %s is finalized at %v, there %t, at Kafka at %d", ours.Version, f.Name, got, ok, f.MaxVersionLevel)
		}
	}
	for name := range supported {
		t.Errorf("v%d: Kafka does not have feature %s", ours.Version, name)
	}
	for name := range finalized {
		t.Errorf("v%d: Kafka has not finalized %s", ours.Version, name)
	}
}

func TestRebootstrapRequired(t *testing.T) {
	// ApiVersions 5 to another cluster or node than the client looks for is REBOOTSTRAP_REQUIRED at a broker and nothing at a controller; half a name is 42 at both; none, and the right one, pass: as recorded from Apache Kafka.
	t.Parallel()
	n := start(t)
	cluster := do[*kmsg.DescribeClusterResponse](n.dial(t), 0, kmsg.NewPtrDescribeClusterRequest()).ClusterID
	for listener, dial := range map[string]func() *client{
		"broker":     func() *client { return n.dial(t) },
		"controller": func() *client { return n.controller(t) },
	} {
		for name, row := range map[string]struct {
			cluster *string
			node    int32
		}{
			"other-cluster":   {kmsg.StringPtr("another"), 1},
			"other-node":      {&cluster, 7},
			"right-node":      {&cluster, 1},
			"node-no-cluster": {nil, 1},
		} {
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "node-test", "1"
			req.ClusterID, req.NodeID = row.cluster, row.node
			c := dial()
			got, want := do[*kmsg.ApiVersionsResponse](c, 5, req), recordedVersions(t, listener+"-"+name+"-v5", 5)
			if got.ErrorCode != want.ErrorCode || (len(got.ApiKeys) == 0) != (len(want.ApiKeys) == 0) {
				t.Errorf("%s, %s: error %d with %d APIs, at Kafka %d with %d", listener, name, got.ErrorCode, len(got.ApiKeys), want.ErrorCode, len(want.ApiKeys))
			}
			// The connection goes on in any case.
			if got := do[*kmsg.ApiVersionsResponse](c, 4, apiVersions()); got.ErrorCode != 0 {
				t.Errorf("%s, %s, then v4: %d", listener, name, got.ErrorCode)
			}
		}
	}
}
