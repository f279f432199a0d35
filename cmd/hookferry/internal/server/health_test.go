package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
)

// A fakeForwarder returns its error, or hangs.
type fakeForwarder struct {
	err   error
	hangs bool
}

func (f *fakeForwarder) ForwardEvents(ctx context.Context, _ []string, _ ...event.Event) error {
	if f.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.err
}

func TestReadinessFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeForwarder{}
		var away error
		h := &readiness{next: f, store: func() error { return away }}
		want := func(when string, ready bool) {
			t.Helper()
			for path, status := range map[string]int{"/healthz": 200, "/readyz": map[bool]int{true: 200, false: 503}[ready]} {
				w := httptest.NewRecorder()
				if !h.serveHealth(w, httptest.NewRequest("GET", path, nil)) {
					t.Fatalf("%s: serveHealth of %s = false, want true", when, path)
				}
				if w.Code != status {
					t.Errorf("%s: %s has the status %d, want %d", when, path, w.Code, status)
				}
			}
		}
		want("before the start", false)
		h.serving.Store(true)
		want("after the start", true)
		if err := h.ForwardEvents(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		want("after calls", true)
		f.hangs = true
		wait := func(patience time.Duration) {
			t.Helper()
			ctx, leave := context.WithTimeout(t.Context(), patience)
			defer leave()
			if err := h.ForwardEvents(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("ForwardEvents: unexpected error %v", err)
			}
		}
		wait(keptWaiting - time.Millisecond)
		want("after a request that had little time left", true)
		wait(keptWaiting)
		want("after a request that the store kept waiting", false)
		time.Sleep(unready)
		f.hangs = false
		f.err = errors.New("disk full")
		if err := h.ForwardEvents(t.Context(), nil); !errors.Is(err, f.err) {
			t.Fatalf("ForwardEvents: unexpected error %v", err)
		}
		want("once the store refuses", false)
		troubles := func(want ...api.Trouble) {
			t.Helper()
			if d := cmp.Diff(want, h.troubles()); d != "" {
				t.Errorf("troubles (-want +got):\n%s", d)
			}
		}
		refused := api.Trouble{Kind: api.TroubleRefused, At: time.Now().UTC(), Error: "disk full"}
		troubles(refused)
		time.Sleep(unready - time.Millisecond)
		want("just before it is tried again", false)
		time.Sleep(time.Millisecond)
		want("when it is tried again", true)
		away = errors.New("read-only")
		want("while the store cannot be used", false)
		troubles(refused, api.Trouble{Kind: api.TroubleUnusable, Error: "read-only"})
		away = nil
		want("once the store can be used again", true)
		time.Sleep(noted - unready)
		troubles()
		h.serving.Store(false)
		want("once the stop began", false)
	})
}

func TestHealthServesItsPathsOnly(t *testing.T) {
	h := &readiness{}
	for _, tt := range []struct {
		method, path string
		served       bool
		status       int
	}{
		{"GET", "/healthz", true, 200},
		{"HEAD", "/readyz", true, 503},
		{"POST", "/healthz", true, http.StatusMethodNotAllowed},
		{"GET", "/healthz/", false, 200},
		{"GET", "/", false, 200},
		{"GET", "/v1/healthz", false, 200},
	} {
		w := httptest.NewRecorder()
		served := h.serveHealth(w, httptest.NewRequest(tt.method, tt.path, nil))
		if served != tt.served || w.Code != tt.status {
			t.Errorf("serveHealth of %s %s = %v with status %d, want %v with %d", tt.method, tt.path, served, w.Code, tt.served, tt.status)
		}
	}
}

// Two connections with many pending requests share one processor request by request.
func TestRequestsShareTheProcessor(t *testing.T) {
	s := keyServer(t)
	s.Settings = &config.Settings{Limits: config.Limits{Connections: 10, ConnectionsPerAddress: 10}}
	s.settings.Store(s.Settings)
	s.Logger = slog.New(slog.DiscardHandler)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	web, _ := s.http(l, func(*config.Settings) *config.Certificate { return nil }, http.NotFoundHandler())
	for _, path := range []string{"/healthz", "/other"} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			const requests = 1000
			var served [2]atomic.Int64
			var serving sync.WaitGroup
			for i := range served {
				serving.Go(func() {
					r := httptest.NewRequest("GET", path, nil)
					for range requests {
						web.Handler.ServeHTTP(httptest.NewRecorder(), r)
						served[i].Add(1)
					}
					if n := served[1-i].Load(); n < requests/2 {
						t.Errorf("%s: %d requests of one connection are done when all %d of the other are, want at least %d", path, n, requests, requests/2)
					}
				})
			}
			serving.Wait()
		}()
	}
}
