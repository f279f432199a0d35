package pgqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// A settler stores the outcomes of claimed deliveries: those that the caller settles, and those that
// a sweep selects.
type settler struct {
	*claimer
	settling semaphore // held by calls that store outcomes
	unsure   bool      // the latest outcomes may be stored or not; settling guards it
}

// An outcome is what a Done, a Retry or a Bury of an item stores.
type outcome struct {
	item   *item
	retry  *entry              // of a Retry: the delivery
	dead   *webhook.DeadLetter // of a Bury
	record []byte              // of dead
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
		if err := s.verify(ctx); err != nil {
			return n, err
		}
		outcomes, taken, refused := s.outcomesOf(ss[n:])
		err := s.settle(ctx, outcomes)
		if hasCode(err, claimsEnded, deadlockDetected) {
			if err = s.verify(ctx); err == nil {
				err = s.settle(ctx, outcomes)
			}
		}
		if err != nil {
			return n, err
		}
		if n += taken; refused != nil {
			return n, fmt.Errorf("settlement %d: %w", n, refused)
		}
	}
	return n, nil
}

// verify finds out which outcomes were stored, unless that is known.
func (s *settler) verify(ctx context.Context) (err error) {
	if s.unsure {
		err = s.reconcile(ctx)
		s.unsure = err != nil
	}
	return err
}

// outcomesOf returns the outcomes of the first settlements of ss, as many as fit into one
// transaction, and the number of these settlements. It has nothing to store for a Return, and
// executes it at once. If it returns an error, the error is about the next settlement.
func (s *settler) outcomesOf(ss []webhook.Settlement) (outcomes []outcome, taken int, err error) {
	size := 0
	seen := make(map[uint64]bool, len(ss)) // claims
	for i := range ss {
		v := &ss[i]
		if err = v.Check(); err != nil || size > maxBatch {
			return outcomes, i, err
		}
		claim := v.Delivery.Claim
		if seen[claim] {
			continue // an earlier settlement ends the claim
		}
		seen[claim] = true
		s.mu.Lock()
		it := s.claims[claim]
		if it != nil && v.Verdict == webhook.Return {
			s.takeBack([]*item{it})
		}
		s.mu.Unlock()
		if it == nil || v.Verdict == webhook.Return {
			continue // either the claim had ended, or it has now
		}
		o := outcome{item: it}
		if v.Verdict != webhook.Done {
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

// settle stores outcomes, and then ends their claims. The statement fails unless this node still
// claims all their chunks.
func (s *settler) settle(ctx context.Context, outcomes []outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	return s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
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
			if o.item.state != inHand {
				continue // the claim has ended meanwhile
			}
			o.item.state = storing
			ended[o.item.chunk]++
			if o.retry != nil {
				retries = append(retries, o.retry)
			}
			if o.dead != nil {
				dead = append(dead, o)
			}
		}
		var (
			ids             []int64
			before, waiting []int32
			bits            []string
		)
		for c, n := range ended {
			ids, before, waiting = append(ids, c.id), append(before, int32(c.waiting)), append(waiting, int32(c.waiting-n))
			bits = append(bits, c.doneBits())
		}
		node := s.node
		s.mu.Unlock()
		if len(ended) == 0 {
			return nil
		}
		drafts := draftsOf(retries)
		var b pgx.Batch
		b.Queue(s.in(settleSQL), node, ids, before, waiting, bits)
		s.queuePut(&b, drafts, nil)
		for _, o := range dead {
			d := o.dead
			b.Queue(s.in(burySQL), d.Died.UnixMicro(), []byte(d.Destination), []byte(d.Type), []byte(d.Reason), []byte(d.User), d.Size(), o.record)
		}
		err := conn.SendBatch(ctx, &b).Close()
		s.settled(outcomes, ended, drafts, err)
		return err
	})
}

// settled updates memory after the transaction that was to store outcomes and the drafts of
// retries. If err is not nil, the transaction may have been committed or not.
func (s *settler) settled(outcomes []outcome, ended map[*chunk]int, drafts []*draft, err error) {
	s.unsure = err != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range outcomes {
		switch it := outcomes[i].item; {
		case it.state != storing:
		case err != nil:
			it.state = inHand
		default:
			s.unhand(it, done)
		}
	}
	if err == nil {
		for c, n := range ended {
			if c.waiting -= n; c.waiting == 0 {
				s.forget(c)
			}
		}
	}
	s.reportAll(drafts) // also after an error: the answer may be lost
}

const settleSQL = `SELECT S.settle($1::bigint, $2::bigint[], $3::int[], $4::int[], $5::text[])`

const burySQL = `INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
VALUES ($1, nextval('S.ids'), $2, $3, $4, $5, $6, $7)`
