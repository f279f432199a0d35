package webhook

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrUnsupported is returned when the store lacks the part that a method
// needs.
var ErrUnsupported = errors.New("webhook: the store does not support this")

// replayChunk is how many dead letters are replayed or discarded in one
// commit.
const replayChunk = 256

// Dead yields the dead letters that filter selects, in the order they died, or the newest first.
// The loop may replay and discard them. An error of the store ends it.
func (f *Forwarder) Dead(ctx context.Context, filter DeadFilter) iter.Seq2[DeadLetter, error] {
	return f.config.Store.Dead(ctx, filter, "")
}

// DeadLetter returns the dead letter with this key, with its body and its
// attempts, or ErrNoDeadLetter.
func (f *Forwarder) DeadLetter(ctx context.Context, key string) (DeadLetter, error) {
	return f.config.Store.DeadLetter(ctx, key)
}

// CountDead returns how many dead letters filter selects. It reads all that died
// within the filter's times, unless the filter selects all. With an error it returns how
// many it has read.
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

// Replay makes deliveries of the dead letters with these keys, due now and
// with the window to begin anew. It returns how many there were; a key that is
// not there, because it was replayed before, is no error. It returns ErrClosed
// after Shutdown, as ReplayAll and ReplaySeq do.
func (f *Forwarder) Replay(ctx context.Context, keys ...string) (int, error) {
	if f.open.Err() != nil {
		return 0, ErrClosed
	}
	return f.config.Store.Revive(ctx, keys...)
}

// ReplayAll is Replay for the dead letters that filter selects and that died
// before the call. It returns how many were replayed, also with an error or
// when ctx ends; calling it again goes on.
func (f *Forwarder) ReplayAll(ctx context.Context, filter DeadFilter) (int, error) {
	return last(f.ReplaySeq(ctx, filter))
}

// ReplaySeq is ReplayAll for callers that show its progress: after each commit, of
// up to 256 dead letters, it yields how many were replayed so far. Breaking the loop
// stops the replay at the number that was yielded last. What dies after the loop
// began is left alone: a replay to an endpoint that refuses would not end otherwise.
// An error comes with that number, and is the last thing yielded.
func (f *Forwarder) ReplaySeq(ctx context.Context, filter DeadFilter) iter.Seq2[int, error] {
	return eachDead(ctx, f.config.Store, filter, f.Replay)
}

// Discard forgets the dead letters with these keys, and returns how many there
// were; a key that is not there is no error.
func (f *Forwarder) Discard(ctx context.Context, keys ...string) (int, error) {
	return f.config.Store.Discard(ctx, keys...)
}

// DiscardAll is Discard for the dead letters that filter selects and that died
// before the call. It returns how many were discarded, also with an error.
func (f *Forwarder) DiscardAll(ctx context.Context, filter DeadFilter) (int, error) {
	return last(f.DiscardSeq(ctx, filter))
}

// DiscardSeq is DiscardAll for callers that show its progress, as ReplaySeq does.
func (f *Forwarder) DiscardSeq(ctx context.Context, filter DeadFilter) iter.Seq2[int, error] {
	return eachDead(ctx, f.config.Store, filter, f.Discard)
}

// eachDead calls do for all that filter selects, in chunks, and yields the sum
// of what it returns after each.
func eachDead(ctx context.Context, store Store, filter DeadFilter, do func(context.Context, ...string) (int, error)) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		filter := filter
		if now := time.Now(); filter.To.IsZero() || filter.To.After(now) {
			filter.To = now
		}
		total := 0
		keys := make([]string, 0, replayChunk)
		flush := func() bool {
			n, err := do(ctx, keys...)
			total += n
			keys = keys[:0]
			return yield(total, err) && err == nil
		}
		for d, err := range store.Dead(ctx, filter, "") {
			if err != nil {
				yield(total, err)
				return
			}
			if keys = append(keys, d.Key); len(keys) == replayChunk && !flush() {
				return
			}
		}
		if len(keys) > 0 {
			flush()
		}
	}
}

// last runs seq to its end, and returns what it yielded last.
func last(seq iter.Seq2[int, error]) (n int, err error) {
	for n, err = range seq {
	}
	return n, err
}
