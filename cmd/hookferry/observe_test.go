//go:build !windows

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/hookferry/analytics/internal/testkit"
)

// TestServeExportsMetricsAndSpans runs the server with an OTLP receiver that the environment
// names. One call makes one trace, and the webhook continues that trace. The metrics count the
// call. The server sends its last spans when it stops.
func TestServeExportsMetricsAndSpans(t *testing.T) {
	const traceID, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var mu sync.Mutex
	var spans []string
	traces := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var export coltrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &export); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range export.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, s := range scope.Spans {
					spans = append(spans, s.Name+" "+hex.EncodeToString(s.TraceId))
				}
			}
		}
	}))
	defer traces.Close()
	webhooks := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { webhooks <- r.Header.Get("traceparent") }))
	defer receiver.Close()

	server, address := start(t, t.TempDir(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + traces.URL}, `msg=listening address=(\S+)`,
		"hookferry", "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--write-key", "key", "--webhook", receiver.URL)
	admin := await(t, server, `page is at" url=(\S+)/`)

	r, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/track", strings.NewReader(`{"writeKey":"key","userId":"u1","event":"Paid"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("traceparent", "00-"+traceID+"-"+caller+"-01")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("the answer to the call is %s, want 200", a.Status)
	}
	parent := <-webhooks
	// The server begins a trace of its own, as it trusts no client.
	if len(parent) != 55 || strings.Contains(parent, traceID) || strings.Contains(parent, caller) || !strings.HasSuffix(parent, "-01") {
		t.Fatalf("the webhook's traceparent is %q, want a sampled trace that is not the client's", parent)
	}
	own := parent[3:35]

	// The server counts the outcome once it is stored, soon after the answer.
	want := []string{
		`hookferry_calls_accepted_total{source="default"} 1`,
		`hookferry_deliveries_delivered_total{destination="default"} 1`,
		`hookferry_http_requests_total{code="200"} 1`,
	}
	testkit.Until(t, fmt.Sprintf("the metrics have %q", want), func() bool {
		a, err := http.Get(admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(body), "\n")
		return !slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(lines, line) })
	})
	stop(t, server)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(spans)
	if d := cmp.Diff([]string{"attempt " + own, "deliver " + own, "put " + own, "receive " + own}, spans); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}
