package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
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
	for _, e := range c.sorted(ids(got), func(e *entry) bool { return e.place == waiting && e.Claim == 0 }) {
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
	lent := slices.Clone(ss)
	for i := range ss {
		c.settled(&ss[i])
		defer lend(&lent[i].Delivery)()
	}
	if n, err := c.s.Settle(c.ctx, lent); n != len(ss) || err != nil {
		c.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
}

func (c *checker) discard(keys ...string) { c.takeDead("Discard", c.s.Discard, keys, remove) }

func (c *checker) revive(keys ...string) {
	c.takeDead("Revive", c.s.Revive, keys, func(e *entry) bool {
		e.place, e.Ended = waiting, store.Ended{Delivery: e.Delivery}
		e.Expires, e.Tries, e.Closed, e.Seq, e.above = time.Time{}, 0, nil, 0, c.seq
		return true
	})
}

// takeDead calls a method with keys. The function become makes the change in the model.
func (c *checker) takeDead(what string, method func(context.Context, ...string) (int, error), keys []string, become func(*entry) bool) {
	call := func() (int, int, error) {
		n, err := method(c.ctx, keys...)
		return n, 0, err
	}
	c.modify(fmt.Sprintf("%s(%q)", what, keys), call, func(e *entry) bool {
		return e.place == buried && e.Key != "" && slices.Contains(keys, e.Key)
	}, become)
}

func (c *checker) change(f store.WaitingFilter, to store.Change) {
	began, become := c.s.Now(), remove
	if to == store.DueNow {
		become = func(e *entry) bool { return e.Hasten(began) }
	}
	c.modify(fmt.Sprintf("Change(%+v, %d)", f, to), func() (int, int, error) { return c.s.Change(c.ctx, f, to) },
		func(e *entry) bool { return e.place == waiting && f.Match(&e.Delivery) }, become)
}

func (c *checker) erase(user string) {
	c.modify(fmt.Sprintf("Erase(%q)", user), func() (int, int, error) { return c.s.Erase(c.ctx, user) },
		func(e *entry) bool { return e.place != removed && e.User == user }, remove)
}

func remove(e *entry) bool {
	e.place = removed
	return true
}

// modify makes a call that changes the entries that match, except claimed ones. The function become
// makes the change in the model, and reports whether there is one. The entries that wait afterwards
// must be due since the call began. modify copies their Due from the store.
func (c *checker) modify(what string, call func() (n, claimed int, err error), match, become func(*entry) bool) {
	began, claimed := c.s.Now(), 0
	changed, destinations := make(map[string]*entry), make(map[string]bool)
	for _, e := range c.entries {
		if match(e) && e.Claim != 0 {
			claimed++
		} else if match(e) && become(e) {
			changed[e.id], destinations[e.Destination] = e, true
		}
	}
	if n, skipped, err := call(); n != len(changed) || skipped != claimed || err != nil {
		c.Fatalf("%s = %d, %d, %v, want %d, %d", what, n, skipped, err, len(changed), claimed)
	}
	for name := range destinations {
		for _, d := range all(c, c.s.Waiting(c.ctx, name, "")) {
			if e := changed[id(&d)]; e != nil {
				if e.Due = d.Due; d.Due.Before(began) || d.Due.After(c.s.Now()) {
					c.Fatalf("%s has made %s due at %v, want since %v", what, e.id, d.Due, began)
				}
			}
		}
	}
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
	equal(c, "Heads(true)", c.heads(true), heads)
	gotCounts := make(map[string]store.DestinationCounts)
	for _, n := range all(c, c.s.CountByDestination(c.ctx)) {
		n.Waiting += gotCounts[n.Destination].Waiting // is wrong if a destination is yielded twice
		gotCounts[n.Destination] = n
	}
	equal(c, "CountByDestination", gotCounts, counts)
	c.compareWaiting("nothing")
	for name, n := range counts {
		c.compareWaiting(name)
		want.Waiting, want.Claimed = want.Waiting+n.Waiting, want.Claimed+n.Claimed
	}
	for _, d := range c.deadLetters(store.EndedFilter{}) {
		want.Dead, want.DeadBytes, want.OldestDead = want.Dead+1, want.DeadBytes+d.Size(), cmp.Or(want.OldestDead, d.At)
	}
	if c.keeps {
		for _, d := range c.history(store.EndedFilter{}) {
			want.Delivered, want.DeliveredBytes = want.Delivered+1, want.DeliveredBytes+d.Size()
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

func (c *checker) compareWaiting(destination string) {
	var got []store.Ended
	for _, d := range all(c, c.s.Waiting(c.ctx, destination, "")) {
		got = append(got, store.Ended{Delivery: d})
	}
	c.compareList("Waiting", got, waiting, func(d *store.Ended) bool { return d.Destination == destination })
}

func (c *checker) deadLetters(filter store.EndedFilter) []store.Ended {
	return c.ended("Dead", c.s.Dead, buried, filter)
}

func (c *checker) history(filter store.EndedFilter) []store.Ended {
	return c.ended("Delivered", c.s.(store.History).Delivered, delivered, filter)
}

// ended returns the deliveries in a place that filter selects. It compares them with the model.
func (c *checker) ended(what string, list func(context.Context, store.EndedFilter, string) iter.Seq2[store.Ended, error], in place, filter store.EndedFilter) []store.Ended {
	ds := all(c, list(c.ctx, filter, ""))
	got := slices.Clone(ds)
	if filter.NewestFirst {
		slices.Reverse(got)
	}
	c.compareList(fmt.Sprintf("%s(%+v)", what, filter), got, in, filter.Match)
	return ds
}

// compareList compares a list with the entries in a place that match, in the order of their times.
// It copies the keys from the list to the model.
func (c *checker) compareList(what string, got []store.Ended, in place, match func(*store.Ended) bool) {
	names := make([]string, len(got))
	for i, d := range got {
		c.number(&d.Delivery)
		names[i] = id(&d.Delivery)
		if e := c.entries[names[i]]; e != nil && e.Key == "" {
			e.Key = d.Key
		}
	}
	var want []store.Ended
	for _, e := range c.sorted(names, func(e *entry) bool { return e.place == in && match(&e.Ended) }) {
		want = append(want, e.Ended)
	}
	equalLists(c, what, got, want)
}
