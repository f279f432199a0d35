package queuetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

var randomCases = []testCase{
	{
		name:     "Random",
		sentence: "All of it at once: random operations do to the store what they do to a model of the contract.",
		random:   true,
		run: func(k *kit) {
			m := &model{kit: k, held: map[string]*modelled{}, dead: map[string]webhook.DeadLetter{}}
			steps := 3000
			if k.traits.Share {
				steps = 600
			}
			for range steps {
				m.step()
			}
			m.drain()
		},
	},
}

// A model says what a store with the same history holds. It takes the store's
// word only for what the contract leaves open: which of several destinations
// is served.
type model struct {
	*kit
	held map[string]*modelled // by destination and id; what waits or is leased
	dead map[string]webhook.DeadLetter
	ids  int
	old  []webhook.Delivery // to be put again
	past []webhook.Delivery // leases that no longer hold
}

type modelled struct {
	d     webhook.Delivery
	until time.Time // of the lease, zero if there was none or it was settled
	lease uint64
}

func (h *modelled) leasedAt(t time.Time) bool { return t.Before(h.until) }

func key(d *webhook.Delivery) string { return d.Destination + "/" + d.ID }

func (m *model) step() {
	m.Helper()
	switch p := m.r.IntN(100); {
	case p < 30:
		m.puts()
	case p < 55:
		m.leases()
	case p < 85:
		m.settles()
	case p < 92:
		if m.traits.Bubble {
			m.pass(time.Duration(m.r.Int64N(int64(m.traits.Lease))))
		}
	case p < 96:
		m.exhumes()
	case p < 97:
		if m.traits.Durable {
			m.restart()
		}
	default:
		m.checkCounts()
	}
}

func (m *model) puts() {
	m.Helper()
	var ds []webhook.Delivery
	want := 0
	for range 1 + m.r.IntN(12) {
		if len(m.old) > 0 && m.r.IntN(6) == 0 {
			ds = append(ds, m.old[m.r.IntN(len(m.old))])
			continue
		}
		m.ids++
		d := delivery(fmt.Sprint("d", m.r.IntN(5)), fmt.Sprint(m.ids))
		if m.r.IntN(5) == 0 {
			d = full(d.Destination, d.ID)
		}
		d.Body = append(d.Body, make([]byte, m.r.IntN(2000))...)
		switch m.r.IntN(3) {
		case 0:
			d.Due = now().Add(time.Duration(m.r.Int64N(int64(3 * m.traits.Lease))))
		case 1:
			d.Due = now().Add(-time.Duration(m.r.Int64N(int64(time.Hour))))
		}
		d.Due = d.Due.Truncate(time.Microsecond) // as exact as a store has to be
		ds = append(ds, d)
		m.old = append(m.old, d)
		m.held[key(&d)] = &modelled{d: d}
		want++
	}
	m.repeats("", want, ds...)
}

func (m *model) leases() {
	m.Helper()
	at := now()
	room := map[string]int{}
	req := webhook.LeaseRequest{Max: 1 + m.r.IntN(40), Until: at.Add(m.traits.Lease)}
	if m.r.IntN(2) == 0 {
		for i := range 5 {
			room[fmt.Sprint("d", i)] = m.r.IntN(8)
		}
		req.Room = func(name string) int { return room[name] }
	}
	if !m.traits.Bubble {
		req.Until = at.Add(time.Hour) // nothing expires by itself
	}
	ds, next := m.leaseNext(req)
	after := time.Now()

	due := map[string][]*modelled{}
	for _, h := range m.held {
		if !h.leasedAt(after) && !h.d.Due.After(at) {
			due[h.d.Destination] = append(due[h.d.Destination], h)
		}
	}
	for _, hs := range due {
		slices.SortFunc(hs, func(x, y *modelled) int { return x.d.Due.Compare(y.d.Due) })
	}
	got := count(ds)
	for _, d := range ds {
		name := d.Destination
		h := m.held[key(&d)]
		if h == nil || h.leasedAt(at) || h.d.Due.After(after) {
			m.Fatalf("Lease handed out %s, which is not due: %+v", key(&d), h)
		}
		// A delivery that became due during the call may come or not.
		if i := slices.Index(due[name], h); i >= 0 {
			if first := due[name][0].d; first.Due.Before(h.d.Due) {
				m.Fatalf("Lease handed out %s, due %v, before %s, due %v", key(&d), d.Due, key(&first), first.Due)
			}
			due[name] = slices.Delete(due[name], i, i+1)
		}
		m.same("Lease", []webhook.Delivery{d}, h.d)
		if h.lease != 0 {
			m.past = append(m.past, webhook.Delivery{Destination: name, ID: d.ID, Lease: h.lease})
		}
		h.lease, h.until = d.Lease, req.Until
		if req.Room != nil && got[name] > room[name] {
			m.Fatalf("Lease handed out %d of %s, which has room for %d", got[name], name, room[name])
		}
	}
	if len(ds) < req.Max {
		for name, hs := range due {
			if len(hs) > 0 && (req.Room == nil || got[name] < room[name]) {
				m.Fatalf("Lease(%d) handed out %d, but not %s, due %v", req.Max, len(ds), key(&hs[0].d), hs[0].d.Due)
			}
		}
	}
	for _, h := range m.held {
		t := h.d.Due
		if h.leasedAt(after) {
			t = h.until
		} else if req.Room != nil && got[h.d.Destination] >= room[h.d.Destination] {
			continue
		}
		if t.Before(after) { // the store's now is between the two
			t = after
		}
		if next.IsZero() || next.After(t) {
			m.Fatalf("next = %v, but %s is to be had at %v", next, key(&h.d), t)
		}
	}
}

func (m *model) settles() {
	m.Helper()
	at := now()
	var ss []webhook.Settlement
	for _, h := range sorted(m.held) {
		if h.lease == 0 || m.r.IntN(3) == 0 {
			continue
		}
		s := webhook.Settlement{Verdict: webhook.Verdict(1 + m.r.IntN(4)), Delivery: h.d, Reason: webhook.ReasonServerError, At: at.Add(-time.Duration(m.r.IntN(1000)) * time.Millisecond)}
		s.Delivery.Lease = h.lease
		switch s.Verdict {
		case webhook.Done:
			delete(m.held, key(&h.d))
		case webhook.Retry:
			h.d.Tries++
			h.d.Due = at.Add(time.Duration(m.r.Int64N(int64(2*m.traits.Lease))) - m.traits.Lease/2)
			h.d.Due = h.d.Due.Truncate(time.Microsecond)
			h.d.Expires = at.Add(4 * time.Hour)
			if len(h.d.Attempts) < webhook.MaxAttempts {
				h.d.Attempts = append(slices.Clone(h.d.Attempts), webhook.Attempt{At: at, Try: h.d.Tries, Status: 500, Reason: s.Reason})
			}
			s.Delivery = h.d
			s.Delivery.Lease = h.lease
			h.lease, h.until = 0, time.Time{}
		case webhook.Bury:
			delete(m.held, key(&h.d))
			m.dead[key(&h.d)] = webhook.DeadLetter{Delivery: h.d, Reason: s.Reason, Died: s.At}
		case webhook.Renew:
			s.Delivery.Due = at.Add(m.traits.Lease)
			if !m.traits.Bubble {
				s.Delivery.Due = at.Add(time.Hour)
			}
			h.until = s.Delivery.Due
		}
		ss = append(ss, s)
	}
	for range m.r.IntN(3) {
		if len(m.past) > 0 {
			d := m.past[m.r.IntN(len(m.past))]
			ss = append(ss, settlements(webhook.Verdict(1+m.r.IntN(4)), d)...)
		}
	}
	if err := m.q.Settle(m.ctx, ss...); err != nil {
		m.Fatalf("Settle: %v", err)
	}
	for _, s := range ss {
		if s.Verdict != webhook.Renew {
			m.past = append(m.past, s.Delivery)
		}
	}
	if len(m.past) > 500 {
		m.past = m.past[400:]
	}
}

// exhumes revives and discards some.
func (m *model) exhumes() {
	m.Helper()
	if _, ok := m.q.(webhook.DeadLetters); !ok {
		return
	}
	all := m.compareDead()
	var revive, discard []string
	var revived []webhook.Delivery
	for _, d := range all {
		switch m.r.IntN(4) {
		case 0:
			revive = append(revive, d.Key)
			revived = append(revived, d.Delivery)
		case 1:
			discard = append(discard, d.Key)
		default:
			continue
		}
		delete(m.dead, key(&d.Delivery))
	}
	if n, err := m.letters().Discard(m.ctx, discard...); n != len(discard) || err != nil {
		m.Fatalf("Discard of %d = %d, %v", len(discard), n, err)
	}
	if !m.traits.Bubble {
		// Their due times could not be told exactly.
		if n, err := m.letters().Discard(m.ctx, revive...); n != len(revive) || err != nil {
			m.Fatalf("Discard of %d = %d, %v", len(revive), n, err)
		}
		return
	}
	for i, d := range revived {
		m.pass(time.Microsecond)
		if n, err := m.letters().Revive(m.ctx, revive[i]); n != 1 || err != nil {
			m.Fatalf("Revive = %d, %v", n, err)
		}
		d.Due, d.Expires, d.Tries, d.Closed = now(), time.Time{}, 0, nil
		m.held[key(&d)] = &modelled{d: d}
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
	same := func(x, y webhook.DeadLetter) bool {
		return alike(x.Delivery, y.Delivery) && x.Reason == y.Reason && x.Died.Equal(y.Died)
	}
	if !maps.EqualFunc(m.dead, got, same) {
		m.Fatalf("Dead (-want +got)\n%s", gocmp.Diff(m.dead, got, likeStored))
	}
	return all
}

func (m *model) checkCounts() {
	m.Helper()
	if _, ok := m.q.(webhook.Counter); !ok {
		return
	}
	leased := 0
	for _, h := range m.held {
		if h.leasedAt(time.Now()) {
			leased++
		}
	}
	m.counts(len(m.held), leased, len(m.dead))
}

func (m *model) restart() {
	m.Helper()
	m.reopen()
	if m.traits.Bubble {
		m.pass(2 * m.traits.Lease) // a store may keep leases over a restart
	}
	for _, h := range m.held {
		h.lease, h.until = 0, time.Time{}
	}
	m.past = nil
}

// drain leases and settles all there is, and compares it.
func (m *model) drain() {
	m.Helper()
	for _, h := range m.held {
		if h.lease != 0 {
			d := h.d
			d.Lease = h.lease
			if d.Due.After(now()) {
				m.Fatalf("%s is leased and due %v", key(&d), d.Due)
			}
			m.settle(webhook.Retry, d)
		}
	}
	last := now()
	for _, h := range m.held {
		if h.d.Due.After(last) {
			last = h.d.Due
		}
	}
	m.pass(time.Until(last))
	for len(m.held) > 0 {
		ds := m.lease(64)
		if len(ds) == 0 {
			m.Fatalf("%d deliveries are not handed out", len(m.held))
		}
		for _, d := range ds {
			h := m.held[key(&d)]
			if h == nil {
				m.Fatalf("Lease handed out %s, which is gone", key(&d))
			}
			m.same("Lease", []webhook.Delivery{d}, h.d)
			delete(m.held, key(&d))
		}
		m.settle(webhook.Done, ds...)
	}
	m.leaseNone("all are done")
	m.checkCounts()
}

// sorted returns what is held in an order that depends on the seed alone.
func sorted(held map[string]*modelled) []*modelled {
	all := make([]*modelled, 0, len(held))
	for _, h := range held {
		all = append(all, h)
	}
	slices.SortFunc(all, func(x, y *modelled) int {
		return cmp.Or(x.d.Due.Compare(y.d.Due), strings.Compare(key(&x.d), key(&y.d)))
	})
	return all
}
