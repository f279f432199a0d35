package webhook

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// firstSweep is how long after its start a forwarder first looks for dead
	// letters over the bounds: a start has other things to do.
	firstSweep = time.Minute
	// sweepEvery is how often it looks again.
	sweepEvery = time.Hour
)

// Forgotten counts the dead letters that the forwarder has discarded by itself.
type Forgotten struct {
	Age  int64 // older than Config.DeadMaxAge
	Size int64 // the oldest of more than Config.DeadMaxBytes
}

// sweep keeps the dead letters within the bounds of the Config until ctx is
// done. The bounds are the forwarder's, not the store's, so that every store
// has the same: all it has to do is list and discard. Several forwarders on a
// store do no harm to each other, as each counts what it has discarded itself.
func (f *Forwarder) sweep(ctx context.Context) {
	q, ok := f.config.Queue.(DeadLetters)
	if !ok || f.config.DeadMaxAge == Unlimited && f.config.DeadMaxBytes == Unlimited {
		return
	}
	t := time.NewTimer(firstSweep)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		err := f.forget(ctx, q, time.Now())
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			f.config.Logger.Error("webhook: dead letters over the bounds are kept, the store fails", "error", err)
		}
		t.Reset(sweepEvery)
	}
}

// forget discards the dead letters that are over the bounds at now.
func (f *Forwarder) forget(ctx context.Context, q DeadLetters, now time.Time) error {
	if f.config.DeadMaxAge != Unlimited {
		old := DeadFilter{To: now.Add(-f.config.DeadMaxAge)}
		every := func(*DeadLetter) bool { return true }
		if err := f.forgetWhile(ctx, q, old, "age", &f.count.forgottenAge, every); err != nil {
			return err
		}
	}
	if f.config.DeadMaxBytes == Unlimited {
		return nil
	}
	excess := -f.config.DeadMaxBytes
	for d, err := range q.Dead(ctx, DeadFilter{}, "") {
		if err != nil {
			return err
		}
		excess += deadSize(&d)
	}
	if excess <= 0 {
		return nil
	}
	return f.forgetWhile(ctx, q, DeadFilter{}, "size", &f.count.forgottenSize, func(d *DeadLetter) bool {
		if excess <= 0 {
			return false
		}
		excess -= deadSize(d)
		return true
	})
}

// forgetWhile discards the dead letters that filter selects, from the oldest on,
// up to the first for which more returns false.
func (f *Forwarder) forgetWhile(ctx context.Context, q DeadLetters, filter DeadFilter, bound string, count *atomic.Int64, more func(*DeadLetter) bool) error {
	total := 0
	defer func() {
		if total > 0 {
			f.config.Logger.Warn("webhook: dead letters discarded, over the bound", "bound", bound, "count", total)
		}
	}()
	keys := make([]string, 0, replayChunk)
	flush := func() error {
		n, err := q.Discard(ctx, keys...)
		count.Add(int64(n))
		total += n
		keys = keys[:0]
		return err
	}
	for d, err := range q.Dead(ctx, filter, "") {
		if err != nil {
			return err
		}
		if !more(&d) {
			break
		}
		if keys = append(keys, d.Key); len(keys) == replayChunk {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return flush()
}

// deadSize returns the bytes that d counts for towards Config.DeadMaxBytes.
func deadSize(d *DeadLetter) int64 {
	n := len(d.Body) + len(d.ID) + len(d.MessageID) + len(d.Source) + len(d.User) + len(d.Event)
	for i := range d.Attempts {
		a := &d.Attempts[i]
		n += len(a.Endpoint) + len(a.Error) + len(a.Answer)
	}
	return int64(n)
}
