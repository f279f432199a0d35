package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// A settler stores the outcomes of deliveries that are claimed.
type settler struct {
	*putter
	settling semaphore // held by calls that store outcomes
	// unsure are chunks whose latest outcomes may be stored or not, as the answer of the
	// database was lost. The holder of settling has it.
	unsure map[*chunk]bool
}

// An outcome is that of an item.
type outcome struct {
	item    *item
	verdict webhook.Verdict
	retry   *entry // of a Retry
	dead    *webhook.DeadLetter
	record  []byte // of the dead letter
}

// Settle implements webhook.Store.
func (s *settler) Settle(ctx context.Context, ss []webhook.Settlement) (n int, err error) {
	err = s.call(ctx, "settling", func() (err error) {
		if err := s.settling.acquire(ctx); err != nil {
			return err
		}
		defer s.settling.release()
		if n, err = s.settleAll(ctx, ss); err != nil {
			return err
		}
		if s.releasing.Load() {
			if err := s.release(ctx, 0); err != nil {
				s.config.Logger.Debug("pgqueue: could not give chunks back; other nodes get them when this one ends", "error", err)
			}
		}
		return nil
	})
	return n, err
}

// settleAll settles in as many transactions as it takes. settling is held.
func (s *settler) settleAll(ctx context.Context, ss []webhook.Settlement) (n int, err error) {
	for n < len(ss) {
		outcomes, taken, refused := s.outcomesOf(ss[n:])
		if err := s.settle(ctx, outcomes); err != nil {
			return n, err
		}
		if n += taken; refused != nil {
			return n, fmt.Errorf("settlement %d: %w", n, refused)
		}
	}
	return n, nil
}

// outcomesOf returns the outcomes of as many of ss, from the first on, as one transaction takes:
// taken. An error is about the one behind them.
func (s *settler) outcomesOf(ss []webhook.Settlement) (outcomes []outcome, taken int, err error) {
	size := 0
	settled := make(map[*item]bool, len(ss))
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
			return outcomes, i, err
		}
		s.mu.Lock()
		it := s.claims[v.Delivery.Claim]
		s.mu.Unlock()
		if it == nil || settled[it] {
			continue // the claim does not hold any more
		}
		settled[it] = true
		o := outcome{item: it, verdict: v.Verdict}
		if v.Verdict == webhook.Retry || v.Verdict == webhook.Bury {
			if err := o.change(v); err != nil {
				return outcomes, i, err
			}
			size += len(it.record)
		}
		size += 64
		outcomes = append(outcomes, o)
	}
	return outcomes, len(ss), nil
}

// change sets what a Retry or a Bury stores.
func (o *outcome) change(v *webhook.Settlement) error {
	d, err := o.item.delivery()
	if err != nil {
		return err
	}
	d.Tries, d.Closed, d.Attempts = v.Delivery.Tries, v.Delivery.Closed, v.Delivery.Attempts
	if v.Verdict == webhook.Retry {
		d.Due, d.Expires = v.Delivery.Due, v.Delivery.Expires
		e, _, err := newEntry(&d, false, nil)
		o.retry = &e
		return err
	}
	o.dead = &webhook.DeadLetter{Delivery: d, Reason: v.Reason, Died: v.At}
	o.record, err = o.dead.AppendBinary(nil)
	return err
}

// settle stores outcomes, and then ends their claims.
func (s *settler) settle(ctx context.Context, outcomes []outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := s.settleOnce(ctx, outcomes)
	if hasCode(err, claimsEnded, deadlockDetected) {
		err = s.settleOnce(ctx, outcomes)
	}
	return err
}

// A progress is what a transaction changes in a chunk.
type progress struct {
	chunk   *chunk
	done    []*item // that are done now
	waiting int     // how many wait afterwards
}

func (s *settler) settleOnce(ctx context.Context, outcomes []outcome) error {
	if err := s.verify(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.expired(); err != nil {
		s.mu.Unlock()
		return err
	}
	var (
		changes []*progress
		of      = make(map[*chunk]*progress)
		retries []*entry
		dead    []*outcome
	)
	for i := range outcomes {
		o := &outcomes[i]
		c := o.item.chunk
		if o.verdict == webhook.Return || o.item.state != inHand {
			continue // there is nothing to store
		}
		p := of[c]
		if p == nil {
			p = &progress{chunk: c, waiting: c.waiting}
			of[c], changes = p, append(changes, p)
		}
		p.done = append(p.done, o.item)
		p.waiting--
		switch o.verdict {
		case webhook.Retry:
			retries = append(retries, o.retry)
		case webhook.Bury:
			dead = append(dead, o)
		}
	}
	drafts := draftsOf(retries, time.Now())
	var b pgx.Batch
	s.queueProgress(&b, changes)
	s.mu.Unlock()
	if len(changes) > 0 {
		s.queuePut(&b, s.putArgs(0, drafts, false, nil), new(putResult))
		s.queueDead(&b, dead)
		if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
			for _, p := range changes {
				s.unsure[p.chunk] = true
			}
			return err
		}
	}
	s.settled(outcomes, changes, drafts)
	return nil
}

// settled tells memory of what was stored.
func (s *settler) settled(outcomes []outcome, changes []*progress, drafts []*draft) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.offset)
	for i := range outcomes {
		it := outcomes[i].item
		if it.state != inHand {
			continue
		}
		it.chunk.used = now
		if outcomes[i].verdict == webhook.Return {
			s.unhand(it, free)
			s.putBack(it.chunk.queue, it)
		} else {
			s.unhand(it, done)
		}
	}
	for _, p := range changes {
		if p.chunk.waiting = p.waiting; p.waiting == 0 {
			s.forget(p.chunk)
		}
	}
	s.reportAll(drafts)
}

// verify finds out which outcomes of the chunks that are unsure were stored. If their transaction
// is still at work, it waits for that.
func (s *settler) verify(ctx context.Context) error {
	if len(s.unsure) == 0 {
		return nil
	}
	var parts []int16
	var ids []int64
	for c := range s.unsure {
		parts, ids = append(parts, c.key.part), append(ids, c.key.id)
	}
	rows, err := collect(ctx, s.pool, func(r pgx.CollectableRow) (row row, err error) {
		err = r.Scan(&row.key.part, &row.key.id, &row.waiting, &row.done)
		return row, err
	}, s.in(verifySQL), s.nodeNow(), parts, ids)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := make(map[chunkKey]*row)
	for i := range rows {
		stored[rows[i].key] = &rows[i]
	}
	for c := range s.unsure {
		r := stored[c.key]
		if r == nil || c.lost {
			s.forget(c)
			continue
		}
		c.waiting = r.waiting
		for i := range c.items {
			it := &c.items[i]
			if !isSet(r.done, i) {
				continue
			}
			if it.state == inHand {
				s.unhand(it, done)
			}
			it.state = done
		}
		s.tidy(c.queue)
	}
	clear(s.unsure)
	return nil
}

// queueProgress queues the statement that stores which items are done. It fails unless this node
// still has all the chunks. s.mu is held.
func (s *settler) queueProgress(b *pgx.Batch, changes []*progress) {
	n := len(changes)
	parts, ids, before, waiting, bits := make([]int16, n), make([]int64, n), make([]int32, n), make([]int32, n), make([]*string, n)
	for i, p := range changes {
		c := p.chunk
		if p.waiting > 0 {
			done := c.doneBits(p.done)
			bits[i] = &done
		}
		parts[i], ids[i], before[i], waiting[i] = c.key.part, c.key.id, int32(c.waiting), int32(p.waiting)
	}
	b.Queue(s.in(`SELECT S.settle($1::bigint, $2::smallint[], $3::bigint[], $4::int[], $5::int[], $6::text[])`), s.node, parts, ids, before, waiting, bits)
}

// queueDead queues the statement that stores dead letters.
func (s *settler) queueDead(b *pgx.Batch, dead []*outcome) {
	n := len(dead)
	if n == 0 {
		return
	}
	died, sizes := make([]int64, n), make([]int64, n)
	names, types, reasons, users, records := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, o := range dead {
		d := o.dead
		died[i], sizes[i], records[i] = d.Died.UnixMicro(), d.Size(), o.record
		names[i], types[i], reasons[i], users[i] = []byte(d.Destination), []byte(d.Type), []byte(d.Reason), []byte(d.User)
	}
	b.Queue(s.in(`INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
SELECT u.died, nextval('S.ids'), u.destination, u.type, u.reason, u.user_id, u.size, u.record
FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[])
	u (died, destination, type, reason, user_id, size, record)`), died, names, types, reasons, users, sizes, records)
}

const verifySQL = `SELECT c.part, c.id, c.waiting, coalesce(c.done::text, '') FROM S.chunk c, unnest($2::smallint[], $3::bigint[]) u (part, id)
WHERE c.part = u.part AND c.id = u.id AND c.node = $1 FOR UPDATE OF c`
