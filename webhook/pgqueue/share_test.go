//go:build unix

package pgqueue

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hookferry/analytics/internal/testkit"
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

// leaseUntil leases until n deliveries are leased.
func leaseUntil(t testing.TB, q *Queue, n int) []webhook.Delivery {
	t.Helper()
	var ds []webhook.Delivery
	for {
		var err error
		ds, _, err = q.Lease(t.Context(), webhook.LeaseRequest{Max: n - len(ds), Until: time.Now().Add(time.Hour)}, ds)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == n {
			return ds
		}
		select {
		case <-q.Wake():
		case <-time.After(10 * time.Millisecond):
		}
	}
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

// Another process is notified of what one puts. Each delivery goes to one of the two.
func TestShare(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
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

// However many notifications come that name no destination, the process looks for unclaimed
// deliveries a few times only.
func TestLooksAreFew(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	q := openWith(t, c)
	defer q.Close()
	c.NoListen = true // it does not notify either
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
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.schema+".chunk IN ACCESS EXCLUSIVE MODE"); err != nil { // a look waits for it
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

// The claims of a process that dies are taken over within Claim.
func TestTakeOver(t *testing.T) {
	makeVirtual(t)
	synctest.Test(t, func(t *testing.T) {
		c := Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: 8 * time.Second}
		a := openVirtual(t, database(t), pgx.QueryExecModeCacheStatement, c)
		b := openVirtual(t, database(t), pgx.QueryExecModeCacheStatement, c)
		defer a.Close()
		defer b.Close()
		putAll(t, a, deliveries("crm", 0, 300)...)
		got := leaseUntil(t, a, 100)
		settleAll(t, a, webhook.Done, got[:50])
		a.abandon()
		began := time.Now()
		ds := leaseUntil(t, b, 250)
		if took := time.Since(began); took > c.Claim {
			t.Errorf("taken over in %v, want at most %v", took, c.Claim)
		}
		settleAll(t, b, webhook.Done, ds)
		// What the dead process still settles changes nothing.
		settleAll(t, a, webhook.Retry, got[50:])
		if c, err := b.Count(t.Context()); err != nil || c.Waiting != 0 {
			t.Errorf("Count = %+v, %v; want nothing", c, err)
		}
		if _, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Minute)}, nil); err == nil {
			t.Error("a process whose claims have expired leases")
		}
	})
}

// A process that has missed a heartbeat of late takes no other for dead: the database may
// have been away, for the others too.
func TestSilentJudgesNobody(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
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
	last := func(ago time.Duration) { // when the last heartbeat was stored; none before it was late
		if _, err := a.pool.Exec(t.Context(), "UPDATE "+a.schema+`.node SET steady = clock_timestamp() - interval '10 hours',
			seen = clock_timestamp() - $2::bigint * interval '1 microsecond' WHERE id = $1`, a.nodeNow(), ago.Microseconds()); err != nil {
			t.Fatal(err)
		}
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
		{"its own heartbeats are missing", time.Hour, func(context.Context) error { return nil }, false},
		{"its own heartbeats were missing", time.Hour, a.beat, false},
		{"one heartbeat was missing", time.Hour * 6 / 10, a.beat, false},
		{"it has started over", time.Hour, a.again, false},
		{"it has missed no heartbeat", time.Hour / 4, a.beat, true},
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

// A process that was silent for too long starts over as a new node.
func TestSilence(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
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
	q.Present(nil) // has it send a heartbeat at once
	testkit.Until(t, "the process is another node than the one that was declared dead", func() bool { return q.nodeNow() != node })
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
			q := openWith(t, Config{Schema: "tx" + driver[:3]})
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
					db, berr := sql.Open("pgx", database(t))
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

// Transactions at the strictest isolation level are tried again when PostgreSQL says so, and
// put each delivery once.
func TestPutTxSerializable(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
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

// Upkeep removes the dead rows of finished chunks.
func TestUpkeep(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), DedupMax: 1000})
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
	// One delivery is left. Its chunk is given back and moved to another shelf.
	rest := leaseUntil(t, q, 1)
	settleAll(t, q, webhook.Retry, rest)
	testkit.Until(t, "chunk_0 is small, and new chunks go elsewhere", func() bool { // a step waits while an autovacuum has the table
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
		return size("chunk_0") <= dirtBytes && q.shelf.Load() != 0
	})
	if got := leaseUntil(t, q, 1); got[0].ID != rest[0].ID {
		t.Errorf("leased %s, want %s", got[0].ID, rest[0].ID)
	}
	// The generations hold the keys of at least the last 1,000 puts, not of all.
	if n := size("seen_0"); n > 1<<20 {
		t.Errorf("seen_0 has %d bytes", n)
	}
}
