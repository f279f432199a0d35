//go:build unix

package pgqueue

import (
	"fmt"
	"strings"
	"testing"
)

// PostgreSQL may make a plan while a table is empty, and keep it while the table grows. So each
// statement must find rows by index even in a plan for empty tables.
func TestGenericPlansUseIndexes(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	for _, c := range []struct{ name, sql, args string }{
		{"claim", q.in(claimSQL), `(1, '{}', '{}', 1, '{}')`},
		{"heads", q.in(headsSQL), `('{}')`},
		{"headsAll", q.in(headsAllSQL), ""},
		{"waiting", q.in(waitingSQL), `('')`},
		{"chunks", q.in(chunksSQL), `('{}')`},
		{"claimed", q.in(claimedSQL), `(1)`},
		{"release", q.in(releaseSQL), `('', 1, '{}', '{}')`},
		{"giveBack", q.in(giveBackSQL), `('', 1, '{}')`},
		{"heal", q.in(healSQL), ""},
		{"takeOver", q.in(takeOverSQL), `('', 1, 1, 1)`},
		{"partitions", q.in(partitionsSQL), `(20000, 600000000)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			tx, err := q.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx)
			for _, sql := range []string{byIndex, "SET LOCAL plan_cache_mode = force_generic_plan", "PREPARE plan_test AS " + c.sql} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					t.Fatal(err)
				}
			}
			defer tx.Exec(ctx, "DEALLOCATE plan_test")
			rows, err := tx.Query(ctx, "EXPLAIN EXECUTE plan_test"+c.args)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			var plan strings.Builder
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					t.Fatal(err)
				}
				plan.WriteString(line + "\n")
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			for _, scan := range []string{"Seq Scan on chunk", "Seq Scan on dedup", "Hash", "Merge Join"} {
				if strings.Contains(plan.String(), scan) {
					t.Errorf("got a plan with %q, want index scans only:\n%s", scan, plan.String())
				}
			}
		})
	}
}

// PutTx finds rows by index in a transaction with the caller's settings, even if its
// statements were planned for empty tables.
func TestPutTxUsesIndexes(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	ctx := t.Context()
	for i := range 2 {
		if _, err := q.pool.Exec(ctx, fmt.Sprintf("VACUUM ANALYZE %s.dedup_%d", q.schema, i)); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := q.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	if n, err := q.PutTx(ctx, tx, deliveries("crm", 0, 20)); n != 20 || err != nil {
		t.Fatalf("PutTx = %d, %v; want 20", n, err)
	}
	var all, found int
	err = tx.QueryRow(ctx, "SELECT sum(seq_scan), sum(idx_scan) FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND relname LIKE 'dedup%'",
		q.config.Schema).Scan(&all, &found)
	if err != nil {
		t.Fatal(err)
	}
	if all != 0 || found < 20 {
		t.Errorf("got %d sequential and %d index scans of the dedup tables, want 0 and at least 20", all, found)
	}
}
