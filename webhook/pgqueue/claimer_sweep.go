package pgqueue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// chunkPage is how many chunks are read at once.
const chunkPage = 16

// A sweep settles the deliveries in some chunks for which f returns Done, which here removes them,
// or Retry. It claims the chunks that no node has claimed, settles deliveries in chunks of this
// node, and gives back what it has claimed.
type sweep struct {
	claimer *claimer
	f       func(*store.Delivery) store.Verdict
	changed int             // how many deliveries it has settled
	skipped map[uint64]bool // the numbers of claimed deliveries for which f does not return 0
}

func (cl *claimer) newSweep(f func(*store.Delivery) store.Verdict) *sweep {
	return &sweep{claimer: cl, f: f, skipped: make(map[uint64]bool)}
}

// removed counts a delivery that the caller has removed from another table.
func (s *sweep) removed(seq uint64) {
	s.changed++
	delete(s.skipped, seq)
}

// user sweeps every chunk behind the id after whose bytes contain a user id, and removes the bytes of
// the deliveries in it that are done.
func (s *sweep) user(ctx context.Context, user string, after int64) error {
	for {
		// This query may read the whole table. So it is not in the transaction that claims chunks.
		ids, err := collect(ctx, s.claimer.db.pool, pgx.RowTo[int64], s.claimer.db.in(withUserSQL), after, []byte(user), chunkPage)
		if err != nil || len(ids) == 0 {
			return err
		}
		gone, err := s.chunks(ctx, ids)
		if err == nil {
			err = afterDeadlock(func() error { return s.blank(ctx, ids) })
		}
		if err != nil {
			return err
		}
		// What a chunk had that is gone may be in a later one now, which the query has not seen.
		if after = ids[len(ids)-1]; gone != 0 {
			after = gone
		}
	}
}

const withUserSQL = `SELECT id FROM S.chunk WHERE id > $1 AND position($2::bytea IN items) > 0 ORDER BY id LIMIT $3`

// blank removes the bytes of the deliveries in some chunks that are done, whoever has claimed them.
func (s *sweep) blank(ctx context.Context, ids []int64) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	type row struct {
		ID    int64
		Items []byte
		Done  string
	}
	return pgx.BeginFunc(ctx, s.claimer.db.pool, func(tx pgx.Tx) error {
		rows, err := collect(ctx, tx, pgx.RowToStructByPos[row], s.claimer.db.in(partlyDoneSQL), ids)
		if err != nil {
			return err
		}
		b := newBatch()
		for _, r := range rows {
			b.Queue(s.claimer.db.in(`UPDATE S.chunk SET items = $3 WHERE part = $1 AND id = $2`), r.ID&3, r.ID, blank(r.Items, r.Done))
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

const partlyDoneSQL = `SELECT c.id, c.items, c.done::text FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.done IS NOT NULL ORDER BY c.id FOR UPDATE OF c`

// chunks sweeps the chunks with these ids, which are in order. It returns the first of them that is
// gone, or 0. If a delivery of that one still waits, then in a chunk with a greater id.
func (s *sweep) chunks(ctx context.Context, ids []int64) (gone int64, err error) {
	defer s.claimer.memory.hearAny()
	for err == nil && len(ids) > 0 {
		var first int64
		first, ids, err = s.once(ctx, ids)
		if gone == 0 || first != 0 && first < gone {
			gone = first
		}
	}
	return gone, err
}

// worthwhile sweeps those of some chunks in which f changes something, and reports whether any of
// the chunks is gone. It reads them first, which delays no other calls.
func (s *sweep) worthwhile(ctx context.Context, ids []int64) (gone bool, err error) {
	all, err := collect(ctx, s.claimer.db.pool, scanChunk, s.claimer.db.in(chunksSQL), ids)
	if err != nil {
		return false, err
	}
	gone, ids = len(all) < len(ids), nil
	for _, c := range all {
		changes := false
		for _, r := range s.claimer.memory.records([]*chunk{c}) {
			switch verdict := s.f(&r.Delivery); {
			case verdict == 0:
			case r.State == store.StateClaimed:
				s.skipped[r.Seq] = true
			default:
				changes = changes || verdict == store.Done || verdict == store.Retry && r.State == store.StateWaiting
			}
		}
		if changes {
			ids = append(ids, c.id)
		}
	}
	if len(ids) == 0 {
		return gone, nil
	}
	first, err := s.chunks(ctx, ids)
	return gone || first != 0, err
}

// once does what chunks says. It returns the ids of chunks that were released meanwhile, so that
// they have to be swept again. Fetch waits only until once has the deliveries in hand, and Settle
// only until their outcomes are stored.
func (s *sweep) once(ctx context.Context, ids []int64) (gone int64, again []int64, err error) {
	if err := s.claimer.fetching.Acquire(ctx, 1); err != nil {
		return 0, nil, err
	}
	var chunks []*chunk
	err = afterDeadlock(func() error {
		chunks, err = s.claimer.claim(ctx, func(*pgx.Batch) {}, sweepSQL, ids)
		return err
	})
	var items []*item
	var ss []store.Settlement
	if err == nil {
		again, err = s.removeBehind(ctx, chunks)
		items, ss = s.take(chunks)
	}
	s.claimer.fetching.Release(1)
	n := 0
	if err == nil && len(ss) > 0 {
		n, err = s.settle(ctx, ss)
	}
	if n < len(items) {
		// A Fetch that has begun may not have reconciled since the error, so it may not get these.
		s.claimer.fetching.Acquire(context.WithoutCancel(ctx), 1) // fails only if ctx is done
		defer s.claimer.fetching.Release(1)
	}
	s.claimer.memory.mu.Lock()
	s.claimer.memory.takeBack(items[n:]...)
	for _, c := range chunks {
		if c.owner == 0 {
			c.used = time.Time{} // so that release gives it back
		}
	}
	s.claimer.memory.mu.Unlock()
	if err == nil {
		err = afterDeadlock(func() error { return s.claimer.release(ctx, idleClaim) })
	}
	for _, id := range ids {
		if !slices.ContainsFunc(chunks, func(c *chunk) bool { return c.id == id }) {
			return id, again, err
		}
	}
	return 0, again, err
}

// take claims those deliveries in chunks that are to be settled, and returns their settlements.
func (s *sweep) take(chunks []*chunk) (items []*item, ss []store.Settlement) {
	s.claimer.memory.mu.Lock()
	defer s.claimer.memory.mu.Unlock()
	for _, c := range chunks {
		if c.owner == behind {
			continue
		}
		own, mine := s.claimer.memory.chunks[c.id]
		if mine {
			c = own
		}
		for j := range c.items {
			it := &c.items[j]
			d := it.d
			verdict := s.f(&d)
			switch {
			case it.state == settled || it.state == damaged || verdict == 0:
			case !mine || it.state != free:
				s.skipped[d.Seq] = true
			case verdict != store.Return:
				d.Claim = s.claimer.memory.hand(it)
				items, ss = append(items, it), append(ss, store.Settlement{Verdict: verdict, Delivery: d})
			}
		}
	}
	return items, ss
}

// settle stores settlements and returns their number.
func (s *sweep) settle(ctx context.Context, ss []store.Settlement) (n int, err error) {
	if err := s.claimer.settling.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer s.claimer.settling.Release(1)
	n, err = s.claimer.settleAll(ctx, ss, false)
	for i := range ss[:n] {
		s.removed(ss[i].Delivery.Seq)
	}
	return n, err
}

// removeBehind removes those of some chunks that are behind another one, and for which f returns Done. It
// returns the ids of those that are not behind any more.
func (s *sweep) removeBehind(ctx context.Context, chunks []*chunk) (released []int64, err error) {
	for _, c := range chunks {
		for i := range c.items {
			if d := c.items[i].d; c.owner == behind && c.items[i].state == free && s.f(&d) == store.Done {
				released = append(released, c.id)
			}
		}
	}
	if len(released) == 0 {
		return nil, nil
	}
	type row struct {
		ID     int64
		Outbox bool
	}
	removed, err := collect(ctx, s.claimer.db.pool, pgx.RowToStructByPos[row], s.claimer.db.in(removeBehindSQL), released)
	for _, r := range removed {
		released = slices.DeleteFunc(released, func(id int64) bool { return id == r.ID })
		if r.Outbox {
			s.claimer.firstClaims.Add(1)
		}
	}
	s.changed += len(removed)
	return released, err
}

const removeBehindSQL = `DELETE FROM S.chunk c USING unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = -1 RETURNING c.id, c.outbox`

const sweepSQL = `WITH picked AS MATERIALIZED (
	SELECT c.part, c.id, c.node FROM S.chunk c, unnest($2::bigint[]) u (id)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id ORDER BY c.id FOR UPDATE OF c
)` + claimPicked
