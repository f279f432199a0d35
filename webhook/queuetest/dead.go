package queuetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// dead returns what Dead yields.
func (k *kit) dead(filter webhook.DeadFilter, after string) []webhook.DeadLetter {
	k.Helper()
	all, err := list(k.s.Dead(k.ctx, filter, after))
	if err != nil {
		k.Fatalf("Dead: %v", err)
	}
	return all
}

// bury makes n dead letters, of four destinations and two types. They die a minute apart,
// the first of them now, and their reasons are those given, in turns.
func (k *kit) bury(n int, reasons ...webhook.Reason) []webhook.DeadLetter {
	k.Helper()
	at := k.s.Now()
	ds := k.deliveries("d", n)
	of := make(map[string]int)
	for i := range ds {
		ds[i].Destination, ds[i].Type = fmt.Sprint("d", i%4), fmt.Sprint("type-", i%2)
		of[ds[i].ID] = i
	}
	k.put(ds...)
	ss := k.settlements(webhook.Bury, k.fetch(n, "d0", "d1", "d2", "d3")...)
	if len(ss) != n {
		k.Fatalf("Fetch returned %d of %d", len(ss), n)
	}
	for i := range ss {
		d := of[ss[i].Delivery.ID]
		ss[i].Reason, ss[i].At = reasons[d%len(reasons)], at.Add(time.Duration(d)*time.Minute)
	}
	k.settleAll(ss...)
	all := k.dead(webhook.DeadFilter{}, "")
	if len(all) < n {
		k.Fatalf("Dead yields %d of %d", len(all), n)
	}
	return all
}

// exhume calls Revive or Discard, and checks how many dead letters there were.
func (k *kit) exhume(do func(context.Context, ...string) (int, error), want int, keys ...string) {
	k.Helper()
	if n, err := do(k.ctx, keys...); n != want || err != nil {
		k.Fatalf("Revive or Discard of %q = %d, %v, want %d", keys, n, err, want)
	}
}

var deadCases = []testCase{
	{"DeadLetter", "DeadLetter returns the dead letter with this key, or ErrNoDeadLetter.", 0, func(k *kit) {
		all := k.bury(3, webhook.ReasonExpired)
		k.restart()
		for _, want := range all {
			got, err := k.s.DeadLetter(k.ctx, want.Key)
			if err != nil {
				k.Fatalf("DeadLetter of what Dead yielded: %v", err)
			}
			k.sameDead("DeadLetter", []webhook.DeadLetter{got}, want)
		}
		one := all[0].Key
		k.exhume(k.s.Revive, 1, one)
		k.exhume(k.s.Discard, 1, all[1].Key)
		for _, key := range []string{one, all[1].Key, "", "no such key", strings.Repeat("0", len(one)), one[1:], one + "0"} {
			if _, err := k.s.DeadLetter(k.ctx, key); !errors.Is(err, webhook.ErrNoDeadLetter) {
				k.Errorf("DeadLetter(%q): %v, want ErrNoDeadLetter", key, err)
			}
		}
	}},
	{"DeadInOrder", "Dead yields the dead letters in the order they died, from the one after the one whose Key is after. Key is printable, and the same until it is revived or discarded.", 0, func(k *kit) {
		k.put(k.deliveries("a", 20)...)
		ss := k.settlements(webhook.Bury, k.fetch(20, "a")...)
		for i := range ss { // the first dies last, and some at the same time
			ss[i].At = k.s.Now().Add(-time.Duration(i/2) * time.Hour)
		}
		k.settleAll(ss...)
		all := k.dead(webhook.DeadFilter{}, "")
		keys := make(map[string]bool)
		for i, d := range all {
			if i > 0 && d.Died.Before(all[i-1].Died) {
				k.Errorf("number %d died %v, the one before %v", i, d.Died, all[i-1].Died)
			}
			if strings.Trim(d.Key, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:") != "" || d.Key == "" {
				k.Errorf("the key %q is not plain text", d.Key)
			}
			keys[d.Key] = true
		}
		if len(keys) != 20 || len(all) != 20 {
			k.Fatalf("Dead yields %d with %d keys, want 20", len(all), len(keys))
		}
		for i, d := range all {
			k.sameDead(fmt.Sprint("Dead after number ", i), k.dead(webhook.DeadFilter{}, d.Key), all[i+1:]...)
		}
		k.restart()
		k.sameDead("Dead", k.dead(webhook.DeadFilter{}, ""), all...)
		k.exhume(k.s.Discard, 1, all[5].Key)
		k.sameDead("Dead after the key of a discarded one", k.dead(webhook.DeadFilter{}, all[5].Key), all[6:]...)
	}},
	{"DeadFilter", "Dead yields the dead letters that filter selects.", 0, func(k *kit) {
		all := k.bury(2100, webhook.ReasonExpired, webhook.ReasonRefused, webhook.ReasonAddress) // more than a store reads at once
		at := func(minutes int) time.Time { return all[0].Died.Add(time.Duration(minutes) * time.Minute) }
		for _, f := range []webhook.DeadFilter{
			{}, {Destination: "d1"}, {Destination: "d9"}, {Type: "type-1"}, {Reason: webhook.ReasonRefused},
			{From: at(30)}, {From: at(2000)}, {To: at(30)}, {From: at(10), To: at(11)}, {From: at(10), To: at(10)},
			{From: at(3), To: at(40), Destination: "d2", Type: "type-0", Reason: webhook.ReasonExpired},
		} {
			var want []webhook.DeadLetter
			for _, d := range all {
				if f.Match(&d) {
					want = append(want, d)
				}
			}
			k.sameDead(fmt.Sprintf("Dead(%+v)", f), k.dead(f, ""), want...)
			if len(want) > 2 {
				k.sameDead(fmt.Sprintf("Dead(%+v) after the second", f), k.dead(f, want[1].Key), want[2:]...)
			}
		}
	}},
	{"DeadHoldsNoLock", "It holds no lock between two yields, so the loop may call the store.", 0, func(k *kit) {
		const n = 300
		k.bury(n, webhook.ReasonExpired)
		seen := 0
		for d, err := range k.s.Dead(k.ctx, webhook.DeadFilter{}, "") {
			if err != nil {
				k.Fatal(err)
			}
			do := k.s.Discard
			if seen%2 == 0 {
				do = k.s.Revive
			}
			k.exhume(do, 1, d.Key)
			seen++
		}
		if left := len(k.dead(webhook.DeadFilter{}, "")); seen != n || left != 0 {
			k.Errorf("Dead yielded %d of %d, and %d are left", seen, n, left)
		}
		k.counts(n/2, 0, 0)
	}},
	{"Revive", "Revive makes fresh deliveries of the dead letters with these keys: due now, with no tries counted, no endpoint closed and their Attempts kept. It returns how many there were; a key that is not there is no error.", 0, func(k *kit) {
		want := k.full("a", "1")
		k.put(want)
		k.settle(webhook.Bury, k.fetchOne("a"))
		one := k.dead(webhook.DeadFilter{}, "")[0].Key
		k.bury(3, webhook.ReasonExpired)
		k.exhume(k.s.Revive, 0)
		start := k.s.Now()
		k.exhume(k.s.Revive, 1, one, "no such key", one, "")
		k.exhume(k.s.Revive, 0, one)
		end := k.s.Now()
		k.restart()
		got, _ := k.fetchQueue("a", false, 10)
		if len(got) != 1 || got[0].Due.Before(start) || got[0].Due.After(end) {
			k.Fatalf("Fetch = %+v, want one that is due between %v and %v", got, start, end)
		}
		want.Due, want.Expires, want.Tries, want.Closed = got[0].Due, time.Time{}, 0, nil
		k.same("Fetch", got, want)
		k.repeats("after it was revived", 0, k.full("a", "1"))
		k.settle(webhook.Bury, got...)
		if n := len(k.dead(webhook.DeadFilter{}, "")); n != 4 {
			k.Errorf("%d are dead after the revived one died again, want 4", n)
		}
	}},
	{"Discard", "Discard forgets the dead letters with these keys, and returns how many there were.", 0, func(k *kit) {
		all := k.bury(6, webhook.ReasonExpired)
		k.exhume(k.s.Discard, 2, all[1].Key, "no such key", all[4].Key, all[1].Key)
		k.exhume(k.s.Revive, 0, all[1].Key)
		k.restart()
		k.sameDead("Dead", k.dead(webhook.DeadFilter{}, ""), all[0], all[2], all[3], all[5])
		k.fetchNone("they are dead", "d0", "d1", "d2", "d3")
	}},
}
