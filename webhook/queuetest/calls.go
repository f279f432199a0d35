package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// busy fills the store so that every method has something to do: each list has an element, and one
// delivery is claimed. It returns, for each method, a function that calls it.
func busy(k *kit) map[string]func(ctx context.Context) error {
	s, letter := k.s, bury(k, 2)[0].Ref()
	k.put(k.delivery("a", "1"))
	claimed := k.fetch(1, "a")[0]
	k.put(k.delivery("a", "2"))
	k.write("doc", "1", []byte("{}"), 0)
	more := k.delivery("a", "3")

	type ctx = context.Context
	calls := map[string]func(ctx) error{
		"Put": func(c ctx) error { _, err := putTo(c, s, store.Put{Delivery: more}); return err },
		"Fetch": func(c ctx) error {
			ws := []store.Want{{Destination: "a", Max: 1, Next: more.Due}}
			ds, err := s.Fetch(c, ws, noLimit, nil)
			if len(ds) > 0 || ws[0].Next != more.Due {
				k.Errorf("Fetch returned %v and changed wants to %v, but with the error %v", ids(ds), ws, err)
			}
			return err
		},
		"Heads(true)":        func(c ctx) error { _, err := list(s.Heads(c, true)); return err },
		"Heads(false)":       func(c ctx) error { _, err := list(s.Heads(c, false)); return err },
		"List":               func(c ctx) error { _, _, err := s.List(c, store.Query{}, 0, 10); return err },
		"Get":                func(c ctx) error { _, err := s.Get(c, letter); return err },
		"Hasten":             func(c ctx) error { _, _, err := s.Hasten(c, letter); return err },
		"Revive":             func(c ctx) error { _, err := s.Revive(c, letter); return err },
		"Discard":            func(c ctx) error { _, _, err := s.Discard(c, letter); return err },
		"Erase":              func(c ctx) error { _, _, err := s.Erase(c, "user-1"); return err },
		"Count":              func(c ctx) error { _, err := s.Count(c); return err },
		"CountByDestination": func(c ctx) error { _, err := list(s.CountByDestination(c)); return err },
		"Document":           func(c ctx) error { _, err := s.Document(c, "doc", "1"); return err },
		"Documents":          func(c ctx) error { _, err := list(s.Documents(c, "doc", "")); return err },
		"Changes":            func(c ctx) error { _, _, err := s.Changes(c, store.Latest); return err },
		"SetDocument": func(c ctx) error {
			_, err := s.SetDocument(c, store.Document{Folder: "doc", Name: "2", Value: []byte("{}")})
			return err
		},
	}
	for _, verdict := range verdicts {
		ss := settlements(s, verdict, claimed)
		calls[fmt.Sprint("Settle with verdict ", verdict)] = func(c ctx) error { _, err := s.Settle(c, ss); return err }
	}
	return calls
}

// callCases test properties that all methods share.
var callCases = []testCase{
	{"CancelledAndClosed", "A cancelled call changes nothing and returns the error of its context. With an error nothing is claimed, and wants are as they were. An error ends a list. Each method returns ErrClosed after Close. A second Close returns nil.", func(k *kit) {
		calls := busy(k)
		allFail := func(ctx context.Context, want error) {
			for name, call := range calls {
				if err := call(ctx); !errors.Is(err, want) {
					k.Errorf("%s returned %v, want %v", name, err, want)
				}
			}
		}
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		allFail(ctx, context.Canceled)
		k.compare()
		k.close(k.s)
		k.close(k.s)
		allFail(k.ctx, store.ErrClosed)
	}},
	{"Concurrently", "All methods may be called concurrently. SetDocument stores a document if the store has it with the version d.Version.", func(k *kit) {
		together(k, func() {}, k.s)
		k.compare()
	}},
}

var durableCases = []testCase{
	{"CloseWaits", "Close waits for calls in progress.", func(k *kit) {
		stored := make(chan store.Delivery, 100_000)
		var wg sync.WaitGroup
		for p := range 4 {
			wg.Go(func() {
				var err error
				for i := 0; err == nil; i++ {
					d := k.delivery("a", fmt.Sprint(p, "-", i))
					if _, err = putTo(k.ctx, k.s, puts(d)...); err == nil {
						stored <- d
					}
				}
				if !errors.Is(err, store.ErrClosed) {
					k.Errorf("Put: %v", err)
				}
			})
		}
		for range 40 { // by now some goroutines are likely to be in a Put
			k.hold(<-stored)
		}
		k.close(k.s)
		wg.Wait()
		close(stored)
		for d := range stored {
			k.hold(d)
		}
		k.restart()
		k.fetch(100_000, "a")
	}},
}

// together calls the function meanwhile while eight goroutines use the stores. Each delivery is put
// by four of them. They fetch deliveries, retry each once, and then settle it as done. They also
// append to a document. At the end together checks that each delivery was stored once, and that no
// delivery was handed out while it was claimed.
func together(k *kit, meanwhile func(), stores ...store.Store) {
	const total = 300
	_, names := k.many(20, 0)
	began := time.Now()
	var claimed, firsts sync.Map
	var stored, done atomic.Int64
	check := func(what string, err error) {
		if err != nil {
			k.Errorf("%s: %v", what, err)
		}
	}
	settle := func(s store.Store, ds ...store.Delivery) {
		for _, d := range ds {
			if _, twice := claimed.LoadOrStore(d.ID, true); twice {
				k.Errorf("%s was handed out while it was claimed", d.ID)
			}
			if first, _ := firsts.LoadOrStore(keyOf{d.Destination, d.Key}, d.ID); d.Key != "" && first != d.ID {
				k.Errorf("%s was handed out before %v, which has its key, was settled as done", d.ID, first)
			}
		}
		k.pass(time.Millisecond)
		ss := settlements(s, store.Retry, ds...)
		for i, d := range ds {
			claimed.Delete(d.ID)
			if d.Tries == 1 {
				ss[i].Verdict = store.Done
				firsts.Delete(keyOf{d.Destination, d.Key})
				done.Add(1)
			}
			ss[i].Delivery.Tries, ss[i].Delivery.Expires = 1, d.Due.Add(time.Hour)
		}
		_, err := s.Settle(k.ctx, ss)
		check("Settle", err)
	}
	fetch := func(s store.Store) {
		ds, err := s.Fetch(k.ctx, wants(3, names...), noLimit, nil)
		check("Fetch", err)
		settle(s, ds...)
	}
	appendTo := func(s store.Store) {
		err := store.ErrConflict
		for errors.Is(err, store.ErrConflict) {
			var held store.Document
			if held, err = s.Document(k.ctx, "doc", "count"); err == nil {
				held.Value = append(bytes.Clone(held.Value), 'x') // a copy: the value belongs to the store
				_, err = s.SetDocument(k.ctx, held)
			}
		}
		check("appending to a document", err)
	}
	k.write("doc", "count", []byte("x"), 0)
	var wg sync.WaitGroup
	for worker := range 8 {
		s := stores[worker%len(stores)]
		wg.Go(func() {
			for i := worker / 4; i < total; i += 2 {
				d := k.delivery(names[i%20], fmt.Sprint(i))
				d.Key = []string{"", "one", "two"}[i%3]
				out, err := putTo(k.ctx, s, store.Put{Delivery: d, Keep: i%3 == 0})
				check("Put", err)
				if out[0].Stored {
					stored.Add(1)
				}
				if d.Claim = out[0].Claim; d.Claim != 0 {
					settle(s, d)
				}
				fetch(s)
				if i%12 == worker/4 {
					appendTo(s)
				}
			}
			for done.Load() < total && !k.Failed() && !(k.traits.Bubble && time.Since(began) > 10*time.Minute) {
				fetch(s)
			}
		})
	}
	meanwhile()
	wg.Wait()
	if stored.Load() != total || done.Load() != total {
		k.Errorf("of %d different deliveries Put stored %d, and %d were handed out twice", total, stored.Load(), done.Load())
	}
	k.fetch(10, names...)
	held, err := k.s.Document(k.ctx, "doc", "count")
	if err != nil || len(held.Value) != 201 {
		k.Fatalf("200 additions to a document of one byte left %v, %v", held, err)
	}
	k.documents[path{"doc", "count"}], k.latest = held, held.Version
}
