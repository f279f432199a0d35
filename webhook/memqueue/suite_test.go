package memqueue_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
)

// TestMixed checks that the suite takes a store with one queue for each destination, which
// declines to keep and lacks what it may lack.
func TestMixed(t *testing.T) {
	queuetest.Run(t, func(testing.TB, string) webhook.Store {
		return mixed{memqueue.New(memqueue.Config{})}
	}, queuetest.Traits{Bubble: true, Mixed: true})
}

// A mixed store is a memqueue.Store that does as little as the suite allows.
type mixed struct{ *memqueue.Store }

func (m mixed) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return m.Store.Put(ctx, ps, out)
}

// Fetch takes one delivery after the other from that queue of a destination which has the earlier.
func (m mixed) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	had := len(dst)
	most := make(map[string]int)
	for _, w := range wants {
		most[w.Destination] += w.Max
	}
	for _, w := range slices.Backward(wants) { // any order of destinations is allowed
		name, n := w.Destination, most[w.Destination]
		if delete(most, name); n == 0 {
			continue
		}
		var due []webhook.Delivery
		for _, retries := range []bool{false, true} {
			var err error
			if due, err = m.Store.Fetch(ctx, []webhook.Want{{Destination: name, Retries: retries, Max: n}}, 1<<40, due); err != nil {
				return dst, err
			}
		}
		slices.SortStableFunc(due, func(a, b webhook.Delivery) int { return a.Due.Compare(b.Due) })
		var back []webhook.Settlement
		for i, d := range due {
			if i < n {
				maxBytes -= int64(len(d.Body))
			}
			if i >= n || maxBytes < 0 && len(dst) > had {
				back = append(back, webhook.Settlement{Verdict: webhook.Return, Delivery: d})
				continue
			}
			dst = append(dst, d)
		}
		if _, err := m.Settle(ctx, back); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// Heads yields what is due, always as a fresh delivery.
func (m mixed) Heads(ctx context.Context, _ bool) iter.Seq2[webhook.Head, error] {
	return func(yield func(webhook.Head, error) bool) {
		for h, err := range m.Store.Heads(ctx, true) {
			if first := earlier(h.Fresh, h.Retry); err != nil || !first.After(m.Now()) {
				if !yield(webhook.Head{Destination: h.Destination, Fresh: first}, err) {
					return
				}
			}
		}
	}
}

// earlier returns the earlier of two times that is not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (m mixed) Waiting(context.Context, string, string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) { yield(webhook.Delivery{}, webhook.ErrUnsupported) }
}

func (m mixed) Erase(context.Context, string) (int, int, error) { return 0, 0, webhook.ErrUnsupported }

func (m mixed) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	if prefix == "pause/" {
		return m.Store.Settings(ctx, prefix)
	}
	return func(yield func(webhook.Setting, error) bool) { yield(webhook.Setting{}, webhook.ErrUnsupported) }
}

func (m mixed) Set(ctx context.Context, s webhook.Setting) (uint64, error) {
	if !strings.HasPrefix(s.Name, "pause/") {
		return 0, webhook.ErrUnsupported
	}
	return m.Store.Set(ctx, s)
}
