package pgqueue

import (
	"context"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// An ear hears what other nodes tell.
type ear struct{ *memory }

// listening returns a connection that gets notifications.
func (s *ear) listening(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	conn := pooled.Hijack() // it must not go back with a LISTEN on it
	if _, err := conn.Exec(ctx, "LISTEN "+s.channel()); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// listen hears what others put, until the Store is closed, at first from conn.
func (s *ear) listen(conn *pgx.Conn) {
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
			if conn, err = s.listening(s.background); err == nil {
				s.seek() // what was put meanwhile
				break
			}
		}
	}
}

// notified takes a payload.
func (s *ear) notified(text string) {
	words := strings.Fields(text)
	switch {
	case len(words) == 0 || words[0] == strconv.FormatInt(s.nodeNow(), 10):
	case len(words) == 1:
		s.seek()
	default:
		for i, word := range words {
			words[i], _ = url.QueryUnescape(word)
		}
		s.heard(slices.Values(words[1:]))
	}
}

const notify = "SELECT pg_notify($1, $2)"

// The most of a payload; PostgreSQL's limit is 8000 bytes.
const maxPayload = 7000

// payload is the node, and the destinations: none where they are too many, which
// stands for any.
func payload(node int64, names iter.Seq[string]) string {
	var b strings.Builder
	b.WriteString(strconv.FormatInt(node, 10))
	for name := range names {
		b.WriteString(" " + url.QueryEscape(name))
		if b.Len() > maxPayload {
			return strconv.FormatInt(node, 10)
		}
	}
	return b.String()
}

// channel is that of the notifications, within PostgreSQL's 63 bytes.
func (s *database) channel() string {
	return "hookferry_" + strconv.FormatUint(uint64(s.lock), 36)
}

// noNames are those of a payload that stands for any destination.
func noNames(func(string) bool) {}
