package queuetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/hookferry/analytics/webhook"
)

// A store for which all methods have something to do: two of a kind for each list, and
// one delivery that is claimed.
type busy struct {
	*kit
	s       webhook.Store // also once it is closed
	dead    string        // the key of a dead letter
	claimed webhook.Delivery
}

func (k *kit) busy() *busy {
	k.Helper()
	b := &busy{kit: k, s: k.s, dead: k.bury(2)[0].Key}
	k.put(k.delivery("a", "1"))
	b.claimed = k.fetchOne("a")
	k.put(k.delivery("a", "2"), k.delivery("b", "3"))
	k.set("doc/1", []byte("{}"), 0)
	k.set("doc/2", []byte("{}"), 0)
	return b
}

// errs yields the errors of seq.
func errs[T any](seq iter.Seq2[T, error]) iter.Seq[error] {
	return func(yield func(error) bool) {
		for _, err := range seq {
			if !yield(err) {
				return
			}
		}
	}
}

// lists returns the errors that each list yields.
func (b *busy) lists(ctx context.Context) map[string]iter.Seq[error] {
	return map[string]iter.Seq[error]{
		"CountByDestination": errs(b.s.CountByDestination(ctx)),
		"Heads":              errs(b.s.Heads(ctx, true)),
		"Dead":               errs(b.s.Dead(ctx, webhook.DeadFilter{}, "")),
		"Waiting":            errs(b.s.Waiting(ctx, "a", "")),
		"Settings":           errs(b.s.Settings(ctx, "doc/")),
	}
}

// calls returns a call of each method, which would do something.
func (b *busy) calls() map[string]func(ctx context.Context) error {
	s := b.s
	more := b.delivery("a", "4")
	calls := map[string]func(ctx context.Context) error{
		"Put": func(ctx context.Context) error { _, err := tryPut(ctx, s, webhook.Put{Delivery: more}); return err },
		"Fetch": func(ctx context.Context) error {
			ws := []webhook.Want{{Destination: "a", Max: 1, Next: more.Due}}
			ds, err := s.Fetch(ctx, ws, noLimit, nil)
			if len(ds) > 0 || ws[0].Next != more.Due {
				err = fmt.Errorf("returned %v, changed wants to %v, %w", ids(ds), ws, err)
				b.Error(err)
			}
			return err
		},
		"Heads(false)": func(ctx context.Context) error { _, err := list(s.Heads(ctx, false)); return err },
		"Count":        func(ctx context.Context) error { _, err := s.Count(ctx); return err },
		"DeadLetter":   func(ctx context.Context) error { _, err := s.DeadLetter(ctx, b.dead); return err },
		"Revive":       func(ctx context.Context) error { _, err := s.Revive(ctx, b.dead); return err },
		"Discard":      func(ctx context.Context) error { _, err := s.Discard(ctx, b.dead); return err },
	}
	for name := range b.lists(b.ctx) {
		calls[name] = func(ctx context.Context) error { return slices.Collect(b.lists(ctx)[name])[0] }
	}
	for _, verdict := range verdicts {
		ss := settlements(s, verdict, b.claimed)
		calls[fmt.Sprint("Settle with verdict ", verdict)] = func(ctx context.Context) error { _, err := s.Settle(ctx, ss); return err }
	}
	calls["Change"] = func(ctx context.Context) error {
		_, _, err := s.Change(ctx, webhook.WaitingFilter{Destination: "a"}, webhook.Discarded)
		return err
	}
	calls["Erase"] = func(ctx context.Context) error { _, _, err := s.Erase(ctx, "user"); return err }
	calls["Set"] = func(ctx context.Context) error {
		_, err := s.Set(ctx, webhook.Setting{Name: "doc/3", Value: []byte("{}")})
		return err
	}
	return calls
}

var callCases = []testCase{
	{"ListsHoldNoLock", "It holds no lock between two yields.", 0, func(k *kit) {
		b := k.busy()
		for name, list := range b.lists(k.ctx) {
			n := 0
			for err := range list {
				if err != nil {
					k.Fatalf("%s: %v", name, err)
				}
				k.put(k.delivery("c", fmt.Sprint(name, n)))
				k.settle(webhook.Done, k.fetchOne("c"))
				if n++; n == 2 {
					break
				}
			}
			if n < 2 {
				k.Errorf("%s yields %d of at least 2", name, n)
			}
		}
	}},
	{"Cancelled", "A cancelled call changes nothing and returns the error of its context. With an error nothing is claimed, and wants are as they were. An error ends a list.", 0, func(k *kit) {
		calls := k.busy().calls()
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		for name, call := range calls {
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				k.Errorf("%s with a cancelled context: %v, want context.Canceled", name, err)
			}
		}
		k.compare()
	}},
	{"Closed", "Each method returns ErrClosed after Close. A second Close returns nil.", 0, func(k *kit) {
		calls := k.busy().calls()
		for range 2 {
			if err := k.s.Close(); err != nil {
				k.Errorf("Close: %v", err)
			}
		}
		for name, call := range calls {
			if err := call(k.ctx); !errors.Is(err, webhook.ErrClosed) {
				k.Errorf("%s after Close: %v, want ErrClosed", name, err)
			}
		}
		k.s = nil
	}},
	{"CloseWaits", "Close waits for calls in progress.", durable, func(k *kit) {
		stored := make([][]webhook.Delivery, 4) // by putter
		begun := make(chan struct{}, len(stored))
		var wg sync.WaitGroup
		for p := range stored {
			wg.Go(func() {
				for i := 0; ; i++ {
					d := k.delivery("a", fmt.Sprint(p, "-", i))
					_, err := tryPut(k.ctx, k.s, webhook.Put{Delivery: d})
					if i == 10 {
						begun <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, webhook.ErrClosed) {
							k.Errorf("Put: %v", err)
						}
						return
					}
					stored[p] = append(stored[p], d)
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
		for _, d := range slices.Concat(stored...) {
			k.held[key(&d)] = &d
		}
		k.fetch(100_000, "a")
	}},
}
