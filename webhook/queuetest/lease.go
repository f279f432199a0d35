package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var leaseCases = []testCase{
	{
		name:     "LeaseHolds",
		sentence: "Lease holds them until req.Until: until then nobody else is handed them.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			length := k.traits.Lease
			if !k.traits.Bubble {
				length = held
			}
			until := time.Now().Add(length)
			first, next := k.leaseNext(webhook.LeaseRequest{Max: 1, Until: until})
			if len(first) != 1 {
				k.Fatal("Lease handed out nothing")
			}
			if d := next.Sub(until).Abs(); d > time.Millisecond {
				k.Errorf("next = %v, want the end of the lease %v", next, until)
			}
			if k.traits.Bubble {
				k.pass(length - time.Millisecond)
			}
			k.leaseNone("it is leased")
		},
	},
	{
		name:     "LeaseExpires",
		sentence: "A delivery whose lease has expired is due again, as it was.",
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			first := k.one(k.leaseBriefly(10))
			k.pass(k.traits.Lease)
			again := k.leaseOne()
			k.same("Lease after the first expired", []webhook.Delivery{again}, want)
			if again.Claim == first.Claim {
				k.Errorf("the second lease has the handle %d of the first", first.Claim)
			}
		},
	},
	{
		name:     "LeaseMax",
		sentence: "Lease appends to dst up to req.Max deliveries that are due.",
		run: func(k *kit) {
			ds := deliveries("a", 7)
			k.put(ds...)
			dst := []webhook.Delivery{{ID: "before"}}
			got, next, err := k.q.Lease(k.ctx, webhook.LeaseRequest{Max: 3, Until: time.Now().Add(held)}, dst)
			if err != nil {
				k.Fatal(err)
			}
			k.same("Lease(3)", got, append(dst, ds[:3]...)...)
			if next.IsZero() || next.After(time.Now()) {
				k.Errorf("next = %v with more due, want a time not after now", next)
			}
			k.same("Lease(3)", k.lease(3), ds[3:6]...)
			k.same("Lease(3)", k.lease(3), ds[6:]...)
		},
	},
	{
		name:     "LeaseLessThanOne",
		sentence: "Max: At least 1.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			for _, max := range []int{0, -1} {
				if ds, _, err := k.q.Lease(k.ctx, webhook.LeaseRequest{Max: max, Until: time.Now().Add(time.Hour)}, nil); err == nil || len(ds) > 0 {
					k.Errorf("Lease(%d) = %v, %v, want an error", max, ids(ds), err)
				}
			}
			k.leaseOne()
		},
	},
	{
		name:     "LeaseInDueOrder",
		sentence: "Deliveries of one destination come in the order they are due.",
		run: func(k *kit) {
			ds := deliveries("a", 50)
			shuffled := slices.Clone(ds)
			k.r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			for len(shuffled) > 0 {
				n := min(7, len(shuffled))
				k.put(shuffled[:n]...)
				shuffled = shuffled[n:]
			}
			var got []webhook.Delivery
			for len(got) < len(ds) {
				more := k.lease(9)
				if len(more) == 0 {
					break
				}
				got = append(got, more...)
			}
			k.same("Lease", got, ds...)
		},
	},
	{
		name:     "LeaseNotBeforeDue",
		sentence: "Due is the time before which no attempt starts. Lease hands out deliveries that are due.",
		run: func(k *kit) {
			d := delivery("a", "1")
			d.Due = now().Add(k.traits.Lease)
			far := delivery("a", "2")
			far.Due = now().Add(9 * time.Hour)
			k.put(far, d)
			k.same("Lease once it is due", k.leaseAt(d.Due), d)
		},
	},
	{
		name:     "LeaseHidesNobody",
		sentence: "Every destination that has due deliveries, and room, gets its turn: a backlog of one, however long, hides no other's.",
		run: func(k *kit) {
			backlog := deliveries("backlog", 10_000)
			for len(backlog) > 0 {
				k.put(backlog[:1000]...)
				backlog = backlog[1000:]
			}
			others := map[string]bool{}
			for i := range 9 {
				d := delivery(fmt.Sprint("other", i), "1")
				d.Due = now()
				others[d.Destination] = true
				k.put(d)
			}
			for _, d := range k.lease(10) {
				delete(others, d.Destination)
			}
			if len(others) > 0 {
				k.Errorf("Lease(10) of 10 destinations left out %v", others)
			}
		},
	},
	{
		name:     "LeaseTakesTurns",
		sentence: "Every destination that has due deliveries, and room, gets its turn.",
		run: func(k *kit) {
			const destinations, max = 20, 3
			waiting := map[string]bool{}
			for i := range destinations {
				name := fmt.Sprintf("d%02d", i)
				waiting[name] = true
				k.put(deliveries(name, 50)...)
			}
			// A store may serve them in any order, but not some of them five
			// times before all were served.
			for range 5 * destinations / max {
				for _, d := range k.lease(max) {
					delete(waiting, d.Destination)
				}
			}
			if len(waiting) > 0 {
				k.Errorf("%d leases of %d served all but %v", 5*destinations/max, max, waiting)
			}
		},
	},
	{
		name:     "LeaseRoom",
		sentence: "Room returns how many deliveries of a destination may be handed out by the call; 0 leaves it out. Nil means no limit.",
		run: func(k *kit) {
			for _, name := range []string{"none", "two", "many"} {
				k.put(deliveries(name, 20)...)
			}
			room := map[string]int{"none": 0, "two": 2, "many": 1000}
			ds, _ := k.leaseNext(webhook.LeaseRequest{Max: 10, Room: func(name string) int { return room[name] }})
			got := count(ds)
			if got["none"] != 0 || got["two"] != 2 || got["many"] != 8 {
				k.Errorf("Lease(10) with room for none, 2 and 1000 handed out %v", got)
			}
			if got := count(k.lease(1000)); got["none"] != 20 || got["two"] != 18 || got["many"] != 12 {
				k.Errorf("Lease(1000) without Room handed out %v, want the rest", got)
			}
		},
	},
	{
		name:     "LeaseRoomAskedOnce",
		sentence: "Room is called from within Lease, on the caller's goroutine, at most once for each destination that has something due.",
		run: func(k *kit) {
			for i := range 5 {
				k.put(deliveries(fmt.Sprint("d", i), 20)...)
			}
			later := delivery("later", "1")
			later.Due = now().Add(time.Hour)
			k.put(later)
			asked := map[string]int{}
			ds, _ := k.leaseNext(webhook.LeaseRequest{Max: 1000, Room: func(name string) int {
				asked[name]++
				return 15
			}})
			if len(ds) != 75 {
				k.Errorf("Lease with room for 15 of each of 5 handed out %d", len(ds))
			}
			for name, n := range asked {
				if n != 1 || name == "later" {
					k.Errorf("Room(%q) was called %d times", name, n)
				}
			}
		},
	},
	{
		name:     "LeaseNext",
		sentence: "It also returns when to call again at the latest: the earliest time at which something that now waits becomes due, or a lease ends; not after now if more is due already; zero if there is none. What waits for a destination that had no room left does not count.",
		run: func(k *kit) {
			if ds, next := k.leaseNext(webhook.LeaseRequest{Max: 1}); len(ds) != 0 || !next.IsZero() {
				k.Errorf("an empty store: Lease = %v, next %v, want the zero time", ids(ds), next)
			}
			d := delivery("a", "1")
			d.Due = now().Add(3 * time.Hour)
			k.put(d)
			e := delivery("b", "1")
			e.Due = now().Add(2 * time.Hour)
			k.put(e)
			if _, next := k.leaseNext(webhook.LeaseRequest{Max: 1}); !next.Equal(e.Due) {
				k.Errorf("next = %v, want %v", next, e.Due)
			}
			k.put(delivery("c", "1"))
			if ds, next := k.leaseNext(webhook.LeaseRequest{Max: 1, Room: func(string) int { return 0 }}); len(ds) != 0 || !next.Equal(e.Due) {
				k.Errorf("with no room for what is due: Lease = %v, next %v, want %v", ids(ds), next, e.Due)
			}
			until := now().Add(time.Hour)
			if ds, next := k.leaseNext(webhook.LeaseRequest{Max: 1, Until: until}); len(ds) != 1 || !next.Equal(until) {
				k.Errorf("Lease = %v, next %v, want the end of the lease %v", ids(ds), next, until)
			}
		},
	},
	{
		name:     "LeaseNotTwice",
		sentence: "Until then nobody else is handed them. All methods may be called concurrently.",
		run: func(k *kit) {
			const n = 600
			for i := range 3 {
				k.put(deliveries(fmt.Sprint("d", i), n/3)...)
			}
			var mu sync.Mutex
			seen := map[string]int{}
			var wg sync.WaitGroup
			until := time.Now().Add(time.Hour)
			for range 6 {
				wg.Go(func() {
					for {
						ds, _, err := k.q.Lease(k.ctx, webhook.LeaseRequest{Max: 7, Until: until}, nil)
						if err != nil {
							k.Errorf("Lease: %v", err)
							return
						}
						if len(ds) == 0 {
							return
						}
						mu.Lock()
						for _, id := range ids(ds) {
							seen[id]++
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			for id, times := range seen {
				if times != 1 {
					k.Errorf("%s was handed out %d times", id, times)
				}
			}
			if len(seen) != n {
				k.Errorf("%d of %d were handed out", len(seen), n)
			}
		},
	},
	{
		name:     "LeaseIsTheCallers",
		sentence: "The caller may keep what it was handed.",
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			d := k.one(k.leaseBriefly(10))
			// An append is no change of what the slices refer to.
			_ = append(d.Attempts, webhook.Attempt{Error: "appended"})
			_ = append(d.Closed, webhook.Closed{Endpoint: 7})
			_ = append(d.Body, "appended"...)
			k.pass(k.traits.Lease)
			again := k.leaseOne()
			k.same("the second lease", []webhook.Delivery{again}, want)
			k.settle(webhook.Done, again)
			for i := range 200 {
				k.put(full("b", fmt.Sprint(i)))
				k.settleAll(10)
			}
			k.same("what the first lease handed out, later", []webhook.Delivery{d}, want)
		},
	},
	{
		name:     "LeaseDoesNotWait",
		sentence: "Lease does not wait.",
		run: func(k *kit) {
			d := delivery("a", "1")
			d.Due = now().Add(time.Hour)
			k.put(d)
			k.leaseNone("it is due in an hour")
			if left := time.Until(d.Due); left <= 0 || k.traits.Bubble && left <= time.Hour-time.Microsecond { // times are kept to that
				k.Errorf("Lease returned %v before the delivery is due, want an hour", left)
			}
		},
	},
	{
		name:     "LeaseCancelled",
		sentence: "Lease hands out and holds, or returns an error.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			ds, _, err := k.q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
			if !errors.Is(err, context.Canceled) || len(ds) != 0 {
				k.Errorf("Lease with a cancelled context = %v, %v, want context.Canceled", ids(ds), err)
			}
			k.leaseOne()
		},
	},
}

func count(ds []webhook.Delivery) map[string]int {
	n := map[string]int{}
	for _, d := range ds {
		n[d.Destination]++
	}
	return n
}
