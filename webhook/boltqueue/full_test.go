//go:build unix

package boltqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// limitDir names the environment variable that makes the test binary a process
// whose files may not grow over a size for a while.
const limitDir = "BOLTQUEUE_LIMIT_DIR"

// TestDiskFull has a process reach the bound on its files' size, which is to a
// program what a full disk is, and get over it.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), limitDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", bytes.TrimSpace(out))
}

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

// limitMount names the environment variable that makes the child mount a small
// file system of its own.
const limitMount = "BOLTQUEUE_LIMIT_MOUNT"

func limitChild(dir string) {
	fill, free := disktest.Limit(3 << 20)
	if os.Getenv(limitMount) != "" {
		var err error
		if fill, free, err = disktest.Mount(dir, "32m"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if err := roomInDatabase(dir, fill, free); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if err := openFull(dir, fill, free); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	test := diskFull
	if os.Getenv(limitForward) != "" {
		test = forwardFull
	} else if err := closeFull(dir, fill, free); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := test(dir, fill, free); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func diskFull(dir string, fill, free func() error) error {
	ctx := context.Background()
	path := filepath.Join(dir, "queue.db")
	config := &boltqueue.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	q, err := boltqueue.Open(path, config)
	if err != nil {
		return err
	}
	stored := map[string]bool{}
	n := 0
	put := func() error {
		ds := make([]webhook.Delivery, 20)
		for i := range ds {
			n++
			ds[i] = webhook.Delivery{Destination: fmt.Sprint("d", i%3), ID: fmt.Sprint(n), Body: make([]byte, 2000), Due: time.Now()}
		}
		k, err := q.Put(ctx, ds...)
		if err != nil {
			return err
		}
		if k != len(ds) {
			return fmt.Errorf("Put = %d of %d", k, len(ds))
		}
		for _, d := range ds {
			stored[d.ID] = true
		}
		return nil
	}
	if err := fill(); err != nil {
		return err
	}
	for err = nil; err == nil && n < 10000; {
		err = put()
	}
	if err == nil {
		return fmt.Errorf("%d puts of 2,000 bytes on a full disk all succeed", n)
	}
	if !errors.Is(err, syscall.EFBIG) && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("the cause of a full disk is not in the error: %w", err)
	}
	if errors.Is(err, boltqueue.ErrDamaged) {
		return fmt.Errorf("a full disk is reported as damage: %w", err)
	}
	first := err
	for range 20 {
		if put() == nil {
			break // a little may still fit
		}
	}
	// What is stored is handed out, and may be settled as soon as there is room.
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 10 {
		return fmt.Errorf("Lease on a full disk = %d, %w", len(ds), err)
	}
	if err := free(); err != nil {
		return err
	}
	if err := put(); err != nil {
		return fmt.Errorf("Put with room again: %w", err)
	}
	for _, d := range ds {
		if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: d}); err != nil {
			return fmt.Errorf("Settle with room again: %w", err)
		}
		delete(stored, d.ID)
	}
	if err := q.Check(ctx); err != nil {
		return err
	}
	if err := q.Close(); err != nil {
		return err
	}
	if q, err = boltqueue.Open(path, config); err != nil {
		return err
	}
	defer q.Close()
	if err := q.Check(ctx); err != nil {
		return err
	}
	all, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1 << 20, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil {
		return err
	}
	for _, d := range all {
		if !stored[d.ID] {
			return fmt.Errorf("%s is there, though Put failed or it was settled", d.ID)
		}
		delete(stored, d.ID)
	}
	if len(stored) > 0 {
		return fmt.Errorf("%d deliveries are lost", len(stored))
	}
	fmt.Printf("%d deliveries kept; the first failure: %v\n", len(all), first)
	return nil
}

// closeFull closes a store on a full disk, which loses nothing and says so.
func closeFull(dir string, fill, free func() error) error {
	ctx := context.Background()
	path := filepath.Join(dir, "close.db")
	var log bytes.Buffer
	config := &boltqueue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	q, err := boltqueue.Open(path, config)
	if err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	stored := 0
	for ; stored < 10000; stored++ {
		if _, err = q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(stored), Body: make([]byte, 40_000), Due: time.Now()}); err != nil {
			break
		}
	}
	if err == nil || stored == 0 {
		return fmt.Errorf("%d puts of 40,000 bytes succeed on a full disk: %v", stored, err)
	}
	log.Reset()
	if err := q.Close(); err != nil {
		return fmt.Errorf("Close on a full disk: %w", err)
	}
	if !strings.Contains(log.String(), "nothing is lost") {
		return fmt.Errorf("Close on a full disk logs %q", log.String())
	}
	if err := free(); err != nil {
		return err
	}
	if q, err = boltqueue.Open(path, config); err != nil {
		return err
	}
	if n, err := q.Count(ctx); err != nil || n.Waiting != stored {
		return fmt.Errorf("Count = %+v, %w, want %d waiting", n, err, stored)
	}
	return q.Close()
}

// roomInDatabase fills the disk while the data file has room for more than the
// journal has: nothing fails.
func roomInDatabase(dir string, fill, free func() error) error {
	ctx := context.Background()
	path := filepath.Join(dir, "room.db")
	config := &boltqueue.Config{CacheBytes: 1 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	put := func(q *boltqueue.Queue, name string, bytes int) error {
		_, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: name, Body: make([]byte, bytes), Due: time.Now()})
		return err
	}
	settle := func(q *boltqueue.Queue, verdict webhook.Verdict, n int) error {
		var ds []webhook.Delivery
		for len(ds) < n { // some are handed out later, while the database is being written
			had := len(ds)
			var err error
			ds, _, err = q.Lease(ctx, webhook.LeaseRequest{Max: n - had, Until: time.Now().Add(time.Hour)}, ds)
			if err != nil || len(ds) == had {
				return fmt.Errorf("Lease = %d, %w, want %d", len(ds), err, n)
			}
		}
		for _, d := range ds {
			if err := q.Settle(ctx, webhook.Settlement{Verdict: verdict, Delivery: d}); err != nil {
				return err
			}
		}
		return nil
	}
	q, err := boltqueue.Open(path, config)
	if err != nil {
		return err
	}
	for i := range 2 {
		// A put that is too large for an entry takes room in the database at once.
		if err := put(q, fmt.Sprint("large", i), 5<<20); err != nil {
			return err
		}
	}
	if err := settle(q, webhook.Done, 2); err != nil {
		return err
	}
	if err := q.Close(); err != nil {
		return err
	}
	if q, err = boltqueue.Open(path, config); err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	const puts = 100
	for i := range puts {
		if err := put(q, fmt.Sprint(i), 40_000); err != nil {
			return fmt.Errorf("put %d on a full disk, with room in the database: %w", i, err)
		}
	}
	for i := range 3 {
		if err := settle(q, webhook.Retry, 50); err != nil {
			return fmt.Errorf("retries %d on a full disk, with room in the database: %w", i, err)
		}
	}
	if err := settle(q, webhook.Done, puts); err != nil {
		return fmt.Errorf("settling on a full disk, with room in the database: %w", err)
	}
	if err := q.Check(ctx); err != nil {
		return err
	}
	if err := q.Close(); err != nil {
		return err
	}
	os.Remove(path)
	return free()
}
