package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// A settler stores what becomes of deliveries that are claimed.
type settler struct {
	*putter
	settling turn
	unsure   map[*chunk]bool // their latest settlement may be stored or not; of who has the turn of settling
}

// An end is what becomes of an item.
type end struct {
	item    *item
	verdict webhook.Verdict
	again   *fresh // of a Retry
	dead    *webhook.DeadLetter
	record  []byte // of the dead letter
}

// Settle implements webhook.Store.
func (s *settler) Settle(ctx context.Context, ss []webhook.Settlement) (n int, err error) {
	err = s.call(ctx, "settling", func() error {
		if err := s.settling.take(ctx); err != nil {
			return err
		}
		defer s.settling.give()
		for n < len(ss) {
			ends, taken, refused := s.ends(ss[n:])
			if err := s.settle(ctx, ends); err != nil {
				return err
			}
			if n += taken; refused != nil {
				return fmt.Errorf("settlement %d: %w", n, refused)
			}
		}
		if s.releasing.Load() {
			if err := s.release(ctx, 0); err != nil {
				s.config.Logger.Debug("pgqueue: others have to wait for the end of this node", "error", err)
			}
		}
		return nil
	})
	return n, err
}

// ends makes ready as many of ss, from the first on, as one transaction takes: taken. An
// error is about the one behind them.
func (s *settler) ends(ss []webhook.Settlement) (ends []end, taken int, err error) {
	size := 0
	ended := make(map[*item]bool, len(ss))
	for i := range ss {
		v := &ss[i]
		switch v.Verdict {
		case webhook.Done, webhook.Return:
		case webhook.Retry, webhook.Bury:
			err = v.Delivery.Check()
		default:
			err = fmt.Errorf("verdict %d", v.Verdict)
		}
		if err != nil || size > maxBatch {
			return ends, i, err
		}
		s.mu.Lock()
		it := s.claimed[v.Delivery.Claim]
		s.mu.Unlock()
		if it == nil || ended[it] {
			continue // it does not hold any more
		}
		ended[it] = true
		e := end{item: it, verdict: v.Verdict}
		if v.Verdict == webhook.Retry || v.Verdict == webhook.Bury {
			if err := e.change(v); err != nil {
				return ends, i, err
			}
			size += len(it.record)
		}
		size += 64
		ends = append(ends, e)
	}
	return ends, len(ss), nil
}

// change makes what a Retry or a Bury stores.
func (e *end) change(v *webhook.Settlement) error {
	d, err := e.item.delivery()
	if err != nil {
		return err
	}
	d.Tries, d.Closed, d.Attempts = v.Delivery.Tries, v.Delivery.Closed, v.Delivery.Attempts
	if v.Verdict == webhook.Retry {
		d.Due, d.Expires = v.Delivery.Due, v.Delivery.Expires
		f, _, err := newFresh(&d, false, nil)
		e.again = &f
		return err
	}
	e.dead = &webhook.DeadLetter{Delivery: d, Reason: v.Reason, Died: v.At}
	e.record, err = e.dead.AppendBinary(nil)
	return err
}

// settle stores ends, and then ends their claims.
func (s *settler) settle(ctx context.Context, ends []end) error {
	if len(ends) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for again := true; ; again = false {
		err := s.settleOnce(ctx, ends)
		if err == nil {
			return nil
		}
		if !again || !hasCode(err, claimsEnded, deadlockDetected) {
			return err
		}
	}
}

// A progress is what a transaction changes in a chunk.
type progress struct {
	chunk *chunk
	set   []int // the deliveries that are done
	held  int   // how many are held afterwards
	done  string
}

func (s *settler) settleOnce(ctx context.Context, ends []end) error {
	if err := s.verify(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.expired(); err != nil {
		s.mu.Unlock()
		return err
	}
	var (
		node    = s.node
		changes []*progress
		of      = make(map[*chunk]*progress)
		retries []*fresh
		dead    []*end
	)
	for i := range ends {
		e := &ends[i]
		c := e.item.chunk
		if e.verdict == webhook.Return || c.over || isSet(c.done, e.item.index) {
			continue // there is nothing to store
		}
		p := of[c]
		if p == nil {
			p = &progress{chunk: c}
			of[c], changes = p, append(changes, p)
		}
		p.set = append(p.set, e.item.index)
		switch e.verdict {
		case webhook.Retry:
			retries = append(retries, e.again)
		case webhook.Bury:
			dead = append(dead, e)
		}
	}
	s.mu.Unlock()
	drafts := draftsOf(retries, time.Now())
	if len(changes) > 0 {
		var b pgx.Batch
		s.queueProgress(&b, node, changes)
		s.queuePut(&b, s.putArgs(0, drafts, false, false, 0), new(stored))
		s.queueDead(&b, dead)
		if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
			for _, p := range changes {
				s.unsure[p.chunk] = true
			}
			return err
		}
	}
	s.finish(ends, changes, drafts)
	return nil
}

// finish tells memory of what was settled.
func (s *settler) finish(ends []end, changes []*progress, drafts []*draft) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.offset)
	for i := range ends {
		it := ends[i].item
		if it.state != inHand {
			continue
		}
		it.chunk.used = now
		if s.unhand(it); ends[i].verdict == webhook.Return && !isSet(it.chunk.done, it.index) {
			s.putFree(it)
		}
	}
	for _, p := range changes {
		if p.chunk.held, p.chunk.done = p.held, p.done; p.held == 0 {
			s.forget(p.chunk)
		}
	}
	for _, d := range drafts {
		s.report(d.line, d.due, len(d.items))
	}
}

// verify finds out what was stored of the latest settlements of the chunks that are unsure.
// If their transaction is still at work, it waits for that.
func (s *settler) verify(ctx context.Context) error {
	if len(s.unsure) == 0 {
		return nil
	}
	var shelves []int16
	var ids []int64
	for c := range s.unsure {
		shelves, ids = append(shelves, c.key.shelf), append(ids, c.key.id)
	}
	states := make(map[chunkKey]row)
	_, err := collect(ctx, s.pool, func(rs pgx.CollectableRow) (r row, err error) {
		err = rs.Scan(&r.key.shelf, &r.key.id, &r.held, &r.done)
		states[r.key] = r
		return r, err
	}, s.in(verifySQL), s.nodeNow(), shelves, ids)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.unsure {
		if r, ok := states[c.key]; ok && !c.over {
			c.held, c.done = r.held, r.done
		} else {
			s.forget(c)
		}
	}
	clear(s.unsure)
	return nil
}

// queueProgress queues the statement that stores progress. It fails unless all the chunks
// are still this node's.
func (s *settler) queueProgress(b *pgx.Batch, node int64, changes []*progress) {
	n := len(changes)
	if n == 0 {
		return
	}
	shelves, ids, before, held, done := make([]int16, n), make([]int64, n), make([]int32, n), make([]int32, n), make([]*string, n)
	for i, p := range changes {
		c := p.chunk
		p.held = c.held - len(p.set)
		if p.held > 0 {
			p.done = withSet(c.done, c.n, p.set)
			done[i] = &p.done
		}
		shelves[i], ids[i], before[i], held[i] = c.key.shelf, c.key.id, int32(c.held), int32(p.held)
	}
	b.Queue(s.in(`SELECT S.settle($1::bigint, $2::smallint[], $3::bigint[], $4::int[], $5::int[], $6::text[])`), node, shelves, ids, before, held, done)
}

// queueDead queues the statement that stores dead letters.
func (s *settler) queueDead(b *pgx.Batch, dead []*end) {
	n := len(dead)
	if n == 0 {
		return
	}
	died, sizes := make([]int64, n), make([]int64, n)
	names, types, reasons, users, records := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, e := range dead {
		d := e.dead
		died[i], sizes[i], records[i] = d.Died.UnixMicro(), d.Size(), e.record
		names[i], types[i], reasons[i], users[i] = []byte(d.Destination), []byte(d.Type), []byte(d.Reason), []byte(d.User)
	}
	b.Queue(s.in(`INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
SELECT u.died, nextval('S.ids'), u.destination, u.type, u.reason, u.user_id, u.size, u.record
FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[])
	u (died, destination, type, reason, user_id, size, record)`), died, names, types, reasons, users, sizes, records)
}

const verifySQL = `SELECT c.shelf, c.id, c.held, coalesce(c.done::text, '') FROM S.chunk c, unnest($2::smallint[], $3::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1 FOR UPDATE OF c`
