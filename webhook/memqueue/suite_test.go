package memqueue_test

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
)

// TestLeast checks that the suite takes a store that declines to keep.
func TestLeast(t *testing.T) {
	queuetest.Run(t, func(testing.TB, string) webhook.Store {
		return least{memqueue.New(memqueue.Config{})}
	}, queuetest.Traits{Bubble: true})
}

// A least store does as little as the suite allows.
type least struct{ webhook.Store }

func (s least) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return s.Store.Put(ctx, ps, out)
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
		n.mu.Lock()
		defer n.mu.Unlock()
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

func (n *node) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (int, int, error) {
	defer n.tell()
	return n.Store.Change(ctx, filter, to)
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
