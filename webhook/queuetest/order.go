package queuetest

import (
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// keyed returns n fresh deliveries of one destination with one key.
func (k *kit) keyed(destination, key string, n int) []store.Delivery {
	ds := k.deliveries(destination, n)
	for i := range ds {
		ds[i].ID, ds[i].Key = fmt.Sprint(key, " ", i), key
	}
	return ds
}

// drain fetches and settles until nothing is left that is due. It settles each delivery with every
// verdict before it is done with it.
func (k *kit) drain(destinations ...string) {
	turns := make(map[string]int)
	for {
		ds := k.fetch(100, destinations...)
		if len(ds) == 0 {
			return
		}
		var ss []store.Settlement
		for _, d := range ds {
			verdict := []store.Verdict{store.Return, store.Retry, store.Done}[turns[id(&d)]]
			turns[id(&d)]++
			s := settlements(k.s, verdict, d)[0]
			s.Delivery.Expires = s.Delivery.Due.Add(time.Hour)
			ss = append(ss, s)
		}
		k.settleAll(ss...)
		k.compare()
	}
}

// orderCases test the order of deliveries with one Key.
var orderCases = []testCase{
	{"Order", "Of the deliveries of a destination that have the same Key, only the first one is in a queue, or claimed. The others are behind it, in the order of Seq: they are not due, not in Heads, and never claimed. When the first one is settled as Done, the store releases the next, which is due now. Retry and Return release nothing. Of deliveries with the same Destination and Key, one that is later in ps has a greater Seq. Settle sets Released of each of ss[:n].", func(k *kit) {
		for i := range 2 {
			var ps []store.Put
			for _, d := range append(k.keyed("a", "one", 4), append(k.keyed("a", "two", 2), k.keyed("b", "one", 3)...)...) {
				d.ID = fmt.Sprint(i, " ", d.ID)
				ps = append(ps, store.Put{Delivery: d, Keep: true}, store.Put{Delivery: d})
				d.ID, d.Key = d.ID+" without a key", ""
				ps = append(ps, store.Put{Delivery: d, NoDedup: true})
			}
			k.putAll(ps...)
			k.compare()
		}
		var kept []store.Delivery
		for _, e := range k.inOrder() {
			if e.Claim != 0 {
				kept = append(kept, e.Delivery)
			}
		}
		k.settle(store.Done, kept...)
		k.compare()
		k.fetch(1, "a", "b")
		k.restart()
		k.compare()
		for _, e := range k.inOrder() {
			if e.Claim != 0 {
				k.settle(store.Return, e.Delivery)
			}
		}
		k.drain("a", "b")
	}},
	{"OrderOfDue", "The store releases the next: it becomes a fresh delivery that is due now, or at its own Due if that is later.", func(k *kit) {
		ds := k.keyed("a", "one", 4)
		ds[0].Due, ds[2].Due = k.s.Now().Add(k.unit), k.s.Now().Add(3*k.unit)
		k.put(ds...)
		k.compare()
		k.fetch(10, "a")
		k.pass(k.unit)
		for range 2 {
			k.settle(store.Bury, k.fetch(10, "a")...)
			k.compare()
		}
		k.restart()
		k.fetch(10, "a")
		k.pass(3 * k.unit)
		k.drain("a")
	}},
	{"OrderOfLapses", "A delivery that is released at once after a Bury with ReasonExpired or ReasonBacklog has its own Due, even if that has passed.", func(k *kit) {
		ds := k.keyed("a", "one", 4)
		ds[2].Due = k.s.Now().Add(2 * k.unit)
		k.put(ds...)
		k.pass(k.unit)
		for _, reason := range []store.Reason{store.ReasonExpired, store.ReasonBacklog} {
			s := settlements(k.s, store.Bury, k.fetch(10, "a")...)
			s[0].Reason = reason
			k.settleAll(s...)
			k.compare()
		}
		k.restart()
		k.compare()
		k.pass(2 * k.unit)
		k.drain("a")
	}},
	{"OrderOfHaste", "Hasten leaves alone what does not wait when it is changed: a delivery that was buried since the caller listed it stays a dead letter, so it does not come again behind the next one of its Key.", func(k *kit) {
		ds := k.keyed("a", "one", 3)
		ds[1].Due = k.s.Now().Add(time.Hour)
		k.put(append(ds, k.keyed("a", "two", 2)...)...)
		listed := k.refs(store.StateWaiting)
		k.settle(store.Bury, k.fetch(10, "a")...)
		listed = append(listed, k.refs(store.StateWaiting)...) // the next ones of the two keys
		k.compare()
		k.hasten(listed...)
		k.compare()
		k.settle(store.Return, k.fetch(10, "a")...) // both are due
		k.restart()
		k.compare()
		k.drain("a")
	}},
	{"OrderOfRevival", "Revive makes dead letters fresh deliveries with a new Seq. So each is the last one of its Key; several with one Key follow in the order of refs. It leaves alone what is no dead letter.", func(k *kit) {
		ds := k.keyed("a", "one", 8)
		k.put(ds...)
		for range 4 {
			k.settle(store.Bury, k.fetch(10, "a")...)
		}
		k.compare()
		others := append(k.refs(store.StateBehind), k.refs(store.StateWaiting)...)
		k.hasten(others...)
		k.revive(others...)
		dead := k.refs(store.StateDead)
		k.revive(dead[2], dead[0], dead[2], dead[3])
		k.compare()
		k.restart()
		k.compare()
		k.drain("a")
		k.revive(k.refs(store.StateDead)...)
		k.compare()
		k.drain("a")
	}},
	{"OrderOfRemovals", "When the first one leaves, because it is discarded or erased, the store releases the next. Heads yields destinations whose heads have changed by Discard and Erase.", func(k *kit) {
		ds := k.keyed("a", "one", 12)
		for _, i := range []int{2, 3, 11} {
			ds[i].User = "user"
		}
		k.put(ds...)
		refs := k.refs(store.StateBehind)
		k.heads(true)
		k.discard(refs[5], refs[6])
		k.compare()
		k.discard(k.refs(store.StateWaiting)...)
		k.news("a")
		k.restart()
		k.compare()
		k.discard(k.refs(store.StateWaiting)...) // now those of the user are the first ones
		k.heads(true)
		k.erase("user")
		k.news("a")
		k.compare()
		first := k.fetch(10, "a")
		k.discard(append(k.refs(store.StateClaimed), k.refs(store.StateBehind)...)...)
		k.settle(store.Done, first...)
		k.put(ds[0], k.keyed("a", "one", 13)[12]) // a repeat is not behind, and nothing is behind it
		k.compare()
		k.drain("a")
	}},
}

// shareOrderCases test it on several nodes.
var shareOrderCases = []testCase{
	{"ShareOrder", "The others are behind it, on whichever node they are put. When the claims of a dead node end, the first one of a Key comes before those that are behind it.", func(k *kit) {
		first, dead := k.s, k.another()
		var names []string
		want, got := make(map[string][]string), make(map[string][]string)
		for i := range 8 {
			names = append(names, fmt.Sprint("d", i))
		}
		put := func(s store.Store, from, to int) {
			k.s = s
			for _, name := range names {
				ds := k.keyed(name, "one", to)[from:]
				k.put(ds...)
				want[name] = append(want[name], ids(ds)...)
			}
		}
		put(first, 0, 2)
		put(dead, 2, 4)
		k.fetchFrom(1, names, dead)
		put(first, 4, 6)
		if k.traits.Abandon != nil {
			k.traits.Abandon(k, dead)
		} else {
			k.close(dead)
		}
		for left := 6 * len(names); left > 0; {
			ds := k.fetchFrom(1, names, first)
			if n, err := first.Settle(k.ctx, settlements(first, store.Done, ds...)); n != len(ds) || err != nil {
				k.Fatalf("Settle of %d = %d, %v", len(ds), n, err)
			}
			for _, d := range ds {
				got[d.Destination] = append(got[d.Destination], id(&d))
			}
			left -= len(ds)
		}
		equal(k, "the orders of the keys", got, want)
	}},
}
