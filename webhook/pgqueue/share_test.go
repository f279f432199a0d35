//go:build unix

package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// A Put on one node notifies the other node. Each delivery goes to one of the two.
func TestNodesShareDeliveries(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	putAll(t, a, deliveries("crm", 0, 1000)...)
	seen := map[string]bool{}
	for _, q := range []*Store{b, a, b, a} {
		got := fetchUntil(t, q, 200, "crm")
		for _, d := range got {
			if seen[d.ID] {
				t.Errorf("delivery %s was handed out twice, want once", d.ID)
			}
			seen[d.ID] = true
		}
		settleAll(t, q, store.Done, got)
	}
	for _, q := range []*Store{a, b} {
		wantWaiting(t, q, 200)
	}
}

// Another node takes over the claims of a dead node within Config.Claim of its death.
func TestClaimsOfDeadNodeAreTakenOver(t *testing.T) {
	createVirtualDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: 8 * time.Second}
		a := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, c)
		b := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, c)
		defer a.Close()
		defer b.Close()
		putAll(t, a, deliveries("crm", 0, 300)...)
		got := fetchUntil(t, a, 100, "crm")
		settleAll(t, a, store.Done, got[:50])
		a.abandon()
		began := time.Now()
		ds := fetchUntil(t, b, 250, "crm")
		if took := time.Since(began); took > c.Claim {
			t.Errorf("taken over after %v, want at most %v", took, c.Claim)
		}
		settleAll(t, b, store.Done, ds)
		// The node without claims can neither settle nor fetch.
		if n, err := a.Settle(t.Context(), settlements(store.Retry, got[50:])); n != 0 || err == nil {
			t.Errorf("Settle of a node whose claims have expired = %d, %v; want 0 and an error", n, err)
		}
		wantWaiting(t, b, 0)
		if _, err := a.Fetch(t.Context(), []store.Want{{Destination: "crm", Max: 1}}, 1, nil); err == nil {
			t.Error("Fetch of a node whose claims have expired = nil error, want an error")
		}
	})
}

// A node that has missed a heartbeat of its own declares no other node dead. The database may
// have been unreachable, and then the other nodes missed heartbeats too.
func TestNodeThatMissedHeartbeatTakesOverNobody(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	b.abandon()
	declaresDead := func() bool { // whether a takes over from b
		t.Helper()
		if err := a.maintainer.takeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		var lives bool
		if err := a.db.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+a.db.schema+".node WHERE id = $1)", b.memory.nodeNow()).Scan(&lives); err != nil {
			t.Fatal(err)
		}
		return !lives
	}
	last := func(ago time.Duration) { // sets when the last heartbeat was stored; no heartbeat before it was late
		if _, err := a.db.pool.Exec(t.Context(), "UPDATE "+a.db.schema+`.node SET steady = clock_timestamp() - interval '10 hours',
			seen = clock_timestamp() - $2::bigint * interval '1 microsecond' WHERE id = $1`, a.memory.nodeNow(), ago.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.db.pool.Exec(t.Context(), "UPDATE "+a.db.schema+".node SET expires = expires - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ago  time.Duration
		beat func(context.Context) error
		want bool
	}{
		{"its last heartbeat is too old", time.Hour, func(context.Context) error { return nil }, false},
		{"its first heartbeat after a long gap", time.Hour, a.beatNow, false},
		{"it has missed one heartbeat", time.Hour * 6 / 10, a.beatNow, false},
		{"it has started over as a new node", time.Hour, a.claimer.enroll, false},
		{"it has missed no heartbeat", time.Hour / 4, a.beatNow, true},
	} {
		last(tt.ago)
		if err := tt.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := declaresDead(); got != tt.want {
			t.Errorf("%s: declares the other node dead: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// If the database cannot free the claims of a dead node, the node stays in the table of nodes. So the
// next attempt to take over frees them.
func TestTakeOverRemovesNodeAndFreesItsClaimsAtOnce(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := a.db.pool.Exec(t.Context(), a.db.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	putAll(t, b, deliveries("crm", 0, 10)...)
	fetchUntil(t, b, 5, "crm")
	b.abandon()
	exec(`UPDATE S.node SET steady = steady - interval '10 hours' WHERE id = $1`, a.memory.nodeNow())
	exec(`UPDATE S.node SET expires = expires - interval '2 hours' WHERE id = $1`, b.memory.nodeNow())
	exec(`ALTER TABLE S.chunk ADD CONSTRAINT stays_claimed CHECK (node <> 0) NOT VALID`)
	if err := a.maintainer.takeOver(t.Context()); !hasCode(err, "23514") {
		t.Errorf("takeOver = %v, want SQLSTATE 23514 (check_violation)", err)
	}
	exec(`ALTER TABLE S.chunk DROP CONSTRAINT stays_claimed`)
	if err := a.maintainer.takeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	var claimed int
	if err := a.db.pool.QueryRow(t.Context(), a.db.in(`SELECT count(*) FROM S.chunk WHERE node <> 0`)).Scan(&claimed); err != nil || claimed != 0 {
		t.Errorf("after takeOver the dead node has %d chunks (%v), want 0", claimed, err)
	}
}

// A process that was declared dead starts over as a new node. It can fetch again what the old
// node had claimed.
func TestNodeDeclaredDeadStartsOver(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 10)...)
	held := fetchUntil(t, q, 5, "crm")
	node := q.memory.nodeNow()
	if _, err := q.db.pool.Exec(t.Context(), "DELETE FROM "+q.db.schema+".node WHERE id = $1", node); err != nil {
		t.Fatal(err)
	}
	if err := q.maintainer.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.Present(func() ([]byte, bool) { return nil, true }) // makes the process send a heartbeat at once
	testkit.Until(t, "the process is a new node", func() bool { return q.memory.nodeNow() != node })
	ds := fetchUntil(t, q, 10, "crm")
	settleAll(t, q, store.Retry, held) // changes nothing: the old node has no claims any more
	settleAll(t, q, store.Done, ds)
	wantWaiting(t, q, 0)
}

// While a process becomes a new node, it may still claim deliveries as the old node. The new node does
// not keep these claims, because any node may free them.
func TestNewNodeHasNoClaimsOfOldNode(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	q.abandon() // nothing else waits for the table
	ctx := t.Context()
	tx, err := pool(t).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(ctx, q.db.in("DELETE FROM S.node")); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, q.db.in("LOCK TABLE S.node")); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- q.claimer.enroll(ctx) }()
	waitForLock(t, tx, q, "node") // the process becomes a new node
	out := make([]store.Result, 1)
	if err := q.Put(ctx, []store.Put{{Delivery: deliveries("crm", 0, 1)[0], Keep: true}}, out); err != nil || out[0].Claim == 0 {
		t.Fatalf("Put = %+v, %v; want a claim", out, err)
	}
	if err := errors.Join(tx.Commit(ctx), <-started); err != nil {
		t.Fatal(err)
	}
	q.memory.mu.Lock()
	defer q.memory.mu.Unlock()
	if len(q.memory.chunks)+len(q.memory.claims) != 0 {
		t.Errorf("the new node has %d chunks and %d claims in memory, want none", len(q.memory.chunks), len(q.memory.claims))
	}
}

// After a search that took long, perhaps because the database hung, the next one follows within a
// minute.
func TestSearchIsRepeatedWithinAMinute(t *testing.T) {
	createVirtualDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		q := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, Config{Schema: schemaOf(t.TempDir()), Poll: time.Second, Claim: time.Hour})
		defer q.Close()
		q.memory.mu.Lock()
		q.memory.looked = 25 * time.Second
		q.memory.mu.Unlock()
		time.Sleep(2 * time.Second) // the store polls
		select {
		case <-q.Changed():
		default:
		}
		time.Sleep(time.Minute)
		select {
		case <-q.Changed():
		default:
			t.Error("Changed has no value for more than a minute, want one at the next poll")
		}
	})
}

// If another node buries a delivery of the user during Erase, the dead letter is erased, also if it
// is revived behind the sweep.
func TestEraseRemovesDeliveryThatIsBuriedMeanwhile(t *testing.T) {
	for _, revived := range []bool{false, true} {
		t.Run(fmt.Sprint("revived=", revived), func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir())}
			a, b := openWith(t, c), openWith(t, c)
			defer a.Close()
			defer b.Close()
			ctx := t.Context()
			ds := deliveries("crm", 0, 1)
			ds[0].User = "u1"
			putAll(t, b, ds...)
			ds = fetchUntil(t, b, 1, "crm")
			a.claimer.claiming.Lock() // the sweep of Erase waits
			type result struct {
				erased, claimed int
				err             error
			}
			ended := make(chan result, 1)
			go func() {
				erased, claimed, err := a.Erase(ctx, "u1")
				ended <- result{erased, claimed, err}
			}()
			testkit.Until(t, "Erase has begun", func() bool {
				idle := a.claimer.fetching.TryAcquire(1)
				if idle {
					a.claimer.fetching.Release(1)
				}
				return !idle
			})
			settleAll(t, b, store.Bury, ds)
			if revived {
				tx := putTx(t, b, pgx.ReadCommitted, store.Delivery{Destination: "crm", ID: "again", User: "u1", Accepted: ds[0].Accepted, Due: ds[0].Due})
				if _, err := tx.Exec(ctx, b.db.in("DELETE FROM S.dead")); err != nil {
					t.Fatal(err)
				}
				a.claimer.claiming.Unlock()
				waitForTx(t, a)
				if err := tx.Commit(ctx); err != nil {
					t.Fatal(err)
				}
			} else {
				a.claimer.claiming.Unlock()
			}
			if r := <-ended; r != (result{1, 0, nil}) {
				t.Errorf("Erase = %+v, want that the delivery is erased", r)
			}
			if c, err := a.Count(ctx); err != nil || c.Dead != 0 || c.Waiting != 0 {
				t.Errorf("Count = %+v, %v; want no dead letter, and none waiting", c, err)
			}
		})
	}
}

// Erase removes the bytes of the user's deliveries from a chunk in which others still wait, also of those
// that were delivered before, and although another node has claimed the chunk.
func TestEraseRemovesBytes(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	for _, eraser := range []*Store{a, b} {
		ds := deliveries("crm", 0, 4)
		for i := range ds {
			ds[i].ID = fmt.Sprint(eraser.db.config.Node, eraser == a, i)
			ds[i].User = []string{"user-one", "user-two"}[i%2]
			ds[i].Body = []byte("of " + ds[i].User)
		}
		putAll(t, a, ds...)
		got := fetchUntil(t, a, 2, "crm")
		settleAll(t, a, store.Done, got[:1])
		want := 1 // the other one is in a chunk of another node
		if eraser == b {
			want = 0
			settleAll(t, a, store.Done, fetchUntil(t, a, 1, "crm"))
		}
		if n, _, err := eraser.Erase(t.Context(), "user-one"); n != want || err != nil {
			t.Errorf("Erase = %d, %v; want %d", n, err, want)
		}
		var found, others int
		err := a.db.pool.QueryRow(t.Context(), a.db.in(`SELECT count(*) FILTER (WHERE position('of user-one' IN items) > 0), count(*) FROM S.chunk`)).Scan(&found, &others)
		if found != 0 || others != 1 || err != nil {
			t.Errorf("%d of %d chunks have the bytes of the user, %v; want 0 of 1", found, others, err)
		}
		settleAll(t, a, store.Return, got[1:])
		for _, d := range fetchUntil(t, a, 2, "crm") {
			if string(d.Body) != "of user-two" {
				t.Errorf("got the delivery %q, want one of the other user", d.Body)
			}
			settleAll(t, a, store.Done, []store.Delivery{d})
		}
		wantWaiting(t, a, 0)
	}
}

// A delivery whose chunk is replaced by another one, as by a retry or by upkeep, is found there, also
// if the id of that chunk is smaller than the id of one that was found before.
func TestSweepFindsChunksThatMove(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(s *Store, refs []store.Ref) (n, claimed int, err error)
	}{
		{"Erase", func(s *Store, _ []store.Ref) (int, int, error) { return s.Erase(context.Background(), "u1") }},
		{"Discard", func(s *Store, refs []store.Ref) (int, int, error) { return s.Discard(context.Background(), refs...) }},
		{"Hasten", func(s *Store, refs []store.Ref) (int, int, error) { return s.Hasten(context.Background(), refs...) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
			defer s.Close()
			ctx := t.Context()
			ds := deliveries("crm", 0, 2)
			for i := range ds {
				ds[i].User, ds[i].Due = "u1", time.Now().Add(time.Hour)
			}
			putAll(t, s, ds[0])
			tx, err := s.db.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx)
			if _, err := tx.Exec(ctx, s.db.in(`WITH moved AS (DELETE FROM S.chunk RETURNING *)
INSERT INTO S.chunk SELECT part, nextval('S.ids') * 4 + part, destination, retry, due, node, waiting, done, reason, outbox, first, last, accepted, numbers, key, items FROM moved`)); err != nil {
				t.Fatal(err)
			}
			putAll(t, s, ds[1])
			type result struct {
				n, claimed int
				err        error
			}
			ended := make(chan result, 1)
			listed := refs(listAll(t, s, store.Query{}))
			go func() {
				n, claimed, err := c.call(s, listed)
				ended <- result{n, claimed, err}
			}()
			waitForTx(t, s) // the call has found the old chunk
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if r := <-ended; r != (result{2, 0, nil}) {
				t.Errorf("%s = %+v, want that it finds both deliveries", c.name, r)
			}
		})
	}
}

// Hasten claims no chunk whose deliveries are all due, so it does not wait for Fetch and Settle, and they
// do not wait for it.
func TestHastenOfDueDeliveriesClaimsNothing(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	putAll(t, s, deliveries("crm", 0, 10)...)
	for _, busy := range []*semaphore.Weighted{s.claimer.fetching, s.claimer.settling} {
		if err := busy.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		defer busy.Release(1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, claimed, err := s.Hasten(ctx, refs(listAll(t, s, store.Query{}))...); n != 0 || claimed != 0 || err != nil {
		t.Errorf("Hasten = %d, %d, %v; want that it changes nothing", n, claimed, err)
	}
}

// While a sweep stores outcomes, or waits to do so, Fetch hands out other deliveries.
func TestFetchDoesNotWaitForOutcomesOfSweep(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	ctx := t.Context()
	putAll(t, s, deliveries("crm", 0, 2)...)
	if err := s.claimer.settling.Acquire(ctx, 1); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	first := listAll(t, s, store.Query{Oldest: true})[0].Ref()
	go func() {
		n, claimed, err := s.Discard(context.Background(), first)
		if n != 1 || claimed != 0 {
			err = errors.Join(err, fmt.Errorf("Discard = %d, %d; want 1, 0", n, claimed))
		}
		ended <- err
	}()
	testkit.Until(t, "the delivery is in hand", func() bool {
		s.memory.mu.Lock()
		defer s.memory.mu.Unlock()
		return len(s.memory.claims) > 0
	})
	if ds := fetchUntil(t, s, 1, "crm"); ds[0].ID != "1" {
		t.Errorf("Fetch hands out %q, want the delivery that is not discarded", ds[0].ID)
	}
	s.claimer.settling.Release(1)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantWaiting(t, s, 1)
}

// A transaction of Discard or Erase that PostgreSQL rolls back because of a deadlock is repeated.
func TestDiscardSurvivesDeadlocks(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	putAll(t, s, deliveries("crm", 0, 1)...)
	settleAll(t, s, store.Bury, fetchUntil(t, s, 1, "crm"))
	putAll(t, s, deliveries("crm", 1, 1)...)
	if err := s.claimer.release(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`CREATE SEQUENCE S.deadlocks`,
		`CREATE FUNCTION S.deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF nextval(TG_TABLE_SCHEMA || '.deadlocks') <= 2 THEN
		RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01';
	END IF;
	RETURN coalesce(NEW, OLD);
END $$`,
		`CREATE TRIGGER deadlock BEFORE UPDATE ON S.chunk FOR EACH ROW EXECUTE FUNCTION S.deadlock()`,
		`CREATE TRIGGER deadlock BEFORE DELETE ON S.dead FOR EACH ROW EXECUTE FUNCTION S.deadlock()`,
	} {
		exec(t, s.db.pool, s.db.config, sql)
	}
	listed := refs(listAll(t, s, store.Query{}))
	if n, claimed, err := s.Discard(t.Context(), listed[0]); n != 1 || claimed != 0 || err != nil {
		t.Errorf("Discard of a waiting delivery = %d, %d, %v; want 1", n, claimed, err)
	}
	exec(t, s.db.pool, s.db.config, `ALTER SEQUENCE S.deadlocks RESTART`)
	if n, claimed, err := s.Discard(t.Context(), listed[1]); n != 1 || claimed != 0 || err != nil {
		t.Errorf("Discard of a dead letter = %d, %d, %v; want 1", n, claimed, err)
	}
}

// Between two pages of a sweep, Fetch and Settle are possible. Otherwise a sweep of many chunks would stop
// all deliveries of the node.
func TestSweepLetsOthersIn(t *testing.T) {
	createVirtualDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		q := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour})
		defer q.Close()
		for i := range chunkPage + 1 { // a chunk for each
			putAll(t, q, deliveries("crm", i, 1)...) // any bytes of it count as the user
		}
		seen := 0
		var fetches, settles atomic.Bool
		let := func(s *semaphore.Weighted, in *atomic.Bool) {
			if err := s.Acquire(t.Context(), 1); err == nil {
				in.Store(true)
				s.Release(1)
			}
		}
		sw := q.claimer.newSweep(func(*store.Delivery) store.Verdict {
			switch seen++; {
			case seen == 1:
				go let(q.claimer.fetching, &fetches) // until the end of the first page
				go let(q.claimer.settling, &settles)
				synctest.Wait() // Fetch waits for the sweep
			case seen > chunkPage && !(fetches.Load() && settles.Load()):
				t.Errorf("between two pages: Fetch can begin: %v, Settle: %v; want both", fetches.Load(), settles.Load())
			}
			return store.Done
		})
		synctest.Wait() // the puts are over: nothing waits for memory.mu, which the sweep holds during the Wait above
		if err := sw.user(t.Context(), "crm", 0); sw.changed != chunkPage+1 || len(sw.skipped) != 0 || err != nil {
			t.Errorf("sweep = %d, %d, %v; want %d, 0", sw.changed, len(sw.skipped), err, chunkPage+1)
		}
	})
}

// A node that could not give back chunks, because of a deadlock with another transaction, gives them
// back later.
func TestChunksAreGivenBackAfterDeadlock(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	ctx := t.Context()
	putAll(t, b, deliveries("crm", 0, 10)...)
	settleAll(t, a, store.Return, fetchUntil(t, a, 5, "crm"))
	for _, sql := range []string{
		`CREATE FUNCTION S.deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$`,
		`CREATE TRIGGER deadlock BEFORE UPDATE ON S.chunk FOR EACH ROW EXECUTE FUNCTION S.deadlock()`,
	} {
		if _, err := a.db.pool.Exec(ctx, a.db.in(sql)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.claimer.release(ctx, 0); !hasCode(err, deadlockDetected) {
		t.Fatalf("release = %v, want SQLSTATE 40P01 (deadlock_detected)", err)
	}
	if _, err := a.db.pool.Exec(ctx, a.db.in(`DROP TRIGGER deadlock ON S.chunk`)); err != nil {
		t.Fatal(err)
	}
	if err := a.claimer.reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	settleAll(t, b, store.Done, fetchUntil(t, b, 10, "crm"))
}

// If the database answers so late that other nodes may have taken over, nothing is handed out.
func TestNothingIsHandedOutByLateAnswer(t *testing.T) {
	for _, tt := range []struct {
		name string
		call func(ctx context.Context, q *Store) (handed bool, err error)
	}{
		{"Put", func(ctx context.Context, q *Store) (bool, error) {
			out := make([]store.Result, 1)
			err := q.Put(ctx, []store.Put{{Delivery: deliveries("crm", 0, 1)[0], Keep: true}}, out)
			return out[0].Claim != 0, err
		}},
		{"Fetch", func(ctx context.Context, q *Store) (bool, error) {
			ds, err := q.Fetch(ctx, []store.Want{{Destination: "mail", Max: 1}}, 1, nil)
			if err == nil {
				return true, nil
			}
			return len(ds) > 0, nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir())}
			q, other := openWith(t, c), openWith(t, c)
			defer q.Close()
			defer other.Close()
			for _, s := range []*Store{q, other} {
				s.abandon() // nothing else waits for the table
			}
			ctx := t.Context()
			putAll(t, other, deliveries("mail", 0, 1)...)
			tx, err := other.db.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(ctx, q.db.in("LOCK TABLE S.chunk")); err != nil {
				t.Fatal(err)
			}
			handed := false
			ended := make(chan error, 1)
			go func() {
				var err error
				handed, err = tt.call(ctx, q)
				ended <- err
			}()
			waitForLock(t, tx, q, "chunk")
			q.heartbeat.mu.Lock()
			q.heartbeat.sent = q.heartbeat.sent.Add(-q.db.config.Claim)
			q.heartbeat.mu.Unlock()
			if err := errors.Join(tx.Rollback(ctx), <-ended); err != nil || handed {
				t.Errorf("the call hands out the delivery: %v, %v; want false", handed, err)
			}
		})
	}
}

// waitForLock waits until a transaction waits for a table.
func waitForLock(t *testing.T, tx pgx.Tx, q *Store, table string) {
	t.Helper()
	testkit.Until(t, "a transaction waits for the table "+table, func() bool {
		var waits bool
		sql := "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = '" + q.db.schema + "." + table + "'::regclass)"
		if err := tx.QueryRow(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

// Deliveries that are being put during Release are for other nodes, too.
func TestReleaseDuringPut(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	q, other := openWith(t, c), openWith(t, c)
	defer q.Close()
	defer other.Close()
	for _, s := range []*Store{q, other} {
		s.abandon() // nothing else waits for the table
	}
	ctx := t.Context()
	if _, err := q.Fetch(ctx, []store.Want{{Destination: "crm", Max: 1}}, 1, nil); err != nil { // so that this node claims what it puts
		t.Fatal(err)
	}
	tx, err := other.db.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(ctx, q.db.in("LOCK TABLE S.chunk")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := putSome(ctx, q, deliveries("crm", 0, 1)...)
		ended <- err
	}()
	waitForLock(t, tx, q, "chunk")
	if err := errors.Join(q.Release(ctx), tx.Rollback(ctx), <-ended); err != nil {
		t.Fatal(err)
	}
	var ds []store.Delivery
	testkit.Until(t, "the other node gets the delivery", func() bool {
		other.memory.hearAny() // it does not listen any more
		var err error
		if ds, err = other.Fetch(ctx, []store.Want{{Destination: "crm", Max: 1}}, 1, nil); err != nil {
			t.Fatal(err)
		}
		return len(ds) == 1
	})
	settleAll(t, other, store.Done, ds)
}

func TestPutTx(t *testing.T) {
	for _, driver := range []string{"pgx", "database/sql"} {
		t.Run(driver, func(t *testing.T) {
			q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
			defer q.Close()
			in := func(commit bool, ds ...store.Delivery) (n int) {
				t.Helper()
				var err error
				ctx := t.Context()
				if driver == "pgx" {
					tx, berr := q.db.pool.Begin(ctx)
					if berr != nil {
						t.Fatal(berr)
					}
					defer tx.Rollback(ctx)
					if n, err = putInTx(ctx, q, tx, puts(ds...)); err == nil && commit {
						err = tx.Commit(ctx)
					}
				} else {
					db, berr := sql.Open("pgx", address(t))
					if berr != nil {
						t.Fatal(berr)
					}
					defer db.Close()
					tx, berr := db.Begin()
					if berr != nil {
						t.Fatal(berr)
					}
					defer tx.Rollback()
					if n, err = putInTx(ctx, q, tx, puts(ds...)); err == nil && commit {
						err = tx.Commit()
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			ds := append(deliveries("crm", 0, 3), deliveries("mail \x00\xff\"\\", 0, 300)...)
			if n := in(false, ds...); n != len(ds) {
				t.Errorf("PutTx stored %d, want %d", n, len(ds))
			}
			if c, _ := q.Count(t.Context()); c.Waiting != 0 {
				t.Errorf("after the rollback %d deliveries wait, want 0", c.Waiting)
			}
			if n := in(true, append(ds, ds[0])...); n != len(ds) {
				t.Errorf("PutTx stored %d, want %d", n, len(ds))
			}
			if n := in(true, ds[:2]...); n != 0 {
				t.Errorf("PutTx of stored deliveries stored %d, want 0", n)
			}
			got := fetchUntil(t, q, len(ds), ds[0].Destination, ds[3].Destination)
			by := map[string]int{}
			for _, d := range got {
				by[d.Destination]++
			}
			if by[ds[0].Destination] != 3 || by[ds[3].Destination] != 300 {
				t.Errorf("fetched by destination: %v; want 3 and 300", by)
			}
		})
	}
}

// Serializable transactions put the same deliveries at the same time. Their caller tries again
// when PostgreSQL asks for that, and each delivery is stored once.
func TestSerializablePutTxStoresEachDeliveryOnce(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	const processes, each = 4, 10
	var stored, failed atomic.Int64
	put := func(d store.Delivery) error {
		for {
			n := 0
			err := pgx.BeginTxFunc(t.Context(), q.db.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) (err error) {
				n, err = putInTx(t.Context(), q, tx, puts(d))
				return err
			})
			if !hasCode(err, "40001") {
				stored.Add(int64(n))
				return err
			}
			failed.Add(1)
		}
	}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			for _, d := range deliveries("crm", 0, each) {
				if err := put(d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if c, err := q.Count(t.Context()); stored.Load() != each || c.Waiting != each || err != nil {
		t.Errorf("PutTx stored %d, and Count = %+v, %v; want %d stored and waiting", stored.Load(), c, err, each)
	}
	t.Logf("%d transactions were tried again", failed.Load())
}

// Upkeep truncates a partition once all its chunks are done, or moved to another partition.
func TestUpkeepTruncatesPartition(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), DedupMax: 1000})
	defer q.Close()
	ctx := t.Context()
	size := func(table string) (n int64) {
		t.Helper()
		if err := q.db.pool.QueryRow(ctx, "SELECT pg_total_relation_size('"+q.db.schema+"."+table+"')").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const smallBytes = 8 << 20 // as in rotate_chunks
	body := make([]byte, 8<<10)
	for i := range 12 {
		ds := deliveries("crm", 100*i, 100)
		for j := range ds {
			ds[j].Body = body
		}
		putAll(t, q, ds...)
	}
	settleAll(t, q, store.Done, fetchUntil(t, q, 1199, "crm"))
	if _, err := q.db.pool.Exec(ctx, "UPDATE "+q.db.schema+".state SET chunk_since = chunk_since - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	if size("chunk_0") < smallBytes {
		t.Fatalf("chunk_0 has %d bytes, want at least %d", size("chunk_0"), smallBytes)
	}
	// One delivery is left. Its chunk is given back and moved to another partition.
	rest := fetchUntil(t, q, 1, "crm")
	settleAll(t, q, store.Return, rest)
	testkit.Until(t, "chunk_0 is small, and new chunks go to another partition", func() bool { // upkeep waits while an autovacuum has the table
		if err := q.maintainer.upkeep(ctx); err != nil {
			t.Fatal(err)
		}
		if err := q.claimer.release(ctx, 0); err != nil {
			t.Fatal(err)
		}
		var part int
		if err := q.db.pool.QueryRow(ctx, "SELECT chunk_part FROM "+q.db.schema+".state").Scan(&part); err != nil {
			t.Fatal(err)
		}
		return size("chunk_0") <= smallBytes && part != 0
	})
	if got := fetchUntil(t, q, 1, "crm"); got[0].ID != rest[0].ID {
		t.Errorf("fetched %s, want %s", got[0].ID, rest[0].ID)
	}
}

// The store still hands out and lists the other deliveries if one delivery, chunk or dead letter
// is damaged.
func TestDamageHidesNoOtherDelivery(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := s.db.pool.Exec(t.Context(), strings.ReplaceAll(sql, "S.", s.db.schema+"."), args...); err != nil {
			t.Fatal(err)
		}
	}
	put := func(from int) {
		t.Helper()
		putAll(t, s, deliveries("crm", from, 10)...)
	}
	put(0)
	put(10)
	put(20)
	// The first record of the second chunk has an unknown version; the third chunk ends early.
	exec(`UPDATE S.chunk SET items = set_byte(items, position('{"messageId":"10"}'::bytea IN items) - 2, 255) WHERE position('{"messageId":"10"}'::bytea IN items) > 0`)
	exec(`UPDATE S.chunk SET items = substring(items FOR octet_length(items) - 1) WHERE position('{"messageId":"20"}'::bytea IN items) > 0`)
	got := fetchUntil(t, s, 28, "crm")
	ss := settlements(store.Bury, got)
	for i := range ss {
		ss[i].At = time.Now()
	}
	if n, err := s.Settle(t.Context(), ss); n != 28 || err != nil {
		t.Fatalf("Settle = %d, %v; want 28", n, err)
	}
	wantWaiting(t, s, 2)
	exec(`UPDATE S.dead SET record = '\x00' WHERE seq = (SELECT seq FROM S.dead LIMIT 1)`)
	letters := listAll(t, s, store.Query{States: []store.State{store.StateDead}})
	if n, err := s.Revive(t.Context(), refs(letters)...); len(letters) != 27 || n != 27 || err != nil {
		t.Errorf("with one of 28 dead letters damaged: List returns %d, Revive = %d, %v; want 27, 27", len(letters), n, err)
	}
	if n := len(listAll(t, s, store.Query{States: []store.State{store.StateWaiting}})); n != 27 {
		t.Errorf("List returns %d that wait, want 27", n)
	}
	settleAll(t, s, store.Done, fetchUntil(t, s, 27, "crm"))
}

// The view waiting shows how many deliveries wait for which destination, and why. The query of
// docs/operations.md works on it.
func TestWaitingView(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir()), Node: "n1"})
	defer s.Close()
	later, dies := deliveries("later", 0, 2), deliveries("dies", 0, 1)
	for i := range later {
		later[i].Due = time.Now().Add(time.Hour)
	}
	putAll(t, s, slices.Concat(deliveries("crm", 0, 3), later, dies, deliveries("paused", 0, 1), keyed("ordered", "key", 0, 2))...)
	if _, err := s.SetDocument(t.Context(), store.Document{Folder: "pause", Name: "paused", Value: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	fetchUntil(t, s, 1, "crm")
	d := fetchUntil(t, s, 1, "dies")
	d[0].Attempts = []store.Attempt{{Reason: store.ReasonTimeout}}
	d[0].Due, d[0].Expires = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	settleAll(t, s, store.Retry, d)
	rows, err := s.db.pool.Query(t.Context(), "SELECT concat_ws(' ', destination, deliveries, queue, state, node, reason) FROM "+s.db.schema+".waiting ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{"crm 3 fresh claimed n1", "dies 1 retry not due yet timeout", "later 2 fresh not due yet", "ordered 1 fresh behind", "ordered 1 fresh due", "paused 1 fresh paused"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("the view waiting: %v (-want +got)\n%s", err, diff)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	query := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(string(page))[1]
	if _, err := s.db.pool.Exec(t.Context(), strings.ReplaceAll(query, "hookferry.", s.db.schema+".")); err != nil {
		t.Errorf("docs/operations.md: %v\n%s", err, query)
	}
}
