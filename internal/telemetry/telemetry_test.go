package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// /readyz is 503 with a line for each condition that does not hold, 200 when all do, and 503 again when one
// is lost; /livez and /metrics answer throughout.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	ready := NewReadiness("metadata", "listeners")
	metrics := NewRegistry()
	e, err := Start("127.0.0.1:0", Handler(metrics, ready))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	base := "http://" + e.Addr().String()
	code, body := get(t, base+"/readyz")
	if code != 503 || body != "listeners: has not been reached yet\nmetadata: has not been reached yet\n" {
		t.Fatalf("%d %q", code, body)
	}
	ready.Met("listeners")
	ready.Met("metadata")
	if code, body = get(t, base+"/readyz"); code != 200 || body != "ready\n" {
		t.Fatalf("%d %q", code, body)
	}
	ready.NotMet("metadata", "is 12 s behind")
	if code, body = get(t, base+"/readyz"); code != 503 || body != "metadata: is 12 s behind\n" {
		t.Fatalf("%d %q", code, body)
	}
	if code, _ = get(t, base+"/livez"); code != 200 {
		t.Fatalf("livez: %d", code)
	}
	if code, body = get(t, base+"/metrics"); code != 200 || !strings.Contains(body, "\ngo_goroutines ") {
		t.Fatalf("metrics: %d %q", code, body)
	}
	if code, body = get(t, base+"/debug/pprof/"); code != 200 || !strings.Contains(body, "goroutine") {
		t.Fatalf("pprof: %d", code)
	}
	if _, err := Start(e.Addr().String(), nil); err == nil || !strings.Contains(err.Error(), "http.listen") {
		t.Fatalf("got %v", err)
	}
}

// Samples come out by family and in order, with labels that hold any bytes.
func TestMetricsText(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	var catalog Catalog
	m := catalog.Counter("stele_things_total", "Things, \\ and\nmore.", "")
	bytes := catalog.Gauge("stele_a_bytes", "A.", "")
	took := catalog.Histogram("stele_took_seconds", "Took.", "kafka:name=Took")
	var d Durations
	for _, each := range []time.Duration{0, 100 * time.Microsecond, 101 * time.Microsecond, time.Minute} {
		d.Observe(each)
	}
	r.Register(func(s Sink) { s.Value(m, 3, "name", "b", "other", "x") })
	r.Register(func(s Sink) {
		s.Value(m, 1.5, "name", "a\"\n\\\xff", "other", "")
		s.Value(bytes, 1<<40)
		s.Durations(took, &d, "api", "Fetch")
	})
	if names := catalog.Metrics(); len(names) != 3 || names[2].Kafka != "kafka:name=Took" || d.Count() != 4 {
		t.Errorf("%v, %d", names, d.Count())
	}
	out := httptest.NewRecorder()
	r.Handler().ServeHTTP(out, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		"# HELP stele_a_bytes A.\n# TYPE stele_a_bytes gauge\nstele_a_bytes 1.099511627776e+12\n",
		"# HELP stele_things_total Things, \\\\ and\\nmore.\n# TYPE stele_things_total counter\n",
		"stele_things_total{name=\"a\\\"\\n\\\\\uFFFD\",other=\"\"} 1.5\n", "stele_things_total{name=\"b\",other=\"x\"} 3\n",
		"\ngo_goroutines ",
		"stele_took_seconds_bucket{api=\"Fetch\",le=\"0.0001\"} 2\n", "stele_took_seconds_bucket{api=\"Fetch\",le=\"0.00025\"} 3\n",
		"stele_took_seconds_bucket{api=\"Fetch\",le=\"30\"} 3\n", "stele_took_seconds_bucket{api=\"Fetch\",le=\"+Inf\"} 4\n",
		"stele_took_seconds_sum{api=\"Fetch\"} 60.000201\n", "stele_took_seconds_count{api=\"Fetch\"} 4\n",
	} {
		if !strings.Contains(out.Body.String(), want) {
			t.Errorf("no %q in\n%s", want, out.Body.String())
		}
	}
}

// Formats and levels are what the settings say; anything else is refused by name.
func TestNewLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, level, err := NewLogger(&out, "JSON", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "epoch", 3)
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud","epoch":3`) {
		t.Fatalf("got %q", got)
	}
	level.Set(slog.LevelInfo)
	if log.Info("quiet no more"); !strings.Contains(out.String(), "quiet no more") {
		t.Fatalf("the level does not change: %q", out.String())
	}
	for _, bad := range [][2]string{{"xml", ""}, {"", "loudest"}} {
		if _, _, err := NewLogger(&out, bad[0], bad[1]); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}
