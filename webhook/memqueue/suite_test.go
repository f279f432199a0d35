package memqueue_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
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

// TestShared checks the cases for stores that several nodes share, on nodes that share a
// store in memory.
func TestShared(t *testing.T) {
	stores := make(map[string]*common) // by folder
	open := func(_ testing.TB, dir string) webhook.Store {
		if stores[dir] == nil {
			stores[dir] = &common{store: memqueue.New(memqueue.Config{}), nodes: make(map[*node]bool)}
		}
		n := &node{Store: stores[dir].store, common: stores[dir], held: make(map[uint64]bool), changed: make(chan struct{}, 1)}
		n.nodes[n] = true
		return n
	}
	queuetest.Run(t, open, queuetest.Traits{Bubble: true, Share: true, Abandon: func(_ testing.TB, s webhook.Store) { s.(*node).release() }})
}

// A common is what nodes share. It is closed with the last of them.
type common struct {
	store *memqueue.Store
	mu    sync.Mutex
	nodes map[*node]bool
}

// A node is one of several that share a store. Its claims end with it.
type node struct {
	*memqueue.Store
	*common
	held    map[uint64]bool
	changed chan struct{}
}

func (n *node) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	if err := n.Store.Put(ctx, ps, out); err != nil {
		return err
	}
	n.mu.Lock()
	for _, r := range out {
		n.held[r.Claim] = true
	}
	n.mu.Unlock()
	n.tell()
	return nil
}

// tell has all nodes ask for Heads.
func (c *common) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.nodes {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

func (n *node) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	defer n.tell()
	return n.Store.Join(ctx, audience, generation, users, announce)
}

func (n *node) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(string) ([]webhook.Delivery, error)) (string, int, error) {
	defer n.tell()
	return n.Store.Leave(ctx, audience, generation, after, max, announce)
}

func (n *node) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	ds, err := n.Store.Fetch(ctx, wants, maxBytes, dst)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range ds[len(dst):] {
		n.held[d.Claim] = true
	}
	return ds, err
}

// Heads yields too much rather than too little.
func (n *node) Heads(ctx context.Context, _ bool) iter.Seq2[webhook.Head, error] {
	return n.Store.Heads(ctx, true)
}

func (n *node) Changed() <-chan struct{} { return n.changed }

func (n *node) Revive(ctx context.Context, keys ...string) (int, error) {
	defer n.tell()
	return n.Store.Revive(ctx, keys...)
}

// release ends the claims of a node.
func (n *node) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for claim := range n.held {
		n.Settle(context.Background(), []webhook.Settlement{{Verdict: webhook.Return, Delivery: webhook.Delivery{Claim: claim}}})
	}
	clear(n.held)
}

func (n *node) Close() error {
	n.release()
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.nodes, n); len(n.nodes) > 0 {
		return nil
	}
	return n.Store.Close()
}
