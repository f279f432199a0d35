package filequeue_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// One commit discards the other deliveries of a destination, and makes the first one of a key due. The
// next one with the key is behind it.
func TestLaneKeepsKeysDuringCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer r.s.Close()
		r.put("d", 100, false)
		keyed := []store.Put{{Delivery: store.Delivery{Destination: "d", ID: "keyed", Key: "key", Due: r.s.Now().Add(time.Hour)}}}
		if err := r.s.Put(t.Context(), keyed, make([]store.Result, 1)); err != nil {
			t.Fatal(err)
		}
		page, _, err := r.s.List(t.Context(), store.Query{Oldest: true}, 0, 2)
		if err != nil || len(page) != 2 {
			t.Fatalf("List = %d, %v, want 2", len(page), err)
		}
		held := make(chan struct{})
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Sync {
				<-held
			}
			return nil
		})
		var calls sync.WaitGroup
		calls.Go(func() { r.put("other", 100, false) })
		synctest.Wait()
		calls.Go(func() { r.s.Discard(t.Context(), page[0].Ref()) })
		synctest.Wait()
		calls.Go(func() { r.s.Hasten(t.Context(), page[1].Ref()) })
		synctest.Wait()
		close(held)
		calls.Wait()
		if c, err := r.s.Count(t.Context()); c.Waiting != 2 || err != nil {
			t.Fatalf("Count = %+v, %v, want 2 that wait", c, err)
		}
		keyed[0].ID = "next"
		out := make([]store.Result, 1)
		if err := r.s.Put(t.Context(), keyed, out); err != nil || !out[0].Behind {
			t.Errorf("Put = %+v, %v, want it behind another one", out[0], err)
		}
	})
}

// While Erase works, deliveries of the user are released, by Erase itself and by others. Each is erased,
// or Erase counts it as claimed and it is still there.
func TestEraseFindsDeliveriesThatAreReleased(t *testing.T) {
	s, err := filequeue.OpenOn(simdisk.New(1), filequeue.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n, keys = 10_000, 200
	ps, out := make([]store.Put, n), make([]store.Result, n)
	for i := range ps {
		ps[i].Delivery = store.Delivery{Destination: "d", ID: fmt.Sprint(i), Key: fmt.Sprint(i % keys), Due: s.Now(), User: []string{"ann", "bob"}[i/keys%2]}
	}
	if err := s.Put(t.Context(), ps, out); err != nil {
		t.Fatal(err)
	}
	var settling sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		settling.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "d", Max: 20}}, 1<<20, nil)
				if err != nil {
					t.Errorf("Fetch: %v", err)
				}
				ss := make([]store.Settlement, len(ds))
				for i := range ds {
					ss[i] = store.Settlement{Verdict: store.Done, Delivery: ds[i]}
					if ds[i].User == "ann" {
						ss[i].Verdict = store.Return
					}
				}
				if _, err := s.Settle(t.Context(), ss); err != nil {
					t.Errorf("Settle: %v", err)
				}
			}
		})
	}
	erased, claimed, err := s.Erase(t.Context(), "ann")
	close(done)
	settling.Wait()
	left := 0
	for range store.Records(t.Context(), s, store.Query{User: "ann"}) {
		left++
	}
	if err != nil || erased+claimed != n/2 || left != claimed {
		t.Errorf("Erase = %d, %d, %v, and %d are left; want %d in all, and the claimed ones left", erased, claimed, err, left, n/2)
	}
}
