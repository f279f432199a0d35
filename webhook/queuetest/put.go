package queuetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hookferry/analytics/webhook"
)

// outside lists functions. Each makes one field of a delivery exceed its limits.
var outside = []func(*webhook.Delivery){
	func(d *webhook.Delivery) { d.Tries = -1 },
	func(d *webhook.Delivery) { d.Attempts = []webhook.Attempt{{Try: -1}} },
	func(d *webhook.Delivery) { d.Attempts = []webhook.Attempt{{Status: -1}} },
	func(d *webhook.Delivery) { d.Attempts = make([]webhook.Attempt, webhook.MaxAttempts+1) },
	func(d *webhook.Delivery) { d.Closed = make([]webhook.Closed, webhook.MaxEndpoints+1) },
}

var putCases = []testCase{
	{"Put", "Put stores all of ps. It returns once the deliveries would survive the loss of the process. Body is the request body, exactly as it is signed and sent. No method keeps its arguments.", func(k *kit) {
		ds := k.deliveries("a", 8)
		for i, n := range []int{0, 1, 4095, 4096, 4097, 32 << 10, 64 << 10, 1 << 20} {
			ds[i].Body = []byte(strings.Repeat("0123456789abcdef", n/16+1)[:n])
		}
		k.put(append(ds, k.full("b", "1"), webhook.Delivery{Destination: "c", ID: "1", Due: k.s.Now()})...)
		k.put()
		for range 2 {
			k.settle(webhook.Return, k.fetch(10, "a", "b", "c")...)
			k.restart()
		}
	}},
	{"PutLimits", "A delivery outside the limits of its fields is an error. Put stores all of ps, or stores none and returns an error.", func(k *kit) {
		long := strings.Repeat("x", 256)
		bad := []webhook.Delivery{
			{ID: "1"}, {Destination: "a"}, {Destination: long, ID: "1"}, {Destination: "a", ID: long},
			{Destination: "a", ID: "1", MessageID: long}, {Destination: "a", ID: "1", Source: long},
			{Destination: "a", ID: "1", User: long}, {Destination: "a", ID: "1", Event: long},
		}
		for _, change := range outside {
			d := k.delivery("a", "1")
			change(&d)
			bad = append(bad, d)
		}
		for _, d := range bad {
			d.Due = k.s.Now()
			if _, err := tryPut(k.ctx, k.s, puts(k.delivery("a", "good"), d)...); err == nil {
				k.Errorf("Put returned no error: %.200s", fmt.Sprint(d))
			}
		}
		k.compare()
		most := k.full(long[1:], long[1:])
		most.MessageID, most.Source, most.User, most.Event = long[1:], long[1:], long[1:], long[1:]
		k.put(most, k.delivery("a", "good"))
		k.fetch(1, "a", long[1:])
	}},
	{"PutNoDedup", "NoDedup stores the delivery even if it was put before. The store does not remember this put.", func(k *kit) {
		d := k.delivery("a", "1")
		for i, noDedup := range []bool{true, true, false, false, true, false} {
			k.putAll(webhook.Put{Delivery: k.delivery("a", fmt.Sprint("before ", i))}, webhook.Put{Delivery: d, NoDedup: noDedup},
				webhook.Put{Delivery: k.delivery("a", fmt.Sprint("behind ", i)), Keep: true}, webhook.Put{Delivery: k.delivery("b", fmt.Sprint(i)), NoDedup: true})
			k.restart()
			k.settle(webhook.Done, k.fetch(10, "a", "b")...)
			if i%2 == 0 {
				k.restart()
			}
		}
		k.compare()
	}},
	{"PutLeavesOutRepeats", "Put leaves out a delivery if one with the same Destination and ID was put before, or is earlier in ps. Within these bounds it remembers a put after a restart and after the delivery has been settled.", func(k *kit) {
		ds := []webhook.Delivery{k.delivery("a", "1"), k.delivery("a", "2"), k.delivery("b", "1")}
		k.put(ds[0], ds[2], ds[0])
		k.put(ds[:2]...)
		got := k.fetch(10, "a", "b")
		k.put(ds...)
		for i, d := range got {
			k.settle(verdicts[i], d)
		}
		for range 3 {
			k.put(ds...)
			k.restart()
		}
		k.put(k.delivery("a", "12"), k.delivery("a1", "2"), k.delivery("A", "1"))
	}},
	{"PutKeeps", "Where ps[i].Keep is set, the store may claim the delivery for the caller. It may decline. All claims end with Close.", func(k *kit) {
		ps := puts(append(k.deliveries("a", 4), k.full("a", "full"))...)
		for i := range ps {
			ps[i].Keep = i%2 == 0
		}
		kept := k.putAll(append(ps[:4], ps[0], ps[4])...)
		k.fetch(10, "a")
		k.settle(webhook.Return, kept...)
		k.fetch(10, "a")
		k.putAll(webhook.Put{Delivery: k.delivery("a", "late"), Keep: true})
		k.restart()
		k.compare()
		k.fetch(10, "a")
	}},
	{"PutCancelledAtAnyMoment", "After an error nothing is claimed, even if the error came too late and some of ps are stored.", func(k *kit) {
		const n = 200
		for i, d := range k.deliveries("a", n) {
			ctx, cancel := context.WithCancel(k.ctx)
			go cancel()
			out, err := tryPut(ctx, k.s, webhook.Put{Delivery: d, Keep: true})
			switch {
			// The cancelled Put may have stored the delivery or not. If it did not, this Put
			// stores it.
			case errors.Is(err, context.Canceled):
				if _, err := tryPut(k.ctx, k.s, webhook.Put{Delivery: d}); err != nil {
					k.Fatal(err)
				}
			case err != nil || !out[0].Stored:
				k.Fatalf("Put of number %d = %v, %v", i, out, err)
			default:
				d.Claim = out[0].Claim
			}
			k.hold(d)
		}
		k.fetch(n, "a")
		k.compare()
	}},
}

// fullCases test a store with a bound.
var fullCases = []testCase{
	{"PutFull", "ErrQueueFull says that the store is at its bound, ErrTooLarge that ps is more than it can ever store at once. Put stores all of ps, or stores none and returns an error.", func(k *kit) {
		ds := k.deliveries("a", 80)
		body := make([]byte, 1<<20)
		for i := range ds {
			ds[i].Body = body
		}
		if _, err := tryPut(k.ctx, k.s, puts(ds...)...); !errors.Is(err, webhook.ErrTooLarge) {
			k.Errorf("Put of 80 MB: %v, want ErrTooLarge", err)
		}
		k.compare()
		k.put(ds[0])
		const size = 64 << 10
		var err error
		for i := 0; err == nil && i <= 64<<20/size; i += 4 {
			ds = k.deliveries("a", 4)
			for j := range ds {
				ds[j].ID, ds[j].Body = fmt.Sprint(i+j), body[:size]
			}
			if _, err = tryPut(k.ctx, k.s, puts(ds...)...); err == nil {
				for _, d := range ds {
					k.hold(d)
				}
			}
		}
		if !errors.Is(err, webhook.ErrQueueFull) {
			k.Fatalf("Put with %d bodies of %d bytes stored: %v, want ErrQueueFull", len(k.held), size, err)
		}
		for len(k.held) > 0 { // settling makes room, even if nothing more can be put
			k.settle(webhook.Done, k.fetch(64, "a")...)
		}
		k.put(ds...)
	}},
}
