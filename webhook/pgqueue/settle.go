package pgqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

// Settle implements store.Store.
func (s *claimer) Settle(ctx context.Context, ss []store.Settlement) (n int, err error) {
	err = s.call(ctx, "settling", func() (err error) {
		if err := s.settling.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.settling.Release(1)
		n, err = s.settleAll(ctx, ss)
		s.trim(ctx)
		return err
	})
	return n, err
}

// settleAll stores settlements, in as many transactions as needed. The caller holds s.settling.
func (s *claimer) settleAll(ctx context.Context, ss []store.Settlement) (n int, err error) {
	for again := true; n < len(ss); {
		if err := s.reconcile(ctx); err != nil {
			return n, err
		}
		stored, refused, err := s.settleSome(ctx, ss[n:])
		if again && hasCode(err, claimsEnded, deadlockDetected) {
			again = false
			continue
		}
		if err != nil {
			return n, err
		}
		again = true
		if n += stored; refused != nil {
			return n, fmt.Errorf("settlement %d: %w", n, refused)
		}
	}
	return n, nil
}

// settleSome stores the first settlements of ss, as many as fit into one transaction, and ends their
// claims. It returns their number, and why it refuses the next one. The transaction fails unless this
// node still claims all the chunks. After the error err the settlements may be stored or not.
func (s *claimer) settleSome(ctx context.Context, ss []store.Settlement) (n int, refused, err error) {
	err = s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		var (
			b               pgx.Batch
			items           []*item
			retries         []*entry
			ended           = make(map[*chunk]int) // for each chunk, how many of its deliveries are settled
			ids             []int64
			before, waiting []int32
			bits            []string
		)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.expired(); err != nil {
			return err
		}
		for size := 0; n < len(ss) && size <= maxBatch; n++ {
			v := &ss[n]
			if refused = v.Check(); refused != nil {
				break
			}
			it := s.claims[v.Delivery.Claim]
			if it == nil || it.state == storing {
				continue // the claim has ended, or an earlier settlement ends it
			}
			if v.Verdict == store.Return {
				s.takeBack(it)
				continue
			}
			d := it.d
			d.Tries, d.Closed, d.Attempts = v.Delivery.Tries, v.Delivery.Closed, v.Delivery.Attempts
			size += 64
			switch v.Verdict {
			case store.Retry:
				var e *entry
				d.Due, d.Expires = v.Delivery.Due, v.Delivery.Expires
				if e, refused = newEntry(&store.Put{Delivery: d, NoDedup: true}); refused == nil {
					retries = append(retries, e)
					size += len(e.record)
				}
			case store.Bury:
				var record []byte
				dead := store.Ended{Delivery: d, Reason: v.Reason, At: v.At}
				if record, refused = dead.AppendBinary(nil); refused == nil {
					b.Queue(s.in(burySQL), v.At.UnixMicro(), []byte(d.Destination), []byte(d.Type), []byte(v.Reason), []byte(d.User), d.Size(), record)
					size += len(record)
				}
			}
			if refused != nil {
				break
			}
			it.state = storing
			items = append(items, it)
			ended[it.chunk]++
		}
		if len(ended) == 0 {
			return nil
		}
		for c, n := range ended {
			ids, before, waiting = append(ids, c.id), append(before, int32(c.waiting)), append(waiting, int32(c.waiting-n))
			bits = append(bits, c.doneBits())
		}
		b.Queue(s.in(settleSQL), s.node, ids, before, waiting, bits)
		drafts := draftsOf(retries)
		s.queuePut(&b, drafts, nil)
		s.mu.Unlock()
		err := conn.SendBatch(ctx, &b).Close()
		s.mu.Lock()
		s.report(drafts...)
		for _, it := range items {
			if err == nil {
				s.unhand(it, settled)
			} else if it.state == storing {
				it.state = inHand
			}
		}
		if err != nil {
			return err
		}
		for c, n := range ended {
			if c.waiting -= n; c.waiting == 0 {
				s.forget(c)
			}
		}
		return nil
	})
	return n, refused, err
}

const settleSQL = `SELECT S.settle($1::bigint, $2::bigint[], $3::int[], $4::int[], $5::text[])`

const burySQL = `INSERT INTO S.dead (died, id, destination, type, reason, user_id, size, record)
VALUES ($1, nextval('S.ids'), $2, $3, $4, $5, $6, $7)`
