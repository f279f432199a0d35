package pgqueue

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A teller tells other processes for which destinations something was put. It
// does so from a connection of its own at most once in tellEvery: a NOTIFY in
// each transaction would have all commits of the database wait for each other.
type teller struct {
	q    *Queue
	bell chan struct{}

	mu    sync.Mutex
	names map[string]bool
}

const tellEvery = 25 * time.Millisecond

const notify = "SELECT pg_notify($1, $2)"

// The most of a payload; PostgreSQL's limit is 8000 bytes.
const maxPayload = 7000

func newTeller(q *Queue) *teller {
	return &teller{q: q, bell: make(chan struct{}, 1), names: make(map[string]bool)}
}

// add notes a destination, and reports whether ring is to be called.
func (t *teller) add(destination string) bool {
	if t.q.config.NoListen {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names[destination] = true
	return len(t.names) == 1
}

func (t *teller) ring() {
	select {
	case t.bell <- struct{}{}:
	default:
	}
}

func (t *teller) run() {
	for {
		select {
		case <-t.bell:
		case <-t.q.background.Done():
			return
		}
		t.mu.Lock()
		names := t.names
		t.names = make(map[string]bool)
		t.mu.Unlock()
		if len(names) == 0 { // told with those before
			continue
		}
		t.q.mu.Lock()
		node := t.q.node
		t.q.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.q.background, writeTimeout)
		// Who does not hear it finds it within Poll.
		_, err := t.q.pool.Exec(ctx, notify, t.q.channel(), payload(node, names))
		cancel()
		if err != nil {
			t.q.config.Logger.Debug("pgqueue: others are not told", "error", err)
		}
		timer := time.NewTimer(tellEvery)
		select {
		case <-timer.C:
		case <-t.q.background.Done():
			timer.Stop()
			return
		}
	}
}

// payload is the node, and the destinations: none where they are too many, which
// stands for any.
func payload(node int64, names map[string]bool) string {
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
func (q *Queue) channel() string {
	return "hookferry_" + strconv.FormatUint(uint64(q.lock), 36)
}

// listening returns a connection that gets notifications.
func (q *Queue) listening(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := q.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	conn := pooled.Hijack() // it must not go back with a LISTEN on it
	if _, err := conn.Exec(ctx, "LISTEN "+q.channel()); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// listen hears what others put, until the Queue is closed, at first from conn.
func (q *Queue) listen(conn *pgx.Conn) {
	for {
		for {
			n, err := conn.WaitForNotification(q.background)
			if err != nil {
				break
			}
			q.heard(n.Payload)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn.Close(ctx)
		cancel()
		if conn = q.listenAgain(); conn == nil {
			return
		}
	}
}

// listenAgain returns a new connection once there is one, nil if the Queue is
// closed before.
func (q *Queue) listenAgain() *pgx.Conn {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-q.background.Done():
			timer.Stop()
			return nil
		}
		if conn, err := q.listening(q.background); err == nil {
			q.seek() // what was put meanwhile
			return conn
		}
	}
}

// heard takes a payload.
func (q *Queue) heard(text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return
	}
	q.mu.Lock()
	own := words[0] == strconv.FormatInt(q.node, 10)
	q.mu.Unlock()
	if own {
		return
	}
	if len(words) == 1 {
		q.seek()
		return
	}
	q.mu.Lock()
	for _, word := range words[1:] {
		name, err := url.QueryUnescape(word)
		if err == nil && name != "" {
			// What it is, and when it is due, the claim finds out.
			q.report(q.table.Lane(name), lanes.Order{At: q.now().UnixMicro()})
		}
	}
	q.mu.Unlock()
	q.awake()
}

// seek has look look for all that is unclaimed.
func (q *Queue) seek() {
	select {
	case q.sought <- struct{}{}:
	default:
	}
}
