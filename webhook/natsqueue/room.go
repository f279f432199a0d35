package natsqueue

import (
	"context"
	"errors"
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
	r, most := &s.room, s.config.MaxBytes
	if most == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The server knows what other nodes have put, so ask it from time to time.
	if r.used+size > most || time.Since(r.asked) > s.config.Claim {
		if err := s.clean(ctx, true); err != nil {
			return err
		}
		info, err := s.info(ctx, "")
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

// reserveBytes is the maximum size of the reserve, a message of the stream that only takes up
// space. When the server has no room left, the store deletes the reserve. That makes room for the
// messages that let deliveries go on, and so free more space: records, heartbeats and dedup keys.
// The cleaner stores the reserve again later.
const reserveBytes = 512 << 10

// relieve deletes the reserve. It reports whether that made room.
func (s *conn) relieve(ctx context.Context) bool {
	if !s.reserve.Swap(false) {
		return false
	}
	s.config.Logger.Error("natsqueue: the server has no room left; new deliveries are refused until others have ended or the server has more room")
	return s.purge(ctx, s.config.reserve(), 0) == nil
}

// refill stores the reserve, unless this node knows that the stream has it.
func (s *conn) refill(ctx context.Context) error {
	if s.reserve.Load() {
		return nil
	}
	size := min(reserveBytes, s.nc.MaxPayload()-headerRoom)
	if s.config.MaxBytes > 0 {
		size = min(size, s.config.MaxBytes/16)
	}
	err := s.store(ctx, one(s.config.reserve(), make([]byte, size), headerRollup, "sub"))
	if errors.Is(err, store.ErrQueueFull) {
		return nil // the next call tries again
	}
	s.reserve.Store(err == nil)
	return err
}
