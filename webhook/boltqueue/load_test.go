package boltqueue

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A row that comes into a lane between the reading of its rows and their coming
// into memory is not passed over.
func TestRowArrivesWhileReading(t *testing.T) {
	ctx := t.Context()
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	due := time.Now().Add(-time.Hour)
	put := func(id string, after time.Duration) {
		t.Helper()
		if n, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: due.Add(after)}); n != 1 || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
	}
	put("in memory", -time.Hour) // the one that a lane may always have
	for i := range 10 {
		put(fmt.Sprint(i), time.Duration(i)*time.Minute)
	}
	checkpoint := func() {
		t.Helper()
		if err := q.do(ctx, &request{work: nothing}); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint()

	q.mu.Lock()
	l := q.table.Lane("a")
	now := time.Now().UnixMicro()
	loads := []load{q.newLoad(l, 5)}
	tx, err := q.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	q.mu.Unlock()
	loads[0].read(tx.Bucket(bucketWaiting).Cursor(), now)
	id := tx.ID()
	tx.Rollback()
	if len(loads[0].items) != 5 {
		t.Fatalf("%d rows were read, want 5", len(loads[0].items))
	}
	put("arrived", 90*time.Second)
	checkpoint()
	q.mu.Lock()
	q.install(loads, id, now)
	q.mu.Unlock()

	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 100, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 12 {
		t.Fatalf("Lease = %d, %v, want 12", len(ds), err)
	}
	if ds[3].ID != "arrived" {
		t.Errorf("the fourth is %s, want the one that arrived", ds[3].ID)
	}
}
