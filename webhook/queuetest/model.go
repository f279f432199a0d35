package queuetest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A model has the contents that a store must have, by the contract, after the calls of a case.
type model struct {
	entries   map[string]*entry // by id
	claims    map[uint64]bool   // all that this Store value has handed out
	documents documents
	latest    uint64             // the version of the latest change of a document
	keeps     bool               // whether the store keeps deliveries after they were delivered
	seq       uint64             // the greatest Seq that the store has returned
	keys      map[keyOf][]*entry // in their order; those behind the first one have StateBehind
	turns     int                // the turn of the latest entry
}

// A keyOf is a key of a destination.
type keyOf struct{ destination, key string }

// An entry is a delivery that was put, wherever it is now. Its Claim is zero unless it is claimed.
// Reason and At are zero until it ends. Its State is empty once it was removed, and waiting while it is
// claimed. Seq is zero until the store has returned it.
type entry struct {
	store.Record
	id    string
	known bool      // the store remembers the put
	rank  int       // see sorted
	above uint64    // its Seq is greater
	turn  int       // the order of the entries with one key
	own   time.Time // Due before the store released it, zero if it has not
}

// id returns the id of the entry of d.
func id(d *store.Delivery) string { return d.Destination + "/" + d.ID }

func ids(ds []store.Delivery) []string {
	all := make([]string, len(ds))
	for i := range ds {
		all[i] = id(&ds[i])
	}
	return all
}

// at returns the time by which a store sorts the entry.
func (e *entry) at() time.Time {
	if e.State == store.StateWaiting {
		return e.Due
	}
	return e.At
}

// sorted returns the entries that match, in the order of their times. A store may return entries
// with equal times in any order. So sorted orders these as the store did in its result got. The
// entries that are not in got come last, the largest body first. After the call, the rank of an
// entry is below zero if it is in got, and zero otherwise.
func (m *model) sorted(got []string, match func(*entry) bool) (es []*entry) {
	for _, e := range m.entries {
		if e.rank = 0; match(e) {
			es = append(es, e)
		}
	}
	for i, name := range got {
		if e := m.entries[name]; e != nil {
			e.rank = i - len(got)
		}
	}
	slices.SortFunc(es, func(x, y *entry) int {
		return cmp.Or(x.at().Compare(y.at()), cmp.Compare(x.rank, y.rank), cmp.Compare(len(y.Body), len(x.Body)), strings.Compare(x.id, y.id))
	})
	return es
}

// inOrder returns the waiting entries in the order of Due.
func (m *model) inOrder() []*entry {
	return m.sorted(nil, func(e *entry) bool { return e.State == store.StateWaiting })
}

// hold adds a delivery that the store has stored without a claim.
func (m *model) hold(d store.Delivery) *entry {
	d.Claim, d.Seq = 0, 0
	e := &entry{Record: store.Record{Delivery: d, State: store.StateWaiting}, id: id(&d), above: m.seq}
	if before := m.entries[e.id]; before != nil {
		e.known = before.known
	}
	m.entries[e.id] = e
	m.follow(e)
	return e
}

// follow puts an entry at the end of its key.
func (m *model) follow(e *entry) {
	m.turns++
	e.turn = m.turns
	if e.Key == "" {
		return
	}
	key := keyOf{e.Destination, e.Key}
	if m.keys[key] = append(m.keys[key], e); len(m.keys[key]) > 1 {
		e.State = store.StateBehind
	}
}

// part takes an entry out of its key. It returns the entry that this releases, whose Due the caller
// takes from the store, or nil.
func (m *model) part(e *entry) *entry {
	key := keyOf{e.Destination, e.Key}
	left := slices.DeleteFunc(m.keys[key], func(x *entry) bool { return x == e })
	if m.keys[key] = left; len(left) == 0 || left[0].State != store.StateBehind {
		return nil
	}
	left[0].State, left[0].own = store.StateWaiting, left[0].Due
	return left[0]
}

// settled makes the change of a settlement. It returns the entry that this releases, or nil.
func (m *model) settled(s *store.Settlement) (released *entry) {
	d := &s.Delivery
	e := m.entries[id(d)]
	if e == nil || e.Claim == 0 || e.Claim != d.Claim {
		return nil
	}
	e.Claim = 0
	switch s.Verdict {
	case store.Done:
		released = m.part(e)
		if e.State = ""; m.keeps {
			e.State, e.At = store.StateDelivered, s.At
			e.Tries, e.Closed, e.Attempts = d.Tries, d.Closed, d.Attempts
		}
	case store.Bury:
		released = m.part(e)
		e.State, e.Reason, e.At = store.StateDead, s.Reason, s.At
		e.Tries, e.Closed, e.Attempts = d.Tries, d.Closed, d.Attempts
	case store.Retry:
		e.Due, e.Expires, e.own = d.Due, d.Expires, time.Time{}
		e.Tries, e.Closed, e.Attempts = d.Tries, d.Closed, d.Attempts
	}
	return released
}
