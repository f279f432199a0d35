//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Put returns at the deadline of its context if the database does not answer.
func TestPutEndsAtItsDeadline(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour})
	defer q.Close()
	tx, err := q.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.schema+".chunk IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ds := deliveries("crm", 0, 1)
	if n, err := putSome(ctx, q, ds...); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Put = %d, %v; want 0, context.DeadlineExceeded", n, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The caller puts the delivery again. It is stored once, even if the first Put stored it.
	if _, err := putSome(t.Context(), q, ds...); err != nil {
		t.Fatal(err)
	}
	if c, err := q.Count(t.Context()); err != nil || c.Waiting != 1 {
		t.Errorf("Count = %+v, %v; want 1 waiting", c, err)
	}
}
