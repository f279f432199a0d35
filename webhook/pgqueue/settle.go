package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// A settler stores the outcomes of claimed deliveries: those that the caller settles, and those that
// a sweep selects.
type settler struct {
	*claimer
	settling semaphore // held by calls that store outcomes
	// unsure has the chunks whose latest outcomes may be stored or not, because the answer of the
	// database was lost. settling guards it.
	unsure map[*chunk]bool
}

// An outcome is an item with the verdict on it.
type outcome struct {
	item    *item
	verdict webhook.Verdict
	retry   *entry // the delivery that a Retry stores
	dead    *webhook.DeadLetter
	record  []byte // of the dead letter that a Bury stores
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

// settleAll stores settlements, in as many transactions as needed. The caller holds s.settling.
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

// outcomesOf returns the outcomes of the first settlements of ss, as many as fit into one
// transaction, and the number of these settlements. If it returns an error, the error is about the
// next settlement.
func (s *settler) outcomesOf(ss []webhook.Settlement) (outcomes []outcome, taken int, err error) {
	size := 0
	settled := make(map[*item]bool, len(ss))
	for i := range ss {
		v := &ss[i]
		if err = v.Check(); err != nil || size > maxBatch {
			return outcomes, i, err
		}
		s.mu.Lock()
		it := s.claims[v.Delivery.Claim]
		s.mu.Unlock()
		if it == nil || settled[it] {
			continue // the claim no longer holds
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

// change sets the record that a Retry or a Bury stores.
func (o *outcome) change(v *webhook.Settlement) error {
	d, err := o.item.delivery()
	if err != nil {
		return err
	}
	d.Tries, d.Closed, d.Attempts = v.Delivery.Tries, v.Delivery.Closed, v.Delivery.Attempts
	if v.Verdict == webhook.Retry {
		d.Due, d.Expires = v.Delivery.Due, v.Delivery.Expires
		e, err := newEntry(&d, false)
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

func (s *settler) settleOnce(ctx context.Context, outcomes []outcome) (err error) {
	if err := s.verify(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.expired(); err != nil {
		s.mu.Unlock()
		return err
	}
	var (
		ended   = make(map[*chunk]int) // for each chunk, how many of its deliveries these outcomes end
		retries []*entry
		dead    []*outcome
	)
	for i := range outcomes {
		o := &outcomes[i]
		if o.verdict == webhook.Return || o.item.state != inHand {
			continue // there is nothing to store
		}
		o.item.state = storing
		ended[o.item.chunk]++
		switch o.verdict {
		case webhook.Retry:
			retries = append(retries, o.retry)
		case webhook.Bury:
			dead = append(dead, o)
		}
	}
	drafts := draftsOf(retries, time.Now())
	var b pgx.Batch
	s.queueEnded(&b, ended)
	s.mu.Unlock()
	if len(ended) > 0 {
		s.queuePut(&b, s.putArgs(0, drafts, false, nil), new(putResult))
		for _, o := range dead {
			d := o.dead
			b.Queue(s.in(burySQL), d.Died.UnixMicro(), []byte(d.Destination), []byte(d.Type), []byte(d.Reason), []byte(d.User), d.Size(), o.record)
		}
		err = s.pool.SendBatch(ctx, &b).Close()
	}
	s.settled(outcomes, ended, drafts, err)
	return err
}

// settled updates memory after the transaction that was to store outcomes and the drafts of
// retries. If err is not nil, the transaction may have been committed or not.
func (s *settler) settled(outcomes []outcome, ended map[*chunk]int, drafts []*draft, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.offset)
	for i := range outcomes {
		it := outcomes[i].item
		switch {
		case it.state == storing && err != nil:
			it.state = inHand
		case it.state == storing:
			s.unhand(it, done)
			it.chunk.used = now
		case err == nil: // a Return
			s.takeBack([]*item{it})
			it.chunk.used = now
		}
	}
	for c, n := range ended {
		if err != nil {
			s.unsure[c] = true
		} else if c.waiting -= n; c.waiting == 0 {
			s.forget(c)
		}
	}
	s.reportAll(drafts) // also after an error: the answer may be lost
}

// verify finds out which outcomes of the unsure chunks were stored. If their transaction is still
// open, verify waits for its end.
func (s *settler) verify(ctx context.Context) error {
	if len(s.unsure) == 0 {
		return nil
	}
	var ids []int64
	for c := range s.unsure {
		ids = append(ids, c.id)
	}
	stored := make(map[int64]row)
	_, err := indexed(ctx, s.pool, func(r pgx.CollectableRow) (row row, err error) {
		err = r.Scan(&row.id, &row.waiting, &row.done)
		stored[row.id] = row
		return row, err
	}, s.in(verifySQL), s.nodeNow(), ids)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.unsure {
		r, mine := stored[c.id]
		if !mine || s.chunks[c.id] != c {
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

// queueEnded queues the statement that marks deliveries of chunks as done. The statement fails
// unless this node still claims all the chunks. s.mu is held.
func (s *settler) queueEnded(b *pgx.Batch, ended map[*chunk]int) {
	var (
		ids             []int64
		before, waiting []int32
		bits            []string
	)
	for c, n := range ended {
		ids, before, waiting = append(ids, c.id), append(before, int32(c.waiting)), append(waiting, int32(c.waiting-n))
		bits = append(bits, c.doneBits())
	}
	b.Queue(s.in(`SELECT S.settle($1::bigint, $2::bigint[], $3::int[], $4::int[], $5::text[])`), s.node, ids, before, waiting, bits)
}

const burySQL = `INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
VALUES ($1, nextval('S.ids'), $2, $3, $4, $5, $6, $7)`

const verifySQL = `SELECT c.id, c.waiting, coalesce(c.done::text, '') FROM S.chunk c, unnest($2::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $1 FOR UPDATE OF c`
