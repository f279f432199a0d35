package collector_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

// A gate is a forwarder whose calls wait until open is closed.
type gate struct {
	open    chan struct{}
	waiting atomic.Int64
}

func (g *gate) ForwardEvents(ctx context.Context, _ []string, _ ...event.Event) error {
	g.waiting.Add(1)
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestGreedyClientsLeaveMemoryToOthers: a source, or an address, holds all of the memory that it
// may have. The handler answers its further requests with 503, and accepts those of others.
func TestGreedyClientsLeaveMemoryToOthers(t *testing.T) {
	large := batchOf(1000, 400_000)
	for _, greedy := range []string{"source", "address"} {
		t.Run(greedy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &gate{open: make(chan struct{})}
				h := newHandler(t, f, func(c *collector.Config) {
					c.MaxMemory, c.MaxRequests = 32<<20, 1000
					c.Sources = func(_ context.Context, key string) (collector.Source, error) {
						return collector.Source{Name: key, Destinations: []string{"crm"}}, nil
					}
				})
				statuses := make(map[string]map[int]int) // by the name of the client
				var mu sync.Mutex
				var sending sync.WaitGroup
				post := func(who, key, address, body string) {
					sending.Go(func() {
						r := httptest.NewRequest("POST", "/v1/batch", strings.NewReader(body))
						r.SetBasicAuth(key, "")
						r.RemoteAddr = address + ":1234"
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						mu.Lock()
						defer mu.Unlock()
						if statuses[who] == nil {
							statuses[who] = map[int]int{}
						}
						statuses[who][w.Code]++
					})
				}
				for n := range 100 {
					key, address := "greedy", "192.0.2.1"
					if greedy == "source" {
						address = fmt.Sprintf("192.0.2.%d", n+1)
					} else {
						key = fmt.Sprint("key", n)
					}
					post("greedy", key, address, large)
					synctest.Wait()
				}
				took := int(f.waiting.Load())
				if refused := statuses["greedy"][503]; took < 5 || refused != 100-took {
					t.Errorf("%d requests of the greedy client are with the forwarder, and %d got 503, want at least 5 and the other ones of 100", took, refused)
				}
				if greedy == "source" {
					post("again", "greedy", "198.51.100.1", large)
				} else {
					post("again", "other", "192.0.2.1", large)
				}
				post("other", "other", "198.51.100.1", large)
				synctest.Wait()
				if int(f.waiting.Load()) != took+1 || statuses["again"][503] != 1 {
					t.Errorf("%d requests are with the forwarder, want %d and the one of another client", f.waiting.Load(), took)
				}
				close(f.open)
				sending.Wait()
				if statuses["greedy"][200] != took || statuses["other"][200] != 1 {
					t.Errorf("answered %v, want 200 for %d requests of the greedy client and for the other one", statuses, took)
				}
			})
		})
	}
}

// TestRequestsOfAnAddressWaitBeyondTheBound shows that the requests of an address beyond
// MaxRequests wait for some seconds, while those of others go on.
func TestRequestsOfAnAddressWaitBeyondTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &gate{open: make(chan struct{})}
		h := newHandler(t, f, func(c *collector.Config) { c.MaxRequests = 3 })
		var sending sync.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		post := func(address, path, body string) {
			sending.Go(func() {
				r := httptest.NewRequest("POST", path, strings.NewReader(body))
				r.RemoteAddr = address + ":1234"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
					t.Error("an answer 503 lacks Retry-After")
				}
				mu.Lock()
				defer mu.Unlock()
				statuses[w.Code]++
			})
			synctest.Wait()
		}
		call := `{"writeKey":"key","userId":"u","event":"e"}` // the handler looks the key up after it has read the body
		for range 10 {
			post("192.0.2.1", "/v1/track", call)
		}
		if n := f.waiting.Load(); n != 3 {
			t.Errorf("%d requests of an address are in progress, want 3", n)
		}
		post("192.0.2.2", "/v1/track", call)
		if f.waiting.Load() != 4 {
			t.Error("the request of another address waits, want it with the forwarder")
		}
		for _, step := range []struct {
			wait time.Duration
			want map[int]int
		}{{3999 * time.Millisecond, map[int]int{}}, {time.Millisecond, map[int]int{503: 11}}} {
			time.Sleep(step.wait)
			synctest.Wait()
			mu.Lock()
			if !maps.Equal(statuses, step.want) {
				t.Errorf("answered %v, want %v", statuses, step.want)
			}
			mu.Unlock()
		}
		close(f.open)
		clear(statuses)
		for range 10 {
			post("192.0.2.1", "/v1/track", call)
		}
		sending.Wait()
		if statuses[200] != 10 {
			t.Errorf("later requests: answered %v, want 200 for all 10", statuses)
		}
	})
}

// TestByteLimitCountsWebhookBytes shows that a ByteLimit counts the bytes of webhooks to all
// destinations. A request that it refuses does not count for the Limit of calls.
func TestByteLimitCountsWebhookBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {
				Name: "shop", Destinations: []string{"crm", "warehouse"}, Limit: collector.NewLimit(1, 100), ByteLimit: collector.NewLimit(1000, 5000),
			}})
		})
		post := func(calls int) answer {
			body := `{"batch":[` + strings.Repeat(track+",", calls-1) + track + `],"context":{"a":"` + strings.Repeat("x", 800) + `"}}`
			r := httptest.NewRequest("POST", "/v1/batch", strings.NewReader(body))
			r.SetBasicAuth("key", "")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			a := answer{status: w.Code, header: w.Header(), body: w.Body.String()}
			return a
		}
		if a := post(10); a.status != 200 {
			t.Fatalf("the first request: answered %d %s, want 200", a.status, a.body)
		}
		size := 0
		for _, e := range f.events() {
			size += 2 * len(e.Body)
		}
		debt := time.Duration(size-5000+1) * time.Second / 1000 // until one byte is free
		want := `{"success":false,"code":"rate_limited","message":"the source sends more bytes than its limit"}` + "\n"
		a := post(1)
		if a.status != 429 || a.body != want || a.header.Get("Retry-After") != fmt.Sprint(int((debt+time.Second-1)/time.Second)) {
			t.Errorf("over the limit: answered %d %s, %v, want 429 with %v", a.status, a.body, a.header, debt)
		}
		time.Sleep(debt - time.Millisecond)
		if a := post(1); a.status != 429 {
			t.Errorf("just before the end of the debt: answered %d %s, want 429", a.status, a.body)
		}
		time.Sleep(time.Millisecond)
		if a := post(89); a.status != 200 {
			t.Errorf("at the end of the debt: answered %d %s, want 200; refused requests must not count as calls", a.status, a.body)
		}
	})
}

// TestRequestsShareTheProcessor shows that connections with many pending requests share one
// processor request by request, even if no request ever waits.
func TestRequestsShareTheProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, tt := range []struct{ method, path, key string }{
		{"GET", "/v1/nothing", ""},
		{"OPTIONS", "/v1/track", ""},
		{"POST", "/v1/m", ""},
		{"POST", "/v1/track", "unknown"},
		{"GET", "/v1/projects/key/settings", ""},
	} {
		h := newHandler(t, &forwarder{})
		const connections, requests = 10, 1000
		var served [connections]atomic.Int64
		var first sync.Once
		var serving sync.WaitGroup
		for i := range served {
			serving.Go(func() {
				r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(""))
				if tt.key != "" {
					r.SetBasicAuth(tt.key, "")
				}
				for range requests {
					h.ServeHTTP(httptest.NewRecorder(), r)
					served[i].Add(1)
				}
				first.Do(func() {
					for j := range served {
						if n := served[j].Load(); n < requests/2 {
							t.Errorf("%s %s: %d requests of one connection are done when all %d of another are, want at least %d", tt.method, tt.path, n, requests, requests/2)
						}
					}
				})
			})
		}
		serving.Wait()
	}
}
