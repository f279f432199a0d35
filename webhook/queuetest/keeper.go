package queuetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/webhook"
)

// count returns what Count returns.
func (k *kit) count() webhook.Counts {
	k.Helper()
	got, err := k.s.Count(k.ctx)
	if err != nil {
		k.Fatalf("Count: %v", err)
	}
	return got
}

func (k *kit) counts(waiting, claimed, dead int) {
	k.Helper()
	if got := k.count(); got.Waiting != waiting || got.Claimed != claimed || got.Dead != dead {
		k.Fatalf("Count = %+v, want %d waiting, %d claimed, %d dead", got, waiting, claimed, dead)
	}
}

// waiting returns what Waiting yields.
func (k *kit) waiting(destination, after string) []webhook.Delivery {
	k.Helper()
	ds, err := list(k.s.Waiting(k.ctx, destination, after))
	k.optional("Waiting", err)
	if err != nil {
		k.Fatalf("Waiting: %v", err)
	}
	return ds
}

// set stores a setting, and returns its version.
func (k *kit) set(name, value string, version uint64) uint64 {
	k.Helper()
	v, err := k.s.Set(k.ctx, setting(name, value, version))
	k.optional("this setting", err)
	if err != nil || v <= version {
		k.Fatalf("Set of %q, version %d = %d, %v", name, version, v, err)
	}
	return v
}

// setting returns a setting; an empty value removes it.
func setting(name, value string, version uint64) webhook.Setting {
	s := webhook.Setting{Name: name, Version: version}
	if value != "" {
		s.Value = []byte(value)
	}
	return s
}

func (k *kit) conflict(name, value string, version uint64) {
	k.Helper()
	if v, err := k.s.Set(k.ctx, setting(name, value, version)); !errors.Is(err, webhook.ErrConflict) {
		k.Fatalf("Set of %q, version %d = %d, %v, want ErrConflict", name, version, v, err)
	}
}

// settings checks what Settings yields.
func (k *kit) settings(s webhook.Store, prefix string, want ...webhook.Setting) {
	k.Helper()
	got, err := list(s.Settings(k.ctx, prefix))
	k.optional("these settings", err)
	alike := func(x, y webhook.Setting) bool {
		return x.Name == y.Name && x.Version == y.Version && bytes.Equal(x.Value, y.Value)
	}
	if err != nil || !slices.EqualFunc(want, got, alike) {
		k.Fatalf("Settings(%q): %v (-want +got)\n%s", prefix, err, cmp.Diff(want, got, cmpopts.EquateEmpty()))
	}
}

var keeperCases = []testCase{
	{"Count", "Waiting counts the deliveries that are stored and neither done nor buried; those that are claimed included. Dead counts the dead letters.", 0, func(k *kit) {
		k.counts(0, 0, 0)
		far := k.delivery("b", "1")
		far.Due = k.s.Now().Add(5 * time.Hour)
		k.put(append(k.deliveries("a", 6), far)...)
		k.counts(7, 0, 0)
		ds, _ := k.fetchQueue("a", false, 5)
		k.counts(7, 5, 0)
		for i, verdict := range verdicts {
			k.settle(verdict, ds[i])
		}
		k.counts(5, 1, 1)
		if k.traits.Durable {
			k.reopen()
			k.counts(5, 0, 1)
		}
	}},
	{"CountOldest", "Oldest is the earliest Due of what waits and is not claimed, zero if there is none.", 0, func(k *kit) {
		oldest := func(want time.Time) {
			k.Helper()
			if got := k.count().Oldest; !got.Equal(want) {
				k.Fatalf("Count says that the oldest is due %v, want %v", got, want)
			}
		}
		oldest(time.Time{})
		far, near := k.delivery("a", "far"), k.full("b", "near")
		far.Due = k.s.Now().Add(5 * time.Hour)
		k.put(far, near)
		oldest(near.Due)
		k.restart()
		oldest(near.Due)
		d := k.fetchOne("b")
		oldest(far.Due)
		d.Due = k.s.Now().Add(time.Hour)
		k.settle(webhook.Retry, d)
		oldest(d.Due)
	}},
	{"CountDead", "DeadBytes are the bytes of their bodies, ids and attempts, -1 if the store does not know; OldestDead is when the first of them died, zero if there is none.", 0, func(k *kit) {
		check := func(bytes int, oldest time.Time) {
			k.Helper()
			if got := k.count(); got.DeadBytes != int64(bytes) && got.DeadBytes != -1 || got.DeadBytes != -1 && !got.OldestDead.Equal(oldest) {
				k.Fatalf("Count = %+v, want %d bytes of dead letters, since %v", got, bytes, oldest)
			}
		}
		check(0, time.Time{})
		a, b := k.full("a", "1"), k.delivery("a", "22")
		a.Body, b.Body = make([]byte, 1000), make([]byte, 300)
		at := 0
		for _, try := range a.Attempts {
			at += len(try.Endpoint) + len(try.Error) + len(try.Answer)
		}
		k.put(a, b)
		ss := k.settlements(webhook.Bury, sorted(k.fetch(10, "a"))...)
		ss[0].At = ss[1].At.Add(-time.Hour)
		k.settleAll(ss...)
		check(1303+at, ss[0].At)
		k.restart()
		check(1303+at, ss[0].At)
		keys := k.dead(webhook.DeadFilter{}, "")
		k.exhume(k.s.Revive, 1, keys[0].Key)
		check(302, ss[1].At)
		k.exhume(k.s.Discard, 1, keys[1].Key)
		check(0, time.Time{})
	}},
	{"CountByDestination", "CountByDestination yields the counts of every destination that something waits for, once each.", 0, func(k *kit) {
		counts := func(want ...webhook.DestinationCounts) {
			k.Helper()
			got, err := list(k.s.CountByDestination(k.ctx))
			slices.SortFunc(got, func(x, y webhook.DestinationCounts) int { return strings.Compare(x.Destination, y.Destination) })
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				k.Fatalf("CountByDestination: %v (-want +got)\n%s", err, diff)
			}
		}
		counts()
		a, b := k.deliveries("a", 3), k.delivery("b", "1")
		b.Due = k.s.Now().Add(5 * time.Hour)
		k.put(append(a, b)...)
		ofB := webhook.DestinationCounts{Destination: "b", Waiting: 1, Oldest: b.Due}
		counts(webhook.DestinationCounts{Destination: "a", Waiting: 3, Oldest: a[0].Due}, ofB)
		ds, _ := k.fetchQueue("a", false, 2)
		counts(webhook.DestinationCounts{Destination: "a", Waiting: 3, Claimed: 2, Oldest: a[2].Due}, ofB)
		k.settle(webhook.Done, ds...)
		last := k.fetchOne("a")
		counts(webhook.DestinationCounts{Destination: "a", Waiting: 1, Claimed: 1}, ofB)
		k.settle(webhook.Bury, last)
		k.restart()
		counts(ofB)
	}},
	{"CountByDestinationHoldsNoLock", "It holds no lock between two yields.", 0, func(k *kit) {
		for i := range 20 {
			k.put(k.delivery(fmt.Sprint("d", i), "1"))
		}
		seen := 0
		for range k.s.CountByDestination(k.ctx) {
			k.put(k.delivery("d0", fmt.Sprint("new-", seen)))
			if seen++; seen == 10 {
				break
			}
		}
	}},
	{"Waiting", "Waiting yields the deliveries of a destination that wait, in the order of Due, from the one after the one whose ID is after, claimed ones included.", 0, func(k *kit) {
		ds := k.deliveries("a", 2100) // more than a store reads at once
		for i := range ds[:1000] {
			ds[i].Expires = ds[i].Due.Add(time.Hour)
		}
		ds[2099].Due = k.s.Now().Add(time.Hour)
		k.put(append(ds[900:], k.delivery("b", "1"))...)
		k.put(ds[:900]...)
		k.fetch(50, "a")
		k.same("Waiting", k.waiting("a", ""), ds...)
		k.restart()
		for _, i := range []int{0, 1, 999, 1500, 2098, 2099} {
			k.same("Waiting after "+ds[i].ID, k.waiting("a", ds[i].ID), ds[i+1:]...)
		}
		k.same("Waiting after one that is not there", k.waiting("a", "gone"), ds...)
		k.same("Waiting of nothing", k.waiting("c", ""))
		k.settle(webhook.Bury, k.fetch(1, "b")...)
		k.same("Waiting of a dead letter", k.waiting("b", ""))
	}},
	{"WaitingHoldsNoLock", "It holds no lock between two yields.", 0, func(k *kit) {
		ds := k.deliveries("a", 10)
		k.put(ds...)
		k.same("Waiting", k.waiting("a", ""), ds...)
		got := k.fetch(10, "a")
		n := 0
		for d, err := range k.s.Waiting(k.ctx, "a", "") {
			if err != nil || d.ID != ds[n].ID {
				k.Fatalf("Waiting yields %s, %v, want %s", d.ID, err, ds[n].ID)
			}
			k.settle(webhook.Done, got[n])
			if n++; n == 5 {
				break
			}
		}
		k.same("Waiting", k.waiting("a", ""), ds[5:]...)
	}},
	{"Erase", "Erase removes the deliveries and dead letters that carry data of a user, by their User, in every destination, but not what is claimed. It returns how many there were and how many it passed over because they are claimed.", 0, func(k *kit) {
		var want []webhook.Delivery
		put := func(n int, user, prefix string) {
			k.Helper()
			for i := range n {
				d := k.delivery(fmt.Sprint("d", i%3), fmt.Sprint(prefix, "-", i))
				if i%2 == 0 {
					d = k.full(d.Destination, d.ID)
				}
				d.User = user
				if k.put(d); user != "ann" {
					want = append(want, d)
				}
			}
		}
		erase := func(user string, erased, claimed int) {
			k.Helper()
			n, passed, err := k.s.Erase(k.ctx, user)
			k.optional("Erase", err)
			if n != erased || passed != claimed || err != nil {
				k.Fatalf("Erase(%q) = %d, %d, %v, want %d, %d", user, n, passed, err, erased, claimed)
			}
		}
		put(3, "ann", "dead")
		got := k.fetch(10, "d0", "d1", "d2")
		k.settle(webhook.Bury, got[:2]...)
		put(6, "bob", "bob")
		put(4, "an", "an") // a part of another's name
		put(7, "ann", "ann")
		erase("nobody", 0, 0)
		if _, _, err := k.s.Erase(k.ctx, ""); err == nil {
			k.Error("Erase of no user is no error")
		}
		erase("ann", 9, 1)
		k.counts(len(want)+1, 1, 0)
		if k.traits.Durable {
			k.reopen()
		} else {
			k.settle(webhook.Return, got[2])
		}
		erase("ann", 1, 0)
		k.repeats("that were erased", 0, got...)
		k.sameSet("Fetch of what is left", k.fetch(20, "d0", "d1", "d2"), want...)
	}},
	{"SettingsPause", "Settings yields the settings whose names begin with prefix, such as a pause.", 0, func(k *kit) {
		odd := "pause/odd \x00\xff\"\\"
		for _, name := range []string{odd, "pause/a"} {
			k.set(name, "{}", 0)
		}
		paused := func(want ...string) (versions []uint64) {
			k.Helper()
			got, err := list(k.s.Settings(k.ctx, "pause/"))
			names := make([]string, len(got))
			for i, s := range got {
				names[i], versions = s.Name, append(versions, s.Version)
			}
			if err != nil || !slices.Equal(names, want) || slices.Contains(versions, 0) {
				k.Fatalf("Settings(pause/) = %q, %v, %v, want %q", names, versions, err, want)
			}
			return versions
		}
		paused("pause/a", odd)
		k.restart()
		k.set("pause/a", "", paused("pause/a", odd)[0])
		paused(odd)
	}},
	{"Settings", "Settings yields the settings whose names begin with prefix, in the order of their names.", 0, func(k *kit) {
		k.settings(k.s, "")
		var want []webhook.Setting
		for i := range 600 { // more than a store reads at once
			want = append(want, setting(fmt.Sprintf("list/%04d", i*7%600), fmt.Sprint("value ", i), 0))
		}
		want = append(want, setting("list", "shorter", 0), setting("list/", "as the prefix", 0), setting("listen", "other", 0),
			setting("other/"+strings.Repeat("x", 506), strings.Repeat("y", webhook.MaxSetting), 0), setting("\xff\xff", "\x00\xff", 0))
		for i, s := range want {
			want[i].Version = k.set(s.Name, string(s.Value), 0)
		}
		slices.SortFunc(want, func(x, y webhook.Setting) int { return strings.Compare(x.Name, y.Name) })
		for range 2 {
			for _, prefix := range []string{"", "list/", "list/00", "list", "other/", "nothing", "\xff"} {
				var some []webhook.Setting
				for _, s := range want {
					if strings.HasPrefix(s.Name, prefix) {
						some = append(some, s)
					}
				}
				k.settings(k.s, prefix, some...)
			}
			k.restart()
		}
		for s, err := range k.s.Settings(k.ctx, "list/00") { // no lock is held
			if err != nil {
				k.Fatal(err)
			}
			k.set(s.Name, "", s.Version)
		}
		k.settings(k.s, "list/00")
	}},
	{"Set", "Set stores a setting if the store holds it with the version s.Version, zero for a setting that it does not hold, and else returns ErrConflict. It returns the new version, which is greater than every version that the setting had before. A nil Value removes the setting.", 0, func(k *kit) {
		one := k.set("doc/a", "one", 0)
		k.conflict("doc/a", "zero", 0)
		k.conflict("doc/a", "", one+1)
		two := k.set("doc/a", "two", one)
		k.conflict("doc/a", "three", one)
		k.settings(k.s, "doc/", setting("doc/a", "two", two))
		k.conflict("doc/b", "b", two)
		k.set("doc/a", "", two)
		k.settings(k.s, "doc/")
		k.conflict("doc/a", "three", two)
		k.restart()
		three := k.set("doc/a", "three", 0)
		if three <= two {
			k.Errorf("the version of a setting that was removed was %d, and then is %d", two, three)
		}
		k.settings(k.s, "doc/", setting("doc/a", "three", three))
		if v, err := k.s.Set(k.ctx, webhook.Setting{Name: "doc/empty", Value: []byte{}}); err != nil {
			k.Errorf("Set of an empty value: %v", err)
		} else {
			k.settings(k.s, "doc/empty", webhook.Setting{Name: "doc/empty", Value: []byte{}, Version: v})
		}
	}},
	{"SetLimits", "Name has 1 to 512 bytes. Value has up to MaxSetting bytes.", 0, func(k *kit) {
		k.set("doc/good", "x", 0)
		for _, bad := range []webhook.Setting{setting("", "x", 0), setting(strings.Repeat("x", 513), "x", 0), setting("doc/a", strings.Repeat("y", webhook.MaxSetting+1), 0)} {
			if _, err := k.s.Set(k.ctx, bad); err == nil || errors.Is(err, webhook.ErrConflict) {
				k.Errorf("Set of a name of %d bytes and a value of %d: %v, want an error", len(bad.Name), len(bad.Value), err)
			}
		}
		value := []byte("mine")
		v, err := k.s.Set(k.ctx, webhook.Setting{Name: "doc/mine", Value: value})
		if err != nil {
			k.Fatal(err)
		}
		value[0] = '!'
		k.settings(k.s, "doc/mine", setting("doc/mine", "mine", v))
	}},
	{"SetConcurrently", "Set stores a setting if the store holds it with the version s.Version. All methods may be called concurrently.", 0, func(k *kit) {
		k.set("doc/count", "x", 0)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for added := 0; added < 25; {
					held, err := list(k.s.Settings(k.ctx, "doc/count"))
					if err != nil || len(held) != 1 {
						k.Errorf("Settings = %v, %v", held, err)
						return
					}
					held[0].Value = append(bytes.Clone(held[0].Value), 'x') // it is the store's
					switch _, err := k.s.Set(k.ctx, held[0]); {
					case err == nil:
						added++
					case !errors.Is(err, webhook.ErrConflict):
						k.Errorf("Set: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		if held, err := list(k.s.Settings(k.ctx, "doc/count")); err != nil || len(held) != 1 || len(held[0].Value) != 101 {
			k.Errorf("100 additions to one left %v, %v", held, err)
		}
	}},
}
