//go:build unix

package pgqueue

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

func deliveries(destination string, from, n int) []webhook.Delivery {
	now := time.Now()
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		ds[i] = webhook.Delivery{
			Destination: destination, ID: fmt.Sprint(from + i), Type: "track",
			Body: fmt.Appendf(nil, `{"messageId":"%d"}`, from+i), Accepted: now, Due: now.Add(-time.Second),
		}
	}
	return ds
}

func putAll(t testing.TB, q *Queue, ds ...webhook.Delivery) {
	t.Helper()
	if n, err := q.Put(t.Context(), ds...); n != len(ds) || err != nil {
		t.Fatalf("Put = %d, %v, want %d", n, err, len(ds))
	}
}

// patience bounds the wait for what comes in no time where nothing is wrong and the processors are
// not busy with the tests of others.
const patience = time.Minute

// busyClaim is the Claim of stores that are to keep what they claim: a sign of life may be late by
// almost half of it, as on a machine that is busy with other tests.
const busyClaim = 10 * time.Second

// leaseUntil leases until n deliveries are leased.
func leaseUntil(t testing.TB, q *Queue, n int) []webhook.Delivery {
	t.Helper()
	var ds []webhook.Delivery
	for deadline := time.Now().Add(patience); len(ds) < n; {
		var next time.Time
		var err error
		ds, next, err = q.Lease(t.Context(), webhook.LeaseRequest{Max: n - len(ds), Until: time.Now().Add(time.Minute)}, ds)
		if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d leased in %v; next %v", len(ds), n, patience, next)
		}
		if len(ds) < n {
			select {
			case <-q.Wake():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return ds
}

func settleAll(t testing.TB, q *Queue, verdict webhook.Verdict, ds []webhook.Delivery) {
	t.Helper()
	ss := make([]webhook.Settlement, len(ds))
	for i := range ds {
		ss[i] = webhook.Settlement{Verdict: verdict, Delivery: ds[i]}
	}
	if err := q.Settle(t.Context(), ss...); err != nil {
		t.Fatal(err)
	}
}

// What one process puts, another is told of and delivers, each delivery by one of
// them.
func TestShare(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	putAll(t, a, deliveries("crm", 0, 1000)...)
	seen := map[string]bool{}
	for _, q := range []*Queue{b, a, b, a} {
		got := leaseUntil(t, q, 200)
		for _, d := range got {
			if seen[d.ID] {
				t.Errorf("delivery %s was leased twice", d.ID)
			}
			seen[d.ID] = true
		}
		settleAll(t, q, webhook.Done, got)
	}
	for _, q := range []*Queue{a, b} {
		counts, err := q.Count(t.Context())
		if err != nil || counts.Waiting != 200 {
			t.Errorf("Count = %+v, %v; want 200 waiting", counts, err)
		}
	}
}

// However often others tell that there is something, and not what, it is looked for a
// few times.
func TestLooksAreFew(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour}
	q := openWith(t, c)
	defer q.Close()
	c.NoListen = true // nor does it tell
	other := openWith(t, c)
	defer other.Close()
	putAll(t, other, deliveries("crm", 0, 1)...)
	looks := func() uint64 {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.looks
	}
	before := looks()
	tx, err := other.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.schema+".chunk IN ACCESS EXCLUSIVE MODE"); err != nil { // until then a look waits
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := other.pool.Exec(t.Context(), notify, q.channel(), payload(0, nil)); err != nil {
			t.Fatalf("notification %d: %v", i, err)
		}
	}
	if _, err := other.pool.Exec(t.Context(), notify, q.channel(), payload(0, map[string]bool{"last": true})); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for last := false; !last; {
		<-q.Wake()
		q.mu.Lock()
		last = q.table.Lane("last").Beyond != lanes.Last
		q.mu.Unlock()
	}
	leaseUntil(t, q, 1)
	if n := looks() - before; n > 20 { // leasing looks too
		t.Errorf("after 100 notifications the database was looked through %d times", n)
	}
}

// What a process held that dies is taken over, within Claim.
func TestTakeOver(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: 8 * time.Second}
	a, b := openWith(t, c), openWith(t, c)
	defer b.Close()
	putAll(t, a, deliveries("crm", 0, 300)...)
	got := leaseUntil(t, a, 100)
	settleAll(t, a, webhook.Done, got[:50])
	a.abandon()
	began, steady := time.Now(), b.since()
	ds := leaseUntil(t, b, 250)
	// Who is itself kept from a sign of life waits for as long again.
	if took := time.Since(began); took > c.Claim && b.since() == steady {
		t.Errorf("taken over in %v, want at most %v", took, c.Claim)
	}
	settleAll(t, b, webhook.Done, ds)
	// What the dead one still settles changes nothing.
	settleAll(t, a, webhook.Retry, got[50:])
	if c, err := b.Count(t.Context()); err != nil || c.Waiting != 0 {
		t.Errorf("Count = %+v, %v; want nothing", c, err)
	}
	if _, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Minute)}, nil); err == nil {
		t.Error("a process whose claims have expired leases")
	}
}

// since returns since when q has shown all signs of life.
func (q *Queue) since() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.steady
}

// Who has not shown all signs of life of late takes nobody for dead: the database may have
// been away, for the others too.
func TestSilentJudgesNobody(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	judges := func() bool {
		t.Helper()
		if err := a.takeOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		var lives bool
		if err := a.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+a.schema+".node WHERE id = $1)", b.nodeNow()).Scan(&lives); err != nil {
			t.Fatal(err)
		}
		return !lives
	}
	last := func(ago time.Duration) { // when the last sign was shown; all before it were, long since
		a.mu.Lock()
		defer a.mu.Unlock()
		a.steady, a.until = time.Now().Add(-10*c.Claim), time.Now().Add(c.trusted()-ago)
	}
	if _, err := a.pool.Exec(t.Context(), "UPDATE "+a.schema+".node SET expires = expires - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ago  time.Duration
		show func(context.Context) error
		want bool
	}{
		{"its own signs are missing", c.Claim, func(context.Context) error { return nil }, false},
		{"its own signs were missing", c.Claim, a.beat, false},
		{"one sign was missing", c.Claim * 6 / 10, a.beat, false},
		{"it has begun anew", c.Claim, a.again, false},
		{"it has shown all signs", c.Claim / 4, a.beat, true},
	} {
		last(tt.ago)
		if err := tt.show(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := judges(); got != tt.want {
			t.Errorf("%s: others are taken for dead: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A process that was silent for too long begins anew.
func TestSilence(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir()), Poll: 50 * time.Millisecond, Claim: busyClaim}
	q := openWith(t, c)
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 10)...)
	held := leaseUntil(t, q, 5)
	node := q.nodeNow()
	if _, err := q.pool.Exec(t.Context(), "DELETE FROM "+q.schema+".node WHERE id = $1", node); err != nil {
		t.Fatal(err)
	}
	if _, err := q.pool.Exec(t.Context(), q.sql.heal); err != nil {
		t.Fatal(err)
	}
	for q.nodeNow() == node {
		if t.Context().Err() != nil {
			t.Fatal("the process is still the node that was declared dead")
		}
		<-q.Wake()
	}
	ds := leaseUntil(t, q, 10)
	settleAll(t, q, webhook.Retry, held) // changes nothing
	settleAll(t, q, webhook.Done, ds)
	if c, err := q.Count(t.Context()); err != nil || c.Waiting != 0 {
		t.Errorf("Count = %+v, %v; want nothing", c, err)
	}
}

func TestPutTx(t *testing.T) {
	for _, driver := range []string{"pgx", "database/sql"} {
		t.Run(driver, func(t *testing.T) {
			q := openWith(t, Config{Schema: "tx" + driver[:3], Poll: time.Hour})
			defer q.Close()
			in := func(commit bool, ds ...webhook.Delivery) (n int) {
				t.Helper()
				var err error
				ctx := t.Context()
				if driver == "pgx" {
					tx, berr := q.pool.Begin(ctx)
					if berr != nil {
						t.Fatal(berr)
					}
					defer tx.Rollback(ctx)
					if n, err = q.PutTx(ctx, tx, ds...); err == nil && commit {
						err = tx.Commit(ctx)
					}
				} else {
					db, berr := sql.Open("pgx", server.URL())
					if berr != nil {
						t.Fatal(berr)
					}
					defer db.Close()
					tx, berr := db.Begin()
					if berr != nil {
						t.Fatal(berr)
					}
					defer tx.Rollback()
					if n, err = q.PutSQL(ctx, tx, ds...); err == nil && commit {
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
				t.Errorf("%d wait after the transaction was rolled back", c.Waiting)
			}
			if n := in(true, append(ds, ds[0])...); n != len(ds) {
				t.Errorf("PutTx stored %d, want %d", n, len(ds))
			}
			if n := in(true, ds[:2]...); n != 0 {
				t.Errorf("PutTx stored %d again", n)
			}
			got := leaseUntil(t, q, len(ds))
			by := map[string]int{}
			for _, d := range got {
				by[d.Destination]++
			}
			if by[ds[0].Destination] != 3 || by[ds[3].Destination] != 300 {
				t.Errorf("leased %v", by)
			}
		})
	}
}

// Transactions of the strictest level that are tried again when PostgreSQL says so put
// each delivery once.
func TestPutTxSerializable(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour})
	defer q.Close()
	const processes, each = 4, 10
	var stored, failed atomic.Int64
	put := func(d webhook.Delivery) error {
		for {
			n := 0
			err := pgx.BeginTxFunc(t.Context(), q.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) (err error) {
				n, err = q.PutTx(t.Context(), tx, d)
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
		t.Errorf("PutTx has stored %d, and Count = %+v, %v, want %d", stored.Load(), c, err, each)
	}
	t.Logf("%d transactions were tried again", failed.Load())
}

// Finished chunks leave no dirt behind.
func TestUpkeep(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, DedupMax: 1000})
	defer q.Close()
	ctx := context.Background()
	size := func(table string) (n int64) {
		t.Helper()
		if err := q.pool.QueryRow(ctx, "SELECT pg_total_relation_size('"+q.schema+"."+table+"')").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	body := make([]byte, 8<<10)
	fill := func(from int) {
		t.Helper()
		for i := range 12 {
			ds := deliveries("crm", from+100*i, 100)
			for j := range ds {
				ds[j].Body = body
			}
			putAll(t, q, ds...)
		}
	}
	fill(0)
	settleAll(t, q, webhook.Done, leaseUntil(t, q, 1199))
	if _, err := q.pool.Exec(ctx, "UPDATE "+q.schema+".state SET shelved = shelved - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	if size("chunk_0") < dirtBytes {
		t.Fatalf("chunk_0 has %d bytes", size("chunk_0"))
	}
	// One delivery is left: its chunk is given back, and moved on.
	rest := leaseUntil(t, q, 1)
	settleAll(t, q, webhook.Retry, rest)
	for deadline := time.Now().Add(patience); ; {
		if err := q.upkeep(ctx); err != nil {
			t.Fatal(err)
		}
		if err := q.beat(ctx); err != nil {
			t.Fatal(err)
		}
		q.mu.Lock()
		for _, c := range q.chunks {
			c.used = c.used.Add(-time.Hour)
		}
		q.mu.Unlock()
		if err := q.release(ctx); err != nil {
			t.Fatal(err)
		}
		n := size("chunk_0")
		if n <= dirtBytes && q.shelf.Load() != 0 {
			break
		}
		// A step is put off while an autovacuum has the table.
		if time.Now().After(deadline) {
			t.Fatalf("chunk_0 has %d bytes, and new chunks go to shelf %d", n, q.shelf.Load())
		}
	}
	if got := leaseUntil(t, q, 1); got[0].ID != rest[0].ID {
		t.Errorf("leased %s, want %s", got[0].ID, rest[0].ID)
	}
	// The generations hold the keys of the last 1,000 puts at least, not all.
	if n := size("seen_0"); n > 1<<20 {
		t.Errorf("seen_0 has %d bytes", n)
	}
}
