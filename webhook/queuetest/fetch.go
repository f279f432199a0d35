package queuetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var fetchCases = []testCase{
	{"FetchOrder", "Fetch claims up to Max deliveries of its queue that are due, the earliest first. It sets Next of each want to the earliest Due that is left in the queue and not claimed, zero if there is none.", 0, func(k *kit) {
		ds := k.deliveries("a", 100)
		for i := range 10 {
			ds[90+i].Due = k.s.Now().Add(time.Duration(1+i) * time.Hour)
		}
		k.r.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
		k.put(ds[:60]...)
		k.put(ds[60:]...)
		for _, max := range []int{1, 3, 30, 10, 46, 1} {
			got := k.fetchQueue(max, "a", false)
			k.settle(verdicts[max%2*3], got...) // done or returned
			k.restart()
		}
		k.fetch(100, "a", "b")
	}},
	{"FetchTwoQueues", "The deliveries of a destination are in two queues: fresh ones, whose Expires is zero, and retries.", 0, func(k *kit) {
		later := k.full("a", "later")
		later.Due = k.s.Now().Add(time.Hour)
		k.put(append(k.deliveries("a", 2), k.full("a", "retry"), later, k.delivery("b", "1"))...)
		k.restart()
		k.compare()
		k.settle(webhook.Return, k.fetchQueue(10, "a", true)...)
		d := k.fetchQueue(1, "a", false)[0]
		k.compare()
		d.Due = later.Due.Add(-time.Minute)
		d.Expires = d.Due
		k.settle(webhook.Retry, d)
		k.compare()
		k.fetch(10, "a")
		k.compare()
	}},
	{"FetchManyWants", "Fetch appends them to dst in the order of wants. It stops at maxBytes of bodies, but claims one delivery if any is due.", 0, func(k *kit) {
		ds, names := k.many(200, 3)
		for i := range ds {
			ds[i].Body = make([]byte, 1000)
		}
		k.put(ds...)
		k.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, maxBytes := range []int64{1, 0, 2999, 2000, 99_999, noLimit} {
			k.fetchWants(maxBytes, wants(2, append(names, "unknown")...)...)
		}
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
		k.same("what Fetch returned", []webhook.Delivery{first, second}, want, d)
	}},
	{"Concurrently", "All methods may be called concurrently.", 0, func(k *kit) {
		k.together(func() {}, k.s)
		k.compare()
	}},
}

// together has goroutines put deliveries, each in two of them, and others fetch them from each of
// the stores. Each delivery is retried once and then done. Meanwhile it does something else. It
// checks that each was stored once, and that no delivery was handed out while it was claimed.
func (k *kit) together(meanwhile func(), stores ...webhook.Store) {
	const putters, total = 4, 300
	_, names := k.many(20, 0)
	var mu sync.Mutex
	handed, claimed := make(map[string]int), make(map[string]bool)
	stored, done := 0, 0
	settle := func(s webhook.Store, ds ...webhook.Delivery) {
		ss := settlements(s, webhook.Retry, ds...)
		mu.Lock()
		for i := range ss {
			d := &ss[i].Delivery
			if claimed[d.ID] {
				k.Errorf("%s was handed out while it was claimed", d.ID)
			}
			claimed[d.ID] = true
			d.Expires = d.Due.Add(time.Hour)
			if handed[d.ID]++; handed[d.ID] == 2 {
				ss[i].Verdict = webhook.Done
			}
		}
		mu.Unlock()
		k.wait()
		mu.Lock()
		for _, d := range ds {
			claimed[d.ID] = false
		}
		mu.Unlock()
		if n, err := s.Settle(k.ctx, ss); n != len(ss) || err != nil {
			k.Errorf("Settle of %d = %d, %v", len(ss), n, err)
		}
		mu.Lock()
		for _, s := range ss {
			if s.Verdict == webhook.Done {
				done++
			}
		}
		mu.Unlock()
	}
	var wg sync.WaitGroup
	for p := range putters {
		wg.Go(func() {
			s := stores[p%len(stores)]
			for i := p / 2; i < total; i += putters / 2 {
				d := k.delivery(names[i%20], fmt.Sprint(i))
				out, err := tryPut(k.ctx, s, webhook.Put{Delivery: d, Keep: i%3 == 0})
				if err != nil {
					k.Errorf("Put: %v", err)
				} else if out[0].Stored {
					mu.Lock()
					stored++
					mu.Unlock()
				}
				if d.Claim = out[0].Claim; d.Claim != 0 {
					settle(s, d)
				}
			}
		})
	}
	for i := range 4 {
		wg.Go(func() {
			s := stores[i%len(stores)]
			for !k.Failed() {
				mu.Lock()
				end := done == total
				mu.Unlock()
				if end {
					return
				}
				ds, err := s.Fetch(k.ctx, wants(3, names...), noLimit, nil)
				if err != nil {
					k.Errorf("Fetch: %v", err)
				}
				settle(s, ds...)
			}
		})
	}
	meanwhile()
	wg.Wait()
	if stored != total {
		k.Errorf("Put stored %d of %d different deliveries", stored, total)
	}
	k.fetch(10, names...)
}
