package webhook

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// deliverBatch attempts the deliveries of a slot in one request, and hands their outcomes to the
// settler. It reports whether the destination answered.
func (w *worker) deliverBatch(slot *slot, l *lane, t *target) (answered bool) {
	w.gather(slot, l, t)
	if len(w.batch) == 0 {
		return false
	}
	results, e := w.results[:1], t.endpoints[0]
	r := &results[0]
	*r = w.senders.sendBatch(w.attempts, w.batch, e)
	now := w.config.now()
	w.open = append(w.open[:0], e)
	switch {
	case r.outcome != OutcomeDelivered && w.attempts.Err() != nil:
		w.giveUp(r)
		return false
	case refusesEvents(&r.attempt) && len(w.batch) > 1: // even if Retries would have it repeated
		w.divide(slot, r, now)
		return true
	}
	tries := w.batch[0].Tries
	for _, d := range w.batch {
		tries = min(tries, d.Tries)
	}
	wait := max(t.schedule.wait(tries+1), 1) // one for all, so that they are due together
	for _, d := range w.batch {
		r.attempt.Try = d.Tries + 1
		w.ends = append(w.ends, w.decide(d, t, results, now, wait))
	}
	w.requested(r, dueOf(&w.ends[0]))
	for i := range w.ends {
		w.log(l, &w.ends[i])
	}
	s := w.ends[0]
	w.settleBatch()
	return r.outcome == OutcomeDelivered || w.judge(l, results, &s)
}

// gather fills w.batch with the deliveries of the slot that can be attempted now, and settles the others.
func (w *worker) gather(slot *slot, l *lane, t *target) {
	w.batch, w.ends = w.batch[:0], w.ends[:0]
	items := slot.Items()
	if n := t.limits.Batch.Events; len(items) > n { // the settings have changed
		w.settler.returnAll(items[n:])
		items = items[:n]
	}
	for i := range items {
		d := items[i].Value
		if s, ended := w.begin(l, d, t); ended {
			w.settle(l, d, s)
		} else {
			w.batch = append(w.batch, d)
		}
	}
	slices.SortFunc(w.batch, func(a, b *Delivery) int { return cmp.Compare(a.Seq, b.Seq) })
}

// requested tells the observers of the request for w.batch.
func (w *worker) requested(r *result, due time.Time) {
	first := w.batch[0]
	r.attempt.Try = first.Tries + 1
	w.recorder.requested(first, w.batch, r, due)
}

// settleBatch passes w.ends to the settler, and empties the deliveries of w.batch, as settle does.
func (w *worker) settleBatch() {
	w.settler.addAll(w.ends)
	for _, d := range w.batch {
		*d = Delivery{}
	}
	clear(w.ends)
}

// giveUp returns the deliveries of a request that the end of the forwarder has cut off.
func (w *worker) giveUp(r *result) {
	w.requested(r, time.Time{})
	for _, d := range w.batch {
		w.ends = append(w.ends, store.Settlement{Verdict: store.Return, Delivery: *d})
	}
	w.settleBatch()
}

// divide makes two batches of one that was refused. The deliveries get the attempt, which
// is part of the same try.
func (w *worker) divide(slot *slot, r *result, now time.Time) {
	w.requested(r, now)
	items := make([]item, len(w.batch))
	for i, d := range w.batch {
		r.attempt.Try = d.Tries + 1
		next := tried(d, w.results[:1])
		next.Tries = d.Tries
		*d = next
		items[i] = itemOf(d)
		items[i].Part = true
	}
	w.settler.returnAll(w.schedule.Divide(slot, items))
}

// sendBatch is send for several deliveries. The attempt has no Try.
func (ss *senders) sendBatch(ctx context.Context, ds []*Delivery, e *endpoint) result {
	s := ss.pool.Get().(*sender)
	defer ss.pool.Put(s)
	s.body, s.ids = appendBatch(s.body[:0], s.ids[:0], ds)
	id := batchID(s.ids)
	res := s.post(ctx, &message{id: id, body: s.body}, e)
	res.attempt.Batch = id
	return res
}
