package queuetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/webhook"
)

// A model says what a store holds after the operations of a kit, by the contract. The
// methods of kit in this file do something to the store and to the model, and check that
// the store returns what the model does.
type model struct {
	held     map[string]*webhook.Delivery // what waits, by key; with a Claim if it is claimed
	known    map[string]bool              // the keys that were put
	used     map[string]bool              // the claims of this Store value, behind their keys
	dead     map[string]webhook.DeadLetter
	settings map[string]webhook.Setting
	versions map[string]uint64 // the latest of each setting
}

func newModel() model {
	return model{map[string]*webhook.Delivery{}, map[string]bool{}, map[string]bool{}, map[string]webhook.DeadLetter{}, map[string]webhook.Setting{}, map[string]uint64{}}
}

// A queue names one queue.
type queue struct {
	destination string
	retries     bool
}

func queueOf(d *webhook.Delivery) queue { return queue{d.Destination, !d.Expires.IsZero()} }

// inOrder returns what is held.
func (k *kit) inOrder() []*webhook.Delivery {
	return slices.SortedFunc(maps.Values(k.held), func(x, y *webhook.Delivery) int {
		return cmp.Or(x.Due.Compare(y.Due), strings.Compare(key(x), key(y)))
	})
}

// waiting returns what is held and not claimed, by queue and in order.
func (k *kit) waiting() map[queue][]*webhook.Delivery {
	waiting := make(map[queue][]*webhook.Delivery)
	for _, h := range k.inOrder() {
		if h.Claim == 0 {
			waiting[queueOf(h)] = append(waiting[queueOf(h)], h)
		}
	}
	return waiting
}

// claim notes the claim of a delivery that the store handed out.
func (k *kit) claim(h *webhook.Delivery, claim uint64) {
	k.Helper()
	id := fmt.Sprint(key(h), claim)
	if claim == 0 || k.used[id] {
		k.Fatalf("%s has the claim %d, as before", key(h), claim)
	}
	k.used[id] = true
	h.Claim = claim
}

// put puts ds, and asks to keep none.
func (k *kit) put(ds ...webhook.Delivery) {
	k.Helper()
	k.putAll(puts(ds)...)
}

// putAll puts ps, and returns those that were kept.
func (k *kit) putAll(ps ...webhook.Put) (kept []webhook.Delivery) {
	k.Helper()
	out, err := tryPut(k.ctx, k.s, ps...)
	if err != nil {
		k.Fatalf("Put of %d deliveries: %v", len(ps), err)
	}
	for i, r := range out {
		h := ps[i].Delivery
		before := k.known[key(&h)] && !ps[i].NoDedup
		if r.Stored == before || r.Claim != 0 && !(r.Stored && ps[i].Keep) {
			k.Fatalf("Put of %s, keep: %t, which was put before: %t, returned %+v", key(&h), ps[i].Keep, before, r)
		}
		if !r.Stored {
			continue
		}
		if r.Claim != 0 {
			k.claim(&h, r.Claim)
			kept = append(kept, h)
		}
		k.held[key(&h)], k.known[key(&h)] = &h, k.known[key(&h)] || !ps[i].NoDedup
	}
	return kept
}

// fetch fetches up to max fresh deliveries and max retries of each destination.
func (k *kit) fetch(max int, destinations ...string) []webhook.Delivery {
	k.Helper()
	return k.fetchWants(noLimit, wants(max, destinations...)...)
}

// fetchQueue fetches from one queue.
func (k *kit) fetchQueue(max int, destination string, retries bool) []webhook.Delivery {
	k.Helper()
	return k.fetchWants(noLimit, webhook.Want{Destination: destination, Retries: retries, Max: max})
}

func (k *kit) fetchWants(maxBytes int64, ws ...webhook.Want) []webhook.Delivery {
	k.Helper()
	var asked []queue
	most := make(map[queue]int)
	for i := range ws {
		ws[i].Next = k.s.Now()
		asked = append(asked, queue{ws[i].Destination, ws[i].Retries})
		most[asked[i]] += ws[i].Max
	}
	before, first := k.s.Now(), webhook.Delivery{ID: "first"}
	ds, err := k.s.Fetch(k.ctx, ws, maxBytes, []webhook.Delivery{first})
	after := k.s.Now()
	if err != nil || len(ds) == 0 || !alike(ds[0], first) {
		k.Fatalf("Fetch returned %v, %v", ids(ds), err)
	}
	ds = ds[1:]
	waiting := k.waiting()
	var bytes int64
	rank := 0
	for _, d := range ds {
		q := queueOf(&d)
		h, was := k.held[key(&d)], rank
		at := slices.Index(waiting[q], h)
		rank = slices.Index(asked, q)
		switch most[q]--; {
		case most[q] < 0 || rank < was:
			k.Fatalf("Fetch(%+v) returned %s too much, or out of order", ws, key(&d))
		case at < 0 || d.Due.After(after):
			k.Fatalf("Fetch returned %s, which is not to be had: %+v", key(&d), h)
		case waiting[q][0].Due.Before(h.Due):
			k.Fatalf("Fetch returned %s, due %v, before %s, due %v", key(&d), d.Due, key(waiting[q][0]), waiting[q][0].Due)
		}
		k.same("Fetch", []webhook.Delivery{d}, *h)
		waiting[q] = slices.Delete(waiting[q], at, at+1)
		k.claim(h, d.Claim)
		bytes += int64(len(d.Body))
	}
	if bytes > maxBytes && len(ds) > 1 {
		k.Fatalf("Fetch of up to %d bytes returned %d", maxBytes, bytes)
	}
	full := false
	for i, q := range asked {
		var next time.Time
		if rest := waiting[q]; len(rest) > 0 {
			next = rest[0].Due
			var size int64 // of the largest that may be next
			for j := 0; j < len(rest) && rest[j].Due.Equal(next); j++ {
				size = max(size, int64(len(rest[j].Body)))
			}
			if most[q] > 0 && !next.After(before) && !full {
				if full = len(ds) > 0 && bytes+size > maxBytes; !full {
					k.Fatalf("Fetch(%+v) of up to %d bytes returned %v, but not %s, due %v", ws, maxBytes, ids(ds), key(rest[0]), next)
				}
			}
		}
		if !ws[i].Next.Equal(next) {
			k.Fatalf("Fetch set Next of %+v, want %v", ws[i], next)
		}
	}
	return ds
}

func (k *kit) settle(verdict webhook.Verdict, ds ...webhook.Delivery) {
	k.Helper()
	k.settleAll(settlements(k.s, verdict, ds...)...)
}

// settleAll settles ss, and spoils what the store was handed.
func (k *kit) settleAll(ss ...webhook.Settlement) {
	k.Helper()
	handed := slices.Clone(ss)
	for i := range ss {
		k.settled(&ss[i])
		handed[i].Delivery = detach(ss[i].Delivery)
	}
	n, err := k.s.Settle(k.ctx, handed)
	if n != len(ss) || err != nil {
		k.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
	for i := range handed {
		spoil(&handed[i].Delivery)
		handed[i] = webhook.Settlement{}
	}
}

// settled makes the change that a settlement stands for.
func (k *kit) settled(s *webhook.Settlement) {
	d := &s.Delivery
	h := k.held[key(d)]
	if h == nil || h.Claim == 0 || h.Claim != d.Claim {
		return
	}
	h.Claim = 0
	switch s.Verdict {
	case webhook.Done:
		delete(k.held, key(d))
	case webhook.Bury:
		delete(k.held, key(d))
		h.Tries, h.Closed, h.Attempts = d.Tries, d.Closed, d.Attempts
		k.dead[key(d)] = webhook.DeadLetter{Delivery: *h, Reason: s.Reason, Died: s.At}
	case webhook.Retry:
		h.Due, h.Expires, h.Tries, h.Closed, h.Attempts = d.Due, d.Expires, d.Tries, d.Closed, d.Attempts
	}
}

// exhume calls Revive or Discard.
func (k *kit) exhume(revive bool, keys ...string) {
	k.Helper()
	want := 0
	for id, d := range k.dead {
		if !slices.Contains(keys, d.Key) {
			continue
		}
		delete(k.dead, id)
		if want++; revive {
			d.Due, d.Expires, d.Tries, d.Closed = k.s.Now(), time.Time{}, 0, nil
			k.held[id] = &d.Delivery
		}
	}
	do := k.s.Discard
	if revive {
		do = k.s.Revive
	}
	if n, err := do(k.ctx, keys...); n != want || err != nil {
		k.Fatalf("Revive (%t) or Discard of %q = %d, %v, want %d", revive, keys, n, err, want)
	}
	if revive {
		k.learnDues(time.Time{})
	}
}

// change calls Change.
func (k *kit) change(f webhook.WaitingFilter, to webhook.Change) {
	k.Helper()
	changed, claimed := 0, 0
	now := k.s.Now()
	for id, h := range k.held {
		switch {
		case !f.Match(h):
		case h.Claim != 0:
			claimed++
		case to == webhook.Discarded:
			delete(k.held, id)
			changed++
		case h.Hasten(now):
			changed++
		}
	}
	if n, passed, err := k.s.Change(k.ctx, f, to); n != changed || passed != claimed || err != nil {
		k.Fatalf("Change(%+v, %d) = %d, %d, %v, want %d, %d", f, to, n, passed, err, changed, claimed)
	}
	if to == webhook.DueNow {
		k.learnDues(now)
	}
}

// learnDues sets the Due of what the store has made due since a time: when exactly, the store says.
func (k *kit) learnDues(since time.Time) {
	if k.traits.Bubble {
		return
	}
	for _, d := range k.inOrder() {
		if d.Due.Before(since) {
			continue
		}
		for _, w := range k.listed(d.Destination, "") {
			if w.ID == d.ID && w.Due.After(d.Due) && !w.Due.After(k.s.Now()) {
				d.Due = w.Due
			}
		}
	}
}

// erase removes what is of a user.
func (k *kit) erase(user string) {
	k.Helper()
	before, claimed := len(k.held)+len(k.dead), 0
	maps.DeleteFunc(k.held, func(_ string, h *webhook.Delivery) bool {
		if h.User == user && h.Claim != 0 {
			claimed++
		}
		return h.User == user && h.Claim == 0
	})
	maps.DeleteFunc(k.dead, func(_ string, d webhook.DeadLetter) bool { return d.User == user })
	erased := before - len(k.held) - len(k.dead)
	if n, passed, err := k.s.Erase(k.ctx, user); n != erased || passed != claimed || err != nil {
		k.Fatalf("Erase(%q) = %d, %d, %v, want %d, %d", user, n, passed, err, erased, claimed)
	}
}

// set stores a setting, or removes it if the value is nil, and spoils what the store was handed.
func (k *kit) set(name string, value []byte, version uint64) {
	k.Helper()
	handed := slices.Clone(value)
	v, err := k.s.Set(k.ctx, webhook.Setting{Name: name, Value: handed, Version: version})
	spoil(&webhook.Delivery{Body: handed})
	switch {
	case k.settings[name].Version != version:
		if !errors.Is(err, webhook.ErrConflict) {
			k.Fatalf("Set of %q, version %d = %d, %v, want ErrConflict", name, version, v, err)
		}
		return
	case err != nil || v <= k.versions[name]:
		k.Fatalf("Set of %q, version %d = %d, %v; the latest version was %d", name, version, v, err, k.versions[name])
	}
	k.versions[name] = v
	if k.settings[name] = (webhook.Setting{Name: name, Value: value, Version: v}); value == nil {
		delete(k.settings, name)
	}
}

// compare compares all that can be asked for.
func (k *kit) compare() {
	k.Helper()
	k.compareDead(webhook.DeadFilter{}, "")
	counts := make(map[string]*webhook.DestinationCounts)
	heads := make(map[string]webhook.Head)
	of := make(map[string][]webhook.Delivery)
	want := webhook.Counts{Waiting: len(k.held), Dead: len(k.dead)}
	for _, d := range k.inOrder() {
		of[d.Destination] = append(of[d.Destination], *d)
		c := counts[d.Destination]
		if c == nil {
			c = &webhook.DestinationCounts{Destination: d.Destination}
			counts[d.Destination] = c
		}
		if c.Waiting++; d.Claim != 0 {
			c.Claimed++
			want.Claimed++
			continue
		}
		h := heads[d.Destination]
		h.Destination = d.Destination
		for _, at := range []*time.Time{&want.Oldest, &c.Oldest, map[bool]*time.Time{true: &h.Fresh, false: &h.Retry}[d.Expires.IsZero()]} {
			if at.IsZero() {
				*at = d.Due
			}
		}
		heads[d.Destination] = h
	}
	got, err := k.s.Count(k.ctx)
	for _, d := range k.dead {
		if want.DeadBytes += d.Size(); want.OldestDead.IsZero() || d.Died.Before(want.OldestDead) {
			want.OldestDead = d.Died
		}
	}
	if got.DeadBytes == -1 { // unknown, as may be OldestDead
		want.DeadBytes, want.OldestDead = -1, got.OldestDead
	}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		k.Fatalf("Count: %v (-want +got)\n%s", err, diff)
	}
	gotCounts := make(map[string]*webhook.DestinationCounts)
	for _, c := range all(k, k.s.CountByDestination(k.ctx)) {
		gotCounts[c.Destination] = &c
	}
	if diff := gocmp.Diff(counts, gotCounts); diff != "" {
		k.Fatalf("CountByDestination (-want +got)\n%s", diff)
	}
	if diff := gocmp.Diff(heads, k.heads(k.s, true)); diff != "" {
		k.Fatalf("Heads (-want +got)\n%s", diff)
	}
	for _, name := range append(slices.Collect(maps.Keys(of)), "nothing") {
		k.sameSet("Waiting", k.listed(name, ""), of[name]...)
	}
	k.compareSettings("")
}

// listed returns what Waiting yields.
func (k *kit) listed(destination, after string) []webhook.Delivery {
	k.Helper()
	got := all(k, k.s.Waiting(k.ctx, destination, after))
	if !slices.IsSortedFunc(got, func(x, y webhook.Delivery) int { return x.Due.Compare(y.Due) }) {
		k.Fatalf("Waiting is out of order: %v", ids(got))
	}
	return got
}

func (k *kit) compareSettings(prefix string) {
	k.Helper()
	var want []webhook.Setting
	for _, name := range slices.Sorted(maps.Keys(k.settings)) {
		if strings.HasPrefix(name, prefix) {
			want = append(want, k.settings[name])
		}
	}
	got := all(k, k.s.Settings(k.ctx, prefix))
	if !slices.EqualFunc(want, got, func(x, y webhook.Setting) bool {
		return x.Name == y.Name && x.Version == y.Version && bytes.Equal(x.Value, y.Value)
	}) {
		k.Fatalf("Settings(%q) (-want +got)\n%s", prefix, gocmp.Diff(want, got, cmpopts.EquateEmpty()))
	}
}

// compareDead returns the dead letters that filter selects behind a key, having compared them.
func (k *kit) compareDead(filter webhook.DeadFilter, after string) []webhook.DeadLetter {
	k.Helper()
	got := all(k, k.s.Dead(k.ctx, filter, after))
	want := maps.Clone(k.dead)
	maps.DeleteFunc(want, func(_ string, d webhook.DeadLetter) bool { return !filter.Match(&d) })
	for i, d := range got {
		w, ok := want[key(&d.Delivery)]
		if w.Key == "" {
			w.Key = d.Key
		}
		if !ok && after == "" || i > 0 && d.Died.Before(got[i-1].Died) {
			k.Fatalf("Dead yields %s where it does not belong", key(&d.Delivery))
		}
		k.sameDead("Dead", d, w)
		k.dead[key(&d.Delivery)] = w
	}
	if len(got) != len(want) && after == "" {
		k.Fatalf("Dead(%+v) yields %d, want %d", filter, len(got), len(want))
	}
	return got
}
