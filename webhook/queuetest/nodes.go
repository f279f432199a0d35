package queuetest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// nodeCases are about what those that share a store know of each other.
var nodeCases = []testCase{
	{
		name:     "Pauses",
		sentence: "Paused returns the destinations that are paused, and since when. To pause what is paused does not change since when it is.",
		needs:    []string{"Pauses"},
		run: func(k *kit) {
			p := k.q.(webhook.Pauses)
			set := func(destination string, paused bool) {
				k.Helper()
				if err := p.SetPaused(k.ctx, destination, paused); err != nil {
					k.Fatalf("SetPaused(%q, %v): %v", destination, paused, err)
				}
			}
			paused := func(want ...string) map[string]time.Time {
				k.Helper()
				got, err := p.Paused(k.ctx)
				if names := slices.Sorted(maps.Keys(got)); err != nil || !slices.Equal(names, want) {
					k.Fatalf("Paused = %q, %v; want %q", names, err, want)
				}
				return got
			}
			began := time.Now()
			paused()
			set("a", false)
			set("a", true)
			odd := "odd \x00\xff\"\\"
			set(odd, true)
			first := paused("a", odd)
			if !likeNow(began, first["a"]) {
				k.Errorf("paused since %v, after %v", first["a"], began)
			}
			set("a", true)
			if again := paused("a", odd); !again["a"].Equal(first["a"]) {
				k.Errorf("paused since %v, and paused again since %v", first["a"], again["a"])
			}
			if err := p.SetPaused(k.ctx, "", true); err == nil {
				k.Error("SetPaused of no destination")
			}
			if k.traits.Durable {
				k.reopen()
				p = k.q.(webhook.Pauses)
				if again := paused("a", odd); !again["a"].Equal(first["a"]) {
					k.Errorf("paused since %v, and reopened since %v", first["a"], again["a"])
				}
			}
			set(odd, false)
			set(odd, false)
			paused("a")
		},
	},
	{
		name:     "SharePauses",
		sentence: "A pause holds for all forwarders that share the store.",
		needs:    []string{"Share", "Pauses"},
		run: func(k *kit) {
			other := k.another().(webhook.Pauses)
			if err := k.q.(webhook.Pauses).SetPaused(k.ctx, "a", true); err != nil {
				k.Fatal(err)
			}
			if got, err := other.Paused(k.ctx); len(got) != 1 || err != nil {
				k.Errorf("another's Paused = %v, %v", got, err)
			}
		},
	},
	{
		name:     "Nodes",
		sentence: "Nodes returns those that are open, in the order they were opened, with what they present.",
		needs:    []string{"Share", "Nodes"},
		run: func(k *kit) {
			began := time.Now()
			other := k.another()
			present := func(q webhook.Queue, note string) {
				q.(webhook.Nodes).Present(func() []byte { return []byte(note) })
			}
			present(k.q, "first")
			present(other, string(make([]byte, webhook.MaxNote)))
			for _, q := range []webhook.Queue{k.q, other} {
				nodes := k.nodes(q, func(nodes []webhook.Node) bool {
					return len(nodes) == 2 && string(nodes[0].Note) == "first" && len(nodes[1].Note) == webhook.MaxNote
				})
				for i, n := range nodes {
					if n.Name == "" || n.Self != ((i == 0) == (q == k.q)) {
						k.Errorf("node %d is %q, self: %v", i, n.Name, n.Self)
					}
					if !likeNow(began, n.Seen) || n.Opened.After(n.Seen) {
						k.Errorf("node %d was opened at %v and seen at %v, after %v", i, n.Opened, n.Seen, began)
					}
				}
			}
			present(k.q, string(make([]byte, webhook.MaxNote+1)))
			k.nodes(other, func(nodes []webhook.Node) bool { return len(nodes) == 2 && len(nodes[0].Note) == 0 })
			if err := other.Close(); err != nil {
				k.Fatal(err)
			}
			k.nodes(k.q, func(nodes []webhook.Node) bool { return len(nodes) == 1 && nodes[0].Self })
		},
	},
	{
		name:     "ShareRelease",
		sentence: "Release gives back at once what is not leased, and from then on what is no longer, for others to lease.",
		needs:    []string{"Share", "Releaser"},
		run: func(k *kit) {
			k.put(deliveries("a", 10)...)
			held := k.lease(10)
			const destinations, each = 40, 15
			for i := range destinations {
				k.put(deliveries(fmt.Sprint("d", i), each)...)
			}
			k.settle(webhook.Done, held[:4]...)
			other := k.another()
			if err := k.q.(webhook.Releaser).Release(k.ctx); err != nil {
				k.Fatal(err)
			}
			// What is leased may keep what is stored with it, or is its destination's.
			got := k.leaseFrom(destinations*each/2, other)
			k.settle(webhook.Done, held[4:7]...)
			k.settle(webhook.Retry, held[7:]...)
			got = append(got, k.leaseFrom(destinations*each+3-len(got), other)...)
			seen := make(map[string]bool)
			for _, d := range append(got, held[:7]...) {
				if seen[key(&d)] {
					k.Errorf("%s was handed out twice", key(&d))
				}
				seen[key(&d)] = true
			}
			if err := other.Settle(k.ctx, settlements(webhook.Done, got...)...); err != nil {
				k.Fatal(err)
			}
			// What is put now is for others too.
			k.put(delivery("b", "late"))
			k.leaseFrom(1, other)
		},
	},
}

// nodes returns the nodes that q knows once they are as wanted.
func (k *kit) nodes(q webhook.Queue, wanted func([]webhook.Node) bool) (nodes []webhook.Node) {
	k.Helper()
	testkit.Until(k, "Nodes returns those that are open", func() bool {
		var err error
		if nodes, err = q.(webhook.Nodes).Nodes(k.ctx); err != nil {
			k.Fatalf("Nodes: %v", err)
		}
		return wanted(nodes)
	})
	return nodes
}

// likeNow reports whether t is between began and now, both by the clock of this machine. It allows
// for a store whose clock differs.
func likeNow(began, t time.Time) bool {
	const skew = time.Minute
	return t.After(began.Add(-skew)) && t.Before(time.Now().Add(skew))
}
