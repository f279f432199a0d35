//go:build unix

package boltqueue_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// A store whose folder is moved away accepts nothing, and works again once the
// folder is back.
func TestFilesLost(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "queue.db")
	q, err := boltqueue.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { q.Close() }()
	put := func(id string) error {
		_, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: time.Now().Add(-time.Second)})
		return err
	}
	if err := put("1"); err != nil {
		t.Fatal(err)
	}
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 {
		t.Fatal(len(ds), err)
	}
	done := webhook.Settlement{Verdict: webhook.Done, Delivery: ds[0]}
	for _, lost := range []string{dir, path, path + ".journal"} {
		if err := os.Rename(lost, dir+".away"); err != nil {
			t.Fatal(err)
		}
		if err := put("2"); !errors.Is(err, boltqueue.ErrLost) {
			t.Errorf("Put without %s: %v, want ErrLost", lost, err)
		}
		if err := q.Settle(ctx, done); !errors.Is(err, boltqueue.ErrLost) {
			t.Errorf("Settle without %s: %v, want ErrLost", lost, err)
		}
		if err := os.Rename(dir+".away", lost); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("2"); err != nil {
		t.Errorf("Put with the files back: %v", err)
	}
	if err := q.Settle(ctx, done); err != nil {
		t.Errorf("Settle with the files back: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if q, err = boltqueue.Open(path, nil); err != nil {
		t.Fatal(err)
	}
	if ds, _, err = q.Lease(ctx, webhook.LeaseRequest{Max: 9, Until: time.Now().Add(time.Hour)}, nil); err != nil || len(ds) != 1 || ds[0].ID != "2" {
		t.Errorf("Lease = %v, %v, want 2", ds, err)
	}
}
