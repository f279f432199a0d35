//go:build unix

package pgqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// keyed returns deliveries with one Key.
func keyed(destination, key string, from, n int) []store.Delivery {
	ds := deliveries(destination, from, n)
	for i := range ds {
		ds[i].ID, ds[i].Key = fmt.Sprint(key, " ", ds[i].ID), key
	}
	return ds
}

// putTx puts ds in a transaction, which the caller ends.
func putTx(t testing.TB, s *Store, level pgx.TxIsoLevel, ds ...store.Delivery) pgx.Tx {
	t.Helper()
	tx, err := s.db.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err == nil {
		_, err = putInTx(t.Context(), s, tx, puts(ds...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// drainInOrder delivers n deliveries of a destination, one by one, and returns their ids.
func drainInOrder(t testing.TB, s *Store, n int, destination string) (ids []string) {
	t.Helper()
	for range n {
		ds := fetchUntil(t, s, 1, destination)
		ids = append(ids, ds[0].ID)
		settleAll(t, s, store.Done, ds)
	}
	return ids
}

// While an open transaction of PutTx has the stripe of a Key, Settle does not wait. The next delivery is
// released once the transaction has ended, also if it is rolled back, and without notifications.
func TestSettleDoesNotWaitForPutTx(t *testing.T) {
	for _, noListen := range []bool{false, true} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprintf("NoListen %t, commits %t", noListen, commits), func(t *testing.T) {
				s := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: noListen})
				defer s.Close()
				ctx := t.Context()
				putAll(t, s, keyed("crm", "k", 0, 3)...)
				first := fetchUntil(t, s, 1, "crm")
				tx := putTx(t, s, pgx.ReadCommitted, keyed("crm", "k", 3, 2)...)
				ss := settlements(store.Done, first)
				if n, err := s.Settle(ctx, ss); n != 1 || err != nil || !ss[0].Released.IsZero() {
					t.Errorf("Settle = %d, %v with Released %v; want 1, nil, and zero while a transaction is open", n, err, ss[0].Released)
				}
				if ds, err := s.Fetch(ctx, []store.Want{{Destination: "crm", Max: 10}}, 1<<20, nil); len(ds) != 0 || err != nil {
					t.Errorf("Fetch = %v, %v; want nothing before the transaction ends", ds, err)
				}
				want := []string{"k 1", "k 2", "k 3", "k 4"}
				end := tx.Commit
				if !commits {
					want, end = want[:2], tx.Rollback
				}
				if err := end(ctx); err != nil {
					t.Fatal(err)
				}
				ended := time.Now()
				got := drainInOrder(t, s, len(want), "crm")
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("deliveries in order (-want +got)\n%s", diff)
				}
				t.Logf("all deliveries %v after the end of the transaction", time.Since(ended))
				wantWaiting(t, s, 0)
			})
		}
	}
}

// Deliveries of transactions are in the order of the commits, at each isolation level, and count as
// accepted once.
func TestPutTxKeepsOrder(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
			defer s.Close()
			ctx := t.Context()
			early, err := s.db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			if err == nil {
				_, err = early.Exec(ctx, "SELECT 1") // from now on it sees nothing new, at the stricter levels
			}
			if err != nil {
				t.Fatal(err)
			}
			putAll(t, s, keyed("crm", "k", 0, 2)...)
			if _, err := putInTx(ctx, s, early, puts(keyed("crm", "k", 2, 2)...)); err != nil {
				t.Fatal(err)
			}
			second := make(chan error, 1)
			go func() { // it waits for early
				second <- pgx.BeginTxFunc(ctx, s.db.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					_, err := putInTx(ctx, s, tx, puts(append(keyed("crm", "k", 4, 2), keyed("crm", "other", 0, 1)...)...))
					return err
				})
			}()
			waitForTx(t, s)
			if err := early.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-second; err != nil {
				t.Fatal(err)
			}
			got := drainInOrder(t, s, 7, "crm")
			got = slices.DeleteFunc(got, func(id string) bool { return id == "other 0" })
			if diff := cmp.Diff([]string{"k 0", "k 1", "k 2", "k 3", "k 4", "k 5"}, got); diff != "" {
				t.Errorf("deliveries in order (-want +got)\n%s", diff)
			}
			if n := s.FirstClaims(); n != 5 {
				t.Errorf("FirstClaims = %d, want 5", n)
			}
		})
	}
}

// waitForTx waits until a transaction waits for another one.
func waitForTx(t *testing.T, s *Store) {
	t.Helper()
	testkit.Until(t, "a transaction waits for another one", func() bool {
		var waits bool
		if err := s.db.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')").Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

// Deliveries without a Key, and other Keys, do not wait for a Key whose stripe an open transaction has.
func TestPutDoesNotWaitForOtherKeys(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	tx := putTx(t, s, pgx.ReadCommitted, keyed("crm", "hot", 0, 1)...)
	var hot sync.WaitGroup
	for i := range 3 {
		hot.Go(func() {
			if n, err := putSome(context.Background(), s, keyed("crm", "hot", 1+i, 1)...); n != 1 || err != nil { // it waits for tx
				t.Errorf("Put behind a transaction = %d, %v, want 1", n, err)
			}
		})
	}
	waitForTx(t, s)
	putAll(t, s, deliveries("crm", 0, 10)...)
	putAll(t, s, keyed("crm", "other", 0, 10)...)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	hot.Wait()
	wantWaiting(t, s, 24)
}

// While Revive waits for a Key whose stripe an open transaction has, it does not keep the stripes of
// other Keys locked, so a Put with one of them does not wait for the transaction.
func TestReviveDelaysNoOtherKeys(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	keys := []string{"a", "b"} // Revive locks the stripe of the first one first
	slices.SortFunc(keys, func(a, b string) int {
		x, y := orderOf(&store.Delivery{Destination: "crm", Key: a}).Bytes, orderOf(&store.Delivery{Destination: "crm", Key: b}).Bytes
		return bytes.Compare(x[:], y[:])
	})
	putAll(t, s, append(keyed("crm", keys[0], 0, 1), keyed("crm", keys[1], 0, 1)...)...)
	settleAll(t, s, store.Bury, fetchUntil(t, s, 2, "crm"))
	dead := refs(listAll(t, s, store.Query{States: []store.State{store.StateDead}}))
	tx := putTx(t, s, pgx.ReadCommitted, keyed("crm", keys[1], 1, 1)...)
	ended := make(chan error, 1)
	go func() {
		n, err := s.Revive(context.Background(), dead...) // it waits for tx
		if n != 2 {
			err = errors.Join(err, fmt.Errorf("Revive = %d, want 2", n))
		}
		ended <- err
	}()
	waitForTx(t, s)
	putAll(t, s, keyed("crm", keys[0], 1, 1)...)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantWaiting(t, s, 4)
}

// Upkeep moves deliveries that are behind another one to another partition. They stay behind it, and
// are released in their order.
func TestMovedDeliveriesStayBehind(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	ds := keyed("crm", "k", 0, 200)
	for i := range ds {
		ds[i].Body = make([]byte, 64<<10)
	}
	putAll(t, s, ds...)
	settleAll(t, s, store.Return, fetchUntil(t, s, 1, "crm"))
	if n, _, err := s.Discard(t.Context(), refs(listAll(t, s, store.Query{States: []store.State{store.StateBehind}}))[10:]...); n != 189 || err != nil {
		t.Fatalf("Discard = %d, %v; want 189", n, err)
	}
	if err := s.claimer.release(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.pool.Exec(t.Context(), s.db.in(`UPDATE S.state SET chunk_since = chunk_since - interval '1 hour'`)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the chunks are in another partition", func() bool {
		if _, err := s.db.pool.Exec(t.Context(), s.db.in(`SELECT S.rotate_chunks(clock_timestamp())`)); err != nil {
			t.Fatal(err)
		}
		var left int
		if err := s.db.pool.QueryRow(t.Context(), s.db.in(`SELECT count(*) FROM S.chunk WHERE part = 0`)).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	if c, err := s.Count(t.Context()); c.Waiting != 11 || c.Behind != 10 || err != nil {
		t.Errorf("Count = %+v, %v; want 11 waiting, 10 of them behind", c, err)
	}
	seqs := listAll(t, s, store.Query{Oldest: true})
	for i, r := range seqs {
		d := fetchUntil(t, s, 1, "crm")
		if d[0].Seq != r.Seq {
			t.Errorf("delivery %d has the number %d, want %d", i, d[0].Seq, r.Seq)
		}
		settleAll(t, s, store.Done, d)
	}
}

// Two nodes deliver what callers put, in transactions and without, while others discard some of it. Of each
// Key, one delivery at a time is claimed, in the order of Seq, and none is left behind.
func TestOrderUnderLoad(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: 50 * time.Millisecond}
	nodes := []*Store{openWith(t, c), openWith(t, c)}
	ctx, stop := context.WithCancel(t.Context())
	var putting, delivering sync.WaitGroup
	var mu sync.Mutex
	stored, gone := 0, 0
	latest, claimed := make(map[string]uint64), make(map[string]string)
	add := func(n *int, by int) {
		mu.Lock()
		*n += by
		mu.Unlock()
	}
	for i, s := range nodes {
		putting.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for j := range 120 {
				ds := deliveries("crm", 1000*(2*j+i), 1+r.IntN(12))
				for k := range ds {
					ds[k].Key = fmt.Sprint("key ", r.IntN(6))
				}
				rollback := errors.New("rolled back")
				var err error
				if r.IntN(2) == 0 {
					_, err = putSome(ctx, s, ds...)
				} else {
					level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[r.IntN(2)]
					err = pgx.BeginTxFunc(ctx, s.db.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
						if _, err := putInTx(ctx, s, tx, puts(ds...)); err != nil || r.IntN(3) > 0 {
							return err
						}
						return rollback
					})
				}
				if err == nil {
					add(&stored, len(ds))
				} else if err != rollback {
					t.Error(err)
				}
				if j%10 == 0 {
					page, _, err := s.List(ctx, store.Query{}, 0, 5)
					n, _, err2 := s.Discard(ctx, refs(page)...)
					if err := errors.Join(err, err2); err != nil {
						t.Error(err)
					}
					add(&gone, n)
				}
			}
		})
		delivering.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for ctx.Err() == nil {
				wants := []store.Want{{Destination: "crm", Max: 4}, {Destination: "crm", Retries: true, Max: 4}}
				ds, err := s.Fetch(ctx, wants, 1<<20, nil)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				var ss []store.Settlement
				mu.Lock()
				for _, d := range ds {
					if d.Seq < latest[d.Key] || claimed[d.Key] != "" {
						t.Errorf("%s with the number %d is claimed after %d, and beside %q", d.ID, d.Seq, latest[d.Key], claimed[d.Key])
					}
					latest[d.Key], claimed[d.Key] = d.Seq, d.ID
					v := []store.Verdict{store.Done, store.Done, store.Retry, store.Return}[r.IntN(4)] // dead letters would be discarded, too
					d.Expires = d.Due.Add(time.Hour)
					ss = append(ss, store.Settlement{Verdict: v, Delivery: d, At: time.Now()})
				}
				mu.Unlock()
				if _, err := s.Nodes(context.Background()); err != nil { // meanwhile the other node fetches
					t.Error(err)
				}
				mu.Lock()
				for _, d := range ds {
					claimed[d.Key] = ""
				}
				mu.Unlock()
				if n, err := s.Settle(context.Background(), ss); n != len(ss) || err != nil {
					t.Error(n, err)
				}
				for _, v := range ss {
					if v.Verdict == store.Done {
						add(&gone, 1)
					}
				}
			}
		})
	}
	putting.Wait()
	ended := func() int { // dead letters are counted here, as they may be discarded
		c, err := nodes[0].Count(context.Background())
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return gone + c.Dead
	}
	testkit.Until(t, "every delivery has ended", func() bool { return ended() >= stored })
	stop()
	delivering.Wait()
	wantWaiting(t, nodes[0], 0)
	if n := ended(); n != stored {
		t.Errorf("%d deliveries have ended, want %d", n, stored)
	}
	for _, s := range nodes {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
