package pgqueue

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// A heartbeat makes this process a node of the schema, and proves to the other nodes that it is
// alive.
type heartbeat struct {
	*database
	presented chan struct{} // makes live send a heartbeat; capacity 1

	// mu guards all below. It also guards memory, so that the id of the node does not change while
	// chunks that were claimed with this id are added to memory.
	mu      sync.Mutex
	node    int64                 // the id of this node
	note    func() ([]byte, bool) // of Present
	sent    time.Time             // when the latest stored heartbeat was sent
	offset  time.Duration         // how far the database's clock is ahead
	lastErr error                 // the error of the latest heartbeat
}

// enroll makes this process a new node. The claims of the node are valid from then on.
func (s *heartbeat) enroll(ctx context.Context) error {
	sent := time.Now()
	var id int64
	err := s.pool.QueryRow(ctx, s.in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::bigint * interval '1 microsecond') RETURNING id`),
		s.config.Node, s.config.term().Microseconds()).Scan(&id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.node, s.sent = id, sent
	s.mu.Unlock()
	return s.beat(ctx)
}

// beat sends a heartbeat, unless the scheduler makes no progress. It returns errEnded if another
// node has judged this one dead.
func (s *heartbeat) beat(ctx context.Context) error {
	s.mu.Lock()
	node, present := s.node, s.note
	s.mu.Unlock()
	var note []byte
	if present != nil {
		var alive bool
		if note, alive = present(); !alive {
			return errors.New("the forwarder of this node makes no progress")
		}
		if len(note) > webhook.MaxNote {
			note = nil
		}
	}
	sent := time.Now()
	var now int64
	err := s.pool.QueryRow(ctx, s.in(`UPDATE S.node SET seen = clock_timestamp(), note = $3,
	steady = CASE WHEN clock_timestamp() - seen < $4::bigint * interval '1 microsecond' THEN steady ELSE clock_timestamp() END,
	expires = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE id = $1
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`),
		node, s.config.term().Microseconds(), note, s.config.late().Microseconds()).Scan(&now)
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
	// Assume equal clocks, unless they differ by more than the round trip can explain.
	s.offset = time.UnixMicro(now).Sub(sent.Add(took / 2))
	if s.offset.Abs() <= took/2+time.Millisecond {
		s.offset = 0
	}
	return nil
}

var errEnded = errors.New("the claims of this node have ended: its heartbeats were too late")

// expired returns an error once other nodes may consider this node dead. It checks the age of the
// last heartbeat by the wall clock and by the monotonic clock. It returns an error if the age is
// too high by one of them.
func (s *heartbeat) expired() error {
	now, trusted := time.Now(), s.config.trusted()
	if now.Sub(s.sent) <= trusted && now.Round(0).Sub(s.sent.Round(0)) <= trusted {
		return nil
	}
	if s.lastErr != nil {
		return fmt.Errorf("claims have expired, no heartbeat was stored in time: %w", s.lastErr)
	}
	return errors.New("claims have expired, no heartbeat was stored in time")
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

// live sends heartbeats until the Store is closed.
func (s *Store) live() {
	tick := time.NewTicker(s.config.Claim / 4)
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
			err = s.again(ctx)
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

// again makes this process a new node, after other nodes have taken over the claims of its old one.
func (s *claimer) again(ctx context.Context) error {
	s.config.Logger.Warn("pgqueue: this node was silent for too long; other nodes have taken over its claims and may repeat its attempts")
	s.mu.Lock()
	for _, c := range s.chunks {
		s.forget(c)
	}
	s.mu.Unlock()
	if err := s.enroll(ctx); err != nil {
		return err
	}
	s.hearAny()
	return nil
}

// resign gives back all claims and removes this node from the table of nodes.
func (s *claimer) resign(ctx context.Context) error {
	s.mu.Lock()
	node := s.node
	for _, it := range s.claims {
		s.unhand(it, free)
	}
	s.mu.Unlock()
	if err := s.release(ctx, 0); err != nil {
		return err
	}
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.in(giveBackSQL), s.channel(), node, []int64{}) // damaged chunks, too
	b.Queue(s.in(`DELETE FROM S.node WHERE id = $1`), node)
	return s.pool.SendBatch(ctx, &b).Close()
}

// maintain runs until the Store is closed. It takes over from dead nodes and keeps the tables
// small. It signals Changed every Poll, so that Heads finds chunks that no notification has
// reported. A step that fails is tried again the next time. maintain does not log that the database
// cannot be reached, because the method live logs that.
func (s *Store) maintain() {
	judge := time.NewTicker(s.config.Claim / 8)
	defer judge.Stop()
	poll := time.NewTimer(s.config.Poll)
	defer poll.Stop()
	var kept time.Time
	try := func(step func(context.Context) error) {
		ctx, cancel := context.WithTimeout(s.background, writeTimeout)
		defer cancel()
		if err := step(ctx); err != nil {
			s.config.Logger.Debug("pgqueue: a maintenance step failed; it is tried again later", "error", err)
		}
	}
	for {
		select {
		case <-judge.C:
			try(s.takeOver)
			continue
		case <-poll.C:
		case <-s.background.Done():
			return
		}
		s.hearAny()
		try(s.reconcile)
		try(func(ctx context.Context) error { return s.release(ctx, idleClaim) })
		if time.Since(kept) >= upkeepEvery {
			kept = time.Now()
			try(s.upkeep)
		}
		// Wait so long that reading all heads takes at most a twentieth of the time.
		s.mu.Lock()
		poll.Reset(max(s.config.Poll, 20*s.looked))
		s.mu.Unlock()
	}
}

// takeOver removes the nodes whose heartbeats have ended, frees their claims, and notifies all
// other nodes. The statement itself decides which nodes are dead, because the database may execute
// it long after it was sent.
//
// An outage of the database makes no node dead. So this node judges others only if its own
// heartbeats have been stored for at least Config.term up to now, and none of them was late. In the
// statement, $2 is the id of this node; $3 is Config.term and $4 is Config.late, in microseconds.
func (s *claimer) takeOver(ctx context.Context) error {
	names, err := indexed(ctx, s.pool, pgx.RowTo[string], s.in(takeOverSQL),
		s.channel(), s.nodeNow(), s.config.term().Microseconds(), s.config.late().Microseconds())
	if err != nil || len(names) == 0 {
		return err
	}
	s.config.Logger.Warn("pgqueue: took over the claims of nodes without heartbeats; the attempts that they had in flight may be repeated", "nodes", names)
	s.hearAny()
	return nil
}

const takeOverSQL = `WITH dead AS (
	DELETE FROM S.node WHERE expires < clock_timestamp() AND id <> $2 AND EXISTS (
		SELECT FROM S.node judge WHERE judge.id = $2
		AND judge.steady <= clock_timestamp() - $3::bigint * interval '1 microsecond'
		AND judge.seen > clock_timestamp() - $4::bigint * interval '1 microsecond')
	RETURNING id, name
), freed AS (
	UPDATE S.chunk c SET node = 0 FROM dead WHERE c.node = dead.id AND c.node <> 0 RETURNING c.destination
), notified AS (` + notifyFreed + `)
SELECT name FROM dead WHERE (SELECT count(*) FROM notified) >= 0`

// Present implements webhook.Shared.
func (s *heartbeat) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	select {
	case s.presented <- struct{}{}:
	default:
	}
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
func (s *database) connect(ctx context.Context) (*pgx.Conn, error) {
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
func (s *memory) listen(conn *pgx.Conn) {
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
				s.hearAny() // notifications were missed meanwhile
				break
			}
		}
	}
}

func (s *memory) notified(payload string) {
	sender, name, _ := strings.Cut(payload, " ")
	destination, err := hex.DecodeString(name)
	if err == nil && sender != strconv.FormatInt(s.nodeNow(), 10) {
		s.hear(string(destination))
	}
}
