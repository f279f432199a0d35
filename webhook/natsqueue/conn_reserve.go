package natsqueue

import (
	"context"
	"errors"

	"github.com/hookferry/analytics/webhook/store"
)

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
