package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var settleCases = []testCase{
	{
		name:     "SettleDone",
		sentence: "Done removes the delivery.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			k.settle(webhook.Done, k.one(k.leaseBriefly(10)))
			k.pass(k.traits.Lease)
			k.leaseNone("it is done")
		},
	},
	{
		name:     "SettleIsDurable",
		sentence: "Settle returns once that is stored.",
		needs:    []string{"Durable"},
		run: func(k *kit) {
			ds := deliveries("a", 100)
			k.put(ds...)
			leased := k.leaseBriefly(100)
			var want []webhook.Delivery
			for i, d := range leased {
				switch {
				case i%3 == 0:
					k.settle(webhook.Done, d)
				case i%3 == 1:
					d.Tries++
					d.Due = d.Due.Add(500 * time.Millisecond)
					k.settle(webhook.Retry, d)
					want = append(want, d)
				}
			}
			k.reopen()
			k.pass(k.traits.Lease) // a store may keep leases over a restart
			got := k.lease(200)
			for i, d := range leased {
				if i%3 == 2 {
					want = append(want, d)
				}
			}
			byID := func(x, y webhook.Delivery) int { return strings.Compare(x.ID, y.ID) }
			slices.SortFunc(got, byID)
			slices.SortFunc(want, byID)
			k.same("Lease after reopening", got, want...)
		},
	},
	{
		name:     "SettleRetry",
		sentence: "Retry puts it back with its Due, Expires, Tries, Closed and Attempts.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			for try := 1; try < 4; try++ {
				d := k.leaseOne()
				f := full("a", "1")
				d.Due = now().Add(k.traits.Lease) // what comes before it may take that long where time really passes
				d.Expires = now().Add(4 * time.Hour)
				d.Tries = try
				d.Closed = f.Closed[:try%3]
				d.Attempts = append(slices.Clone(d.Attempts), f.Attempts[0])
				k.settle(webhook.Retry, d)
				again := k.one(k.leaseAt(d.Due))
				k.same(fmt.Sprint("Lease after retry ", try), []webhook.Delivery{again}, d)
				k.settle(webhook.Retry, again)
			}
		},
	},
	{
		name:     "SettleLimits",
		sentence: "A Retry or Bury with a field outside its limits is an error.",
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			d := k.leaseOne()
			for name, spoil := range map[string]func(*webhook.Delivery){
				"negative Tries":  func(d *webhook.Delivery) { d.Tries = -1 },
				"negative Try":    func(d *webhook.Delivery) { d.Attempts = []webhook.Attempt{{Try: -1}} },
				"negative Status": func(d *webhook.Delivery) { d.Attempts = []webhook.Attempt{{Status: -1}} },
				"many Attempts":   func(d *webhook.Delivery) { d.Attempts = make([]webhook.Attempt, webhook.MaxAttempts+1) },
				"many Closed":     func(d *webhook.Delivery) { d.Closed = make([]webhook.Closed, webhook.MaxEndpoints+1) },
			} {
				for _, verdict := range []webhook.Verdict{webhook.Retry, webhook.Bury} {
					bad := d
					spoil(&bad)
					if err := k.q.Settle(k.ctx, webhook.Settlement{Verdict: verdict, Delivery: bad, At: now()}); err == nil {
						k.Errorf("Settle with verdict %d and %s is no error", verdict, name)
					}
				}
			}
			k.leaseNone("every Settle failed")
			k.expire(d)
			k.same("Lease once it expired", k.lease(1), want)
		},
	},
	{
		name:     "SettleRenew",
		sentence: "Renew keeps the lease, now until Due.",
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			d := k.one(k.leaseBriefly(10))
			for range 3 {
				k.pass(k.traits.Lease / 2)
				renewed := d
				renewed.Due = now().Add(held)
				k.settle(webhook.Renew, renewed)
			}
			k.leaseNone("the lease was renewed")
			k.expire(d)
			again := k.leaseOne()
			k.same("Lease once it expired", []webhook.Delivery{again}, want)
			k.settle(webhook.Renew, again)
			k.settle(webhook.Done, again)
			k.leaseNone("it is done")
		},
	},
	{
		name:     "SettleExpired",
		sentence: "A lease that expired but was not handed out again still settles.",
		run: func(k *kit) {
			want := full("e", "1")
			k.put(delivery("a", "1"), delivery("b", "1"), delivery("c", "1"), want)
			ds := k.leaseBriefly(10)
			k.pass(k.traits.Lease + k.traits.Lease/10)
			var renewed webhook.Delivery
			for _, d := range ds {
				switch d.Destination {
				case "a":
					k.settle(webhook.Done, d)
				case "b":
					d.Due = now().Add(time.Hour)
					k.settle(webhook.Retry, d)
				case "c":
					k.settle(webhook.Bury, d)
				default:
					renewed = d
					d.Due = now().Add(held)
					k.settle(webhook.Renew, d)
				}
			}
			k.leaseNone("all were settled")
			k.expire(renewed)
			k.same("Lease", k.lease(10), want)
		},
	},
	{
		name:     "SettleTakenOver",
		sentence: "Settling a lease that no longer holds, because it expired and the delivery was handed out again, changes nothing and is no error.",
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			first := k.one(k.leaseBriefly(10))
			k.pass(k.traits.Lease)
			second := k.leaseOne()
			first.Tries = 99
			for _, verdict := range []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Renew} {
				k.settle(verdict, first)
			}
			k.leaseNone("the second lease holds")
			k.expire(second)
			third := k.leaseOne()
			k.same("Lease after the second expired", []webhook.Delivery{third}, want)
			k.settle(webhook.Done, second)
			k.settle(webhook.Done, third)
			k.leaseNone("it is done")
		},
	},
	{
		name:     "SettleGone",
		sentence: "Settling a lease that is gone changes nothing and is no error.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			d := k.leaseOne()
			k.settle(webhook.Done, d)
			k.put(delivery("a", "2"))
			other := k.leaseOne()
			for _, verdict := range []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Renew} {
				k.settle(verdict, d)
				never := d
				never.Claim = 0
				k.settle(verdict, never)
				never.Claim = 1<<63 + 12345
				k.settle(verdict, never)
			}
			k.leaseNone("one is done, the other leased")
			k.settle(webhook.Done, other, other)
		},
	},
	{
		name:     "SettleMixed",
		sentence: "Settle ends leases, or prolongs them: all of it, or none and an error.",
		run: func(k *kit) {
			k.put(deliveries("a", 8)...)
			ds := k.leaseBriefly(8)
			later := now().Add(3 * k.traits.Lease)
			var ss []webhook.Settlement
			for i, d := range ds {
				s := webhook.Settlement{Verdict: webhook.Verdict(i%4 + 1), Delivery: d, Reason: webhook.ReasonRefused, At: now()}
				if s.Verdict == webhook.Retry || s.Verdict == webhook.Renew {
					s.Delivery.Due = later
				}
				ss = append(ss, s)
			}
			if err := k.q.Settle(k.ctx, ss...); err != nil {
				k.Fatal(err)
			}
			k.pass(2 * k.traits.Lease)
			got := k.leaseAt(later) // two are retried and two renewed till then
			slices.SortFunc(got, func(x, y webhook.Delivery) int { return strings.Compare(x.ID, y.ID) })
			want := []webhook.Delivery{ds[1], ds[3], ds[5], ds[7]}
			want[0].Due, want[2].Due = later, later
			k.same("Lease", got, want...)
		},
	},
	{
		name:     "SettleUnknownVerdict",
		sentence: "All of it, or none and an error, after which the leases still hold.",
		run: func(k *kit) {
			k.put(deliveries("a", 2)...)
			ds := k.lease(2)
			for _, verdict := range []webhook.Verdict{0, webhook.Renew + 1} {
				ss := append(settlements(webhook.Done, ds[0]), settlements(verdict, ds[1])...)
				if err := k.q.Settle(k.ctx, ss...); err == nil {
					k.Errorf("Settle with verdict %d is no error", verdict)
				}
			}
			k.leaseNone("the leases hold")
			k.expire(ds...)
			k.same("Lease", k.lease(2), ds...)
		},
	},
	{
		name:     "SettleKeepsNothing",
		sentence: "Settle does not keep ss or anything they refer to.",
		run: func(k *kit) {
			k.put(delivery("a", "1"))
			d := k.leaseOne()
			f := full("a", "1")
			d.Closed, d.Attempts, d.Tries = f.Closed, f.Attempts, 2
			want := d
			want.Closed, want.Attempts = slices.Clone(f.Closed), slices.Clone(f.Attempts)
			ss := settlements(webhook.Retry, d)
			if err := k.q.Settle(k.ctx, ss...); err != nil {
				k.Fatal(err)
			}
			body := ss[0].Delivery.Body
			ss[0].Delivery.Body = nil // the store's own
			spoil(&ss[0].Delivery)
			ss[0] = webhook.Settlement{}
			k.same("Lease", k.lease(1), want)
			k.same("the body handed out first", []webhook.Delivery{{Body: body}}, webhook.Delivery{Body: want.Body})
		},
	},
	{
		name:     "SettleCancelled",
		sentence: "All of it, or none and an error, after which the leases still hold.",
		run: func(k *kit) {
			k.put(deliveries("a", 2)...)
			ds := k.lease(2)
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			if err := k.q.Settle(ctx, settlements(webhook.Done, ds...)...); !errors.Is(err, context.Canceled) {
				k.Errorf("Settle with a cancelled context: %v, want context.Canceled", err)
			}
			k.leaseNone("the leases hold")
			k.settle(webhook.Done, ds[0])
			k.expire(ds[1])
			k.same("Lease", k.lease(2), ds[1])
		},
	},
	{
		name:     "SettleWhileOthersWork",
		sentence: "All methods may be called concurrently.",
		run: func(k *kit) {
			const putters, each = 4, 150
			var mu sync.Mutex
			seen := map[string]int{}
			done := 0
			var wg sync.WaitGroup
			for p := range putters {
				wg.Go(func() {
					for i := range each {
						k.q.Put(k.ctx, delivery(fmt.Sprint("d", i%7), fmt.Sprint(p, "-", i)))
					}
				})
			}
			until := time.Now().Add(time.Hour)
			for range 3 {
				wg.Go(func() {
					for {
						mu.Lock()
						end := done == putters*each
						mu.Unlock()
						if end {
							return
						}
						ds, _, err := k.q.Lease(k.ctx, webhook.LeaseRequest{Max: 16, Until: until}, nil)
						if err != nil {
							k.Errorf("Lease: %v", err)
							return
						}
						if len(ds) == 0 {
							wait(k.ctx, time.Millisecond) // in between two looks
							continue
						}
						ss := make([]webhook.Settlement, len(ds))
						finished := 0
						mu.Lock()
						for i, d := range ds {
							seen[d.ID]++
							ss[i] = webhook.Settlement{Verdict: webhook.Retry, Delivery: d}
							if seen[d.ID] == 2 {
								ss[i].Verdict = webhook.Done
								finished++
							}
						}
						mu.Unlock()
						if err := k.q.Settle(k.ctx, ss...); err != nil {
							k.Errorf("Settle: %v", err)
							return
						}
						mu.Lock()
						done += finished
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			for id, n := range seen {
				if n != 2 {
					k.Errorf("%s was handed out %d times, want twice", id, n)
				}
			}
			k.leaseNone("all are done")
		},
	},
}
