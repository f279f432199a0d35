//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

// In a synctest bubble, a store uses the real server, and a database whose clock shows the
// bubble's time. That time stands still while the server works, and jumps while all goroutines
// of the bubble wait. So a test need not wait until claims expire, and no claim expires early on
// a slow machine.

// started is a moment in real time, before any bubble begins.
var started = time.Now().Truncate(time.Second) // the cases of queuetest count in microseconds

// createVirtualDatabase creates the database whose clock openVirtual sets, unless it exists. In
// that database the schema clock precedes pg_catalog and has its own clock_timestamp, the
// function from which stores get the time.
func createVirtualDatabase(t testing.TB) {
	t.Helper()
	p := pool(t)
	var made bool
	if err := p.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'virtual')").Scan(&made); err != nil {
		t.Fatal(err)
	}
	if made {
		return
	}
	for _, sql := range []string{"CREATE DATABASE virtual", "ALTER DATABASE virtual SET search_path = clock, pg_catalog"} {
		if _, err := p.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// A change of a sequence is visible at once to all connections and transactions.
	execVirtual(t, `CREATE SCHEMA clock; CREATE SEQUENCE clock.micros;
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
	$$ SELECT 'epoch'::timestamptz + last_value * interval '1 microsecond' FROM clock.micros $$`)
}

func execVirtual(t testing.TB, sql string) {
	t.Helper()
	c, err := pgx.ParseConfig(address(t))
	if err != nil {
		t.Fatal(err)
	}
	c.Database = "virtual"
	conn, err := pgx.ConnectConfig(context.Background(), c)
	if err == nil {
		defer conn.Close(context.Background())
		_, err = conn.PgConn().Exec(context.Background(), sql).ReadAll()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openVirtual opens a store in a bubble. The store does not listen for notifications: while it
// waits for one on a socket, the bubble's time would stand still.
func openVirtual(t testing.TB, url string, mode pgx.QueryExecMode, c Config) *Store {
	t.Helper()
	sleepUntilStarted()
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.Database = "virtual"
	pc.ConnConfig.DefaultQueryExecMode = mode
	pc.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		// This also works on a connection that is read-only by default.
		_, err := conn.PgConn().Exec(ctx, fmt.Sprintf("BEGIN READ WRITE; SELECT setval('clock.micros', %d); COMMIT", time.Now().UnixMicro())).ReadAll()
		return err == nil, err
	}
	p, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c.NoListen = true
	return openOn(t, p, c)
}

// sleepUntilStarted advances the bubble's time past the real time. The tables have real times
// as defaults, and they must lie in the bubble's past.
func sleepUntilStarted() {
	if time.Now().Before(started) {
		time.Sleep(time.Until(started.Add(time.Hour)))
	}
}

// emptySchema is the SQL that resets a schema. To create a new schema takes twenty times as long.
const emptySchema = `SELECT setval('clock.micros', %[2]d);
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '%[1]s' AND tablename NOT IN ('version', 'stripe', 'state', 'document_state', 'ring') LOOP
		EXECUTE 'DELETE FROM %[1]s.' || name;
	END LOOP;
	UPDATE %[1]s.document_state SET latest = 0, forgotten = 0;
	UPDATE %[1]s.ring SET since = CASE part WHEN 0 THEN clock_timestamp() ELSE 'epoch' END, age = NULL, n = NULLIF(0, part), size = NULLIF(0, part);
	UPDATE %[1]s.state SET chunk_part = 0, chunk_since = clock_timestamp(), dedup_part = 0, dedup_since = clock_timestamp();
END
$$`

// testVirtual runs queuetest in bubbles.
func testVirtual(t *testing.T, url string, mode pgx.QueryExecMode) {
	createVirtualDatabase(t)
	c := Config{Schema: schemaOf(t.Name()), Claim: time.Minute, Poll: 10 * time.Second}
	if err := openVirtual(t, url, mode, c).Close(); err != nil { // creates the schema
		t.Fatal(err)
	}
	latest := ""
	open := func(c Config) queuetest.Open {
		return func(t testing.TB, dir string) store.Store {
			if dir != latest {
				sleepUntilStarted()
				execVirtual(t, fmt.Sprintf(emptySchema, c.Schema, time.Now().UnixMicro()))
			}
			latest = dir
			return openVirtual(t, url, mode, c)
		}
	}
	kept := c
	kept.History = 24 * time.Hour
	traits := traits
	traits.Bubble, traits.OpenHistory = true, open(kept)
	queuetest.Run(t, open(c), traits)
}
