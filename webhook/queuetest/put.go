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
	{
		name:     "PutStoresAllFields",
		sentence: "Put stores ds. Put returns how many of ds were stored.",
		run: func(k *kit) {
			ds := []webhook.Delivery{full("a", "1"), delivery("b", "1"), {Destination: "c", ID: "1"}}
			k.put(ds...)
			for range ds {
				d := k.lease(1)
				switch d[0].Destination {
				case "a":
					k.same("Lease", d, ds[0])
				case "b":
					k.same("Lease", d, ds[1])
				default:
					k.same("Lease", d, ds[2])
				}
			}
			k.leaseNone("all are leased")
		},
	},
	{
		name:     "PutOfNothing",
		sentence: "Put returns how many of ds were stored.",
		run: func(k *kit) {
			if n, err := k.q.Put(k.ctx); n != 0 || err != nil {
				k.Fatalf("Put() = %d, %v, want 0, nil", n, err)
			}
		},
	},
	{
		name:     "PutIsDurable",
		sentence: "Put stores ds and returns once they would survive the loss of the process.",
		needs:    []string{"Durable"},
		run: func(k *kit) {
			a, b := full("a", "1"), delivery("a", "2")
			b.Due = a.Due.Add(time.Millisecond)
			later := delivery("a", "3")
			later.Due = now().Add(time.Hour)
			k.put(b, later)
			k.put(a)
			k.reopen()
			ds, next := k.leaseNext(webhook.LeaseRequest{Max: 10, Until: time.Now().Add(2 * time.Hour)})
			k.same("Lease after reopening", ds, a, b)
			if !next.Equal(later.Due) {
				k.Errorf("next = %v after reopening, want %v", next, later.Due)
			}
		},
	},
	{
		name:     "PutLimits",
		sentence: "A delivery outside the limits of its fields is an error.",
		run: func(k *kit) {
			long := strings.Repeat("x", 256)
			for _, bad := range []webhook.Delivery{
				{Destination: "", ID: "1"}, {Destination: "a", ID: ""},
				{Destination: long, ID: "1"}, {Destination: "a", ID: long},
				{Destination: "a", ID: "2", MessageID: long}, {Destination: "a", ID: "2", Source: long},
				{Destination: "a", ID: "2", User: long}, {Destination: "a", ID: "2", Event: long},
				{Destination: "a", ID: "2", Attempts: make([]webhook.Attempt, webhook.MaxAttempts+1)},
				{Destination: "a", ID: "2", Closed: make([]webhook.Closed, webhook.MaxEndpoints+1)},
				{Destination: "a", ID: "2", Tries: -1},
				{Destination: "a", ID: "2", Attempts: []webhook.Attempt{{Try: -1}}},
				{Destination: "a", ID: "2", Attempts: []webhook.Attempt{{Status: -1}}},
			} {
				if n, err := k.q.Put(k.ctx, delivery("a", "good"), bad); n != 0 || err == nil {
					k.Errorf("Put(%+v) = %d, %v, want an error", bad, n, err)
				}
			}
			k.leaseNone("every Put failed")
			most := full(long[1:], long[1:])
			most.MessageID, most.Source, most.User, most.Event = long[1:], long[1:], long[1:], long[1:]
			k.put(most, delivery("a", "good"))
			for range 2 {
				if d := k.lease(1)[0]; d.Destination != "a" {
					k.same("Lease", []webhook.Delivery{d}, most)
				}
			}
		},
	},
	{
		name:     "PutLargeBodies",
		sentence: "Body is the request body, exactly as it is signed and sent.",
		run: func(k *kit) {
			var ds []webhook.Delivery
			for i, n := range []int{0, 1, 4095, 4096, 4097, 32 << 10, 64 << 10, 1 << 20} {
				d := delivery("a", fmt.Sprint(n))
				d.Due = d.Due.Add(time.Duration(i) * time.Microsecond)
				d.Body = []byte(strings.Repeat("0123456789abcdef", n/16+1)[:n])
				ds = append(ds, d)
			}
			k.put(ds...)
			k.same("Lease", k.lease(100), ds...)
		},
	},
	{
		name:     "PutLeavesOutRepeats",
		sentence: "A delivery whose Destination and ID are those of one put before, or earlier in ds, is left out.",
		run: func(k *kit) {
			k.repeats("in one call", 2, delivery("a", "1"), delivery("b", "1"), delivery("a", "1"))
			k.repeats("while it waits", 1, delivery("a", "1"), delivery("a", "2"))
			ds := k.lease(10)
			k.repeats("while it is leased", 0, delivery("a", "1"), delivery("b", "1"), delivery("a", "2"))
			k.settle(webhook.Done, ds[0])
			k.settle(webhook.Retry, ds[1])
			k.settle(webhook.Bury, ds[2])
			k.repeats("after it was settled", 0, delivery("a", "1"), delivery("b", "1"), delivery("a", "2"))
			k.repeats("ids are told apart", 3, delivery("a", "12"), delivery("a1", "2"), delivery("A", "1"))
		},
	},
	{
		name:     "PutRemembersAcrossRestart",
		sentence: "Within these bounds it remembers them after a restart and after the delivery has been settled.",
		needs:    []string{"Durable"},
		run: func(k *kit) {
			k.put(delivery("a", "1"), delivery("a", "2"), delivery("a", "3"))
			k.settle(webhook.Done, k.lease(1)...)
			k.reopen()
			k.repeats("after a restart", 1, delivery("a", "1"), delivery("a", "2"), delivery("a", "3"), delivery("a", "4"))
			k.reopen()
			k.repeats("after two", 0, delivery("a", "1"), delivery("a", "4"))
		},
	},
	{
		name:     "PutConcurrentRepeats",
		sentence: "A delivery whose Destination and ID are those of one put before is left out. All methods may be called concurrently.",
		run: func(k *kit) {
			var stored atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for i := range 20 {
						n, err := k.q.Put(k.ctx, delivery("a", fmt.Sprint(i)), delivery("b", fmt.Sprint(i)))
						if err != nil {
							k.Errorf("Put: %v", err)
						}
						stored.Add(int64(n))
					}
				})
			}
			wg.Wait()
			if got := stored.Load(); got != 40 {
				k.Errorf("stored %d of 40 different deliveries", got)
			}
			if got := len(k.lease(1000)); got != 40 {
				k.Errorf("Lease handed out %d, want 40", got)
			}
		},
	},
	{
		name:     "PutKeepsNothing",
		sentence: "Put does not keep ds or anything they refer to.",
		run: func(k *kit) {
			want := full("a", "1")
			ds := []webhook.Delivery{full("a", "1")}
			ds[0].Accepted, ds[0].Due, ds[0].Expires = want.Accepted, want.Due, want.Expires
			ds[0].Closed, ds[0].Attempts = append(ds[0].Closed[:0:0], want.Closed...), append(ds[0].Attempts[:0:0], want.Attempts...)
			k.put(ds...)
			spoil(&ds[0])
			ds[0] = webhook.Delivery{}
			k.same("Lease", k.lease(1), want)
		},
	},
	{
		name:     "PutCancelled",
		sentence: "All of them, or none and an error.",
		run: func(k *kit) {
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			if n, err := k.q.Put(ctx, delivery("a", "1")); n != 0 || !errors.Is(err, context.Canceled) {
				k.Errorf("Put with a cancelled context = %d, %v, want 0, context.Canceled", n, err)
			}
			k.leaseNone("Put was cancelled")
			k.put(delivery("a", "1"))
		},
	},
	{
		name:     "PutCancelledAtAnyMoment",
		sentence: "All of them, or none and an error.",
		run: func(k *kit) {
			// Whatever the moment, the answer is the truth.
			acked := map[string]bool{}
			for i := range 200 {
				ctx, cancel := context.WithCancel(k.ctx)
				go cancel()
				d := delivery("a", fmt.Sprint(i))
				n, err := k.q.Put(ctx, d)
				if err == nil && n == 1 {
					acked[d.ID] = true
				} else if !errors.Is(err, context.Canceled) || n != 0 {
					k.Fatalf("Put = %d, %v", n, err)
				}
			}
			for _, d := range k.lease(1000) {
				if !acked[d.ID] {
					k.Errorf("%s was cancelled and is there", d.ID)
				}
				delete(acked, d.ID)
			}
			if len(acked) > 0 {
				k.Errorf("%d stored deliveries are not there", len(acked))
			}
		},
	},
	{
		name:     "PutFull",
		sentence: "ErrQueueFull says that the store is at its bound. Nothing of the call was stored; the same call may be made again.",
		needs:    []string{"OpenFull"},
		run: func(k *kit) {
			k.close()
			k.open = k.traits.OpenFull
			k.dir = k.TempDir()
			k.reopen()
			body := []byte(strings.Repeat("x", 64<<10))
			stored := 0
			var refused []webhook.Delivery
			for i := range 64 << 20 / len(body) / 4 {
				ds := make([]webhook.Delivery, 4)
				for j := range ds {
					ds[j] = delivery("a", fmt.Sprint(i, j))
					ds[j].Body = body
				}
				n, err := k.q.Put(k.ctx, ds...)
				if errors.Is(err, webhook.ErrQueueFull) && n == 0 {
					refused = ds
					break
				}
				if err != nil || n != 4 {
					k.Fatalf("Put = %d, %v", n, err)
				}
				stored += n
			}
			if refused == nil {
				k.Fatalf("the store took %d bodies of %d bytes", stored, len(body))
			}
			// Settling makes room, also where nothing more can be put.
			for k.settleAll(stored) > 0 {
			}
			if n, err := k.q.Put(k.ctx, refused...); n != 4 || err != nil {
				k.Errorf("the refused Put, once there is room = %d, %v, want 4, nil", n, err)
			}
		},
	},
}

// repeats checks that want of ds are stored.
func (k *kit) repeats(when string, want int, ds ...webhook.Delivery) {
	k.Helper()
	if n, err := k.q.Put(k.ctx, ds...); n != want || err != nil {
		k.Fatalf("Put(%v) %s = %d, %v, want %d", ids(ds), when, n, err, want)
	}
}

// settleAll leases and settles deliveries, and returns how many.
func (k *kit) settleAll(max int) int {
	k.Helper()
	ds := k.lease(min(max, 64))
	k.settle(webhook.Done, ds...)
	return len(ds)
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
