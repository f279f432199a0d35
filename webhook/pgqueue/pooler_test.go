//go:build unix

package pgqueue

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/queuetest"
)

// Behind a pooler that gives each transaction a connection of its own all is as it
// is without.
func TestPooler(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pooler, err := server.Pool(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pooler.Close(); err != nil {
			t.Error(err)
		}
	}()
	opener := func(mode pgx.QueryExecMode) func(testing.TB, string) webhook.Queue {
		return func(t testing.TB, dir string) webhook.Queue {
			t.Helper()
			c, err := pgxpool.ParseConfig(pooler.URL())
			if err != nil {
				t.Fatal(err)
			}
			c.ConnConfig.DefaultQueryExecMode = mode
			p, err := pgxpool.NewWithConfig(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			q, err := Open(context.Background(), p, &Config{Schema: schemaOf(dir), NoListen: true, Claim: busyClaim, Poll: 200 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
	}
	t.Run("exec", func(t *testing.T) {
		queuetest.Run(t, opener(pgx.QueryExecModeExec), queuetest.Traits{
			Durable: true, Share: true, Lease: time.Second,
			Abandon: func(t testing.TB, q webhook.Queue) { q.(*Queue).abandon() },
		})
	})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			q := opener(mode)(t, t.TempDir()).(*Queue)
			defer q.Close()
			ctx := t.Context()
			if err := pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
				_, err := q.PutTx(ctx, tx, deliveries("crm", 0, 100)...)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			putAll(t, q, deliveries("mail", 0, 200)...)
			ds := leaseUntil(t, q, 300)
			settleAll(t, q, webhook.Done, ds[:250])
			for i := range ds[250:] {
				ds[250+i].Due = time.Now().Add(time.Hour)
			}
			settleAll(t, q, webhook.Retry, ds[250:290])
			settleAll(t, q, webhook.Bury, ds[290:])
			if c, err := q.Count(ctx); err != nil || c.Waiting != 40 || c.Dead != 10 {
				t.Errorf("Count = %+v, %v; want 40 waiting, 10 dead", c, err)
			}
		})
	}
}
