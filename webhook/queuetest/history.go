package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// delivered returns what Delivered yields.
func (k *kit) delivered(filter webhook.DeliveredFilter, after string) []webhook.Delivered {
	k.Helper()
	return all(k, k.s.(webhook.History).Delivered(k.ctx, filter, after))
}

// deliver delivers n, of three destinations, two users and a message each, a minute apart.
func (k *kit) deliver(n int) (want []webhook.Delivered) {
	k.Helper()
	for i := range n {
		d := k.full(fmt.Sprint("d", i%3), fmt.Sprint(i))
		d.MessageID, d.User = fmt.Sprint("message ", i), fmt.Sprint("user ", i%2)
		want = append(want, webhook.Delivered{Delivery: d, At: k.s.Now().Add(time.Duration(i) * time.Minute)})
		k.put(d)
	}
	ss := settlements(k.s, webhook.Done, k.fetch(n, "d0", "d1", "d2")...)
	for i := range ss {
		at := slices.IndexFunc(want, func(e webhook.Delivered) bool { return e.ID == ss[i].Delivery.ID })
		ss[i].At = want[at].At
	}
	k.settleAll(ss...)
	slices.Reverse(want)
	return want
}

// sameDelivered checks what was delivered, in this order.
func (k *kit) sameDelivered(what string, got []webhook.Delivered, want ...webhook.Delivered) {
	k.Helper()
	if !slices.EqualFunc(want, got, func(x, y webhook.Delivered) bool { return x.At.Equal(y.At) && alike(x.Delivery, y.Delivery) }) {
		k.Fatalf("%s yields %+v, want %+v", what, got, want)
	}
}

var historyCases = []testCase{
	{"History", "Delivered yields what filter selects of the deliveries that are kept, the latest first, from the one after the one whose Key is after.", history, func(k *kit) {
		want := k.deliver(600) // more than a store reads at once
		for range 2 {
			all := k.delivered(webhook.DeliveredFilter{}, "")
			k.sameDelivered("Delivered", all, want...)
			k.sameDelivered("Delivered after one", k.delivered(webhook.DeliveredFilter{}, all[300].Key), want[301:]...)
			for _, f := range []webhook.DeliveredFilter{
				{Destination: "d1"}, {MessageID: "message 17"}, {User: "user 1"}, {User: "nobody"}, {From: want[9].At}, {To: want[590].At}, {From: want[20].At, To: want[10].At, Destination: "d2"},
			} {
				var some []webhook.Delivered
				for i := range want {
					if f.Match(&want[i]) {
						some = append(some, want[i])
					}
				}
				k.sameDelivered(fmt.Sprintf("Delivered(%+v)", f), k.delivered(f, ""), some...)
			}
			k.restart()
		}
		for range k.s.(webhook.History).Delivered(k.ctx, webhook.DeliveredFilter{}, "") {
			k.s.Count(k.ctx) // no lock is held
			break
		}
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		for _, err := range k.s.(webhook.History).Delivered(ctx, webhook.DeliveredFilter{}, "") {
			if !errors.Is(err, context.Canceled) {
				k.Errorf("Delivered with a cancelled context: %v", err)
			}
		}
	}},
	{"HistoryCounts", "What it keeps is in Counts, and Erase removes it as it does dead letters.", history, func(k *kit) {
		want := k.deliver(10)
		check := func() {
			k.Helper()
			var bytes int64
			for i := range want {
				bytes += want[i].Size()
			}
			if c, err := k.s.Count(k.ctx); err != nil || c.Delivered != len(want) || c.DeliveredBytes != bytes || c.Waiting != 0 {
				k.Fatalf("Count = %+v, %v, want %d delivered with %d bytes", c, err, len(want), bytes)
			}
		}
		check()
		k.restart()
		check()
		n, claimed, err := k.s.Erase(k.ctx, "user 0")
		if n != 5 || claimed != 0 || err != nil {
			k.Fatalf("Erase = %d, %d, %v, want 5", n, claimed, err)
		}
		want = slices.DeleteFunc(want, func(d webhook.Delivered) bool { return d.User == "user 0" })
		check()
		k.sameDelivered("Delivered", k.delivered(webhook.DeliveredFilter{}, ""), want...)
	}},
}
