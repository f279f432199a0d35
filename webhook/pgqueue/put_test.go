//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hookferry/analytics/webhook/store"
)

// Put returns at the deadline of its context if the database does not answer. If the delivery is
// stored and kept later, it is handed out by Fetch, because the caller of Put does not know the claim.
func TestPutEndsAtItsDeadline(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour})
	defer q.Close()
	tx, err := q.db.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.db.schema+".chunk IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ds := deliveries("crm", 0, 1)
	ps := []store.Put{{Delivery: ds[0], Keep: true}}
	if err := q.Put(ctx, ps, make([]store.Result, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Put = %v; want context.DeadlineExceeded", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The caller puts the delivery again. It is stored once, even if the first Put stored it.
	if _, err := putSome(t.Context(), q, ds...); err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, q, 1)
	settleAll(t, q, store.Done, fetchUntil(t, q, 1, "crm"))
}

// Put stores a delivery with NoDedup, even if all others of the same call were put before.
func TestPutNoDedupBesideDuplicates(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	ds := deliveries("crm", 0, 2)
	putAll(t, q, ds...)
	ps := []store.Put{{Delivery: ds[0]}, {Delivery: ds[0], NoDedup: true}, {Delivery: ds[1]}}
	out := make([]store.Result, len(ps))
	if err := q.Put(t.Context(), ps, out); err != nil {
		t.Fatal(err)
	}
	if out[0].Stored || !out[1].Stored || out[2].Stored {
		t.Errorf("Put of a delivery with NoDedup between two duplicates = %+v, want that it alone is stored", out)
	}
	wantWaiting(t, q, 3)
}

// If Put returns at its deadline, its caller does not know that the deliveries are stored later. So
// Heads yields their destination then.
func TestHeadsYieldAPutThatIsStoredAfterItsDeadline(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: true}) // once it listens, any destination may have news
	defer q.Close()
	heads := func(all bool) (names []string) {
		for h, err := range q.Heads(t.Context(), all) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, h.Destination)
		}
		return names
	}
	d := deliveries("crm", 0, 1)[0]
	putAll(t, q, d)
	heads(true)
	if names := heads(false); names != nil {
		t.Errorf("Heads yields %q after the caller has put a delivery, want nothing", names)
	}
	e, err := newEntry(&store.Put{Delivery: d})
	if err != nil {
		t.Fatal(err)
	}
	p := &put{entries: []*entry{e}, done: make(chan struct{})}
	close(p.done)
	q.disown(p)
	if names := heads(false); !slices.Equal(names, []string{"crm"}) {
		t.Errorf("Heads yields %q after a late put, want crm", names)
	}
}

// Put returns at its deadline also if it has to wait for a transaction of its own.
func TestPutThatIsTriedAgainEndsAtItsDeadline(t *testing.T) {
	createVirtualDatabase(t)
	synctest.Test(t, func(t *testing.T) {
		q := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour})
		defer q.Close()
		q.puts.Close()
		q.puts = store.NewBatcher(1, maxBatch, func(puts []*put) { // another transaction has the same key
			for _, p := range puts {
				p.err = &pgconn.PgError{Code: lockNotAvailable}
				close(p.done)
			}
		})
		for range q.db.pool.Config().MaxConns { // the database does not answer
			conn, err := q.db.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
		}
		const limit = 10 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began := time.Now()
		_, err := putSome(ctx, q, deliveries("crm", 0, 1)...)
		if took := time.Since(began); took != limit || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put = %v after %v, want context.DeadlineExceeded after %v", err, took, limit)
		}
	})
}

// PutTx stores a delivery with NoDedup even if it was put before, and counts it.
func TestPutTxNoDedup(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	ctx := t.Context()
	ds := deliveries("crm", 0, 2)
	putAll(t, q, ds[0])
	again := store.Put{Delivery: ds[0], NoDedup: true}
	for _, tt := range []struct {
		name string
		ps   []store.Put
		want int
	}{
		{"all with NoDedup", []store.Put{again, again}, 2},
		{"one with NoDedup, one put before, one new", append(puts(ds...), again), 2},
	} {
		err := pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
			n, err := putInTx(ctx, q, tx, tt.ps)
			if err == nil && n != tt.want {
				t.Errorf("%s: PutTx = %d, want %d", tt.name, n, tt.want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: PutTx = %v, want nil", tt.name, err)
		}
	}
	wantWaiting(t, q, 5)
}

// The session of the caller of PutTx may have temporary tables with the names of the store's tables.
func TestPutTxIgnoresTemporaryTables(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
		for _, table := range []string{"state", "dedup", "chunk"} {
			if _, err := tx.Exec(ctx, "CREATE TEMPORARY TABLE "+table+" (id bigint) ON COMMIT DROP"); err != nil {
				return err
			}
		}
		_, err := putInTx(ctx, q, tx, puts(deliveries("crm", 0, 1)...))
		return err
	})
	if err != nil {
		t.Errorf("PutTx = %v, want nil", err)
	}
	wantWaiting(t, q, 1)
}

// The reason of an attempt may have any bytes, as all other texts of a delivery.
func TestPutTakesAnyReason(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	d := deliveries("crm", 0, 1)
	d[0].Attempts = []store.Attempt{{Reason: "\x00\xff"}}
	putAll(t, q, d...)
	if got := fetchUntil(t, q, 1, "crm"); got[0].Attempts[0].Reason != "\x00\xff" {
		t.Errorf("Fetch = %+v, want the reason that was put", got)
	}
}
