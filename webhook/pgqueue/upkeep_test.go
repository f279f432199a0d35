//go:build unix

package pgqueue

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
)

// A maintenance step that keeps failing is logged as a warning, and Failing has it until it works
// again.
func TestFailingMaintenanceIsWarned(t *testing.T) {
	createVirtualDatabase(t)
	url, schema := address(t), schemaOf(t.Name())
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		q := openVirtual(t, url, pgx.QueryExecModeCacheStatement, Config{
			Schema: schema, Claim: time.Minute, Poll: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		defer q.Close()
		step := func(sql string, took time.Duration, warnings int, failing bool) {
			t.Helper()
			if _, err := q.db.pool.Exec(t.Context(), q.db.in(sql)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(took)
			synctest.Wait()
			_, fails := q.Failing()["upkeep"]
			if n := strings.Count(log.String(), "level=WARN"); n != warnings || fails != failing {
				t.Errorf("after %s: %d warnings, upkeep fails: %t; want %d, %t:\n%s", sql, n, fails, warnings, failing, &log)
			}
		}
		step("SELECT 1", 5*time.Minute, 0, false)
		step("ALTER FUNCTION S.rotate_chunks RENAME TO gone", 50*time.Second, 0, false)
		step("SELECT 1", 5*time.Minute, 1, true)
		step("ALTER FUNCTION S.gone RENAME TO rotate_chunks", 30*time.Second, 1, false)
	})
}
