package queuetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var keeperCases = []testCase{
	{"Waiting", "Waiting yields the waiting deliveries of a destination, including claimed ones, in the order of Due. If after is the ID of a delivery that waits, the list begins behind it. Otherwise the list begins with the first. It holds no lock between two yields.", func(k *kit) {
		ds := k.deliveries("a", 2100) // more than a store reads at once
		for i := range ds[:1000] {
			ds[i].Expires = ds[i].Due.Add(time.Hour)
		}
		k.put(ds[900:]...)
		k.put(ds[:900]...)
		got := k.fetchWants(noLimit, webhook.Want{Destination: "a", Retries: true, Max: 10})
		equal(k, "Waiting", all(k, k.s.Waiting(k.ctx, "a", "")), ds)
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
			equal(k, "Waiting after "+ds[i].ID, all(k, k.s.Waiting(k.ctx, "a", ds[i].ID)), ds[i+1:])
		}
		equal(k, "Waiting after one that is done", all(k, k.s.Waiting(k.ctx, "a", ds[8].ID)), ds[10:])
	}},
	{"Change", "Change makes the given change to the waiting deliveries that filter selects, except claimed ones. It returns how many it has changed, and how many it has skipped because they are claimed.", func(k *kit) {
		ds := k.deliveries("other", 3)
		for i := range 600 { // more than a store reads at once
			d := k.full("d", fmt.Sprint(i))
			if d.Event = fmt.Sprint("event ", i%3); i%2 == 0 {
				d.Due = k.s.Now().Add(time.Duration(i+1) * time.Hour)
			}
			ds = append(ds, d)
		}
		k.put(ds...)
		k.fetch(20, "d")
		k.change(webhook.WaitingFilter{Destination: "d", Event: "event 1"}, webhook.DueNow)
		k.compare()
		k.change(webhook.WaitingFilter{Destination: "d"}, webhook.DueNow)
		k.fetch(20, "d")
		k.change(webhook.WaitingFilter{Destination: "d"}, webhook.Discarded)
		k.restart()
		k.put(ds...) // the store remembers them, so it leaves them out
		k.compare()
	}},
	{"Settings", "Settings yields the settings whose names begin with prefix, in the order of their names. It holds no lock between two yields.", func(k *kit) {
		for i := range 600 { // more than a store reads in one page
			k.set(fmt.Sprintf("list/%04d", i*7%600), fmt.Append(nil, "value ", i), 0)
		}
		for _, name := range []string{"list", "list/", "listen", "other/" + strings.Repeat("x", 506), "\xff\xff", "pause/odd \x00\xff\"\\"} {
			k.set(name, []byte(name), 0)
		}
		k.set("list/long", make([]byte, webhook.MaxSetting), 0)
		for range 2 {
			for _, prefix := range []string{"", "list/", "list/00", "list", "other/", "nothing", "\xff"} {
				k.compareSettings(prefix)
			}
			k.restart()
		}
		for s, err := range k.s.Settings(k.ctx, "list/") {
			if err != nil {
				k.Fatal(err)
			}
			k.set(s.Name, nil, s.Version)
		}
		k.compareSettings("")
	}},
	{"Errors", "An empty user is an error. A filter without a destination is an error. Name has 1 to 512 bytes, Value up to MaxSetting.", func(k *kit) {
		k.put(k.full("a", "1"))
		if _, _, err := k.s.Erase(k.ctx, ""); err == nil {
			k.Error("Erase of no user is no error")
		}
		for f, to := range map[webhook.WaitingFilter]webhook.Change{{User: "user 1"}: webhook.DueNow, {Event: "Event of 1"}: webhook.Discarded, {Destination: "a"}: 0} {
			if _, _, err := k.s.Change(k.ctx, f, to); err == nil {
				k.Errorf("Change(%+v, %d) is no error", f, to)
			}
		}
		for _, bad := range []webhook.Setting{{Value: []byte("x")}, {Name: strings.Repeat("x", 513), Value: []byte("x")}, {Name: "doc/b", Value: make([]byte, webhook.MaxSetting+1)}} {
			if _, err := k.s.Set(k.ctx, bad); err == nil || errors.Is(err, webhook.ErrConflict) {
				k.Errorf("Set of a name of %d bytes and a value of %d: %v, want an error", len(bad.Name), len(bad.Value), err)
			}
		}
		k.compare()
	}},
}
