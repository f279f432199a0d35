package queuetest

import (
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// claimCases test Fetch, Settle, Heads and Now.
var claimCases = []testCase{
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
		for _, d := range k.fetch(n, "a")[1:] {
			ss = append(ss, k.outcome(d))
		}
		k.settleAll(ss...)
		k.settleAll()
		k.restart()
		k.compare()
		k.fetch(n, "a")
	}},
	{"SettleErrorIsAboutOne", "It returns how many it has settled: the first n are durable, and an error is about ss[n] alone.", func(k *kit) {
		faults := []func(*webhook.Settlement){
			func(s *webhook.Settlement) { s.Verdict = 0 },
			func(s *webhook.Settlement) { s.Verdict = webhook.Return + 1 },
		}
		for _, change := range outside {
			faults = append(faults, func(s *webhook.Settlement) { s.Verdict = webhook.Retry; change(&s.Delivery) },
				func(s *webhook.Settlement) { s.Verdict = webhook.Bury; change(&s.Delivery) })
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
	{"HeadsChanged", "If all is not set, Heads yields only destinations whose heads have changed since the previous call. Changes by Put, Fetch and Settle do not count. Changes by Revive and Change do count. Changed returns a channel that has a value when Heads may have news. A delivery that Change makes due is news for Heads.", func(k *kit) {
		noNews := func() {
			// Other nodes may have changed heads.
			if heads := k.heads(false); len(heads) > 0 && !k.traits.Share {
				k.Fatalf("Heads(false) yields %v, which nobody else has changed since the call before", heads)
			}
		}
		dead := bury(k, 3)
		d := k.delivery("later", "1")
		d.Due = d.Due.Add(time.Hour)
		k.put(k.delivery(dead[0].Destination, "own"), d)
		noNews()
		for len(k.s.Changed()) > 0 {
			<-k.s.Changed()
		}
		k.revive(dead[1].Key, dead[2].Key)
		if seen := k.news(2, dead[1].Destination, dead[2].Destination); len(seen) > 2 && !k.traits.Share {
			k.Fatalf("Heads(false) yields %v, want the two that Revive has changed", seen)
		}
		noNews()
		k.revive(dead[0].Key)
		k.news(1, dead[0].Destination)
		k.change(webhook.WaitingFilter{Destination: "later"}, webhook.DueNow)
		k.news(1, "later")
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
