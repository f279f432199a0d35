package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// bury makes n dead letters, with four destinations, two types and three reasons. Two of them die
// at the same time, and the next two a minute later. The first two die now.
func bury(k *kit, n int) []store.Ended {
	ds, names := k.many(4, (n+3)/4)
	ds = ds[:n]
	for i := range ds {
		ds[i].Destination, ds[i].Type, ds[i].User = names[i%4], fmt.Sprint("type-", i%2), fmt.Sprint("user-", i%3)
	}
	k.put(ds...)
	ss := settlements(k.s, store.Bury, k.fetch(n, names...)...)
	k.r.Shuffle(n, func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	at := k.s.Now()
	for i := range ss {
		ss[i].Reason = []store.Reason{store.ReasonExpired, store.ReasonRefused, store.ReasonAddress}[i%3]
		ss[i].At = at.Add(time.Duration(n-i-1) / 2 * time.Minute)
	}
	k.settleAll(ss...)
	return k.deadLetters(store.EndedFilter{})
}

var inspectorCases = []testCase{
	{"WaitingAndChange", "Waiting yields the waiting deliveries of a destination, including claimed ones, in the order of Due. If after is the ID of a delivery that waits, the list begins behind it. Otherwise the list begins with the first. It holds no lock between two yields. Change makes the given change to the waiting deliveries that filter selects, except claimed ones. It returns how many it has changed, and how many it has skipped because they are claimed.", func(k *kit) {
		ds := k.deliveries("a", 2100) // more than a store reads at once
		for i := range 1000 {
			ds[i].Expires = ds[i].Due.Add(time.Hour)
			ds[1100+i].Due, ds[1100+i].Event = ds[1100+i].Due.Add(time.Hour), fmt.Sprint("event ", i%3)
		}
		k.put(ds[900:]...)
		k.put(ds[:900]...)
		got := k.fetchWants(noLimit, store.Want{Destination: "a", Retries: true, Max: 10})
		k.compare()
		equalLists(k, "Waiting after a claimed one", all(k, k.s.Waiting(k.ctx, "a", got[4].ID)), ds[5:])
		n := 0
		for d, err := range k.s.Waiting(k.ctx, "a", "") {
			if err != nil || d.ID != ds[n].ID {
				k.Fatalf("Waiting yields %s, %v, want %s", d.ID, err, ds[n].ID)
			}
			k.settle(verdicts[n%2*2], got[n]) // Done or Bury
			if n++; n == 10 {
				break
			}
		}
		k.restart()
		for i := 10; i < 2100; i += 209 {
			equalLists(k, "Waiting after "+ds[i].ID, all(k, k.s.Waiting(k.ctx, "a", ds[i].ID)), ds[i+1:])
		}
		equalLists(k, "Waiting after one that is done", all(k, k.s.Waiting(k.ctx, "a", ds[8].ID)), ds[10:])
		k.change(store.WaitingFilter{Destination: "a", Event: "event 1"}, store.DueNow)
		k.change(store.WaitingFilter{Destination: "a"}, store.DueNow)
		k.fetch(20, "a")
		k.change(store.WaitingFilter{Destination: "a"}, store.Discarded)
		k.restart()
		k.compare()
	}},
	{"Errors", "An empty user is an error. A filter without a destination is an error.", func(k *kit) {
		k.put(k.full("a", "1"))
		if _, _, err := k.s.Erase(k.ctx, ""); err == nil {
			k.Error("Erase of no user is no error")
		}
		for f, to := range map[store.WaitingFilter]store.Change{{User: "user 1"}: store.DueNow, {Event: "Event of 1"}: store.Discarded, {Destination: "a"}: 0} {
			if _, _, err := k.s.Change(k.ctx, f, to); err == nil {
				k.Errorf("Change(%+v, %d) is no error", f, to)
			}
		}
		k.compare()
	}},
	{"Dead", "Dead yields the dead letters that filter selects, in the order in which they died, or the newest first with NewestFirst. If after is the Key of a dead letter, the list begins behind it. Key is printable, and the same until it is revived or discarded. DeadLetter returns the dead letter with this key.", func(k *kit) {
		letters := bury(k, 2100) // more than a store reads at once
		k.restart()
		k.compare()
		keys := make(map[string]bool)
		for i, d := range letters {
			if strings.Trim(d.Key, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:") != "" || d.Key == "" || keys[d.Key] {
				k.Errorf("the key %q is not plain text, or two dead letters have it", d.Key)
			}
			if keys[d.Key] = true; i%100 == 0 {
				got, err := k.s.DeadLetter(k.ctx, d.Key)
				if err != nil || !same(got, d) {
					k.Fatalf("DeadLetter = %+v, %v, want what Dead yielded: %+v", got, err, d)
				}
				k.number(&got.Delivery)
			}
		}
		at := func(minutes int) time.Time { return letters[0].At.Add(time.Duration(minutes) * time.Minute) }
		for _, f := range []store.EndedFilter{
			{}, {Destination: "d1"}, {Destination: "d9"}, {Type: "type-1"}, {Reason: store.ReasonRefused}, {User: "user-1"}, {ID: letters[7].ID}, {ID: "none"}, {User: "user-9"},
			{From: at(30)}, {From: at(1000)}, {To: at(30)}, {From: at(10), To: at(11)}, {From: at(10), To: at(10)},
			{From: at(3), To: at(90), Destination: "d2", Type: "type-0", Reason: store.ReasonExpired},
			{NewestFirst: true}, {NewestFirst: true, From: at(30)}, {NewestFirst: true, To: at(30)}, {NewestFirst: true, From: at(3), To: at(90), Destination: "d2"},
		} {
			want := k.deadLetters(f)
			for i := 0; i < len(want); i += 1000 {
				equalLists(k, fmt.Sprintf("Dead(%+v) after number %d", f, i), all(k, k.s.Dead(k.ctx, f, want[i].Key)), want[i+1:])
			}
		}
		k.discard(letters[5].Key)
		equalLists(k, "Dead after a discarded one", all(k, k.s.Dead(k.ctx, store.EndedFilter{}, letters[5].Key)), letters[6:])
	}},
	{"Discard", "Discard removes the dead letters with these keys, and returns how many there were. DeadLetter returns ErrNoDeadLetter. The loop over Dead may call the store.", func(k *kit) {
		letters := bury(k, 300)
		one := letters[1].Key
		k.discard(one)
		for _, key := range []string{one, "", "no such key", strings.Repeat("0", len(one)), one[1:], one + "0"} {
			k.revive(key)
			if _, err := k.s.DeadLetter(k.ctx, key); !errors.Is(err, store.ErrNoDeadLetter) {
				k.Errorf("DeadLetter(%q): %v, want ErrNoDeadLetter", key, err)
			}
		}
		seen := 0
		for d, err := range k.s.Dead(k.ctx, store.EndedFilter{}, "") {
			if err != nil {
				k.Fatal(err)
			}
			if seen++; seen%2 == 0 {
				k.revive(d.Key)
			} else {
				k.discard(d.Key)
			}
		}
		k.compare()
		if seen != 299 {
			k.Errorf("Dead yielded %d of 299, which were taken away meanwhile", seen)
		}
	}},
}

var historyCases = []testCase{
	{"History", "Delivered is Inspector.Dead for the kept deliveries, in the order in which they were delivered. A store with a History keeps a delivery with the Tries, Closed and Attempts of its settlement. Counts include the kept deliveries, and Erase removes them like dead letters. It holds no lock between two yields.", func(k *kit) {
		if k.keeps = k.s.(store.History).Keeps(); !k.keeps {
			k.Fatal("Keeps() = false")
		}
		ds, names := k.many(3, 200) // more than a store reads in one page
		for i := range ds {
			ds[i] = k.full(ds[i].Destination, ds[i].ID)
			ds[i].MessageID, ds[i].User = fmt.Sprint("message ", i), fmt.Sprint("user ", i%2)
		}
		k.put(ds...)
		ss := settlements(k.s, store.Done, k.fetch(200, names...)...)
		first := ss[0].At
		at := func(minutes int) time.Time { return first.Add(time.Duration(minutes) * time.Minute) }
		for i, p := range k.r.Perm(len(ss)) {
			ss[p].At = at(i)
			d := &ss[p].Delivery
			d.Tries++
			d.Attempts = append(slices.Clip(d.Attempts), store.Attempt{At: first, Took: store.Millis(i), Try: d.Tries, Endpoint: "https://example.com/a", Status: 200})
		}
		k.settleAll(ss...)
		for range 2 {
			k.compare()
			for _, f := range []store.EndedFilter{{}, {NewestFirst: true}} {
				kept := k.history(f)
				equalLists(k, "Delivered after number 300", all(k, k.s.(store.History).Delivered(k.ctx, f, kept[300].Key)), kept[301:])
			}
			for _, f := range []store.EndedFilter{
				{Destination: "d1"}, {ID: "message 17"}, {NewestFirst: true, From: at(20), To: at(100)}, {User: "user 1"}, {User: "nobody"}, {From: at(590)}, {To: at(9)}, {From: at(20), To: at(100), Destination: "d2"},
			} {
				k.history(f)
			}
			k.restart()
		}
		for range k.s.(store.History).Delivered(k.ctx, store.EndedFilter{}, "") {
			k.erase("user 0")
			break
		}
		k.compare()
	}},
}
