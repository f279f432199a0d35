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

	"github.com/hookferry/analytics/webhook"
)

// A model has the contents that the store must have, by the contract, after the calls of a case.
// The methods of kit in this file make a call, change the model, and compare the result of the call
// with the model.
type model struct {
	// The waiting deliveries by key; Claim is set for claimed ones.
	held  map[string]*webhook.Delivery
	known map[string]bool // the keys of all deliveries that were put
	// Claims that this Store value has handed out, each with the key of its delivery.
	used map[string]bool
	dead map[string]webhook.DeadLetter // Key is set once the store has returned it
	// The history without reasons; nil if the store has none.
	delivered map[string]webhook.DeadLetter
	settings  map[string]webhook.Setting
	versions  map[string]uint64 // the latest version of each setting
}

func newModel() model {
	return model{
		held:     make(map[string]*webhook.Delivery),
		known:    make(map[string]bool),
		used:     make(map[string]bool),
		dead:     make(map[string]webhook.DeadLetter),
		settings: make(map[string]webhook.Setting),
		versions: make(map[string]uint64),
	}
}

// inOrder returns the waiting deliveries in the order of Due.
func (m *model) inOrder() []*webhook.Delivery {
	return slices.SortedFunc(maps.Values(m.held), func(x, y *webhook.Delivery) int {
		return cmp.Or(x.Due.Compare(y.Due), strings.Compare(x.Destination, y.Destination), strings.Compare(x.ID, y.ID))
	})
}

// hold adds a delivery to the model. A delivery with a claim was stored and claimed at once by Put,
// so the model counts it as claimed.
func (k *kit) hold(d webhook.Delivery) {
	k.Helper()
	claim := d.Claim
	d.Claim = 0
	k.held[key(&d)] = &d
	if claim != 0 {
		k.claim(&d, claim)
	}
}

// claim adds the claim of a delivery to the model.
func (k *kit) claim(d *webhook.Delivery, claim uint64) {
	k.Helper()
	id := fmt.Sprint(key(d), " ", claim)
	if claim == 0 || k.used[id] {
		k.Fatalf("%s has the claim %d, want one that is not zero and that it never had", key(d), claim)
	}
	k.used[id] = true
	d.Claim = claim
}

// put puts ds without Keep.
func (k *kit) put(ds ...webhook.Delivery) {
	k.Helper()
	k.putAll(puts(ds...)...)
}

// putAll puts ps, and returns the deliveries that the store has kept for the caller.
func (k *kit) putAll(ps ...webhook.Put) (kept []webhook.Delivery) {
	k.Helper()
	out, err := tryPut(k.ctx, k.s, ps...)
	if err != nil {
		k.Fatalf("Put of %d deliveries: %v", len(ps), err)
	}
	for i, r := range out {
		d := ps[i].Delivery
		repeat := k.known[key(&d)] && !ps[i].NoDedup
		if r.Stored == repeat || r.Claim != 0 && !(r.Stored && ps[i].Keep) {
			k.Fatalf("Put of %s returned %+v; it is a repeat: %t, with Keep: %t", key(&d), r, repeat, ps[i].Keep)
		}
		if !r.Stored {
			continue
		}
		k.known[key(&d)] = k.known[key(&d)] || !ps[i].NoDedup
		d.Claim = r.Claim
		k.hold(d)
		if r.Claim != 0 {
			kept = append(kept, d)
		}
	}
	return kept
}

// fetch fetches up to max fresh deliveries and max retries of each destination.
func (k *kit) fetch(max int, destinations ...string) []webhook.Delivery {
	k.Helper()
	return k.fetchWants(noLimit, wants(max, destinations...)...)
}

// fetchOne fetches from a destination that must have exactly one due delivery.
func (k *kit) fetchOne(destination string) webhook.Delivery {
	k.Helper()
	ds := k.fetch(10, destination)
	if len(ds) != 1 {
		k.Fatalf("Fetch returned %v, want one delivery", ids(ds))
	}
	return ds[0]
}

// fetchQueue fetches from one queue of a destination.
func (k *kit) fetchQueue(max int, destination string, retries bool) []webhook.Delivery {
	k.Helper()
	return k.fetchWants(noLimit, webhook.Want{Destination: destination, Retries: retries, Max: max})
}

// fetchWants fetches with ws and checks the result. Each queue is in ws at most once.
func (k *kit) fetchWants(maxBytes int64, ws ...webhook.Want) []webhook.Delivery {
	k.Helper()
	before, first := k.s.Now(), webhook.Delivery{ID: "first"}
	for i := range ws {
		ws[i].Next = before
	}
	ds, err := k.s.Fetch(k.ctx, ws, maxBytes, []webhook.Delivery{first})
	after := k.s.Now()
	if err != nil || len(ds) == 0 || !alike(ds[0], first) {
		k.Fatalf("Fetch returned %v, %v, want what was in dst, and more", ids(ds), err)
	}
	ds = ds[1:]
	next, bytes, full := 0, int64(0), false // next is the index of the next delivery to check
	unclaimed := make(map[webhook.Want][]*webhook.Delivery)
	for _, d := range k.inOrder() {
		if q := queueOf(d); d.Claim == 0 {
			unclaimed[q] = append(unclaimed[q], d)
		}
	}
	for _, w := range ws {
		q := webhook.Want{Destination: w.Destination, Retries: w.Retries}
		rest, n := unclaimed[q], 0
		for ; next < len(ds) && queueOf(&ds[next]) == q; next++ {
			d := ds[next]
			at := slices.IndexFunc(rest, func(other *webhook.Delivery) bool { return other.ID == d.ID })
			switch n++; {
			case n > w.Max:
				k.Fatalf("Fetch returned %s in addition to the %d that were wanted of its queue", key(&d), w.Max)
			case at < 0:
				k.Fatalf("Fetch returned %s, which does not wait or is claimed", key(&d))
			case d.Due.After(after):
				k.Fatalf("Fetch returned %s at %v, but it is due at %v", key(&d), after, d.Due)
			case rest[0].Due.Before(d.Due):
				k.Fatalf("Fetch returned %s, due at %v, before %s, due at %v", key(&d), d.Due, key(rest[0]), rest[0].Due)
			}
			equal(k, "what Fetch returned", d, *rest[at])
			k.claim(rest[at], d.Claim)
			bytes += int64(len(d.Body))
			rest = slices.Delete(rest, at, at+1)
		}
		var earliest time.Time
		if len(rest) > 0 {
			earliest = rest[0].Due
			if n < w.Max && !earliest.After(before) && !full {
				if full = next > 0 && bytes+largestFirst(rest) > maxBytes; !full {
					k.Fatalf("Fetch of up to %d bytes returned %v, but not %s, due at %v", maxBytes, ids(ds), key(rest[0]), earliest)
				}
			}
		}
		if !w.Next.Equal(earliest) {
			k.Fatalf("Fetch set Next of %q, retries: %t, to %v, want %v", w.Destination, w.Retries, w.Next, earliest)
		}
	}
	if next < len(ds) {
		k.Fatalf("Fetch returned %v; %s is not wanted, or not in the order of the wants", ids(ds), key(&ds[next]))
	}
	if bytes > maxBytes && len(ds) > 1 {
		k.Fatalf("Fetch of up to %d bytes returned %d bytes in %d deliveries", maxBytes, bytes, len(ds))
	}
	return ds
}

// queueOf returns a Want that names the queue of a delivery.
func queueOf(d *webhook.Delivery) webhook.Want {
	return webhook.Want{Destination: d.Destination, Retries: !d.Expires.IsZero()}
}

// largestFirst returns the size of the largest body among the deliveries with the earliest Due.
func largestFirst(ds []*webhook.Delivery) (size int64) {
	for _, d := range ds {
		if d.Due.Equal(ds[0].Due) {
			size = max(size, int64(len(d.Body)))
		}
	}
	return size
}

func (k *kit) settle(verdict webhook.Verdict, ds ...webhook.Delivery) {
	k.Helper()
	k.settleAll(settlements(k.s, verdict, ds...)...)
}

func (k *kit) settleAll(ss ...webhook.Settlement) {
	k.Helper()
	lent := slices.Clone(ss)
	for i := range ss {
		k.settled(&ss[i])
		defer lend(&lent[i].Delivery)()
	}
	if n, err := k.s.Settle(k.ctx, lent); n != len(ss) || err != nil {
		k.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
}

// settled makes the change of a settlement in the model.
func (m *model) settled(s *webhook.Settlement) {
	d := &s.Delivery
	h := m.held[key(d)]
	if h == nil || h.Claim == 0 || h.Claim != d.Claim {
		return
	}
	h.Claim = 0
	switch s.Verdict {
	case webhook.Done:
		delete(m.held, key(d))
		if m.delivered != nil {
			m.delivered[key(d)] = webhook.DeadLetter{Delivery: *h, Died: s.At}
		}
	case webhook.Bury:
		delete(m.held, key(d))
		h.Tries, h.Closed, h.Attempts = d.Tries, d.Closed, d.Attempts
		m.dead[key(d)] = webhook.DeadLetter{Delivery: *h, Reason: s.Reason, Died: s.At}
	case webhook.Retry:
		h.Due, h.Expires, h.Tries, h.Closed, h.Attempts = d.Due, d.Expires, d.Tries, d.Closed, d.Attempts
	}
}

// takeDead removes the dead letters with these keys from the model, and returns their deliveries.
func (m *model) takeDead(keys []string) (ds []*webhook.Delivery) {
	for id, d := range m.dead {
		if d.Key != "" && slices.Contains(keys, d.Key) {
			delete(m.dead, id)
			ds = append(ds, &d.Delivery)
		}
	}
	return ds
}

func (k *kit) discard(keys ...string) {
	k.Helper()
	want := len(k.takeDead(keys))
	if n, err := k.s.Discard(k.ctx, keys...); n != want || err != nil {
		k.Fatalf("Discard of %q = %d, %v, want %d", keys, n, err, want)
	}
}

func (k *kit) revive(keys ...string) {
	k.Helper()
	ds, began := k.takeDead(keys), k.s.Now()
	if n, err := k.s.Revive(k.ctx, keys...); n != len(ds) || err != nil {
		k.Fatalf("Revive of %q = %d, %v, want %d", keys, n, err, len(ds))
	}
	for _, d := range ds {
		d.Expires, d.Tries, d.Closed = time.Time{}, 0, nil
		k.held[key(d)] = d
	}
	k.dueNow(began, ds)
}

func (k *kit) change(f webhook.WaitingFilter, to webhook.Change) {
	k.Helper()
	changed, claimed, began := 0, 0, k.s.Now()
	var hastened []*webhook.Delivery
	for id, d := range k.held {
		switch {
		case !f.Match(d):
		case d.Claim != 0:
			claimed++
		case to == webhook.Discarded:
			delete(k.held, id)
			changed++
		case d.Hasten(began):
			hastened = append(hastened, d)
			changed++
		}
	}
	if n, passed, err := k.s.Change(k.ctx, f, to); n != changed || passed != claimed || err != nil {
		k.Fatalf("Change(%+v, %d) = %d, %d, %v, want %d, %d", f, to, n, passed, err, changed, claimed)
	}
	k.dueNow(began, hastened)
}

// dueNow checks that the store has made ds due during the latest call. began is when this call
// began. dueNow copies the times from the store to the model.
func (k *kit) dueNow(began time.Time, ds []*webhook.Delivery) {
	k.Helper()
	due := make(map[string]time.Time)
	for _, d := range ds {
		if due[key(d)].IsZero() {
			for _, w := range k.waiting(d.Destination, "") {
				due[key(&w)] = w.Due
			}
		}
		if d.Due = due[key(d)]; d.Due.Before(began) || d.Due.After(k.s.Now()) {
			k.Fatalf("%s is due at %v, want it to be due since %v", key(d), d.Due, began)
		}
	}
}

func (k *kit) erase(user string) {
	k.Helper()
	before, claimed := len(k.held)+len(k.dead)+len(k.delivered), 0
	maps.DeleteFunc(k.held, func(_ string, d *webhook.Delivery) bool {
		if d.User == user && d.Claim != 0 {
			claimed++
		}
		return d.User == user && d.Claim == 0
	})
	for _, of := range []map[string]webhook.DeadLetter{k.dead, k.delivered} {
		maps.DeleteFunc(of, func(_ string, d webhook.DeadLetter) bool { return d.User == user })
	}
	erased := before - len(k.held) - len(k.dead) - len(k.delivered)
	if n, passed, err := k.s.Erase(k.ctx, user); n != erased || passed != claimed || err != nil {
		k.Fatalf("Erase(%q) = %d, %d, %v, want %d, %d", user, n, passed, err, erased, claimed)
	}
}

// set stores a setting, or removes it if the value is nil.
func (k *kit) set(name string, value []byte, version uint64) {
	k.Helper()
	lent := bytes.Clone(value)
	v, err := k.s.Set(k.ctx, webhook.Setting{Name: name, Value: lent, Version: version})
	clear(lent)
	if held := k.settings[name].Version; held != version {
		if !errors.Is(err, webhook.ErrConflict) {
			k.Fatalf("Set of %q with version %d, while %d is held = %d, %v, want ErrConflict", name, version, held, v, err)
		}
		return
	}
	if err != nil || v <= k.versions[name] {
		k.Fatalf("Set of %q, version %d = %d, %v, want a version above %d", name, version, v, err, k.versions[name])
	}
	k.versions[name] = v
	if k.settings[name] = (webhook.Setting{Name: name, Value: value, Version: v}); value == nil {
		delete(k.settings, name)
	}
}

// compare compares all lists and counts of the store with the model.
func (k *kit) compare() {
	k.Helper()
	want := webhook.Counts{Waiting: len(k.held), Dead: len(k.dead), Delivered: len(k.delivered)}
	waiting := map[string][]webhook.Delivery{"nothing": nil}
	counts, heads := make(map[string]webhook.DestinationCounts), make(map[string]webhook.Head)
	for _, d := range k.inOrder() {
		name := d.Destination
		waiting[name] = append(waiting[name], *d)
		c, h := counts[name], heads[name]
		c.Destination, h.Destination = name, name
		c.Waiting++
		first := &h.Fresh
		if !d.Expires.IsZero() {
			first = &h.Retry
		}
		if d.Claim != 0 {
			c.Claimed++
			want.Claimed++
		} else {
			if first.IsZero() {
				*first = d.Due
			}
			heads[name] = h
		}
		if c.Oldest = h.Earliest(); want.Oldest.IsZero() {
			want.Oldest = c.Oldest
		}
		counts[name] = c
	}
	for _, d := range k.dead {
		if want.DeadBytes += d.Size(); want.OldestDead.IsZero() || d.Died.Before(want.OldestDead) {
			want.OldestDead = d.Died
		}
	}
	for _, d := range k.delivered {
		want.DeliveredBytes += d.Size()
	}
	got, err := k.s.Count(k.ctx)
	if got.DeadBytes == -1 { // -1 means unknown; OldestDead may then be unknown, too
		want.DeadBytes, want.OldestDead = -1, got.OldestDead
	}
	if err != nil {
		k.Fatalf("Count: %v", err)
	}
	equal(k, "Count", got, want)
	gotCounts := make(map[string]webhook.DestinationCounts)
	for _, c := range all(k, k.s.CountByDestination(k.ctx)) {
		c.Waiting += gotCounts[c.Destination].Waiting // is wrong if a destination is yielded twice
		gotCounts[c.Destination] = c
	}
	equal(k, "CountByDestination", gotCounts, counts)
	equal(k, "Heads(true)", k.heads(true), heads)
	for name, ds := range waiting {
		k.equalSets("Waiting", k.waiting(name, ""), ds)
	}
	k.deadLetters(webhook.DeadFilter{})
	if k.delivered != nil {
		k.history(webhook.DeliveredFilter{})
	}
	k.compareSettings("")
}

// waiting returns the deliveries that Waiting yields, and checks their order.
func (k *kit) waiting(destination, after string) []webhook.Delivery {
	k.Helper()
	got := all(k, k.s.Waiting(k.ctx, destination, after))
	if !slices.IsSortedFunc(got, func(x, y webhook.Delivery) int { return x.Due.Compare(y.Due) }) {
		k.Fatalf("Waiting yields what is not in the order of Due: %v", ids(got))
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
	equal(k, fmt.Sprintf("Settings(%q)", prefix), all(k, k.s.Settings(k.ctx, prefix)), want)
}

// deadLetters returns the dead letters that filter selects. It compares them with the model.
func (k *kit) deadLetters(filter webhook.DeadFilter) []webhook.DeadLetter {
	k.Helper()
	got := all(k, k.s.Dead(k.ctx, filter, ""))
	k.judge(fmt.Sprintf("Dead(%+v)", filter), got, k.dead, filter.Match, filter.NewestFirst)
	return got
}

// history returns the deliveries that Delivered yields. It compares them with the model.
func (k *kit) history(filter webhook.DeliveredFilter) []webhook.Delivered {
	k.Helper()
	got := all(k, k.s.(webhook.History).Delivered(k.ctx, filter, ""))
	var letters []webhook.DeadLetter
	for _, d := range got {
		letters = append(letters, webhook.DeadLetter{Delivery: d.Delivery, Died: d.At, Key: d.Key})
	}
	match := func(d *webhook.DeadLetter) bool {
		return filter.Match(&webhook.Delivered{Delivery: d.Delivery, At: d.Died})
	}
	k.judge(fmt.Sprintf("Delivered(%+v)", filter), letters, k.delivered, match, true)
	return got
}

// judge checks that the list got is in the order of Died, and has exactly those entries of the
// argument of, a map of the model, for which match returns true. judge copies the keys from the
// list to that map.
func (k *kit) judge(what string, got []webhook.DeadLetter, of map[string]webhook.DeadLetter, match func(*webhook.DeadLetter) bool, newestFirst bool) {
	k.Helper()
	for i, d := range got {
		if i > 0 && !d.Died.Equal(got[i-1].Died) && d.Died.Before(got[i-1].Died) != newestFirst {
			k.Fatalf("%s yields %s, of %v, behind one of %v", what, key(&d.Delivery), d.Died, got[i-1].Died)
		}
		if w, ok := of[key(&d.Delivery)]; ok && w.Key == "" {
			w.Key = d.Key
			of[key(&d.Delivery)] = w
		}
	}
	byKey := func(x, y webhook.DeadLetter) int { return strings.Compare(x.Key, y.Key) }
	want := slices.SortedFunc(maps.Values(of), byKey)
	want = slices.DeleteFunc(want, func(d webhook.DeadLetter) bool { return !match(&d) })
	equal(k, what, slices.SortedFunc(slices.Values(got), byKey), want)
}
