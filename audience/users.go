package audience

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A UserError says which user in a list has an id that is not allowed.
type UserError struct {
	Position    int // the index of the user in the list
	Size, Limit int // the length of the id in bytes; 1 to Limit are allowed
}

func (e *UserError) Error() string {
	return fmt.Sprintf("audience: user %d: an id of %d bytes, want 1 to %d", e.Position, e.Size, e.Limit)
}

// Users makes a list of user ids for Sync and Delete. For the ids in a slice, pass
// slices.Values(slice).
func Users(ids iter.Seq[string]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}
}

// One commit stores at most maxChunk deliveries, or deliveries for about maxChunkBytes of user ids.
// Larger commits would save little, and keep other calls waiting.
const maxChunk = 2048
const maxChunkBytes = 1 << 20

// inChunks passes the users in a list to store, in chunks that fit into one commit. All chunks use
// the same array. The argument deliveries is the number of deliveries that each user becomes.
// inChunks stops at the first error, such as a *UserError for an id that does not have 1 to limit
// bytes.
func inChunks(users iter.Seq2[string, error], limit, deliveries int, store func(chunk []string) error) error {
	var chunk []string
	position, size := 0, 0
	for user, err := range users {
		if err != nil {
			return err
		}
		if user == "" || len(user) > limit {
			return &UserError{Position: position, Size: len(user), Limit: limit}
		}
		chunk = append(chunk, user)
		if size += len(user); (len(chunk)+1)*deliveries > maxChunk || size*deliveries >= maxChunkBytes {
			if err := store(chunk); err != nil {
				return err
			}
			chunk, size = chunk[:0], 0
		}
		position++
	}
	return store(chunk)
}

const firstRoomWait = 50 * time.Millisecond // the first and the longest wait while the queue is full
const maxRoomWait = 5 * time.Second

// A backpressure slows a caller down to the pace of a full queue. The caller offers at most
// maxChunk >> backpressure elements at once: half as many after each refusal, and twice as many
// after each success. A single element that the queue refused is offered again after a wait, which
// doubles each time.
type backpressure int

// inParts passes a list to store, part after part. A call of store either stores the part, or
// returns an error and stores nothing. After each part inParts calls stored with its size. While
// the queue is full, it waits until ctx ends. It stops at the first other error.
func inParts[T any](ctx context.Context, p *backpressure, list []T, store func(part []T) error, stored func(n int) error) error {
	pause := firstRoomWait
	for len(list) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		limit := maxChunk >> *p
		n := min(limit, len(list))
		err := store(list[:n])
		full := errors.Is(err, webhook.ErrQueueFull)
		switch {
		case err == nil:
			if err := stored(n); err != nil {
				return err
			}
			list, pause, *p = list[n:], firstRoomWait, max(*p-1, 0)
		case limit > 1 && (full || errors.Is(err, webhook.ErrTooLarge)):
			*p++
		case full:
			select {
			case <-time.After(pause):
				pause = min(2*pause, maxRoomWait)
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", webhook.ErrQueueFull, ctx.Err())
			}
		default:
			return err
		}
	}
	return nil
}
