package pgqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

// settleAll stores settlements, in as many transactions as needed. If keeps is set, what is done goes to
// the history. The caller holds the semaphore settling.
func (cl *claimer) settleAll(ctx context.Context, ss []store.Settlement, keeps bool) (n int, err error) {
	for again := true; n < len(ss); {
		if err := cl.reconcile(ctx); err != nil {
			return n, err
		}
		stored, refused, err := cl.settleSome(ctx, ss[n:], keeps)
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
func (cl *claimer) settleSome(ctx context.Context, ss []store.Settlement, keeps bool) (n int, refused, err error) {
	err = cl.exchange(ctx, cl.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		t := &settling{claimer: cl, ended: make(map[*chunk]int), first: make(map[pgtype.UUID]*store.Settlement), keeps: keeps}
		if n, refused, err = t.collect(ss); err != nil || len(t.ended) == 0 {
			return err
		}
		lost := cl.history.queue(&t.batch, t.kept)
		err := conn.SendBatch(ctx, &t.batch).Close()
		if t.finish(err); err == nil {
			cl.history.unkept.Add(int64(*lost))
		}
		return err
	})
	return n, refused, err
}
