package queuetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// another opens the store once more, until the case ends.
func (k *kit) another() webhook.Queue {
	k.Helper()
	q := k.open(k, k.dir)
	k.Cleanup(func() {
		if err := q.Close(); err != nil {
			k.Errorf("Close: %v", err)
		}
	})
	return q
}

// leaseFrom leases n deliveries from any of qs, and waits for them.
func (k *kit) leaseFrom(n int, qs ...webhook.Queue) (ds []webhook.Delivery) {
	k.Helper()
	testkit.Until(k, fmt.Sprintf("%d deliveries are handed out", n), func() bool {
		for _, q := range qs {
			if len(ds) == n {
				break
			}
			var err error
			if ds, _, err = q.Lease(k.ctx, webhook.LeaseRequest{Max: n - len(ds), Until: time.Now().Add(held)}, ds); err != nil {
				k.Fatalf("Lease: %v", err)
			}
		}
		return len(ds) == n
	})
	return ds
}

// share has each of qs lease up to max at a time and settle them, until as many are handed out
// as are wanted, and does something meanwhile. It checks that each was handed out once.
func (k *kit) share(want []string, max int, meanwhile func(), qs ...webhook.Queue) {
	k.Helper()
	var (
		mu  sync.Mutex
		got []string
		wg  sync.WaitGroup
	)
	for _, q := range qs {
		wg.Go(func() {
			for k.ctx.Err() == nil {
				ds, _, err := q.Lease(k.ctx, webhook.LeaseRequest{Max: max, Until: time.Now().Add(held)}, nil)
				if err == nil {
					err = q.Settle(k.ctx, settlements(webhook.Done, ds...)...)
				}
				if err != nil {
					k.Errorf("leasing and settling: %v", err)
					return
				}
				mu.Lock()
				got = append(got, ids(ds)...)
				all := len(got) >= len(want)
				mu.Unlock()
				if all {
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
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		k.Errorf("%d were handed out, %d of them different ones; want each of %d once", len(got), len(slices.Compact(got)), len(want))
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

var shareCases = []testCase{
	{
		name:     "ShareLeases",
		sentence: "Several forwarders, in several processes where the store allows it, may share one. Until then nobody else is handed them.",
		needs:    []string{"Share"},
		run: func(k *kit) {
			const n = 300
			other := k.another()
			var want []string
			for _, destination := range []string{"a", "b", "c"} {
				ds := deliveries(destination, n)
				want = append(want, ids(ds)...)
				k.put(ds...)
			}
			k.share(want, 50, func() {}, k.q, other)
		},
	},
	{
		name:     "ShareMoves",
		sentence: "Several forwarders may share one. Until then nobody else is handed them.",
		needs:    []string{"Share"},
		run: func(k *kit) {
			const destinations, each, guests = 20, 30, 5
			other := k.another()
			var want []string
			for i := range destinations {
				ds := deliveries(fmt.Sprint("d", i), each)
				want = append(want, ids(ds)...)
				k.put(ds...)
			}
			k.share(want, 3, func() {
				for range guests { // a store may give each of them something to serve, and take it back
					if err := k.open(k, k.dir).Close(); err != nil {
						k.Errorf("Close: %v", err)
					}
				}
			}, k.q, other)
		},
	},
	{
		name:     "ShareWake",
		sentence: "Wake returns a channel that has a value when something may have become due that was not put through this Queue value.",
		needs:    []string{"Share", "Waker"},
		run: func(k *kit) {
			other := k.another()
			k.leaseNone("nothing was put")
			wake := k.q.(webhook.Waker).Wake()
			// A store may have each of the two serve some destinations.
			for i := range 40 {
				if _, err := other.Put(k.ctx, delivery(fmt.Sprint("d", i), "1")); err != nil {
					k.Fatal(err)
				}
			}
			testkit.Until(k, "Wake has a value that leads to a delivery", func() bool {
				select {
				case <-wake:
					return len(k.lease(10)) > 0
				default:
					return false
				}
			})
		},
	},
	{
		name:     "ShareTurns",
		sentence: "Every destination that has due deliveries, and room, gets its turn: a backlog of one, however long, hides no other's.",
		needs:    []string{"Share"},
		run: func(k *kit) {
			other := k.another()
			const backlog = 500
			k.put(deliveries("backlog", backlog)...)
			small := make(map[string]bool)
			for i := range 5 {
				name := fmt.Sprint("small-", i)
				small[name] = true
				k.put(delivery(name, "1"))
			}
			// A store may have one of the two serve a destination, or both. To agree on that may take
			// them a while. The backlog never ends: what is leased of it is due again at once.
			testkit.Until(k, "every destination gets its turn", func() bool {
				for _, q := range []webhook.Queue{k.q, other} {
					ds, _, err := q.Lease(k.ctx, webhook.LeaseRequest{Max: 12, Until: time.Now().Add(held)}, nil)
					if err == nil {
						err = q.Settle(k.ctx, settlements(webhook.Retry, ds...)...)
					}
					if err != nil {
						k.Fatal(err)
					}
					for _, d := range ds {
						delete(small, d.Destination)
					}
				}
				return len(small) == 0
			})
		},
	},
	{
		name:     "ShareDedup",
		sentence: "A delivery whose Destination and ID are those of one put before is left out.",
		needs:    []string{"Share"},
		run: func(k *kit) {
			other := k.another()
			k.put(deliveries("a", 3)...)
			if n, err := other.Put(k.ctx, deliveries("a", 4)...); n != 1 || err != nil {
				k.Errorf("Put of three known and a new one = %d, %v", n, err)
			}
		},
	},
	{
		name:     "ShareCounts",
		sentence: "Waiting counts the deliveries that are stored and neither done nor buried; those that are leased included.",
		needs:    []string{"Share", "Counter"},
		run: func(k *kit) {
			k.put(deliveries("a", 10)...)
			k.settle(webhook.Done, k.lease(4)...)
			other := k.another()
			if _, err := other.Put(k.ctx, deliveries("b", 5)...); err != nil {
				k.Fatal(err)
			}
			for _, q := range []webhook.Queue{k.q, other} {
				// What another did a moment ago may be in it or not.
				testkit.Until(k, "Count returns 11 that wait", func() bool {
					c, err := q.(webhook.Counter).Count(k.ctx)
					if err != nil {
						k.Fatalf("Count: %v", err)
					}
					return c.Waiting == 11
				})
			}
		},
	},
	{
		name:     "ShareDead",
		sentence: "Revive makes deliveries of the dead letters with these keys.",
		needs:    []string{"Share", "DeadLetters"},
		run: func(k *kit) {
			k.put(deliveries("a", 2)...)
			k.settle(webhook.Bury, k.lease(2)...)
			other := k.another()
			dl := other.(webhook.DeadLetters)
			var keys []string
			for d, err := range dl.Dead(k.ctx, webhook.DeadFilter{}, "") {
				if err != nil {
					k.Fatal(err)
				}
				keys = append(keys, d.Key)
			}
			if len(keys) != 2 {
				k.Fatalf("another lists %d dead letters, want 2", len(keys))
			}
			if n, err := dl.Revive(k.ctx, keys[0]); n != 1 || err != nil {
				k.Errorf("Revive = %d, %v", n, err)
			}
			if n, err := k.q.(webhook.DeadLetters).Revive(k.ctx, keys...); n != 1 || err != nil {
				k.Errorf("Revive of one that is left = %d, %v", n, err)
			}
			ds := k.leaseFrom(2, k.q, other)
			if ds[0].ID == ds[1].ID {
				k.Errorf("%v were leased twice", ids(ds))
			}
		},
	},
	{
		name:     "ShareRoster",
		sentence: "For each that was no member before, it makes it one.",
		needs:    []string{"Share", "Roster"},
		run: func(k *kit) {
			other := k.another()
			a, b := k.q.(webhook.Roster), other.(webhook.Roster)
			announce := func(user string) ([]webhook.Delivery, error) {
				return []webhook.Delivery{delivery("a", "joined-"+user)}, nil
			}
			one, err := a.Begin(k.ctx, "vip")
			if err != nil {
				k.Fatal(err)
			}
			two, err := b.Begin(k.ctx, "vip")
			if err != nil || two != one+1 {
				k.Fatalf("Begin after generation %d = %d, %v", one, two, err)
			}
			var wg sync.WaitGroup
			joined := make([]int, 2)
			for i, r := range []webhook.Roster{a, b} {
				wg.Go(func() {
					n, err := r.Join(k.ctx, "vip", two, []string{"ann", "bob", "cid"}, announce)
					if err != nil {
						k.Errorf("Join: %v", err)
					}
					joined[i] = n
				})
			}
			wg.Wait()
			if joined[0]+joined[1] != 3 {
				k.Errorf("%v of three users joined, by two at once", joined)
			}
			k.leaseFrom(3, k.q, other)
			for _, q := range []webhook.Queue{k.q, other} {
				if ds, _, err := q.Lease(k.ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil); err != nil || len(ds) > 0 {
					k.Errorf("announced once more: %v, %v", ids(ds), err)
				}
			}
		},
	},
	{
		name:     "ShareTakeOver",
		sentence: "Leases end with it: what was leased is due again when the store is next opened by the same process or another.",
		needs:    []string{"Share", "Abandon"},
		run: func(k *kit) {
			const destinations, each = 40, 8
			dead := k.another()
			for i := range destinations {
				if _, err := dead.Put(k.ctx, deliveries(fmt.Sprint("d", i), each)...); err != nil {
					k.Fatal(err)
				}
			}
			// A store may have each of them serve some destinations.
			ds := k.leaseFrom(2*each, dead)
			if err := dead.Settle(k.ctx, settlements(webhook.Done, ds[:each]...)...); err != nil {
				k.Fatal(err)
			}
			k.traits.Abandon(k, dead)
			done := make(map[string]bool)
			for _, d := range ds[:each] {
				done[key(&d)] = true
			}
			got := k.leaseFrom((destinations-1)*each, k.q)
			for _, d := range got {
				if done[key(&d)] {
					k.Errorf("%s is done, or was handed out twice", key(&d))
				}
				done[key(&d)] = true
			}
			k.settle(webhook.Done, got...)
			k.leaseNone("all is done")
		},
	},
}
