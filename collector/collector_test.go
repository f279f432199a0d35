package collector_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A forwarder records the events that it gets, or fails.
type forwarder struct {
	mu           sync.Mutex
	err          error
	handed       [][]event.Event
	destinations []string
}

func (f *forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.destinations = append([]string(nil), destinations...)
	f.handed = append(f.handed, append([]event.Event(nil), events...))
	return nil
}

func (f *forwarder) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *forwarder) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.handed)
}

func (f *forwarder) events() (events []event.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, es := range f.handed {
		events = append(events, es...)
	}
	return events
}

// ids returns the ids of the events that the forwarder got.
func (f *forwarder) ids() []string {
	ids := []string{}
	for _, e := range f.events() {
		ids = append(ids, e.ID)
	}
	return ids
}

var errLookup = errors.New("the database is away")

// lookup knows the keys "key", "idle" and "page", and returns an error for "broken". The source of
// "page" forwards only pages.
func lookup(ctx context.Context, key string) (collector.Source, error) {
	if key == "broken" {
		return collector.Source{}, errLookup
	}
	return collector.Keys(map[string]collector.Source{
		"key":  {Name: "shop", Destinations: []string{"crm", "warehouse"}},
		"idle": {Name: "idle"},
		"page": {Name: "page", Destinations: []string{"crm"}, Filter: func(e event.Event) bool { return e.Type == "page" }},
	})(ctx, key)
}

func newHandler(t testing.TB, f collector.Forwarder, change ...func(*collector.Config)) *collector.Handler {
	t.Helper()
	c := collector.Config{Forwarder: f, Sources: lookup}
	for _, fn := range change {
		fn(&c)
	}
	h, err := collector.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// unsized hides the type of its reader, so that a request with it has no
// Content-Length.
type unsized struct{ io.Reader }

// An answer is the parsed answer of a handler.
type answer struct {
	status int
	header http.Header
	body   string

	Success  bool
	Code     string
	Message  string
	Rejected []struct {
		Index   int
		Code    string
		Message string
	}
}

// send sends a request, and checks what holds for every answer.
func send(t testing.TB, h http.Handler, method, path string, header map[string]string, body io.Reader) answer {
	t.Helper()
	r := httptest.NewRequest(method, "/", body)
	r.URL.Path = path
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return check(t, w.Result())
}

func check(t testing.TB, resp *http.Response) answer {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: string(b)}
	if got := a.header.Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("status %d: Access-Control-Allow-Origin: %q, want *", a.status, got)
	}
	if a.status == http.StatusNoContent {
		if len(b) > 0 {
			t.Errorf("status 204 with the body %q, want none", b)
		}
		return a
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("status %d: Content-Type: %q, want application/json", a.status, got)
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &a); err != nil {
			t.Errorf("status %d: the answer %q is no JSON: %v", a.status, b, err)
		}
	}
	if !strings.Contains(a.body, "integrations") && len(b) > 0 && a.Success != (a.status == 200) {
		t.Errorf("status %d: success is %v, want true for 200 only", a.status, a.Success)
	}
	if a.status != 200 && len(b) > 0 && (a.Code == "" || a.Message == "") {
		t.Errorf("status %d without code and message: %s", a.status, b)
	}
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if (a.status == 503) != (err == nil && seconds >= 1 && seconds <= 60) {
		t.Errorf("status %d: Retry-After: %q, want 1 to 60 for 503 only", a.status, a.header.Get("Retry-After"))
	}
	return a
}

var auth = map[string]string{"Authorization": basic}

const track = `{"type":"track","userId":"u","event":"e","messageId":"m"}`

func TestPathsAndMethods(t *testing.T) {
	batch := `{"batch":[` + track + `]}`
	call := `{"type":"none","userId":"u","event":"e","groupId":"g","previousId":"p","messageId":"m"}`
	for _, tt := range []struct {
		path string
		body string
		want string // type of the forwarded event, "" if there is none
		code int
	}{
		{"/v1/batch", batch, "track", 200},
		{"/v1/b", batch, "track", 200},
		{"/v1/import", batch, "track", 200},
		{"//v1/batch", batch, "track", 200},
		{"///v1//batch", batch, "track", 200},
		{"/v1/identify", call, "identify", 200},
		{"/v1/track", call, "track", 200},
		{"/v1/page", call, "page", 200},
		{"/v1/screen", call, "screen", 200},
		{"/v1/group", call, "group", 200},
		{"/v1/alias", call, "alias", 200},
		{"/v1/i", call, "identify", 200},
		{"/v1/t", call, "track", 200},
		{"/v1/p", call, "page", 200},
		{"/v1/s", call, "screen", 200},
		{"/v1/g", call, "group", 200},
		{"/v1/a", call, "alias", 200},
		{"//v1/t", call, "track", 200},
		{"/v1/batch/", batch, "track", 200},
		{"//v1/track//", call, "track", 200},
		{"/v1/batch", "\uFEFF" + batch, "track", 200},
		{"/v1/track", "\uFEFF" + call, "track", 200},
		{"/v1/batch", "\uFEFF\uFEFF" + batch, "", 400},
		{"/v1/batch", string(zipped([]byte("\uFEFF" + batch))), "track", 200},
		{"/v1/m", `{"series":[]}`, "", 200},
		{"/v1/m", `not JSON`, "", 200},
		{"/v1/m", strings.Repeat("x", 1<<20), "", 200},
		{"/", batch, "", 404},
		{"/v1", batch, "", 404},
		{"/v1/", batch, "", 404},
		{"/v1/delete", call, "", 404},
		{"/v1/Track", call, "", 404},
		{"/v2/batch", batch, "", 404},
		{"v1/batch", batch, "", 404},
		{"/v1/projects//settings", "", "", 404},
		{"/v1/projects/key/settings/more", "", "", 404},
		{"/v1/projects/a/b/settings", "", "", 404},
		{"/v1/projects/key/settings", "", "", 405},
	} {
		f := &forwarder{}
		h := newHandler(t, f)
		a := send(t, h, "POST", tt.path, auth, strings.NewReader(tt.body))
		if a.status != tt.code {
			t.Errorf("POST %s: status %d %s, want %d", tt.path, a.status, a.body, tt.code)
		}
		got := ""
		if events := f.events(); len(events) > 0 {
			got = events[0].Type
		}
		if got != tt.want {
			t.Errorf("POST %s forwards %q, want %q", tt.path, got, tt.want)
		}
		for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			a := send(t, h, method, tt.path, auth, nil)
			settings := strings.HasSuffix(tt.path, "key/settings")
			want := 405
			switch {
			case tt.code == 404:
				want = 404
			case method == "OPTIONS":
				want = 204
			case settings && (method == "GET" || method == "HEAD"):
				want = 200
			}
			if a.status != want {
				t.Errorf("%s %s: status %d, want %d", method, tt.path, a.status, want)
			}
			allow := ""
			if want == 405 || want == 204 {
				allow = "POST, OPTIONS"
				if settings {
					allow = "GET, HEAD, OPTIONS"
				}
			}
			if got := a.header.Get("Allow"); got != allow {
				t.Errorf("%s %s: Allow: %q, want %q", method, tt.path, got, allow)
			}
		}
	}
}

func TestPreflight(t *testing.T) {
	for _, more := range [][]string{nil, {"traceparent", "baggage"}} {
		h := newHandler(t, &forwarder{}, func(c *collector.Config) { c.AllowHeaders = more })
		a := send(t, h, "OPTIONS", "/v1/t", map[string]string{
			"Origin": "https://shop.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type",
		}, nil)
		want := map[string]string{
			"Access-Control-Allow-Origin":  "*",
			"Access-Control-Allow-Methods": "POST, OPTIONS",
			"Access-Control-Allow-Headers": strings.Join(append([]string{"authorization, content-type, x-retry-count"}, more...), ", "),
			"Access-Control-Max-Age":       "86400",
		}
		for k, v := range want {
			if got := a.header.Get(k); a.status != 204 || got != v {
				t.Errorf("status %d, %s: %q, want 204 and %q", a.status, k, got, v)
			}
		}
	}
}

func TestWriteKeyInHeaderOrBody(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header string
		key    string // in the body, as JSON
		want   int
	}{
		{"basic", basic, ``, 200},
		{"basic without colon", bare, ``, 200},
		{"basic without padding", "Basic a2V5Og", ``, 200},
		{"basic with a password", "Basic a2V5OnB3", ``, 200},
		{"basic in lower case", "basic a2V5Og==", ``, 200},
		{"basic with two spaces", "Basic  a2V5Og==", ``, 200},
		{"basic unknown", "Basic b3RoZXI6", ``, 401},
		{"basic unknown and a good key in the body", "Basic b3RoZXI6", `"key"`, 401},
		{"basic good and another key in the body", basic, `"other"`, 200},
		{"basic with an empty name", "Basic Og==", ``, 401},
		{"basic with an empty name and a key in the body", "Basic Og==", `"key"`, 200},
		{"basic that is not base64", "Basic !!!", ``, 401},
		{"basic that is not base64 and a key in the body", "Basic !!!", `"key"`, 200},
		{"bearer and a key in the body", "Bearer token", `"key"`, 200},
		{"bearer alone", "Bearer key", ``, 401},
		{"bearer and an unknown key in the body", "Bearer key", `"other"`, 401},
		{"key in the body", "", `"key"`, 200},
		{"key in the body, escaped", "", `"\u006bey"`, 200},
		{"unknown key in the body", "", `"other"`, 401},
		{"empty key in the body", "", `""`, 401},
		{"null key in the body", "", `null`, 401},
		{"number as the key in the body", "", `7`, 401},
		{"none", "", ``, 401},
		{"key in another case", "", `"KEY"`, 401},
		{"lookup fails", "Basic YnJva2VuOg==", ``, 503},
		{"lookup of a key in the body fails", "", `"broken"`, 503},
	} {
		for _, path := range []string{"/v1/batch", "/v1/track"} {
			f := &forwarder{}
			var log bytes.Buffer
			h := newHandler(t, f, func(c *collector.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			header := map[string]string{}
			if tt.header != "" {
				header["Authorization"] = tt.header
			}
			member := ""
			if tt.key != "" {
				member = `,"writeKey":` + tt.key
			}
			body := `{"batch":[` + track + `]` + member + `}`
			if path == "/v1/track" {
				body = `{"userId":"u","event":"e"` + member + `}`
			}
			a := send(t, h, "POST", path, header, strings.NewReader(body))
			if a.status != tt.want {
				t.Errorf("%s: %s: status %d %s, want %d", tt.name, path, a.status, a.body, tt.want)
			}
			if n := len(f.events()); (n == 1) != (tt.want == 200) {
				t.Errorf("%s: %s: %d events forwarded, want 1 for an answer 200 only", tt.name, path, n)
			}
			if tt.want == 200 {
				if diff := cmp.Diff([]string{"crm", "warehouse"}, f.destinations); diff != "" {
					t.Errorf("%s: destinations (-want +got):\n%s", tt.name, diff)
				}
			}
			if strings.Contains(a.body, "other") || strings.Contains(log.String(), "broken") {
				t.Errorf("%s: the answer %s or the log %s has a write key", tt.name, a.body, log.String())
			}
			if (tt.want == 503) != strings.Contains(log.String(), errLookup.Error()) {
				t.Errorf("%s: log %q, want the error of the lookup for 503 only", tt.name, log.String())
			}
		}
	}
}

// TestUnknownKeyIsRefusedFirst shows that the handler refuses an unknown key of Basic
// authentication before it reads the body.
func TestUnknownKeyIsRefusedFirst(t *testing.T) {
	h := newHandler(t, &forwarder{})
	a := send(t, h, "POST", "/v1/batch", map[string]string{"Authorization": "Basic b3RoZXI6"},
		unsized{iotest.ErrReader(errors.New("read"))})
	if a.status != 401 {
		t.Errorf("status %d, want 401", a.status)
	}
}

func TestSourceWithoutDestinations(t *testing.T) {
	f := &forwarder{}
	a := send(t, newHandler(t, f), "POST", "/v1/batch", nil, strings.NewReader(`{"writeKey":"idle","batch":[`+track+`,{}]}`))
	if a.status != 200 || len(a.Rejected) != 1 || f.calls() != 0 {
		t.Errorf("answered %d %s, forwarded %d times, want 200, one rejected call, and nothing forwarded", a.status, a.body, f.calls())
	}
}

// TestFilterSelectsTheCallsToForward shows that the handler accepts the calls that the filter of a
// source leaves out, and does not forward them.
func TestFilterSelectsTheCallsToForward(t *testing.T) {
	f := &forwarder{}
	h := newHandler(t, f)
	const page = `{"type":"page","userId":"u","messageId":"p"}`
	a := send(t, h, "POST", "/v1/batch", nil, strings.NewReader(`{"writeKey":"page","batch":[`+track+`,`+page+`,{},`+track+`]}`))
	if a.status != 200 || len(a.Rejected) != 1 || a.Rejected[0].Index != 2 {
		t.Errorf("answered %d %s, want 200 and the third call rejected", a.status, a.body)
	}
	if diff := cmp.Diff([]string{"p"}, f.ids()); diff != "" {
		t.Errorf("forwarded (-want +got):\n%s", diff)
	}
	a = send(t, h, "POST", "/v1/batch", nil, strings.NewReader(`{"writeKey":"page","batch":[`+track+`]}`))
	if a.status != 200 || f.calls() != 1 {
		t.Errorf("a batch without a page: answered %d %s, and forwarded %d times in all, want 200 and once", a.status, a.body, f.calls())
	}
}

// batchOf returns a batch request of exactly size bytes with n calls.
func batchOf(n, size int) string {
	var b strings.Builder
	b.WriteString(`{"batch":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"track","userId":"u","event":"e","messageId":"m%d"}`, i)
	}
	b.WriteString(`],"filler":"`)
	return b.String() + strings.Repeat("x", size-b.Len()-2) + `"}`
}

// callOf returns a call of exactly size bytes.
func callOf(size int) string {
	const open, end = `{"type":"track","userId":"u","messageId":"large","event":"`, `"}`
	return open + strings.Repeat("x", size-len(open)-len(end)) + end
}

func TestSizeLimitsOfRequests(t *testing.T) {
	full := batchOf(10, analytics.MaxBatchSize)
	for _, tt := range []struct {
		name, path, body string
		status           int
		code             string
		events           int
	}{
		{"batch of 500 KB", "/v1/batch", full, 200, "", 10},
		{"batch of 500 KB and a byte", "/v1/batch", full + " ", 400, "too_large", 0},
		{"batch of 10 MB", "/v1/batch", full + strings.Repeat(" ", 10<<20), 400, "too_large", 0},
		{"batch of 2,500 calls", "/v1/batch", batchOf(analytics.MaxBatchCalls, 400000), 200, "", 2500},
		{"batch of 2,501 calls", "/v1/batch", batchOf(analytics.MaxBatchCalls+1, 400000), 400, "too_many_calls", 0},
		{"batch of no calls", "/v1/batch", `{"batch":[]}`, 200, "", 0},
		{"call of 32 KB", "/v1/track", callOf(analytics.MaxCallSize), 200, "", 1},
		{"call of 32 KB and a byte", "/v1/track", callOf(analytics.MaxCallSize + 1), 400, "too_large", 0},
		{"call of 32 KB in a batch", "/v1/batch", `{"batch":[ ` + callOf(analytics.MaxCallSize) + ` ]}`, 200, "", 1},
		{"context of 32 KB", "/v1/batch", `{"batch":[` + track + `],"context":{"a":"` + strings.Repeat("x", analytics.MaxCallSize-8) + `"}}`, 200, "", 1},
		{"context of 32 KB and a byte", "/v1/batch", `{"batch":[` + track + `],"context":{"a":"` + strings.Repeat("x", analytics.MaxCallSize-7) + `"}}`, 400, "too_large", 0},
		{"context of 32 KB and white space", "/v1/batch", `{"batch":[` + track + `],"context":{"a":"` + strings.Repeat("x", analytics.MaxCallSize-8) + `" }}`, 200, "", 1},
		{"integrations of 32 KB and a byte", "/v1/batch", `{"batch":[` + track + `],"integrations":{"a":"` + strings.Repeat("x", analytics.MaxCallSize-7) + `"}}`, 200, "", 1},
	} {
		for _, how := range []string{"length", "chunked", "gzip", "gzip chunked"} {
			f := &forwarder{}
			header := map[string]string{"Authorization": basic}
			b := []byte(tt.body)
			if strings.HasPrefix(how, "gzip") {
				b = zipped(b)
				header["Content-Encoding"] = "gzip"
			}
			var body io.Reader = bytes.NewReader(b)
			if strings.HasSuffix(how, "chunked") {
				body = unsized{body}
			}
			a := send(t, newHandler(t, f), "POST", tt.path, header, body)
			if a.status != tt.status || a.Code != tt.code || len(f.events()) != tt.events || len(a.Rejected) != 0 {
				t.Errorf("%s, %s: status %d, code %q, %d events, want %d, %q, %d", tt.name, how, a.status, a.Code, len(f.events()), tt.status, tt.code, tt.events)
			}
		}
	}
}

// TestWrongCallsAreRejectedAlone shows that the handler rejects wrong calls of a batch one by
// one, and forwards the good ones.
func TestWrongCallsAreRejectedAlone(t *testing.T) {
	f := &forwarder{}
	a := send(t, newHandler(t, f), "POST", "/v1/batch", auth, strings.NewReader(`{"batch":[
		{"type":"track","userId":"u","event":"e","messageId":"good0"},
		{"type":"track","userId":"u"},
		{"type":"track","event":"e"},
		{"type":"unknown","userId":"u"},
		{"type":"identify","userId":"u","messageId":"good4"},
		{"type":"identify","userId":"u","traits":7},
		{"type":"identify","userId":"u","context":[1]},
		7,
		null,
		`+callOf(analytics.MaxCallSize+1)+`,
		{"type":"identify","userId":"u","messageId":"`+strings.Repeat("m", 100)+`"},
		{"type":"alias","userId":7,"previousId":8,"messageId":"good11"}
	]}`))
	want := `{"success":true,"rejected":[` +
		`{"index":1,"code":"missing_field","message":"event is required"},` +
		`{"index":2,"code":"missing_field","message":"userId or anonymousId is required"},` +
		`{"index":3,"code":"unknown_type","message":"type has to be identify, track, page, screen, group or alias"},` +
		`{"index":5,"code":"wrong_type","message":"traits has to be an object"},` +
		`{"index":6,"code":"wrong_type","message":"context has to be an object"},` +
		`{"index":7,"code":"wrong_type","message":"a call is a JSON object"},` +
		`{"index":8,"code":"wrong_type","message":"a call is a JSON object"},` +
		`{"index":9,"code":"too_large","message":"the call has 32769 bytes, more than the limit of 32768"},` +
		`{"index":10,"code":"invalid_message_id","message":"messageId has more than 99 characters"}]}` + "\n"
	if a.status != 200 {
		t.Errorf("status %d, want 200", a.status)
	}
	if diff := cmp.Diff(want, a.body); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"good0", "good4", "good11"}, f.ids()); diff != "" {
		t.Errorf("forwarded ids (-want +got):\n%s", diff)
	}
	if f.calls() != 1 {
		t.Errorf("%d calls of ForwardEvents, want 1", f.calls())
	}

	f = &forwarder{}
	a = send(t, newHandler(t, f), "POST", "/v1/batch", auth, strings.NewReader(`{"batch":[{},{}]}`))
	if a.status != 200 || len(a.Rejected) != 2 || f.calls() != 0 {
		t.Errorf("a batch of wrong calls: answered %d %s, forwarded %d times, want 200, two rejected calls, and nothing forwarded", a.status, a.body, f.calls())
	}
}

// TestCallsMayBeNestedToTheLimit shows that a call in a batch may be nested 1,000 levels deep. The
// handler rejects a deeper call alone.
func TestCallsMayBeNestedToTheLimit(t *testing.T) {
	nested := func(levels int) string { // the call itself is one level
		return `{"type":"track","userId":"u","event":"e","messageId":"m` + strconv.Itoa(levels) + `","properties":` +
			strings.Repeat(`{"a":`, levels-1) + `1` + strings.Repeat(`}`, levels-1) + `}`
	}
	for _, tt := range []struct {
		name   string
		levels int
		taken  bool
	}{
		{"the deepest call", 1000, true},
		{"a level more", 1001, false},
		{"two levels less", 998, true},
		{"two levels more", 1002, false},
		{"as deep as the longest call", 5000, false},
		{"as deep as the longest batch", 80000, false},
	} {
		f := &forwarder{}
		body := `{"batch":[` + track + `,` + nested(tt.levels) + `,{"type":"page","userId":"u","messageId":"last"}]}`
		a := send(t, newHandler(t, f), "POST", "/v1/batch", auth, strings.NewReader(body))
		want := []string{"m", "m" + strconv.Itoa(tt.levels), "last"}
		if !tt.taken {
			want = []string{"m", "last"}
		}
		if diff := cmp.Diff(want, f.ids()); a.status != 200 || diff != "" {
			t.Errorf("%s: answered %d %s, forwarded ids (-want +got):\n%s", tt.name, a.status, a.body, diff)
		}
		if refused := len(a.Rejected) == 1 && a.Rejected[0].Index == 1; refused == tt.taken {
			t.Errorf("%s: answered %s, want the call at index 1 rejected: %v", tt.name, a.body, !tt.taken)
		}
	}
}

func TestBadRequests(t *testing.T) {
	bomb := zipped(make([]byte, 16<<20))
	for _, tt := range []struct {
		name, path string
		body       string
		header     map[string]string
		status     int
		code       string
	}{
		{"nothing", "/v1/batch", ``, nil, 400, "malformed_json"},
		{"cut off", "/v1/batch", `{"batch":[` + track, nil, 400, "malformed_json"},
		{"trailing bytes", "/v1/batch", `{"batch":[` + track + `]}x`, nil, 400, "malformed_json"},
		{"two values", "/v1/batch", `{"batch":[` + track + `]}{}`, nil, 400, "malformed_json"},
		{"trailing comma", "/v1/batch", `{"batch":[` + track + `,]}`, nil, 400, "malformed_json"},
		{"a bad escape deep in a good call", "/v1/batch", `{"batch":[` + track + `,{"type":"track","x":"\x"}]}`, nil, 400, "malformed_json"},
		{"too deep and cut off", "/v1/batch", `{"batch":[` + strings.Repeat("[", 2000), nil, 400, "malformed_json"},
		{"an array cut off", "/v1/batch", `[` + track, nil, 400, "malformed_json"},
		{"an unknown word", "/v1/batch", `nil`, nil, 400, "malformed_json"},
		{"a key and a value", "/v1/batch", `"batch":[]`, nil, 400, "malformed_json"},
		{"an array", "/v1/batch", `[` + track + `]`, nil, 400, "wrong_type"},
		{"null", "/v1/batch", `null`, nil, 400, "wrong_type"},
		{"no batch", "/v1/batch", `{}`, nil, 400, "missing_field"},
		{"Batch is not batch", "/v1/batch", `{"Batch":[]}`, nil, 400, "missing_field"},
		{"batch an object", "/v1/batch", `{"batch":{}}`, nil, 400, "wrong_type"},
		{"batch null", "/v1/batch", `{"batch":null}`, nil, 400, "wrong_type"},
		{"context an array", "/v1/batch", `{"batch":[` + track + `],"context":[{}]}`, nil, 400, "wrong_type"},
		{"context a string", "/v1/batch", `{"batch":[],"context":""}`, nil, 400, "wrong_type"},
		{"context too deep", "/v1/batch", `{"batch":[` + track + `],"context":{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}}`, nil, 400, "malformed_json"},
		{"integrations a number", "/v1/batch", `{"batch":[],"integrations":1}`, nil, 400, "wrong_type"},
		{"urlencoded form", "/v1/batch", `batch=%5B%5D`, nil, 400, "malformed_json"},

		{"call: nothing", "/v1/track", ``, nil, 400, "malformed_json"},
		{"call: cut off", "/v1/track", `{"userId":"u"`, nil, 400, "malformed_json"},
		{"call: trailing bytes", "/v1/track", `{"userId":"u","event":"e"}x`, nil, 400, "malformed_json"},
		{"call: an array cut off", "/v1/track", `[`, nil, 400, "malformed_json"},
		{"call: no key, an array", "/v1/track", `[]`, map[string]string{"Authorization": ""}, 400, "wrong_type"},
		{"call: no key, an array cut off", "/v1/track", `[`, map[string]string{"Authorization": ""}, 400, "malformed_json"},
		{"call: an array", "/v1/track", `[]`, nil, 400, "wrong_type"},
		{"call: no identity", "/v1/track", `{"event":"e"}`, nil, 400, "missing_field"},
		{"call: no event", "/v1/track", `{"userId":"u"}`, nil, 400, "missing_field"},
		{"call: wrong type of field", "/v1/track", `{"userId":"u","event":"e","properties":[1]}`, nil, 400, "wrong_type"},
		{"call: no key, malformed", "/v1/track", `{"writeKey":"key"`, map[string]string{"Authorization": ""}, 400, "malformed_json"},

		{"gzip that is plain text", "/v1/batch", `{"batch":[]}`, map[string]string{"Content-Encoding": "gzip"}, 400, "malformed_gzip"},
		{"gzip cut off", "/v1/batch", string(zipped([]byte(`{"batch":[]}`))[:20]), map[string]string{"Content-Encoding": "gzip"}, 400, "malformed_gzip"},
		{"gzip and trailing bytes", "/v1/batch", string(zipped([]byte(`{"batch":[]}`))) + "more", map[string]string{"Content-Encoding": "gzip"}, 400, "malformed_gzip"},
		{"gzip of malformed JSON", "/v1/batch", string(zipped([]byte(`{`))), map[string]string{"Content-Encoding": "gzip"}, 400, "malformed_json"},
		{"gzip bomb", "/v1/batch", string(bomb), map[string]string{"Content-Encoding": "gzip"}, 400, "too_large"},
		{"gzip bomb in a call", "/v1/track", string(zipped(make([]byte, 8<<20))), map[string]string{"Content-Encoding": "gzip"}, 400, "too_large"},
		{"gzip bomb without Content-Encoding", "/v1/batch", string(bomb), nil, 400, "too_large"},
		{"deflate", "/v1/batch", `{"batch":[]}`, map[string]string{"Content-Encoding": "deflate"}, 415, "unsupported_encoding"},
		{"gzip twice", "/v1/batch", string(zipped(zipped([]byte(`{"batch":[]}`)))), map[string]string{"Content-Encoding": "gzip, gzip"}, 415, "unsupported_encoding"},
	} {
		f := &forwarder{}
		header := map[string]string{"Authorization": basic}
		for k, v := range tt.header {
			header[k] = v
		}
		a := send(t, newHandler(t, f), "POST", tt.path, header, strings.NewReader(tt.body))
		if a.status != tt.status || a.Code != tt.code {
			t.Errorf("%s: answered %d %s, want %d %q", tt.name, a.status, a.body, tt.status, tt.code)
		}
		if f.calls() != 0 {
			t.Errorf("%s: the handler forwarded events, want none", tt.name)
		}
	}
}

func TestEncodingsAndContentTypesAreAccepted(t *testing.T) {
	plain := []byte(`{"batch":[` + track + `]}`)
	half := len(plain) / 2
	for _, tt := range []struct {
		name, encoding string
		body           []byte
	}{
		{"none", "", plain},
		{"identity", "identity", plain},
		{"gzip", "gzip", zipped(plain)},
		{"GZIP", "GZIP", zipped(plain)},
		{"x-gzip", "x-gzip", zipped(plain)},
		{"gzip without Content-Encoding", "", zipped(plain)},
		{"gzip in two members", "gzip", append(zipped(plain[:half]), zipped(plain[half:])...)},
	} {
		for _, contentType := range []string{"", "application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"} {
			f := &forwarder{}
			header := map[string]string{"Authorization": basic, "Content-Type": contentType}
			if tt.encoding != "" {
				header["Content-Encoding"] = tt.encoding
			}
			a := send(t, newHandler(t, f), "POST", "/v1/batch", header, bytes.NewReader(tt.body))
			if a.status != 200 || len(f.events()) != 1 {
				t.Errorf("%s, Content-Type %q: answered %d %s, want 200 and one event", tt.name, contentType, a.status, a.body)
			}
		}
	}
}

// TestBatchFieldsReachItsCalls shows that the context, the integrations and sentAt of a batch reach
// each of its calls. No other field of the batch does.
func TestBatchFieldsReachItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // midnight, 2000-01-01
		f := &forwarder{}
		a := send(t, newHandler(t, f), "POST", "/v1/batch", nil, strings.NewReader(`{
			"writeKey": "key", "messageId": "of the batch", "unknown": {"secret": 1}, "_metadata": {},
			"sentAt": "1999-12-31T23:00:00Z",
			"context": {"library": {"name": "l"}, "locale": "de"},
			"integrations": {"All": false},
			"batch": [
				{"type": "track", "userId": "u", "event": "e", "messageId": "m1", "timestamp": "1999-12-31T22:59:59.5Z", "context": {"locale": "en"}, "integrations": {"Webhooks": true}, "writeKey": "key", "_metadata": {"x": 1}, "channel": "server"},
				{"type": "track", "userId": "u", "event": "e", "messageId": "m2"}
			]}`))
		if a.status != 200 {
			t.Fatalf("answered %d %s, want 200", a.status, a.body)
		}
		events := f.events()
		if len(events) != 2 || events[0].Off || !events[1].Off {
			t.Fatalf("events %+v, want the first on and the second off", events)
		}
		want := `{"version":1,"type":"track","userId":"u","event":"e","properties":{},"timestamp":"1999-12-31T23:59:59.500Z","messageId":"m1","context":{"library":{"name":"l"},"locale":"en"},"originalTimestamp":"1999-12-31T22:59:59.500Z","receivedAt":"2000-01-01T00:00:00.000Z","sentAt":"1999-12-31T23:00:00.000Z"}`
		if diff := cmp.Diff(want, string(events[0].Body)); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
	})
}

// TestBadTimesCountAsMissing shows that the handler keeps calls with a time that cannot be read, and
// counts them. Clients would drop a refused call or batch.
func TestBadTimesCountAsMissing(t *testing.T) {
	const noon = `"timestamp":"1999-12-31T12:00:00Z"`
	for _, tt := range []struct {
		name, call, batch string
		at                string // the timestamp of the webhook, empty if there is none
		bad               int
	}{
		{"sentAt in words", noon, `"sentAt":"now"`, "1999-12-31T12:00:00.000Z", 1},
		{"empty sentAt", noon, `"sentAt":""`, "1999-12-31T12:00:00.000Z", 1},
		{"sentAt true", noon, `"sentAt":true`, "1999-12-31T12:00:00.000Z", 1},
		{"sentAt an object", noon, `"sentAt":{}`, "1999-12-31T12:00:00.000Z", 1},
		{"sentAt out of range", noon, `"sentAt":1e999`, "1999-12-31T12:00:00.000Z", 1},
		{"sentAt null", noon, `"sentAt":null`, "1999-12-31T12:00:00.000Z", 0},
		{"the zero sentAt of Go", noon, `"sentAt":"0001-01-01T00:00:00Z"`, "1999-12-31T12:00:00.000Z", 0},
		{"an hour later", noon, `"sentAt":"1999-12-31T13:00:00"`, "1999-12-31T23:00:00.000Z", 0},
		{"timestamp in words", `"timestamp":"soon"`, `"sentAt":null`, "2000-01-01T00:00:00.000Z", 1},
		{"two bad times count once", `"timestamp":"soon","sentAt":"now"`, `"sentAt":"now"`, "2000-01-01T00:00:00.000Z", 1},
		{"switched off", `"timestamp":"soon","integrations":{"Webhooks":false}`, `"sentAt":null`, "", 1},
		{"filtered", `"timestamp":"soon","name":"filtered"`, `"sentAt":null`, "", 1},
	} {
		synctest.Test(t, func(t *testing.T) { // midnight, 2000-01-01
			f := &forwarder{}
			var answered collector.Answered
			h := newHandler(t, f, func(c *collector.Config) {
				c.Sources = collector.Keys(map[string]collector.Source{"key": {
					Destinations: []string{"crm"}, Filter: func(e event.Event) bool { return e.Name != "filtered" },
				}})
				c.Answered = func(_ *http.Request, a collector.Answered) { answered = a }
			})
			send(t, h, "POST", "/v1/batch", auth, strings.NewReader(`{"batch":[{"type":"page","userId":"u",`+tt.call+`}],`+tt.batch+`}`))
			at := ""
			if events := f.events(); len(events) == 1 && !events[0].Off {
				var body struct{ Timestamp string }
				if err := json.Unmarshal(events[0].Body, &body); err != nil {
					t.Fatal(err)
				}
				at = body.Timestamp
			}
			if answered.Accepted != 1 || answered.BadTimes != tt.bad || at != tt.at {
				t.Errorf("%s: answered %+v with the timestamp %q, want one call accepted, %d with a bad time, at %q", tt.name, answered, at, tt.bad, tt.at)
			}
		})
	}
}

// TestEmptyArraysAreEmptyObjects shows that the handler takes what PHP writes for an empty map.
func TestEmptyArraysAreEmptyObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		a := send(t, newHandler(t, f), "POST", "/v1/batch", auth, strings.NewReader(
			`{"batch":[{"type":"track","userId":"u","event":"e","messageId":"m","properties":[ ],"context":[],"integrations":[]},
			{"type":"identify","userId":"u","messageId":"n","traits":[]}],"context":[ ],"integrations":[]}`))
		var bodies []string
		for _, e := range f.events() {
			bodies = append(bodies, string(e.Body))
		}
		want := []string{
			`{"version":1,"type":"track","userId":"u","event":"e","properties":{},"timestamp":"2000-01-01T00:00:00.000Z","messageId":"m","context":{},"receivedAt":"2000-01-01T00:00:00.000Z"}`,
			`{"version":1,"type":"identify","userId":"u","traits":{},"timestamp":"2000-01-01T00:00:00.000Z","messageId":"n","context":{},"receivedAt":"2000-01-01T00:00:00.000Z"}`,
		}
		if diff := cmp.Diff(want, bodies); a.status != 200 || diff != "" {
			t.Errorf("answered %d %s, bodies (-want +got):\n%s", a.status, a.body, diff)
		}
	})
}

func TestContextHasTheAddressOfBrowsers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remote string
		origin string
		ctx    string
		client func(*http.Request) string
		want   any
	}{
		{"server", "192.0.2.1:99", "", `{}`, nil, nil},
		{"browser", "192.0.2.1:99", "https://shop.example", `{}`, nil, "192.0.2.1"},
		{"browser over IPv6", "[2001:db8::1]:99", "null", `{}`, nil, "2001:db8::1"},
		{"browser over mapped IPv4", "[::ffff:192.0.2.1]:99", "null", `{}`, nil, "192.0.2.1"},
		{"browser on the link", "[fe80::1%eth0]:99", "null", `{}`, nil, "fe80::1"},
		{"direct", "192.0.2.1:99", "", `{"direct":true}`, nil, "192.0.2.1"},
		{"browser with an address", "192.0.2.1:99", "https://shop.example", `{"ip":"198.51.100.1"}`, nil, "198.51.100.1"},
		{"browser behind a proxy", "192.0.2.1:99", "https://shop.example", `{}`, func(r *http.Request) string { return r.Header.Get("X-Real-Ip") }, "203.0.113.1"},
		{"no address", "@", "https://shop.example", `{}`, nil, nil},
	} {
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) { c.ClientIP = tt.client })
		r := httptest.NewRequest("POST", "/v1/t", strings.NewReader(`{"userId":"u","event":"e","writeKey":"key","context":`+tt.ctx+`}`))
		r.RemoteAddr = tt.remote
		r.Header.Set("X-Real-Ip", "203.0.113.1")
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var body struct{ Context map[string]any }
		if err := json.Unmarshal(f.events()[0].Body, &body); err != nil {
			t.Fatal(err)
		}
		if got := body.Context["ip"]; got != tt.want {
			t.Errorf("%s: ip %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestSettingsNameTheHost(t *testing.T) {
	for _, tt := range []struct {
		name, base, path, want string
		tls                    bool
	}{
		{name: "of the request", path: "/v1/projects/key/settings", want: `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":"t.example:8080/v1","protocol":"http"}}}` + "\n"},
		{name: "slash at the end", path: "/v1/projects/key/settings/", want: `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":"t.example:8080/v1","protocol":"http"}}}` + "\n"},
		{name: "doubled slash", path: "//v1/projects/key/settings", want: `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":"t.example:8080/v1","protocol":"http"}}}` + "\n"},
		{name: "over TLS", path: "/v1/projects/key/settings", tls: true, want: `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":"t.example:8080/v1","protocol":"https"}}}` + "\n"},
		{name: "set", base: "https://x.example/t/", path: "/v1/projects/key/settings", want: `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":"x.example/t/v1","protocol":"https"}}}` + "\n"},
	} {
		h := newHandler(t, &forwarder{}, func(c *collector.Config) { c.BaseURL = tt.base })
		r := httptest.NewRequest("GET", "http://t.example:8080/", nil)
		r.URL.Path = tt.path
		if tt.tls {
			r = httptest.NewRequest("GET", "https://t.example:8080"+tt.path, nil)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		a := check(t, w.Result())
		if a.status != 200 || a.body != tt.want {
			t.Errorf("%s: answered %d %s, want %s", tt.name, a.status, a.body, tt.want)
		}
	}
	h := newHandler(t, &forwarder{})
	for path, want := range map[string]int{"/v1/projects/other/settings": 401, "/v1/projects/broken/settings": 503} {
		if a := send(t, h, "GET", path, nil, nil); a.status != want {
			t.Errorf("GET %s: status %d, want %d", path, a.status, want)
		}
	}
}

func TestForwarderErrorsAnswer503(t *testing.T) {
	for _, err := range []error{webhook.ErrQueueFull, webhook.ErrClosed, webhook.ErrUnknownDestination, errors.New("disk full"), fmt.Errorf("store: %w", io.ErrShortWrite)} {
		f := &forwarder{err: err}
		h := newHandler(t, f)
		for _, path := range []string{"/v1/batch", "/v1/track"} {
			body := `{"batch":[` + track + `,{}]}`
			if path == "/v1/track" {
				body = track
			}
			if a := send(t, h, "POST", path, auth, strings.NewReader(body)); a.status != 503 || a.Code != "unavailable" || len(a.Rejected) > 0 {
				t.Errorf("%v: POST %s: answered %d %s, want 503", err, path, a.status, a.body)
			}
		}
	}
}

// TestForwarderOutageIsLoggedOnce shows that the handler logs an outage of the forwarder once
// when it begins, and once when it ends, for any number of requests.
func TestForwarderOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		lines := func() int { return strings.Count(log.String(), "\n") }
		post := func(n int, want int) {
			t.Helper()
			for range n {
				if a := send(t, h, "POST", "/v1/track", auth, strings.NewReader(track)); a.status != want {
					t.Fatalf("status %d, want %d", a.status, want)
				}
			}
		}
		post(10, 200)
		if lines() != 0 {
			t.Errorf("logged %s, want nothing", log.String())
		}
		for range 5 { // a queue at its bound refuses some requests and accepts others
			f.fail(webhook.ErrQueueFull)
			post(10, 503)
			f.fail(nil)
			post(10, 200)
			time.Sleep(time.Second)
		}
		if got := log.String(); lines() != 1 || !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "queue is full") {
			t.Errorf("logged %s, want one error", got)
		}
		time.Sleep(9 * time.Second)
		post(10, 200)
		if got := log.String(); lines() != 2 || !strings.Contains(got, "level=INFO") || !strings.Contains(got, "after=14s refused=50") {
			t.Errorf("logged %s, want one error and one recovery", got)
		}
		f.fail(errors.New("disk full"))
		post(10, 503)
		if got := log.String(); lines() != 3 || !strings.Contains(got, "disk full") {
			t.Errorf("logged %s, want another error", got)
		}
	})
}

func TestRejectionsAreLoggedForDebugging(t *testing.T) {
	var log bytes.Buffer
	h := newHandler(t, &forwarder{}, func(c *collector.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	send(t, h, "POST", "/v1/batch", auth, strings.NewReader(`{"batch":[{"type":"track","userId":"private"},{},`+track+`]}`))
	got := log.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "source=shop refused=2 taken=1 code=missing_field") || strings.Contains(got, "private") {
		t.Errorf("logged %s, want one line with the counts and the first code, and no user id", got)
	}
}

// TestLookupOfAGoneClientIsNotLogged shows that the handler does not log a lookup that fails
// because its client is gone.
func TestLookupOfAGoneClientIsNotLogged(t *testing.T) {
	for _, tt := range []struct{ method, path string }{{"POST", "/v1/batch"}, {"POST", "/v1/track"}, {"GET", "/v1/projects/key/settings"}} {
		var log bytes.Buffer
		h := newHandler(t, &forwarder{}, func(c *collector.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Sources = func(ctx context.Context, _ string) (collector.Source, error) {
				<-ctx.Done()
				return collector.Source{}, ctx.Err()
			}
		})
		ctx, hangUp := context.WithCancel(t.Context())
		hangUp()
		r := httptest.NewRequestWithContext(ctx, tt.method, tt.path, strings.NewReader(`{"batch":[]}`))
		r.Header.Set("Authorization", basic)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if a := check(t, w.Result()); a.status != 503 || log.Len() > 0 {
			t.Errorf("%s %s: answered %d %s, logged %s, want 503 and no log", tt.method, tt.path, a.status, a.body, log.String())
		}
	}
}

// TestSlowLookupIsAnOutage shows that the handler logs a lookup that takes too long as a failing
// one.
func TestSlowLookupIsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHandler(t, &forwarder{}, func(c *collector.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.Sources = func(ctx context.Context, _ string) (collector.Source, error) {
				<-ctx.Done()
				return collector.Source{}, ctx.Err()
			}
		})
		// The key is in the body, so the client may be gone before the lookup.
		ctx, hangUp := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/batch", strings.NewReader(`{"writeKey":"key","batch":[]}`))
		time.AfterFunc(time.Second, hangUp)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if a := check(t, w.Result()); a.status != 503 || !strings.Contains(log.String(), "deadline exceeded") {
			t.Errorf("answered %d %s, logged %q, want 503 and the exceeded deadline", a.status, a.body, log.String())
		}
	})
}

// TestMemoryIsBoundedAndReleased shows that the memory of all requests at once is bounded, and that
// each request releases its memory.
func TestMemoryIsBoundedAndReleased(t *testing.T) {
	const limit = 1600 << 10
	f := &forwarder{}
	h := newHandler(t, f, func(c *collector.Config) { c.MaxMemory = limit })
	large := batchOf(10, 300<<10)
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(large)); a.status != 200 {
		t.Fatalf("a large batch alone: answered %d %s, want 200", a.status, a.body)
	}

	// A request whose body has stopped arriving holds its buffer.
	pr, pw := io.Pipe()
	done := make(chan answer)
	go func() { done <- send(t, h, "POST", "/v1/batch", auth, pr) }()
	if _, err := io.WriteString(pw, large[:200<<10]); err != nil {
		t.Fatal(err)
	}
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(large)); a.status != 503 {
		t.Errorf("a large batch beside another: answered %d %s, want 503", a.status, a.body)
	}
	if a := send(t, h, "POST", "/v1/track", auth, strings.NewReader(track)); a.status != 200 {
		t.Errorf("a small call beside a large batch: answered %d %s, want 200", a.status, a.body)
	}
	io.WriteString(pw, large[200<<10:])
	pw.Close()
	if a := <-done; a.status != 200 {
		t.Errorf("the large batch, completed: answered %d %s, want 200", a.status, a.body)
	}
	for range 20 {
		if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(large)); a.status != 200 {
			t.Fatalf("a large batch after the others: answered %d %s, want 200", a.status, a.body)
		}
	}

	// A context counts for each call and each destination that repeats it. The answer is 503 if
	// the request may have room later, and 400 if it would not fit even alone.
	repeated := func(n int) string {
		return `{"batch":[` + strings.Repeat(`{"type":"page","userId":"u"},`, n-1) + `{"type":"page","userId":"u"}],"context":{"a":"` + strings.Repeat("x", 30000) + `"}}`
	}
	pr, pw = io.Pipe()
	go func() { done <- send(t, h, "POST", "/v1/batch", auth, pr) }()
	if _, err := io.WriteString(pw, large[:200<<10]); err != nil {
		t.Fatal(err)
	}
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(repeated(8))); a.status != 503 {
		t.Errorf("a context repeated 8 times beside another: answered %d, want 503", a.status)
	}
	pw.CloseWithError(io.ErrUnexpectedEOF)
	if a := <-done; a.status != 400 {
		t.Errorf("the other request, cut off: answered %d %s, want 400", a.status, a.body)
	}
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(repeated(8))); a.status != 200 {
		t.Errorf("a context repeated 8 times: answered %d %s, want 200", a.status, a.body)
	}
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(repeated(60))); a.status != 400 || a.Code != "too_large" {
		t.Errorf("a context repeated 60 times: answered %d %s, want 400", a.status, a.body)
	}
	if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(large)); a.status != 200 {
		t.Errorf("a large batch after the refused one: answered %d %s, want 200", a.status, a.body)
	}
	for name, body := range map[string]string{"plain": large, "gzip": string(zipped([]byte(large)))} {
		small := newHandler(t, f, func(c *collector.Config) { c.MaxMemory = 60 << 10 })
		if a := send(t, small, "POST", "/v1/batch", auth, strings.NewReader(body)); a.status != 400 || a.Code != "too_large" {
			t.Errorf("%s, a batch over all memory: answered %d %s, want 400", name, a.status, a.body)
		}
		if a := send(t, small, "POST", "/v1/track", auth, strings.NewReader(track)); a.status != 200 {
			t.Errorf("%s, a small call after the batch: answered %d %s, want 200", name, a.status, a.body)
		}
	}
}

// TestRequestsFitOrAreTooLargeAtAnyBound shows that the handler refuses a request beyond any memory
// bound as too large, and accepts a request within it. Neither keeps memory.
func TestRequestsFitOrAreTooLargeAtAnyBound(t *testing.T) {
	pages := strings.Repeat(`,{"type":"page","userId":"u"}`, 20)[1:]
	for _, tt := range []struct {
		name, path string
		body       []byte
	}{
		{"a call", "/v1/track", []byte(track)},
		{"a large call", "/v1/track", []byte(`{"event":"E","userId":"u","properties":{"a":"` + strings.Repeat("x", 30<<10) + `"}}`)},
		{"a compressed call", "/v1/track", zipped([]byte(track))},
		{"a batch", "/v1/batch", []byte(batchOf(10, 70<<10))},
		{"a batch with a context", "/v1/batch", []byte(`{"batch":[` + pages + `],"context":{"a":"` + strings.Repeat("x", 20<<10) + `"}}`)},
	} {
		refused, taken := 0, 0
		for limit := int64(1 << 10); limit <= 3<<20; limit += 6 << 10 {
			h := newHandler(t, &forwarder{}, func(c *collector.Config) { c.MaxMemory = limit })
			for range 2 {
				switch a := send(t, h, "POST", tt.path, auth, bytes.NewReader(tt.body)); {
				case a.status == 200:
					taken++
				case a.status == 400 && a.Code == "too_large" && taken == 0:
					refused++
				default:
					t.Fatalf("%s within %d bytes: answered %d %s, after %d requests were accepted and %d refused", tt.name, limit, a.status, a.body, taken, refused)
				}
			}
		}
		if refused == 0 || taken == 0 {
			t.Errorf("%s: %d requests were refused and %d accepted, want some of each", tt.name, refused, taken)
		}
	}
}

// TestBatchHasTheBodiesOfSingleCalls shows that the calls of a batch have the same bodies as
// single calls, whether the buffer that they share has room for them or not. An append to one
// body does not change another.
func TestBatchHasTheBodiesOfSingleCalls(t *testing.T) {
	const calls = 60
	for _, properties := range []string{`{"a":1}`, `{"a":[` + strings.Repeat("1e20,", 1000) + `1]}`} {
		var list []string
		for i := range calls {
			call := fmt.Sprintf(`{"type":"track","userId":"u","event":"e","messageId":"m%d","timestamp":"2026-03-01T12:00:00Z","properties":%s}`, i, properties)
			switch i % 10 {
			case 3:
				call = `{"type":"track","userId":"u"}` // has no event
			case 7:
				call = call[:len(call)-1] + `,"integrations":{"All":false}}`
			}
			list = append(list, call)
		}
		f := &forwarder{}
		if a := send(t, newHandler(t, f), "POST", "/v1/batch", auth, strings.NewReader(`{"batch":[`+strings.Join(list, ",")+`]}`)); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		events := f.events()
		for i, call := range list {
			if i%10 == 3 {
				continue
			}
			encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: events[0].Received, Source: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			want, err := encoder.Encode(event.JSON(call))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(want, events[0]) { // DeepEqual is faster than cmp with long bodies
				t.Errorf("call %d (-single +in the batch):\n%s", i, cmp.Diff(want, events[0], cmp.AllowUnexported(event.Event{})))
			}
			_ = append(events[0].Body, "spoiled"...)
			events = events[1:]
		}
		if len(events) > 0 {
			t.Errorf("%d more events than good calls, want none", len(events))
		}
	}
}

// TestSlowLookupLeavesNoTimeToForward shows that the handler does not call the forwarder after a
// lookup that used up the time of the request.
func TestSlowLookupLeavesNoTimeToForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) {
			c.Sources = func(ctx context.Context, _ string) (collector.Source, error) {
				<-ctx.Done()
				return collector.Source{Destinations: []string{"crm"}}, nil
			}
		})
		start := time.Now()
		a := send(t, h, "POST", "/v1/batch", nil, strings.NewReader(`{"writeKey":"key","batch":[`+track+`]}`))
		if a.status != 503 || f.calls() != 0 || time.Since(start) >= 5*time.Second {
			t.Errorf("answered %d %s after %v, forwarded %d times, want 503 within 5s", a.status, a.body, time.Since(start), f.calls())
		}
	})
}

// serve serves requests on a network in memory until the test ends. The test runs in a bubble.
func serve(t *testing.T, s *http.Server) (*memnet.Network, string) {
	t.Helper()
	n := new(memnet.Network)
	l, err := n.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(l) })
	t.Cleanup(func() {
		s.Close()
		serving.Wait()
		time.Sleep(time.Second) // net/http keeps a connection with an unread request for a while
	})
	return n, l.Addr().String()
}

// TestSlowBodyEndsWithContextOrServer shows that the handler waits for a body at most until the end
// of the request's context, and at most for the ReadTimeout of the server.
func TestSlowBodyEndsWithContextOrServer(t *testing.T) {
	for _, tt := range []struct {
		name            string
		context, server time.Duration
		want            int
	}{
		{"context", 3 * time.Second, 10 * time.Second, 503},
		{"server", 10 * time.Second, 3 * time.Second, 408},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHandler(t, &forwarder{})
				n, address := serve(t, &http.Server{ReadTimeout: tt.server, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, cancel := context.WithTimeout(r.Context(), tt.context)
					defer cancel()
					h.ServeHTTP(w, r.WithContext(ctx))
				})})
				conn, err := n.DialContext(t.Context(), "tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				began := time.Now()
				fmt.Fprintf(conn, "POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 100\r\n\r\n{", basic)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); resp.StatusCode != tt.want || took != 3*time.Second {
					t.Errorf("answered %s after %v, want %d after 3s", resp.Status, took, tt.want)
				}
			})
		})
	}
}

// TestCallsOfAGoneClientAreForwarded shows that the handler forwards the calls of a client that
// does not wait for its answer.
func TestCallsOfAGoneClientAreForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan context.Context, 1)
		forwarded := make(chan error, 1)
		h := newHandler(t, forwardFunc(func(ctx context.Context) error {
			<-(<-gone).Done() // net/http has seen that the client is gone
			forwarded <- ctx.Err()
			return ctx.Err()
		}))
		n, address := serve(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			gone <- r.Context()
			h.ServeHTTP(w, r)
		})})
		conn, err := n.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/track HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s", basic, len(track), track)
		conn.Close()
		if err := <-forwarded; err != nil {
			t.Errorf("ForwardEvents got a context that has ended: %v", err)
		}
	})
}

type forwardFunc func(context.Context) error

func (f forwardFunc) ForwardEvents(ctx context.Context, _ []string, _ ...event.Event) error {
	return f(ctx)
}

func TestUnreadableBody(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"cut off", io.ErrUnexpectedEOF, 400},
		{"too slow for the server", fmt.Errorf("read: %w", os.ErrDeadlineExceeded), 408},
		{"too large for the server", &http.MaxBytesError{Limit: 1}, 400},
	} {
		body := unsized{io.MultiReader(strings.NewReader(`{"batch":`), iotest.ErrReader(tt.err))}
		if a := send(t, newHandler(t, &forwarder{}), "POST", "/v1/batch", auth, body); a.status != tt.want {
			t.Errorf("%s: answered %d %s, want %d", tt.name, a.status, a.body, tt.want)
		}
	}
}

// TestRepeatedRequestIsForwardedOnce shows that a repeated request gets the answer of the first
// one. Its calls make no new deliveries.
func TestRepeatedRequestIsForwardedOnce(t *testing.T) {
	q := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer q.Close()
	f, err := webhook.New(webhook.Config{
		Store: q,
		Destinations: []webhook.Destination{
			{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/hook"}}},
			{ID: "warehouse", Endpoints: []webhook.Endpoint{{URL: "http://warehouse.example/hook"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, f)
	body := `{"batch":[` + track + `,{"type":"page","userId":"u","messageId":"m2"},` + track + `]}`
	for range 3 {
		if a := send(t, h, "POST", "/v1/batch", auth, strings.NewReader(body)); a.status != 200 || len(a.Rejected) > 0 {
			t.Errorf("answered %d %s, want 200 and no rejected calls", a.status, a.body)
		}
	}
	n, err := q.Count(t.Context())
	if err != nil || n.Waiting != 4 {
		t.Errorf("%d deliveries wait, %v, want 4: 2 calls for 2 destinations", n.Waiting, err)
	}
	// Another source may have the same ids.
	another := newHandler(t, f, func(c *collector.Config) {
		c.Sources = collector.Keys(map[string]collector.Source{"key": {Name: "browser", Destinations: []string{"crm", "warehouse"}}})
	})
	for range 2 {
		if a := send(t, another, "POST", "/v1/batch", auth, strings.NewReader(body)); a.status != 200 || len(a.Rejected) > 0 {
			t.Errorf("answered %d %s, want 200 and no rejected calls", a.status, a.body)
		}
	}
	if n, err = q.Count(t.Context()); err != nil || n.Waiting != 8 {
		t.Errorf("%d deliveries wait, %v, want 8: 2 calls for 2 destinations from each of 2 sources", n.Waiting, err)
	}
}

// TestEventsNameTheirSource shows that the events of a source have its Name. If the source has no
// Name, its events have a digest of the write key, which does not reveal the key.
func TestEventsNameTheirSource(t *testing.T) {
	f := &forwarder{}
	h := newHandler(t, f, func(c *collector.Config) {
		c.Sources = collector.Keys(map[string]collector.Source{
			"browserKey": {Name: "browser", Destinations: []string{"crm"}},
			"otherKey":   {Name: "browser", Destinations: []string{"crm"}},
			"namelessA":  {Destinations: []string{"crm"}},
			"namelessB":  {Destinations: []string{"crm"}},
		})
	})
	var got []string
	for _, key := range []string{"browserKey", "otherKey", "namelessA", "namelessB"} {
		inHeader := map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(key+":"))}
		a := send(t, h, "POST", "/v1/batch", inHeader, strings.NewReader(`{"batch":[`+track+`]}`))
		inBody := send(t, h, "POST", "/v1/track", nil, strings.NewReader(track[:len(track)-1]+`,"writeKey":"`+key+`"}`))
		if a.status != 200 || inBody.status != 200 {
			t.Fatalf("%s: answered %d and %d, want 200 for both", key, a.status, inBody.status)
		}
		events := f.events()
		events = events[len(events)-2:]
		if events[0].Source != events[1].Source || strings.Contains(events[0].Source, key) {
			t.Errorf("%s: the Source is %q, and %q with the key in the body, want the same without the key", key, events[0].Source, events[1].Source)
		}
		got = append(got, events[0].Source)
	}
	want := []string{"browser", "browser", got[2], got[3]}
	if !reflect.DeepEqual(got, want) || got[2] == got[3] || got[2] == "" {
		t.Errorf("sources %q, want browser twice, and two different digests", got)
	}
}

func TestConcurrentRequestsKeepTheirBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		n, address := serve(t, &http.Server{Handler: newHandler(t, f)})
		transport := &http.Transport{DialContext: n.DialContext}
		defer transport.CloseIdleConnections()
		const clients, requests, each = 8, 20, 30
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for i := range requests {
					var b bytes.Buffer
					fmt.Fprintf(&b, `{"batch":[`)
					for j := range each {
						if j > 0 {
							b.WriteByte(',')
						}
						fmt.Fprintf(&b, `{"type":"track","userId":"u","event":"%s","messageId":"%d.%d.%d"}`, strings.Repeat("e", c*i*j%500+1), c, i, j)
					}
					b.WriteString(`]}`)
					body := b.Bytes()
					req, err := http.NewRequest("POST", "http://"+address+"/v1/batch", nil)
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Authorization", basic)
					if i%2 == 0 {
						body = zipped(body)
						req.Header.Set("Content-Encoding", "gzip")
					}
					req.Body = io.NopCloser(bytes.NewReader(body))
					resp, err := transport.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					if a := check(t, resp); a.status != 200 || len(a.Rejected) > 0 {
						t.Errorf("answered %d %s, want 200 and no rejected calls", a.status, a.body)
					}
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, e := range f.events() {
			var body struct{ MessageID string }
			if err := json.Unmarshal(e.Body, &body); err != nil || body.MessageID != e.ID {
				t.Fatalf("the body %s has another messageId than its event, want %s: %v", e.Body, e.ID, err)
			}
			seen[e.ID] = true
		}
		if len(seen) != clients*requests*each {
			t.Errorf("%d different calls arrived, want %d", len(seen), clients*requests*each)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	good := collector.Config{Forwarder: &forwarder{}, Sources: lookup}
	for _, tt := range []struct {
		name   string
		change func(*collector.Config)
		want   string
	}{
		{"no forwarder", func(c *collector.Config) { c.Forwarder = nil }, "Forwarder"},
		{"no sources", func(c *collector.Config) { c.Sources = nil }, "Sources"},
		{"header with a comma", func(c *collector.Config) { c.AllowHeaders = []string{"a,b"} }, "AllowHeaders"},
		{"negative memory", func(c *collector.Config) { c.MaxMemory = -1 }, "MaxMemory"},
		{"URL without scheme", func(c *collector.Config) { c.BaseURL = "t.example" }, "BaseURL"},
		{"URL of another scheme", func(c *collector.Config) { c.BaseURL = "ftp://t.example" }, "BaseURL"},
		{"URL with a space", func(c *collector.Config) { c.BaseURL = "https://t.example " }, "BaseURL"},
		{"URL without host", func(c *collector.Config) { c.BaseURL = "https:///x" }, "BaseURL"},
		{"URL with a password", func(c *collector.Config) { c.BaseURL = "https://u:hunter2@t.example" }, "BaseURL"},
		{"URL with a query", func(c *collector.Config) { c.BaseURL = "https://t.example?a=hunter2" }, "BaseURL"},
		{"not a URL", func(c *collector.Config) { c.BaseURL = "https://hunter2 %" }, "BaseURL"},
	} {
		c := good
		tt.change(&c)
		h, err := collector.New(c)
		if err == nil || h != nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: New = %v, %v, want an error about %s", tt.name, h, err, tt.want)
		}
	}
}

func TestKeysCopiesItsMap(t *testing.T) {
	sources := map[string]collector.Source{"key": {Destinations: []string{"a"}}, "": {Name: "nobody"}}
	keys := collector.Keys(sources)
	sources["key"].Destinations[0] = "changed"
	sources["other"] = collector.Source{}
	if s, err := keys(t.Context(), "key"); err != nil || s.Destinations[0] != "a" {
		t.Errorf("the key \"key\": %+v, %v, want the destination a", s, err)
	}
	for _, key := range []string{"other", "", "Key"} {
		if s, err := keys(t.Context(), key); !errors.Is(err, collector.ErrUnknownKey) {
			t.Errorf("the key %q: %+v, %v, want ErrUnknownKey", key, s, err)
		}
	}
}

func TestNegativeConfig(t *testing.T) {
	testkit.Negative(t, collector.Config{Forwarder: &sink{}, Sources: lookup}, func(c collector.Config) error {
		_, err := collector.New(c)
		return err
	})
}
