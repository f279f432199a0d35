package natsqueue

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A room knows how much more the stream may take. The bound is kept here
// and not by the server, as settlements are stored beyond it: they make room.
type room struct {
	*cleaner
	asking sync.Mutex // held while the server is asked

	spent sync.Mutex // guards the rest
	used  int64      // when it was asked for last, and what was put since
	asked time.Time  // when that was
}

// take takes size bytes, or returns webhook.ErrQueueFull.
func (r *room) take(size int64) error {
	if r.config.MaxBytes == 0 || r.fits(size) {
		return nil
	}
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.fits(size) { // another has asked
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(r.background, callTimeout, errNoAnswer)
	defer cancel()
	if err := r.clean(ctx, true); err != nil {
		return err
	}
	info, err := r.info(ctx, "")
	if err != nil {
		return err
	}
	r.spent.Lock()
	r.used, r.asked = int64(info.State.Bytes), time.Now()
	r.spent.Unlock()
	if !r.fits(size) {
		return webhook.ErrQueueFull
	}
	return nil
}

// fits takes size bytes if they are known to be there.
func (r *room) fits(size int64) bool {
	r.spent.Lock()
	defer r.spent.Unlock()
	// What others put shows when the server is asked again.
	if r.used+size > r.config.MaxBytes || time.Since(r.asked) > r.config.Claim {
		return false
	}
	r.used += size
	return true
}
