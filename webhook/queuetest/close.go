package queuetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

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
			if dl, ok := q.(webhook.DeadLetters); ok {
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
			d := k.leaseOne()
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
			k.pass(k.traits.Lease)
			k.counts(5, 0, 1)
			if k.traits.Durable {
				k.reopen()
				k.counts(5, 0, 1)
			}
		},
	},
}

func (k *kit) counts(waiting, leased, dead int) {
	k.Helper()
	got, err := k.q.(webhook.Counter).Count(k.ctx)
	if want := (webhook.Counts{Waiting: waiting, Leased: leased, Dead: dead}); err != nil || got != want {
		k.Fatalf("Count = %+v, %v, want %+v", got, err, want)
	}
}
