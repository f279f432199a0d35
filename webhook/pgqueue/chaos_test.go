//go:build unix

package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/webhook/internal/chaos"
)

// openChaos opens the store of TestChaos.
func openChaos(ctx context.Context, url string) (chaos.Queue, func() string, func(), error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, nil, err
	}
	q, err := Open(ctx, pool, &Config{Schema: "chaos", Claim: 3 * time.Second, Poll: 500 * time.Millisecond})
	if err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return q, func() string { return fmt.Sprint(q.nodeNow()) }, pool.Close, nil
}

// Processes are killed, and the database is.
func TestChaos(t *testing.T) {
	db, err := pgtest.Start("fsync=off")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	chaos.Run(t, chaos.Store{Addresses: []string{db.URL()}, Open: openChaos, Away: func(wait func()) error {
		if err := db.Down(); err != nil {
			return err
		}
		wait()
		return db.Up()
	}})
}
