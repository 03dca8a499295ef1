package wire

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Null and negative lengths of collections that may be neither are found; null where it is allowed, empty ones, bytes
// behind the request and unknown tagged fields are not.
func TestCheckCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		req  kmsg.Request
		body []byte
		bad  bool
	}{
		"empty":                {&kmsg.DeleteGroupsRequest{Version: 0}, []byte{0, 0, 0, 0}, false},
		"null":                 {&kmsg.DeleteGroupsRequest{Version: 0}, []byte{0xff, 0xff, 0xff, 0xff}, true},
		"negative":             {&kmsg.DeleteGroupsRequest{Version: 0}, []byte{0xff, 0xff, 0xff, 0xf0}, true},
		"compact empty":        {&kmsg.DeleteGroupsRequest{Version: 2}, []byte{1, 0}, false},
		"compact null":         {&kmsg.DeleteGroupsRequest{Version: 2}, []byte{0, 0}, true},
		"compact negative":     {&kmsg.DeleteGroupsRequest{Version: 2}, []byte{0xf0, 0xff, 0xff, 0xff, 0x0f, 0}, true},
		"trailing":             {&kmsg.DeleteGroupsRequest{Version: 2}, []byte{1, 0, 0, 0}, false},
		"tagged":               {&kmsg.DeleteGroupsRequest{Version: 2}, []byte{1, 1, 9, 1, 7}, false},
		"allowed null":         {&kmsg.MetadataRequest{Version: 1}, []byte{0xff, 0xff, 0xff, 0xff}, false},
		"allowed compact null": {&kmsg.MetadataRequest{Version: 12}, []byte{0, 0, 0, 0}, false},
		"a null inside":        {&kmsg.OffsetDeleteRequest{Version: 0}, []byte{0, 1, 'g', 0, 0, 0, 1, 0, 1, 't', 0xff, 0xff, 0xff, 0xff}, true},
	} {
		if err := c.req.ReadFrom(c.body); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := CheckCounts(c.req, c.body); errors.Is(err, ErrMalformed) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
