package queuetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var verdicts = []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Return}

var settleCases = []testCase{
	{"Settle", "Settle ends claims, of any number and any size; what is settled is durable. Done removes the delivery. Retry puts it back with its Due, Expires, Tries, Closed and Attempts. Bury makes it a dead letter with its Tries, Closed and Attempts, and the Reason. Return puts it back as it was.", 0, func(k *kit) {
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
	{"SettleRetry", "Retry puts it back with its Due. Fetch claims deliveries that are due.", 0, func(k *kit) {
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
	{"SettleErrorIsAboutOne", "It returns how many it has settled: the first n are durable, and an error is about ss[n] alone.", 0, func(k *kit) {
		for i, change := range append(slices.Clip(outside), nil) {
			for _, verdict := range []webhook.Verdict{webhook.Retry, webhook.Bury} {
				name := fmt.Sprint("d", i, verdict)
				k.put(k.deliveries(name, 3)...)
				ds := k.fetch(3, name)
				ss := append(settlements(k.s, webhook.Done, ds[0]), settlements(k.s, verdict, ds[1:]...)...)
				switch {
				case change != nil:
					change(&ss[1].Delivery)
				case verdict == webhook.Retry:
					ss[1].Verdict = 0
				default:
					ss[1].Verdict = webhook.Return + 1
				}
				if n, err := k.s.Settle(k.ctx, ss); n != 1 || err == nil {
					k.Fatalf("Settle of three, the second with error %d = %d, %v, want 1 and an error", i, n, err)
				}
				k.settled(&ss[0])
				k.compare()
				k.settle(webhook.Return, ds...)
				k.fetch(3, name)
			}
		}
	}},
	{"Claims", "A claim begins when Fetch returns the delivery, and ends when it is settled. A settlement of a claim that does not hold any more changes nothing, and is no error.", 0, func(k *kit) {
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
}
