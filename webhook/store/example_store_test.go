package store_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A memory is the first half of a store: what the Forwarder needs to deliver. It leaves out the
// lists and the documents, which the embedded interfaces stand for, and keeps nothing when the process ends.
type memory struct {
	store.Inspector
	store.DocumentStore

	changed chan struct{}

	mu      sync.Mutex
	closed  bool
	window  *store.Window
	waiting []*store.Delivery // in the order of Due; one is claimed if its Claim is not zero
	claim   uint64            // the number of the latest claim
}

func newMemory() *memory {
	return &memory{changed: make(chan struct{}, 1), window: store.NewWindow(1_000_000, 24*time.Hour)}
}

// locked calls f with the lock held, or returns ErrClosed.
func (m *memory) locked(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return store.ErrClosed
	}
	return f()
}

// add puts d in its place by Due, behind the deliveries that are due at the same time.
func (m *memory) add(d *store.Delivery) {
	i := slices.IndexFunc(m.waiting, func(other *store.Delivery) bool { return other.Due.After(d.Due) })
	if i < 0 {
		i = len(m.waiting)
	}
	m.waiting = slices.Insert(m.waiting, i, d)
}

func (m *memory) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	for i := range ps {
		if err := ps[i].Check(); err != nil {
			return err // of all or nothing, it is nothing
		}
	}
	return m.locked(func() error {
		for i, p := range ps {
			out[i] = store.Result{Stored: p.NoDedup || m.window.Add(store.KeyOf(p.Destination, p.ID), m.Now())}
			if out[i].Stored {
				p.Body = slices.Clone(p.Body) // the caller may change its own
				m.add(&p.Delivery)
			}
		}
		return nil
	})
}

func (m *memory) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	now := m.Now()
	err := m.locked(func() error {
		for i := range wants {
			w, n := &wants[i], 0
			w.Next = time.Time{}
			for _, r := range m.waiting {
				if r.Claim != 0 || r.Destination != w.Destination || r.Expires.IsZero() == w.Retries {
					continue
				}
				if n == w.Max || r.Due.After(now) || maxBytes <= 0 {
					w.Next = r.Due
					break
				}
				m.claim++
				r.Claim = m.claim
				dst = append(dst, *r)
				maxBytes -= int64(len(r.Body))
				n++
			}
		}
		return nil
	})
	return dst, err
}

func (m *memory) Settle(ctx context.Context, ss []store.Settlement) (n int, err error) {
	err = m.locked(func() error {
		for ; n < len(ss); n++ {
			s := &ss[n]
			if err := s.Check(); err != nil {
				return err
			}
			i := slices.IndexFunc(m.waiting, func(d *store.Delivery) bool { return d.Claim == s.Delivery.Claim })
			if i < 0 || s.Delivery.Claim == 0 {
				continue // the claim has ended before
			}
			d := m.waiting[i]
			m.waiting = slices.Delete(m.waiting, i, i+1)
			d.Claim = 0
			switch next := &s.Delivery; s.Verdict { // a whole store keeps those of Bury as dead letters
			case store.Retry:
				d.Due, d.Expires, d.Tries, d.Closed, d.Attempts = next.Due, next.Expires, next.Tries, next.Closed, next.Attempts
				m.add(d)
			case store.Return:
				m.add(d)
			}
		}
		return nil
	})
	return n, err
}

func (m *memory) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return store.Page(func() (heads []store.Head, err error) {
		if !all {
			return nil, nil // no node, transaction or list changes a memory
		}
		err = m.locked(func() error {
			for _, r := range m.waiting {
				i := slices.IndexFunc(heads, func(h store.Head) bool { return h.Destination == r.Destination })
				if i < 0 {
					i, heads = len(heads), append(heads, store.Head{Destination: r.Destination})
				}
				first := &heads[i].Fresh
				if !r.Expires.IsZero() {
					first = &heads[i].Retry
				}
				if r.Claim == 0 && first.IsZero() {
					*first = r.Due
				}
			}
			return nil
		})
		return heads, err
	})
}

func (m *memory) Changed() <-chan struct{} { return m.changed }
func (m *memory) Now() time.Time           { return time.Now().Truncate(time.Microsecond) }

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// The first half of a store: what the Forwarder needs to deliver.
func Example() {
	var s store.Store = newMemory()
	ctx, now := context.Background(), s.Now()
	d := store.Delivery{Destination: "crm", ID: "m1", Type: "track", Body: []byte("{}"), Accepted: now, Due: now}
	out := make([]store.Result, 2)
	err := s.Put(ctx, []store.Put{{Delivery: d}, {Delivery: d}}, out)
	fmt.Println(out[0].Stored, out[1].Stored, err)

	claimed, err := s.Fetch(ctx, []store.Want{{Destination: "crm", Max: 10}}, 1<<20, nil)
	fmt.Println(len(claimed), claimed[0].ID, err)

	n, err := s.Settle(ctx, []store.Settlement{{Verdict: store.Done, Delivery: claimed[0], At: now}})
	fmt.Println(n, err)
	// Output:
	// true false <nil>
	// 1 m1 <nil>
	// 1 <nil>
}
