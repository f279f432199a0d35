package natsqueue

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

// A reserve is a message of the stream that nobody needs. Where the server takes no more, it is
// given up for the messages that keep deliveries going, which make room: records, heartbeats and
// dedup keys. The cleaner stores it again.
type reserve struct {
	there atomic.Bool
}

// reserveBytes is the size of the reserve, at most.
const reserveBytes = 512 << 10

func (c *Config) reserve() string { return c.Stream + ".reserve" }

// relieve gives up the reserve, and reports whether there was one.
func (s *conn) relieve(ctx context.Context) bool {
	if !s.reserve.there.Swap(false) {
		return false
	}
	s.config.Logger.Error("natsqueue: the server takes no more: calls are refused until deliveries have ended, or it has more room")
	return s.purge(ctx, s.config.reserve(), 0) == nil
}

// refill stores the reserve, if it is not there.
func (s *conn) refill(ctx context.Context) error {
	if s.reserve.there.Load() {
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
	s.reserve.there.Store(err == nil)
	return err
}
