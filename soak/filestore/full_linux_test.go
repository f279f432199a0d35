package filestore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

func init() { children["full"] = fullChild }

// TestDiskFull has processes reach the end of their disk, and get over it. The disk is a
// small file system of their own, or the bound on the size of their files, which is to a
// program what a full disk is.
func TestDiskFull(t *testing.T) {
	soak.Only(t, "file-disk")
	for seed := range soak.Seeds(t, 1) {
		for _, mount := range []bool{false, true} {
			for i, tt := range fullTests {
				if tt.mount && !mount {
					continue
				}
				t.Run(fmt.Sprintf("seed=%d/mount=%t/%s", seed, mount, tt.name), func(t *testing.T) {
					testDiskFull(t, fullSettings{t.TempDir(), i, seed, mount})
				})
			}
		}
	}
}

func testDiskFull(t *testing.T, s fullSettings) {
	cmd := command("full", s)
	cmd.Stderr = nil
	if s.Mount {
		disktest.Apart(cmd)
	}
	out, err := cmd.CombinedOutput()
	if s.Mount && (errors.Is(err, syscall.EPERM) || string(out) == "operation not permitted\n") {
		testkit.Missing(t, "may not mount: run it as root, or as a user who may make namespaces")
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", bytes.TrimSpace(out))
}

// A disk is full from fill on, and has room again from free on.
type disk struct {
	dir        string
	fill, free func() error
	seed       uint64
}

var fullTests = []struct {
	name  string
	test  func(d disk) error
	mount bool // takes a disk that is full to the last page
}{
	{"store", diskFull, false},
	{"close", closeFull, false},
	{"deliver", forwardFull, false},
	{"room in the database", roomInDatabase, true},
	{"open", openFull, true},
}

type fullSettings struct {
	Dir   string
	Test  int
	Seed  uint64
	Mount bool
}

// fullChild is the process whose disk fills.
func fullChild(settings []byte) (err error) {
	var c fullSettings
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	d := disk{dir: c.Dir, seed: c.Seed}
	if d.fill, d.free = disktest.Limit(3 << 20); c.Mount {
		if d.fill, d.free, err = disktest.Mount(c.Dir, "32m"); err != nil {
			return err
		}
	}
	return fullTests[c.Test].test(d)
}

func diskFull(d disk) error {
	ctx := context.Background()
	config := &boltqueue.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	q, err := openStore(d.dir, config)
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
	if err := d.fill(); err != nil {
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
	if err := d.free(); err != nil {
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
	if q, err = openStore(d.dir, config); err != nil {
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
func closeFull(d disk) error {
	ctx := context.Background()
	var log bytes.Buffer
	config := &boltqueue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	q, err := openStore(d.dir, config)
	if err != nil {
		return err
	}
	if err := d.fill(); err != nil {
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
	if err := d.free(); err != nil {
		return err
	}
	if q, err = openStore(d.dir, config); err != nil {
		return err
	}
	if n, err := q.Count(ctx); err != nil || n.Waiting != stored {
		return fmt.Errorf("Count = %+v, %w, want %d waiting", n, err, stored)
	}
	return q.Close()
}

// roomInDatabase fills the disk while the data file has room for more than the
// journal has: nothing fails.
func roomInDatabase(d disk) error {
	ctx := context.Background()
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
	q, err := openStore(d.dir, config)
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
	if q, err = openStore(d.dir, config); err != nil {
		return err
	}
	if err := d.fill(); err != nil {
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
	return nil
}
