package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// failing is a store of which a maintenance step fails.
type failing struct{ webhook.Store }

func (failing) Failing() map[string]time.Time {
	return map[string]time.Time{"upkeep": time.Unix(1_600_000_000, 0)}
}

// forwarded returns Metrics and their handler. The Metrics have seen one delivery of each kind: one
// arrived at once, one became a dead letter, one is retried, and one waits for a paused
// destination. forwarded is called in a bubble. alter may change the State, or be nil.
func forwarded(t *testing.T, alter func(*State)) (*Metrics, http.Handler) {
	t.Helper()
	network := webhooktest.NewNetwork()
	t.Cleanup(func() { network.Close() })
	network.Receiver("http://good.example/hook", "")
	network.Receiver("http://gone.example/hook", "", step.Answer(410))
	network.Receiver("http://slow.example/hook", "", step.Answer(503))
	destination := func(id string) webhook.Destination {
		return webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: "http://" + id + ".example/hook"}}}
	}
	m := New("v1.2.3", "go1.26")
	queue := testkit.Must(memqueue.Open(memqueue.Config{}))
	forwarder, err := webhook.New(webhook.Config{
		Store:        failing{queue},
		Destinations: []webhook.Destination{destination("good"), destination("gone"), destination("slow"), destination("paused")},
		DialContext:  network.DialContext,
		Observers:    []webhook.Observer{m},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	run := make(chan error, 1)
	go func() { run <- forwarder.Run(ctx) }()
	forwarder.Pause(t.Context(), "paused")
	for _, id := range []string{"good", "gone", "slow", "paused"} {
		track := &analytics.Track{UserId: "u1", Event: "Paid", MessageId: "m1"}
		if err := forwarder.Forward(ctx, id, track); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	for _, a := range []collector.Answered{
		{Source: "web", Status: http.StatusOK, Accepted: 7, BadTimes: 3, Rejected: 2, Took: 2 * time.Millisecond},
		{Source: "web", Status: http.StatusTooManyRequests, Took: time.Millisecond},
		{Status: http.StatusUnauthorized, Took: time.Millisecond},
		{Source: "app", Status: http.StatusServiceUnavailable, Took: time.Millisecond},
		{Status: 999, Took: time.Millisecond},
	} {
		m.Answered(&a)
	}

	state := State{
		Forwarder: forwarder,
		Store:     queue,
		StoreSize: func() (int64, error) { return 65536, nil },
		Settings: func() *config.Settings {
			return &config.Settings{Loaded: time.Unix(1_700_000_000, 0), Sources: []config.Source{{Name: "web"}, {Name: "idle"}}}
		},
		LogLinesLeftOut: func() uint64 { return 3 },
		Logger:          slog.New(slog.DiscardHandler),
	}
	if alter != nil {
		alter(&state)
	}
	t.Cleanup(func() {
		if err := forwarder.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-run; err != nil {
			t.Error(err)
		}
	})
	return m, m.Handler(state)
}

// scrape returns the lines of the answer with Hookferry's own metrics, without comments.
func scrape(t *testing.T, h http.Handler) []string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("the status of the scrape is %d, want 200: %s", w.Code, w.Body)
	}
	return slices.DeleteFunc(strings.Split(w.Body.String(), "\n"), func(line string) bool {
		return !strings.HasPrefix(line, "hookferry_")
	})
}

// TestScrapeReplacesInvalidUTF8: another program on the same store may use ids that are not UTF-8.
// Prometheus's client would panic over such a label, in a goroutine of its own.
func TestScrapeReplacesInvalidUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := forwarded(t, func(s *State) {
			now := time.Now()
			d := webhook.Delivery{Destination: "c\xffm", ID: "m1", Type: "track", Body: []byte("{}"), Accepted: now, Due: now.Add(time.Hour)}
			if err := s.Store.Put(t.Context(), []store.Put{{Delivery: d}}, make([]store.Result, 1)); err != nil {
				t.Fatal(err)
			}
		})
		m.Attempted(webhook.Attempted{Delivery: webhook.Delivery{Destination: "c\xffm"}, Outcome: webhook.OutcomeDelivered})
		lines := scrape(t, h)
		for _, want := range []string{
			"hookferry_deliveries_waiting{destination=\"c\uFFFDm\"} 1",
			"hookferry_webhook_requests_total{destination=\"c\uFFFDm\",outcome=\"delivered\",reason=\"\"} 1",
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the scrape lacks %s", want)
			}
		}
	})
}

// TestSeriesBeginAtZeroAfterTheFirstScrape shows that a destination has series with the value 0
// before its first dead letter, and a source before its first call. Prometheus and its alerts see no increase in a series that begins
// at 1.
func TestSeriesBeginAtZeroAfterTheFirstScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := forwarded(t, nil)
		scrape(t, h)
		lines := scrape(t, h)
		for _, want := range []string{
			`hookferry_deliveries_dead_total{destination="paused",reason="expired"} 0`,
			`hookferry_deliveries_delivered_total{destination="paused"} 0`,
			`hookferry_calls_accepted_total{source="idle"} 0`,
			`hookferry_calls_rejected_total{source="idle"} 0`,
			`hookferry_http_requests_limited_total{source="idle"} 0`,
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the second scrape lacks %s", want)
			}
		}
	})
}

func TestScrapeHasAllMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := forwarded(t, nil)
		lines := scrape(t, h)
		for _, want := range []string{
			`hookferry_build_info{goversion="go1.26",version="v1.2.3"} 1`,
			`hookferry_calls_accepted_total{source="app"} 0`,
			`hookferry_calls_accepted_total{source="web"} 7`,
			`hookferry_calls_bad_time_total{source="web"} 3`,
			`hookferry_calls_rejected_total{source="web"} 2`,
			`hookferry_config_last_reload_success_timestamp_seconds 1.7e+09`,
			`hookferry_config_last_reload_successful 1`,
			`hookferry_deliveries_accepted_total 4`,
			`hookferry_deliveries_dead_total{destination="gone",reason="refused"} 1`,
			`hookferry_deliveries_dead_total{destination="good",reason="expired"} 0`,
			`hookferry_deliveries_delivered_total{destination="gone"} 0`,
			`hookferry_deliveries_delivered_total{destination="good"} 1`,
			`hookferry_deliveries_in_flight 0`,
			`hookferry_deliveries_retried_total{destination="good"} 0`,
			`hookferry_deliveries_retried_total{destination="slow"} 1`,
			`hookferry_deliveries_oldest_due_timestamp_seconds{destination="paused"} 9.466848e+08`,
			`hookferry_deliveries_waiting{destination="paused"} 1`,
			`hookferry_delivery_duration_seconds_count 1`,
			`hookferry_destinations_held{destination="paused",hold="paused"} 1`,
			`hookferry_http_request_duration_seconds_count 5`,
			`hookferry_http_requests_limited_total{source="web"} 1`,
			`hookferry_http_requests_total{code="200"} 1`,
			`hookferry_http_requests_total{code="429"} 1`,
			`hookferry_http_requests_total{code="other"} 1`,
			`hookferry_http_requests_unavailable_total 1`,
			`hookferry_http_requests_unknown_key_total 1`,
			`hookferry_log_lines_left_out_total 3`,
			`hookferry_store_dead_letters 1`,
			`hookferry_store_deliveries 2`,
			`hookferry_store_maintenance_failing_timestamp_seconds{step="upkeep"} 1.6e+09`,
			`hookferry_store_size_bytes 65536`,
			`hookferry_webhook_request_duration_seconds_count{destination="good"} 1`,
			`hookferry_webhook_requests_total{destination="gone",outcome="permanent",reason="refused"} 1`,
			`hookferry_webhook_requests_total{destination="good",outcome="delivered",reason=""} 1`,
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the scrape lacks %s", want)
			}
		}
		if t.Failed() {
			t.Logf("scraped:\n%s", strings.Join(lines, "\n"))
		}
	})
}

// TestScrapeOmitsOnlyTheFailingMetric shows that a scrape leaves out only the metric whose source
// fails. The log has the error.
func TestScrapeOmitsOnlyTheFailingMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		_, h := forwarded(t, func(s *State) {
			s.StoreSize = func() (int64, error) { return 0, errors.New("no such file") }
			s.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		lines := scrape(t, h)
		if want := "hookferry_deliveries_accepted_total 4"; !slices.Contains(lines, want) {
			t.Errorf("the scrape lacks %s", want)
		}
		if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "hookferry_store_size") }); i >= 0 {
			t.Errorf("the scrape has the line %s, want none, as the size is unknown", lines[i])
		}
		if !strings.Contains(log.String(), "no such file") {
			t.Errorf("the log lacks the error of the size: %s", &log)
		}
	})
}

// TestNamesFollowConventions shows that the names of metrics follow the conventions of Prometheus.
func TestNamesFollowConventions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := forwarded(t, nil)
		problems, err := promlint.NewWithMetricFamilies(families(t, m)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

// families gathers Hookferry's own metrics.
func families(t *testing.T, m *Metrics) []*dto.MetricFamily {
	t.Helper()
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "hookferry_") })
}

// TestDocsListTheMetrics shows that the table of docs/metrics.md lists exactly the exported
// metrics.
func TestDocsListTheMetrics(t *testing.T) {
	var want []string
	synctest.Test(t, func(t *testing.T) {
		m, _ := forwarded(t, nil)
		for _, f := range families(t, m) {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, "`"+l.GetName()+"`")
			}
			want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |",
				f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()))
		}
	})
	var got []string
	for line := range strings.Lines(readText(t, "docs", "metrics.md")) {
		if strings.HasPrefix(line, "| `hookferry_") {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
	}
	for i := range want {
		want[i] = strings.Join(strings.Fields(want[i]), " ")
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/metrics.md (-exported +documented):\n%s", d)
	}
}

// TestQueriesUseExportedMetrics shows that the queries in the docs and the dashboard use only
// exported metrics and labels.
func TestQueriesUseExportedMetrics(t *testing.T) {
	exported, labels := map[string]bool{}, map[string]bool{"le": true, "instance": true, "job": true}
	synctest.Test(t, func(t *testing.T) {
		m, _ := forwarded(t, nil)
		all, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			suffixes := []string{""}
			if f.GetType() == dto.MetricType_HISTOGRAM {
				suffixes = []string{"_bucket", "_sum", "_count"}
			}
			for _, s := range suffixes {
				exported[f.GetName()+s] = true
			}
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels[l.GetName()] = true
			}
		}
	})
	for where, queries := range map[string][]string{
		"dashboard":       dashboardQueries(t),
		"docs/metrics.md": docQueries(t),
	} {
		if len(queries) < 3 {
			t.Errorf("%s: found %d queries, want at least 3", where, len(queries))
		}
		for _, q := range queries {
			names := regexp.MustCompile(`\b(?:hookferry|go|process)_\w+`).FindAllString(q, -1)
			if len(names) == 0 {
				t.Errorf("%s: the query %s names no metric", where, q)
			}
			for _, name := range names {
				if !exported[name] {
					t.Errorf("%s: the metric %s of the query %s is not exported", where, name, q)
				}
			}
			used := regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`).FindAllStringSubmatch(q, -1)
			for _, by := range regexp.MustCompile(`\b(?:by|without|on)\s*\(([^)]*)\)`).FindAllStringSubmatch(q, -1) {
				for label := range strings.SplitSeq(by[1], ",") {
					used = append(used, []string{"", strings.TrimSpace(label)})
				}
			}
			for _, u := range used {
				if !labels[u[1]] {
					t.Errorf("%s: no metric has the label %q of the query %s", where, u[1], q)
				}
			}
			if strings.Count(q, "(") != strings.Count(q, ")") {
				t.Errorf("%s: the parentheses of the query %s do not match", where, q)
			}
		}
	}
}

// dashboardQueries returns the queries of the Grafana dashboard, including those of its variables.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	var dashboard any
	if err := json.Unmarshal([]byte(readText(t, "deploy", "grafana", "hookferry.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var queries []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for key, e := range v {
				if s, ok := e.(string); ok && (key == "expr" || key == "definition") {
					queries = append(queries, s)
				}
				walk(e)
			}
		}
	}
	walk(dashboard)
	return queries
}

// docQueries returns the expressions of the alerts in docs/metrics.md.
func docQueries(t *testing.T) []string {
	t.Helper()
	var queries []string
	for _, m := range regexp.MustCompile(`(?m)^ *expr: (.*)$`).FindAllStringSubmatch(readText(t, "docs", "metrics.md"), -1) {
		queries = append(queries, m[1])
	}
	return queries
}

// readText reads a file of the repository.
func readText(t *testing.T, name ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "..", ".."}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// TestSourcesShareALabel shows that the sources beyond a limit share counters, "other".
func TestSourcesShareALabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := forwarded(t, nil) // two sources have labels
		for i := range series.MaxLabels {
			m.Answered(&collector.Answered{Source: fmt.Sprintf("source%d", i), Status: 200, Accepted: 2, Rejected: 1})
		}
		m.Answered(&collector.Answered{Source: "one more", Status: 429})
		lines := scrape(t, h)
		for _, want := range []string{
			`hookferry_calls_accepted_total{source="source0"} 2`,
			`hookferry_calls_accepted_total{source="other"} 4`,
			`hookferry_calls_rejected_total{source="other"} 2`,
			`hookferry_http_requests_limited_total{source="other"} 1`,
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("the scrape lacks %s", want)
			}
		}
	})
}
