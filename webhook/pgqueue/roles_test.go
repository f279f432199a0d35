//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/store"
)

// exec runs statements. S. stands for the schema of c.
func exec(t testing.TB, p *pgxpool.Pool, c Config, sql string) {
	t.Helper()
	name, err := identifier(c.Schema)
	if err == nil {
		_, err = p.Exec(context.Background(), strings.ReplaceAll(sql, "S.", name+"."), pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// role returns a pool whose connections have a role of their own, which may only connect.
func role(t testing.TB, name string) *pgxpool.Pool {
	t.Helper()
	admin := pool(t)
	exec(t, admin, Config{Schema: "x"}, "CREATE ROLE "+name+" LOGIN")
	p, err := pgxpool.New(context.Background(), strings.Replace(address(t), "user=test", "user="+name, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		exec(t, admin, Config{Schema: "x"}, fmt.Sprintf("DROP OWNED BY %s CASCADE; DROP ROLE %[1]s", name))
	})
	return p
}

// useAll makes calls that execute about every statement of the store.
func useAll(t testing.TB, q *Store) {
	t.Helper()
	ctx := t.Context()
	putAll(t, q, deliveries("crm", 0, 30)...)
	ds := fetchUntil(t, q, 20, "crm")
	settleAll(t, q, store.Done, ds[:5])
	settleAll(t, q, store.Bury, ds[5:15])
	settleAll(t, q, store.Retry, ds[15:])
	letters := refs(listAll(t, q, store.Query{States: []store.State{store.StateDead}}))
	if len(letters) != 10 {
		t.Fatalf("got %d dead letters, want 10", len(letters))
	}
	for _, call := range []func() error{
		func() error { _, err := q.Revive(ctx, letters[:5]...); return err },
		func() error { _, _, err := q.Discard(ctx, letters[5:]...); return err },
		func() error {
			_, _, err := q.Discard(ctx, refs(listAll(t, q, store.Query{}))...)
			return err
		},
		func() error {
			_, err := q.SetDocument(ctx, store.Document{Folder: "pause", Name: "crm", Value: []byte("{}")})
			return err
		},
		func() error { return q.claimer.release(ctx, 0) },
		func() error { return q.maintainer.upkeep(ctx) },
		func() error { return q.maintainer.takeOver(ctx) },
		func() error { return q.beatNow(ctx) },
	} {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	wantWaiting(t, q, 0)
}

// A schema may have any name.
func TestAnyNameOfSchema(t *testing.T) {
	for i, name := range []string{`o'brien`, `a"b\'c`, `S.'S.ids'`, `$$;--%s`} {
		c := Config{Schema: fmt.Sprint(name, i), DedupMax: 2}
		q := openWith(t, c)
		useAll(t, q)
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if _, err := pool(t).Exec(t.Context(), "DROP SCHEMA "+q.db.schema+" CASCADE"); err != nil {
			t.Fatal(err)
		}
		text, err := SQL(c.Schema, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool(t).Exec(t.Context(), text); err != nil {
			t.Errorf("SQL for the schema %s: %v", c.Schema, err)
		}
		openWith(t, c).Close()
	}
}

// A program whose role may not create schemas can use one that was made for it.
func TestOpenInSchemaMadeForRole(t *testing.T) {
	p := role(t, "limited")
	for _, byHand := range []bool{false, true} {
		c := Config{Schema: schemaOf(t.TempDir())}
		exec(t, pool(t), c, fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION limited", c.Schema))
		if byHand {
			text, err := SQL(c.Schema, 0)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, p, Config{Schema: "x"}, text)
		}
		q, err := Open(t.Context(), p, c)
		if err != nil {
			t.Fatalf("with statements applied by hand: %t: %v", byHand, err)
		}
		useAll(t, q)
		q.Close()
	}
}

// Open refuses a schema, and tables, of a role that could read all deliveries and should not.
func TestOpenRefusesSchemaOfAnotherRole(t *testing.T) {
	mine := role(t, "mine")
	role(t, "other")
	admin := pool(t)
	for _, tt := range []struct {
		name, prepare string // %s is the schema
		ok            bool
	}{
		{"own schema", "CREATE SCHEMA %s AUTHORIZATION mine", true},
		{"schema of a superuser", "CREATE SCHEMA %s; GRANT ALL ON SCHEMA %[1]s TO mine", true},
		{"schema of another role", "CREATE SCHEMA %s AUTHORIZATION other; GRANT ALL ON SCHEMA %[1]s TO mine", false},
		{"table of another role", "CREATE SCHEMA %s; GRANT ALL ON SCHEMA %[1]s TO mine, other; SET LOCAL ROLE other; CREATE TABLE %[1]s.version (number int, oldest int)", false},
		{"role that this one is a member of", "GRANT other TO mine; CREATE SCHEMA %s AUTHORIZATION other", true},
	} {
		c := Config{Schema: schemaOf(t.TempDir())}
		exec(t, admin, c, fmt.Sprintf(tt.prepare, c.Schema))
		q, err := Open(t.Context(), mine, c)
		if err == nil {
			q.Close()
		}
		if tt.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), `belong to the role "other"`) {
			t.Errorf("%s: Open = %v, want success: %t", tt.name, err, tt.ok)
		}
	}
	// To a superuser, every schema is open. Open refuses that of another role nevertheless.
	c := Config{Schema: schemaOf(t.TempDir())}
	exec(t, admin, c, fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION other", c.Schema))
	if q, err := Open(t.Context(), admin, c); err == nil {
		q.Close()
		t.Error("Open by a superuser = nil, want an error")
	}
}

// A role that may only connect cannot stop the store by taking locks.
func TestOtherRolesCannotStopStore(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), DedupMax: 2}
	stranger := role(t, "stranger")
	h := fnv.New64a()
	fmt.Fprintf(h, "hookferry\x00%s", c.Schema)
	for i := range uint64(3) { // the keys of version 1
		if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_lock($1)", int64(h.Sum64()^i)); err != nil {
			t.Fatal(err)
		}
	}
	q := openWith(t, c)
	defer q.Close()
	useAll(t, q)
	rotate(t, q, 0)
	var locks int
	if err := q.db.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").Scan(&locks); err != nil || locks > 0 {
		t.Errorf("the store holds %d advisory locks, %v; want none", locks, err)
	}
	if _, err := stranger.Exec(t.Context(), q.db.in("LOCK TABLE S.dedup IN ACCESS SHARE MODE")); err == nil {
		t.Error("another role could lock a table")
	}
}

// Processes that open a missing schema at once all succeed.
func TestConcurrentOpen(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	var opened sync.WaitGroup
	for range 8 {
		p := pool(t)
		opened.Go(func() {
			q, err := Open(context.Background(), p, c)
			if err != nil {
				t.Error(err)
				return
			}
			q.Close()
		})
	}
	opened.Wait()
}

// Open brings a schema of an older version to the newest one. Programs of that version go on.
func TestOpenMigrates(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	old := openWith(t, c)
	defer old.Close()
	all := append(slices.Clip(migrations), "CREATE TABLE added ();")
	defer func(before []string) { migrations = before }(migrations)
	migrations = all
	putAll(t, old, deliveries("mail", 0, 10)...)
	q := openWith(t, c)
	defer q.Close()
	if v, _, err := versionOf(t.Context(), q.db.pool, q.db.schema); v != len(all) || err != nil {
		t.Errorf("version %d, %v; want %d", v, err, len(all))
	}
	settleAll(t, old, store.Done, fetchUntil(t, old, 10, "mail"))
	useAll(t, q)
	putAll(t, old, deliveries("mail", 10, 10)...)
	settleAll(t, old, store.Done, fetchUntil(t, old, 10, "mail"))
}

// The tables can be published for change data capture: all of them have a replica identity, whether
// the publication is made before the schema or after it.
func TestPublicationOfAllTables(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("before=", before), func(t *testing.T) {
			admin := pool(t)
			name := "published" + fmt.Sprint(before)
			none := Config{Schema: "x"}
			exec(t, admin, none, "CREATE DATABASE "+name)
			t.Cleanup(func() { exec(t, admin, none, "DROP DATABASE "+name+" WITH (FORCE)") })
			p, err := pgxpool.New(t.Context(), strings.Replace(address(t), "dbname=postgres", "dbname="+name, 1))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			publish := func() { exec(t, p, none, "CREATE PUBLICATION p FOR ALL TABLES") }
			if before {
				publish()
			}
			q := openOn(t, p, Config{Schema: "hookferry", DedupMax: 2})
			defer q.Close()
			if !before {
				publish()
			}
			useAll(t, q)
			for i := range 3 {
				rotate(t, q, i)
			}
			if err := NewRoster(q).UpdateAudience(t.Context(), "a", func(r *audience.Record, m audience.Members) error {
				r.Name, r.Generation = "A", 1
				return errors.Join(m.Set([]string{"u"}, 1), m.Set([]string{"u"}, 2), m.Set([]string{"u"}, 0))
			}); err != nil {
				t.Error(err)
			}
			if _, err := p.Exec(t.Context(), q.db.in("UPDATE S.state SET chunk_part = 1")); err != nil {
				t.Error(err)
			}
			without, err := collect(t.Context(), p, pgx.RowTo[string], `SELECT relname FROM pg_class c
WHERE relnamespace = 'hookferry'::regnamespace AND relkind IN ('r', 'p') AND relreplident <> 'f' AND NOT EXISTS (
	SELECT FROM pg_index i WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
	AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND (a.attgenerated <> '' OR NOT a.attnotnull)))`)
			if err != nil || len(without) > 0 {
				t.Errorf("tables without a replica identity, or with a generated column in it: %q, %v", without, err)
			}
		})
	}
}

// A role that owns nothing can do all with NoMigrate and the grants that doc.go names, also what
// empties the partitions of tables.
func TestGrantsForNoMigrate(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), History: time.Hour}
	owner := openWith(t, c)
	defer owner.Close()
	p := role(t, "granted")
	exec(t, pool(t), Config{Schema: "x"}, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO granted; GRANT ALL ON ALL TABLES IN SCHEMA %[1]s TO granted; "+
		"GRANT ALL ON ALL SEQUENCES IN SCHEMA %[1]s TO granted", owner.db.schema))
	c.NoMigrate, c.DedupMax = true, 1
	q, err := Open(t.Context(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	useAll(t, q)
	for range 3 { // each call empties the older of two partitions
		if err := q.maintainer.upkeep(t.Context()); err != nil {
			t.Errorf("upkeep with the grants = %v", err)
		}
	}
	for _, partition := range []string{"dedup_0", "dedup_1", "chunk_0", "kept_0", "owed"} {
		if _, err := p.Exec(t.Context(), q.db.in("TRUNCATE S."+partition)); err != nil {
			t.Errorf("TRUNCATE of %s with the grants: %v", partition, err)
		}
	}
}
