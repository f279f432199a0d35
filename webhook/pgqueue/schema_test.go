//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

// Open accepts a schema that a newer program has migrated, if that schema allows this program's
// version. With NoMigrate, Open refuses an older schema.
func TestOpenChecksSchemaVersion(t *testing.T) {
	for _, tt := range []struct {
		name           string
		number, oldest int // relative to this program's version
		noMigrate      bool
		ok             bool
	}{
		{"same version", 0, 0, false, true},
		{"same version, NoMigrate", 0, 0, true, true},
		{"newer version, older programs allowed", 2, 0, false, true},
		{"newer version, older programs allowed, NoMigrate", 2, 0, true, true},
		{"newer version, older programs refused", 2, 1, false, false},
		{"newer version, older programs refused, NoMigrate", 2, 1, true, false},
		{"older version, NoMigrate", -1, -1, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour}
			openWith(t, c).Close()
			name, err := identifier(c.Schema)
			if err != nil {
				t.Fatal(err)
			}
			p, n := pool(t), len(migrations)
			if _, err := p.Exec(t.Context(), "UPDATE "+name+".version SET number = $1, oldest = $2", n+tt.number, n+tt.oldest); err != nil {
				t.Fatal(err)
			}
			c.NoMigrate = tt.noMigrate
			q, err := Open(t.Context(), p, c)
			if tt.ok != (err == nil) {
				t.Fatalf("Open = %v, want success: %v", err, tt.ok)
			}
			if err == nil {
				putAll(t, q, deliveries("crm", 0, 10)...)
				q.Close()
			}
			if v, _, err := versionOf(t.Context(), p, name); err != nil || v != n+tt.number {
				t.Errorf("version of the schema after Open = %d, %v; want %d", v, err, n+tt.number)
			}
		})
	}
}

// SQL returns statements that create a schema. With NoMigrate, Open accepts that schema, and
// refuses a missing one. SQL refuses unknown versions and invalid schema names.
func TestOpenAcceptsSchemaMadeBySQL(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), NoMigrate: true}
	if q, err := Open(t.Context(), pool(t), c); err == nil {
		q.Close()
		t.Error("Open of a missing schema = nil error, want an error")
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
	for _, from := range []int{-1, len(migrations) + 1} {
		if _, err := SQL(c.Schema, from); err == nil {
			t.Errorf("SQL from version %d = nil error, want an error", from)
		}
	}
	if _, err := SQL(fmt.Sprintf("%064d", 0), 0); err == nil {
		t.Error("SQL for a schema name of 64 bytes = nil error, want an error: PostgreSQL allows 63")
	}
}

func TestOpenRequiresReadCommitted(t *testing.T) {
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
			t.Errorf("with isolation %s: Open = %v, want success: %v", tt.level, err, tt.ok)
		}
		if q != nil {
			q.Close()
		}
		p.Close()
	}
}

// The caller's transaction may have a stricter isolation level than those of the Store.
func TestPutTxWorksAtEachIsolationLevel(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 1)...)
	for i, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx, err := q.db.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		// The first of these 11 deliveries is stored already.
		n, err := putInTx(t.Context(), q, tx, puts(append(deliveries("crm", 0, 1), deliveries("crm", 10*(i+1), 10)...)...))
		if err != nil || n != 10 {
			t.Errorf("%s: PutTx = %d, %v, want 10", level, n, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: Commit = %v, want nil", level, err)
		}
	}
	settleAll(t, q, store.Done, fetchUntil(t, q, 31, "crm"))
}
