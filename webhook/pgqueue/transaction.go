package pgqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// A transaction stores deliveries together with something else.
type transaction struct {
	q      *Queue
	conn   *pgxpool.Conn
	drafts drafter
}

// within runs fn in a transaction, and then tells of the deliveries that it added.
func (q *Queue) within(ctx context.Context, fn func(*transaction) error) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release(context.WithoutCancel(ctx), conn)
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	t := &transaction{q: q, conn: conn, drafts: drafter{now: time.Now()}}
	if err := fn(t); err != nil {
		return err
	}
	return q.commit(ctx, conn, new(pgx.Batch), t.drafts.drafts, t.drafts.now)
}

// add adds deliveries, which are stored whether they were put before or not.
func (t *transaction) add(ds []webhook.Delivery) error {
	news, _, err := prepare(ds)
	for i := range news {
		t.drafts.add(news[i].destination, news[i].due, news[i].record)
	}
	return err
}

// time is the time of the store.
func (q *Queue) time() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.now()
}
