//go:build !race

// The race detector makes sync.Pool drop values at random, so this file counts allocations without
// it.

package collector_test

import (
	"bytes"
	"io"
	"net/http/httptest"
	"testing"
)

func TestAllocationsPerCall(t *testing.T) {
	const n = 500
	body := benchBatch(n)
	h := newHandler(t, &sink{})
	rd := bytes.NewReader(body)
	r := httptest.NewRequest("POST", "/v1/batch", nil)
	r.Header.Set("Authorization", basic)
	r.Body = io.NopCloser(rd)
	w := &discard{header: r.Header.Clone()}
	got := testing.AllocsPerRun(20, func() {
		rd.Reset(body)
		h.ServeHTTP(w, r)
		if w.status != 200 {
			t.Fatalf("status %d, want 200", w.status)
		}
	})
	// Each call allocates its id. The request allocates the rest, such as the bodies.
	if want := 1.0*n + 50; got > want {
		t.Errorf("a batch of %d calls takes %v allocations, want at most %v", n, got, want)
	}
}
