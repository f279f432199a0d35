//go:build unix

package pgqueue

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/store"
)

// TestStoreBehindPooler runs the conformance suite behind a pooler that gives each transaction
// another connection.
func TestStoreBehindPooler(t *testing.T) {
	soakenv.Only(t, "postgres-random")
	address(t)
	testVirtual(t, server.Pool(t), pgx.QueryExecModeExec)
}

// Every statement works behind a pooler that gives each transaction another connection, in all modes
// of pgx without prepared statements.
func TestPooler(t *testing.T) {
	address(t)
	url := server.Pool(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol} {
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
			q := openOn(t, p, Config{Schema: schemaOf(t.TempDir()), NoListen: true, History: time.Hour, Claim: time.Hour, Poll: 100 * time.Millisecond})
			defer q.Close()
			ctx := t.Context()
			if err := pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
				_, err := putInTx(ctx, q, tx, puts(deliveries("crm", 0, 100)...))
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
			all := listAll(t, q, store.Query{Destinations: []string{"crm", "mail"}, Type: "track", To: time.Now().Add(time.Hour)})
			if kept := listAll(t, q, store.Query{ID: "17", Oldest: true, From: time.Now().Add(-time.Hour)}); len(all) != 300 || len(kept) != 2 {
				t.Errorf("List returns %d deliveries, and %d with an id; want 300, 2", len(all), len(kept))
			}
			if n, _, err := q.Hasten(ctx, refs(all)...); n != 40 || err != nil {
				t.Errorf("Hasten = %d, %v; want 40", n, err)
			}
			if n, err := q.Revive(ctx, refs(all)...); n != 10 || err != nil {
				t.Errorf("Revive = %d, %v; want 10", n, err)
			}
			if n, _, err := q.Discard(ctx, refs(listAll(t, q, store.Query{}))...); n != 300 || err != nil {
				t.Errorf("Discard = %d, %v; want 300", n, err)
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
