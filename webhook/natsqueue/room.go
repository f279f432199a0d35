package natsqueue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

// A room counts how many bytes may still be put under Config.MaxBytes. The server does not enforce
// this bound, because records may exceed it: without them nothing could be settled and purged.
type room struct {
	*cleaner
	mu    sync.Mutex // held while the server is asked
	used  int64      // bytes of the stream when the server was asked, and what was put since
	asked time.Time
}

// take takes size bytes, or returns webhook.ErrQueueFull.
func (r *room) take(ctx context.Context, size int64) error {
	if r.config.MaxBytes == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// What other nodes put shows when the server is asked again.
	if r.used+size > r.config.MaxBytes || time.Since(r.asked) > r.config.Claim {
		if err := r.clean(ctx, true); err != nil {
			return err
		}
		info, err := r.info(ctx, "")
		if err != nil {
			return err
		}
		r.used, r.asked = int64(info.State.Bytes), time.Now()
	}
	if r.used+size > r.config.MaxBytes {
		return webhook.ErrQueueFull
	}
	r.used += size
	return nil
}

// reserveBytes is the most bytes of the reserve, a message of the stream that nobody needs. If the
// server takes no more, the reserve is given up for the messages that keep deliveries going and so make
// room: records, heartbeats and dedup keys. The cleaner stores it again.
const reserveBytes = 512 << 10

// relieve gives up the reserve, and reports whether there was one.
func (s *conn) relieve(ctx context.Context) bool {
	if !s.reserve.Swap(false) {
		return false
	}
	s.config.Logger.Error("natsqueue: the server takes no more; calls are refused until deliveries have ended, or it has more room")
	return s.purge(ctx, s.config.reserve(), 0) == nil
}

// refill stores the reserve, if it is not there.
func (s *conn) refill(ctx context.Context) error {
	if s.reserve.Load() {
		return nil
	}
	size := min(reserveBytes, s.nc.MaxPayload()-headerRoom)
	if s.config.MaxBytes > 0 {
		size = min(size, s.config.MaxBytes/16)
	}
	err := s.store(ctx, &parcel{messages: []*nats.Msg{{Subject: s.config.reserve(), Data: make([]byte, size), Header: nats.Header{headerRollup: {"sub"}}}}})
	if errors.Is(err, webhook.ErrQueueFull) {
		return nil // later
	}
	s.reserve.Store(err == nil)
	return err
}
