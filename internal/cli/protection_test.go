package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node that is asked for protection which it cannot give does not start: it would be open to everybody.
func TestUnservedProtectionIsRefused(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"SASL_SSL":   {"listeners=SASL_SSL://127.0.0.1:0,CONTROLLER://127.0.0.1:0"},
		"EXTERNAL":   {"listeners=EXTERNAL://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "listener.security.protocol.map=EXTERNAL:SSL,CONTROLLER:PLAINTEXT"},
		"CONTROLLER": {"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"},
		"authorizer": {"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			args := []string{"serve", "--data-dir", dir, "--set", "http.listen="}
			for _, s := range settings {
				args = append(args, "--set", s)
			}
			var out, errs bytes.Buffer
			if code := Execute(args, strings.NewReader(""), &out, &errs); code != 1 || !strings.Contains(errs.String(), name) {
				t.Errorf("status %d, standard error %q", code, errs.String())
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the data directory: %v", err)
			}
		})
	}
}
