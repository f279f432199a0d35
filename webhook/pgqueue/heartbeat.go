package pgqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A heartbeat proves to other nodes that this process, a node, is alive.
type heartbeat struct {
	db        *database
	presented store.Signal // makes claimer.live send a heartbeat

	// mu guards all below. It may be locked while memory.mu is.
	mu      sync.Mutex
	note    func() ([]byte, bool) // of Present
	sent    time.Time             // when the latest stored heartbeat was sent
	offset  time.Duration         // how far the database's clock is ahead
	lastErr error                 // the error of the latest heartbeat
}

func newHeartbeat(db *database) *heartbeat {
	return &heartbeat{db: db, presented: store.NewSignal(), note: func() ([]byte, bool) { return nil, true }}
}

// beat sends a heartbeat of the node with this id, unless the scheduler makes no progress. It returns
// errEnded if another node has judged the node dead.
func (h *heartbeat) beat(ctx context.Context, node int64) error {
	h.mu.Lock()
	present := h.note
	h.mu.Unlock()
	note, alive := present()
	if !alive {
		return errors.New("the forwarder of this node makes no progress")
	}
	if len(note) > store.MaxNote {
		note = nil
	}
	sent := time.Now()
	var now int64
	err := h.db.pool.QueryRow(ctx, h.db.in(`UPDATE S.node SET seen = clock_timestamp(), note = $3,
	steady = CASE WHEN clock_timestamp() - seen < $4::interval THEN steady ELSE clock_timestamp() END,
	expires = clock_timestamp() + $2::interval WHERE id = $1
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`),
		node, h.db.config.term(), note, h.db.config.late()).Scan(&now)
	took := time.Since(sent)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errEnded
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastErr = h.db.notice(err); err != nil {
		return err
	}
	h.sent = sent
	h.offset = time.UnixMicro(now).Sub(sent.Add(took / 2))
	if h.offset.Abs() <= took/2+time.Millisecond { // as the round trip can explain
		h.offset = 0
	}
	return nil
}

var errEnded = errors.New("the claims of this node have ended: its heartbeats were too late")

// expired returns an error once other nodes may consider this node dead: once the age of the last
// heartbeat is too high by the wall clock or by the monotonic clock.
func (h *heartbeat) expired() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, trusted := time.Now(), h.db.config.term()*9/10 // so that this node stops before others take over
	if now.Sub(h.sent) <= trusted && now.Round(0).Sub(h.sent.Round(0)) <= trusted {
		return nil
	}
	return fmt.Errorf("no heartbeat was stored in time: %w", cmp.Or(h.lastErr, errEnded))
}

// now returns the time by the database's clock.
func (h *heartbeat) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.offset)
}

// silent says that the latest heartbeat was not stored.
func (h *heartbeat) silent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastErr != nil
}

// ready is Store.Ready.
func (h *heartbeat) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.sent) <= 2*h.db.config.pulse() {
		return nil
	}
	return fmt.Errorf("pgqueue: no heartbeat is stored: %w", lineError{cmp.Or(h.lastErr, errEnded)})
}

// present sets what the next heartbeats say, and sends one now.
func (h *heartbeat) present(note func() ([]byte, bool)) {
	h.mu.Lock()
	h.note = note
	h.mu.Unlock()
	h.presented.Set()
}
