//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

func deliveries(destination string, from, n int) []store.Delivery {
	now := time.Now()
	ds := make([]store.Delivery, n)
	for i := range ds {
		ds[i] = store.Delivery{
			Destination: destination, ID: fmt.Sprint(from + i), Type: "track",
			Body: fmt.Appendf(nil, `{"messageId":"%d"}`, from+i), Accepted: now, Due: now.Add(-time.Second),
		}
	}
	return ds
}

// putSome puts ds and returns how many were stored.
func putSome(ctx context.Context, s *Store, ds ...store.Delivery) (n int, err error) {
	out := make([]store.Result, len(ds))
	err = s.Put(ctx, puts(ds...), out)
	for _, r := range out {
		if r.Stored {
			n++
		}
	}
	return n, err
}

// putInTx puts ps in a transaction and returns how many were stored.
func putInTx(ctx context.Context, s *Store, tx any, ps []store.Put) (n int, err error) {
	out := make([]store.Result, len(ps))
	err = s.PutTx(ctx, tx, ps, out)
	for _, r := range out {
		if r.Stored {
			n++
		}
	}
	return n, err
}

func puts(ds ...store.Delivery) []store.Put {
	ps := make([]store.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return ps
}

func putAll(t testing.TB, s *Store, ds ...store.Delivery) {
	t.Helper()
	if n, err := putSome(t.Context(), s, ds...); n != len(ds) || err != nil {
		t.Fatalf("Put = %d, %v; want %d", n, err, len(ds))
	}
}

// fetchUntil fetches from one destination after the other until it has n deliveries.
func fetchUntil(t testing.TB, s *Store, n int, destinations ...string) (ds []store.Delivery) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("the store hands out %d deliveries", n), func() bool {
		for _, name := range destinations {
			for _, retries := range []bool{false, true} {
				if len(ds) == n {
					return true
				}
				var err error
				if ds, err = s.Fetch(t.Context(), []store.Want{{Destination: name, Retries: retries, Max: n - len(ds)}}, 1<<40, ds); err != nil {
					t.Fatal(err)
				}
			}
		}
		return len(ds) == n
	})
	return ds
}

func settlements(verdict store.Verdict, ds []store.Delivery) []store.Settlement {
	ss := make([]store.Settlement, len(ds))
	for i := range ds {
		ss[i] = store.Settlement{Verdict: verdict, Delivery: ds[i]}
	}
	return ss
}

func settleAll(t testing.TB, s *Store, verdict store.Verdict, ds []store.Delivery) {
	t.Helper()
	if n, err := s.Settle(t.Context(), settlements(verdict, ds)); n != len(ds) || err != nil {
		t.Fatalf("Settle = %d, %v; want %d", n, err, len(ds))
	}
}

// wantWaiting checks the number of waiting deliveries.
func wantWaiting(t testing.TB, s *Store, want int) {
	t.Helper()
	if c, err := s.Count(t.Context()); err != nil || c.Waiting != want {
		t.Errorf("Count = %+v, %v; want %d waiting", c, err, want)
	}
}

// listAll returns all deliveries that q selects.
func listAll(t testing.TB, s *Store, q store.Query) (all []store.Record) {
	t.Helper()
	for page, err := range store.PagesOf(t.Context(), s, q, 100) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
	}
	return all
}

func refs(rs []store.Record) (refs []store.Ref) {
	for i := range rs {
		refs = append(refs, rs[i].Ref())
	}
	return refs
}
