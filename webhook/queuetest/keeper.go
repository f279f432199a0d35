package queuetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var keeperCases = []testCase{
	{"Lists", "Count, CountByDestination, Waiting, Heads and Dead yield what there is, as their comments say.", func(k *kit) {
		k.compare()
		later := k.full("b", "1")
		later.Due = k.s.Now().Add(5 * time.Hour)
		k.put(append(k.deliveries("a", 5), later)...)
		for i, d := range k.fetch(4, "a") {
			k.compare()
			d.Attempts = later.Attempts
			k.settle(verdicts[i], d)
		}
		k.restart()
		k.compare()
	}},
	{"Waiting", "Waiting yields the waiting deliveries of a destination, including claimed ones, in the order of Due. If after is the ID of a delivery that waits, the list begins behind it. Otherwise the list begins with the first. It holds no lock between two yields.", func(k *kit) {
		ds := k.deliveries("a", 2100) // more than a store reads at once
		for i := range ds[:1000] {
			ds[i].Expires = ds[i].Due.Add(time.Hour)
		}
		k.put(ds[900:]...)
		k.put(ds[:900]...)
		got := k.fetchQueue(10, "a", true)
		equal(k, "Waiting", k.waiting("a", ""), ds)
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
			equal(k, "Waiting after "+ds[i].ID, k.waiting("a", ds[i].ID), ds[i+1:])
		}
		equal(k, "Waiting after one that is done", k.waiting("a", ds[8].ID), ds[10:])
	}},
	{"Erase", "Erase removes the deliveries and dead letters of a user, by their User, in every destination, except claimed deliveries. It returns how many it has removed, and how many it has skipped because they are claimed. An empty user is an error.", func(k *kit) {
		for i := range 60 {
			d := k.full(fmt.Sprint("d", i%2), fmt.Sprint(i))
			if i%3 == 0 {
				d = k.delivery(d.Destination, d.ID)
			}
			d.User = []string{"ann", "bob", "an", "", "ann"}[i%5] // "an" is the beginning of "ann"
			k.put(d)
		}
		got := k.fetch(10, "d0", "d1")
		k.settle(webhook.Bury, got[:15]...)
		k.erase("nobody")
		if _, _, err := k.s.Erase(k.ctx, ""); err == nil {
			k.Error("Erase of no user is no error")
		}
		k.erase("ann")
		k.compare()
		k.settle(webhook.Return, got[15:]...)
		k.restart()
		k.erase("ann")
		k.compare()
		k.put(got...)
		k.fetch(60, "d0", "d1")
	}},
	{"Change", "Change makes the given change to the waiting deliveries that filter selects, except claimed ones. It returns how many it has changed, and how many it has skipped because they are claimed. A filter without a destination is an error.", func(k *kit) {
		for i := range 600 { // more than a store reads at once
			d := k.full("d", fmt.Sprint(i))
			if d.Event, d.User = fmt.Sprint("event ", i%3), fmt.Sprint("user ", i%5); i%4 == 0 {
				d.Expires, d.Tries = time.Time{}, 0
			}
			if i%2 == 0 {
				d.Due = k.s.Now().Add(time.Duration(i+1) * time.Hour)
				d.Closed = []webhook.Closed{{Endpoint: 1}, {Endpoint: 2, Until: d.Due}}
			}
			k.put(d)
		}
		k.put(k.deliveries("other", 3)...)
		got := k.fetch(20, "d")
		for _, to := range []webhook.Change{webhook.DueNow, webhook.Discarded} {
			for _, f := range []webhook.WaitingFilter{
				{Destination: "nobody"}, {Destination: "d", ID: "no such"}, {Destination: "d", ID: "8"}, {Destination: "d", ID: "message 12"},
				{Destination: "d", User: "user 2", Event: "event 1"}, {Destination: "d", ID: got[0].ID},
			} {
				k.change(f, to)
			}
			k.compare()
		}
		for f, to := range map[webhook.WaitingFilter]webhook.Change{{User: "user 1"}: webhook.DueNow, {User: "user 2"}: webhook.Discarded, {Destination: "d"}: 0} {
			if _, _, err := k.s.Change(k.ctx, f, to); err == nil {
				k.Errorf("Change(%+v, %d) is no error", f, to)
			}
		}
		k.restart()
		k.compare()
		k.change(webhook.WaitingFilter{Destination: "d", Event: "event 0"}, webhook.DueNow)
		k.fetch(1000, "d")
		k.restart()
		k.change(webhook.WaitingFilter{Destination: "d"}, webhook.Discarded)
		k.compare()
		k.put(got...) // the store remembers them, so it leaves them out
		k.compare()
	}},
	{"Settings", "Settings yields the settings whose names begin with prefix, in the order of their names. It holds no lock between two yields.", func(k *kit) {
		for i := range 600 { // more than a store reads in one page
			k.set(fmt.Sprintf("list/%04d", i*7%600), fmt.Append(nil, "value ", i), 0)
		}
		for _, name := range []string{"list", "list/", "listen", "other/" + strings.Repeat("x", 506), "\xff\xff", "pause/odd \x00\xff\"\\"} {
			k.set(name, []byte(name), 0)
		}
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
	{"Set", "Set stores a setting if the store has it with the version s.Version. Zero stands for a setting that the store does not have. If the store has another version, Set returns ErrConflict. It returns the new version, which is greater than every version that the setting had before. A nil Value removes the setting. Name has 1 to 512 bytes, Value up to MaxSetting.", func(k *kit) {
		const name = "doc/a"
		for _, value := range [][]byte{[]byte("one"), []byte("\x00\xff"), {}, make([]byte, webhook.MaxSetting), nil, []byte("again")} {
			version := k.settings[name].Version
			for _, wrong := range []uint64{version + 1, k.versions[name], 0, version} {
				k.set(name, value, wrong)
				k.compareSettings("")
			}
			k.restart()
		}
		for _, bad := range []webhook.Setting{{Value: []byte("x")}, {Name: strings.Repeat("x", 513), Value: []byte("x")}, {Name: "doc/b", Value: make([]byte, webhook.MaxSetting+1)}} {
			if _, err := k.s.Set(k.ctx, bad); err == nil || errors.Is(err, webhook.ErrConflict) {
				k.Errorf("Set of a name of %d bytes and a value of %d: %v, want an error", len(bad.Name), len(bad.Value), err)
			}
		}
		k.compareSettings("")
	}},
}
