package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// Dead yields the dead letters of filter; see Inspector.Dead. The loop may replay and discard them.
func (f *Forwarder) Dead(ctx context.Context, filter EndedFilter) iter.Seq2[Ended, error] {
	return f.config.Store.Dead(ctx, filter, "")
}

// DeadLetter returns the dead letter with this key, or ErrNoDeadLetter.
func (f *Forwarder) DeadLetter(ctx context.Context, key string) (Ended, error) {
	return f.config.Store.DeadLetter(ctx, key)
}

// CountDead returns how many dead letters filter selects. Unless the filter is zero, it reads every
// dead letter between From and To. With an error, it returns the number so far.
func (f *Forwarder) CountDead(ctx context.Context, filter EndedFilter) (int, error) {
	if filter == (EndedFilter{}) {
		counts, err := f.config.Store.Count(ctx)
		return counts.Dead, err
	}
	n := 0
	for _, err := range f.Dead(ctx, filter) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Replay turns the dead letters with these keys into deliveries, which are due now and get a new
// retry window, and returns their number. An unknown key is no error: the dead letter may have been
// replayed before. Replay and ReplayAll return ErrClosed after Shutdown.
//
// What Replay, ReplayAll, Resend and ChangeWaiting make due does not wait while its destination is
// probed: a delivery of the destination is attempted at once, and the rest goes on as usual.
func (f *Forwarder) Replay(ctx context.Context, keys ...string) (int, error) {
	asked := make(map[string]bool)
	for _, key := range keys {
		if d, err := f.DeadLetter(ctx, key); err == nil {
			asked[d.Destination] = true
		}
	}
	n, err := f.revive(ctx, keys...)
	for destination := range asked {
		f.schedule.Recheck(destination)
	}
	return n, err
}

func (f *Forwarder) revive(ctx context.Context, keys ...string) (int, error) {
	if f.open.Err() != nil {
		return 0, ErrClosed
	}
	return f.config.Store.Revive(ctx, keys...)
}

// recheckEach returns a function that calls recheck for each destination that it gets, once.
func (f *Forwarder) recheckEach() func(destination string) {
	asked := make(map[string]bool)
	return func(destination string) {
		if !asked[destination] {
			asked[destination] = true
			f.schedule.Recheck(destination)
		}
	}
}

// ReplayAll is Replay for the dead letters that filter selects. It works while the caller ranges
// over the result, and after each commit, of up to 256 dead letters, yields how many it has
// replayed so far. It ends with an error, which it yields with that number. A further call
// continues with the rest. ReplayAll leaves out dead letters that died after the loop began:
// otherwise a replay to an endpoint that refuses everything would never end.
func (f *Forwarder) ReplayAll(ctx context.Context, filter EndedFilter) iter.Seq2[int, error] {
	return f.allDead(ctx, filter, f.revive, f.recheckEach())
}

// Discard removes the dead letters with these keys, and returns how many there were.
func (f *Forwarder) Discard(ctx context.Context, keys ...string) (int, error) {
	return f.config.Store.Discard(ctx, keys...)
}

// DiscardAll is Discard for the dead letters that filter selects, in the way of ReplayAll.
func (f *Forwarder) DiscardAll(ctx context.Context, filter EndedFilter) iter.Seq2[int, error] {
	return f.allDead(ctx, filter, f.Discard, func(string) {})
}

// allDead calls do with the keys of the dead letters of filter that died before the loop began, and
// then done with the destination of each.
func (f *Forwarder) allDead(ctx context.Context, filter EndedFilter, do func(context.Context, ...string) (int, error), done func(destination string)) iter.Seq2[int, error] {
	type dead struct{ key, destination string }
	all := func(yield func(dead, error) bool) {
		filter := endedBy(filter, f.config.now())
		for d, err := range f.Dead(ctx, filter) {
			if !yield(dead{d.Key, d.Destination}, err) {
				return
			}
		}
	}
	return inChunks(all, chunk, func(some []dead) (int, error) {
		keys := make([]string, len(some))
		for i := range some {
			keys[i] = some[i].key
		}
		n, err := do(ctx, keys...)
		for i := range some {
			done(some[i].destination)
		}
		return n, err
	})
}

const chunk = 256 // dead letters that one commit replays or discards at most

// inChunks passes the values of seq to do, up to n at a time. After each call it yields the sum of
// the numbers that do has returned. An error, which it yields with the sum, ends it.
func inChunks[T any](seq iter.Seq2[T, error], n int, do func([]T) (int, error)) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		total := 0
		var gathered []T
		flush := func() bool {
			done, err := do(gathered)
			total += done
			gathered = gathered[:0]
			return yield(total, err) && err == nil
		}
		for v, err := range seq {
			if err != nil {
				yield(total, err)
				return
			}
			if gathered = append(gathered, v); len(gathered) == n && !flush() {
				return
			}
		}
		if len(gathered) > 0 {
			flush()
		}
	}
}

// Delivered is History.Delivered of the store, or ErrUnsupported if the store has no History.
func (f *Forwarder) Delivered(ctx context.Context, filter EndedFilter, after string) iter.Seq2[Ended, error] {
	h, ok := f.config.Store.(store.History)
	if !ok {
		return func(yield func(Ended, error) bool) { yield(Ended{}, ErrUnsupported) }
	}
	return h.Delivered(ctx, filter, after)
}

const resendChunk = 4 << 20 / maxTransformed // deliveries of one commit: 4 MB of bodies

// Resend sends again the deliveries in the store's History that filter selects, in the way of
// ReplayAll. Each becomes a new delivery with the same body and an ID of its own, so a receiver
// that deduplicates by webhook-id takes it. Resend leaves out deliveries that were delivered after
// the loop began, and copies that an earlier Resend has made. The error is ErrUnsupported if the
// store has no History, ErrClosed after Shutdown, or another error of Forward.
func (f *Forwarder) Resend(ctx context.Context, filter EndedFilter) iter.Seq2[int, error] {
	again := func(yield func(store.Put, error) bool) {
		filter := endedBy(filter, f.config.now())
		for d, err := range f.Delivered(ctx, filter, "") {
			if err == nil && d.ID != deliveryID(&event.Event{ID: d.MessageID, Source: d.Source}) {
				continue // d is a copy that an earlier Resend has made
			}
			now := f.config.now().UTC()
			sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(d.ID), uint64(now.UnixNano())))
			if !yield(store.Put{NoDedup: true, Delivery: Delivery{
				Destination: d.Destination, ID: base64.RawURLEncoding.EncodeToString(sum[:18]), MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event,
				Type: d.Type, Body: d.Body, Accepted: now, Due: now, Trace: d.Trace,
			}}, err) {
				return
			}
		}
	}
	var b batch
	done := f.recheckEach()
	return inChunks(again, resendChunk, func(ps []store.Put) (int, error) {
		if f.open.Err() != nil {
			return 0, ErrClosed
		}
		b.puts = ps
		n, err := f.put(ctx, &b)
		for i := range ps {
			done(ps[i].Destination)
		}
		return n, err
	})
}

// Waiting yields the deliveries that filter selects, as Inspector.Waiting does.
func (f *Forwarder) Waiting(ctx context.Context, filter WaitingFilter, after string) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) {
		for d, err := range f.config.Store.Waiting(ctx, filter.Destination, after) {
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// ChangeWaiting makes the deliveries that filter selects due now, or discards them. It returns how
// many it has changed, and how many it has skipped because they are being attempted: call it again
// later. DueNow does not end a pause.
func (f *Forwarder) ChangeWaiting(ctx context.Context, filter WaitingFilter, to Change) (n, claimed int, err error) {
	n, claimed, err = f.config.Store.Change(ctx, filter, to)
	if to == DueNow {
		f.schedule.Recheck(filter.Destination)
	} else {
		f.recorder.count(func(s *Stats) { s.Discarded += int64(n) })
	}
	return n, claimed, err
}

// EraseUser removes a user's deliveries, dead letters and history from the store, by Delivery.User.
// It returns how many it has removed, and how many it has skipped because they are claimed: call it
// again later. The error is of the store, or a *event.CallError for an id without 1 to 8192 bytes.
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

// endedBy returns a filter for the deliveries of f that ended before now.
func endedBy(f EndedFilter, now time.Time) EndedFilter {
	if f.To.IsZero() || f.To.After(now) {
		f.To = now
	}
	return f
}
