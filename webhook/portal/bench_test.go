package portal_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/portal"
	"github.com/hookferry/analytics/webhook/store"
)

var (
	benchDeliveries = flag.Int("portal.deliveries", 10_000, "deliveries of BenchmarkFirstByte, a multiple of 1000; 1000000 for figures")
	benchTurns      = flag.Int("portal.turns", 2, "turns of BenchmarkBeside with and without requests; 20 for figures")
)

// A program is one that mounts the portal, for benchmarks. The session is a header.
type program struct {
	b         *testing.B
	store     webhook.Store
	tenants   *tenants.Directory
	forwarder *webhook.Forwarder
	portal    *httptest.Server
}

func newProgram(b *testing.B, s webhook.Store) *program {
	p := &program{b: b, store: s}
	here := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	p.tenants = testkit.Must(tenants.New(s, tenants.Config{MaxDestinations: webhook.Unlimited, AllowAddresses: here}))
	p.forwarder = testkit.Must(webhook.New(webhook.Config{Store: s, Directory: p.tenants, AllowAddresses: here}))
	p.portal = httptest.NewServer(testkit.Must(portal.Handler(portal.Config{Forwarder: p.forwarder, Tenants: p.tenants, Tenant: tenantOf})))
	b.Cleanup(func() {
		p.portal.Close()
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	for _, id := range []string{"acme", "globex"} {
		testkit.Must(p.tenants.CreateTenant(b.Context(), tenants.Tenant{ID: id}, "setup"))
	}
	return p
}

func (p *program) create(tenant, url string) (id string) {
	d, _, err := p.tenants.Create(p.b.Context(), tenants.Destination{Tenant: tenant, Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: url}}}}, "setup")
	if err != nil {
		p.b.Fatal(err)
	}
	return d.ID
}

// get reads a page, and returns how long its first byte took.
func (p *program) get(tenant, path string) (took time.Duration) {
	return p.fetch(tenant, p.portal.URL+path)
}

func (p *program) fetch(tenant, url string) (took time.Duration) {
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		p.b.Fatal(err)
	}
	r.Header.Set("Session", tenant)
	began := time.Now()
	answer, err := p.portal.Client().Do(r)
	if err != nil {
		p.b.Error(err)
		return 0
	}
	took = time.Since(began)
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode >= 500 {
		p.b.Error(url, answer.Status, err)
	}
	answer.Body.Close()
	return took
}

// BenchmarkFirstByte reports how long the first byte of each view of a tenant takes, at most, in
// milliseconds: it has 1,000 endpoints, and a million deliveries wait or are dead in files.
func BenchmarkFirstByte(b *testing.B) {
	const endpoints, chunk = 1000, 1000
	p := newProgram(b, testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{})))
	var ids []string
	for range endpoints {
		ids = append(ids, p.create("acme", "https://acme.example/hook"))
	}
	ps, out := make([]store.Put, chunk), make([]store.Result, chunk)
	now, body := time.Now(), []byte(`{"type":"invoice.paid","data":"`+strings.Repeat("x", 400)+`"}`)
	for i := 0; i < *benchDeliveries; i += chunk {
		for j := range ps {
			ps[j].Delivery = store.Delivery{Destination: ids[j%endpoints], ID: fmt.Sprint("event-", i+j), Type: "invoice.paid", Body: body, Accepted: now, Due: now}
		}
		if err := p.store.Put(b.Context(), ps, out); err != nil {
			b.Fatal(err)
		}
	}
	_, name, _ := strings.Cut(ids[endpoints/2], "/")
	views := map[string]string{
		"page": "/", "endpoints": "/api/v1/endpoints?limit=25", "endpoint": "/api/v1/endpoints/" + name, "log": "/api/v1/deliveries?limit=25&endpoint=" + name,
		"dead": "/api/v1/deliveries?state=dead&endpoint=" + name, "unknown": "/api/v1/deliveries?id=none&endpoint=" + name,
	}
	most := map[string]time.Duration{}
	for b.Loop() {
		for view, path := range views {
			most[view] = max(most[view], p.get("acme", path))
		}
	}
	for view, took := range most {
		b.ReportMetric(took.Seconds()*1e3, view+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkForeign compares the time of the answer about an endpoint of another tenant with the
// time of the answer about an endpoint that does not exist: the medians of requests in turn.
func BenchmarkForeign(b *testing.B) {
	p := newProgram(b, testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{})))
	_, name, _ := strings.Cut(p.create("acme", "https://acme.example/hook"), "/")
	var foreign, unknown []time.Duration
	for b.Loop() {
		foreign = append(foreign, p.get("globex", "/api/v1/endpoints/"+name))
		unknown = append(unknown, p.get("globex", "/api/v1/endpoints/"+strings.Repeat("0", len(name))))
	}
	b.ReportMetric(middle(foreign).Seconds()/middle(unknown).Seconds(), "x_unknown")
	b.ReportMetric(middle(unknown).Seconds()*1e6, "us")
	b.ReportMetric(0, "ns/op")
}

func middle(all []time.Duration) time.Duration { return percentile(all, 50) }

func percentile(all []time.Duration, n int) time.Duration {
	slices.Sort(all)
	return all[len(all)*n/100]
}

// BenchmarkBeside reports what 1,000 requests a second of one tenant to the portal cost the
// deliveries of another: the time from Send to the arrival, in turns with and without them. x_p50
// and x_p99 are the ratios of both. ctl_p50 and ctl_p99 are the ratios with as many requests to a
// handler that does nothing. They show the cost of the client that makes the requests, which is in
// this process.
func BenchmarkBeside(b *testing.B) {
	const turn = time.Second
	arrived := make(chan time.Duration, 1000)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, sent, _ := strings.Cut(string(body), `"at":"`)
		sent, _, _ = strings.Cut(sent, `"`)
		at, _ := strconv.ParseInt(sent, 10, 64)
		arrived <- time.Duration(time.Now().UnixNano() - at)
	}))
	defer receiver.Close()
	p := newProgram(b, testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{HistoryAge: time.Hour})))
	ran := make(chan error, 1)
	go func() { ran <- p.forwarder.Run(context.Background()) }() // until Shutdown
	p.create("globex", receiver.URL)
	_, name, _ := strings.Cut(p.create("acme", receiver.URL), "/")
	nothing := httptest.NewServer(http.NotFoundHandler())
	defer nothing.Close()
	paths := []string{"/api/v1/endpoints?limit=25", "/api/v1/endpoints/" + name, "/api/v1/deliveries?limit=25&endpoint=" + name, "/"}
	of := func(base string) (urls []string) {
		for _, path := range paths {
			urls = append(urls, base+path)
		}
		return urls
	}
	asked := [3][]string{1: of(p.portal.URL), 2: of(nothing.URL)}

	var took [3][]time.Duration
	answered := 0
	for b.Loop() {
		for i := range 3 * *benchTurns {
			var asking sync.WaitGroup
			done := make(chan struct{})
			if i %= 3; i > 0 {
				asking.Go(func() {
					n := p.ask(asked[i], done)
					if i == 1 {
						answered += n
					}
				})
			}
			tick := time.NewTicker(2 * time.Millisecond)
			for began := time.Now(); time.Since(began) < turn; <-tick.C {
				testkit.Must(p.forwarder.Send(b.Context(), "globex", &event.Custom{Type: "invoice.paid", Data: map[string]string{"at": strconv.FormatInt(time.Now().UnixNano(), 10)}}))
				took[i] = append(took[i], <-arrived)
			}
			tick.Stop()
			close(done)
			asking.Wait()
		}
		b.ReportMetric(float64(answered)/(float64(*benchTurns)*turn.Seconds()), "requests/s")
	}
	for _, n := range []int{50, 99} {
		without, with := percentile(took[0], n), percentile(took[1], n)
		b.ReportMetric(with.Seconds()/without.Seconds(), fmt.Sprint("x_p", n))
		b.ReportMetric(percentile(took[2], n).Seconds()/without.Seconds(), fmt.Sprint("ctl_p", n))
		b.ReportMetric(without.Seconds()*1e3, fmt.Sprintf("p%d-ms", n))
	}
	b.ReportMetric(0, "ns/op")
	if err := p.forwarder.Shutdown(context.Background()); err != nil {
		b.Error(err)
	}
	if err := <-ran; err != nil {
		b.Error(err)
	}
}

// ask makes 1,000 requests a second until done is closed, and returns how many were answered.
func (p *program) ask(urls []string, done <-chan struct{}) (answered int) {
	due := make(chan string)
	var all sync.WaitGroup
	var mu sync.Mutex // guards answered
	for range 8 {
		all.Go(func() {
			for url := range due {
				p.fetch("acme", url)
				mu.Lock()
				answered++
				mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			close(due)
			all.Wait()
			return answered
		case <-tick.C:
		}
		select {
		case due <- urls[i%len(urls)]:
		case <-done:
		}
	}
}
