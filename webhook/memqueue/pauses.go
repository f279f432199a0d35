package memqueue

import (
	"context"
	"errors"
	"maps"
	"time"
)

// SetPaused implements webhook.Pauses.
func (q *Queue) SetPaused(ctx context.Context, destination string, paused bool) error {
	if destination == "" {
		return errors.New("memqueue: pause of no destination")
	}
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.mu.Unlock()
	if !paused {
		delete(q.paused, destination)
	} else if _, already := q.paused[destination]; !already {
		q.paused[destination] = time.Now().UTC()
	}
	return nil
}

// Paused implements webhook.Pauses.
func (q *Queue) Paused(ctx context.Context) (map[string]time.Time, error) {
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	defer q.mu.Unlock()
	return maps.Clone(q.paused), nil
}
