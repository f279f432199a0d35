//go:build unix

package pgqueue

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PostgreSQL may make a plan while a table is empty, and keep it while the table grows. So each
// statement must find rows by index even in a plan for empty tables.
func TestGenericPlansUseIndexes(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	for _, c := range []struct{ name, sql, args string }{
		{"claim", q.db.in(claimSQL), `(1, '{}', '{}', 1, '{}')`},
		{"heads", q.db.in(headsSQL), `('{}')`},
		{"heads of all", q.db.in(headsSQL), `(NULL)`},
		{"page", q.db.in(chunks.spansSQL(false, false, false)), `(1, 2, NULL, 3)`},
		{"page, oldest", q.db.in(kept.spansSQL(true, false, false)), `(1, 2, NULL, 3)`},
		{"page of destinations", q.db.in(kept.spansSQL(false, true, false)), `(1, 2, '{}', 3)`},
		{"page of destinations, oldest", q.db.in(chunks.spansSQL(true, true, false)), `(1, 2, '{}', 3)`},
		{"page of an id", q.db.in(kept.spansSQL(false, true, true)), `(1, 2, '{}', 3, 4)`},
		{"dead letters of an id", q.db.in(dead.spansSQL(true, false, true)), `(1, 2, NULL, 3, 4)`},
		{"delivered", q.db.in(keptSQL), `('{}')`},
		{"dead letters", q.db.in(deadSQL), `('{}')`},
		{"chunks with deliveries", q.db.in(withChunkSQL), `('{}', '{}')`},
		{"delivered, by reference", q.db.in(withKeptSQL), `('{}', '{}')`},
		{"chunks", q.db.in(chunksSQL), `('{}')`},
		{"sweep", q.db.in(sweepSQL), `(1, '{}')`},
		{"partly done", q.db.in(partlyDoneSQL), `('{}')`},
		{"claimed", q.db.in(claimedSQL), `(1)`},
		{"free", q.db.in(freeSQL), `('', 1, '{}', '{}')`},
		{"heal", q.db.in(healSQL), `('', 1)`},
		{"take over", q.db.in(takeOverSQL), `('', 1, '1s', '1s')`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			tx, err := q.db.pool.Begin(ctx)
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
			for _, scan := range []string{"Seq Scan on chunk", "Seq Scan on dedup", "Seq Scan on kept", "Seq Scan on dead", "->  Hash  (", "Merge Join"} {
				if strings.Contains(plan.String(), scan) {
					t.Errorf("got a plan with %q, want index scans only:\n%s", scan, plan.String())
				}
			}
		})
	}
}

// PutTx finds rows by index in a transaction with the caller's settings, even if its statements were
// planned for empty tables. So does the function rotate_chunks.
func TestFunctionsUseIndexes(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	for _, c := range []struct {
		name, tables string
		call         func(tx pgx.Tx) error
		least        int
	}{
		{"put", "dedup%", func(tx pgx.Tx) error {
			n, err := putInTx(t.Context(), q, tx, puts(deliveries("crm", 0, 20)...))
			if n != 20 {
				t.Errorf("PutTx = %d, want 20", n)
			}
			return err
		}, 20},
		{"put, with keys", "chunk%", func(tx pgx.Tx) error {
			ds := deliveries("crm", 100, 20)
			for i := range ds {
				ds[i].Key = ds[i].ID
			}
			_, err := putInTx(t.Context(), q, tx, puts(ds...))
			return err
		}, 20},
		{"release", "chunk%", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), q.db.in(`SELECT S.release(0, ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 3)), '{0,0,0}', '{f,f,f}', '{f,f,f}', 0, 0, '')`))
			return err
		}, 3},
		{"rotate_chunks", "chunk%", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), q.db.in("SELECT S.rotate_chunks(clock_timestamp())"))
			return err
		}, 3},
	} {
		ctx := t.Context()
		for _, table := range []string{"dedup_0", "dedup_1", "chunk_1", "chunk_2", "chunk_3"} {
			if _, err := q.db.pool.Exec(ctx, "VACUUM ANALYZE "+q.db.schema+"."+table); err != nil {
				t.Fatal(err)
			}
		}
		tx, err := pool(t).Begin(ctx) // on a connection that has not counted any scan yet
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
			t.Fatal(err)
		}
		if err := c.call(tx); err != nil {
			t.Fatal(err)
		}
		var all, found int
		err = tx.QueryRow(ctx, "SELECT sum(seq_scan), sum(idx_scan) FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND relname LIKE $2",
			q.db.config.Schema, c.tables).Scan(&all, &found)
		if err != nil {
			t.Fatal(err)
		}
		if all != 0 || found < c.least {
			t.Errorf("%s: got %d sequential and %d index scans of the tables %s, want 0 and at least %d", c.name, all, found, c.tables, c.least)
		}
	}
}
