package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"iter"
	"reflect"
	"slices"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// List returns a page of the deliveries that query selects, in every state, the newest first unless
// query.Oldest is set: up to max of them that follow the number after, which is 0 for the first page.
// The next page follows the number next; if that is 0, there is none. A page may be short, or empty,
// although more follow: List looks at up to 10,000 deliveries, and returns up to 4 MB.
func (f *Forwarder) List(ctx context.Context, query Query, after uint64, max int) (page []Record, next uint64, err error) {
	return f.config.Store.List(ctx, query, after, max)
}

// Deliveries yields all deliveries that query selects, as List returns them. The loop may retry and
// discard them.
func (f *Forwarder) Deliveries(ctx context.Context, query Query) iter.Seq2[Record, error] {
	return store.Records(ctx, f.config.Store, query)
}

// Delivery returns a delivery, or ErrNoDelivery.
func (f *Forwarder) Delivery(ctx context.Context, ref Ref) (Record, error) {
	return f.config.Store.Get(ctx, ref)
}

// Count returns how many deliveries query selects. Unless the query selects all dead letters, Count
// reads each delivery in the range of the query. With an error, it returns the number so far.
func (f *Forwarder) Count(ctx context.Context, query Query) (n int, err error) {
	if reflect.DeepEqual(query, Query{States: []State{StateDead}}) {
		counts, err := f.config.Store.Count(ctx)
		return counts.Dead, err
	}
	for page, err := range store.PagesOf(ctx, f.config.Store, query, chunk) {
		if n += len(page); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Progress is how far RetryAll or DiscardAll has come.
type Progress struct {
	Changed int `json:"changed"` // deliveries that were retried or discarded
	Claimed int `json:"claimed"` // those that were skipped because they are being attempted
}

// Retry attempts deliveries again, at once, whatever their state. A waiting delivery is due now. A
// dead letter becomes a new delivery with the same ID, and a new retry window. A delivered one is
// sent once more, as a new delivery with an ID of its own, so a receiver that deduplicates by
// webhook-id takes it. An unknown one is no error: it may have been retried before. Retry goes by
// the state that it finds: a delivery that waits, and is given up before the store makes it due,
// stays a dead letter. A pause does not end. It returns ErrClosed after Shutdown, or an error of
// the store, such as ErrQueueFull.
//
// A retried delivery does not wait for a probe: if its destination is probed, a delivery of the
// destination is attempted at once, and the probing goes on as usual.
func (f *Forwarder) Retry(ctx context.Context, refs ...Ref) (Progress, error) {
	return f.named(ctx, refs, f.retry)
}

// RetryAll is Retry for the deliveries that query selects: dead letters, unless its States ask for
// others. The oldest come first, so deliveries with the same Key keep their order; but in each
// page, delivered ones come after the others. RetryAll works while the caller ranges over the
// result, and yields its progress after each commit, of up to 256 deliveries. An error, which it
// yields with the progress so far, ends it; a further call continues with the rest. It leaves out
// deliveries that are new since the loop began, and copies that Retry has made of delivered ones.
func (f *Forwarder) RetryAll(ctx context.Context, query Query) iter.Seq2[Progress, error] {
	query.Oldest = true
	return f.selected(ctx, query, func(ctx context.Context, rs []Record) (Progress, error) {
		return f.retry(ctx, slices.DeleteFunc(rs, func(r Record) bool {
			return r.State == StateDelivered && r.ID != deliveryID(&event.Event{ID: r.MessageID, Source: r.Source})
		}))
	})
}

// Discard removes deliveries, whatever their state. A waiting delivery does not become a dead
// letter.
func (f *Forwarder) Discard(ctx context.Context, refs ...Ref) (Progress, error) {
	return f.named(ctx, refs, f.discard)
}

// DiscardAll is Discard for the deliveries that query selects, in the way of RetryAll.
func (f *Forwarder) DiscardAll(ctx context.Context, query Query) iter.Seq2[Progress, error] {
	query.Oldest = false // so that what is behind another is not released first
	return f.selected(ctx, query, f.discard)
}

// DiscardWaiting discards the deliveries that wait for destinations, such as one that was deleted.
// Otherwise, those of a tenant's deleted destination would become dead letters. It tries for up to a
// second to discard what a node has claimed, such as to find out that the destination is gone. After
// an error, it returns the progress so far.
func (f *Forwarder) DiscardWaiting(ctx context.Context, destinations ...string) (p Progress, err error) {
	if len(destinations) == 0 {
		return p, nil
	}
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		var pass Progress
		for pass, err = range f.DiscardAll(ctx, Query{Destinations: destinations, States: store.Pending()}) {
		}
		p = Progress{Changed: p.Changed + pass.Changed, Claimed: pass.Claimed}
		if err != nil || p.Claimed == 0 || pause > 400*time.Millisecond {
			return p, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
}

const chunk = 256 // deliveries that one commit retries or discards at most

// named passes the deliveries of refs to do.
func (f *Forwarder) named(ctx context.Context, refs []Ref, do func(context.Context, []Record) (Progress, error)) (total Progress, err error) {
	for some := range slices.Chunk(refs, chunk) {
		var rs []Record
		for _, ref := range some {
			r, err := f.config.Store.Get(ctx, ref)
			if err == nil {
				if r.Attempts = nil; r.State != StateDelivered { // only these are put once more
					r.Body = nil
				}
				rs = append(rs, r)
			} else if !errors.Is(err, ErrNoDelivery) {
				return total, err
			}
		}
		p, err := do(ctx, rs)
		if total.add(p); err != nil {
			return total, err
		}
	}
	return total, nil
}

// selected passes the deliveries that query selects to do, page by page, and yields the sum. It leaves
// out those that are stored after it began.
func (f *Forwarder) selected(ctx context.Context, query Query, do func(context.Context, []Record) (Progress, error)) iter.Seq2[Progress, error] {
	if len(query.States) == 0 {
		query.States = []State{StateDead}
	}
	return func(yield func(Progress, error) bool) {
		var total Progress
		newest, err := f.newest(ctx, query.Destinations)
		if err != nil {
			yield(total, err)
			return
		}
		for page, err := range store.PagesOf(ctx, f.config.Store, query, chunk) {
			n := len(page)
			page = slices.DeleteFunc(page, func(r Record) bool { return r.Seq > newest })
			over := query.Oldest && len(page) < n
			if err == nil && len(page) > 0 {
				var p Progress
				p, err = do(ctx, page)
				total.add(p)
			}
			if (err != nil || len(page) > 0) && !yield(total, err) || err != nil || over {
				return
			}
		}
	}
}

// newest returns the Seq of the newest delivery of these destinations, of all if there are none.
func (f *Forwarder) newest(ctx context.Context, destinations []string) (uint64, error) {
	for page, err := range store.PagesOf(ctx, f.config.Store, Query{Destinations: destinations}, 1) {
		if err != nil {
			return 0, err
		}
		if len(page) > 0 {
			return page[0].Seq, nil
		}
	}
	return 0, nil
}

func (p *Progress) add(q Progress) {
	p.Changed += q.Changed
	p.Claimed += q.Claimed
}

// retry retries the deliveries of one commit.
func (f *Forwarder) retry(ctx context.Context, rs []Record) (p Progress, err error) {
	if f.open.Err() != nil {
		return p, ErrClosed
	}
	var waiting, dead []Ref
	b := batch{}
	for i := range rs {
		switch r := &rs[i]; r.State {
		case StateDelivered:
			b.puts = append(b.puts, store.Put{NoDedup: true, Delivery: f.copyOf(&r.Delivery)})
		case StateDead:
			dead = append(dead, r.Ref())
		default:
			waiting = append(waiting, r.Ref())
		}
	}
	if len(waiting) > 0 {
		p.Changed, p.Claimed, err = f.config.Store.Hasten(ctx, waiting...)
	}
	n := 0
	if err == nil && len(dead) > 0 {
		n, err = f.config.Store.Revive(ctx, dead...)
		p.Changed += n
	}
	if err == nil && len(b.puts) > 0 {
		n, err = f.put(ctx, &b)
		p.Changed += n
	}
	f.recheck(rs)
	return p, err
}

// copyOf returns a fresh delivery with the body of d, and an ID of its own.
func (f *Forwarder) copyOf(d *Delivery) Delivery {
	now := f.config.now().UTC()
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(d.ID), uint64(now.UnixNano())))
	return Delivery{
		Destination: d.Destination, ID: base64.RawURLEncoding.EncodeToString(sum[:18]), MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event,
		Tenant: d.Tenant, Key: d.Key, Type: d.Type, Body: d.Body, Accepted: now, Due: now, Trace: d.Trace,
	}
}

// recheck tells the scheduler of each destination of rs.
func (f *Forwarder) recheck(rs []Record) {
	asked := make(map[string]bool)
	for i := range rs {
		if id := rs[i].Destination; !asked[id] {
			asked[id] = true
			f.schedule.Recheck(id)
		}
	}
}

// discard discards the deliveries of one commit, and counts those that waited.
func (f *Forwarder) discard(ctx context.Context, rs []Record) (total Progress, err error) {
	var waiting, ended []Ref
	for i := range rs {
		if s := rs[i].State; s == StateDead || s == StateDelivered {
			ended = append(ended, rs[i].Ref())
		} else {
			waiting = append(waiting, rs[i].Ref())
		}
	}
	for i, refs := range [][]Ref{waiting, ended} {
		if len(refs) > 0 && err == nil {
			var p Progress
			p.Changed, p.Claimed, err = f.config.Store.Discard(ctx, refs...)
			if total.add(p); i == 0 {
				f.recorder.count(func(s *Stats) { s.Discarded += int64(p.Changed) })
			}
		}
	}
	return total, err
}

// hastenWaiting makes all waiting deliveries of a destination due now.
func hastenWaiting(ctx context.Context, s Store, destination string) (n int, err error) {
	for page, err := range store.PagesOf(ctx, s, Query{Destinations: []string{destination}, States: []State{StateWaiting}}, chunk) {
		if err != nil {
			return n, err
		}
		refs := make([]Ref, len(page))
		for i := range page {
			refs[i] = page[i].Ref()
		}
		changed, _, err := s.Hasten(ctx, refs...)
		if n += changed; err != nil {
			return n, err
		}
	}
	return n, nil
}

// EraseUser removes a user's deliveries, dead letters and history from the store, by Delivery.User.
// It returns how many it has removed, and how many it has skipped because they are claimed: for
// these, call it again later. The error is of the store, or a *event.CallError if userID is empty
// or longer than 8192 bytes.
//
// EraseUser does not tell the destinations; see package audience. Deliveries of other users that
// name this user stay, and so do the members of audiences.
func (f *Forwarder) EraseUser(ctx context.Context, userID string) (erased, claimed int, err error) {
	e, err := event.Delete(userID, f.config.now()) // replaces a long id by its digest
	if err != nil {
		return 0, 0, err
	}
	return f.config.Store.Erase(ctx, e.User)
}
