//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// This program uses a schema that a newer program has migrated, if the schema allows that.
func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		name           string
		number, oldest int // beyond this program's
		noMigrate      bool
		ok             bool
	}{
		{"its own", 0, 0, false, true},
		{"its own, nothing is migrated", 0, 0, true, true},
		{"newer, and older programs may use it", 2, 0, false, true},
		{"newer, and older programs may use it, nothing is migrated", 2, 0, true, true},
		{"newer, and for newer programs", 2, 1, false, false},
		{"newer, and for newer programs, nothing is migrated", 2, 1, true, false},
		{"older, nothing is migrated", -1, -1, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour}
			openWith(t, c).Close()
			name, err := identifier(c.Schema)
			if err != nil {
				t.Fatal(err)
			}
			p, n := pool(t), len(migrations())
			if _, err := p.Exec(t.Context(), "UPDATE "+name+".version SET number = $1, oldest = $2", n+tt.number, n+tt.oldest); err != nil {
				t.Fatal(err)
			}
			c.NoMigrate = tt.noMigrate
			q, err := Open(t.Context(), p, c)
			if tt.ok != (err == nil) {
				t.Fatalf("Open = %v", err)
			}
			if err == nil {
				putAll(t, q, deliveries("crm", 0, 10)...)
				q.Close()
			}
			if v, err := versionOf(t.Context(), p, name); err != nil || v.number != n+tt.number {
				t.Errorf("afterwards the schema has version %+v, %v", v, err)
			}
		})
	}
}

// The statements that SQL returns make a schema for programs that may not change it.
func TestSQL(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), NoMigrate: true}
	if q, err := Open(t.Context(), pool(t), c); err == nil {
		q.Close()
		t.Error("opened a schema that is not there")
	}
	text, err := SQL(c.Schema, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool(t).Exec(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	q := openWith(t, c)
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 10)...)
	for _, from := range []int{-1, len(migrations()) + 1} {
		if _, err := SQL(c.Schema, from); err == nil {
			t.Errorf("SQL(%d) = nil error", from)
		}
	}
	if _, err := SQL(fmt.Sprintf("%064d", 0), 0); err == nil {
		t.Error("SQL takes a schema that PostgreSQL would not")
	}
}

func TestOpenRefusesOtherIsolation(t *testing.T) {
	config, err := pgxpool.ParseConfig(address(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		level string
		ok    bool
	}{
		{"read committed", true},
		{"repeatable read", false},
		{"serializable", false},
	} {
		c := config.Copy()
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = tt.level
		p, err := pgxpool.NewWithConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Open(t.Context(), p, Config{Schema: schemaOf(t.TempDir())})
		if tt.ok != (err == nil) {
			t.Errorf("with %s: Open = %v", tt.level, err)
		}
		if q != nil {
			q.Close()
		}
		p.Close()
	}
}

// The caller's transaction may be stricter than those of the Store.
func TestPutTxAtEachIsolation(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 1)...)
	for i, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx, err := q.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		// One was put before.
		n, err := q.PutTx(t.Context(), tx, append(deliveries("crm", 0, 1), deliveries("crm", 10*(i+1), 10)...))
		if err != nil || n != 10 {
			t.Errorf("%s: PutTx = %d, %v, want 10", level, n, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: Commit = %v", level, err)
		}
	}
	settleAll(t, q, webhook.Done, fetchUntil(t, q, 31, "crm"))
}
