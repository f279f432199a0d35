package natsqueue

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// A server that does not answer keeps nobody waiting beyond the deadline of a Put.
func TestPutEndsAtItsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := ready(s.open(t, Config{}))
		deaf.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		ds := deliveries("crm", 0, 1)
		if n, err := q.Put(ctx, ds...); n != 0 || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 5*time.Second {
			t.Errorf("Put = %d, %v after %v, want the deadline after 5s", n, err, time.Since(begin))
		}
		deaf.Store(false)
		if _, err := q.Put(t.Context(), ds...); err != nil {
			t.Error(err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
}
