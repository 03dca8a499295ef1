package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/config"
)

// A setting that nothing reads is marked Accepted, so that whoever sets it is warned at start and finds it in the
// right part of the reference: believed protection or limits that are not there are worse than none.
func TestSettingsThatNothingReadsSaySo(t *testing.T) {
	t.Parallel()
	definition := regexp.MustCompile(`^\s*\{Name: "[^"]+"`)
	doc := regexp.MustCompile(`Doc: ".*"`)
	var code strings.Builder
	for _, path := range files(t) {
		if isTest(path) || !under(path, "internal", "cmd") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if under(path, "internal/config") && definition.MatchString(line) {
				line = doc.ReplaceAllString(definition.ReplaceAllString(line, ""), "") // its alternates are what it reads
			}
			code.WriteString(line)
		}
	}
	for _, d := range config.BrokerDefs() {
		if !d.Accepted && !strings.Contains(code.String(), `"`+d.Name+`"`) {
			t.Errorf("%s is read nowhere: mark it Accepted until it is", d.Name)
		}
	}
}
