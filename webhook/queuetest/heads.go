package queuetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

// heads returns what Heads yields, without the destinations that have no head.
func (k *kit) heads(s webhook.Store, all bool) map[string]webhook.Head {
	k.Helper()
	got := make(map[string]webhook.Head)
	for h, err := range s.Heads(k.ctx, all) {
		if err != nil {
			k.Fatalf("Heads(%v): %v", all, err)
		}
		if _, twice := got[h.Destination]; twice {
			k.Fatalf("Heads(%v) yields %q twice", all, h.Destination)
		}
		if !h.Fresh.IsZero() || !h.Retry.IsZero() {
			got[h.Destination] = h
		}
	}
	return got
}

// headsAre checks what Heads yields.
func (k *kit) headsAre(all bool, want ...webhook.Head) {
	k.Helper()
	began := k.s.Now()
	got := k.heads(k.s, all)
	expected := make(map[string]webhook.Head)
	for _, h := range want {
		expected[h.Destination] = h
	}
	if k.traits.Mixed { // which of the destinations have something due
		isDue := func(t, at time.Time) bool { return !t.IsZero() && !t.After(at) }
		for name, h := range expected {
			if !isDue(h.Fresh, began) && !isDue(h.Retry, began) {
				delete(expected, name)
			} else if _, ok := got[name]; ok {
				expected[name] = got[name]
			}
		}
		for name, h := range got {
			if !isDue(h.Fresh, k.s.Now()) && !isDue(h.Retry, k.s.Now()) {
				k.Errorf("Heads yields %+v, which is not due", got[name])
			}
		}
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		k.Fatalf("Heads(%v) (-want +got)\n%s", all, diff)
	}
}

var headsCases = []testCase{
	{"Heads", "Heads yields, for each destination, when its earliest fresh delivery and its earliest retry that are not claimed are due.", 0, func(k *kit) {
		k.headsAre(true)
		a, b, c := k.deliveries("a", 2), k.full("b", "1"), k.delivery("c", "1")
		c.Due = k.s.Now().Add(time.Hour)
		retry := k.full("a", "retry")
		retry.Due = retry.Due.Add(-time.Hour)
		k.put(a[1], b, c, retry, a[0])
		rest := []webhook.Head{{Destination: "b", Retry: b.Due}, {Destination: "c", Fresh: c.Due}}
		for range 2 {
			k.headsAre(true, append(rest, webhook.Head{Destination: "a", Fresh: a[0].Due, Retry: retry.Due})...)
			k.restart()
		}
		if !k.traits.Mixed {
			got, _ := k.fetchQueue("a", false, 1)
			k.headsAre(true, append(rest, webhook.Head{Destination: "a", Fresh: a[1].Due, Retry: retry.Due})...)
			k.settle(webhook.Return, got...)
		}
		got := k.fetch(10, "a")
		k.headsAre(true, rest...)
		k.settle(webhook.Return, got[0])
		k.settle(webhook.Done, got[1:]...)
		h := webhook.Head{Destination: "a", Fresh: got[0].Due}
		if !got[0].Expires.IsZero() {
			h = webhook.Head{Destination: "a", Retry: got[0].Due}
		}
		k.headsAre(true, append(rest, h)...)
	}},
	{"HeadsChanged", "Unless all is set it yields only destinations whose heads somebody else has changed since the call before: Revive. Changed returns a channel that has a value when Heads may have news.", 0, func(k *kit) {
		k.bury(3, webhook.ReasonExpired)
		if !k.traits.Mixed && !k.traits.Share {
			k.put(k.delivery("d0", "own"))
			k.headsAre(false)
		}
		k.heads(k.s, false)
		for len(k.s.Changed()) > 0 {
			<-k.s.Changed()
		}
		dead := k.dead(webhook.DeadFilter{Destination: "d1"}, "")
		if n, err := k.s.Revive(k.ctx, dead[0].Key); n != 1 || err != nil {
			k.Fatalf("Revive = %d, %v", n, err)
		}
		k.news(k.s, "d1")
		if !k.traits.Mixed && !k.traits.Share {
			k.headsAre(false)
		}
	}},
	{"HeadsHoldsNoLock", "It holds no lock between two yields.", 0, func(k *kit) {
		for i := range 20 {
			k.put(k.delivery(fmt.Sprint("d", i), "1"))
		}
		n := 0
		for h, err := range k.s.Heads(k.ctx, true) {
			if err != nil {
				k.Fatal(err)
			}
			k.settle(webhook.Done, k.fetchOne(h.Destination))
			if n++; n == 10 {
				break
			}
		}
		k.counts(10, 0, 0)
	}},
	{"Now", "Now is the time by the clock of the store, kept to the microsecond.", 0, func(k *kit) {
		at := k.s.Now()
		if !at.Equal(at.Truncate(time.Microsecond)) {
			k.Errorf("Now = %v, with parts of a microsecond", at)
		}
		k.pass(k.unit)
		if passed := k.s.Now().Sub(at); passed < k.unit || k.traits.Bubble && passed > k.unit {
			k.Errorf("after %v Now is %v later", k.unit, passed)
		}
	}},
}

// news waits until Changed has a value that leads to a head of a destination.
func (k *kit) news(s webhook.Store, destination string) {
	k.Helper()
	for {
		select {
		case <-s.Changed():
		case <-k.ctx.Done():
			k.Fatalf("Changed has no value that leads to a head of %q", destination)
		}
		if _, ok := k.heads(s, false)[destination]; ok {
			return
		}
	}
}

// calls returns a call of each method, which would do something: of a store that holds a
// delivery that is due, one that is claimed and a dead letter.
func (k *kit) calls() map[string]func(ctx context.Context) error {
	s := k.s
	dead := k.bury(1, webhook.ReasonExpired)[0].Key
	k.put(k.delivery("a", "1"))
	d, more := k.fetchOne("a"), k.delivery("a", "3")
	k.put(k.delivery("a", "2"))
	calls := map[string]func(ctx context.Context) error{
		"Put": func(ctx context.Context) error { _, err := tryPut(ctx, s, more); return err },
		"Fetch": func(ctx context.Context) error {
			_, err := s.Fetch(ctx, wants(1, "a"), noLimit, nil)
			return err
		},
		"Count":              func(ctx context.Context) error { _, err := s.Count(ctx); return err },
		"CountByDestination": func(ctx context.Context) error { _, err := list(s.CountByDestination(ctx)); return err },
		"Heads(true)":        func(ctx context.Context) error { _, err := list(s.Heads(ctx, true)); return err },
		"Heads(false)":       func(ctx context.Context) error { _, err := list(s.Heads(ctx, false)); return err },
		"DeadLetter":         func(ctx context.Context) error { _, err := s.DeadLetter(ctx, dead); return err },
		"Dead":               func(ctx context.Context) error { _, err := list(s.Dead(ctx, webhook.DeadFilter{}, "")); return err },
		"Revive":             func(ctx context.Context) error { _, err := s.Revive(ctx, dead); return err },
		"Discard":            func(ctx context.Context) error { _, err := s.Discard(ctx, dead); return err },
		"Waiting":            func(ctx context.Context) error { _, err := list(s.Waiting(ctx, "a", "")); return err },
		"Erase":              func(ctx context.Context) error { _, _, err := s.Erase(ctx, "user"); return err },
		"Settings":           func(ctx context.Context) error { _, err := list(s.Settings(ctx, "pause/")); return err },
		"Set":                func(ctx context.Context) error { _, err := s.Set(ctx, setting("pause/a", "{}", 0)); return err },
	}
	for _, verdict := range verdicts {
		ss := k.settlements(verdict, d)
		calls[fmt.Sprint("Settle with verdict ", verdict)] = func(ctx context.Context) error { _, err := s.Settle(ctx, ss); return err }
	}
	if r, ok := s.(webhook.Roster); ok {
		k.begin("vip", 1)
		k.join("vip", 1, []string{"a"}, "a")
		k.begin("vip", 2)
		calls["Begin"] = func(ctx context.Context) error { _, err := r.Begin(ctx, "vip"); return err }
		calls["Join"] = func(ctx context.Context) error {
			_, err := r.Join(ctx, "vip", 2, []string{"u"}, k.announce)
			return err
		}
		calls["Leave"] = func(ctx context.Context) error { _, _, err := r.Leave(ctx, "vip", 2, "", 10, k.announce); return err }
		calls["Members"] = func(ctx context.Context) error { _, err := list(r.Members(ctx, "vip", "")); return err }
	}
	if r, ok := s.(webhook.Rosters); ok {
		calls["Audiences"] = func(ctx context.Context) error { _, err := list(r.Audiences(ctx)); return err }
	}
	return calls
}

var closeCases = []testCase{
	{"CloseThenErrClosed", "Each method returns ErrClosed after Close. A second Close returns nil.", 0, func(k *kit) {
		calls := k.calls()
		s := k.s
		k.close()
		if err := s.Close(); err != nil {
			k.Errorf("the second Close: %v", err)
		}
		for name, call := range calls {
			if err := call(k.ctx); !errors.Is(err, webhook.ErrClosed) && !errors.Is(err, webhook.ErrUnsupported) {
				k.Errorf("%s after Close: %v, want ErrClosed", name, err)
			}
		}
	}},
	{"Cancelled", "A cancelled call changes nothing and returns the error of its context. An error ends a list.", 0, func(k *kit) {
		calls := k.calls()
		before := k.count()
		for name, call := range calls {
			if err := call(k.cancelled()); !errors.Is(err, context.Canceled) && !errors.Is(err, webhook.ErrUnsupported) {
				k.Errorf("%s with a cancelled context: %v, want context.Canceled", name, err)
			}
		}
		if diff := cmp.Diff(before, k.count()); diff != "" {
			k.Errorf("Count (-before +after)\n%s", diff)
		}
	}},
	{"CloseEndsClaims", "All claims end with it. Claims do not survive the process.", durable, func(k *kit) {
		want := k.full("a", "1")
		kept := k.delivery("b", "kept")
		k.put(want)
		k.fetchOne("a")
		if err := k.s.Put(k.ctx, []webhook.Put{{Delivery: kept, Keep: true}}, make([]webhook.Result, 1)); err != nil {
			k.Fatal(err)
		}
		k.reopen()
		k.counts(2, 0, 0)
		k.sameSet("Fetch after reopening", k.fetch(10, "a", "b"), want, kept)
	}},
	{"CloseWaits", "Close waits for calls in progress.", durable, func(k *kit) {
		stored := make([]int, 4) // by putter
		begun := make(chan struct{}, len(stored))
		var wg sync.WaitGroup
		for p := range stored {
			wg.Go(func() {
				for i := 0; ; i++ {
					n, err := tryPut(k.ctx, k.s, k.delivery("a", fmt.Sprint(p, "-", i)))
					if stored[p] += n; i == 10 {
						begun <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, webhook.ErrClosed) {
							k.Errorf("Put: %v", err)
						}
						return
					}
				}
			})
		}
		for range stored {
			<-begun
		}
		if err := k.s.Close(); err != nil {
			k.Errorf("Close: %v", err)
		}
		wg.Wait()
		k.s = nil
		k.reopen()
		want := make(map[string]bool)
		for p, n := range stored {
			for i := range n {
				want[fmt.Sprint("a/", p, "-", i)] = true
			}
		}
		for _, id := range ids(k.fetch(100_000, "a")) {
			if !want[id] {
				k.Errorf("Fetch returned %s, which was not stored, or twice", id)
			}
			delete(want, id)
		}
		if len(want) > 0 {
			k.Errorf("%d deliveries are lost for which Put returned nil", len(want))
		}
	}},
}
