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
			if err := k.tryPut(k.ctx, puts(k.delivery("a", "good"), d)...); err == nil {
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
		for i, noDedup := range []bool{true, true, false, false, true, false} {
			ps := puts(k.delivery("a", fmt.Sprint("before ", i)), k.delivery("a", "1"), k.delivery("a", fmt.Sprint("behind ", i)), k.delivery("b", fmt.Sprint(i)))
			ps[1].NoDedup, ps[2].Keep, ps[3].NoDedup = noDedup, true, true
			if err := k.tryPut(k.ctx, ps...); err != nil {
				k.Fatal(err)
			}
			k.restart()
			k.settle(webhook.Done, k.fetch(10, "a", "b")...)
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
			err := k.tryPut(ctx, webhook.Put{Delivery: d, Keep: true})
			if errors.Is(err, context.Canceled) {
				// That Put has stored the delivery or not. If it did not, this one does.
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
}

// fullCases test a store with a bound.
var fullCases = []testCase{
	{"PutFull", "ErrQueueFull says that the store is at its bound, ErrTooLarge that ps is more than it can ever store at once. Put stores all of ps, or stores none and returns an error.", func(k *kit) {
		ds, body := k.deliveries("a", 1024), make([]byte, 80<<10)
		for i := range ds {
			ds[i].Body = body
		}
		if err := k.tryPut(k.ctx, puts(ds...)...); !errors.Is(err, webhook.ErrTooLarge) {
			k.Errorf("Put of 80 MB: %v, want ErrTooLarge", err)
		}
		k.compare()
		var err error
		for ; err == nil && len(ds) > 4; ds = ds[4:] {
			err = k.tryPut(k.ctx, puts(ds[:4]...)...)
		}
		if !errors.Is(err, webhook.ErrQueueFull) {
			k.Fatalf("Put of the last of 80 MB: %v, want ErrQueueFull", err)
		}
		for len(k.inOrder()) > 0 { // settling makes room, even if nothing more can be put
			k.settle(webhook.Done, k.fetch(64, "a")...)
		}
		k.put(ds[:4]...)
	}},
}
