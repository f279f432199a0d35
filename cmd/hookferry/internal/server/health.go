package server

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

const (
	// unready is how long the server is not ready after the store has refused a call. Then it is
	// ready again, because only new calls can show whether the store accepts calls.
	unready = 10 * time.Second
	// noted is how long the status has the latest call that the store has refused.
	noted = 5 * time.Minute
	// A request whose time ends counts as a failure of the store only if it has waited for the
	// store for at least keptWaiting. Otherwise it spent its time before that, for example in a
	// queue.
	keptWaiting = time.Second
)

// A readiness passes calls on to the forwarder, and notes failures. The server is ready to accept
// calls from its start until the stop begins, except after a failure, and while the store cannot be
// used.
type readiness struct {
	next    collector.Forwarder
	store   func() error // of store.ready
	serving atomic.Bool
	failed  atomic.Pointer[refusal] // the latest call that the store refused; nil if there was none
}

// A refusal is a call that the store refused.
type refusal struct {
	at  time.Time
	err error
}

func (h *readiness) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	began := time.Now()
	err := h.next.ForwardEvents(ctx, destinations, events...)
	if err != nil && (ctx.Err() == nil || time.Since(began) >= keptWaiting) {
		h.failed.Store(&refusal{time.Now(), err})
	}
	return err
}

func (h *readiness) ready() bool {
	failed := h.failed.Load()
	return h.serving.Load() && (failed == nil || time.Since(failed.at) >= unready) && (h.store == nil || h.store() == nil)
}

// troubles returns why the store refused a call in the last noted, and why it cannot be used now.
func (h *readiness) troubles() (all []api.Trouble) {
	if f := h.failed.Load(); f != nil && time.Since(f.at) < noted {
		all = append(all, api.Trouble{Kind: api.TroubleRefused, At: f.at.UTC(), Error: f.err.Error()})
	}
	if h.store != nil {
		if err := h.store(); err != nil {
			all = append(all, api.Trouble{Kind: api.TroubleUnusable, Error: err.Error()})
		}
	}
	return all
}

// serveHealth answers health checks, on both listeners: 200, or 503 if the server is not ready. For
// any other path it returns false, without an answer.
func (h *readiness) serveHealth(w http.ResponseWriter, r *http.Request) bool {
	status, text := http.StatusOK, "ok\n"
	switch r.URL.Path {
	case "/healthz":
	case "/readyz":
		if !h.ready() {
			status, text = http.StatusServiceUnavailable, "not ready\n"
		}
	default:
		return false
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		status, text = http.StatusMethodNotAllowed, "want GET\n"
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // an error means that the client is gone
	return true
}
