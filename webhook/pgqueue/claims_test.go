//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// If the answers to a claim and to a settlement were lost, the node gives back the chunk that it has
// claimed. It does not store the outcomes a second time.
func TestLostAnswers(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	q, other := openWith(t, c), openWith(t, c)
	defer q.Close()
	defer other.Close()
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := q.db.pool.Exec(ctx, q.db.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	putAll(t, q, deliveries("crm", 0, 10)...)
	held := fetchUntil(t, q, 10, "crm")
	putAll(t, other, deliveries("mail", 0, 10)...)
	exec(`UPDATE S.chunk SET node = $1 WHERE destination = 'mail'`, q.memory.nodeNow())
	exec(`SELECT S.settle($1, ARRAY(SELECT id FROM S.chunk WHERE destination = 'crm'), '{10}', '{6}', '{1111000000}')`, q.memory.nodeNow())

	settleAll(t, q, store.Retry, held[:5]) // the first four were settled
	wantWaiting(t, q, 16)
	settleAll(t, q, store.Return, held[3:7])
	settleAll(t, q, store.Done, held[7:])
	got := fetchUntil(t, q, 13, "crm", "mail")
	settleAll(t, q, store.Done, got)
	wantWaiting(t, q, 0)
}

// If the answer to the first claim of deliveries of PutTx was lost, they are counted when the node finds
// out that it has claimed them. Deliveries whose chunk could not be given back are not counted again.
func TestLostFirstClaimIsCountedOnce(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	q, other := openWith(t, c), openWith(t, c)
	defer q.Close()
	defer other.Close()
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := q.db.pool.Exec(ctx, q.db.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"crm", "mail"} {
		if err := pgx.BeginFunc(ctx, other.db.pool, func(tx pgx.Tx) error {
			_, err := putInTx(ctx, other, tx, puts(deliveries(name, 0, 10)...))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	settleAll(t, q, store.Return, fetchUntil(t, q, 1, "mail"))
	exec(claimSQL, q.memory.nodeNow(), [][]byte{[]byte("crm")}, []bool{false}, time.Now().UnixMicro(), []int32{1}) // its answer is lost
	exec(`ALTER TABLE S.chunk ADD CONSTRAINT stays_claimed CHECK (node <> 0) NOT VALID`)
	if err := q.claimer.release(ctx, 0); !hasCode(err, "23514") {
		t.Errorf("release = %v, want SQLSTATE 23514 (check_violation)", err)
	}
	for range 2 {
		if err := q.claimer.reconcile(ctx); !hasCode(err, "23514") {
			t.Errorf("reconcile = %v, want SQLSTATE 23514 (check_violation)", err)
		}
	}
	exec(`ALTER TABLE S.chunk DROP CONSTRAINT stays_claimed`)
	if err := q.claimer.reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	settleAll(t, other, store.Done, fetchUntil(t, other, 20, "crm", "mail"))
	if n, m := q.FirstClaims(), other.FirstClaims(); n != 20 || m != 0 {
		t.Errorf("the nodes count %d and %d first claims, want 20 and 0", n, m)
	}
}

// A deafConn loses the answers of the server while deaf is set. The server has sent them, so its
// transaction has ended.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		return 0, errors.New("the answer is lost")
	}
	return n, err
}

// deafPool returns a pool that loses answers while its flag is set.
func deafPool(t *testing.T) (*pgxpool.Pool, *atomic.Bool) {
	t.Helper()
	pc, err := pgxpool.ParseConfig(address(t))
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // one answer for each batch
	deaf := new(atomic.Bool)
	dial := pc.ConnConfig.DialFunc
	pc.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return deafConn{conn, deaf}, err
	}
	p, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, deaf
}

// If the answer to the settlements of a sweep is lost, no delivery that it has settled is handed out again.
func TestLostAnswerOfSweep(t *testing.T) {
	p, deaf := deafPool(t)
	q := openOn(t, p, Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour, Poll: time.Hour, NoListen: true})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 2)...)
	settleAll(t, q, store.Return, fetchUntil(t, q, 1, "crm")) // now the chunk is in memory
	ids, err := collect(t.Context(), p, pgx.RowTo[int64], q.db.in("SELECT id FROM S.chunk"))
	if err != nil {
		t.Fatal(err)
	}
	sw := q.claimer.newSweep(func(d *store.Delivery) store.Verdict {
		deaf.Store(true)
		if d.ID == "0" {
			return store.Done
		}
		return store.Return
	})
	if _, err := sw.chunks(t.Context(), ids); sw.changed != 0 || err == nil {
		t.Fatalf("sweep of %d deliveries, %v; want none and an error, because the answer was lost", sw.changed, err)
	}
	deaf.Store(false)
	ds, err := q.Fetch(t.Context(), []store.Want{{Destination: "crm", Max: 2}}, 1<<20, nil)
	if len(ds) != 1 || ds[0].ID != "1" || err != nil {
		t.Errorf("Fetch = %v, %v; want only the delivery that was not settled", ds, err)
	}
}

// look reads the news of s, as the forwarder does when the store has changed.
func look(t *testing.T, s *Store) {
	t.Helper()
	for _, err := range s.Heads(t.Context(), false) {
		if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-s.Changed():
	default:
	}
}

// wantSet fails the test unless a signal is set.
func wantSet(t *testing.T, what string, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	default:
		t.Errorf("%s is not set", what)
	}
}

// If the forwarder looks between the comparison of claims and the release of a chunk that only the
// database has claimed, it is told to look again.
func TestReconciledChunkIsAnnouncedOnceItIsFree(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: true})
	defer s.Close()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := s.db.pool.Exec(t.Context(), s.db.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	putAll(t, s, deliveries("crm", 0, 1)...)
	look(t, s)
	exec(`UPDATE S.chunk SET node = $1`, s.memory.nodeNow()) // the answer to a claim was lost
	s.claimer.doubt()
	exec(`CREATE FUNCTION S.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN LOCK TABLE S.document; RETURN NEW; END'`)
	exec(`CREATE TRIGGER late BEFORE UPDATE ON S.chunk FOR EACH ROW EXECUTE FUNCTION S.late()`)
	tx, err := s.db.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), s.db.in("LOCK TABLE S.document")); err != nil {
		t.Fatal(err)
	}
	reconciled := make(chan error, 1)
	go func() { reconciled <- s.claimer.reconcile(t.Context()) }()
	testkit.Until(t, "the chunk is about to be freed", func() bool {
		waits, err := collect(t.Context(), s.db.pool, pgx.RowTo[bool], s.db.in("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'S.document'::regclass)"))
		if err != nil {
			t.Fatal(err)
		}
		return waits[0]
	})
	look(t, s)
	if err := errors.Join(tx.Rollback(t.Context()), <-reconciled); err != nil {
		t.Fatal(err)
	}
	wantSet(t, "Changed", s.Changed())
	settleAll(t, s, store.Done, fetchUntil(t, s, 1, "crm"))
}

// A settlement whose answer is lost may owe the release of the next delivery with its Key, as another
// transaction had the stripe. The node looks after that once it works again.
func TestLostAnswerOfSettlementThatOwes(t *testing.T) {
	p, deaf := deafPool(t)
	c := Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour, Poll: time.Hour, NoListen: true}
	s, other := openOn(t, p, c), openWith(t, c)
	defer s.Close()
	defer other.Close()
	putAll(t, s, keyed("crm", "k", 0, 2)...)
	first := fetchUntil(t, s, 1, "crm")
	s.abandon()
	tx := putTx(t, other, pgx.ReadCommitted, keyed("crm", "k", 2, 1)...)
	ss := settlements(store.Done, first)
	deaf.Store(true)
	if n, err := s.Settle(t.Context(), ss); n != 0 || err == nil {
		t.Fatalf("Settle = %d, %v; want an error, because the answer was lost", n, err)
	}
	deaf.Store(false)
	if n, err := s.Settle(t.Context(), ss); n != 1 || err != nil {
		t.Fatalf("Settle = %d, %v; want 1", n, err)
	}
	wantSet(t, "owed", s.claimer.owed)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := (&releaser{maintainer: s.maintainer}).release(t.Context()); left || err != nil {
		t.Fatalf("release = %v, %v; want nothing left", left, err)
	}
	if got := drainInOrder(t, s, 2, "crm"); !slices.Equal(got, []string{"k 1", "k 2"}) {
		t.Errorf("deliveries %q, want k 1 and k 2", got)
	}
}

// A node hears of the chunks that it heals.
func TestHealedChunkIsHeardOf(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: true})
	defer s.Close()
	putAll(t, s, deliveries("crm", 0, 1)...)
	if _, err := s.db.pool.Exec(t.Context(), s.db.in(`UPDATE S.chunk SET node = 1 << 30`)); err != nil {
		t.Fatal(err)
	}
	look(t, s)
	if err := s.maintainer.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantSet(t, "Changed", s.Changed())
	settleAll(t, s, store.Done, fetchUntil(t, s, 1, "crm"))
}
