package filequeue_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// putKeyed puts n deliveries to "d" with a key, and returns their numbers in the store.
func putKeyed(t *testing.T, s store.Store, key string, n int) []store.Ref {
	t.Helper()
	ps, out := make([]store.Put, n), make([]store.Result, n)
	for i := range ps {
		now := s.Now()
		ps[i] = store.Put{NoDedup: true, Delivery: store.Delivery{Destination: "d", ID: fmt.Sprint(key, " ", i), Key: key, Type: "track", Body: []byte("{}"), Accepted: now, Due: now}}
	}
	if err := s.Put(t.Context(), ps, out); err != nil {
		t.Fatal(err)
	}
	page, _, err := s.List(t.Context(), store.Query{Oldest: true}, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var refs []store.Ref
	for _, r := range page {
		if r.Key == key {
			refs = append(refs, r.Ref())
		}
	}
	return refs
}

// TestDiscardDuringRelease discards a delivery while the one before it is settled. The discarded one
// may be behind the other, or released.
func TestDiscardDuringRelease(t *testing.T) {
	s, err := filequeue.OpenOn(simdisk.New(1), filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		refs := putKeyed(t, s, fmt.Sprint("key ", i), 2)
		ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "d", Max: 1}}, 1<<20, nil)
		if err != nil || len(ds) != 1 {
			t.Fatalf("Fetch = %d, %v", len(ds), err)
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := s.Settle(t.Context(), []store.Settlement{{Verdict: store.Done, Delivery: ds[0]}}); err != nil {
				t.Errorf("Settle: %v", err)
			}
		})
		both.Go(func() {
			if n, claimed, err := s.Discard(t.Context(), refs[1]); n != 1 || claimed != 0 || err != nil {
				t.Errorf("Discard = %d, %d, %v, want 1, 0, nil", n, claimed, err)
			}
		})
		both.Wait()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
