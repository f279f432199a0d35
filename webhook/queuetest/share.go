package queuetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// another opens the store once more, until the case ends.
func (k *kit) another() webhook.Store {
	k.Helper()
	s := k.open(k, k.dir)
	k.Cleanup(func() {
		if err := s.Close(); err != nil {
			k.Errorf("Close: %v", err)
		}
	})
	return s
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// share has each of the stores fetch up to max of each destination at a time, and settle
// them, until all of want are handed out, and does something meanwhile. It checks that
// each was handed out once.
func (k *kit) share(want []webhook.Delivery, max int, meanwhile func(), stores ...webhook.Store) {
	k.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	left := make(map[string]bool)
	var names []string
	for _, d := range want {
		left[key(&d)] = true
		if n := len(names); n == 0 || names[n-1] != d.Destination {
			names = append(names, d.Destination)
		}
	}
	for _, s := range stores {
		wg.Go(func() {
			for !k.Failed() {
				ds, err := s.Fetch(k.ctx, wants(max, names...), noLimit, nil)
				if err == nil {
					_, err = s.Settle(k.ctx, k.settlements(webhook.Done, ds...))
				}
				if err != nil {
					k.Errorf("fetching and settling: %v", err)
				}
				mu.Lock()
				for _, id := range ids(ds) {
					if !left[id] {
						k.Errorf("%s was handed out twice", id)
					}
					delete(left, id)
				}
				end := len(left) == 0
				mu.Unlock()
				if end {
					return
				}
				if len(ds) == 0 {
					wait(k.ctx, time.Millisecond)
				}
			}
		})
	}
	meanwhile()
	wg.Wait()
}

// many returns deliveries of many destinations: a store may have each node serve some.
func (k *kit) many(destinations, each int) (ds []webhook.Delivery) {
	for i := range destinations {
		ds = append(ds, k.deliveries(fmt.Sprint("d", i), each)...)
	}
	return ds
}

// fetchFrom fetches n deliveries of many from any of the stores, and waits for them.
func (k *kit) fetchFrom(n, destinations int, stores ...webhook.Store) (ds []webhook.Delivery) {
	k.Helper()
	testkit.Until(k, fmt.Sprintf("%d deliveries are handed out", n), func() bool {
		for _, s := range stores {
			for i := range destinations {
				if len(ds) == n {
					return true
				}
				some, err := s.Fetch(k.ctx, []webhook.Want{{Destination: fmt.Sprint("d", i), Max: n - len(ds)}}, noLimit, nil)
				if err != nil {
					k.Fatalf("Fetch: %v", err)
				}
				ds = append(ds, some...)
			}
		}
		return len(ds) == n
	})
	return ds
}

// nodes returns the nodes that s knows once they are as wanted.
func (k *kit) nodes(s webhook.Store, wanted func([]webhook.Node) bool) (nodes []webhook.Node) {
	k.Helper()
	testkit.Until(k, "Nodes returns those that are open", func() bool {
		var err error
		if nodes, err = s.(webhook.Shared).Nodes(k.ctx); err != nil {
			k.Fatalf("Nodes: %v", err)
		}
		return wanted(nodes)
	})
	return nodes
}

var shareCases = []testCase{
	{"ShareClaims", "A claim is the right to settle a delivery, also where several nodes share a store, of which some come and go.", share, func(k *kit) {
		other := k.another()
		want := k.many(20, 30)
		k.put(want...)
		k.share(want, 3, func() {
			for range 5 {
				if err := k.open(k, k.dir).Close(); err != nil {
					k.Errorf("Close: %v", err)
				}
			}
		}, k.s, other)
	}},
	{"ShareChanged", "Changed returns a channel that has a value when Heads may have news: of another node.", share, func(k *kit) {
		other := k.another()
		k.heads(k.s, true)
		if n, err := tryPut(k.ctx, other, k.many(40, 1)...); n != 40 || err != nil {
			k.Fatalf("Put = %d, %v", n, err)
		}
		testkit.Until(k, "Changed has a value that leads to a delivery", func() bool {
			select {
			case <-k.s.Changed():
			default:
				return false
			}
			for name := range k.heads(k.s, false) {
				if len(k.fetch(1, name)) > 0 {
					return true
				}
			}
			return false
		})
	}},
	{"SharePut", "A delivery whose Destination and ID are those of one put before is left out. Waiting counts the deliveries that are stored.", share, func(k *kit) {
		other := k.another()
		k.put(k.deliveries("a", 3)...)
		if n, err := tryPut(k.ctx, other, k.deliveries("a", 4)...); n != 1 || err != nil {
			k.Errorf("Put of three known and a new one = %d, %v", n, err)
		}
		for _, s := range []webhook.Store{k.s, other} {
			testkit.Until(k, "Count returns 4 that wait", func() bool { // what another did may be in it later
				c, err := s.Count(k.ctx)
				return err == nil && c.Waiting == 4
			})
		}
	}},
	{"ShareDead", "Revive makes fresh deliveries of the dead letters with these keys.", share, func(k *kit) {
		k.put(k.many(2, 1)...)
		k.settle(webhook.Bury, k.fetch(1, "d0", "d1")...)
		other := k.another()
		dead, err := list(other.Dead(k.ctx, webhook.DeadFilter{}, ""))
		if err != nil || len(dead) != 2 {
			k.Fatalf("another node lists %d dead letters, %v, want 2", len(dead), err)
		}
		k.exhume(other.Revive, 1, dead[0].Key)
		k.exhume(k.s.Revive, 1, dead[0].Key, dead[1].Key)
		if ds := k.fetchFrom(2, 2, k.s, other); ds[0].ID == ds[1].ID {
			k.Errorf("%v were fetched twice", ids(ds))
		}
	}},
	{"ShareSettings", "All nodes see it at once.", share, func(k *kit) {
		version := k.set("pause/a", "{}", 0)
		if _, err := k.another().Set(k.ctx, setting("pause/a", "{}", version)); err != nil {
			k.Errorf("another node's Set with version %d: %v", version, err)
		}
	}},
	{"ShareRoster", "For each that was no member before, it makes it one.", share | roster, func(k *kit) {
		other := k.another().(webhook.Roster)
		k.begin("vip", 1)
		if n, err := other.Begin(k.ctx, "vip"); n != 2 || err != nil {
			k.Fatalf("another node's Begin = %d, %v, want 2", n, err)
		}
		joined := make([]int, 2)
		var wg sync.WaitGroup
		for i, r := range []webhook.Roster{k.roster(), other} {
			wg.Go(func() {
				var err error
				if joined[i], err = r.Join(k.ctx, "vip", 2, []string{"ann", "bob", "cid"}, k.announce); err != nil {
					k.Errorf("Join: %v", err)
				}
			})
		}
		wg.Wait()
		if c := k.count(); joined[0]+joined[1] != 3 || c.Waiting != 3 {
			k.Errorf("%v of three users joined, %d were announced", joined, c.Waiting)
		}
	}},
	{"ShareTakeOver", "The claims of a node that died end when its last heartbeat is too old.", share | abandon, func(k *kit) {
		const destinations, each = 40, 8
		dead := k.another()
		want := k.many(destinations, each)
		if n, err := tryPut(k.ctx, dead, want...); n != len(want) || err != nil {
			k.Fatalf("Put = %d, %v", n, err)
		}
		ds := k.fetchFrom(2*each, destinations, dead)
		if _, err := dead.Settle(k.ctx, k.settlements(webhook.Done, ds[:each]...)); err != nil {
			k.Fatal(err)
		}
		k.traits.Abandon(k, dead)
		got := k.fetchFrom(len(want)-each, destinations, k.s)
		k.sameSet("what was handed out", append(got, ds[:each]...), want...)
	}},
	{"Nodes", "Nodes returns those that are open, in the order they were opened, with what they present.", share | nodes, func(k *kit) {
		other := k.another()
		present := func(s webhook.Store, note string) {
			s.(webhook.Shared).Present(func() ([]byte, bool) { return []byte(note), true })
		}
		present(k.s, "first")
		present(other, string(make([]byte, webhook.MaxNote)))
		for _, s := range []webhook.Store{k.s, other} {
			for i, n := range k.nodes(s, func(nodes []webhook.Node) bool {
				return len(nodes) == 2 && string(nodes[0].Note) == "first" && len(nodes[1].Note) == webhook.MaxNote
			}) {
				if n.Name == "" || n.Self != ((i == 0) == (s == k.s)) || n.Opened.After(n.Seen) || n.Seen.After(k.s.Now()) {
					k.Errorf("node %d is %+v", i, n)
				}
			}
		}
		present(k.s, string(make([]byte, webhook.MaxNote+1)))
		k.nodes(other, func(nodes []webhook.Node) bool { return len(nodes) == 2 && len(nodes[0].Note) == 0 })
		if err := other.Close(); err != nil {
			k.Fatal(err)
		}
		k.nodes(k.s, func(nodes []webhook.Node) bool { return len(nodes) == 1 && nodes[0].Self })
	}},
	{"ShareRelease", "Release gives back at once what is not claimed, and from then on what is no longer, for others to claim.", share | nodes, func(k *kit) {
		const destinations, each = 40, 15
		want := k.many(destinations, each)
		k.put(want...)
		held := k.fetch(10, "d0")
		other := k.another()
		if err := k.s.(webhook.Shared).Release(k.ctx); err != nil && !errors.Is(err, webhook.ErrUnsupported) {
			k.Fatal(err)
		}
		// What is claimed may keep the rest of its destination.
		got := k.fetchFrom(len(want)/2, destinations, other)
		k.settle(webhook.Done, held[:4]...)
		k.settle(webhook.Return, held[4:]...)
		got = append(got, k.fetchFrom(len(want)-4-len(got), destinations, other)...)
		k.sameSet("what was handed out", append(got, held[:4]...), want...)
		k.put(k.delivery("d1", "late")) // what is put now is for others too
		k.fetchFrom(1, destinations, other)
	}},
}
