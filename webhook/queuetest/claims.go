package queuetest

import (
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// claimCases test Fetch, Settle, Heads and Now.
var claimCases = []testCase{
	{"FetchOrder", "Fetch claims up to Max deliveries of its queue that are due, the earliest first. It sets Next of each want to the earliest Due that is left in the queue and not claimed, zero if there is none.", func(k *kit) {
		ds := k.deliveries("a", 100)
		for i := range 10 {
			ds[90+i].Due = k.s.Now().Add(time.Duration(1+i) * time.Hour)
		}
		k.r.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
		k.put(ds[:60]...)
		k.put(ds[60:]...)
		for _, max := range []int{1, 3, 30, 10, 46, 1} {
			got := k.fetchQueue(max, "a", false)
			k.settle(verdicts[max%2*3], got...) // Done or Return
			k.restart()
		}
		k.fetch(100, "a", "b")
	}},
	{"FetchTwoQueues", "The deliveries of a destination are in two queues: fresh ones, whose Expires is zero, and retries.", func(k *kit) {
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
		k.fetch(10, "a")
		k.compare()
	}},
	{"FetchManyWants", "Fetch appends them to dst in the order of wants. It stops at maxBytes of bodies, but claims one delivery if any is due.", func(k *kit) {
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
	{"FetchKeeps", "The caller may keep the deliveries.", func(k *kit) {
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
		for i := range 100 { // a store may reuse its memory
			k.put(k.full("a", fmt.Sprint("other", i)))
		}
		equal(k, "what Fetch returned before", []webhook.Delivery{first, second}, []webhook.Delivery{want, d})
	}},
	{"Settle", "Settle ends the claims of ss. There may be any number of them, with bodies of any size: the first n are durable. Done removes the delivery. Retry puts it back with its Due, Expires, Tries, Closed and Attempts. Bury makes it a dead letter with its Tries, Closed and Attempts, and the Reason. Return puts it back as it was.", func(k *kit) {
		const n = 3000
		k.put(k.deliveries("a", n)...)
		var ss []webhook.Settlement
		for i, d := range k.fetch(n, "a")[:n-1] {
			f := k.full("a", d.ID)
			d.Tries, d.Closed, d.Attempts = i, f.Closed[:i/4%3], f.Attempts[:i/4%3]
			s := settlements(k.s, verdicts[i%4], d)[0]
			if s.Verdict == webhook.Bury {
				s.Reason, s.At = webhook.ReasonRefused, s.At.Add(-time.Duration(i)*time.Minute)
			} else {
				s.Delivery.Due, s.Delivery.Expires = f.Due.Add(time.Duration(i)*time.Microsecond), f.Expires
			}
			ss = append(ss, s)
		}
		k.settleAll(ss...)
		k.settleAll()
		k.compare()
		k.restart()
		k.compare()
		k.fetch(n, "a")
	}},
	{"SettleRetry", "Retry puts it back with its Due. Fetch claims deliveries that are due.", func(k *kit) {
		d := k.delivery("a", "1")
		d.Due = k.s.Now().Add(k.unit)
		k.put(d)
		for try := range 3 {
			k.pass(k.unit - time.Microsecond)
			if k.traits.Bubble && len(k.fetch(1, "a")) > 0 {
				k.Fatal("Fetch returned what is due in a microsecond")
			}
			k.pass(time.Microsecond)
			d = k.fetchOne("a")
			d.Due, d.Expires, d.Tries = k.s.Now().Add(k.unit), k.s.Now().Add(4*time.Hour), try
			k.settle(webhook.Retry, d)
		}
	}},
	{"SettleErrorIsAboutOne", "It returns how many it has settled: the first n are durable, and an error is about ss[n] alone.", func(k *kit) {
		faults := []func(*webhook.Settlement){
			func(s *webhook.Settlement) { s.Verdict = 0 },
			func(s *webhook.Settlement) { s.Verdict = webhook.Return + 1 },
		}
		for _, change := range outside {
			for _, verdict := range []webhook.Verdict{webhook.Retry, webhook.Bury} {
				faults = append(faults, func(s *webhook.Settlement) {
					s.Verdict, s.Reason = verdict, webhook.ReasonExpired
					change(&s.Delivery)
				})
			}
		}
		for i, fault := range faults {
			name := fmt.Sprint("d", i)
			k.put(k.deliveries(name, 3)...)
			ds := k.fetch(3, name)
			ss := settlements(k.s, webhook.Done, ds...)
			fault(&ss[1])
			if n, err := k.s.Settle(k.ctx, ss); n != 1 || err == nil {
				k.Fatalf("Settle of three, the second with error %d = %d, %v, want 1 and an error", i, n, err)
			}
			k.settled(&ss[0])
			k.compare()
			k.settle(webhook.Return, ds...)
			k.fetch(3, name)
		}
	}},
	{"Claims", "A claim begins when Fetch returns the delivery, and ends when it is settled. If a claim has ended before, its settlement changes nothing, and is no error.", func(k *kit) {
		k.put(k.deliveries("a", 2)...)
		ds := k.fetch(2, "a")
		if ds[0].Claim == ds[1].Claim {
			k.Errorf("two deliveries have the claim %d", ds[0].Claim)
		}
		k.settle(webhook.Done, ds[0])
		k.settle(webhook.Return, ds[1])
		again, never, far := k.fetchOne("a"), ds[1], ds[1]
		never.Claim, far.Claim = 0, 1<<63+12345
		k.pass(k.unit)
		for _, verdict := range verdicts {
			k.settle(verdict, ds[0], never, far, ds[1])
			k.compare()
		}
		k.settle(webhook.Return, again, again)
		k.fetchOne("a")
	}},
	{"HeadsChanged", "If all is not set, Heads yields only destinations whose heads have changed since the previous call. Changes by Put, Fetch and Settle do not count. Changes by Revive and Change do count. Changed returns a channel that has a value when Heads may have news. A delivery that Change makes due is news for Heads.", func(k *kit) {
		noNews := func() {
			k.Helper()
			// Other nodes may have changed heads.
			if heads := k.heads(false); len(heads) > 0 && !k.traits.Share {
				k.Fatalf("Heads(false) yields %v, which nobody else has changed since the call before", heads)
			}
		}
		dead := k.bury(3)
		d := k.delivery("later", "1")
		d.Due = d.Due.Add(time.Hour)
		k.put(k.delivery(dead[0].Destination, "own"), d)
		noNews()
		for len(k.s.Changed()) > 0 {
			<-k.s.Changed()
		}
		k.revive(dead[1].Key, dead[2].Key)
		k.news(func(seen map[string]webhook.Head) bool {
			if len(seen) > 2 && !k.traits.Share {
				k.Fatalf("Heads(false) yields %v, want the two that Revive has changed", seen)
			}
			return !seen[dead[1].Destination].Fresh.IsZero() && !seen[dead[2].Destination].Fresh.IsZero()
		})
		noNews()
		k.revive(dead[0].Key)
		k.news(func(seen map[string]webhook.Head) bool { return !seen[dead[0].Destination].Fresh.IsZero() })
		k.change(webhook.WaitingFilter{Destination: "later"}, webhook.DueNow)
		k.news(func(seen map[string]webhook.Head) bool { return !seen["later"].Fresh.IsZero() })
		k.compare()
	}},
	{"Now", "Now is the time by the clock of the store, kept to the microsecond.", func(k *kit) {
		at := k.s.Now()
		if !at.Equal(at.Truncate(time.Microsecond)) {
			k.Errorf("Now = %v, want no parts of a microsecond", at)
		}
		k.pass(k.unit)
		if passed := k.s.Now().Sub(at); passed < k.unit || k.traits.Bubble && passed > k.unit {
			k.Errorf("after %v Now is %v later", k.unit, passed)
		}
	}},
}
