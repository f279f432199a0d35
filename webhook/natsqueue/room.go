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
	asking sync.Mutex // held while the server is asked

	mu    sync.Mutex
	used  int64     // when it was asked for last, and what was put since
	asked time.Time // when that was
}

// take takes size bytes, or returns webhook.ErrQueueFull.
func (r *room) take(s *Store, size int64) error {
	if s.config.MaxBytes == 0 || r.fits(s, size) {
		return nil
	}
	r.asking.Lock()
	defer r.asking.Unlock()
	if r.fits(s, size) { // another has asked
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(s.background, callTimeout, errNoAnswer)
	defer cancel()
	if err := s.erase(ctx); err != nil {
		return err
	}
	var info struct {
		State struct {
			Bytes int64 `json:"bytes"`
		} `json:"state"`
	}
	if err := s.request(ctx, "STREAM.INFO."+s.config.Stream, nil, &info); err != nil {
		return err
	}
	r.mu.Lock()
	r.used, r.asked = info.State.Bytes, time.Now()
	r.mu.Unlock()
	if !r.fits(s, size) {
		return webhook.ErrQueueFull
	}
	return nil
}

// fits takes size bytes if they are known to be there.
func (r *room) fits(s *Store, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What others put shows when the server is asked again.
	if r.used+size > s.config.MaxBytes || time.Since(r.asked) > s.config.Claim {
		return false
	}
	r.used += size
	return true
}
