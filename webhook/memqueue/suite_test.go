package memqueue_test

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

// The suite accepts a store that ignores Put.Keep, as the contract allows.
func TestSuiteAcceptsStoreThatNeverKeeps(t *testing.T) {
	queuetest.Run(t, func(testing.TB, string) store.Store {
		return neverKeeps{testkit.Must(memqueue.Open(memqueue.Config{}))}
	}, queuetest.Traits{Bubble: true})
}

// A neverKeeps store claims no delivery for the caller of Put.
type neverKeeps struct{ store.Store }

func (s neverKeeps) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return s.Store.Put(ctx, ps, out)
}

// The suite's cases for several nodes pass on nodes that share a store in memory.
func TestSuiteAcceptsNodesThatShareStore(t *testing.T) {
	stores := make(map[string]*sharedStore) // by folder
	open := func(_ testing.TB, dir string) store.Store {
		if stores[dir] == nil {
			stores[dir] = &sharedStore{store: testkit.Must(memqueue.Open(memqueue.Config{})), nodes: make(map[*node]bool)}
		}
		n := &node{Store: stores[dir].store, sharedStore: stores[dir], held: make(map[uint64]bool), changed: make(chan struct{}, 1)}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.nodes[n] = true
		return n
	}
	queuetest.Run(t, open, queuetest.Traits{Bubble: true, Share: true, Abandon: func(_ testing.TB, s store.Store) { s.(*node).release() }})
}

// A sharedStore is a store that nodes share. The last node to close closes it.
type sharedStore struct {
	store *memqueue.Store
	mu    sync.Mutex
	nodes map[*node]bool
}

// A node is one of several nodes that share a store. Close ends its claims.
type node struct {
	*memqueue.Store
	*sharedStore
	held    map[uint64]bool
	changed chan struct{}
}

func (n *node) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if err := n.Store.Put(ctx, ps, out); err != nil {
		return err
	}
	n.mu.Lock()
	for _, r := range out {
		n.held[r.Claim] = true
	}
	n.mu.Unlock()
	n.notifyAll()
	return nil
}

// notifyAll tells the users of all nodes to call Heads.
func (s *sharedStore) notifyAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.nodes {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

func (n *node) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	ds, err := n.Store.Fetch(ctx, wants, maxBytes, dst)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range ds[len(dst):] {
		n.held[d.Claim] = true
	}
	return ds, err
}

// Heads yields all heads, also those that have not changed. Too many heads do no harm, too few
// would.
func (n *node) Heads(ctx context.Context, _ bool) iter.Seq2[store.Head, error] {
	return n.Store.Heads(ctx, true)
}

func (n *node) Changed() <-chan struct{} { return n.changed }

func (n *node) Hasten(ctx context.Context, refs ...store.Ref) (int, int, error) {
	defer n.notifyAll()
	return n.Store.Hasten(ctx, refs...)
}

func (n *node) Revive(ctx context.Context, refs ...store.Ref) (int, error) {
	defer n.notifyAll()
	return n.Store.Revive(ctx, refs...)
}

func (n *node) Discard(ctx context.Context, refs ...store.Ref) (int, int, error) {
	defer n.notifyAll()
	return n.Store.Discard(ctx, refs...)
}

func (n *node) Erase(ctx context.Context, user string) (int, int, error) {
	defer n.notifyAll()
	return n.Store.Erase(ctx, user)
}

// release ends the claims of a node.
func (n *node) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for claim := range n.held {
		n.Settle(context.Background(), []store.Settlement{{Verdict: store.Return, Delivery: store.Delivery{Claim: claim}}})
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
