package collector_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/webhook"
)

// limited returns a function that posts a batch of n calls of a source with a limit.
func limited(t *testing.T, f collector.Forwarder, l *collector.Limit) func(n int) *httptest.ResponseRecorder {
	h := newHandler(t, f, func(c *collector.Config) {
		c.Sources = collector.Keys(map[string]collector.Source{"key": {Name: "shop", Destinations: []string{"crm"}, Limit: l}})
	})
	return func(n int) *httptest.ResponseRecorder {
		calls := strings.Repeat(`,{"type":"track","event":"E","userId":"u"}`, n)
		r := httptest.NewRequest("POST", "/v1/batch", strings.NewReader(`{"batch":[`+strings.TrimPrefix(calls, ",")+`]}`))
		r.SetBasicAuth("key", "")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
}

func TestLimitRefusesCallsOverTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		post := limited(t, f, collector.NewLimit(10, 20))
		begin := time.Now()
		for i, step := range []struct {
			at     time.Duration
			calls  int
			status int
			wait   int // seconds in the headers of a 429
		}{
			{0, 19, 200, 0},
			{0, 1, 200, 0},
			{0, 1, 429, 1},
			{99 * time.Millisecond, 1, 429, 1}, // just before a call is free
			{100 * time.Millisecond, 1, 200, 0},
			{100 * time.Millisecond, 1, 429, 1},
			{time.Second, 49, 200, 0},    // 9 are free, so 40 are a debt
			{time.Second, 1, 429, 5},     // the time until one is free
			{4 * time.Second, 1, 429, 2}, // 1.1 s are left
			{5099 * time.Millisecond, 1, 429, 1},
			{5100 * time.Millisecond, 1, 200, 0},
			{time.Hour, 20, 200, 0}, // the limit saves up no more than the burst
			{time.Hour, 1, 429, 1},
		} {
			time.Sleep(step.at - time.Since(begin))
			w := post(step.calls)
			if w.Code != step.status {
				t.Errorf("step %d: status %d, want %d", i, w.Code, step.status)
			}
			want := ""
			if step.wait > 0 {
				want = strconv.Itoa(step.wait)
			}
			for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("step %d: %s: %q, want %q", i, name, got, want)
				}
			}
			if step.status == 429 && w.Body.String() != `{"success":false,"code":"rate_limited","message":"the source sends more calls than its limit"}`+"\n" {
				t.Errorf("step %d: the body is %s, want the code rate_limited", i, w.Body)
			}
		}
		if got := len(f.events()); got != 19+1+1+49+1+20 {
			t.Errorf("%d calls were forwarded, want %d", got, 19+1+1+49+1+20)
		}
	})
}

// TestLimitCountsWrongCalls shows that a Limit counts wrong calls, because they cost work, too.
func TestLimitCountsWrongCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &forwarder{}, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {Limit: collector.NewLimit(1, 3)}})
		})
		for _, want := range []int{200, 429} {
			r := httptest.NewRequest("POST", "/v1/batch", strings.NewReader(`{"writeKey":"key","batch":[{},{},{}]}`))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("status %d, want %d", w.Code, want)
			}
		}
	})
}

// TestLimitIsCheckedBeforeTheBody shows that the handler refuses a request over the limit before it
// reads the body, if the key is in the header.
func TestLimitIsCheckedBeforeTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &forwarder{}, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {Limit: collector.NewLimit(1e-9, 1)}})
		})
		for i, want := range []int{200, 429} {
			body := strings.NewReader(`{"event":"E","userId":"u"}`)
			r := httptest.NewRequest("POST", "/v1/track", body)
			r.SetBasicAuth("key", "")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("status %d, want %d", w.Code, want)
			}
			if read := body.Len() == 0; read != (i == 0) {
				t.Errorf("status %d: body read: %v, want it read for the first request only", w.Code, read)
			}
			if got := w.Header().Get("Retry-After"); want == 429 && got != "86400" {
				t.Errorf("Retry-After: %s, want 86400, a day", got)
			}
		}
	})
}

// TestLimitIsCheckedAgainAfterTheBody: two requests pass the first check at the same time. The
// limit counts each of them after its body, so the second one may be over the limit.
func TestLimitIsCheckedAgainAfterTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {Destinations: []string{"crm"}, Limit: collector.NewLimit(1, 1)}})
		})
		post := func(body io.Reader) *httptest.ResponseRecorder {
			r := httptest.NewRequest("POST", "/v1/track", body)
			r.SetBasicAuth("key", "")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		var between *httptest.ResponseRecorder
		late := post(io.MultiReader(readerFunc(func([]byte) (int, error) {
			between = post(strings.NewReader(track))
			return 0, io.EOF
		}), strings.NewReader(track)))
		if between.Code != 200 || late.Code != 429 || late.Header().Get("Retry-After") != "1" {
			t.Errorf("the request in between is answered %d, the late one %d %v, want 200 and 429", between.Code, late.Code, late.Header())
		}
		if n := len(f.events()); n != 1 {
			t.Errorf("%d calls were forwarded, want 1", n)
		}
		time.Sleep(time.Second)
		if w := post(strings.NewReader(track)); w.Code != 200 {
			t.Errorf("a second later: answered %d, want 200", w.Code)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestNewLimitPanicsOnWrongValues(t *testing.T) {
	for _, tt := range []struct {
		rate  float64
		burst int
	}{{0, 1}, {-1, 1}, {math.NaN(), 1}, {math.Inf(1), 1}, {1, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewLimit(%v, %d) did not panic", tt.rate, tt.burst)
				}
			}()
			collector.NewLimit(tt.rate, tt.burst)
		}()
	}
}

func TestAnsweredDescribesEachRequest(t *testing.T) {
	track := `{"event":"E","userId":"u"}`
	batch := `{"batch":[{"type":"track","event":"E","userId":"u"},{"type":"track"},{"type":"track","event":"F","userId":"u","integrations":{"Webhooks":false}}]}`
	for _, tt := range []struct {
		name         string
		method, path string
		key, body    string
		err          error
		want         collector.Answered
	}{
		{"call", "POST", "/v1/track", "key", track, nil, collector.Answered{Path: "/v1/track", Source: "shop", Status: 200, Accepted: 1, Size: len(track)}},
		{"batch", "POST", "/v1/batch", "key", batch, nil, collector.Answered{Path: "/v1/batch", Source: "shop", Status: 200, Accepted: 2, Rejected: 1, Size: len(batch)}},
		{"filtered call", "POST", "/v1/track", "page", track, nil, collector.Answered{Path: "/v1/track", Source: "page", Status: 200, Accepted: 1, Filtered: 1, Size: len(track)}},
		{"filtered calls fail with the others", "POST", "/v1/batch", "page", batch, webhook.ErrQueueFull, collector.Answered{Path: "/v1/batch", Source: "page", Status: 503, Code: "unavailable", Size: len(batch)}},
		{"no destinations", "POST", "/v1/t", "idle", track, nil, collector.Answered{Path: "/v1/t", Source: "idle", Status: 200, Accepted: 1, Size: len(track)}},
		{"wrong call", "POST", "/v1/track", "key", `{}`, nil, collector.Answered{Path: "/v1/track", Source: "shop", Status: 400, Code: "missing_field", Rejected: 1, Size: 2}},
		{"wrong batch", "POST", "/v1/batch", "key", `{}`, nil, collector.Answered{Path: "/v1/batch", Source: "shop", Status: 400, Code: "missing_field", Size: 2}},
		{"no key", "POST", "/v1/track", "", track, nil, collector.Answered{Path: "/v1/track", Status: 401, Code: "unknown_write_key", Size: len(track)}},
		{"unknown key", "POST", "/v1/track", "else", track, nil, collector.Answered{Path: "/v1/track", Status: 401, Code: "unknown_write_key"}},
		{"forwarder fails", "POST", "/v1/batch", "key", batch, webhook.ErrQueueFull, collector.Answered{Path: "/v1/batch", Source: "shop", Status: 503, Code: "unavailable", Size: len(batch)}},
		{"look-up fails", "POST", "/v1/track", "broken", track, nil, collector.Answered{Path: "/v1/track", Status: 503, Code: "unavailable"}},
		{"settings", "GET", "/v1/projects/key/settings", "", "", nil, collector.Answered{Path: "/v1/projects/...", Source: "shop", Status: 200}},
		{"settings with a doubled slash", "GET", "//v1/projects/key//settings", "", "", nil, collector.Answered{Path: "/v1/projects/...", Source: "shop", Status: 200}},
		{"settings of an unknown key", "GET", "/v1/projects/else/settings", "", "", nil, collector.Answered{Path: "/v1/projects/...", Status: 401, Code: "unknown_write_key"}},
		{"metrics", "POST", "/v1/m", "", "{}", nil, collector.Answered{Path: "/v1/m", Status: 200}},
		{"preflight", "OPTIONS", "/v1/t", "", "", nil, collector.Answered{Path: "/v1/t", Status: 204}},
		{"unknown path", "GET", "/", "", "", nil, collector.Answered{Status: 404, Code: "not_found"}},
		{"wrong method", "GET", "/v1/t", "", "", nil, collector.Answered{Path: "/v1/t", Status: 405, Code: "method_not_allowed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []collector.Answered
			h := newHandler(t, &forwarder{err: tt.err}, func(c *collector.Config) {
				c.Answered = func(r *http.Request, a collector.Answered) {
					if r.URL.Path != tt.path {
						t.Errorf("Answered got a request for %s, want %s", r.URL.Path, tt.path)
					}
					got = append(got, a)
				}
			})
			r := httptest.NewRequestWithContext(context.Background(), tt.method, "/", strings.NewReader(tt.body))
			r.URL.Path = tt.path
			if tt.key != "" {
				r.SetBasicAuth(tt.key, "")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if diff := cmp.Diff([]collector.Answered{tt.want}, got, cmpopts.IgnoreFields(collector.Answered{}, "Took")); diff != "" {
				t.Errorf("Answered (-want +got):\n%s", diff)
			}
			if w.Code != tt.want.Status {
				t.Errorf("the answer has the status %d, want %d", w.Code, tt.want.Status)
			}
		})
	}
}
