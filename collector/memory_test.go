//go:build !race

// The race detector makes sync.Pool drop values at random, so this file counts bytes without it.

package collector

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/hookferry/analytics/event"
)

type forwardFunc func(events []event.Event) error

// A quietWriter calls written for each write of an answer, and discards the bytes.
type quietWriter struct {
	header  http.Header
	status  int
	written func()
}

func (w *quietWriter) Header() http.Header    { return w.header }
func (w *quietWriter) WriteHeader(status int) { w.status = status }
func (w *quietWriter) Write(b []byte) (int, error) {
	w.written()
	return len(b), nil
}

func (f forwardFunc) ForwardEvents(_ context.Context, _ []string, events ...event.Event) error {
	return f(events)
}

// TestMemoryCountsEveryAllocation shows that a request takes memory for everything that it
// allocates, whether its calls are good or wrong. No buffer grows by a second allocation.
func TestMemoryCountsEveryAllocation(t *testing.T) {
	// Garbage collection would empty the pools, and each processor has its own.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const page = `{"type":"page","userId":"u","messageId":"m"}`
	number := `{"type":"page","userId":"u","messageId":"m","properties":{"a":[` + strings.Repeat("1e20,", 600) + `1]}}`
	for _, tt := range []struct {
		name, call, context string
		calls               int
	}{
		{"small calls", page, `{}`, 2500},
		{"a context", page, `{"a":"` + strings.Repeat("x", 30_000) + `"}`, 2500},
		{"a context of numbers", page, `{"a":[` + strings.Repeat("1e20,", 1_400) + `1]}`, 2500},
		{"numbers", number, `{}`, 160},
		{"large calls", `{"type":"page","userId":"u","messageId":"m","name":"` + strings.Repeat("x", 30_000) + `"}`, `{}`, 16},
		{"white space", page + strings.Repeat(" ", 3_000), `{}`, 160},
		{"wrong calls", `{}`, `{}`, 2500},
		{"wrong calls with long messages", `{"type":"page","userId":"u","category":1}`, `{}`, 2500},
		{"one call", number, `{}`, 1},
	} {
		var h *Handler
		var held, size, answering int64
		var before, after, answered runtime.MemStats
		h, err := New(Config{
			Sources: Keys(map[string]Source{"key": {Destinations: []string{"crm"}}}),
			Forwarder: forwardFunc(func(events []event.Event) error {
				runtime.ReadMemStats(&after)
				held, size = h.shares.held, 0
				for _, e := range events {
					size += int64(len(e.Body))
				}
				held -= size + int64(len(events))*deliverySize // the memory of the deliveries
				return nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		fmt.Fprintf(z, `{"batch":[%s],"context":%s}`, strings.Repeat(","+tt.call, tt.calls)[1:], tt.context)
		z.Close()
		for range 2 { // the first request fills the pools
			r := httptest.NewRequest("POST", "/v1/batch", bytes.NewReader(b.Bytes()))
			r.SetBasicAuth("key", "")
			w := &quietWriter{header: http.Header{}, written: func() {
				runtime.ReadMemStats(&answered)
				answering = h.shares.held
			}}
			runtime.ReadMemStats(&before)
			after = before
			h.ServeHTTP(w, r)
			if w.status != 200 {
				t.Fatalf("%s: answered %d, want 200", tt.name, w.status)
			}
		}
		if n := int64(answered.TotalAlloc - before.TotalAlloc); n > answering+answering/10+32<<10 {
			t.Errorf("%s: %d bytes were allocated up to the end of the answer, want at most the %d held and a tenth more", tt.name, n, answering)
		}
		allocated := int64(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: %d bytes of bodies, %d held, %d allocated", tt.name, size, held, allocated)
		if allocated > held+held/10+16<<10 { // the allocator rounds up
			t.Errorf("%s: %d bytes were allocated for bodies of %d, want at most the %d held and a tenth more", tt.name, allocated, size, held)
		}
		if h.shares.held != 0 {
			t.Errorf("%s: %d bytes are held after the request, want none", tt.name, h.shares.held)
		}
	}
}
