package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// another opens the store a second time, until the end of the case.
func (k *kit) another() store.Store {
	s := k.open(k, k.dir)
	k.Cleanup(func() { k.close(s) })
	return s
}

// fetchFrom fetches deliveries from the stores until it has at least n.
func (k *kit) fetchFrom(n int, names []string, stores ...store.Store) (ds []store.Delivery) {
	testkit.Until(k, fmt.Sprintf("%d deliveries are handed out", n), func() bool {
		for _, s := range stores {
			var err error
			if ds, err = s.Fetch(k.ctx, wants(n, names...), noLimit, ds); err != nil {
				k.Fatalf("Fetch: %v", err)
			}
		}
		return len(ds) >= n
	})
	for i := range ds {
		k.number(&ds[i])
	}
	return ds
}

// nodes waits until s returns nodes with exactly these notes, in this order.
func nodes(k *kit, s store.Shared, notes ...string) (nodes []store.Node) {
	testkit.Until(k, "Nodes returns the nodes that are open, with their notes", func() bool {
		var err error
		if nodes, err = s.Nodes(k.ctx); err != nil {
			k.Fatalf("Nodes: %v", err)
		}
		return slices.EqualFunc(nodes, notes, func(n store.Node, note string) bool { return string(n.Note) == note })
	})
	return nodes
}

// shareCases are the cases in which several nodes share the store. Such a store may divide the
// destinations among the nodes, so a case must not expect that one node serves all of them.
var shareCases = []testCase{
	{"ShareClaims", "A claim is the right to settle a delivery, also where several nodes share a store, of which some come and go.", func(k *kit) {
		together(k, func() {
			for range 5 {
				k.pass(time.Millisecond) // meanwhile other goroutines claim deliveries
				k.close(k.open(k, k.dir))
			}
		}, k.s, k.another())
	}},
	{"SharePut", "Put leaves out a delivery if one with the same Destination and ID was put before. Changed returns a channel that has a value when Heads may have news: of another node.", func(k *kit) {
		first, other := k.s, k.another()
		k.heads(true)
		ds, names := k.many(40, 1)
		k.s = other
		k.put(ds...)
		k.s = first
		k.fetch(1, k.news(names...))
		k.put(append(ds, k.delivery("d0", "new"))...)
		for _, s := range []store.Store{first, other} {
			// The changes of another node may be counted later.
			testkit.Until(k, "Count returns 41 that wait", func() bool {
				c, err := s.Count(k.ctx)
				return err == nil && c.Waiting == 41
			})
		}
	}},
	{"ShareInspector", "Revive makes dead letters fresh deliveries, on whichever node it is called. Set: all nodes see the change at once.", func(k *kit) {
		dead := bury(k, 2)
		first, other := k.s, k.another()
		k.s = other
		k.revive(dead[0].Ref())
		k.s = first
		k.revive(dead[0].Ref(), dead[1].Ref())
		if ds := k.fetchFrom(2, []string{"d0", "d1"}, first, other); ds[0].ID == ds[1].ID {
			k.Errorf("%v were fetched twice", ids(ds))
		}
		for _, s := range []store.Store{first, other, first} {
			k.s = s
			k.write("doc", "a", []byte("{}"), k.documents.version(path{"doc", "a"}))
			k.write("doc", "a", []byte("{}"), 0)
		}
	}},
	{"Nodes", "Nodes returns those that are open, in the order they were opened, with what they present.", func(k *kit) {
		first, ok := k.s.(store.Shared)
		if !ok {
			return
		}
		other := k.another()
		second := other.(store.Shared)
		present := func(s store.Shared, note string) { s.Present(func() ([]byte, bool) { return []byte(note), true }) }
		long := string(make([]byte, store.MaxNote))
		present(first, "first")
		present(second, long)
		for self, s := range []store.Shared{first, second} {
			for i, n := range nodes(k, s, "first", long) {
				if n.Name == "" || n.Self != (i == self) || n.Opened.After(n.Seen) || n.Seen.After(k.s.Now()) {
					k.Errorf("node %d in the result of Nodes of node %d is %+v", i, self, n)
				}
			}
		}
		present(first, long+"more")
		nodes(k, second, "", long)
		k.close(other)
		if nodes := nodes(k, first, ""); !nodes[0].Self {
			k.Errorf("the node that is left is %+v, want Self", nodes[0])
		}
	}},
	{"ShareRelease", "Release gives back at once what is not claimed, and from then on what is no longer, for others to claim.", func(k *kit) {
		shared, ok := k.s.(store.Shared)
		if !ok {
			return
		}
		ds, names := k.many(40, 15)
		k.put(ds...)
		held := k.fetch(10, "d0")
		other := k.another()
		if err := shared.Release(k.ctx); err != nil && !errors.Is(err, store.ErrUnsupported) {
			k.Fatal(err)
		}
		// While a node has a claimed delivery of a destination, a store may keep the other
		// deliveries of that destination with this node.
		got := k.fetchFrom(len(ds)/2, names, other)
		k.settle(store.Done, held[:4]...)
		k.settle(store.Return, held[4:]...)
		got = append(got, k.fetchFrom(len(ds)-4-len(got), names, other)...)
		equalLists(k, "what was handed out", byID(append(got, held[:4]...)), byID(ds))
		k.put(k.delivery("d1", "late")) // deliveries that are put now are for other nodes, too
		k.fetchFrom(1, names, other)
	}},
	{"ShareTakeOver", "The claims of a node that died end when its last heartbeat is too old.", func(k *kit) {
		if k.traits.Abandon == nil {
			return
		}
		first, dead := k.s, k.another()
		ds, names := k.many(40, 8)
		k.s = dead
		k.put(ds...)
		done := k.fetchFrom(16, names, dead)[:8]
		k.settle(store.Done, done...)
		k.s = first
		k.traits.Abandon(k, dead)
		equalLists(k, "what was handed out", byID(append(k.fetchFrom(len(ds)-8, names, first), done...)), byID(ds))
	}},
}

func byID(ds []store.Delivery) []store.Delivery {
	return slices.SortedFunc(slices.Values(ds), func(x, y store.Delivery) int { return strings.Compare(id(&x), id(&y)) })
}
