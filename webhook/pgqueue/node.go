package pgqueue

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hookferry/analytics/webhook/store"
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
	if len(note) > store.MaxNote {
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
	if s.lastErr = s.notice(err); err != nil {
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

// Ready returns nil, or why the store cannot be used at the moment: two heartbeats in a row, of the
// last five seconds or less, were not stored.
func (s *heartbeat) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.sent) <= 2*s.config.pulse() {
		return nil
	}
	return fmt.Errorf("pgqueue: no heartbeat is stored: %w", lineError{cmp.Or(s.lastErr, errEnded)})
}

func (s *heartbeat) nodeNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Now implements store.Store.
func (s *heartbeat) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset).UTC().Truncate(time.Microsecond)
}

// Present implements store.Shared.
func (s *heartbeat) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	signal(s.presented)
}

// Nodes implements store.Shared.
func (s *heartbeat) Nodes(ctx context.Context) ([]store.Node, error) {
	self := s.nodeNow()
	return listed(ctx, s.database, "listing nodes", func(r pgx.CollectableRow) (n store.Node, err error) {
		var id int64
		err = r.Scan(&id, &n.Name, &n.Opened, &n.Seen, &n.Note)
		n.Self, n.Opened, n.Seen = id == self, n.Opened.UTC(), n.Seen.UTC()
		return n, err
	}, `SELECT id, name, opened, seen, note FROM S.node ORDER BY opened, id LIMIT 1000`)
}

// live sends heartbeats until the Store is closed.
func (s *Store) live() {
	tick := time.NewTicker(s.config.pulse())
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-s.presented:
		case <-s.background.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.background, s.config.Claim/4)
		err := s.beat(ctx)
		if errors.Is(err, errEnded) {
			s.config.Logger.Warn("pgqueue: this node was silent for too long; other nodes have taken over its claims and may repeat its attempts")
			err = s.notice(s.enroll(ctx))
		}
		cancel()
		switch {
		case err != nil && s.background.Err() == nil && !silent:
			silent = true
			s.config.Logger.Warn("pgqueue: no heartbeat was stored; if that goes on, other nodes take over and deliveries in flight may be repeated", "error", lineError{err})
		case err == nil && silent:
			silent = false
			s.config.Logger.Info("pgqueue: heartbeats are stored again")
			s.hearAny()
		}
	}
}

// enroll makes this process a new node, whose claims are valid from then on. In memory, the claims of
// its old node end in the same step, so that memory has no chunk that another node may claim.
func (s *claimer) enroll(ctx context.Context) error {
	ids, err := collect(ctx, s.pool, pgx.RowTo[int64], s.in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::interval) RETURNING id`), s.config.Node, s.config.term())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.forget(slices.Collect(maps.Values(s.chunks))...)
	s.node = ids[0]
	s.mu.Unlock()
	s.hearAny()
	return s.beat(ctx)
}

// resign gives back all claims and removes this node from the table of nodes.
func (s *claimer) resign(ctx context.Context) error {
	s.mu.Lock()
	for _, it := range s.claims {
		s.unhand(it, free)
	}
	s.mu.Unlock()
	if err := s.release(ctx, 0); err != nil {
		return err
	}
	b := newBatch()
	b.Queue(s.in(`DELETE FROM S.node WHERE id = $1`), s.nodeNow())
	b.Queue(s.in(healSQL), s.channel, s.nodeNow()) // damaged chunks, and those of claims whose answers were lost
	return s.pool.SendBatch(ctx, b).Close()
}

// Failing implements store.Maintained.
func (s *heartbeat) Failing() map[string]time.Time { return s.steps.Failing() }

// ran takes the result of a maintenance step; effect is that of store.Upkeep. While heartbeats
// fail, it ignores errors: the method live logs that the database does not work.
func (s *heartbeat) ran(step, effect string, err error) {
	s.notice(err)
	s.mu.Lock()
	silent := s.lastErr != nil
	s.mu.Unlock()
	switch {
	case s.background.Err() != nil: // which fails every step
	case err == nil:
		s.steps.Ran(step, effect, nil)
	case !silent:
		s.steps.Ran(step, effect, lineError{err})
	}
}

// maintain takes over from dead nodes and keeps the tables small, until the Store is closed. Every Poll
// it signals Changed, so that Heads finds chunks that no notification has reported. A step that fails
// is tried again the next time.
func (s *Store) maintain() {
	judge := time.NewTicker(s.config.Claim / 8)
	defer judge.Stop()
	poll := time.NewTicker(s.config.Poll)
	defer poll.Stop()
	var searched, kept time.Time
	try := func(name string, step func(context.Context) error) {
		ctx, cancel := context.WithTimeout(s.background, writeTimeout)
		defer cancel()
		s.ran(name, "tables may grow, and claims may be freed late; look up the error, and end transactions that stay open (pg_stat_activity)", step(ctx))
	}
	for {
		select {
		case <-judge.C:
			try("take over", s.takeOver)
			continue
		case <-poll.C:
		case <-s.background.Done():
			return
		}
		s.mu.Lock()
		looked := s.looked
		s.unsure = !s.doubted.IsZero()
		s.mu.Unlock()
		// Reading all heads takes at most a twentieth of the time. It follows within a minute, because one
		// slow search may have waited for a database that hung for a moment.
		if time.Since(searched) >= min(20*looked, time.Minute) {
			searched = time.Now()
			s.hearAny()
		}
		try("reconcile", s.reconcile)
		try("release", func(ctx context.Context) error { return s.release(ctx, idleClaim) })
		if time.Since(kept) >= 10*time.Second {
			kept = time.Now()
			try("upkeep", s.upkeep)
		}
	}
}

// takeOver removes the nodes whose heartbeats have ended, frees their claims, and notifies all other
// nodes. The statement itself decides which nodes are dead, because the database may execute it long
// after it was sent.
//
// An outage of the database makes no node dead. So this node judges others only if its own
// heartbeats have been stored for at least Config.term up to now, and none of them was late.
func (s *claimer) takeOver(ctx context.Context) error {
	names, err := collect(ctx, s.pool, pgx.RowTo[string], s.in(takeOverSQL), s.channel, s.nodeNow(), s.config.term(), s.config.late())
	if err != nil || len(names) == 0 {
		return err
	}
	s.config.Logger.Warn("pgqueue: took over the claims of nodes without heartbeats; the attempts that they had in flight may be repeated", "nodes", names)
	s.hearAny()
	return nil
}

// In takeOverSQL, $1 is the channel, $2 the id of this node, $3 is Config.term and $4 is Config.late.
const takeOverSQL = `WITH dead AS (
	DELETE FROM S.node WHERE expires < clock_timestamp() AND id <> $2 AND EXISTS (
		SELECT FROM S.node judge WHERE judge.id = $2
		AND judge.steady <= clock_timestamp() - $3::interval
		AND judge.seen > clock_timestamp() - $4::interval)
	RETURNING id, name
), freed AS (
	UPDATE S.chunk c SET node = 0, outbox = false FROM dead WHERE c.node = dead.id AND c.node <> 0 RETURNING c.destination
), notified AS (` + notifyFreed + `)
SELECT name FROM dead WHERE (SELECT count(*) FROM notified) >= 0`

// upkeep keeps the tables small, and heals claims. Each step is a transaction of its own.
func (s *Store) upkeep(ctx context.Context) error {
	_, dedup := s.pool.Exec(ctx, s.in("SELECT S.rotate_dedup(0, clock_timestamp(), $1, $2)"), s.config.DedupMax, s.config.DedupWindow)
	_, chunks := s.pool.Exec(ctx, s.in("SELECT S.rotate_chunks(0, clock_timestamp())"))
	b := newBatch()
	b.Queue(s.in(healSQL), s.channel, s.nodeNow())
	return errors.Join(dedup, chunks, s.pool.SendBatch(ctx, b).Close())
}

// healSQL frees chunks that are claimed by nodes which do not exist, and notifies all other nodes. Such
// claims arise if a claim is stored while another node removes the claiming node, and if the answer to
// a claim was lost. The claiming node has not counted them as first claims, so outbox stays as it is.
const healSQL = `WITH RECURSIVE claimer AS (
	(SELECT node FROM S.chunk WHERE node <> 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node <> 0 AND node > h.node ORDER BY node LIMIT 1) FROM claimer h WHERE h.node IS NOT NULL
), freed AS (
	UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = ANY (ARRAY(
		SELECT node FROM claimer h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))
	RETURNING destination
)` + notifyFreed

// notifyFreed notifies other nodes of the destinations of chunks that a statement has freed. It follows
// a CTE named freed. The channel is $1 and the id of the sender $2. A notification is that id, a space,
// and the destination in hexadecimal digits. PostgreSQL sends equal ones of a transaction only once.
const notifyFreed = ` SELECT pg_notify($1, $2::bigint::text || ' ' || encode(destination, 'hex')) FROM freed`

// listen receives notifications until the Store is closed. It reconnects after an error.
func (s *memory) listen() {
	for s.background.Err() == nil {
		s.ran(listening, "this node finds the deliveries of other nodes later, within Config.Poll; look up the error", s.receive())
		select {
		case <-time.After(time.Second):
		case <-s.background.Done():
		}
	}
}

// listening is the maintenance step that receives notifications.
const listening = "listen"

// receive receives notifications until an error.
func (s *memory) receive() error {
	pooled, err := s.pool.Acquire(s.background)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // a connection that listens must not go back to the pool
	defer func() {
		ctx, cancel := context.WithTimeout(s.background, time.Second) // the server may not answer
		defer cancel()
		conn.Close(ctx)
	}()
	ctx, cancel := context.WithTimeout(s.background, writeTimeout)
	defer cancel()
	own := fmt.Sprintf("%s_%016x", s.channel, rand.Uint64())
	if _, err := conn.Exec(ctx, "LISTEN "+s.channel+"; LISTEN "+own, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	s.ran(listening, "", nil)
	s.hearAny() // earlier notifications were missed
	return s.heed(conn.WaitForNotification, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, "SELECT pg_notify($1, '')", own)
		return err
	})
}

// silence is how long a connection that listens may be silent before it is tested.
const silence = 10 * time.Second

var errDeaf = errors.New("the connection that listens does not get a notification that was sent to it")

// heed hears of the destinations in the notifications that wait returns, until an error. A connection
// may look open although the server or the network has dropped it, or lead to a server that is not the
// one that the pool writes to. So after a silence, echo sends a notification to this connection.
func (s *memory) heed(wait func(context.Context) (*pgconn.Notification, error), echo func(context.Context) error) error {
	for asked := false; ; {
		ctx, cancel := context.WithTimeout(s.background, silence)
		n, err := wait(ctx)
		late := ctx.Err() != nil && s.background.Err() == nil
		cancel()
		switch {
		case err == nil:
			asked = false
			sender, name, _ := strings.Cut(n.Payload, " ")
			destination, err := hex.DecodeString(name)
			if err == nil && 0 < len(destination) && len(destination) <= 255 && sender != strconv.FormatInt(s.nodeNow(), 10) {
				s.hear(string(destination))
			}
		case !late:
			return err
		case asked:
			return errDeaf
		default:
			ctx, cancel := context.WithTimeout(s.background, silence)
			asked = echo(ctx) == nil // otherwise the database does not answer, as heartbeats say
			cancel()
		}
	}
}
