//go:build unix

package pgqueue

import (
	"strings"
	"testing"
	"time"
)

// The plans that are kept from when the tables were empty find rows by index.
func TestPlans(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour})
	defer q.Close()
	for _, c := range []struct{ name, sql, args string }{
		{"remember", q.sql.remember, `'{}'`},
		{"finish", q.sql.finish, `1, '{}', '{}'`},
		{"advance", q.sql.advance, `1, '{}', '{}', '{}', '{}', '{}'`},
		{"claim", q.sql.claim, `1, '{}', 1, '{}'`},
		{"next", q.sql.next, `'{}'`},
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
			rows, err := tx.Query(ctx, "EXPLAIN EXECUTE plan_test("+c.args+")")
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
			for _, scan := range []string{"Seq Scan on chunk", "Seq Scan on seen", "Hash", "Merge Join"} {
				if strings.Contains(plan.String(), scan) {
					t.Errorf("the plan has %q:\n%s", scan, plan.String())
				}
			}
		})
	}
}
