package natsqueue

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A room enforces Config.MaxBytes by counting the bytes that are put. The server does not: records
// must be stored beyond the bound, so that deliveries can be settled and messages purged.
type room struct {
	mu    sync.Mutex // held while the server is asked
	used  int64      // bytes of the stream when the server was last asked, plus bytes put since
	asked time.Time
}

// takeRoom counts size bytes as used, or returns store.ErrQueueFull.
func (s *cleaner) takeRoom(ctx context.Context, size int64) error {
	r, most := &s.room, s.conn.config.MaxBytes
	if most == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The server knows what other nodes have put, so ask it from time to time.
	if r.used+size > most || time.Since(r.asked) > s.conn.config.Claim {
		if err := s.clean(ctx, true); err != nil {
			return err
		}
		info, err := s.conn.info(ctx, "")
		if err != nil {
			return err
		}
		r.used, r.asked = int64(info.State.Bytes), time.Now()
	}
	if r.used+size > most {
		return store.ErrQueueFull
	}
	r.used += size
	return nil
}
