package queuetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var putCases = []testCase{
	{"PutStoresAllFields", "Put stores all of ps, and sets out[i] for each ps[i].", 0, func(k *kit) {
		want := []webhook.Delivery{k.full("a", "1"), k.delivery("b", "1"), {Destination: "c", ID: "1", Due: k.s.Now()}}
		k.put(want...)
		k.same("Fetch", append(append(k.fetch(1, "a"), k.fetch(1, "b")...), k.fetch(1, "c")...), want...)
		k.put()
	}},
	{"PutIsDurable", "It returns once they would survive the loss of the process.", durable, func(k *kit) {
		a, b, later := k.full("a", "1"), k.full("a", "2"), k.delivery("a", "3")
		b.Due = a.Due.Add(time.Millisecond)
		later.Due = k.s.Now().Add(time.Hour)
		k.put(b, later)
		k.put(a)
		k.reopen()
		k.same("Fetch after reopening", k.fetch(10, "a"), a, b)
		k.next("a", false, later.Due)
	}},
	{"PutLimits", "A delivery outside the limits of its fields is an error.", 0, func(k *kit) {
		long := strings.Repeat("x", 256)
		due := k.s.Now()
		for _, bad := range []webhook.Delivery{
			{Destination: "", ID: "1"}, {Destination: "a", ID: ""}, {Destination: long, ID: "1"}, {Destination: "a", ID: long},
			{Destination: "a", ID: "2", MessageID: long}, {Destination: "a", ID: "2", Source: long},
			{Destination: "a", ID: "2", User: long}, {Destination: "a", ID: "2", Event: long},
			{Destination: "a", ID: "2", Attempts: make([]webhook.Attempt, webhook.MaxAttempts+1)},
			{Destination: "a", ID: "2", Closed: make([]webhook.Closed, webhook.MaxEndpoints+1)},
			{Destination: "a", ID: "2", Tries: -1},
			{Destination: "a", ID: "2", Attempts: []webhook.Attempt{{Try: -1}}},
			{Destination: "a", ID: "2", Attempts: []webhook.Attempt{{Status: -1}}},
		} {
			bad.Due = due
			if n, err := tryPut(k.ctx, k.s, k.delivery("a", "good"), bad); err == nil {
				k.Errorf("Put(%d bytes of destination, %d of id, %d closed, %d tries, attempts %+v) stored %d, want an error",
					len(bad.Destination), len(bad.ID), len(bad.Closed), bad.Tries, bad.Attempts, n)
			}
		}
		k.fetchNone("every Put failed", "a")
		most := k.full(long[1:], long[1:])
		most.MessageID, most.Source, most.User, most.Event = long[1:], long[1:], long[1:], long[1:]
		k.put(most, k.delivery("a", "good"))
		k.same("Fetch", k.fetch(1, long[1:]), most)
		k.fetchOne("a")
	}},
	{"PutLargeBodies", "Body is the request body, exactly as it is signed and sent.", 0, func(k *kit) {
		ds := k.deliveries("a", 8)
		for i, n := range []int{0, 1, 4095, 4096, 4097, 32 << 10, 64 << 10, 1 << 20} {
			ds[i].Body = []byte(strings.Repeat("0123456789abcdef", n/16+1)[:n])
		}
		k.put(ds...)
		k.same("Fetch", k.fetch(100, "a"), ds...)
	}},
	{"PutLeavesOutRepeats", "A delivery whose Destination and ID are those of one put before, or earlier in ps, is left out.", 0, func(k *kit) {
		a1, a2, b1 := k.delivery("a", "1"), k.delivery("a", "2"), k.delivery("b", "1")
		out := make([]webhook.Result, 3)
		if err := k.s.Put(k.ctx, puts(a1, b1, a1), out); err != nil || !out[0].Stored || !out[1].Stored || out[2].Stored {
			k.Fatalf("Put of two, and one of them again = %v, %v", out, err)
		}
		k.repeats("while one waits", 1, a1, a2)
		ds := k.fetch(10, "a", "b")
		k.repeats("while they are claimed", 0, a1, b1, a2)
		k.settle(webhook.Done, ds[0])
		k.settle(webhook.Retry, ds[1])
		k.settle(webhook.Bury, ds[2])
		k.repeats("after they were settled", 0, a1, b1, a2)
		k.repeats("with ids like theirs", 3, k.delivery("a", "12"), k.delivery("a1", "2"), k.delivery("A", "1"))
	}},
	{"PutRemembersAcrossRestart", "Within these bounds it remembers them after a restart and after the delivery has been settled.", durable, func(k *kit) {
		ds := k.deliveries("a", 4)
		k.put(ds[:3]...)
		k.settle(webhook.Done, k.fetch(1, "a")...)
		k.reopen()
		k.repeats("after a restart", 1, ds...)
		k.reopen()
		k.repeats("after two", 0, ds...)
	}},
	{"PutConcurrentRepeats", "A delivery whose Destination and ID are those of one put before is left out. All methods may be called concurrently.", 0, func(k *kit) {
		var stored atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 20 {
					n, err := tryPut(k.ctx, k.s, k.delivery("a", fmt.Sprint(i)), k.delivery("b", fmt.Sprint(i)))
					if err != nil {
						k.Errorf("Put: %v", err)
					}
					stored.Add(int64(n))
				}
			})
		}
		wg.Wait()
		if got, fetched := stored.Load(), len(k.fetch(1000, "a", "b")); got != 40 || fetched != 40 {
			k.Errorf("Put stored %d and Fetch returned %d of 40 different deliveries", got, fetched)
		}
	}},
	{"PutKeeps", "Where ps[i].Keep is set, the store may claim the delivery for the caller. It may decline.", 0, func(k *kit) {
		ds := append(k.deliveries("a", 4), k.full("a", "full"))
		ps := puts(append(ds, ds[0])...)
		for _, i := range []int{0, 2, 4, 5} {
			ps[i].Keep = true
		}
		out := make([]webhook.Result, len(ps))
		if err := k.s.Put(k.ctx, ps, out); err != nil || out[1].Claim != 0 || out[3].Claim != 0 || out[5] != (webhook.Result{}) {
			k.Fatalf("Put = %v, %v", out, err)
		}
		var kept, want []webhook.Delivery
		for i, d := range ds {
			if d.Claim = out[i].Claim; d.Claim != 0 {
				kept = append(kept, d)
			} else {
				want = append(want, d)
			}
		}
		k.sameSet("Fetch of what was not kept", k.fetch(10, "a"), want...)
		k.settle(webhook.Return, kept...)
		k.sameSet("Fetch of what was kept", k.fetch(10, "a"), kept...)
	}},
	{"PutKeepsNothing", "No method keeps its arguments or anything that they refer to.", 0, func(k *kit) {
		want := k.full("a", "1")
		ps := puts(want)
		spoiled := &ps[0].Delivery
		spoiled.Body, spoiled.Closed, spoiled.Attempts = append([]byte(nil), want.Body...), append([]webhook.Closed(nil), want.Closed...), append([]webhook.Attempt(nil), want.Attempts...)
		if err := k.s.Put(k.ctx, ps, make([]webhook.Result, 1)); err != nil {
			k.Fatal(err)
		}
		spoil(spoiled)
		ps[0] = webhook.Put{}
		k.same("Fetch", k.fetch(1, "a"), want)
	}},
	{"PutCancelledAtAnyMoment", "After an error nothing is claimed, even if the error came too late and some of ps are stored.", 0, func(k *kit) {
		ds := k.deliveries("a", 200)
		kept := make(map[string]bool)
		for _, d := range ds {
			ctx, cancel := context.WithCancel(k.ctx)
			go cancel()
			out := make([]webhook.Result, 1)
			err := k.s.Put(ctx, []webhook.Put{{Delivery: d, Keep: true}}, out)
			if err == nil && !out[0].Stored || err != nil && !errors.Is(err, context.Canceled) {
				k.Fatalf("Put = %v, %v", out, err)
			}
			if err != nil { // it may be stored or not; now it is
				if _, err := tryPut(k.ctx, k.s, d); err != nil {
					k.Fatal(err)
				}
			} else if out[0].Claim != 0 {
				kept[d.ID] = true
			}
		}
		got := k.fetch(1000, "a")
		for _, d := range got {
			if kept[d.ID] {
				k.Errorf("Fetch returned %s, which Put has kept", d.ID)
			}
		}
		if len(got)+len(kept) != len(ds) {
			k.Errorf("%d were kept and %d fetched, of %d", len(kept), len(got), len(ds))
		}
	}},
	{"PutFull", "ErrQueueFull says that the store is at its bound. Put stores all of ps, or none and an error.", openFull, func(k *kit) {
		k.close()
		k.open, k.dir = k.traits.OpenFull, k.TempDir()
		k.reopen()
		body := []byte(strings.Repeat("x", 64<<10))
		var ds []webhook.Delivery
		var err error
		stored := 0
		for i := 0; err == nil; i++ {
			ds = k.deliveries("a", 4)
			for j := range ds {
				ds[j].ID, ds[j].Body = fmt.Sprint(i, "-", j), body
			}
			if stored > 64<<20/len(body) {
				k.Fatalf("the store took %d bodies of %d bytes", stored, len(body))
			}
			if _, err = tryPut(k.ctx, k.s, ds...); err == nil {
				stored += 4
			}
		}
		if !errors.Is(err, webhook.ErrQueueFull) {
			k.Fatalf("Put: %v, want ErrQueueFull", err)
		}
		// Settling makes room, even where nothing more can be put.
		for n := 0; n < stored; {
			got := k.fetch(64, "a")
			if len(got) == 0 {
				k.Fatalf("Fetch returned %d of %d", n, stored)
			}
			k.settle(webhook.Done, got...)
			n += len(got)
		}
		k.fetchNone("all that was stored is done", "a")
		k.repeats("that were refused before", 4, ds...)
	}},
	{"PutTooLarge", "ErrTooLarge says that ps is more than it can ever store at once.", openFull, func(k *kit) {
		k.close()
		k.open, k.dir = k.traits.OpenFull, k.TempDir()
		k.reopen()
		ds := k.deliveries("a", 80)
		body := make([]byte, 1<<20)
		for i := range ds {
			ds[i].Body = body
		}
		if _, err := tryPut(k.ctx, k.s, ds...); !errors.Is(err, webhook.ErrTooLarge) && !(k.traits.Mixed && errors.Is(err, webhook.ErrQueueFull)) {
			k.Errorf("Put of 80 MB: %v, want ErrTooLarge", err)
		}
		k.fetchNone("Put failed", "a")
		k.repeats("after they were too large together", 1, ds[0])
	}},
}

// spoil overwrites what d refers to.
func spoil(d *webhook.Delivery) {
	for i := range d.Body {
		d.Body[i] = '!'
	}
	for i := range d.Closed {
		d.Closed[i] = webhook.Closed{Endpoint: 99}
	}
	for i := range d.Attempts {
		d.Attempts[i] = webhook.Attempt{Error: "spoiled"}
	}
}
