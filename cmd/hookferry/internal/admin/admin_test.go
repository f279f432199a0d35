package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// A server is a Handler, the Forwarder that it manages, and a receiver of its webhooks.
type server struct {
	t         testing.TB
	client    *http.Client
	handler   *Handler
	url       string
	forwarder *webhook.Forwarder
	store     webhook.Store
	receiver  *receiver
	token     string // of requests; "" for none
}

// A network connects clients, a server and its receiver.
type network struct {
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error) // nil: the system's
}

// inMemory returns a network that may be used in a bubble.
func inMemory() network {
	n := new(memnet.Network)
	return network{n.Listen, n.DialContext}
}

// serve serves requests until the test ends.
func (n network) serve(t testing.TB, s *http.Server) *httptest.Server {
	t.Helper()
	l, err := n.listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: s}
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// A receiver answers webhooks with a status, and records the requests.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	got    []*http.Request
}

func newReceiver(t testing.TB, n network) *receiver {
	r := &receiver{status: 200}
	r.Server = n.serve(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		r.mu.Lock()
		r.got = append(r.got, q)
		status := r.status
		r.mu.Unlock()
		w.Header().Set("X-Receiver", "test")
		w.WriteHeader(status)
		io.WriteString(w, "answered")
	})})
	return r
}

func (r *receiver) answers(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

const (
	secret      = "the shared secret"
	credentials = "Bearer s3cret-value"
)

// newServer starts a server with two destinations and two sources. Webhooks of "crm" are signed,
// those of "shop/eu" are not. change, which may be nil, may change the Config.
func newServer(t testing.TB, change func(*Config)) *server {
	return newServerOn(t, inMemory(), func(*config.Settings) {}, change)
}

// newServerWith is newServer, with an edit of the settings.
func newServerWith(t testing.TB, edit func(*config.Settings)) *server {
	return newServerOn(t, inMemory(), edit, nil)
}

func newServerOn(t testing.TB, n network, edit func(*config.Settings), change func(*Config)) *server {
	return newServerOf(t, testkit.Must(memqueue.Open(memqueue.Config{})), n, edit, change)
}

// newServerOf is newServerOn with a store, which the test closes when it ends.
func newServerOf(t testing.TB, queue webhook.Store, n network, edit func(*config.Settings), change func(*Config)) *server {
	transport := &http.Transport{DialContext: n.dial}
	t.Cleanup(transport.CloseIdleConnections)
	s := &server{t: t, client: &http.Client{Transport: transport}, receiver: newReceiver(t, n), store: queue}
	t.Cleanup(func() { s.store.Close() })
	settings := config.Default()
	settings.Path, settings.Loaded = "hookferry.yaml", time.Now()
	crm, shop := config.Destination{}, config.Destination{}
	crm.ID, crm.Secret, crm.MaxRate = "crm", secret, 100_000
	crm.Endpoints = []webhook.Endpoint{{
		URL:     strings.Replace(s.receiver.URL, "http://", "http://user:passw0rd@", 1) + "/crm?token=s3cret",
		Headers: map[string]string{"Authorization-Key": credentials},
	}}
	shop.ID = "shop/eu"
	shop.Endpoints = []webhook.Endpoint{{URL: s.receiver.URL + "/shop"}}
	settings.Destinations = []config.Destination{crm, shop}
	web, app := config.Source{}, config.Source{}
	web.Name, web.Keys, web.Destinations = "web", []signature.Secret{"web-write-key"}, []string{"crm", "shop/eu"}
	app.Name, app.Keys, app.Destinations = "app", []signature.Secret{"app-write-key"}, []string{"crm"}
	settings.Sources = []config.Source{web, app}
	edit(settings)
	if age := settings.History.MaxAge; age != 0 {
		s.store.Close()
		var err error
		if s.store, err = filequeue.Open(disk.Mount(simdisk.New(1)), filequeue.Config{HistoryAge: age}); err != nil {
			t.Fatal(err)
		}
	}
	if err := settings.Complete(); err != nil {
		t.Fatal(err)
	}
	var all atomic.Pointer[config.Settings]
	all.Store(settings)
	var own *tenants.Directory
	own, err := tenants.New(s.store, tenants.Config{
		AllowAddresses: settings.Webhooks.Allow, Routed: func() { all.Store(settings.With(own.Routes())) },
	})
	if err == nil {
		err = own.Load(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	f := feed.New()
	if s.forwarder, err = webhook.New(webhook.Config{
		Store: s.store, Observers: []webhook.Observer{f}, DialContext: n.dial, AnswerAge: time.Nanosecond,
		Directory: config.Directory{Settings: all.Load, Tenants: own},
	}); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Forwarder: s.forwarder, Store: s.store, Roster: memroster.New(1 << 30), Feed: f,
		Settings: all.Load,
		Tenants:  own,
		Sources: func() []api.Source {
			return []api.Source{{Name: "web", Keys: 1, Enabled: true, Destinations: []string{"crm", "shop/eu"}}, {Name: "app", Keys: 1, Destinations: []string{"crm"}}}
		},
		Calls: func() api.Calls { return api.Calls{Requests: 3, Accepted: 2, Rejected: 1} },
		Node: func() api.Node {
			started := time.Now().UTC().Add(-time.Minute)
			return api.Node{Name: "host/self", Version: "v1.2.3", Started: started, Ready: true}
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	s.handler = New(c)
	s.url = n.serve(t, &http.Server{Handler: s.handler, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second}).URL
	t.Cleanup(s.handler.Close)
	return s
}

// run runs the forwarder until the test ends.
func (s *server) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.forwarder.Run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() { cancel(); running.Wait() })
}

// track forwards a call for each id.
func (s *server) track(destination string, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		call := &analytics.Track{UserId: "u1", Event: "Signed <Up>", MessageId: id}
		if err := s.forwarder.Forward(s.t.Context(), destination, call); err != nil {
			s.t.Fatal(err)
		}
	}
}

// request makes a request. A string is a body in JSON, a reader is a body of lines, and any other
// value but nil becomes JSON.
func (s *server) request(method, path string, body any) *http.Request {
	s.t.Helper()
	var r io.Reader
	kind := ""
	switch b := body.(type) {
	case nil:
	case string:
		r, kind = strings.NewReader(b), "application/json"
	case io.Reader:
		r, kind = b, api.LinesType
	default:
		text, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		r, kind = bytes.NewReader(text), "application/json"
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, r)
	if err != nil {
		s.t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	return req
}

func (s *server) do(req *http.Request) (*http.Response, []byte) {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.Header.Get("Content-Type") == api.StreamType {
		for line := range bytes.Lines(body) {
			s.conforms(resp, line)
		}
	} else {
		s.conforms(resp, body)
	}
	return resp, body
}

// ask makes a request, checks that the answer has the status want, and decodes it. No answer may
// have a secret.
func ask[T any](s *server, want int, method, path string, body any) (v T) {
	s.t.Helper()
	resp, text := s.do(s.request(method, path, body))
	if resp.StatusCode != want {
		s.t.Fatalf("%s %s: %s, want %d: %s", method, path, resp.Status, want, text)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		s.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
	for _, s3cret := range []string{secret, "s3cret", "passw0rd", "write-key"} {
		if bytes.Contains(text, []byte(s3cret)) {
			s.t.Errorf("%s %s: the answer holds %q: %s", method, path, s3cret, text)
		}
	}
	return v
}

func diff(t testing.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestStatusCountsCallsAndDeliveries(t *testing.T) {
	s := newServer(t, nil)
	s.track("crm", "m1", "m2", "m1")
	got := ask[api.Status](s, 200, "GET", api.StatusPath, nil)
	if got.Version != "v1.2.3" || got.Node == "" || got.Config.File != "hookferry.yaml" || !got.Ready || got.Memory <= 0 || got.Oldest.IsZero() {
		t.Errorf("status %+v, want the version, the node, the file, ready, the memory and the oldest delivery", got)
	}
	if got.Waiting != 2 || got.Totals.Accepted != 2 || got.Totals.Duplicates != 1 || got.Calls.Requests != 3 {
		t.Errorf("status %+v, want two waiting and two accepted deliveries, one duplicate, and 3 requests", got)
	}
}

func TestSourcesAreListedByName(t *testing.T) {
	s := newServer(t, nil)
	got := ask[api.Page[api.Source]](s, 200, "GET", api.SourcesPath, nil)
	if len(got.Items) != 2 || got.Items[0].Name != "app" || got.After != "" || got.Total != 2 {
		t.Errorf("sources %+v, want app and web", got)
	}
}

func TestSourcesArePaged(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Sources = func() (all []api.Source) {
			for i := range 12 { // not sorted
				all = append(all, api.Source{Name: fmt.Sprintf("App %02d", i*5%12), Destinations: []string{}})
			}
			return append(all, api.Source{Name: "web", Destinations: []string{}})
		}
	})
	page := func(query string) (names []string, p api.Page[api.Source]) {
		p = ask[api.Page[api.Source]](s, 200, "GET", api.SourcesPath+query, nil)
		for _, source := range p.Items {
			names = append(names, source.Name)
		}
		return names, p
	}
	var all []string
	for after := ""; len(all) == 0 || after != ""; {
		names, p := page("?limit=5&after=" + url.QueryEscape(after))
		if p.Total != 13 || len(names) > 5 {
			t.Errorf("page after %q: %q of a total of %d, want at most 5 of 13", after, names, p.Total)
		}
		all, after = append(all, names...), p.After
	}
	if len(all) != 13 || len(slices.Compact(slices.Clone(all))) != 13 || !slices.IsSorted(all) {
		t.Errorf("all pages have %q, want 13 sorted names", all)
	}
	for _, tt := range []struct {
		query string
		want  []string
		total int
	}{
		{"?q=aPp%200&limit=2", []string{"App 00", "App 01"}, 10},
		{"?q=EB", []string{"web"}, 1},
		{"?q=other", nil, 0},
		{"?after=App%2010a", []string{"App 11", "web"}, 13}, // the source no longer exists
		{"?after=x", nil, 13},
	} {
		names, p := page(tt.query)
		diff(t, tt.query, names, tt.want)
		if p.Total != tt.total {
			t.Errorf("GET sources%s: total %d, want %d", tt.query, p.Total, tt.total)
		}
	}
}

// TestDestinationNamesSomeOfItsSources shows that a destination with thousands of sources names
// some of them, and their number.
func TestDestinationNamesSomeOfItsSources(t *testing.T) {
	s := newServerWith(t, func(settings *config.Settings) {
		for i := range 2_000 {
			source := config.Source{}
			source.Name, source.Destinations = fmt.Sprintf("s%04d", i), []string{"crm"}
			source.Keys = []signature.Secret{signature.Secret("key-" + source.Name)}
			settings.Sources = append(settings.Sources, source)
		}
	})
	got := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/crm", nil)
	diff(t, "sources", got.Sources, []string{"app", "s0000", "s0001", "s0002", "s0003", "s0004", "s0005", "s0006", "s0007", "s0008"})
	if got.SourceCount != 2_002 {
		t.Errorf("SourceCount = %d, want 2,002", got.SourceCount)
	}
}

func TestDestinations(t *testing.T) {
	s := newServer(t, nil)
	s.track("crm", "m1")
	all := ask[api.Destinations](s, 200, "GET", api.DestinationsPath, nil).Items
	if len(all) != 2 {
		t.Fatalf("%d destinations, want 2", len(all))
	}
	crm := all[0]
	if crm.Oldest.IsZero() || crm.Next.IsZero() {
		t.Error("the destination lacks the time of its oldest delivery or of its next attempt")
	}
	crm.Oldest, crm.Next, crm.DeadLetters = time.Time{}, time.Time{}, nil
	diff(t, "crm", crm, api.Destination{
		ID: "crm", State: api.StateWaiting, Sources: []string{"app", "web"}, SourceCount: 2, Enabled: true, Signed: true, MaxRate: 100_000,
		Endpoints: []api.ShownEndpoint{{URL: s.receiver.URL + "/crm", Headers: []string{"Authorization-Key"}}},
		Waiting:   1, Dead: map[string]int64{}, Errors: map[string]int64{}, Rates: crm.Rates,
	})
	shop := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/shop%2Feu", nil)
	if shop.Waiting != 0 || !shop.Next.IsZero() || shop.ID != "shop/eu" {
		t.Errorf("destination %+v, want shop/eu without deliveries", shop)
	}
	refused := ask[api.Error](s, 404, "GET", "/api/v1/destinations/other", nil)
	diff(t, "error", refused, api.Error{Code: api.CodeNotFound, Message: `there is no destination "other"`})
}

// moreDestinations adds n destinations, "d0000" and so on, and a source for each thousand of them.
func moreDestinations(n int) func(*config.Settings) {
	return func(settings *config.Settings) {
		for i := range n {
			d := config.Destination{}
			d.ID = fmt.Sprintf("d%04d", i)
			d.Endpoints = []webhook.Endpoint{{URL: fmt.Sprintf("https://user:passw0rd@Host%d.example/hook?s3cret", i)}}
			settings.Destinations = append(settings.Destinations, d)
			if i%1000 == 0 {
				source := config.Source{}
				source.Name, source.Keys = "of "+d.ID, []signature.Secret{signature.Secret("write-key-" + d.ID)}
				settings.Sources = append(settings.Sources, source)
			}
			source := &settings.Sources[len(settings.Sources)-1]
			source.Destinations = append(source.Destinations, d.ID)
		}
	}
}

func TestDestinationsAreSelected(t *testing.T) {
	s := newServerWith(t, moreDestinations(30))
	s.track("d0007", "m1", "m2")
	s.track("d0003", "m3", "m4", "m5")
	put(t, s.store, "gone", "m6")
	if err := s.forwarder.Pause(t.Context(), "d0005"); err != nil {
		t.Fatal(err)
	}
	states := map[string]int{"idle": 29, "waiting": 2, "paused": 1, "unknown": 1}
	for _, tt := range []struct {
		name, query string
		want        []string
		total       int
		states      map[string]int
	}{
		{"by id", "?limit=3", []string{"crm", "d0000", "d0001"}, 33, states},
		{"by state, the worst first", "?limit=5&sort=state", []string{"gone", "d0005", "d0003", "d0007", "crm"}, 33, states},
		{"by waiting deliveries", "?limit=4&sort=waiting", []string{"d0003", "d0007", "gone", "crm"}, 33, states},
		{"by dead letters", "?limit=2&sort=dead", []string{"crm", "d0000"}, 33, states},
		{"a part of the id", "?q=D002&limit=2", []string{"d0020", "d0021"}, 10, map[string]int{"idle": 10}},
		{"a part of a host", "?q=hosT29", []string{"d0029"}, 1, map[string]int{"idle": 1}},
		{"a part of a URL that is not shown", "?q=passw0rd", nil, 0, map[string]int{}},
		{"a query that is not shown", "?q=s3cret", nil, 0, map[string]int{}},
		{"states", "?state=paused&state=waiting&sort=state", []string{"d0005", "d0003", "d0007"}, 3, states},
		{"a source", "?source=web", []string{"crm", "shop/eu"}, 2, map[string]int{"idle": 2}},
		{"an unknown source", "?source=other", nil, 0, map[string]int{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+tt.query, nil)
			var got []string
			for _, d := range page.Items {
				got = append(got, d.ID)
			}
			diff(t, "ids", got, tt.want)
			diff(t, "states", page.States, tt.states)
			if page.Total != tt.total || (page.After != "") != (tt.total > len(tt.want)) {
				t.Errorf("total %d and after %q, want a total of %d", page.Total, page.After, tt.total)
			}
		})
	}
}

// claim claims the due deliveries of some destinations.
func claim(t testing.TB, queue webhook.Store, destinations ...string) []webhook.Delivery {
	t.Helper()
	var wants []store.Want
	for _, d := range destinations {
		wants = append(wants, store.Want{Destination: d, Max: 1000})
	}
	ds, err := queue.Fetch(t.Context(), wants, 1<<30, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// put stores a delivery without the forwarder.
func put(t testing.TB, queue webhook.Store, destination, id string) {
	t.Helper()
	now := time.Now()
	ps := []store.Put{{Delivery: webhook.Delivery{Destination: destination, ID: id, MessageID: id, Type: "track", Body: []byte("{}"), Accepted: now, Due: now}}}
	if err := queue.Put(t.Context(), ps, make([]store.Result, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestDestinationsArePaged shows that the pages have every destination once, in every order. This
// holds even if the counts that decide the order change.
func TestDestinationsArePaged(t *testing.T) {
	s := newServerWith(t, moreDestinations(30))
	for _, order := range append(slices.Clone(api.Sorts), "") {
		var got []string
		for after, n := "", 0; n == 0 || after != ""; n++ {
			if n == 2 {
				s.track(got[0], order) // its deliveries wait, so it stays before the others
			}
			page := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?limit=7&sort="+order+"&after="+url.QueryEscape(after), nil)
			for _, d := range page.Items {
				got = append(got, d.ID)
			}
			after = page.After
		}
		slices.Sort(got)
		if once := slices.Compact(slices.Clone(got)); len(got) != 32 || len(once) != 32 {
			t.Errorf("sort=%s: %d destinations, %d of them different; want 32", order, len(got), len(once))
		}
	}
}

// BenchmarkDestinations asks for a page of 10,000 destinations. Every hundredth destination has a
// waiting delivery.
func BenchmarkDestinations(b *testing.B) {
	s := newServerWith(b, moreDestinations(9_998))
	for i := range 100 {
		s.track(fmt.Sprintf("d%04d", i*100), "m")
	}
	for _, query := range []string{"", "?sort=state", "?q=host99", "/d0007"} {
		b.Run("query="+query, func(b *testing.B) {
			r := httptest.NewRequest("GET", api.DestinationsPath+query, nil)
			r.Host = "localhost"
			r.RemoteAddr = "127.0.0.1:1"
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, r)
				if w.Code != 200 {
					b.Fatal(w.Body)
				}
				b.ReportMetric(float64(w.Body.Len()), "answer-B")
			}
		})
	}
}

func TestPauseAndResume(t *testing.T) {
	s := newServer(t, nil)
	path := "/api/v1/destinations/shop%2Feu/"
	for range 2 {
		d := ask[api.Destination](s, 200, "POST", path+"pause", nil)
		if !d.Paused || d.Held == nil || d.Held.Kind != "paused" {
			t.Errorf("destination %+v after pause, want it paused", d)
		}
	}
	for range 2 {
		if d := ask[api.Destination](s, 200, "POST", path+"resume", nil); d.Paused || d.Held != nil {
			t.Errorf("destination %+v after resume, want it not paused", d)
		}
	}
	ask[api.Error](s, 404, "POST", "/api/v1/destinations/other/pause", nil)
	ask[api.Error](s, 404, "POST", "/api/v1/destinations/other/resume", nil)
}

func TestSeriesHasTheStepsOfItsRange(t *testing.T) {
	s := newServer(t, nil)
	s.track("crm", "m1")
	for query, step := range map[string]float64{"": 1000, "?range=5m": 1000, "?range=1h&destination=crm": 10_000, "?range=24h&destination=shop%2Feu": 300_000} {
		got := ask[api.Series](s, 200, "GET", api.SeriesPath+query, nil)
		if got.Step != step || len(got.Accepted) < 100 || len(got.Accepted) != len(got.P99) {
			t.Errorf("GET series%s: %d steps of %v ms, want at least 100 of %v ms", query, len(got.Accepted), got.Step, step)
		}
	}
}

func TestEventsAreListedAndSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.track("crm", "m1")
		s.run()         // the feed has the accepted delivery m1 by now
		synctest.Wait() // m1 is delivered
		got := ask[api.Events](s, 200, "GET", api.EventsPath, nil)
		if len(got.Events) != 3 {
			t.Fatalf("GET events: %+v, want 3 events", got)
		}
		if got.Seq != 3 || got.Events[0].Seq != 3 {
			t.Errorf("the latest event has the seq %d, and the answer has %d, want 3", got.Events[0].Seq, got.Seq)
		}
		if e := got.Events[2]; e.Kind != "accepted" || !strings.Contains(string(e.Body), `"event":"Signed <Up>"`) {
			t.Errorf("the first event is %+v, want accepted with its body", e)
		}
		if e := got.Events[1]; e.Kind != "attempt" || e.Attempt == nil || e.Attempt.Status != 200 || e.Attempt.Endpoint != s.receiver.URL+"/crm" {
			t.Errorf("the second event is %+v, want an attempt with the status 200", e)
		}
		for query, want := range map[string]int{
			"?limit=2": 2, "?kind=attempt&kind=dead": 1, "?destination=crm": 3, "?type=page": 0, "?q=signed+%3Cup": 3,
		} {
			if got := ask[api.Events](s, 200, "GET", api.EventsPath+query, nil).Events; len(got) != want {
				t.Errorf("GET events%s: %d events, want %d", query, len(got), want)
			}
		}
	})
}

// lines returns a function that decodes the next line of a stream. It returns false at the end.
func lines[T any](t testing.TB, r io.Reader) func() (T, bool) {
	decoder := json.NewDecoder(r)
	return func() (v T, ok bool) {
		err := decoder.Decode(&v)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return v, err == nil
	}
}

func TestLiveStreamsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		open := func(query string) (func() (api.Live, bool), *http.Response) {
			resp, err := s.client.Do(s.request("GET", api.LivePath+query, nil))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { resp.Body.Close() })
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != api.StreamType {
				t.Fatalf("the stream begins with %s, %s, want 200 and the type of streams", resp.Status, resp.Header.Get("Content-Type"))
			}
			return lines[api.Live](t, resp.Body), resp
		}
		next, resp := open("?destination=crm")
		s.track("shop/eu", "m1")
		s.track("crm", "m2")
		first, _ := next()
		line, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		s.conforms(resp, line)
		if first.Event == nil || first.Event.ID != "m2" || first.Event.Seq != 2 {
			t.Errorf("the first line is %+v, want m2", first)
		}
		s.track("crm", "m3")
		if second, _ := next(); second.Event == nil || second.Event.ID != "m3" {
			t.Errorf("the second line is %+v, want m3", second)
		}

		// A new stream continues after a given event.
		again, resp := open("?after=2")
		if e, _ := again(); e.Event == nil || e.Event.ID != "m3" {
			t.Errorf("the first line of the new stream is %+v, want m3", e)
		}
		resp.Body.Close()

		s.handler.Close()
		if v, ok := next(); ok {
			t.Errorf("the stream has the line %+v after Close, want its end", v)
		}
	})
}

func TestLiveReadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		for status := 200; status == 200; {
			resp, err := s.client.Do(s.request("GET", api.LivePath, nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if status = resp.StatusCode; status != 200 && status != 503 {
				t.Errorf("a stream over the bound is answered %s, want 503", resp.Status)
			}
		}
	})
}
