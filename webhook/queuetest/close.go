package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

var closeCases = []testCase{
	{
		name:     "CloseThenErrClosed",
		sentence: "Each returns ErrClosed after Close. A second Close returns nil.",
		run: func(k *kit) {
			k.put(delivery("a", "1"), delivery("a", "2"))
			d := k.lease(1)[0]
			q := k.q
			k.close()
			if err := q.Close(); err != nil {
				k.Errorf("the second Close: %v", err)
			}
			expect := func(what string, err error) {
				if !errors.Is(err, webhook.ErrClosed) {
					k.Errorf("%s after Close: %v, want ErrClosed", what, err)
				}
			}
			_, err := q.Put(k.ctx, delivery("a", "3"))
			expect("Put", err)
			_, _, err = q.Lease(k.ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
			expect("Lease", err)
			for _, verdict := range []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Renew} {
				expect("Settle", q.Settle(k.ctx, settlements(verdict, d)...))
			}
			if c, ok := q.(webhook.Counter); ok {
				_, err := c.Count(k.ctx)
				expect("Count", err)
			}
			if c, ok := q.(webhook.DestinationCounter); ok {
				err = nil
				for _, err = range c.CountByDestination(k.ctx) {
				}
				expect("CountByDestination", err)
			}
			if dl, ok := q.(webhook.DeadLetters); ok {
				_, err = dl.DeadLetter(k.ctx, "key")
				expect("DeadLetter", err)
				err = nil
				for _, err = range dl.Dead(k.ctx, webhook.DeadFilter{}, "") {
				}
				expect("Dead", err)
				_, err = dl.Revive(k.ctx, "key")
				expect("Revive", err)
				_, err = dl.Discard(k.ctx, "key")
				expect("Discard", err)
			}
			if r, ok := q.(webhook.Roster); ok {
				_, err = r.Begin(k.ctx, "vip")
				expect("Begin", err)
				_, err = r.Join(k.ctx, "vip", 1, []string{"u"}, nobody)
				expect("Join", err)
				_, _, err = r.Leave(k.ctx, "vip", 1, "", 10, nobody)
				expect("Leave", err)
				err = nil
				for _, err = range r.Members(k.ctx, "vip", "") {
				}
				expect("Members", err)
			}
		},
	},
	{
		name:     "CloseEndsLeases",
		sentence: "Leases end with it: what was leased is due again when the store is next opened, at the latest when the lease expires.",
		needs:    []string{"Durable"},
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			d := k.one(k.leaseBriefly(10))
			until := time.Now().Add(k.traits.Lease)
			k.reopen()
			k.pass(time.Until(until))
			again := k.leaseOne()
			k.same("Lease after reopening", []webhook.Delivery{again}, want)
			k.settle(webhook.Done, d)
			k.settle(webhook.Done, again)
			k.leaseNone("it is done")
		},
	},
	{
		name:     "CloseWaits",
		sentence: "Close waits for calls in progress.",
		needs:    []string{"Durable"},
		run: func(k *kit) {
			var mu sync.Mutex
			stored := map[string]bool{}
			begun := make(chan struct{}, 4)
			var wg sync.WaitGroup
			for p := range cap(begun) {
				wg.Go(func() {
					for i := 0; ; i++ {
						d := delivery("a", fmt.Sprint(p, "-", i))
						_, err := k.q.Put(k.ctx, d)
						if i == 10 {
							begun <- struct{}{}
						}
						switch {
						case errors.Is(err, webhook.ErrClosed):
							return
						case err != nil:
							k.Errorf("Put: %v", err)
							return
						}
						mu.Lock()
						stored[d.ID] = true
						mu.Unlock()
					}
				})
			}
			for range cap(begun) {
				<-begun
			}
			if err := k.q.Close(); err != nil {
				k.Errorf("Close: %v", err)
			}
			wg.Wait()
			k.q = nil
			k.reopen()
			n := len(stored)
			got := k.lease(n + 100)
			for _, d := range got {
				delete(stored, d.ID)
			}
			if len(got) != n || len(stored) != 0 {
				k.Errorf("%d puts returned nil, %d are there, %d of them missing", n, len(got), len(stored))
			}
		},
	},
	{
		name:     "Count",
		sentence: "Waiting counts the deliveries that are stored and neither done nor buried; those that are leased included. Leased counts those of them that are leased. Dead counts the dead letters.",
		needs:    []string{"Counter"},
		run: func(k *kit) {
			k.counts(0, 0, 0)
			k.put(deliveries("a", 6)...)
			far := delivery("b", "1")
			far.Due = now().Add(5 * time.Hour)
			k.put(far)
			k.counts(7, 0, 0)
			ds := k.lease(4)
			k.counts(7, 4, 0)
			k.settle(webhook.Done, ds[0])
			k.settle(webhook.Bury, ds[1])
			k.settle(webhook.Retry, ds[2])
			k.counts(5, 1, 1)
			k.expire(ds[3])
			k.counts(5, 0, 1)
			if k.traits.Durable {
				k.reopen()
				k.counts(5, 0, 1)
			}
		},
	},
	{
		name:     "CountOldest",
		sentence: "Oldest is the earliest Due of what waits and is not leased, zero if there is none.",
		needs:    []string{"Counter"},
		run: func(k *kit) {
			oldest := func(want time.Time) {
				k.Helper()
				got, err := k.q.(webhook.Counter).Count(k.ctx)
				if err != nil || !got.Oldest.Equal(want) {
					k.Fatalf("Count = %+v, %v, want the oldest due %v", got, err, want)
				}
			}
			oldest(time.Time{})
			far, near := delivery("a", "far"), delivery("b", "near")
			far.Due = now().Add(5 * time.Hour)
			k.put(far, near)
			oldest(near.Due)
			if k.traits.Durable {
				k.reopen()
				oldest(near.Due)
			}
			leased := k.leaseOne()
			oldest(far.Due)
			leased.Due = now().Add(time.Hour)
			k.settle(webhook.Retry, leased)
			oldest(leased.Due)
		},
	},
	{
		name:     "CountByDestination",
		sentence: "CountByDestination yields the counts of every destination that something waits for, once each.",
		needs:    []string{"DestinationCounter"},
		run: func(k *kit) {
			counts := func(want ...webhook.DestinationCounts) {
				k.Helper()
				var got []webhook.DestinationCounts
				for c, err := range k.q.(webhook.DestinationCounter).CountByDestination(k.ctx) {
					if err != nil {
						k.Fatalf("CountByDestination: %v", err)
					}
					got = append(got, c)
				}
				slices.SortFunc(got, func(x, y webhook.DestinationCounts) int {
					return strings.Compare(x.Destination, y.Destination)
				})
				if diff := cmp.Diff(want, got); diff != "" {
					k.Fatalf("CountByDestination (-want +got)\n%s", diff)
				}
			}
			counts()
			a, b := deliveries("a", 3), delivery("b", "1")
			b.Due = now().Add(5 * time.Hour)
			k.put(a...)
			k.put(b)
			counts(webhook.DestinationCounts{Destination: "a", Waiting: 3, Oldest: a[0].Due},
				webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due})
			ds := k.lease(2)
			counts(webhook.DestinationCounts{Destination: "a", Waiting: 3, Claimed: 2, Oldest: a[2].Due},
				webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due})
			k.settle(webhook.Done, ds...)
			last := k.leaseOne()
			counts(webhook.DestinationCounts{Destination: "a", Waiting: 1, Claimed: 1},
				webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due})
			k.settle(webhook.Bury, last)
			counts(webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due})
			if k.traits.Durable {
				k.reopen()
				counts(webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due})
			}
		},
	},
	{
		name:     "CountByDestinationHoldsNoLock",
		sentence: "It holds no lock between two yields. An error ends it.",
		needs:    []string{"DestinationCounter"},
		run: func(k *kit) {
			c := k.q.(webhook.DestinationCounter)
			for i := range 20 {
				k.put(delivery(fmt.Sprint("d", i), "1"))
			}
			seen := 0
			for range c.CountByDestination(k.ctx) {
				k.put(delivery("d0", fmt.Sprint("new-", seen)))
				if seen++; seen == 10 {
					break
				}
			}
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			var errs []error
			for _, err := range c.CountByDestination(ctx) {
				errs = append(errs, err)
			}
			if seen != 10 || len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
				k.Errorf("CountByDestination with a cancelled context yields %v, want context.Canceled once", errs)
			}
		},
	},
}

func (k *kit) counts(waiting, leased, dead int) {
	k.Helper()
	got, err := k.q.(webhook.Counter).Count(k.ctx)
	got.Oldest = time.Time{}
	if want := (webhook.Counts{Waiting: waiting, Claimed: leased, Dead: dead}); err != nil || got != want {
		k.Fatalf("Count = %+v, %v, want %+v", got, err, want)
	}
}
