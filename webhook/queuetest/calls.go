package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// busy fills the store so that every method has something to do: each list has an element, and one
// delivery is claimed. It returns, for each method, a function that calls it.
func (k *kit) busy() map[string]func(ctx context.Context) error {
	k.Helper()
	s, dead := k.s, k.bury(2)[0].Key
	k.put(k.delivery("a", "1"))
	claimed := k.fetchOne("a")
	k.put(k.delivery("a", "2"))
	k.set("doc/1", []byte("{}"), 0)
	more := k.delivery("a", "3")

	type ctx = context.Context
	calls := map[string]func(ctx) error{
		"Put": func(c ctx) error { _, err := tryPut(c, s, webhook.Put{Delivery: more}); return err },
		"Fetch": func(c ctx) error {
			ws := []webhook.Want{{Destination: "a", Max: 1, Next: more.Due}}
			ds, err := s.Fetch(c, ws, noLimit, nil)
			if len(ds) > 0 || ws[0].Next != more.Due {
				k.Errorf("Fetch returned %v and changed wants to %v, but with the error %v", ids(ds), ws, err)
			}
			return err
		},
		"Heads(true)":  func(c ctx) error { _, err := list(s.Heads(c, true), nil); return err },
		"Heads(false)": func(c ctx) error { _, err := list(s.Heads(c, false), nil); return err },
		"DeadLetter":   func(c ctx) error { _, err := s.DeadLetter(c, dead); return err },
		"Dead":         func(c ctx) error { _, err := list(s.Dead(c, webhook.DeadFilter{}, ""), nil); return err },
		"Revive":       func(c ctx) error { _, err := s.Revive(c, dead); return err },
		"Discard":      func(c ctx) error { _, err := s.Discard(c, dead); return err },
		"Waiting":      func(c ctx) error { _, err := list(s.Waiting(c, "a", ""), nil); return err },
		"Change": func(c ctx) error {
			_, _, err := s.Change(c, webhook.WaitingFilter{Destination: "a"}, webhook.Discarded)
			return err
		},
		"Erase":              func(c ctx) error { _, _, err := s.Erase(c, "user-1"); return err },
		"Count":              func(c ctx) error { _, err := s.Count(c); return err },
		"CountByDestination": func(c ctx) error { _, err := list(s.CountByDestination(c), nil); return err },
		"Settings":           func(c ctx) error { _, err := list(s.Settings(c, "doc/"), nil); return err },
		"Set":                func(c ctx) error { _, err := s.Set(c, webhook.Setting{Name: "doc/2", Value: []byte("{}")}); return err },
	}
	for _, verdict := range verdicts {
		ss := settlements(s, verdict, claimed)
		calls[fmt.Sprint("Settle with verdict ", verdict)] = func(c ctx) error { _, err := s.Settle(c, ss); return err }
	}
	return calls
}

// callCases test properties that all methods share.
var callCases = []testCase{
	{"ListsHoldNoLock", "It holds no lock between two yields.", func(k *kit) {
		k.busy()
		lists := 0
		k.between = func() {
			lists++
			k.put(k.delivery("c", fmt.Sprint(lists)))
			k.settle(webhook.Done, k.fetchOne("c"))
		}
		k.compare()
		if lists < 5 {
			k.Errorf("%d lists yield something, want Heads, CountByDestination, Waiting, Dead and Settings", lists)
		}
	}},
	{"Cancelled", "A cancelled call changes nothing and returns the error of its context. With an error nothing is claimed, and wants are as they were. An error ends a list.", func(k *kit) {
		calls := k.busy()
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		for name, call := range calls {
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				k.Errorf("%s with a cancelled context: %v, want context.Canceled", name, err)
			}
		}
		k.compare()
	}},
	{"Closed", "Each method returns ErrClosed after Close. A second Close returns nil.", func(k *kit) {
		calls := k.busy()
		k.close(k.s)
		k.close(k.s)
		for name, call := range calls {
			if err := call(k.ctx); !errors.Is(err, webhook.ErrClosed) {
				k.Errorf("%s after Close: %v, want ErrClosed", name, err)
			}
		}
	}},
	{"Concurrently", "All methods may be called concurrently. Set stores a setting if the store has it with the version s.Version.", func(k *kit) {
		k.together(func() {}, k.s)
		k.compare()
	}},
}

var durableCases = []testCase{
	{"CloseWaits", "Close waits for calls in progress.", func(k *kit) {
		stored := make(chan webhook.Delivery, 100_000)
		var wg sync.WaitGroup
		for p := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					d := k.delivery("a", fmt.Sprint(p, "-", i))
					if _, err := tryPut(k.ctx, k.s, webhook.Put{Delivery: d}); err != nil {
						if !errors.Is(err, webhook.ErrClosed) {
							k.Errorf("Put: %v", err)
						}
						return
					}
					stored <- d
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
		k.reopen()
		k.fetch(100_000, "a")
	}},
}

// together calls the function meanwhile while goroutines use the stores. Some goroutines put
// deliveries; two of them put each delivery. Others fetch the deliveries, retry each once, and
// then settle it as done. Others append to a setting. At the end together checks that each
// delivery was stored once, and that no delivery was handed out while it was claimed.
func (k *kit) together(meanwhile func(), stores ...webhook.Store) {
	const total = 300
	_, names := k.many(20, 0)
	var mu sync.Mutex
	tries, claimed := make(map[string]int), make(map[string]bool)
	stored, done, began := 0, 0, time.Now()
	settle := func(s webhook.Store, ds ...webhook.Delivery) {
		ss := settlements(s, webhook.Retry, ds...)
		mu.Lock()
		for i := range ss {
			d := &ss[i].Delivery
			if claimed[d.ID] {
				k.Errorf("%s was handed out while it was claimed", d.ID)
			}
			claimed[d.ID] = true
			d.Expires = d.Due.Add(time.Hour)
			if tries[d.ID]++; tries[d.ID] == 2 {
				ss[i].Verdict = webhook.Done
			}
		}
		mu.Unlock()
		k.pass(time.Millisecond)
		mu.Lock()
		for _, d := range ds {
			claimed[d.ID] = false
			done += tries[d.ID] / 2
		}
		mu.Unlock()
		if n, err := s.Settle(k.ctx, ss); n != len(ss) || err != nil {
			k.Errorf("Settle of %d = %d, %v", len(ss), n, err)
		}
	}
	putSome := func(s webhook.Store, first int) {
		for i := first; i < total; i += 2 {
			d := k.delivery(names[i%20], fmt.Sprint(i))
			out, err := tryPut(k.ctx, s, webhook.Put{Delivery: d, Keep: i%3 == 0})
			if err != nil {
				k.Errorf("Put: %v", err)
			}
			mu.Lock()
			if out[0].Stored {
				stored++
			}
			mu.Unlock()
			if d.Claim = out[0].Claim; d.Claim != 0 {
				settle(s, d)
			}
		}
	}
	fetchAll := func(s webhook.Store) {
		for end := false; !end && !k.Failed(); {
			ds, err := s.Fetch(k.ctx, wants(3, names...), noLimit, nil)
			if err != nil {
				k.Errorf("Fetch: %v", err)
			}
			settle(s, ds...)
			mu.Lock()
			end = done >= total || k.traits.Bubble && time.Since(began) > 10*time.Minute
			mu.Unlock()
		}
	}
	addToSetting := func(s webhook.Store) {
		for added := 0; added < 25; {
			held, err := list(s.Settings(k.ctx, "doc/count"), nil)
			if err != nil || len(held) != 1 {
				k.Errorf("Settings = %v, %v, want one", held, err)
				return
			}
			// The value belongs to the store, so it must not be changed.
			held[0].Value = append(bytes.Clone(held[0].Value), 'x')
			if _, err := s.Set(k.ctx, held[0]); err == nil {
				added++
			} else if !errors.Is(err, webhook.ErrConflict) {
				k.Errorf("Set: %v", err)
				return
			}
		}
	}
	k.set("doc/count", []byte("x"), 0)
	var wg sync.WaitGroup
	for i := range 4 {
		s := stores[i%len(stores)]
		wg.Go(func() { putSome(s, i/2) })
		wg.Go(func() { fetchAll(s) })
		wg.Go(func() { addToSetting(s) })
	}
	meanwhile()
	wg.Wait()
	if stored != total || done != total {
		k.Errorf("of %d different deliveries Put stored %d, and %d were handed out twice", total, stored, done)
	}
	k.fetch(10, names...)
	held := all(k, k.s.Settings(k.ctx, "doc/count"))
	if len(held) != 1 || len(held[0].Value) != 101 {
		k.Fatalf("100 additions to a setting of one byte left %v", held)
	}
	k.settings["doc/count"] = held[0]
}
