package webhook

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"time"
)

// ErrUnsupported is returned by a method that needs an optional interface which the store does not
// implement, such as History or Outbox.
var ErrUnsupported = errors.New("webhook: the store does not support this")

// Dead yields the dead letters that filter selects, in the order in which they died, or the newest
// first if the filter says so. The loop may replay and discard them. An error ends the sequence.
func (f *Forwarder) Dead(ctx context.Context, filter DeadFilter) iter.Seq2[DeadLetter, error] {
	return f.config.Store.Dead(ctx, filter, "")
}

// DeadLetter returns the dead letter with this key, or ErrNoDeadLetter.
func (f *Forwarder) DeadLetter(ctx context.Context, key string) (DeadLetter, error) {
	return f.config.Store.DeadLetter(ctx, key)
}

// CountDead returns how many dead letters filter selects. Unless the filter is zero, it reads every
// dead letter that died between From and To. With an error, it returns the number so far.
func (f *Forwarder) CountDead(ctx context.Context, filter DeadFilter) (int, error) {
	if filter == (DeadFilter{}) {
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
// retry window. Replay returns how many it has replayed. An unknown key is no error, because the
// dead letter may have been replayed before. Replay and ReplayAll return ErrClosed after Shutdown.
func (f *Forwarder) Replay(ctx context.Context, keys ...string) (int, error) {
	if f.open.Err() != nil {
		return 0, ErrClosed
	}
	return f.config.Store.Revive(ctx, keys...)
}

// ReplayAll is Replay for the dead letters that filter selects. It does the work while the caller
// ranges over the result. After each commit of up to 256 dead letters it yields how many it has
// replayed so far. It yields an error together with that number, and ends. A further call continues
// with the rest. ReplayAll leaves out dead letters that died after the loop began. Otherwise a
// replay to an endpoint that refuses everything would never end.
func (f *Forwarder) ReplayAll(ctx context.Context, filter DeadFilter) iter.Seq2[int, error] {
	return f.allDead(ctx, filter, nil, f.Replay)
}

// Discard removes the dead letters with these keys, and returns how many there were.
func (f *Forwarder) Discard(ctx context.Context, keys ...string) (int, error) {
	return f.config.Store.Discard(ctx, keys...)
}

// DiscardAll is Discard for the dead letters that filter selects. Like ReplayAll, it does the work
// while the caller ranges over the result, and yields how many it has removed so far.
func (f *Forwarder) DiscardAll(ctx context.Context, filter DeadFilter) iter.Seq2[int, error] {
	return f.allDead(ctx, filter, nil, f.Discard)
}

// allDead calls do with the keys of the dead letters that filter selects, and that died before the
// loop began. It ends when the function more, unless it is nil, returns false for a dead letter.
func (e *engine) allDead(ctx context.Context, filter DeadFilter, more func(*DeadLetter) bool, do func(context.Context, ...string) (int, error)) iter.Seq2[int, error] {
	keys := func(yield func(string, error) bool) {
		filter := filter
		if now := e.now(); filter.To.IsZero() || filter.To.After(now) {
			filter.To = now
		}
		for d, err := range e.config.Store.Dead(ctx, filter, "") {
			if err == nil && more != nil && !more(&d) || !yield(d.Key, err) {
				return
			}
		}
	}
	return inChunks(keys, func(string) int { return 0 }, func(keys []string) (int, error) { return do(ctx, keys...) })
}

// One commit replays, discards or resends at most chunk deliveries. A commit that resends has
// bodies of roughly chunkBytes at most.
const (
	chunk      = 256
	chunkBytes = 4 << 20
)

// inChunks passes the values of seq to the function do, in pieces of up to chunk values or about
// chunkBytes, where the function size returns the bytes of a value. After each call it yields the
// sum of the numbers that do has returned so far. An error, which it yields with the sum, ends it.
func inChunks[T any](seq iter.Seq2[T, error], size func(T) int, do func([]T) (int, error)) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		total, bytes := 0, 0
		var gathered []T
		flush := func() bool {
			n, err := do(gathered)
			total += n
			gathered, bytes = gathered[:0], 0
			return yield(total, err) && err == nil
		}
		for v, err := range seq {
			if err != nil {
				yield(total, err)
				return
			}
			gathered, bytes = append(gathered, v), bytes+size(v)
			if (len(gathered) == chunk || bytes >= chunkBytes) && !flush() {
				return
			}
		}
		if len(gathered) > 0 {
			flush()
		}
	}
}

const (
	firstSweep = time.Minute // after the start of Run, which a sweep would slow down
	sweepEvery = time.Hour
)

// Forgotten counts the dead letters that the forwarder has discarded.
type Forgotten struct {
	Age  int64 // older than Config.DeadMaxAge
	Size int64 // the oldest, while all together were larger than Config.DeadMaxBytes
}

// keepBounds calls sweep. The forwarder enforces the bounds, not the store, so that they are the
// same for every store. Several forwarders on one store may do so.
func (e *engine) keepBounds(ctx context.Context) {
	if err := e.sweep(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		e.config.Logger.Error("webhook: the store fails; dead letters over the bounds are kept for another hour", "error", err)
	}
}

// sweep discards the dead letters that exceed the bounds now. If the counts of the store show that
// no dead letter exceeds a bound, sweep reads none.
func (e *engine) sweep(ctx context.Context) error {
	if e.config.DeadMaxAge == Unlimited && e.config.DeadMaxBytes == Unlimited {
		return nil
	}
	counts, err := e.config.Store.Count(ctx)
	if err != nil || counts.Dead == 0 {
		return err
	}
	if e.config.DeadMaxAge != Unlimited {
		if oldest := e.now().Add(-e.config.DeadMaxAge); counts.OldestDead.Before(oldest) {
			if err := e.forget(ctx, DeadFilter{To: oldest}, nil, "age", &e.count.forgottenAge); err != nil {
				return err
			}
		}
	}
	if e.config.DeadMaxBytes == Unlimited {
		return nil
	}
	if counts, err = e.config.Store.Count(ctx); err != nil {
		return err
	}
	excess := counts.DeadBytes - e.config.DeadMaxBytes
	if counts.DeadBytes < 0 { // the store does not know the total
		excess = -e.config.DeadMaxBytes
		for d, err := range e.config.Store.Dead(ctx, DeadFilter{}, "") {
			if err != nil {
				return err
			}
			excess += d.Size()
		}
	}
	if excess <= 0 {
		return nil
	}
	more := func(d *DeadLetter) bool {
		was := excess
		excess -= d.Size()
		return was > 0
	}
	return e.forget(ctx, DeadFilter{}, more, "size", &e.count.forgottenSize)
}

// forget discards dead letters as allDead does. It counts and logs them.
func (e *engine) forget(ctx context.Context, filter DeadFilter, more func(*DeadLetter) bool, bound string, count *atomic.Int64) (err error) {
	total := 0
	for total, err = range e.allDead(ctx, filter, more, e.config.Store.Discard) {
	}
	count.Add(int64(total))
	if total > 0 {
		e.config.Logger.Warn("webhook: discarded dead letters that exceeded DeadMaxAge or DeadMaxBytes", "bound", bound, "count", total)
	}
	return err
}
