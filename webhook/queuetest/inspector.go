package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// bury makes n dead letters, with four destinations, two types and three reasons. Two of them die
// at the same time, and the next two a minute later. The first two die now.
func bury(k *kit, n int) []store.Record {
	ds, names := k.many(4, (n+3)/4)
	ds = ds[:n]
	for i := range ds {
		ds[i].Destination, ds[i].Type, ds[i].User = names[i%4], fmt.Sprint("type-", i%2), fmt.Sprint("user-", i%3)
		ds[i].Accepted = ds[i].Accepted.Add(-3 * time.Hour)
	}
	k.put(ds...)
	ss := settlements(k.s, store.Bury, k.fetch(n, names...)...)
	k.r.Shuffle(n, func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	at := k.s.Now()
	for i := range ss {
		ss[i].Reason = []store.Reason{store.ReasonExpired, store.ReasonRefused, store.ReasonBacklog}[i%3]
		ss[i].At = at.Add(time.Duration(n-i-1) / 2 * time.Minute)
	}
	k.settleAll(ss...)
	return k.compareList(store.Query{States: []store.State{store.StateDead}})
}

// get compares what Get returns with a record of a list.
func (k *kit) get(want store.Record) {
	got, err := k.s.Get(k.ctx, want.Ref())
	if err != nil || got.Seq != want.Seq || !same(got, want) {
		k.Fatalf("Get(%+v) = %+v, %v, want what List returned: %+v", want.Ref(), got, err, want)
	}
}

var inspectorCases = []testCase{
	{"List", "List returns a page of the deliveries that q selects, in every state, in the order of Seq, the newest first unless q.Oldest is set. The page begins behind the number after, or with the first delivery if after is 0. A delivery that changes its state keeps its place. Get returns a delivery, or ErrNoDelivery.", func(k *kit) {
		bury(k, 600)
		ds, names := k.many(4, 400) // more than a store reads at once
		for i := range ds {
			if d := &ds[i]; i%3 == 0 {
				*d = k.full(d.Destination, d.ID)
			}
			ds[i].ID, ds[i].Accepted = fmt.Sprint("new ", i), ds[i].Accepted.Add(-time.Duration(len(ds)-i)*time.Minute/16)
			ds[i].Type, ds[i].User = fmt.Sprintf("type.%d.%d", i%2, i%3), fmt.Sprint("user-", i%5)
		}
		for some := range slices.Chunk(ds, 3) { // within MaxSkew, as a store may number those of one Put in any order
			k.put(some...)
		}
		k.fetch(7, names...)
		at := func(minutes int) time.Time { return k.s.Now().Add(time.Duration(-minutes) * time.Minute) }
		filters := []store.Query{
			{}, {Oldest: true}, {Destinations: []string{"d1"}}, {Destinations: []string{"d9"}}, {Destinations: []string{"d2", "d9", "d0"}},
			{States: []store.State{store.StateDead}}, {States: []store.State{store.StateClaimed}}, {States: []store.State{store.StateWaiting, store.StateDead}, Oldest: true},
			{Type: "type.1.*"}, {Type: "type.1.2"}, {Type: "type"}, {Event: "Event of d1*"}, {Event: "none"}, {Reason: store.ReasonRefused}, {User: "user-1"}, {User: "user-9"},
			{ID: ds[0].MessageID}, {ID: ds[1].ID}, {ID: "none"},
			{From: at(30)}, {To: at(30)}, {From: at(60), To: at(30), Destinations: []string{"d0"}}, {From: at(60), To: at(30), Oldest: true}, {From: at(10), To: at(10)}, {From: at(-1)}, {To: at(1000)},
		}
		for range 2 {
			k.compare()
			for _, f := range filters {
				k.compareList(f)
			}
			k.restart()
		}
		all := k.list(store.Query{})
		for i := 0; i < len(all); i += 100 {
			k.get(all[i])
			page, _, err := k.s.List(k.ctx, store.Query{}, all[i].Seq, 10)
			if err != nil {
				k.Fatal(err)
			}
			equalLists(k, fmt.Sprintf("List behind number %d", i), page, all[i+1:min(i+11, len(all))])
		}
		var settled []store.Delivery
		page, next, err := k.s.List(k.ctx, store.Query{}, 0, 1000)
		if err != nil || len(page) != 1000 {
			k.Fatalf("List returned %d, %v", len(page), err)
		}
		settled = k.fetch(100, names...)
		k.settle(store.Bury, settled...) // changes states on both sides of the cursor
		rest, _, err := k.s.List(k.ctx, store.Query{}, next, 10_000)
		if err != nil {
			k.Fatal(err)
		}
		for i, r := range append(page, rest...) {
			if r.Seq != all[i].Seq {
				k.Fatalf("number %d of the list is %d, before it changed its state %d", i, r.Seq, all[i].Seq)
			}
		}
		gone := all[5].Ref()
		k.discard(gone)
		for _, ref := range []store.Ref{gone, {}, {Destination: "d0"}, {Destination: "none", Seq: all[7].Seq}, {Destination: all[7].Destination, Seq: all[0].Seq + 1000}} {
			if got, err := k.s.Get(k.ctx, ref); !errors.Is(err, store.ErrNoDelivery) {
				k.Errorf("Get(%+v) = %+v, %v, want ErrNoDelivery", ref, got, err)
			}
			k.hasten(ref)
			k.revive(ref)
			k.discard(ref)
		}
		k.compare()
	}},
	{"ListBounds", "MaxListed and MaxListSize bound what List looks at and returns, so a page may be short or empty though more follow.", func(k *kit) {
		big := k.deliveries("big", 30)
		for i := range big {
			big[i].Body = make([]byte, 300<<10)
			k.put(big[i])
		}
		for _, f := range []store.Query{{}, {Oldest: true}, {Destinations: []string{"big"}}} {
			page, next, err := k.s.List(k.ctx, f, 0, 1000)
			var size int64
			for i := range page {
				size += page[i].Size()
			}
			if err != nil || next == 0 || len(page) == 0 || size > store.MaxListSize {
				k.Errorf("List(%+v) returned %d deliveries with %d bytes, and then %d, %v", f, len(page), size, next, err)
			}
			k.compareList(f)
		}
		small := k.deliveries("small", store.MaxListed+1000)
		small[0].Type = "first"
		for some := range slices.Chunk(small, 500) {
			k.put(some...)
		}
		page, next, err := k.s.List(k.ctx, store.Query{Destinations: []string{"small"}, Type: "first"}, 0, 1000)
		if len(page) != 0 || next == 0 || err != nil {
			k.Errorf("a List that has to look at more than %d deliveries returned %d, and then %d, %v", store.MaxListed, len(page), next, err)
		}
		k.compareList(store.Query{Destinations: []string{"small"}, Type: "first"})
		k.compareList(store.Query{Type: "first"})
	}},
	{"HastenReviveDiscard", "Hasten, Revive and Discard may have any number of deliveries, in any state: Hasten leaves alone what does not wait, and Revive what is no dead letter. A waiting delivery that Hasten has made due, and a dead letter that Revive has made fresh, is handed out.", func(k *kit) {
		ds, names := k.many(3, 800) // more than a store reads at once
		for i := range ds {
			if ds[i].ID = fmt.Sprint("later ", i); i%2 == 0 {
				ds[i] = k.full(ds[i].Destination, ds[i].ID)
			}
			ds[i].Due = k.s.Now().Add(time.Hour)
		}
		k.put(ds...)
		bury(k, 300)
		k.restart()
		var retried, discarded []store.Ref
		for i, r := range k.compareList(store.Query{}) {
			switch i % 3 {
			case 0:
				retried = append(retried, r.Ref())
			case 1:
				discarded = append(discarded, r.Ref())
			}
		}
		k.discard(discarded...)
		k.hasten(retried...)
		k.compare()
		k.revive(retried...)
		k.discard(retried[:10]...) // of the dead letters nothing has these numbers any more
		k.restart()
		k.compare()
		k.fetch(10_000, append(names, "d3")...)
		k.compare()
	}},
	{"Errors", "An empty user is an error.", func(k *kit) {
		k.put(k.full("a", "1"))
		if _, _, err := k.s.Erase(k.ctx, ""); err == nil {
			k.Error("Erase of no user is no error")
		}
		k.compare()
	}},
}

var historyCases = []testCase{
	{"History", "A store with a History keeps a delivery with the Tries, Closed and Attempts of its settlement. List, Get and Counts include the kept deliveries, and Discard and Erase remove them like dead letters. Unkept counts the deliveries that this Store value has settled as Done and could not keep.", func(k *kit) {
		if k.keeps = k.s.(store.History).Keeps(); !k.keeps {
			k.Fatal("Keeps() = false")
		}
		ds, names := k.many(3, 200) // more than a store reads at once
		for i := range ds {
			ds[i] = k.full(ds[i].Destination, ds[i].ID)
			ds[i].MessageID, ds[i].User = fmt.Sprint("message ", i), fmt.Sprint("user ", i%2)
		}
		k.put(ds...)
		ss := settlements(k.s, store.Done, k.fetch(200, names...)...)
		first := ss[0].At
		for i, p := range k.r.Perm(len(ss)) {
			ss[p].At = first.Add(time.Duration(i) * time.Minute)
			d := &ss[p].Delivery
			d.Tries++
			d.Attempts = append(slices.Clip(d.Attempts), store.Attempt{At: first, Took: store.Millis(i), Try: d.Tries, Endpoint: "https://example.com/a", Status: 200})
		}
		k.settleAll(ss...)
		equal(k, "Unkept", k.s.(store.History).Unkept(), 0)
		for range 2 {
			k.compare()
			for _, f := range []store.Query{
				{States: []store.State{store.StateDelivered}}, {States: []store.State{store.StateDead}}, {Destinations: []string{"d1"}}, {ID: "message 17"},
				{User: "user 1"}, {User: "nobody"}, {From: ds[300].Accepted, Destinations: []string{"d2"}},
			} {
				k.compareList(f)
			}
			k.restart()
		}
		all := k.compareList(store.Query{})
		k.get(all[17])
		k.hasten(all[17].Ref())
		k.revive(all[17].Ref())
		k.discard(all[18].Ref(), all[19].Ref())
		k.erase("user 0")
		k.restart()
		k.compare()
	}},
}
