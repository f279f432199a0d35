package boltqueue

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// What is due at the same time comes in the order it was put, also from a journal
// that was rescued.
func TestRescueKeepsOrder(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const n = 60
	due := time.Now().Add(-time.Second)
	for i := range n {
		if i == n/3 {
			if err := q.do(ctx, &request{work: nothing}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: due}); err != nil {
			t.Fatal(err)
		}
	}
	rescued := filepath.Join(t.TempDir(), "rescued.db")
	if _, err := Rescue(crash(t, path), rescued); err != nil {
		t.Fatal(err)
	}
	p, err := Open(rescued, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ds, _, err := p.Lease(ctx, webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != n {
		t.Fatal(len(ds), err)
	}
	for i, d := range ds {
		if d.ID != fmt.Sprint(i) {
			t.Fatalf("%s comes as number %d", d.ID, i)
		}
	}
}
