package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hookferry/analytics/webhook"
)

// A heartbeat keeps this node alive for others, and finds who is dead.
type heartbeat struct {
	*claimer
	janitor
	presented chan struct{}
	note      func() ([]byte, bool) // guarded by mu
	removed   []string              // nodes whose claims are still to be given back; of takeOver
}

// enroll makes this process a node, whose claims hold from now on.
func (s *heartbeat) enroll(ctx context.Context) error {
	sent := time.Now()
	var id int64
	if err := s.pool.QueryRow(ctx, s.in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::bigint * interval '1 microsecond') RETURNING id`), s.config.Node, s.config.term().Microseconds()).Scan(&id); err != nil {
		return err
	}
	s.mu.Lock()
	s.node, s.sent = id, sent
	s.mu.Unlock()
	return s.beat(ctx)
}

// beat sends a heartbeat, unless the scheduler above makes no progress. It returns errEnded if
// it comes too late.
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
RETURNING (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`), node, s.config.term().Microseconds(), note, s.config.late().Microseconds()).Scan(&now)
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
	// The clocks are taken to be one unless they differ by more than is known.
	s.offset = time.UnixMicro(now).Sub(sent.Add(took / 2))
	if s.offset.Abs() <= took/2+time.Millisecond {
		s.offset = 0
	}
	return nil
}

// live sends heartbeats until the Store is closed.
func (s *heartbeat) live() {
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
			s.config.Logger.Warn("pgqueue: no heartbeat was stored; if that goes on, other nodes take over and deliveries in flight may be repeated", "error", oneLine(err))
		case err == nil && silent:
			silent = false
			s.config.Logger.Info("pgqueue: heartbeats are stored again")
			s.heardAny()
		}
	}
}

// again makes this process a new node, after others have taken over what the old
// one had claimed.
func (s *heartbeat) again(ctx context.Context) error {
	s.config.Logger.Warn("pgqueue: this node was silent for too long, and others have taken over what it had claimed")
	s.mu.Lock()
	for _, c := range s.chunks {
		s.forget(c)
	}
	s.mu.Unlock()
	if err := s.enroll(ctx); err != nil {
		return err
	}
	s.heardAny()
	return nil
}

// resign gives back all that is claimed.
func (s *heartbeat) resign(ctx context.Context) error {
	s.mu.Lock()
	node := s.node
	var b pgx.Batch
	var back []*chunk
	for _, c := range s.chunks {
		if !c.broken { // else when it is due is as it was
			back = append(back, c)
		}
	}
	s.queueRelease(&b, node, back)
	s.mu.Unlock()
	b.Queue(byIndex)
	b.Queue(s.in(giveBackSQL), node, []int16{}, []int64{})
	b.Queue(s.in(`DELETE FROM S.node WHERE id = $1`), node)
	b.Queue(notify, s.channel(), payload(node, noNames))
	return s.pool.SendBatch(ctx, &b).Close()
}

// soughtRest is how long a look for what is unclaimed rests afterwards, in times of what
// it took, however often others tell that there is something.
const soughtRest = 4

// look has the caller look for what no notification told of, takes over what dead nodes had
// claimed, and keeps the tables small, until the Store is closed.
func (s *heartbeat) look() {
	silent := time.NewTicker(s.config.Claim / 8)
	defer silent.Stop()
	timer := time.NewTimer(s.config.Poll)
	defer timer.Stop()
	var kept, last time.Time
	for {
		select {
		case <-silent.C:
			s.steps(s.takeOver)
			continue
		case <-s.sought:
			s.mu.Lock()
			timer.Reset(time.Until(last.Add(soughtRest * s.looked)))
			s.mu.Unlock()
			continue
		case <-timer.C:
		case <-s.background.Done():
			return
		}
		last = time.Now()
		s.heardAny()
		steps := []func(context.Context) error{s.giveBack, func(ctx context.Context) error {
			if s.releasing.Load() {
				return s.release(ctx, 0)
			}
			return s.release(ctx, idleClaim)
		}}
		if last.Sub(kept) >= upkeepEvery {
			steps, kept = append(steps, s.upkeep), last
		}
		s.steps(steps...)
		// However long a look takes, it takes a small part of the time.
		s.mu.Lock()
		timer.Reset(max(s.config.Poll, 20*s.looked))
		s.mu.Unlock()
	}
}

// steps takes one step after the other until one fails, of which live tells.
func (s *heartbeat) steps(steps ...func(context.Context) error) {
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(s.background, writeTimeout)
		err := step(ctx)
		cancel()
		if err != nil {
			return
		}
	}
}

// takeOver gives back what nodes had claimed whose heartbeats have ended, and tells all
// other nodes of it. The statement that removes these nodes decides who is dead: it may
// be carried out long after it was sent. A database that stood still makes nobody dead: the
// node $1 judges only if its own heartbeats were stored for a whole term ($2), up to now, and
// none of them late ($3). These times are in microseconds.
func (s *heartbeat) takeOver(ctx context.Context) error {
	node := s.nodeNow()
	names, err := collect(ctx, s.pool, pgx.RowTo[string], s.in(`DELETE FROM S.node WHERE expires < clock_timestamp() AND id <> $1 AND EXISTS (
	SELECT FROM S.node judge WHERE judge.id = $1
	AND judge.steady <= clock_timestamp() - $2::bigint * interval '1 microsecond'
	AND judge.seen > clock_timestamp() - $3::bigint * interval '1 microsecond') RETURNING name`),
		node, s.config.term().Microseconds(), s.config.late().Microseconds())
	if s.removed = append(s.removed, names...); err != nil || len(s.removed) == 0 {
		return err
	}
	var chunks int64
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.in(healSQL)).Exec(func(tag pgconn.CommandTag) error {
		chunks = tag.RowsAffected()
		return nil
	})
	b.Queue(notify, s.channel(), payload(node, noNames))
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	s.config.Logger.Warn("pgqueue: took over from nodes that are silent; what they had in flight may be repeated", "nodes", s.removed, "chunks", chunks)
	s.removed = nil
	s.heardAny()
	return nil
}

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

const healSQL = `WITH RECURSIVE h AS (
	(SELECT node FROM S.chunk WHERE node <> 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node <> 0 AND node > h.node ORDER BY node LIMIT 1) FROM h WHERE h.node IS NOT NULL
)
UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = ANY (ARRAY(
	SELECT node FROM h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))`
