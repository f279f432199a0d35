package boltqueue

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
)

// A lane that is to be forgotten keeps its name as long as the file has rows of it: those
// that were settled after what is being written was sealed.
func TestLaneIsNamedWhileItHasRows(t *testing.T) { synctest.Test(t, testLaneIsNamedWhileItHasRows) }

func testLaneIsNamedWhileItHasRows(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{CacheBytes: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	put := func(destination string) {
		t.Helper()
		d := webhook.Delivery{Destination: destination, ID: "1", Due: time.Now().Add(-time.Second)}
		if _, err := q.Put(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	named := func(destination string) (named bool) {
		t.Helper()
		if err := q.view(ctx, func(tx *bolt.Tx) error {
			named = tx.Bucket(bucketLanes).Get([]byte(destination)) != nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return named
	}
	fails, ended := false, ""
	q.commit1 = func(tx *bolt.Tx) error {
		if fails {
			fails = false
			tx.Rollback()
			return errDisk
		}
		err := tx.Commit()
		if ended == "" {
			ended = crash(t, path)
		}
		return err
	}

	put("rare")
	checkpointNow(t, q)
	leased, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(leased) != 1 {
		t.Fatal(len(leased), err)
	}
	put("other")
	fails, ended = true, "" // so that it is sealed for a while
	if err := q.do(ctx, &request{work: nothing}); err == nil {
		t.Fatal("a transaction that fails is no error")
	}
	if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: leased[0]}); err != nil {
		t.Fatal(err)
	}
	q.mu.Lock()
	for i := range 2000 {
		q.table.Lane(fmt.Sprint(i)) // many come and go
	}
	q.mu.Unlock()
	checkpointNow(t, q)

	p, err := Open(ended, nil)
	if err != nil {
		t.Fatalf("Open after a crash: %v", err)
	}
	defer p.Close()
	for name, q := range map[string]*Queue{"the store": q, "the one after a crash": p} {
		if counts, err := q.Count(ctx); err != nil || counts.Waiting != 1 {
			t.Errorf("%s has %+v, %v, want 1 waiting", name, counts, err)
		}
		if err := q.Check(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The row went by the latest transaction, and the name goes by the next.
	checkpointNow(t, q)
	if named("rare") || !named("other") {
		t.Errorf("the file names the lane that was forgotten: %t, and the other: %t", named("rare"), named("other"))
	}
}
