package natsqueue

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// A deafConn drops what is sent while it is deaf, so that no answer comes.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Close waits for a server that hangs as long as for an answer, however long a claim lasts.
func TestCloseBesideHang(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := s.open(t, Config{Partitions: 2})
		deaf.Store(true)
		began := time.Now()
		if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want that there was no time", err)
		}
		// A second goes to the consumers that it asks the server to delete.
		if took := time.Since(began); took < writeTimeout || took > writeTimeout+time.Second {
			t.Errorf("Close took %v with a Claim of an hour, want %v", took, writeTimeout)
		}
	})
}
