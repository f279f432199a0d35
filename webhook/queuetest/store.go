package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// outside lists deliveries. In each, one field that Settle stores exceeds its limits.
var outside = []store.Delivery{
	{Destination: "a", ID: "1", Tries: -1},
	{Destination: "a", ID: "1", Attempts: []store.Attempt{{Try: -1}}},
	{Destination: "a", ID: "1", Attempts: []store.Attempt{{Status: -1}}},
	{Destination: "a", ID: "1", Attempts: make([]store.Attempt, store.MaxAttempts+1)},
	{Destination: "a", ID: "1", Closed: make([]store.Closed, store.MaxEndpoints+1)},
}

var storeCases = []testCase{
	{"Put", "Put stores all of ps. It returns once the deliveries would survive the loss of the process. Body is the request body, exactly as it is signed and sent. No method keeps its arguments.", func(k *kit) {
		ds := k.deliveries("a", 8)
		for i, n := range []int{0, 1, 4095, 4096, 4097, 32 << 10, 64 << 10, 1 << 20} {
			ds[i].Body = []byte(strings.Repeat("0123456789abcdef", n/16+1)[:n])
		}
		k.put(append(ds, k.full("b", "1"), store.Delivery{Destination: "c", ID: "1", Due: k.s.Now()})...)
		k.put()
		for range 2 {
			k.settle(store.Return, k.fetch(10, "a", "b", "c")...)
			k.restart()
		}
	}},
	{"PutLimits", "A delivery outside the limits of its fields is an error. Put stores all of ps, or stores none and returns an error.", func(k *kit) {
		long := strings.Repeat("x", 256)
		bad := []store.Delivery{
			{ID: "1"}, {Destination: "a"}, {Destination: long, ID: "1"}, {Destination: "a", ID: long},
			{Destination: "a", ID: "1", MessageID: long}, {Destination: "a", ID: "1", Source: long},
			{Destination: "a", ID: "1", User: long}, {Destination: "a", ID: "1", Event: long},
			{Destination: "a", ID: "1", Tenant: long}, {Destination: "a", ID: "1", Key: long},
		}
		for _, d := range append(bad, outside...) {
			d.Due = k.s.Now()
			if err := k.tryPut(k.ctx, puts(k.delivery("a", "good"), d)...); err == nil {
				k.Errorf("Put returned no error: %.200s", fmt.Sprint(d))
			}
		}
		k.compare()
		most := k.full(long[1:], long[1:])
		most.MessageID, most.Source, most.User, most.Event = long[1:], long[1:], long[1:], long[1:]
		most.Tenant, most.Key = long[1:], long[1:]
		k.put(most, k.delivery("a", "good"))
		k.fetch(1, "a", long[1:])
	}},
	{"PutNoDedup", "NoDedup stores the delivery even if it was put before. The store does not remember this put.", func(k *kit) {
		for i, noDedup := range []bool{true, true, false, false, true, false} {
			ps := puts(k.delivery("a", fmt.Sprint("before ", i)), k.delivery("a", "1"), k.delivery("a", fmt.Sprint("behind ", i)), k.delivery("b", fmt.Sprint(i)))
			ps[1].NoDedup, ps[2].Keep, ps[3].NoDedup = noDedup, true, true
			k.putAll(ps...)
			k.restart()
			k.settle(store.Done, k.fetch(10, "a", "b")...)
			if i%2 == 0 {
				k.restart()
			}
		}
		k.compare()
	}},
	{"PutCancelledAtAnyMoment", "After an error nothing is claimed, even if the error came too late and some of ps are stored.", func(k *kit) {
		ds := k.deliveries("a", 200)
		for _, d := range ds {
			ctx, cancel := context.WithCancel(k.ctx)
			go cancel()
			err := k.tryPut(ctx, store.Put{Delivery: d, Keep: true})
			if errors.Is(err, context.Canceled) {
				// Put may have stored the delivery or not. If it has not, this Put stores it.
				_, err = putTo(k.ctx, k.s, puts(d)...)
				k.hold(d)
			}
			if err != nil {
				k.Fatalf("Put of %s: %v", d.ID, err)
			}
		}
		k.fetch(len(ds), "a")
		k.compare()
	}},
	{"FetchKeeps", "The caller may keep the deliveries.", func(k *kit) {
		want := k.full("a", "1")
		k.put(want)
		first := k.fetch(1, "a")[0]
		_ = append(first.Body, "beyond"...)
		_ = append(first.Closed, store.Closed{Endpoint: 99})
		_ = append(first.Attempts, store.Attempt{Error: "beyond"})
		d := first
		d.Tries, d.Attempts, d.Closed = 9, d.Attempts[1:], nil
		k.settle(store.Retry, d)
		second := k.fetch(1, "a")[0]
		k.settle(store.Done, second)
		for i := range 100 { // a store may reuse its memory
			k.put(k.full("a", fmt.Sprint("other", i)))
		}
		equalLists(k, "what Fetch returned before", []store.Delivery{first, second}, []store.Delivery{want, d})
	}},
	{"SettleErrorIsAboutOne", "It returns how many it has settled: the first n are durable, and an error is about ss[n] alone.", func(k *kit) {
		faults := []store.Settlement{{Verdict: 0}, {Verdict: store.Return + 1}}
		for _, d := range outside {
			faults = append(faults, store.Settlement{Verdict: store.Retry, Delivery: d}, store.Settlement{Verdict: store.Bury, Delivery: d})
		}
		for i, fault := range faults {
			name := fmt.Sprint("d", i)
			k.put(k.deliveries(name, 3)...)
			ds := k.fetch(3, name)
			ss := settlements(k.s, store.Done, ds...)
			d := &ss[1].Delivery
			ss[1].Verdict, d.Tries, d.Closed, d.Attempts = fault.Verdict, fault.Delivery.Tries, fault.Delivery.Closed, fault.Delivery.Attempts
			if n, err := k.s.Settle(k.ctx, ss); n != 1 || err == nil {
				k.Fatalf("Settle of three, the second with error %d = %d, %v, want 1 and an error", i, n, err)
			}
			k.settled(&ss[0])
			k.compare()
			k.settle(store.Return, ds...)
			k.fetch(3, name)
		}
	}},
	{"Numbers", "Put gives a delivery a Seq that no other has, greater than those of deliveries whose Put returned before, and so does Revive of a dead letter. Otherwise it never changes. Put and Settle ignore the Seq of their deliveries.", func(k *kit) {
		ds, names := k.many(3, 10)
		check := func() {
			k.compare()
			ids := make(map[uint64]string)
			for _, e := range k.entries {
				if ids[e.Seq] != "" {
					k.Fatalf("%s and %s have the number %d", e.id, ids[e.Seq], e.Seq)
				}
				ids[e.Seq] = e.id
			}
		}
		settle := func(verdict store.Verdict) {
			k.fetch(len(ds), names...)
			var all []store.Delivery
			for _, e := range k.inOrder() {
				d := e.Delivery // claimed, by Fetch or Put
				if verdict == store.Retry {
					d.Due, d.Expires = d.Due.Add(time.Hour), d.Due.Add(4*time.Hour)
				}
				all = append(all, d)
			}
			k.settle(verdict, all...)
			check()
		}
		for i := range ds {
			ds[i] = k.full(ds[i].Destination, ds[i].ID)
			ds[i].Expires = time.Time{}
		}
		for some := range slices.Chunk(ds, 6) {
			ps := puts(some...)
			ps[0].Keep, ps[3].Keep = true, true
			k.putAll(ps...)
			check()
		}
		for range 2 {
			settle(store.Retry)
			k.hasten(k.refs(store.StateWaiting)...)
			k.restart()
			check()
			settle(store.Return)
			settle(store.Bury)
			k.restart()
			for _, ref := range k.refs(store.StateDead) {
				k.revive(ref)
			}
			check()
		}
	}},
	{"HeadsChanged", "If all is not set, Heads yields only destinations whose heads have changed since the previous call. Changes by Put, Fetch and Settle do not count. Changes by Hasten and Revive do count. Changed returns a channel that has a value when Heads may have news. What becomes due by Hasten or Revive is news for Heads. Heads and CountByDestination hold no lock between two yields.", func(k *kit) {
		noNews := func() {
			if heads := k.heads(false); len(heads) > 0 && !k.traits.Share { // other nodes may change heads
				k.Fatalf("Heads(false) yields %v, which nobody else has changed since the call before", heads)
			}
		}
		dead := bury(k, 3)
		d := k.delivery("later", "1")
		d.Due = d.Due.Add(time.Hour)
		k.put(k.delivery(dead[0].Destination, "own"), d)
		later := k.compareList(store.Query{Destinations: []string{"later"}})
		noNews()
		for len(k.s.Changed()) > 0 {
			<-k.s.Changed()
		}
		for _, d := range dead {
			for range k.s.Heads(k.ctx, true) { // it holds no lock
				k.revive(d.Ref())
			}
			k.news(d.Destination)
		}
		noNews()
		for range k.s.CountByDestination(k.ctx) { // it holds no lock
			k.hasten(later[0].Ref())
		}
		k.news("later")
		k.compare()
	}},
	{"CountBytes", "Bytes is about what its waiting deliveries take in the store: their bodies, and up to 1 KB more for each.", func(k *kit) {
		const size = 10 << 10
		ds := k.deliveries("a", 8)
		for i := range ds {
			ds[i].Body = make([]byte, size)
			if i > 5 {
				ds[i].Key = "k" // so that the last one is behind another
			}
		}
		check := func(n int64) {
			for _, c := range all(k, k.s.CountByDestination(k.ctx, "a")) {
				if c.Bytes < n*size || c.Bytes > n*(size+1<<10) {
					k.Errorf("%d deliveries with bodies of %d bytes wait, and Bytes is %d", n, size, c.Bytes)
				}
			}
		}
		k.put(ds...)
		check(8)
		k.settle(store.Done, k.fetch(2, "a")...)
		k.settle(store.Bury, k.fetch(1, "a")...)
		k.settle(store.Retry, k.fetch(2, "a")...)
		check(5)
		k.restart()
		check(5)
	}},
	{"Now", "Now is the time by the clock of the store, kept to the microsecond.", func(k *kit) {
		at := k.s.Now()
		k.pass(k.unit)
		passed := k.s.Now().Sub(at)
		if !at.Equal(at.Truncate(time.Microsecond)) || passed < k.unit || k.traits.Bubble && passed > k.unit {
			k.Errorf("Now = %v, and %v later after %v, want no parts of a microsecond", at, passed, k.unit)
		}
	}},
}

var fullCases = []testCase{
	{"PutFull", "ErrQueueFull says that the store is at its bound, ErrTooLarge that ps is more than it can ever store at once. Put stores all of ps, or stores none and returns an error.", func(k *kit) {
		ds, body := k.deliveries("a", 1024), make([]byte, 80<<10)
		for i := range ds {
			ds[i].Body = body
		}
		if err := k.tryPut(k.ctx, puts(ds...)...); !errors.Is(err, store.ErrTooLarge) {
			k.Errorf("Put of 80 MB: %v, want ErrTooLarge", err)
		}
		k.compare()
		var err error
		for ; err == nil && len(ds) > 4; ds = ds[4:] {
			err = k.tryPut(k.ctx, puts(ds[:4]...)...)
		}
		if !errors.Is(err, store.ErrQueueFull) {
			k.Fatalf("Put of the last of 80 MB: %v, want ErrQueueFull", err)
		}
		for len(k.inOrder()) > 0 { // settling makes room, even if nothing more can be put
			k.settle(store.Done, k.fetch(64, "a")...)
		}
		k.put(ds[:4]...)
	}},
}
