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
	"github.com/hookferry/analytics/webhook/queuetest"
)

// In a synctest bubble a store works with the real server, on a database that tells the
// time of the bubble. While the server works, that time stands still. While all wait, it
// jumps. So leases and claims expire at once, and on a slow machine none expires early.

// started is a moment in real time, before any bubble begins.
var started = time.Now().Truncate(time.Second) // the cases of queuetest count in microseconds

// makeVirtual makes the database whose clock openVirtual sets. There a schema that comes
// before pg_catalog has the function by which stores ask for the time.
func makeVirtual(t testing.TB) {
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
	// A sequence is the same for all connections and transactions at once.
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

// openVirtual opens a store in a bubble. It does not listen: a bubble would wait for the
// next notification before it has time pass.
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
		_, err := conn.Exec(ctx, "SELECT setval('clock.micros', $1)", time.Now().UnixMicro())
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

// sleepUntilStarted has the time of a bubble come after the real times that are the
// defaults of the tables.
func sleepUntilStarted() {
	if time.Now().Before(started) {
		time.Sleep(time.Until(started.Add(time.Hour)))
	}
}

// empty is what makes a schema as good as new. To make a new one takes twenty times as long.
const empty = `SELECT setval('clock.micros', %[2]d);
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '%[1]s' AND tablename NOT IN ('version', 'state') LOOP
		EXECUTE 'DELETE FROM %[1]s.' || name;
	END LOOP;
	UPDATE %[1]s.state SET chunk_part = 0, chunk_since = clock_timestamp(), dedup_part = 0, dedup_since = clock_timestamp();
END
$$`

// testVirtual runs queuetest in bubbles.
func testVirtual(t *testing.T, url string, mode pgx.QueryExecMode) {
	makeVirtual(t)
	c := Config{Schema: schemaOf(t.Name()), Claim: time.Minute, Poll: 10 * time.Second}
	if err := openVirtual(t, url, mode, c).Close(); err != nil { // the schema is there now
		t.Fatal(err)
	}
	latest := ""
	traits := traits
	traits.Bubble = true
	queuetest.Run(t, func(t testing.TB, dir string) webhook.Store {
		if dir != latest {
			sleepUntilStarted()
			execVirtual(t, fmt.Sprintf(empty, c.Schema, time.Now().UnixMicro()))
		}
		latest = dir
		return openVirtual(t, url, mode, c)
	}, traits)
}
