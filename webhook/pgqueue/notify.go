package pgqueue

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A notification names a destination that may have unclaimed deliveries. Its payload is the id of
// the node that sends it, a space, and the destination in hexadecimal digits.

// notifyFreed notifies other nodes of the destinations of chunks that a statement has freed. It
// follows a CTE named freed. The channel is $1 and the id of the sender $2. PostgreSQL sends equal
// notifications of one transaction only once.
const notifyFreed = ` SELECT pg_notify($1, $2::bigint::text || ' ' || encode(destination, 'hex')) FROM freed`

// channel returns the name of the channel of the notifications. PostgreSQL allows names of 63
// bytes.
func (s *database) channel() string {
	return "hookferry_" + strconv.FormatUint(uint64(s.lock), 36)
}

// connect returns a connection that receives notifications.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	conn := pooled.Hijack() // a connection that listens must not go back to the pool
	if _, err := conn.Exec(ctx, "LISTEN "+s.channel()); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// listen receives notifications until the Store is closed. It begins with conn, and reconnects
// after an error.
func (s *Store) listen(conn *pgx.Conn) {
	for {
		n, err := conn.WaitForNotification(s.background)
		if err == nil {
			s.notified(n.Payload)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn.Close(ctx)
		cancel()
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
			select {
			case <-time.After(wait):
			case <-s.background.Done():
				return
			}
			if conn, err = s.connect(s.background); err == nil {
				s.heardAny() // notifications were missed meanwhile
				break
			}
		}
	}
}

func (s *Store) notified(payload string) {
	sender, name, _ := strings.Cut(payload, " ")
	destination, err := hex.DecodeString(name)
	if err == nil && sender != strconv.FormatInt(s.nodeNow(), 10) {
		s.heard(string(destination))
	}
}
