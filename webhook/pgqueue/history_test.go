//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// deliver puts n deliveries to crm, with bodies that cannot be compressed, and settles them as done.
func deliver(t testing.TB, q *Store, from, n int) {
	t.Helper()
	ds := deliveries("crm", from, n)
	for i := range ds {
		ds[i].User, ds[i].Body = fmt.Sprint("user-", i%2), make([]byte, 20_000)
		rand.NewChaCha8([32]byte{byte(from + i)}).Read(ds[i].Body)
	}
	putAll(t, q, ds...)
	settleAll(t, q, store.Done, fetchUntil(t, q, n, "crm"))
}

func wantDelivered(t testing.TB, q *Store, what string, want int) {
	t.Helper()
	c, err := q.Count(t.Context())
	if listed := len(listAll(t, q, store.Query{States: []store.State{store.StateDelivered}})); c.Delivered != want || listed != want || err != nil {
		t.Errorf("%s: Count = %+v, %v, and List returns %d; want %d delivered", what, c, err, listed, want)
	}
}

// A delivery stays in the history for Config.History, and for a seventh longer at most. Its partition is
// truncated then, also if no node keeps deliveries any more.
func TestHistoryIsTruncated(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), History: 7 * time.Hour}
	q := openWith(t, c)
	c.History = 0
	off := openWith(t, c)
	defer off.Close()
	later := func() { // by a seventh of Config.History
		exec(t, q.db.pool, q.db.config, "UPDATE S.ring SET since = since - interval '1 hour' WHERE since > 'epoch'")
		if err := off.maintainer.upkeep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.maintainer.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		deliver(t, q, 10*i, 10)
		wantDelivered(t, q, fmt.Sprintf("after %d hours", i), 10*min(i+1, 8))
		later()
	}
	if n, _, err := q.Erase(t.Context(), "user-1"); n != 35 || err != nil {
		t.Errorf("Erase = %d, %v; want half of the deliveries", n, err)
	}
	wantDelivered(t, q, "after Erase", 35)
	q.Close()
	for range 8 {
		later()
	}
	wantDelivered(t, off, "when all are too old", 0)
	var size int
	if err := off.db.pool.QueryRow(t.Context(), off.db.in("SELECT sum(pg_relation_size(('S.kept_' || part)::regclass)) FROM S.ring")).Scan(&size); err != nil || size > 0 {
		t.Errorf("the empty history has %d bytes, %v", size, err)
	}
}

// A history beyond Config.HistoryBytes loses its oldest deliveries before their time.
func TestHistoryIsBounded(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), History: time.Hour, HistoryBytes: 1 << 20})
	defer q.Close()
	for i := range 10 { // each time it gets 200 kB, more than an eighth of the bytes
		deliver(t, q, 10*i, 10)
		if err := q.maintainer.upkeep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantDelivered(t, q, "after ten partitions were full", 70) // the eighth one is empty
}

// A delivery that the history cannot keep is settled nevertheless, and counted. A reader of old deliveries,
// such as pg_dump, only delays that they are truncated.
func TestHistoryHoldsUpNoDelivery(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), History: time.Hour})
	defer q.Close()
	tx, err := pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), q.db.in("SELECT count(*) FROM S.kept, S.ring")); err != nil {
		t.Fatal(err)
	}
	exec(t, q.db.pool, q.db.config, "INSERT INTO S.kept SELECT 1, 1, 1, 0, 'old', 1, 1, NULL, '{}', ''; UPDATE S.ring SET since = since - interval '1 day', age = '1 hour'")
	if err := q.maintainer.upkeep(t.Context()); !hasCode(err, lockNotAvailable) {
		t.Errorf("upkeep while a transaction reads the history = %v, want that it does not get a lock", err)
	}
	deliver(t, q, 0, 10)
	if n := q.Unkept(); n != 0 {
		t.Errorf("while a transaction reads the history, Unkept() = %d, want 0", n)
	}
	for i, sql := range []string{"LOCK TABLE S.ring", "ALTER TABLE S.kept_0 ADD CHECK (n < 0) NOT VALID"} {
		if i == 0 {
			_, err = tx.Exec(t.Context(), q.db.in(sql))
		} else if err = tx.Rollback(t.Context()); err == nil {
			exec(t, q.db.pool, q.db.config, sql)
		}
		if err != nil {
			t.Fatal(err)
		}
		deliver(t, q, 10*(i+1), 10)
		if n := q.Unkept(); n != int64(10*(i+1)) {
			t.Errorf("after %s: Unkept() = %d, want %d", sql, n, 10*(i+1))
		}
	}
	wantWaiting(t, q, 0)
}

// Pages have all deliveries in order, although the numbers in the chunks of retries and in the rows of the
// history overlap.
func TestListMergesRowsThatOverlap(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), History: time.Hour})
	defer q.Close()
	const n = 400
	for i := range n {
		putAll(t, q, deliveries(fmt.Sprint("d", i%2), i, 1)...)
	}
	ds := fetchUntil(t, q, n, "d0", "d1")
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(n, func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
	for some := range slices.Chunk(ds, n/8) {
		for i := range some {
			some[i].Due, some[i].Expires = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		}
		settleAll(t, q, []store.Verdict{store.Retry, store.Done}[r.IntN(2)], some)
	}
	for _, query := range []store.Query{{}, {Oldest: true}, {Destinations: []string{"d1", "d0", "d1"}}, {Destinations: []string{"d1"}, Oldest: true}, {Type: "track"}} {
		for _, max := range []int{1, 7, 100} {
			var seqs []uint64
			for page, err := range store.PagesOf(t.Context(), q, query, max) {
				if err != nil {
					t.Fatal(err)
				}
				for i := range page {
					seqs = append(seqs, page[i].Seq)
				}
			}
			if query.Oldest {
				slices.Reverse(seqs)
			}
			all := slices.Clone(seqs)
			slices.Sort(all)
			slices.Reverse(all)
			all = slices.Compact(all)
			want := n
			if len(query.Destinations) == 1 {
				want /= 2
			}
			if len(all) != want || !slices.Equal(seqs, all) {
				t.Errorf("List(%+v) in pages of %d: got %d deliveries, %d of them different; want %d in order", query, max, len(seqs), len(all), want)
			}
		}
	}
}

// A row has no numbers that are maxSpan apart.
func TestSpanOfDrafts(t *testing.T) {
	var all []*entry
	for i := range int64(10) {
		all = append(all, &entry{seq: i * maxSpan / 4})
	}
	drafts := draftsOf(all)
	for _, d := range drafts {
		if d.last-d.first >= maxSpan {
			t.Errorf("a draft has the numbers %d to %d, want less than %d apart", d.first, d.last, maxSpan)
		}
	}
	if len(drafts) != 3 {
		t.Errorf("got %d drafts, want 3", len(drafts))
	}
}

// A row of the history keeps its last number, by which remove finds it, when its last delivery is removed.
// So an erasure that has found a row before another call changes it still removes its deliveries.
func TestEraseFindsRowsThatChangeMeanwhile(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), History: time.Hour})
	defer q.Close()
	deliver(t, q, 0, 4) // user-0 and user-1 in turn, in one row
	ctx := t.Context()
	var lasts []int64
	if err := q.db.pool.QueryRow(ctx, q.db.in("SELECT array_agg(last) FROM S.kept")).Scan(&lasts); err != nil || len(lasts) != 1 {
		t.Fatalf("the history has rows %v, %v; want one", lasts, err)
	}
	if n, _, err := q.Erase(ctx, "user-1"); n != 2 || err != nil {
		t.Fatalf("Erase = %d, %v; want 2", n, err)
	}
	wantDelivered(t, q, "after Erase of the other user", 2)
	listed := listAll(t, q, store.Query{})
	if n, _, err := q.Discard(ctx, listed[0].Ref()); n != 1 || err != nil {
		t.Errorf("Discard of the last delivery that is left = %d, %v; want 1", n, err)
	}
	seqs, err := q.claimer.history.remove(ctx, lasts, func(r *store.Record) bool { return r.User == "user-0" })
	if len(seqs) != 1 || err != nil {
		t.Errorf("remove of what another call has changed = %v, %v; want one number", seqs, err)
	}
	wantDelivered(t, q, "in the end", 0)
}

// Two erasures whose rows are in the same partitions of the history, in different orders, do not deadlock.
func TestEraseLocksPartitionsInOrder(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), History: time.Hour})
	defer q.Close()
	ctx := t.Context()
	deliver(t, q, 0, 2)
	deliver(t, q, 2, 2)
	// The first row is in the later partition.
	exec(t, q.db.pool, q.db.config, "UPDATE S.kept SET part = 1 WHERE last = (SELECT min(last) FROM S.kept); UPDATE S.ring SET n = 2, size = 40000 WHERE part = 1")
	tx, err := q.db.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	lock := func(part int) {
		t.Helper()
		if _, err := tx.Exec(ctx, q.db.in("SELECT FROM S.ring WHERE part = $1 FOR UPDATE"), part); err != nil {
			t.Fatal(err)
		}
	}
	lock(0)
	ended := make(chan error, 1)
	go func() {
		_, _, err := q.Erase(ctx, "user-1")
		ended <- err
	}()
	waitForTx(t, q)
	lock(1)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Erase beside a transaction with the same partitions = %v", err)
	}
	wantDelivered(t, q, "after Erase", 2)
}
