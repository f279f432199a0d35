//go:build unix

package pgqueue

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
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
		if _, err := q.pool.Exec(ctx, q.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	putAll(t, q, deliveries("crm", 0, 10)...)
	held := fetchUntil(t, q, 10, "crm")
	putAll(t, other, deliveries("mail", 0, 10)...)
	exec(`UPDATE S.chunk SET node = $1 WHERE destination = 'mail'`, q.nodeNow())
	exec(`SELECT S.settle($1, ARRAY(SELECT id FROM S.chunk WHERE destination = 'crm'), '{10}', '{6}', '{1111000000}')`, q.nodeNow())

	settleAll(t, q, webhook.Retry, held[:5]) // the first four were settled
	wantWaiting(t, q, 16)
	settleAll(t, q, webhook.Return, held[3:7])
	settleAll(t, q, webhook.Done, held[7:])
	got := fetchUntil(t, q, 13, "crm", "mail")
	settleAll(t, q, webhook.Done, got)
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
		if _, err := q.pool.Exec(ctx, q.in(sql), args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"crm", "mail"} {
		if err := pgx.BeginFunc(ctx, other.pool, func(tx pgx.Tx) error {
			_, err := other.PutTx(ctx, tx, puts(deliveries(name, 0, 10)...))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	settleAll(t, q, webhook.Return, fetchUntil(t, q, 1, "mail"))
	exec(claimSQL, q.nodeNow(), [][]byte{[]byte("crm")}, []bool{false}, time.Now().UnixMicro(), []int32{1}) // its answer is lost
	exec(`ALTER TABLE S.chunk ADD CONSTRAINT stays_claimed CHECK (node <> 0) NOT VALID`)
	if err := q.release(ctx, 0); !hasCode(err, "23514") {
		t.Errorf("release = %v, want SQLSTATE 23514 (check_violation)", err)
	}
	for range 2 {
		if err := q.reconcile(ctx); !hasCode(err, "23514") {
			t.Errorf("reconcile = %v, want SQLSTATE 23514 (check_violation)", err)
		}
	}
	exec(`ALTER TABLE S.chunk DROP CONSTRAINT stays_claimed`)
	if err := q.reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	settleAll(t, other, webhook.Done, fetchUntil(t, other, 20, "crm", "mail"))
	if n, m := q.FirstClaims(), other.FirstClaims(); n != 20 || m != 0 {
		t.Errorf("the nodes count %d and %d first claims, want 20 and 0", n, m)
	}
}
