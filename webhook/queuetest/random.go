package queuetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

var randomCase = testCase{"Random", "All of it at once: random operations do to the store what they do to a model of the contract.", 0, func(k *kit) {
	m := &model{kit: k, held: map[string]*modelled{}, dead: map[string]webhook.DeadLetter{}, documents: map[string]webhook.Setting{}}
	_, err := list(k.s.Waiting(k.ctx, "d0", ""))
	m.canList = !errors.Is(err, webhook.ErrUnsupported)
	_, err = k.s.Set(k.ctx, setting("doc/none", "", 0))
	m.canSet = !errors.Is(err, webhook.ErrUnsupported)
	_, _, err = k.s.Erase(k.ctx, "nobody")
	m.canErase = !errors.Is(err, webhook.ErrUnsupported)
	steps := 3000
	if k.traits.Share {
		steps = 600
	}
	for range steps {
		m.step()
	}
	m.drain()
}}

// A model says what a store with the same history holds.
type model struct {
	*kit
	held            map[string]*modelled // by destination and id; what waits or is claimed
	dead            map[string]webhook.DeadLetter
	documents       map[string]webhook.Setting
	old             []webhook.Delivery // to be put again
	past            []webhook.Delivery // with claims that no longer hold
	ids             int
	canList, canSet bool
	canErase        bool
}

// A modelled is a delivery in the model. Its Claim is zero if it is not claimed.
type modelled struct{ webhook.Delivery }

// A line is one queue.
type line struct {
	destination string
	retries     bool
}

// of returns the queue of a delivery. All of a destination are in one if the store is Mixed.
func (m *model) of(d *webhook.Delivery) line {
	return line{d.Destination, !d.Expires.IsZero() && !m.traits.Mixed}
}

func (m *model) step() {
	m.Helper()
	switch p := m.r.IntN(100); {
	case p < 30:
		m.puts()
	case p < 55:
		m.fetches()
	case p < 82:
		m.settles()
	case p < 88 && m.traits.Bubble:
		m.pass(time.Duration(m.r.Int64N(int64(m.unit))))
	case p < 91:
		m.exhumes()
	case p < 94 && m.canSet:
		m.sets()
	case p < 95 && m.canErase:
		m.erases()
	case p < 96 && m.traits.Durable:
		m.reopen()
		for _, h := range m.held {
			h.Claim = 0
		}
		m.past = nil
	default:
		m.compare()
	}
}

func (m *model) puts() {
	m.Helper()
	var ps []webhook.Put
	var isNew []bool
	for range 1 + m.r.IntN(12) {
		keep := m.r.IntN(4) == 0
		if len(m.old) > 0 && m.r.IntN(6) == 0 {
			ps, isNew = append(ps, webhook.Put{Delivery: m.old[m.r.IntN(len(m.old))], Keep: keep}), append(isNew, false)
			continue
		}
		m.ids++
		d := m.delivery(fmt.Sprint("d", m.r.IntN(5)), fmt.Sprint(m.ids))
		if m.r.IntN(4) == 0 {
			d = m.full(d.Destination, d.ID)
		}
		d.User = fmt.Sprint("user ", m.r.IntN(30))
		d.Body = append(d.Body, make([]byte, m.r.IntN(2000))...)
		switch m.r.IntN(3) {
		case 0:
			d.Due = m.s.Now().Add(time.Duration(m.r.Int64N(int64(3 * m.unit)))).Truncate(time.Microsecond)
		case 1:
			d.Due = m.s.Now().Add(-time.Duration(m.r.Int64N(int64(time.Hour)))).Truncate(time.Microsecond)
		}
		m.old = append(m.old, d)
		ps, isNew = append(ps, webhook.Put{Delivery: d, Keep: keep}), append(isNew, true)
	}
	out := make([]webhook.Result, len(ps))
	if err := m.s.Put(m.ctx, ps, out); err != nil {
		m.Fatalf("Put: %v", err)
	}
	for i, r := range out {
		if r.Stored != isNew[i] || r.Claim != 0 && !(r.Stored && ps[i].Keep) {
			m.Fatalf("Put of %s, kept: %t, new: %t = %+v", key(&ps[i].Delivery), ps[i].Keep, isNew[i], r)
		}
		if d := ps[i].Delivery; r.Stored {
			d.Claim = r.Claim
			m.held[key(&d)] = &modelled{d}
		}
	}
}

// lines returns what is not claimed, by queue and in order.
func (m *model) lines() map[line][]*modelled {
	lines := make(map[line][]*modelled)
	for _, h := range m.inOrder() {
		if h.Claim == 0 {
			lines[m.of(&h.Delivery)] = append(lines[m.of(&h.Delivery)], h)
		}
	}
	return lines
}

// inOrder returns what is held, in an order that depends on the seed alone.
func (m *model) inOrder() []*modelled {
	return slices.SortedFunc(maps.Values(m.held), func(x, y *modelled) int {
		return cmp.Or(x.Due.Compare(y.Due), strings.Compare(key(&x.Delivery), key(&y.Delivery)))
	})
}

func (m *model) fetches() {
	m.Helper()
	var ws []webhook.Want
	most := make(map[line]int)
	for _, i := range m.r.Perm(10)[:1+m.r.IntN(10)] {
		w := webhook.Want{Destination: fmt.Sprint("d", i/2), Retries: i%2 == 1, Max: 1 + m.r.IntN(8), Next: m.s.Now()}
		ws = append(ws, w)
		most[line{w.Destination, w.Retries && !m.traits.Mixed}] += w.Max
	}
	maxBytes := int64(noLimit)
	if m.r.IntN(4) == 0 {
		maxBytes = m.r.Int64N(20_000)
	}
	before := m.s.Now()
	ds, err := m.s.Fetch(m.ctx, ws, maxBytes, nil)
	after := m.s.Now()
	if err != nil {
		m.Fatalf("Fetch: %v", err)
	}
	lines := m.lines()
	var bytes int64
	for i, d := range ds {
		l := m.of(&d)
		if most[l]--; most[l] < 0 {
			m.Fatalf("Fetch(%+v) returned too much of %v", ws, l)
		}
		h := m.held[key(&d)]
		at := slices.Index(lines[l], h)
		switch {
		case h == nil || at < 0 || d.Due.After(after):
			m.Fatalf("Fetch returned %s, which is not to be had: %+v", key(&d), h)
		case lines[l][0].Due.Before(d.Due):
			m.Fatalf("Fetch returned %s, due %v, before %s, due %v", key(&d), d.Due, key(&lines[l][0].Delivery), lines[l][0].Due)
		case i > 0 && !m.traits.Mixed && m.rank(ws, &d) < m.rank(ws, &ds[i-1]):
			m.Fatalf("Fetch(%+v) returned %s behind %s", ws, key(&d), key(&ds[i-1]))
		}
		m.same("Fetch", []webhook.Delivery{d}, h.Delivery)
		lines[l] = slices.Delete(lines[l], at, at+1)
		h.Claim = d.Claim
		bytes += int64(len(d.Body))
	}
	if bytes > maxBytes && len(ds) > 1 {
		m.Fatalf("Fetch of up to %d bytes returned %d", maxBytes, bytes)
	}
	for _, w := range ws {
		l := line{w.Destination, w.Retries && !m.traits.Mixed}
		var next time.Time
		if rest := lines[l]; len(rest) > 0 {
			next = rest[0].Due
			if most[l] > 0 && !next.After(before) && (len(ds) == 0 || bytes+int64(2100) < maxBytes) { // than which no body is longer
				m.Fatalf("Fetch(%+v) of up to %d bytes returned %v, but not %s, due %v", ws, maxBytes, ids(ds), key(&rest[0].Delivery), next)
			}
		}
		if !m.traits.Mixed && !w.Next.Equal(next) {
			m.Fatalf("Next of %+v, want %v", w, next)
		}
	}
}

// rank returns the index of the want that d was fetched for.
func (m *model) rank(ws []webhook.Want, d *webhook.Delivery) int {
	return slices.IndexFunc(ws, func(w webhook.Want) bool { return line{w.Destination, w.Retries} == m.of(d) })
}

func (m *model) settles() {
	m.Helper()
	at := m.s.Now()
	var ss []webhook.Settlement
	for _, h := range m.inOrder() {
		if h.Claim == 0 || m.r.IntN(3) == 0 {
			continue
		}
		s := webhook.Settlement{Verdict: verdicts[m.r.IntN(4)], Delivery: h.Delivery, Reason: webhook.ReasonServerError, At: at.Add(-time.Duration(m.r.IntN(1000)) * time.Millisecond)}
		m.past = append(m.past, s.Delivery)
		d := &s.Delivery
		d.Tries++
		if len(d.Attempts) < webhook.MaxAttempts {
			d.Attempts = append(slices.Clip(d.Attempts), webhook.Attempt{At: at, Try: d.Tries, Status: 500, Reason: s.Reason})
		}
		switch s.Verdict {
		case webhook.Done, webhook.Bury:
			delete(m.held, key(d))
			if s.Verdict == webhook.Bury {
				m.dead[key(d)] = webhook.DeadLetter{Delivery: *d, Reason: s.Reason, Died: s.At}
			}
		case webhook.Retry:
			d.Due = at.Add(time.Duration(m.r.Int64N(int64(2*m.unit))) - m.unit/2).Truncate(time.Microsecond)
			d.Expires = at.Add(4 * time.Hour)
			h.Delivery = *d
		}
		h.Claim = 0
		d.Body = nil
		ss = append(ss, s)
	}
	for range min(m.r.IntN(3), len(m.past)-len(ss)) {
		ss = append(ss, m.settlements(verdicts[m.r.IntN(4)], m.past[m.r.IntN(len(m.past)-len(ss))])...)
	}
	m.settleAll(ss...)
	if len(m.past) > 500 {
		m.past = m.past[400:]
	}
}

// exhumes revives and discards some.
func (m *model) exhumes() {
	m.Helper()
	for _, d := range m.compareDead() {
		switch m.r.IntN(4) {
		case 0:
			if !m.traits.Bubble { // when it would be due cannot be told
				continue
			}
			m.pass(time.Microsecond)
			began := m.s.Now()
			m.exhume(m.s.Revive, 1, d.Key)
			head, ok := m.heads(m.s, false)[d.Destination]
			if !m.traits.Share && (!ok || head.Fresh.IsZero() && !m.traits.Mixed) {
				m.Fatalf("Heads(false) yields %+v after Revive of %s", head, key(&d.Delivery))
			}
			d.Due, d.Expires, d.Tries, d.Closed = began, time.Time{}, 0, nil
			m.held[key(&d.Delivery)] = &modelled{d.Delivery}
		case 1:
			m.exhume(m.s.Discard, 1, d.Key)
		default:
			continue
		}
		delete(m.dead, key(&d.Delivery))
	}
}

// erases removes what is of a user.
func (m *model) erases() {
	m.Helper()
	user := fmt.Sprint("user ", m.r.IntN(30))
	erased, claimed := 0, 0
	for id, h := range m.held {
		if h.User == user && h.Claim == 0 {
			delete(m.held, id)
			erased++
		} else if h.User == user {
			claimed++
		}
	}
	for id, d := range m.dead {
		if d.User == user {
			delete(m.dead, id)
			erased++
		}
	}
	if n, passed, err := m.s.Erase(m.ctx, user); n != erased || passed != claimed || err != nil {
		m.Fatalf("Erase(%q) = %d, %d, %v, want %d, %d", user, n, passed, err, erased, claimed)
	}
}

// sets changes some settings, with the right version or another.
func (m *model) sets() {
	m.Helper()
	name := fmt.Sprint("doc/", m.r.IntN(8))
	was := m.documents[name]
	value := ""
	if m.r.IntN(4) > 0 {
		value = fmt.Sprint("value ", m.r.IntN(1000))
	}
	if m.r.IntN(4) == 0 {
		m.conflict(name, value, was.Version+1+m.r.Uint64N(3))
		return
	}
	s := setting(name, value, m.set(name, value, was.Version))
	if m.documents[name] = s; value == "" {
		delete(m.documents, name)
	}
}

// compareDead returns the dead letters, having compared them.
func (m *model) compareDead() []webhook.DeadLetter {
	m.Helper()
	all := m.kit.dead(webhook.DeadFilter{}, "")
	got := map[string]webhook.DeadLetter{}
	for i, d := range all {
		if i > 0 && d.Died.Before(all[i-1].Died) {
			m.Fatalf("Dead is out of order")
		}
		d.Key = ""
		got[key(&d.Delivery)] = d
	}
	if !maps.EqualFunc(m.dead, got, alikeDead) {
		m.Fatalf("Dead (-want +got)\n%s", gocmp.Diff(m.dead, got, likeStored))
	}
	return all
}

// compare compares all that can be asked for.
func (m *model) compare() {
	m.Helper()
	m.compareDead()
	claimed := 0
	var oldest time.Time
	var waiting []webhook.Delivery
	for _, h := range m.inOrder() {
		if h.Claim != 0 {
			claimed++
		} else if oldest.IsZero() {
			oldest = h.Due
		}
		if h.Destination == "d0" {
			waiting = append(waiting, h.Delivery)
		}
	}
	m.counts(len(m.held), claimed, len(m.dead))
	if got := m.count().Oldest; !got.Equal(oldest) {
		m.Fatalf("Count says that the oldest is due %v, want %v", got, oldest)
	}
	if m.canList {
		got := m.waiting("d0", "")
		if !slices.IsSortedFunc(got, func(x, y webhook.Delivery) int { return x.Due.Compare(y.Due) }) {
			m.Fatalf("Waiting is out of order: %v", ids(got))
		}
		m.sameSet("Waiting", got, waiting...)
	}
	if m.canSet {
		m.settings(m.s, "doc/", slices.SortedFunc(maps.Values(m.documents), func(x, y webhook.Setting) int { return strings.Compare(x.Name, y.Name) })...)
	}
	heads := make(map[string]webhook.Head)
	for l, hs := range m.lines() {
		h := heads[l.destination]
		if h.Destination = l.destination; l.retries {
			h.Retry = hs[0].Due
		} else {
			h.Fresh = hs[0].Due
		}
		heads[l.destination] = h
	}
	m.headsAre(true, slices.Collect(maps.Values(heads))...)
}

// drain settles all there is, and compares it.
func (m *model) drain() {
	m.Helper()
	m.compare()
	last := m.s.Now()
	for _, h := range m.held {
		if h.Claim != 0 {
			m.settle(webhook.Return, h.Delivery)
		}
		if h.Due.After(last) {
			last = h.Due
		}
	}
	m.pass(last.Sub(m.s.Now()))
	var want []webhook.Delivery
	for _, h := range m.held {
		want = append(want, h.Delivery)
	}
	got := m.fetch(10_000, "d0", "d1", "d2", "d3", "d4")
	m.sameSet("Fetch of all", got, want...)
	m.settle(webhook.Done, got...)
	m.held = nil
	m.compare()
}
