package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

var fetchCases = []testCase{
	{"FetchOrder", "Fetch claims up to Max deliveries of its queue that are due, the earliest first.", 0, func(k *kit) {
		ds := k.deliveries("a", 100)
		ds[50].Due, ds[70].Due = ds[51].Due, ds[69].Due // either may come first
		shuffled := slices.Clone(ds)
		k.r.Shuffle(len(ds), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		k.put(shuffled[:60]...)
		k.put(shuffled[60:]...)
		var got []webhook.Delivery
		for _, max := range []int{1, 3, 30, 66, 10} {
			some, _ := k.fetchQueue("a", false, max)
			got = append(got, some...)
		}
		for i := range got[1:] {
			if got[i+1].Due.Before(got[i].Due) {
				k.Errorf("%s came after %s", got[i+1].ID, got[i].ID)
			}
		}
		k.sameSet("Fetch", got, ds...)
	}},
	{"FetchTwoQueues", "The deliveries of a destination are in two queues: fresh ones, whose Expires is zero, and retries.", 0, func(k *kit) {
		fresh, retry, other := k.deliveries("a", 2), k.full("a", "retry"), k.delivery("b", "1")
		retry.Due = fresh[1].Due.Add(time.Millisecond)
		k.put(retry, other, fresh[0], fresh[1])
		if k.traits.Mixed {
			k.same("Fetch of both", k.fetch(2, "a"), fresh[0], fresh[1], retry)
			return
		}
		got, _ := k.fetchQueue("a", true, 10)
		k.same("Fetch of retries", got, retry)
		got, _ = k.fetchQueue("a", false, 10)
		k.same("Fetch of fresh ones", got, fresh...)
		fresh[0].Expires = k.s.Now().Add(time.Hour)
		fresh[0].Claim = got[0].Claim
		k.settle(webhook.Retry, fresh[0])
		k.next("a", false, time.Time{})
		got, _ = k.fetchQueue("a", true, 10)
		k.same("Fetch of retries, after a Retry", got, fresh[0])
	}},
	{"FetchManyWants", "Fetch appends them to dst in the order of wants.", 0, func(k *kit) {
		var names []string
		var ds []webhook.Delivery
		for i := range 200 {
			names = append(names, fmt.Sprint("d", i*7919%200))
			ds = append(ds, k.deliveries(names[i], 3)...)
		}
		k.put(ds...)
		head := k.delivery("mine", "1")
		got, err := k.s.Fetch(k.ctx, wants(2, append(names, "unknown")...), noLimit, []webhook.Delivery{head})
		if err != nil {
			k.Fatal(err)
		}
		want := []webhook.Delivery{head}
		for i := range names {
			most := 2
			if k.traits.Mixed {
				most = 3
			}
			want = append(want, ds[3*i:3*i+most]...)
		}
		if k.traits.Mixed { // no order among destinations
			k.sameSet("Fetch", got, want...)
			return
		}
		k.same("Fetch", got, want...)
		k.same("Fetch of the rest", k.fetch(10, "d0"), ds[2])
	}},
	{"FetchDue", "Fetch claims deliveries that are due.", 0, func(k *kit) {
		d := k.delivery("a", "1")
		d.Due = k.s.Now().Add(k.unit)
		k.put(d)
		if k.traits.Bubble {
			k.pass(k.unit - time.Microsecond)
			k.fetchNone("it is due in a microsecond", "a")
		}
		k.same("Fetch", k.fetchAt(d.Due, "a"), d)
	}},
	{"FetchNext", "It sets Next of each want to the earliest Due that is left in the queue and not claimed, zero if there is none.", 0, func(k *kit) {
		k.next("a", false, time.Time{})
		ds := k.deliveries("a", 4)
		ds[2].Due, ds[3].Due = k.s.Now().Add(2*time.Hour), k.s.Now().Add(time.Hour)
		retry := k.full("a", "retry")
		retry.Due = k.s.Now().Add(3 * time.Hour)
		k.put(append(ds, retry)...)
		got, next := k.fetchQueue("a", false, 1)
		if !next.Equal(ds[1].Due) && !k.traits.Mixed {
			k.Errorf("next = %v with one left that is due %v", next, ds[1].Due)
		}
		got = append(got, k.fetch(10, "a")...)
		k.same("Fetch", got, ds[:2]...)
		k.next("a", false, ds[3].Due)
		k.next("a", true, retry.Due)
		k.next("b", true, time.Time{})
		got[0].Due = k.s.Now().Add(time.Minute * 30)
		got[0].Expires = got[0].Due
		k.settle(webhook.Retry, got[0])
		k.settle(webhook.Done, got[1])
		k.next("a", true, got[0].Due)
		k.next("a", false, ds[3].Due)
	}},
	{"FetchMaxBytes", "It stops at maxBytes of bodies, but claims one delivery if any is due.", 0, func(k *kit) {
		ds := k.deliveries("a", 6)
		for i := range ds {
			ds[i].Body = make([]byte, 1000)
		}
		k.put(ds...)
		var got []webhook.Delivery
		for _, step := range []struct{ maxBytes, want int }{{1, 1}, {2999, 2}, {2000, 2}, {0, 1}, {1000, 0}} {
			some, err := k.s.Fetch(k.ctx, wants(10, "b", "a"), int64(step.maxBytes), nil)
			if err != nil || len(some) != step.want {
				k.Fatalf("Fetch of up to %d bytes = %v, %v, want %d", step.maxBytes, ids(some), err, step.want)
			}
			got = append(got, some...)
		}
		k.same("Fetch", got, ds...)
	}},
	{"FetchClaims", "A claim begins when Fetch returns the delivery, and ends when it is settled.", 0, func(k *kit) {
		ds := k.deliveries("a", 3)
		k.put(ds...)
		got := k.fetch(10, "a")
		claims := make(map[uint64]bool)
		for _, d := range got {
			claims[d.Claim] = d.Claim != 0
		}
		if len(claims) != 3 || claims[0] {
			k.Errorf("three deliveries have the claims %v", claims)
		}
		k.pass(k.unit)
		k.fetchNone("all are claimed", "a")
		k.settle(webhook.Return, got[1])
		k.same("Fetch of what was returned", k.fetch(10, "a"), ds[1])
	}},
	{"FetchKeeps", "The caller may keep what it was handed.", 0, func(k *kit) {
		want := k.full("a", "1")
		k.put(want)
		first := k.fetchOne("a")
		_ = append(first.Body, "beyond"...)
		_ = append(first.Closed, webhook.Closed{Endpoint: 99})
		_ = append(first.Attempts, webhook.Attempt{Error: "beyond"})
		d := first
		d.Tries, d.Attempts, d.Closed = 9, d.Attempts[1:], nil
		k.settle(webhook.Retry, d)
		second := k.fetchOne("a")
		k.settle(webhook.Done, second)
		for i := range 100 { // a store may use its memory again
			k.put(k.full("a", fmt.Sprint("other", i)))
		}
		k.same("what the first Fetch returned", []webhook.Delivery{first}, want)
		k.same("what the second Fetch returned", []webhook.Delivery{second}, d)
	}},
	{"FetchCancelled", "With an error nothing is claimed, and wants are as they were.", 0, func(k *kit) {
		ds := k.deliveries("a", 2)
		k.put(ds...)
		ws := wants(10, "a")
		ws[0].Next = k.s.Now()
		before := slices.Clone(ws)
		got, err := k.s.Fetch(k.cancelled(), ws, noLimit, nil)
		if diff := cmp.Diff(before, ws); len(got) > 0 || !errors.Is(err, context.Canceled) || diff != "" {
			k.Errorf("Fetch with a cancelled context = %v, %v; wants (-before +after)\n%s", ids(got), err, diff)
		}
		k.same("Fetch", k.fetch(10, "a"), ds...)
	}},
	{"Concurrently", "All methods may be called concurrently.", 0, func(k *kit) {
		const putters, each = 4, 150
		var names []string
		for i := range 7 {
			names = append(names, fmt.Sprint("d", i))
		}
		var mu sync.Mutex
		seen, holds := make(map[string]int), make(map[string]bool)
		done := 0
		// account notes what was handed out; each delivery is retried once and then done.
		account := func(ds []webhook.Delivery) (ss []webhook.Settlement) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range ds {
				if holds[d.ID] {
					k.Errorf("%s was handed out while it was claimed", d.ID)
				}
				holds[d.ID] = true
				d.Expires = d.Due.Add(time.Hour)
				s := webhook.Settlement{Verdict: webhook.Retry, Delivery: d}
				if seen[d.ID]++; seen[d.ID] == 2 {
					s.Verdict = webhook.Done
				}
				ss = append(ss, s)
			}
			return ss
		}
		settle := func(ss []webhook.Settlement) {
			mu.Lock()
			for _, s := range ss {
				holds[s.Delivery.ID] = false
			}
			mu.Unlock()
			if n, err := k.s.Settle(k.ctx, ss); n != len(ss) || err != nil {
				k.Errorf("Settle of %d = %d, %v", len(ss), n, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, s := range ss {
				if s.Verdict == webhook.Done {
					done++
				}
			}
		}
		var wg sync.WaitGroup
		for p := range putters {
			wg.Go(func() {
				for i := range each {
					d := k.delivery(names[i%7], fmt.Sprint(p, "-", i))
					out := make([]webhook.Result, 1)
					if err := k.s.Put(k.ctx, []webhook.Put{{Delivery: d, Keep: i%3 == 0}}, out); err != nil || !out[0].Stored {
						k.Errorf("Put = %v, %v", out, err)
					}
					if d.Claim = out[0].Claim; d.Claim != 0 {
						settle(account([]webhook.Delivery{d}))
					}
				}
			})
		}
		for range 3 {
			wg.Go(func() {
				for !k.Failed() {
					mu.Lock()
					end := done == putters*each
					mu.Unlock()
					if end {
						return
					}
					ds, err := k.s.Fetch(k.ctx, wants(3, names...), noLimit, nil)
					if err != nil {
						k.Errorf("Fetch: %v", err)
						return
					}
					if settle(account(ds)); len(ds) == 0 {
						wait(k.ctx, time.Millisecond) // until the next look
					}
				}
			})
		}
		wg.Wait()
		k.fetchNone("all are done", names...)
		k.counts(0, 0, 0)
	}},
}
