package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

var deadCases = []testCase{
	{
		name:     "BuryKeepsEverything",
		sentence: "Bury makes it a dead letter with its Attempts and the Reason. Died is when.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			d := full("a", "1")
			d.Attempts = nil
			k.put(d)
			leased := k.one(k.leaseBriefly(10))
			leased.Attempts = full("a", "1").Attempts
			at := now().Add(-time.Hour)
			want := leased
			want.Attempts = slices.Clone(leased.Attempts)
			s := webhook.Settlement{Verdict: webhook.Bury, Delivery: leased, Reason: webhook.ReasonRefused, At: at}
			if err := k.q.Settle(k.ctx, s); err != nil {
				k.Fatal(err)
			}
			leased.Attempts[0].Error = "spoiled"
			k.pass(k.traits.Lease)
			k.leaseNone("it is dead")
			check := func() {
				k.Helper()
				dead := k.dead(webhook.DeadFilter{}, "")
				if len(dead) != 1 {
					k.Fatalf("Dead yields %d, want 1", len(dead))
				}
				k.same("the dead letter", []webhook.Delivery{dead[0].Delivery}, want)
				if dead[0].Reason != webhook.ReasonRefused || !dead[0].Died.Equal(at) {
					k.Errorf("Dead: reason %q, died %v, want %q, %v", dead[0].Reason, dead[0].Died, webhook.ReasonRefused, at)
				}
			}
			check()
			if k.traits.Durable {
				k.reopen()
				check()
			}
		},
	},
	{
		name:     "DeadLetter",
		sentence: "DeadLetter returns the dead letter with this key, or ErrNoDeadLetter.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			k.bury(3, func(i int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now().Add(time.Duration(i) * time.Second)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			check := func(all ...webhook.DeadLetter) {
				k.Helper()
				for _, want := range all {
					got, err := k.letters().DeadLetter(k.ctx, want.Key)
					if diff := cmp.Diff(want, got, likeStored); err != nil || diff != "" {
						k.Errorf("DeadLetter of what Dead yielded: %v (-want +got)\n%s", err, diff)
					}
				}
			}
			missing := func(what string, keys ...string) {
				k.Helper()
				for _, key := range keys {
					if _, err := k.letters().DeadLetter(k.ctx, key); !errors.Is(err, webhook.ErrNoDeadLetter) {
						k.Errorf("DeadLetter of %s: %v, want ErrNoDeadLetter", what, err)
					}
				}
			}
			check(all...)
			missing("what is no key", "", "no such key", strings.Repeat("0", len(all[0].Key)), all[0].Key[1:], all[0].Key+"0")
			if k.traits.Durable {
				k.reopen()
				check(all...)
			}
			if n, err := k.letters().Revive(k.ctx, all[0].Key); n != 1 || err != nil {
				k.Fatalf("Revive = %d, %v", n, err)
			}
			if n, err := k.letters().Discard(k.ctx, all[1].Key); n != 1 || err != nil {
				k.Fatalf("Discard = %d, %v", n, err)
			}
			missing("one that was revived", all[0].Key)
			missing("one that was discarded", all[1].Key)
			check(all[2])
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			if _, err := k.letters().DeadLetter(ctx, all[2].Key); !errors.Is(err, context.Canceled) {
				k.Errorf("DeadLetter with a cancelled context: %v", err)
			}
		},
	},
	{
		name:     "DeadInOrder",
		sentence: "Dead yields the dead letters in the order they died, starting after the one whose Key is after. Key is printable, and the same until it is revived or discarded.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			k.bury(20, func(i int) webhook.Settlement {
				// The first dies last, and some at the same time.
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now().Add(-time.Duration(i/2) * time.Hour)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			if len(all) != 20 {
				k.Fatalf("Dead yields %d, want 20", len(all))
			}
			keys := map[string]bool{}
			for i, d := range all {
				if i > 0 && d.Died.Before(all[i-1].Died) {
					k.Errorf("the %d. died %v, the one before %v", i, d.Died, all[i-1].Died)
				}
				if strings.Trim(d.Key, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:") != "" || d.Key == "" {
					k.Errorf("the key %q is not plain text", d.Key)
				}
				keys[d.Key] = true
			}
			if len(keys) != 20 {
				k.Errorf("20 dead letters have %d keys", len(keys))
			}
			for i, d := range all {
				if diff := cmp.Diff(all[i+1:], k.dead(webhook.DeadFilter{}, d.Key), likeStored); diff != "" {
					k.Fatalf("Dead after the %d. (-want +got)\n%s", i, diff)
				}
			}
			if k.traits.Durable {
				k.reopen()
				if diff := cmp.Diff(all, k.dead(webhook.DeadFilter{}, ""), likeStored); diff != "" {
					k.Fatalf("Dead after reopening (-want +got)\n%s", diff)
				}
			}
			// One that is gone is still a place to start after.
			if n, err := k.letters().Discard(k.ctx, all[5].Key); n != 1 || err != nil {
				k.Fatalf("Discard = %d, %v", n, err)
			}
			if diff := cmp.Diff(all[6:], k.dead(webhook.DeadFilter{}, all[5].Key), likeStored); diff != "" {
				k.Fatalf("Dead after the key of a discarded one (-want +got)\n%s", diff)
			}
		},
	},
	{
		name:     "DeadFilter",
		sentence: "Dead yields the dead letters that filter selects.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			base := now()
			reasons := []webhook.Reason{webhook.ReasonExpired, webhook.ReasonRefused, webhook.ReasonAddress}
			k.bury(60, func(i int) webhook.Settlement {
				return webhook.Settlement{Reason: reasons[i%3], At: base.Add(time.Duration(i) * time.Minute)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			for _, f := range []webhook.DeadFilter{
				{Destination: "d1"},
				{Destination: "d9"},
				{Type: "type-1"},
				{Reason: webhook.ReasonRefused},
				{From: base.Add(30 * time.Minute)},
				{To: base.Add(30 * time.Minute)},
				{From: base.Add(10 * time.Minute), To: base.Add(11 * time.Minute)},
				{From: base.Add(10 * time.Minute), To: base.Add(10 * time.Minute)},
				{From: base.Add(3 * time.Minute), To: base.Add(40 * time.Minute), Destination: "d2", Type: "type-0", Reason: webhook.ReasonExpired},
			} {
				var want []webhook.DeadLetter
				for _, d := range all {
					if f.Match(&d) {
						want = append(want, d)
					}
				}
				if diff := cmp.Diff(want, k.dead(f, ""), likeStored); diff != "" {
					k.Errorf("Dead(%+v) (-want +got)\n%s", f, diff)
				}
				if len(want) > 2 {
					if diff := cmp.Diff(want[2:], k.dead(f, want[1].Key), likeStored); diff != "" {
						k.Errorf("Dead(%+v) after the second (-want +got)\n%s", f, diff)
					}
				}
			}
		},
	},
	{
		name:     "DeadMany",
		sentence: "Dead yields the dead letters that filter selects, in the order they died, also more of them than a store reads at once.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			const n = 2100
			base := now()
			k.bury(n, func(i int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: base.Add(time.Duration(i) * time.Second)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			if len(all) != n {
				k.Fatalf("Dead yields %d, want %d", len(all), n)
			}
			for i, d := range all {
				if want := fmt.Sprint("dead-", i); d.ID != want {
					k.Fatalf("the %d. is %s, want %s", i, d.ID, want)
				}
			}
			for _, tt := range []struct {
				filter webhook.DeadFilter
				after  int // how many that all has are passed over
				want   int
			}{
				{webhook.DeadFilter{}, 1050, n - 1050},
				{webhook.DeadFilter{Destination: "d1"}, 0, n / 4},
				{webhook.DeadFilter{From: all[n-3].Died}, 0, 3},
				{webhook.DeadFilter{Destination: "d9"}, 0, 0},
			} {
				after := ""
				if tt.after > 0 {
					after = all[tt.after-1].Key
				}
				if got := len(k.dead(tt.filter, after)); got != tt.want {
					k.Errorf("Dead(%+v) after %d yields %d, want %d", tt.filter, tt.after, got, tt.want)
				}
			}
		},
	},
	{
		name:     "DeadHoldsNoLock",
		sentence: "It holds no lock between two yields, so the loop may call the store.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			const n = 300
			k.bury(n, func(i int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now()}
			})
			seen := 0
			for d, err := range k.letters().Dead(k.ctx, webhook.DeadFilter{}, "") {
				if err != nil {
					k.Fatal(err)
				}
				do := k.letters().Discard
				if seen%2 == 0 {
					do = k.letters().Revive
				}
				if n, err := do(k.ctx, d.Key); n != 1 || err != nil {
					k.Fatalf("Revive or Discard of the one that was yielded = %d, %v", n, err)
				}
				if seen%50 == 0 {
					k.put(delivery("new", fmt.Sprint(seen)))
				}
				seen++
			}
			if seen != n {
				k.Errorf("Dead yielded %d, want %d", seen, n)
			}
			if left := k.dead(webhook.DeadFilter{}, ""); len(left) != 0 {
				k.Errorf("%d are left", len(left))
			}
			if got := len(k.lease(n)); got != n/2+n/50 {
				k.Errorf("Lease handed out %d, want %d revived and %d new", got, n/2, n/50)
			}
		},
	},
	{
		name:     "DeadStops",
		sentence: "An error ends it.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			k.bury(5, func(int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now()}
			})
			n := 0
			for range k.letters().Dead(k.ctx, webhook.DeadFilter{}, "") {
				n++
				break
			}
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			var errs []error
			for _, err := range k.letters().Dead(ctx, webhook.DeadFilter{}, "") {
				errs = append(errs, err)
			}
			if n != 1 || len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
				k.Errorf("Dead with a cancelled context yields %v, want context.Canceled once", errs)
			}
		},
	},
	{
		name:     "Revive",
		sentence: "Revive makes deliveries of the dead letters with these keys: due now, with the window not begun, no tries counted, no endpoint closed and their Attempts kept. It returns how many there were; a key that is not there is no error.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			want := full("a", "1")
			k.put(want)
			k.settle(webhook.Bury, k.leaseOne())
			k.bury(3, func(int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now().Add(time.Second)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			if n, err := k.letters().Revive(k.ctx); n != 0 || err != nil {
				k.Errorf("Revive() = %d, %v", n, err)
			}
			start := now()
			if n, err := k.letters().Revive(k.ctx, all[0].Key, "no such key", all[0].Key, ""); n != 1 || err != nil {
				k.Fatalf("Revive of one = %d, %v", n, err)
			}
			if n, err := k.letters().Revive(k.ctx, all[0].Key); n != 0 || err != nil {
				k.Errorf("Revive of one that was revived = %d, %v", n, err)
			}
			if k.traits.Durable {
				k.reopen()
			}
			d := k.leaseOne()
			if d.Due.Before(start) || d.Due.After(now()) {
				k.Errorf("it is due %v, want now %v", d.Due, start)
			}
			want.Due, want.Expires, want.Tries, want.Closed = d.Due, time.Time{}, 0, nil
			k.same("Lease", []webhook.Delivery{d}, want)
			if diff := cmp.Diff(all[1:], k.dead(webhook.DeadFilter{}, ""), likeStored); diff != "" {
				k.Errorf("what is still dead (-want +got)\n%s", diff)
			}
			k.repeats("after it was revived", 0, full("a", "1"))
			k.settle(webhook.Bury, d)
			if n := len(k.dead(webhook.DeadFilter{}, "")); n != 4 {
				k.Errorf("%d are dead after the revived one died again, want 4", n)
			}
		},
	},
	{
		name:     "Discard",
		sentence: "Discard forgets the dead letters with these keys, and returns how many there were.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			k.bury(6, func(i int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now().Add(time.Duration(i) * time.Second)}
			})
			all := k.dead(webhook.DeadFilter{}, "")
			if n, err := k.letters().Discard(k.ctx, all[1].Key, "no such key", all[4].Key, all[1].Key); n != 2 || err != nil {
				k.Fatalf("Discard of two = %d, %v", n, err)
			}
			if n, err := k.letters().Revive(k.ctx, all[1].Key); n != 0 || err != nil {
				k.Errorf("Revive of one that was discarded = %d, %v", n, err)
			}
			if k.traits.Durable {
				k.reopen()
			}
			want := []webhook.DeadLetter{all[0], all[2], all[3], all[5]}
			if diff := cmp.Diff(want, k.dead(webhook.DeadFilter{}, ""), likeStored); diff != "" {
				k.Errorf("what is left (-want +got)\n%s", diff)
			}
			k.leaseNone("they are dead")
		},
	},
	{
		name:     "DeadCancelled",
		sentence: "A cancelled call changes nothing.",
		needs:    []string{"DeadLetters"},
		run: func(k *kit) {
			k.bury(1, func(int) webhook.Settlement {
				return webhook.Settlement{Reason: webhook.ReasonExpired, At: now()}
			})
			key := k.dead(webhook.DeadFilter{}, "")[0].Key
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			if n, err := k.letters().Revive(ctx, key); n != 0 || !errors.Is(err, context.Canceled) {
				k.Errorf("Revive with a cancelled context = %d, %v", n, err)
			}
			if n, err := k.letters().Discard(ctx, key); n != 0 || !errors.Is(err, context.Canceled) {
				k.Errorf("Discard with a cancelled context = %d, %v", n, err)
			}
			if n := len(k.dead(webhook.DeadFilter{}, "")); n != 1 {
				k.Errorf("%d are dead, want 1", n)
			}
		},
	},
}

func (k *kit) letters() webhook.DeadLetters { return k.q.(webhook.DeadLetters) }

// dead returns what Dead yields.
func (k *kit) dead(filter webhook.DeadFilter, after string) []webhook.DeadLetter {
	k.Helper()
	var all []webhook.DeadLetter
	for d, err := range k.letters().Dead(k.ctx, filter, after) {
		if err != nil {
			k.Fatalf("Dead: %v", err)
		}
		all = append(all, d)
	}
	return all
}

// bury makes n dead letters, of four destinations and two types, as how says.
func (k *kit) bury(n int, how func(i int) webhook.Settlement) {
	k.Helper()
	ds := make([]webhook.Delivery, n)
	at := make(map[string]int)
	for i := range ds {
		ds[i] = delivery(fmt.Sprint("d", i%4), fmt.Sprint("dead-", i))
		ds[i].Type = fmt.Sprint("type-", i%2)
		at[ds[i].ID] = i
	}
	k.put(ds...)
	for len(at) > 0 {
		leased := k.lease(n)
		if len(leased) == 0 {
			k.Fatalf("%d deliveries were put and not handed out", len(at))
		}
		ss := make([]webhook.Settlement, len(leased))
		for i, d := range leased {
			ss[i] = how(at[d.ID])
			ss[i].Verdict, ss[i].Delivery = webhook.Bury, d
			delete(at, d.ID)
		}
		if err := k.q.Settle(k.ctx, ss...); err != nil {
			k.Fatalf("Settle: %v", err)
		}
	}
}
