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

// A model says what a store holds after its operations, by the contract. Its methods do something to
// the store and to the model, and check that the store returns what the model does.
type model struct {
	*subject
	held     map[string]*webhook.Delivery // what waits, by key; with a Claim if it is claimed
	known    map[string]bool              // the keys that were put
	used     map[string]bool              // the claims of this Store value, behind their keys
	dead     map[string]webhook.DeadLetter
	settings map[string]webhook.Setting
	versions map[string]uint64 // the latest of each setting
}

func newModel(s *subject) *model {
	return &model{s, map[string]*webhook.Delivery{}, map[string]bool{}, map[string]bool{}, map[string]webhook.DeadLetter{}, map[string]webhook.Setting{}, map[string]uint64{}}
}

// reopen closes the store, if it is open, and opens it again.
func (m *model) reopen() {
	m.Helper()
	m.close()
	m.s = m.open(m, m.dir)
	clear(m.used)
	for _, h := range m.held {
		h.Claim = 0
	}
}

// restart is reopen for a store that is durable.
func (m *model) restart() {
	m.Helper()
	if m.traits.Durable {
		m.reopen()
	}
}

// A queue names one queue.
type queue struct {
	destination string
	retries     bool
}

func queueOf(d *webhook.Delivery) queue { return queue{d.Destination, !d.Expires.IsZero()} }

// inOrder returns what is held.
func (m *model) inOrder() []*webhook.Delivery {
	return slices.SortedFunc(maps.Values(m.held), func(x, y *webhook.Delivery) int {
		return cmp.Or(x.Due.Compare(y.Due), strings.Compare(key(x), key(y)))
	})
}

// waiting returns what is held and not claimed, by queue and in order.
func (m *model) waiting() map[queue][]*webhook.Delivery {
	waiting := make(map[queue][]*webhook.Delivery)
	for _, h := range m.inOrder() {
		if h.Claim == 0 {
			waiting[queueOf(h)] = append(waiting[queueOf(h)], h)
		}
	}
	return waiting
}

// claim notes the claim of a delivery that the store handed out.
func (m *model) claim(h *webhook.Delivery, claim uint64) {
	m.Helper()
	id := fmt.Sprint(key(h), claim)
	if claim == 0 || m.used[id] {
		m.Fatalf("%s has the claim %d, as before", key(h), claim)
	}
	m.used[id] = true
	h.Claim = claim
}

// put puts ds, and asks to keep none.
func (m *model) put(ds ...webhook.Delivery) {
	m.Helper()
	m.putAll(puts(ds)...)
}

// putAll puts ps, and returns those that were kept.
func (m *model) putAll(ps ...webhook.Put) (kept []webhook.Delivery) {
	m.Helper()
	out, err := tryPut(m.ctx, m.s, ps...)
	if err != nil {
		m.Fatalf("Put of %d deliveries: %v", len(ps), err)
	}
	for i, r := range out {
		h := ps[i].Delivery
		before := m.known[key(&h)] && !ps[i].NoDedup
		if r.Stored == before || r.Claim != 0 && !(r.Stored && ps[i].Keep) {
			m.Fatalf("Put of %s, keep: %t, which was put before: %t, returned %+v", key(&h), ps[i].Keep, before, r)
		}
		if !r.Stored {
			continue
		}
		if r.Claim != 0 {
			m.claim(&h, r.Claim)
			kept = append(kept, h)
		}
		m.held[key(&h)], m.known[key(&h)] = &h, m.known[key(&h)] || !ps[i].NoDedup
	}
	return kept
}

// fetch fetches up to max fresh deliveries and max retries of each destination.
func (m *model) fetch(max int, destinations ...string) []webhook.Delivery {
	m.Helper()
	return m.fetchWants(noLimit, wants(max, destinations...)...)
}

// fetchQueue fetches from one queue.
func (m *model) fetchQueue(max int, destination string, retries bool) []webhook.Delivery {
	m.Helper()
	return m.fetchWants(noLimit, webhook.Want{Destination: destination, Retries: retries, Max: max})
}

func (m *model) fetchWants(maxBytes int64, ws ...webhook.Want) []webhook.Delivery {
	m.Helper()
	var asked []queue
	most := make(map[queue]int)
	for i := range ws {
		ws[i].Next = m.s.Now()
		asked = append(asked, queue{ws[i].Destination, ws[i].Retries})
		most[asked[i]] += ws[i].Max
	}
	before, first := m.s.Now(), webhook.Delivery{ID: "first"}
	ds, err := m.s.Fetch(m.ctx, ws, maxBytes, []webhook.Delivery{first})
	after := m.s.Now()
	if err != nil || len(ds) == 0 || !alike(ds[0], first) {
		m.Fatalf("Fetch returned %v, %v", ids(ds), err)
	}
	ds = ds[1:]
	waiting := m.waiting()
	var bytes int64
	rank := 0
	for _, d := range ds {
		q := queueOf(&d)
		h, was := m.held[key(&d)], rank
		at := slices.Index(waiting[q], h)
		rank = slices.Index(asked, q)
		switch most[q]--; {
		case most[q] < 0 || rank < was:
			m.Fatalf("Fetch(%+v) returned %s too much, or out of order", ws, key(&d))
		case at < 0 || d.Due.After(after):
			m.Fatalf("Fetch returned %s, which is not to be had: %+v", key(&d), h)
		case waiting[q][0].Due.Before(h.Due):
			m.Fatalf("Fetch returned %s, due %v, before %s, due %v", key(&d), d.Due, key(waiting[q][0]), waiting[q][0].Due)
		}
		m.same("Fetch", []webhook.Delivery{d}, *h)
		waiting[q] = slices.Delete(waiting[q], at, at+1)
		m.claim(h, d.Claim)
		bytes += int64(len(d.Body))
	}
	if bytes > maxBytes && len(ds) > 1 {
		m.Fatalf("Fetch of up to %d bytes returned %d", maxBytes, bytes)
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
					m.Fatalf("Fetch(%+v) of up to %d bytes returned %v, but not %s, due %v", ws, maxBytes, ids(ds), key(rest[0]), next)
				}
			}
		}
		if !ws[i].Next.Equal(next) {
			m.Fatalf("Fetch set Next of %+v, want %v", ws[i], next)
		}
	}
	return ds
}

func (m *model) settle(verdict webhook.Verdict, ds ...webhook.Delivery) {
	m.Helper()
	m.settleAll(settlements(m.s, verdict, ds...)...)
}

// settleAll settles ss, and spoils what the store was handed.
func (m *model) settleAll(ss ...webhook.Settlement) {
	m.Helper()
	handed := slices.Clone(ss)
	for i := range ss {
		m.settled(&ss[i])
		handed[i].Delivery = detach(ss[i].Delivery)
	}
	n, err := m.s.Settle(m.ctx, handed)
	if n != len(ss) || err != nil {
		m.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
	for i := range handed {
		spoil(&handed[i].Delivery)
		handed[i] = webhook.Settlement{}
	}
}

// settled makes the change that a settlement stands for.
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
	case webhook.Bury:
		delete(m.held, key(d))
		h.Tries, h.Closed, h.Attempts = d.Tries, d.Closed, d.Attempts
		m.dead[key(d)] = webhook.DeadLetter{Delivery: *h, Reason: s.Reason, Died: s.At}
	case webhook.Retry:
		h.Due, h.Expires, h.Tries, h.Closed, h.Attempts = d.Due, d.Expires, d.Tries, d.Closed, d.Attempts
	}
}

// exhume calls Revive or Discard.
func (m *model) exhume(revive bool, keys ...string) {
	m.Helper()
	want := 0
	for id, d := range m.dead {
		if !slices.Contains(keys, d.Key) {
			continue
		}
		delete(m.dead, id)
		if want++; revive {
			d.Due, d.Expires, d.Tries, d.Closed = m.s.Now(), time.Time{}, 0, nil
			m.held[id] = &d.Delivery
		}
	}
	do := m.s.Discard
	if revive {
		do = m.s.Revive
	}
	if n, err := do(m.ctx, keys...); n != want || err != nil {
		m.Fatalf("Revive (%t) or Discard of %q = %d, %v, want %d", revive, keys, n, err, want)
	}
	if revive {
		m.learnDues(time.Time{})
	}
}

// change calls Change.
func (m *model) change(f webhook.WaitingFilter, to webhook.Change) {
	m.Helper()
	changed, claimed := 0, 0
	now := m.s.Now()
	for id, h := range m.held {
		switch {
		case !f.Match(h):
		case h.Claim != 0:
			claimed++
		case to == webhook.Discarded:
			delete(m.held, id)
			changed++
		case h.Hasten(now):
			changed++
		}
	}
	if n, passed, err := m.s.Change(m.ctx, f, to); n != changed || passed != claimed || err != nil {
		m.Fatalf("Change(%+v, %d) = %d, %d, %v, want %d, %d", f, to, n, passed, err, changed, claimed)
	}
	if to == webhook.DueNow {
		m.learnDues(now)
	}
}

// learnDues sets the Due of what the store has made due since a time: when exactly, the store says.
func (m *model) learnDues(since time.Time) {
	if m.traits.Bubble {
		return
	}
	for _, d := range m.inOrder() {
		if d.Due.Before(since) {
			continue
		}
		for _, w := range m.listed(d.Destination, "") {
			if w.ID == d.ID && w.Due.After(d.Due) && !w.Due.After(m.s.Now()) {
				d.Due = w.Due
			}
		}
	}
}

// erase removes what is of a user.
func (m *model) erase(user string) {
	m.Helper()
	before, claimed := len(m.held)+len(m.dead), 0
	maps.DeleteFunc(m.held, func(_ string, h *webhook.Delivery) bool {
		if h.User == user && h.Claim != 0 {
			claimed++
		}
		return h.User == user && h.Claim == 0
	})
	maps.DeleteFunc(m.dead, func(_ string, d webhook.DeadLetter) bool { return d.User == user })
	erased := before - len(m.held) - len(m.dead)
	if n, passed, err := m.s.Erase(m.ctx, user); n != erased || passed != claimed || err != nil {
		m.Fatalf("Erase(%q) = %d, %d, %v, want %d, %d", user, n, passed, err, erased, claimed)
	}
}

// set stores a setting, or removes it if the value is nil, and spoils what the store was handed.
func (m *model) set(name string, value []byte, version uint64) {
	m.Helper()
	handed := slices.Clone(value)
	v, err := m.s.Set(m.ctx, webhook.Setting{Name: name, Value: handed, Version: version})
	spoil(&webhook.Delivery{Body: handed})
	switch {
	case m.settings[name].Version != version:
		if !errors.Is(err, webhook.ErrConflict) {
			m.Fatalf("Set of %q, version %d = %d, %v, want ErrConflict", name, version, v, err)
		}
		return
	case err != nil || v <= m.versions[name]:
		m.Fatalf("Set of %q, version %d = %d, %v; the latest version was %d", name, version, v, err, m.versions[name])
	}
	m.versions[name] = v
	if m.settings[name] = (webhook.Setting{Name: name, Value: value, Version: v}); value == nil {
		delete(m.settings, name)
	}
}

// compare compares all that can be asked for.
func (m *model) compare() {
	m.Helper()
	m.compareDead(webhook.DeadFilter{}, "")
	counts := make(map[string]*webhook.DestinationCounts)
	heads := make(map[string]webhook.Head)
	of := make(map[string][]webhook.Delivery)
	want := webhook.Counts{Waiting: len(m.held), Dead: len(m.dead)}
	for _, d := range m.inOrder() {
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
	got, err := m.s.Count(m.ctx)
	for _, d := range m.dead {
		if want.DeadBytes += d.Size(); want.OldestDead.IsZero() || d.Died.Before(want.OldestDead) {
			want.OldestDead = d.Died
		}
	}
	if got.DeadBytes == -1 { // unknown, as may be OldestDead
		want.DeadBytes, want.OldestDead = -1, got.OldestDead
	}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		m.Fatalf("Count: %v (-want +got)\n%s", err, diff)
	}
	gotCounts := make(map[string]*webhook.DestinationCounts)
	for _, c := range all(m, m.s.CountByDestination(m.ctx)) {
		gotCounts[c.Destination] = &c
	}
	if diff := gocmp.Diff(counts, gotCounts); diff != "" {
		m.Fatalf("CountByDestination (-want +got)\n%s", diff)
	}
	if diff := gocmp.Diff(heads, m.heads(m.s, true)); diff != "" {
		m.Fatalf("Heads (-want +got)\n%s", diff)
	}
	for _, name := range append(slices.Collect(maps.Keys(of)), "nothing") {
		m.sameSet("Waiting", m.listed(name, ""), of[name]...)
	}
	m.compareSettings("")
}

// listed returns what Waiting yields.
func (m *model) listed(destination, after string) []webhook.Delivery {
	m.Helper()
	got := all(m, m.s.Waiting(m.ctx, destination, after))
	if !slices.IsSortedFunc(got, func(x, y webhook.Delivery) int { return x.Due.Compare(y.Due) }) {
		m.Fatalf("Waiting is out of order: %v", ids(got))
	}
	return got
}

func (m *model) compareSettings(prefix string) {
	m.Helper()
	var want []webhook.Setting
	for _, name := range slices.Sorted(maps.Keys(m.settings)) {
		if strings.HasPrefix(name, prefix) {
			want = append(want, m.settings[name])
		}
	}
	got := all(m, m.s.Settings(m.ctx, prefix))
	if !slices.EqualFunc(want, got, func(x, y webhook.Setting) bool {
		return x.Name == y.Name && x.Version == y.Version && bytes.Equal(x.Value, y.Value)
	}) {
		m.Fatalf("Settings(%q) (-want +got)\n%s", prefix, gocmp.Diff(want, got, cmpopts.EquateEmpty()))
	}
}

// compareDead returns the dead letters that filter selects behind a key, having compared them.
func (m *model) compareDead(filter webhook.DeadFilter, after string) []webhook.DeadLetter {
	m.Helper()
	got := all(m, m.s.Dead(m.ctx, filter, after))
	want := maps.Clone(m.dead)
	maps.DeleteFunc(want, func(_ string, d webhook.DeadLetter) bool { return !filter.Match(&d) })
	for i, d := range got {
		w, ok := want[key(&d.Delivery)]
		if w.Key == "" {
			w.Key = d.Key
		}
		if !ok && after == "" || i > 0 && !d.Died.Equal(got[i-1].Died) && d.Died.Before(got[i-1].Died) != filter.NewestFirst {
			m.Fatalf("Dead yields %s where it does not belong", key(&d.Delivery))
		}
		m.sameDead("Dead", d, w)
		m.dead[key(&d.Delivery)] = w
	}
	if len(got) != len(want) && after == "" {
		m.Fatalf("Dead(%+v) yields %d, want %d", filter, len(got), len(want))
	}
	return got
}
