package natsqueue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// storedBytes is about what a delivery takes in a stream beside its record.
const storedBytes = 160

// A room knows how much more the stream of deliveries may take. The bound is kept here
// and not by the server, as settlements are stored beyond it: they make room.
type room struct {
	asking sync.Mutex // held while the server is asked

	mu    sync.Mutex
	used  int64     // when it was asked for last, and what was put since
	asked time.Time // when that was
}

// take takes size bytes, or returns webhook.ErrQueueFull.
func (r *room) take(q *Queue, size int64) error {
	if q.config.MaxBytes == 0 || r.fits(q, size) {
		return nil
	}
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.fits(q, size) { // another has asked
		return nil
	}
	ctx, cancel := context.WithTimeout(q.background, writeTimeout)
	defer cancel()
	for again := false; ; again = true {
		unproven := q.unproven()
		if err := q.erase(ctx); err != nil {
			return err
		}
		s, err := q.js.Stream(ctx, q.config.Stream)
		if err != nil {
			return fmt.Errorf("natsqueue: asking for the size of the stream: %w", err)
		}
		r.mu.Lock()
		r.used, r.asked = int64(s.CachedInfo().State.Bytes), time.Now()
		r.mu.Unlock()
		if r.fits(q, size) {
			return nil
		}
		if again || !prove(ctx, unproven) {
			return webhook.ErrQueueFull
		}
	}
}

// proveFor is how long Put waits for what is settled to be seen to be: that is what can be
// erased.
const proveFor = 5 * time.Second

// unproven returns what is closed once that is seen which was settled by now: for each partition
// of which something is not.
func (q *Queue) unproven() (all []<-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.owned {
		if p != nil && len(p.unproven) > 0 && p.recorded > p.seen {
			p.awaited, p.reached = p.recorded, make(chan struct{})
			all = append(all, p.reached)
		}
	}
	return all
}

// prove waits for what unproven returned, and reports whether there was anything to wait for.
func prove(ctx context.Context, unproven []<-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, proveFor)
	defer cancel()
	for _, seen := range unproven {
		select {
		case <-seen:
		case <-ctx.Done():
		}
	}
	return len(unproven) > 0
}

// fits takes size bytes if they are known to be there.
func (r *room) fits(q *Queue, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What others put shows when the server is asked again.
	if r.used+size > q.config.MaxBytes || time.Since(r.asked) > q.config.Claim {
		return false
	}
	r.used += size
	return true
}
