package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A checker calls a store and makes the same change to a model. It fails the test if the result of
// the call is not the one that the model wants.
type checker struct {
	*testing.T
	ctx context.Context
	s   store.Store
	model
	oldest bool // the order of the list that compare made last
}

// claim claims an entry in the model, with the claim that the store has returned.
func (c *checker) claim(e *entry, claim uint64) {
	if claim == 0 || c.claims[claim] {
		c.Fatalf("%s has the claim %d, want one that is not zero and that no delivery had before", e.id, claim)
	}
	c.claims[claim] = true
	e.Claim = claim
}

// number checks the Seq of a delivery that the store has returned.
func (c *checker) number(d *store.Delivery) {
	e := c.entries[id(d)]
	switch {
	case e == nil:
	case e.Seq == 0 && d.Seq > e.above:
		e.Seq, c.seq = d.Seq, max(c.seq, d.Seq)
	case d.Seq != e.Seq || d.Seq == 0:
		c.Fatalf("%s has the number %d; want %d or, if that is 0, more than %d", e.id, d.Seq, e.Seq, e.above)
	}
}

// put puts ds without Keep.
func (c *checker) put(ds ...store.Delivery) { c.putAll(puts(ds...)...) }

func (c *checker) putAll(ps ...store.Put) {
	if err := c.tryPut(c.ctx, ps...); err != nil {
		c.Fatalf("Put of %d deliveries: %v", len(ps), err)
	}
}

// tryPut puts ps. After an error of the store, it returns the error and leaves the model as it is.
func (c *checker) tryPut(ctx context.Context, ps ...store.Put) error {
	out, err := putTo(ctx, c.s, ps...)
	if err != nil {
		return err
	}
	for i, r := range out {
		d := ps[i].Delivery
		e := c.entries[id(&d)]
		repeat := e != nil && e.known && !ps[i].NoDedup
		if r.Stored == repeat || r.Claim != 0 && !(r.Stored && ps[i].Keep) {
			c.Fatalf("Put of %s returned %+v; it is a repeat: %t, with Keep: %t", id(&d), r, repeat, ps[i].Keep)
		}
		if r.Stored {
			e = c.hold(d)
			e.known = e.known || !ps[i].NoDedup
		}
		if r.Behind != (r.Stored && e.State == store.StateBehind) || r.Behind && r.Claim != 0 {
			c.Fatalf("Put of %s returned %+v; it is behind another: %t", id(&d), r, !r.Behind)
		}
		if r.Claim != 0 {
			c.claim(e, r.Claim)
		}
	}
	return nil
}

// fetch fetches up to max fresh deliveries and max retries of each destination.
func (c *checker) fetch(max int, destinations ...string) []store.Delivery {
	return c.fetchWants(noLimit, wants(max, destinations...)...)
}

// fetchWants fetches with ws. Each queue is in ws at most once.
func (c *checker) fetchWants(maxBytes int64, ws ...store.Want) []store.Delivery {
	before, dst := c.s.Now(), []store.Delivery{{ID: "first"}}
	for i := range ws {
		ws[i].Next = before
	}
	got, err := c.s.Fetch(c.ctx, ws, maxBytes, slices.Clone(dst))
	after := c.s.Now()
	if err != nil {
		c.Fatalf("Fetch: %v", err)
	}
	queues := make(map[store.Want][]*entry)
	for _, e := range c.sorted(ids(got), func(e *entry) bool { return e.State == store.StateWaiting && e.Claim == 0 }) {
		queue := store.Want{Destination: e.Destination, Retries: !e.Expires.IsZero()}
		queues[queue] = append(queues[queue], e)
	}
	want, next, full := dst, slices.Clone(ws), false
	for i, w := range ws {
		n := 0
		next[i].Next = time.Time{}
		for _, e := range queues[store.Want{Destination: w.Destination, Retries: w.Retries}] {
			returned, size := e.rank < 0, int64(len(e.Body))
			// What becomes due during the call may be returned, but need not.
			if n < w.Max && (!e.Due.After(before) || returned && !e.Due.After(after)) {
				fits := len(want) == 1 || size <= maxBytes
				// After a body that does not fit, a store may stop, or look for a smaller one in
				// another queue.
				if full = full || !fits; fits && (returned || !full) {
					want = append(want, e.Delivery)
					maxBytes -= size
					n++
					continue
				}
			}
			next[i].Next = e.Due
			break
		}
	}
	equalLists(c, "Fetch", got, want)
	equal(c, "the wants after Fetch", ws, next)
	got = got[1:]
	for _, d := range got {
		c.number(&d)
		c.claim(c.entries[id(&d)], d.Claim)
	}
	return got
}

func (c *checker) settle(verdict store.Verdict, ds ...store.Delivery) {
	c.settleAll(settlements(c.s, verdict, ds...)...)
}

func (c *checker) settleAll(ss ...store.Settlement) {
	lent, released, began := slices.Clone(ss), make([]*entry, len(ss)), c.s.Now()
	for i := range ss {
		released[i] = c.settled(&ss[i])
		lent[i].Released = began // Settle overwrites it
		defer lend(&lent[i].Delivery)()
	}
	if n, err := c.s.Settle(c.ctx, lent); n != len(ss) || err != nil {
		c.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
	for i, e := range released {
		if at := lent[i].Released; e != nil {
			if ss[i].Reason.Lapsed() {
				equal(c, "Released after Bury with a Reason that is Lapsed, the Due of "+e.id, at, e.own)
			} else {
				c.release("Settle", e, at, began)
			}
		} else if !at.IsZero() {
			c.Fatalf("Settle of %s with verdict %d has Released %v, want none", id(&ss[i].Delivery), ss[i].Verdict, at)
		}
	}
}

// release takes the Due of an entry, which a call has released since it began, from the store.
func (c *checker) release(what string, e *entry, due, began time.Time) {
	if due.Before(began) || due.Before(e.own) || due.After(c.s.Now()) && due.After(e.own) {
		c.Fatalf("%s released %s, due at %v; want since %v, or at its own %v", what, e.id, due, began, e.own)
	}
	e.Due = due
}

func (c *checker) hasten(refs ...store.Ref) {
	began := c.s.Now()
	c.modify("Hasten", func() (int, int, error) { return c.s.Hasten(c.ctx, refs...) }, c.named(refs), func(e *entry) (bool, *entry) {
		if e.State != store.StateWaiting || !e.Hasten(began) {
			return false, nil
		}
		e.own = time.Time{}
		return true, nil
	})
}

func (c *checker) revive(refs ...store.Ref) {
	dead := slices.DeleteFunc(c.named(refs), func(e *entry) bool { return e.State != store.StateDead })
	c.modify("Revive", func() (int, int, error) { n, err := c.s.Revive(c.ctx, refs...); return n, 0, err }, dead, func(e *entry) (bool, *entry) {
		e.Record = store.Record{Delivery: e.Delivery, State: store.StateWaiting}
		e.Expires, e.Tries, e.Closed, e.Seq, e.above, e.own = time.Time{}, 0, nil, 0, c.seq, time.Time{}
		c.follow(e)
		return true, nil
	})
}

func (c *checker) discard(refs ...store.Ref) {
	c.modify("Discard", func() (int, int, error) { return c.s.Discard(c.ctx, refs...) }, c.named(refs), c.remove)
}

// named returns the entries with one of refs, in the order of refs.
func (c *checker) named(refs []store.Ref) (es []*entry) {
	all := make(map[store.Ref]*entry, len(c.entries))
	for _, e := range c.entries {
		if e.Seq != 0 && e.State != "" {
			all[e.Ref()] = e
		}
	}
	for _, ref := range refs {
		if e := all[ref]; e != nil {
			es = append(es, e)
			delete(all, ref)
		}
	}
	return es
}

func (c *checker) erase(user string) {
	var es []*entry
	for _, e := range c.entries {
		if e.User == user && e.State != "" {
			es = append(es, e)
		}
	}
	c.modify(fmt.Sprintf("Erase(%q)", user), func() (int, int, error) { return c.s.Erase(c.ctx, user) }, es, c.remove)
}

// remove removes an entry, and returns the one that this releases, or nil.
func (c *checker) remove(e *entry) (bool, *entry) {
	released := c.part(e)
	e.State = ""
	return true, released
}

// modify makes a call that changes these entries, except claimed ones. The function become makes the
// change in the model. It reports whether there is one, and which entry this releases. The entries
// that wait afterwards must be due since the call began, and accepted then if they have a new number.
// modify copies both from the store.
func (c *checker) modify(what string, call func() (n, claimed int, err error), es []*entry, become func(*entry) (bool, *entry)) {
	began, claimed := c.s.Now(), 0
	changed, released, destinations := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, e := range es {
		if e.Claim != 0 {
			claimed++
			continue
		}
		ok, next := become(e)
		if ok {
			changed[e.id], destinations[e.Destination] = true, true
		}
		if next != nil {
			released[next.id] = true
		}
	}
	if n, skipped, err := call(); n != len(changed) || skipped != claimed || err != nil {
		c.Fatalf("%s = %d, %d, %v, want %d, %d", what, n, skipped, err, len(changed), claimed)
	}
	now := func(what string, e *entry, at time.Time) time.Time {
		if at.Before(began) || at.After(c.s.Now()) {
			c.Fatalf("%s: %s is at %v, want since %v", what, e.id, at, began)
		}
		return at
	}
	for name := range destinations {
		for _, d := range c.list(store.Query{Destinations: []string{name}, States: []store.State{store.StateBehind, store.StateWaiting, store.StateClaimed}}) {
			e := c.entries[id(&d.Delivery)]
			switch {
			case e == nil:
			case changed[e.id]:
				e.Due = now(what+", due", e, d.Due)
				if e.Seq == 0 {
					e.Accepted = now(what+", accepted", e, d.Accepted)
				}
			case released[e.id]:
				c.release(what, e, d.Due, began)
			}
		}
	}
}

// countByDestination returns the counts of the store, without Bytes: each store counts bytes in its
// own way.
func (c *checker) countByDestination(only ...string) []store.DestinationCounts {
	counts := all(c, c.s.CountByDestination(c.ctx, only...))
	for i := range counts {
		counts[i].Bytes = 0
	}
	return counts
}

// compare compares all lists and counts of the store with the model.
func (c *checker) compare() {
	var want store.Counts
	counts, heads := make(map[string]store.DestinationCounts), make(map[string]store.Head)
	for _, e := range c.inOrder() {
		n, h := counts[e.Destination], heads[e.Destination]
		n.Destination, h.Destination = e.Destination, e.Destination
		n.Waiting++
		if e.Claim != 0 {
			n.Claimed++
		} else {
			if e.Expires.IsZero() {
				h.Fresh = cmp.Or(h.Fresh, e.Due)
			} else {
				h.Retry = cmp.Or(h.Retry, e.Due)
			}
			heads[e.Destination] = h
			n.Oldest, want.Oldest = cmp.Or(n.Oldest, e.Due), cmp.Or(want.Oldest, e.Due)
		}
		counts[e.Destination] = n
	}
	for _, e := range c.entries {
		if n := counts[e.Destination]; e.State == store.StateBehind {
			n.Waiting, n.Behind = n.Waiting+1, n.Behind+1
			counts[e.Destination] = n
		}
	}
	equal(c, "Heads(true)", c.heads(true), heads)
	gotCounts := make(map[string]store.DestinationCounts)
	for _, n := range c.countByDestination() {
		n.Waiting += gotCounts[n.Destination].Waiting // is wrong if a destination is yielded twice
		gotCounts[n.Destination] = n
	}
	equal(c, "CountByDestination", gotCounts, counts)
	for name, want := range counts {
		equal(c, "CountByDestination of one", c.countByDestination(name, "unknown"), []store.DestinationCounts{want})
		break // one is enough, any one
	}
	for _, n := range counts {
		want.Waiting, want.Claimed, want.Behind = want.Waiting+n.Waiting, want.Claimed+n.Claimed, want.Behind+n.Behind
	}
	c.oldest = !c.oldest // each order every other time
	c.compareList(store.Query{Oldest: c.oldest})
	for _, e := range c.entries {
		switch e.State {
		case store.StateDead:
			want.Dead, want.DeadBytes = want.Dead+1, want.DeadBytes+e.Size()
			if want.OldestDead.IsZero() || e.At.Before(want.OldestDead) {
				want.OldestDead = e.At
			}
		case store.StateDelivered:
			want.Delivered, want.DeliveredBytes = want.Delivered+1, want.DeliveredBytes+e.Size()
		}
	}
	got, err := c.s.Count(c.ctx)
	if err != nil {
		c.Fatalf("Count: %v", err)
	}
	if got.DeadBytes == -1 { // -1 means unknown; OldestDead may then be unknown, too
		want.DeadBytes, want.OldestDead = -1, got.OldestDead
	}
	equal(c, "Count", got, want)
	c.compareDocuments()
}

// heads returns the heads that Heads yields. It leaves out destinations without a head.
func (c *checker) heads(every bool) map[string]store.Head {
	got := make(map[string]store.Head)
	for _, h := range all(c, c.s.Heads(c.ctx, every)) {
		if _, twice := got[h.Destination]; twice {
			c.Fatalf("Heads(%v) yields %q twice", every, h.Destination)
		}
		got[h.Destination] = h
	}
	maps.DeleteFunc(got, func(_ string, h store.Head) bool { return h.Earliest().IsZero() })
	return got
}

// list returns all deliveries that a filter selects. Its pages have different lengths.
func (c *checker) list(f store.Query) (all []store.Record) {
	for after, max := uint64(0), 1; ; max = max*7%509 + 1 {
		page, next, err := c.s.List(c.ctx, f, after, max)
		if err != nil || len(page) > max || next != 0 && next == after {
			c.Fatalf("List(%+v, %d, %d) = %d deliveries and then %d, %v", f, after, max, len(page), next, err)
		}
		if all = append(all, page...); next == 0 {
			return all
		}
		after = next
	}
}

// compareList compares the deliveries that a filter selects with the model, and returns them.
func (c *checker) compareList(f store.Query) []store.Record {
	got := c.list(f)
	names, latest := make(map[string]int, len(got)), make(map[keyOf]*entry)
	for i := range got {
		d := &got[i]
		if e, key := c.entries[id(&d.Delivery)], (keyOf{d.Destination, d.Key}); e != nil && d.Key != "" {
			if before := latest[key]; before != nil && (before.turn > e.turn) == f.Oldest {
				c.Fatalf("List(%+v): %s follows %s, against the order of their key", f, e.id, before.id)
			}
			latest[key] = e
		}
		c.number(&d.Delivery)
		names[id(&d.Delivery)] = i
		if i > 0 && (got[i-1].Seq > d.Seq) == f.Oldest {
			c.Fatalf("List(%+v): the number %d follows %d", f, d.Seq, got[i-1].Seq)
		}
	}
	var want []store.Record
	for _, e := range c.entries {
		r := e.Record
		if r.Claim != 0 {
			r.State = store.StateClaimed
		}
		if e.State != "" && f.Match(&r) {
			want = append(want, r)
		}
	}
	place := func(r *store.Record) int {
		if at, ok := names[id(&r.Delivery)]; ok {
			return at
		}
		return len(got)
	}
	slices.SortFunc(want, func(x, y store.Record) int { return cmp.Compare(place(&x), place(&y)) })
	for i := range min(len(got), len(want)) {
		if !sameRecord(&got[i], &want[i]) {
			equal(c, fmt.Sprintf("List(%+v): number %d of %d, want %d", f, i, len(got), len(want)), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		c.Fatalf("List(%+v): %d, want %d; the first are right", f, len(got), len(want))
	}
	return got
}

// refs returns the deliveries in a state.
func (c *checker) refs(s store.State) (refs []store.Ref) {
	for _, d := range c.compareList(store.Query{States: []store.State{s}}) {
		refs = append(refs, d.Ref())
	}
	return refs
}
