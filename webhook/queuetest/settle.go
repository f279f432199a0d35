package queuetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var verdicts = []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Return}

var settleCases = []testCase{
	{"SettleDone", "Done removes the delivery.", 0, func(k *kit) {
		k.put(k.delivery("a", "1"), k.full("a", "2"))
		k.settle(webhook.Done, k.fetch(10, "a")...)
		k.fetchNone("they are done", "a")
		k.counts(0, 0, 0)
	}},
	{"SettleRetry", "Retry puts it back with its Due, Expires, Tries, Closed and Attempts.", 0, func(k *kit) {
		k.put(k.delivery("a", "1"))
		for try := 1; try < 4; try++ {
			d, f := k.fetchOne("a"), k.full("a", "1")
			d.Due = k.s.Now().Add(k.unit)
			d.Expires = k.s.Now().Add(4 * time.Hour)
			d.Tries = try
			d.Closed = f.Closed[:try%3]
			d.Attempts = append(slices.Clone(d.Attempts), f.Attempts[0])
			k.settle(webhook.Retry, d)
			again := k.fetchAt(d.Due, "a")
			k.same(fmt.Sprint("Fetch after retry ", try), again, d)
			again[0].Due = k.s.Now()
			k.settle(webhook.Retry, again...)
		}
	}},
	{"SettleReturn", "Return puts it back as it was.", 0, func(k *kit) {
		want := append(k.deliveries("a", 5), k.full("b", "1"))
		k.put(want...)
		got := sorted(k.fetch(10, "a", "b"))
		for _, i := range []int{3, 1, 5, 0} {
			changed := got[i]
			changed.Due, changed.Expires, changed.Tries, changed.Closed, changed.Attempts = k.s.Now().Add(time.Hour), k.s.Now(), 99, nil, nil
			k.settle(webhook.Return, changed)
		}
		k.same("Fetch", append(k.fetch(10, "a"), k.fetch(10, "b")...), want[0], want[1], want[3], want[5])
	}},
	{"SettleBury", "Bury makes it a dead letter with its Tries, Closed and Attempts, and the Reason. At is when it is buried.", 0, func(k *kit) {
		k.put(k.delivery("a", "1"))
		d := k.fetchOne("a")
		f := k.full("a", "1")
		d.Tries, d.Closed, d.Attempts = 7, slices.Clone(f.Closed), slices.Clone(f.Attempts)
		want := webhook.DeadLetter{Delivery: d, Reason: webhook.ReasonRefused, Died: k.s.Now().Add(-time.Hour)}
		want.Closed, want.Attempts = f.Closed, f.Attempts
		k.settleAll(webhook.Settlement{Verdict: webhook.Bury, Delivery: d, Reason: want.Reason, At: want.Died})
		spoil(&webhook.Delivery{Closed: d.Closed, Attempts: d.Attempts})
		k.fetchNone("it is dead", "a")
		for range 2 {
			dead := k.dead(webhook.DeadFilter{}, "")
			if len(dead) == 1 {
				want.Key = dead[0].Key
			}
			k.sameDead("Dead", dead, want)
			k.restart()
		}
	}},
	{"SettleMany", "Settle ends claims, in the order of ss, of any number and any size. The first n are durable.", 0, func(k *kit) {
		const n = 3000
		ds := k.deliveries("a", n)
		k.put(ds...)
		got := k.fetch(n, "a")
		var want []webhook.Delivery
		var ss []webhook.Settlement
		for i := range got[:n-1] {
			verdict := verdicts[i%len(verdicts)]
			switch verdict {
			case webhook.Retry:
				got[i].Expires, got[i].Tries = k.s.Now(), i
				want = append(want, got[i])
			case webhook.Return:
				want = append(want, ds[i])
			}
			ss = append(ss, k.settlements(verdict, got[i])...)
		}
		k.settleAll(ss...)
		k.settleAll()
		k.counts(len(want)+1, 1, n/4)
		if k.traits.Durable {
			k.reopen()
			want = append(want, ds[n-1])
		}
		k.sameSet("Fetch", k.fetch(n, "a"), want...)
	}},
	{"SettleErrorIsAboutOne", "It returns how many it has settled: the first n are durable, and an error is about ss[n] alone.", 0, func(k *kit) {
		k.put(k.deliveries("a", 50)...)
		for name, spoil := range map[string]func(*webhook.Settlement){
			"no verdict":        func(s *webhook.Settlement) { s.Verdict = 0 },
			"a verdict too far": func(s *webhook.Settlement) { s.Verdict = webhook.Return + 1 },
			"negative Tries":    func(s *webhook.Settlement) { s.Delivery.Tries = -1 },
			"a negative Try":    func(s *webhook.Settlement) { s.Delivery.Attempts = []webhook.Attempt{{Try: -1}} },
			"a negative Status": func(s *webhook.Settlement) { s.Delivery.Attempts = []webhook.Attempt{{Status: -1}} },
			"many Attempts": func(s *webhook.Settlement) {
				s.Delivery.Attempts = make([]webhook.Attempt, webhook.MaxAttempts+1)
			},
			"many Closed": func(s *webhook.Settlement) { s.Delivery.Closed = make([]webhook.Closed, webhook.MaxEndpoints+1) },
		} {
			for _, verdict := range []webhook.Verdict{webhook.Retry, webhook.Bury} {
				ds, _ := k.fetchQueue("a", false, 3)
				ss := append(k.settlements(webhook.Done, ds[0]), k.settlements(verdict, ds[1:]...)...)
				spoil(&ss[1])
				if n, err := k.s.Settle(k.ctx, ss); n != 1 || err == nil {
					k.Fatalf("Settle of three, the second with %s = %d, %v, want 1 and an error", name, n, err)
				}
				// The two others are still claimed.
				k.settle(webhook.Return, ds...)
				again, _ := k.fetchQueue("a", false, 2)
				k.same("Fetch of what was not settled", again, ds[1:]...)
				k.settle(webhook.Done, again...)
			}
		}
	}},
	{"SettleNoClaim", "A settlement of a claim that does not hold any more changes nothing, and is no error.", 0, func(k *kit) {
		k.put(k.delivery("a", "1"))
		d := k.fetchOne("a")
		k.settle(webhook.Done, d)
		want := k.full("a", "2")
		k.put(want)
		first := k.fetchOne("a")
		k.settle(webhook.Return, first)
		second := k.fetchOne("a")
		never, far := d, d
		never.Claim, far.Claim = 0, 1<<63+12345
		for _, verdict := range verdicts {
			k.settle(verdict, d, never, far, first)
		}
		k.fetchNone("one is done, the other claimed", "a")
		k.counts(1, 1, 0)
		k.settle(webhook.Return, second, second)
		k.same("Fetch", k.fetch(10, "a"), want)
	}},
	{"SettleKeepsNothing", "No method keeps its arguments or anything that they refer to.", 0, func(k *kit) {
		k.put(k.delivery("a", "1"))
		d := k.fetchOne("a")
		f := k.full("a", "1")
		d.Closed, d.Attempts, d.Tries = f.Closed, f.Attempts, 2
		want := d
		want.Closed, want.Attempts = slices.Clone(f.Closed), slices.Clone(f.Attempts)
		ss := k.settlements(webhook.Retry, d)
		k.settleAll(ss...)
		spoil(&ss[0].Delivery)
		ss[0] = webhook.Settlement{}
		k.same("Fetch", k.fetch(1, "a"), want)
	}},
}
