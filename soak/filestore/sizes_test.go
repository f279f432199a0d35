package filestore_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// TestSizes stores many small calls, and then calls of the largest size. A forwarder delivers each
// of them, and keeps within a bound of memory. With a minute or more there are a million small
// calls.
func TestSizes(t *testing.T) {
	length, _ := soakenv.Long(t, "file-sizes")
	seconds := min(60, 1+int(length.Seconds()))
	for _, tt := range []struct {
		name  string
		calls int
		note  int     // the length of a property of each call, in bytes
		heap  float64 // the bound, in MB
	}{
		{"tiny", seconds * 16_700, 0, 128},
		{"large", seconds * 17, 32_000, 128},
	} {
		t.Run(tt.name, func(t *testing.T) { deliverAll(t, tt.calls, tt.note, tt.heap) })
	}
}

// deliverAll stores calls that each have a property of note bytes, and delivers them. The heap,
// with that of the test itself, may have maxHeap MB.
func deliverAll(t *testing.T, calls, note int, maxHeap float64) {
	arrived := make([]atomic.Int32, calls)
	var left atomic.Int64
	left.Store(int64(calls))
	all := make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var m struct{ MessageID string }
		if err == nil {
			err = signature.Verify(body, r.Header.Get(signature.Header), chaosSecret)
		}
		if err == nil {
			err = json.Unmarshal(body, &m)
		}
		id, cerr := strconv.Atoi(m.MessageID)
		if err != nil || cerr != nil || id >= calls || len(body) < note {
			t.Errorf("got a webhook of %d bytes with the id %q, %v; want a signed call of the test", len(body), m.MessageID, err)
			return
		}
		if arrived[id].Add(1) == 1 && left.Add(-1) == 0 {
			close(all)
		}
	}))
	defer receiver.Close()
	dir := t.TempDir()
	store, err := openStore(dir, filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f, err := webhook.New(webhook.Config{
		Store: store,
		Destinations: []webhook.Destination{
			{ID: "a", Secret: chaosSecret, Endpoints: []webhook.Endpoint{{URL: receiver.URL}}},
			{ID: "b", Secret: chaosSecret, Endpoints: []webhook.Endpoint{{URL: receiver.URL + "/b"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	most := 0.0
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		now := float64(m.HeapAlloc) / (1 << 20)
		most = max(most, now)
		return now
	}
	before := heap()

	begin := time.Now()
	text := strings.Repeat("x", note)
	batch := make([]event.Call, 0, 100)
	for i := range calls {
		call := &analytics.Track{UserId: "u", Event: "E", MessageId: strconv.Itoa(i)}
		if note > 0 {
			call.Properties = map[string]any{"note": text}
		}
		if batch = append(batch, call); len(batch) < cap(batch) && i < calls-1 {
			continue
		}
		if err := f.Forward(t.Context(), string("ab"[i/100%2]), batch...); err != nil {
			t.Fatal(err)
		}
		batch = batch[:0]
	}
	put := time.Since(begin)
	waiting := heap()

	begin = time.Now()
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for on := true; on; {
		select {
		case <-ticks.C:
			heap()
		case <-all:
			on = false
		}
	}
	took := time.Since(begin)
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-run; err != nil {
		t.Error(err)
	}
	again := 0
	for i := range arrived {
		again += int(arrived[i].Load()) - 1
	}
	counts, err := store.Count(t.Context())
	if s := f.Stats(); err != nil || counts.Waiting+counts.Dead > 0 || s.Delivered != int64(calls) || again > int(s.Retried+s.Resent) {
		t.Errorf("Count() = %+v, %v, Stats() = %+v, %d arrived again; want all delivered, and only retried or resent ones again", counts, err, s, again)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if _, err := checkStore(dir); err != nil {
		t.Error(err)
	}
	if most > maxHeap {
		t.Errorf("got %.0f MB of heap, want at most %.0f", most, maxHeap)
	}
	t.Logf("%d calls of %d bytes and more: %.0f/s forwarded, %.0f/s delivered, %d again; heap %.1f MB before, %.1f with all waiting, %.1f at most",
		calls, note, float64(calls)/put.Seconds(), float64(calls)/took.Seconds(), again, before, waiting, most)
}
