package pgqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// A heartbeat proves to other nodes that this process, a node, is alive.
type heartbeat struct {
	*database
	presented chan struct{} // makes live send a heartbeat; capacity 1

	// mu guards all below, and memory, so that the id of the node does not change while chunks that were
	// claimed with this id are added to memory.
	mu      sync.Mutex
	node    int64                 // the id of this node
	note    func() ([]byte, bool) // of Present
	sent    time.Time             // when the latest stored heartbeat was sent
	offset  time.Duration         // how far the database's clock is ahead
	lastErr error                 // the error of the latest heartbeat
}

// beat sends a heartbeat, unless the scheduler makes no progress. It returns errEnded if another
// node has judged this one dead.
func (s *heartbeat) beat(ctx context.Context) error {
	s.mu.Lock()
	node, present := s.node, s.note
	s.mu.Unlock()
	note, alive := present()
	if !alive {
		return errors.New("the forwarder of this node makes no progress")
	}
	if len(note) > webhook.MaxNote {
		note = nil
	}
	sent := time.Now()
	var now int64
	err := s.pool.QueryRow(ctx, s.in(`UPDATE S.node SET seen = clock_timestamp(), note = $3,
	steady = CASE WHEN clock_timestamp() - seen < $4::interval THEN steady ELSE clock_timestamp() END,
	expires = clock_timestamp() + $2::interval WHERE id = $1
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`),
		node, s.config.term(), note, s.config.late()).Scan(&now)
	took := time.Since(sent)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errEnded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastErr = err; err != nil {
		return err
	}
	s.sent = sent
	s.offset = time.UnixMicro(now).Sub(sent.Add(took / 2))
	if s.offset.Abs() <= took/2+time.Millisecond { // as the round trip can explain
		s.offset = 0
	}
	return nil
}

var errEnded = errors.New("the claims of this node have ended: its heartbeats were too late")

// expired returns an error once other nodes may consider this node dead: once the age of the last
// heartbeat is too high by the wall clock or by the monotonic clock.
func (s *heartbeat) expired() error {
	now, trusted := time.Now(), s.config.term()*9/10 // so that this node stops before others take over
	if now.Sub(s.sent) <= trusted && now.Round(0).Sub(s.sent.Round(0)) <= trusted {
		return nil
	}
	return fmt.Errorf("no heartbeat was stored in time: %w", cmp.Or(s.lastErr, errEnded))
}

func (s *heartbeat) nodeNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Now implements webhook.Store.
func (s *heartbeat) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset).UTC().Truncate(time.Microsecond)
}

// Present implements webhook.Shared.
func (s *heartbeat) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	signal(s.presented)
}

// Nodes implements webhook.Shared.
func (s *heartbeat) Nodes(ctx context.Context) ([]webhook.Node, error) {
	self := s.nodeNow()
	return listed(ctx, s.database, "listing nodes", func(r pgx.CollectableRow) (n webhook.Node, err error) {
		var id int64
		err = r.Scan(&id, &n.Name, &n.Opened, &n.Seen, &n.Note)
		n.Self, n.Opened, n.Seen = id == self, n.Opened.UTC(), n.Seen.UTC()
		return n, err
	}, `SELECT id, name, opened, seen, note FROM S.node ORDER BY opened, id LIMIT 1000`)
}
