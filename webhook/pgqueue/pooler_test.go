//go:build unix

package pgqueue

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

// The store passes the same suite behind a pooler that gives each transaction another
// connection.
func TestPooler(t *testing.T) {
	address(t)
	url := server.Pool(t)
	t.Run("exec", func(t *testing.T) { testVirtual(t, url, pgx.QueryExecModeExec) })
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			c, err := pgxpool.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			c.ConnConfig.DefaultQueryExecMode = mode
			p, err := pgxpool.NewWithConfig(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			q := openOn(t, p, Config{Schema: schemaOf(t.TempDir()), NoListen: true, Claim: time.Hour, Poll: 100 * time.Millisecond})
			defer q.Close()
			ctx := t.Context()
			if err := pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
				_, err := q.PutTx(ctx, tx, puts(deliveries("crm", 0, 100)...))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			putAll(t, q, deliveries("mail", 0, 200)...)
			ds := fetchUntil(t, q, 300, "crm", "mail")
			settleAll(t, q, store.Done, ds[:250])
			for i := range ds[250:] {
				ds[250+i].Due = time.Now().Add(time.Hour)
			}
			settleAll(t, q, store.Retry, ds[250:290])
			settleAll(t, q, store.Bury, ds[290:])
			if c, err := q.Count(ctx); err != nil || c.Waiting != 40 || c.Dead != 10 {
				t.Errorf("Count = %+v, %v; want 40 waiting, 10 dead", c, err)
			}
			dead := 0
			for d, err := range q.Dead(ctx, store.EndedFilter{NewestFirst: true}, "") {
				if err != nil {
					t.Fatal(err)
				}
				n, err := q.Revive(ctx, d.Key)
				if dead += n; err != nil {
					t.Fatal(err)
				}
			}
			if n, _, err := q.Change(ctx, store.WaitingFilter{Destination: "mail"}, store.Discarded); n+dead != 60 || err != nil {
				t.Errorf("after reviving %d, Change to Discarded = %d, %v; want 60 in all", dead, n, err)
			}
			if _, err := q.SetDocument(ctx, store.Document{Folder: "pause", Name: "crm", Value: []byte("{}")}); err != nil {
				t.Error(err)
			}
			if err := errors.Join(q.maintainer.upkeep(ctx), q.maintainer.takeOver(ctx)); err != nil {
				t.Error(err)
			}
		})
	}
}
