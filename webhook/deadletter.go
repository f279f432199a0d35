package webhook

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrUnsupported is returned when the queue lacks the part that a method
// needs.
var ErrUnsupported = errors.New("webhook: the queue does not support this")

// replayChunk is how many dead letters are replayed or discarded in one
// commit.
const replayChunk = 256

// Dead yields the dead letters that filter selects, in the order they died.
// The loop may replay and discard them. An error ends it.
func (f *Forwarder) Dead(ctx context.Context, filter DeadFilter) iter.Seq2[DeadLetter, error] {
	q, ok := f.config.Queue.(DeadLetters)
	if !ok {
		return func(yield func(DeadLetter, error) bool) { yield(DeadLetter{}, ErrUnsupported) }
	}
	return q.Dead(ctx, filter, "")
}

// Replay makes deliveries of the dead letters with these keys, due now and
// with the window to begin anew. It returns how many there were; a key that is
// not there, because it was replayed before, is no error.
func (f *Forwarder) Replay(ctx context.Context, keys ...string) (int, error) {
	q, ok := f.config.Queue.(DeadLetters)
	switch {
	case !ok:
		return 0, ErrUnsupported
	case f.open.Err() != nil:
		return 0, ErrClosed
	}
	n, err := q.Revive(ctx, keys...)
	if n > 0 {
		f.wake()
	}
	return n, err
}

// ReplayAll is Replay for the dead letters that filter selects and that died
// before the call. It returns how many were replayed, also with an error;
// calling it again goes on.
func (f *Forwarder) ReplayAll(ctx context.Context, filter DeadFilter) (int, error) {
	return f.eachDead(ctx, filter, f.Replay)
}

// Discard forgets the dead letters with these keys, and returns how many there
// were.
func (f *Forwarder) Discard(ctx context.Context, keys ...string) (int, error) {
	q, ok := f.config.Queue.(DeadLetters)
	if !ok {
		return 0, ErrUnsupported
	}
	return q.Discard(ctx, keys...)
}

// DiscardAll is Discard for the dead letters that filter selects and that died
// before the call.
func (f *Forwarder) DiscardAll(ctx context.Context, filter DeadFilter) (int, error) {
	return f.eachDead(ctx, filter, f.Discard)
}

// eachDead calls do for all that filter selects, in chunks. What dies again
// meanwhile is left out, or a replay to an endpoint that refuses would not end.
func (f *Forwarder) eachDead(ctx context.Context, filter DeadFilter, do func(context.Context, ...string) (int, error)) (int, error) {
	if now := time.Now(); filter.To.IsZero() || filter.To.After(now) {
		filter.To = now
	}
	total := 0
	keys := make([]string, 0, replayChunk)
	flush := func() error {
		n, err := do(ctx, keys...)
		total += n
		keys = keys[:0]
		return err
	}
	for d, err := range f.Dead(ctx, filter) {
		if err != nil {
			return total, err
		}
		if keys = append(keys, d.Key); len(keys) == replayChunk {
			if err := flush(); err != nil {
				return total, err
			}
		}
	}
	if len(keys) > 0 {
		return total, flush()
	}
	return total, nil
}
