package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// term is how long others leave alone what a node has claimed after its last
// heartbeat. They look for silent nodes in eighths of Claim, and so have taken over
// within Claim of the end of a process.
func (c *Config) term() time.Duration { return c.Claim * 3 / 4 }

// late is the age at which the latest heartbeat of a node is late: it sends one in
// every quarter of Claim.
func (c *Config) late() time.Duration { return c.Claim / 2 }

// trusted is how long a node itself relies on a heartbeat that it sent.
func (c *Config) trusted() time.Duration { return c.term() * 9 / 10 }

func (s *Store) nodeNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// enroll makes this process a node, whose claims hold from now on.
func (s *Store) enroll(ctx context.Context) error {
	sent := time.Now()
	var id int64
	if err := s.pool.QueryRow(ctx, s.sql.enroll, s.config.Node, s.config.term().Microseconds()).Scan(&id); err != nil {
		return err
	}
	s.mu.Lock()
	s.node, s.sent = id, sent
	s.mu.Unlock()
	return s.beat(ctx)
}

// beat sends a heartbeat, unless the scheduler above makes no progress. It returns errEnded if
// it comes too late.
func (s *Store) beat(ctx context.Context) error {
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
	err := s.pool.QueryRow(ctx, s.sql.beat, node, s.config.term().Microseconds(), note, s.config.late().Microseconds()).Scan(&now)
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
func (s *Store) again(ctx context.Context) error {
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
func (s *Store) resign(ctx context.Context) error {
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
	b.Queue(s.sql.giveBack, node, []int16{}, []int64{})
	b.Queue(s.sql.resign, node)
	b.Queue(notify, s.channel(), payload(node, noNames))
	return s.pool.SendBatch(ctx, &b).Close()
}

// noNames are those of a payload that stands for any destination.
func noNames(func(string) bool) {}

// queueRelease queues the statement that gives chunks back. The store is locked.
func (s *Store) queueRelease(b *pgx.Batch, node int64, chunks []*chunk) {
	if len(chunks) == 0 {
		return
	}
	shelves, ids, dues := make([]int16, len(chunks)), make([]int64, len(chunks)), make([]int64, len(chunks))
	for i, c := range chunks {
		shelves[i], ids[i], dues[i] = c.key.shelf, c.key.id, c.due()
	}
	b.Queue(s.sql.release, node, shelves, ids, dues)
}

// due returns when the first delivery of c is due that is not settled.
func (c *chunk) due() int64 {
	due := int64(never)
	for i := range c.items {
		if it := &c.items[i]; it.state != settled {
			due = min(due, it.due)
		}
	}
	return due
}

// Release implements webhook.Shared. A chunk of which something is claimed is given back
// once that is settled.
func (s *Store) Release(ctx context.Context) error {
	if err := s.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	s.releasing.Store(true)
	if err := s.release(ctx, 0); err != nil {
		return fmt.Errorf("pgqueue: giving back what is not claimed: %w", err)
	}
	return nil
}

// idleClaim is how long a chunk of which nothing is handed out stays claimed.
const idleClaim = 10 * time.Second

// release gives back the chunks of which nothing is in hand, and was not for so long.
func (s *Store) release(ctx context.Context, idle time.Duration) error {
	s.mu.Lock()
	node, now := s.node, time.Now().Add(s.offset)
	var back []*chunk
	for _, c := range s.chunks {
		if c.inHand == 0 && !c.broken && (idle == 0 || now.Sub(c.used) > idle) {
			back = append(back, c)
		}
	}
	if len(back) == 0 {
		s.mu.Unlock()
		return nil
	}
	var b pgx.Batch
	s.queueRelease(&b, node, back)
	if idle == 0 {
		b.Queue(notify, s.channel(), payload(node, noNames))
	}
	names := make(map[string]bool)
	for _, c := range back {
		s.report(c.line, c.due(), c.held)
		s.forget(c)
		names[c.line.destination] = true
	}
	s.mu.Unlock()
	err := s.pool.SendBatch(ctx, &b).Close()
	if err != nil {
		s.doubt.Store(time.Now().UnixMicro())
	}
	s.heard(maps.Keys(names)) // a look meanwhile has not found them
	return err
}

// soughtRest is how long a look for what is unclaimed rests afterwards, in times of what
// it took, however often others tell that there is something.
const soughtRest = 4

// look has the caller look for what no notification told of, takes over what dead nodes had
// claimed, and keeps the tables small, until the Store is closed.
func (s *Store) look() {
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
func (s *Store) steps(steps ...func(context.Context) error) {
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
// be carried out long after it was sent.
func (s *Store) takeOver(ctx context.Context) error {
	judge := []any{s.nodeNow(), s.config.term().Microseconds(), s.config.late().Microseconds()}
	var some bool
	if err := s.pool.QueryRow(ctx, s.sql.silent, judge...).Scan(&some); err != nil || !some {
		return err
	}
	var names []string
	chunks := int64(0)
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndex); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, s.sql.expire, judge...)
		if err != nil {
			return err
		}
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(names) == 0 {
			return err
		}
		tag, err := tx.Exec(ctx, s.sql.heal)
		if err != nil {
			return err
		}
		chunks = tag.RowsAffected()
		_, err = tx.Exec(ctx, notify, s.channel(), payload(s.nodeNow(), noNames))
		return err
	})
	if err == nil && len(names) > 0 {
		s.config.Logger.Warn("pgqueue: took over from nodes that are silent; what they had in flight may be repeated", "nodes", names, "chunks", chunks)
		s.heardAny()
	}
	return err
}

// giveBack gives back what is claimed in this node's name and not in its memory:
// by transactions that were committed though that was never learned.
func (s *Store) giveBack(ctx context.Context) error {
	since := s.doubt.Load()
	if since == 0 {
		return nil
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	s.claims.Lock()
	defer s.claims.Unlock()
	s.mu.Lock()
	node := s.node
	shelves, ids := make([]int16, 0, len(s.chunks)), make([]int64, 0, len(s.chunks))
	for key := range s.chunks {
		shelves, ids = append(shelves, key.shelf), append(ids, key.id)
	}
	s.mu.Unlock()
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.sql.giveBack, node, shelves, ids)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	// The server may still be at work on what was given up here.
	if time.Since(time.UnixMicro(since)) > 2*writeTimeout {
		s.doubt.CompareAndSwap(since, 0)
	}
	return nil
}

// Present implements webhook.Shared.
func (s *Store) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	select {
	case s.presented <- struct{}{}:
	default:
	}
}

// Nodes implements webhook.Shared.
func (s *Store) Nodes(ctx context.Context) ([]webhook.Node, error) {
	self := s.nodeNow()
	nodes, err := listed(ctx, s, func(r pgx.CollectableRow) (n webhook.Node, err error) {
		var id int64
		err = r.Scan(&id, &n.Name, &n.Opened, &n.Seen, &n.Note)
		n.Self, n.Opened, n.Seen = id == self, n.Opened.UTC(), n.Seen.UTC()
		return n, err
	}, s.sql.nodes)
	if err != nil {
		return nil, fmt.Errorf("pgqueue: listing nodes: %w", err)
	}
	return nodes, nil
}
