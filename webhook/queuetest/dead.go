package queuetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// bury makes n dead letters, with four destinations, two types and three reasons. Two of them die
// at the same time, and the next two a minute later. The first two die now.
func bury(k *kit, n int) []webhook.DeadLetter {
	ds, names := k.many(4, (n+3)/4)
	ds = ds[:n]
	for i := range ds {
		ds[i].Destination, ds[i].Type, ds[i].User = names[i%4], fmt.Sprint("type-", i%2), fmt.Sprint("user-", i%3)
	}
	k.put(ds...)
	ss := settlements(k.s, webhook.Bury, k.fetch(n, names...)...)
	k.r.Shuffle(n, func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	at := k.s.Now()
	for i := range ss {
		ss[i].Reason = []webhook.Reason{webhook.ReasonExpired, webhook.ReasonRefused, webhook.ReasonAddress}[i%3]
		ss[i].At = at.Add(time.Duration(n-i-1) / 2 * time.Minute)
	}
	k.settleAll(ss...)
	return k.deadLetters(webhook.DeadFilter{})
}

var deadCases = []testCase{
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
				if err != nil {
					k.Fatalf("DeadLetter of what Dead yielded: %v", err)
				}
				equal(k, "DeadLetter", got, d)
			}
		}
		at := func(minutes int) time.Time { return letters[0].Died.Add(time.Duration(minutes) * time.Minute) }
		for _, f := range []webhook.DeadFilter{
			{}, {Destination: "d1"}, {Destination: "d9"}, {Type: "type-1"}, {Reason: webhook.ReasonRefused}, {User: "user-1"}, {ID: letters[7].ID}, {ID: "none"}, {User: "user-9"},
			{From: at(30)}, {From: at(1000)}, {To: at(30)}, {From: at(10), To: at(11)}, {From: at(10), To: at(10)},
			{From: at(3), To: at(90), Destination: "d2", Type: "type-0", Reason: webhook.ReasonExpired},
			{NewestFirst: true}, {NewestFirst: true, From: at(30)}, {NewestFirst: true, To: at(30)}, {NewestFirst: true, From: at(3), To: at(90), Destination: "d2"},
		} {
			want := k.deadLetters(f)
			for i := 0; i < len(want); i += 500 {
				equal(k, fmt.Sprintf("Dead(%+v) after number %d", f, i), all(k, k.s.Dead(k.ctx, f, want[i].Key)), want[i+1:])
			}
		}
		k.discard(letters[5].Key)
		if rest := all(k, k.s.Dead(k.ctx, webhook.DeadFilter{}, letters[5].Key)); len(rest) != 2094 || rest[0].Key != letters[6].Key {
			k.Errorf("Dead yields %d after the key of a discarded one, want 2094", len(rest))
		}
	}},
	{"Discard", "Discard removes the dead letters with these keys, and returns how many there were. DeadLetter returns ErrNoDeadLetter. The loop over Dead may call the store.", func(k *kit) {
		letters := bury(k, 300)
		one := letters[1].Key
		k.discard()
		k.discard(one, "no such key", letters[4].Key, one, "")
		k.restart()
		k.compare()
		for _, key := range []string{one, "", "no such key", strings.Repeat("0", len(one)), one[1:], one + "0"} {
			k.revive(key)
			if _, err := k.s.DeadLetter(k.ctx, key); !errors.Is(err, webhook.ErrNoDeadLetter) {
				k.Errorf("DeadLetter(%q): %v, want ErrNoDeadLetter", key, err)
			}
		}
		seen := 0
		for d, err := range k.s.Dead(k.ctx, webhook.DeadFilter{}, "") {
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
		if seen != 298 {
			k.Errorf("Dead yielded %d of 298, which were taken away meanwhile", seen)
		}
	}},
}

// historyCases test a store that is a webhook.History.
var historyCases = []testCase{
	{"History", "Delivered yields the kept deliveries that filter selects, the latest first. If after is the Key of a kept delivery, the list begins behind it. Counts include the kept deliveries, and Erase removes them like dead letters. It holds no lock between two yields.", func(k *kit) {
		k.keeps = true
		s := func() webhook.History { return k.s.(webhook.History) }
		ds, names := k.many(3, 200) // more than a store reads in one page
		for i := range ds {
			ds[i] = k.full(ds[i].Destination, ds[i].ID)
			ds[i].MessageID, ds[i].User = fmt.Sprint("message ", i), fmt.Sprint("user ", i%2)
		}
		k.put(ds...)
		ss := settlements(k.s, webhook.Done, k.fetch(200, names...)...)
		first := ss[0].At
		at := func(minutes int) time.Time { return first.Add(time.Duration(minutes) * time.Minute) }
		for i, p := range k.r.Perm(len(ss)) {
			ss[p].At = at(i)
		}
		k.settleAll(ss...)
		for range 2 {
			k.compare()
			letters := k.history(webhook.DeliveredFilter{})
			equal(k, "Delivered after number 300", all(k, s().Delivered(k.ctx, webhook.DeliveredFilter{}, letters[300].Key)), letters[301:])
			for _, f := range []webhook.DeliveredFilter{
				{Destination: "d1"}, {MessageID: "message 17"}, {User: "user 1"}, {User: "nobody"}, {From: at(590)}, {To: at(9)}, {From: at(20), To: at(100), Destination: "d2"},
			} {
				k.history(f)
			}
			k.restart()
		}
		for range s().Delivered(k.ctx, webhook.DeliveredFilter{}, "") {
			k.erase("user 0")
			break
		}
		k.compare()
	}},
}
