package filestore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

func init() { children["full"] = fullChild }

// TestDiskFull runs processes whose disk becomes full, and later has room again. The disk is a
// small file system of their own, or a bound on the size of their files, which looks like a full
// disk to a program.
func TestDiskFull(t *testing.T) {
	soakenv.Only(t, "file-disk")
	for seed := range soakenv.Seeds(t, 1) {
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
	mount bool // works only with a file system of its own
}{
	{"store", diskFull, false},
	{"close", closeFull, false},
	{"deliver", forwardFull, false},
	{"filled by itself", fillItself, true},
	{"open", openFull, true},
}

type fullSettings struct {
	Dir   string
	Test  int
	Seed  uint64
	Mount bool
}

// fullChild runs one of fullTests in a process whose disk can be filled.
func fullChild(settings []byte) (err error) {
	var c fullSettings
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	d := disk{dir: c.Dir, seed: c.Seed}
	if d.fill, d.free = disktest.Limit(12 << 20); c.Mount {
		if d.fill, d.free, err = disktest.Mount(c.Dir, "32m"); err != nil {
			return err
		}
	}
	return fullTests[c.Test].test(d)
}

// onceThereIsRoom repeats a call until it no longer returns ErrQueueFull, for up to five seconds. A
// store without a reserve checks once a second whether there is room for one.
func onceThereIsRoom(call func() error) (err error) {
	for range 50 {
		if err = call(); !errors.Is(err, webhook.ErrQueueFull) {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
	return err
}

// diskFull puts deliveries until the disk is full, and after it has room again. Put fails with
// ErrQueueFull meanwhile, and no stored delivery is lost.
func diskFull(d disk) error {
	ctx := context.Background()
	config := filequeue.Config{Logger: slog.New(slog.DiscardHandler)}
	s, err := openStore(d.dir, config)
	if err != nil {
		return err
	}
	stored := map[string]bool{}
	n := 0
	more := func() error {
		ds := make([]webhook.Delivery, 20)
		for i := range ds {
			n++
			ds[i] = webhook.Delivery{Destination: fmt.Sprint("d", i%3), ID: fmt.Sprint(n), Body: make([]byte, 2000), Due: time.Now()}
		}
		k, err := put(ctx, s, ds...)
		if err != nil {
			return err
		}
		if k != len(ds) {
			return fmt.Errorf("Put = %d, want %d", k, len(ds))
		}
		for _, d := range ds {
			stored[d.ID] = true
		}
		return nil
	}
	if err := more(); err != nil { // now the store has its reserve
		return err
	}
	if err := d.fill(); err != nil {
		return err
	}
	for err = nil; err == nil && n < 10000; {
		err = more()
	}
	if err == nil {
		return fmt.Errorf("%d puts of 2,000 bytes on a full disk = nil, want an error", n)
	}
	if !errors.Is(err, syscall.EFBIG) && !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, webhook.ErrQueueFull) {
		return fmt.Errorf("Put on a full disk = %w, want ErrQueueFull with EFBIG or ENOSPC", err)
	}
	first := err
	for range 20 {
		if more() == nil {
			break // a little may still fit
		}
	}
	// The store still hands out its deliveries. They can be settled as soon as there is room.
	ds, err := fetch(ctx, s, 10)
	if err != nil || len(ds) != 10 {
		return fmt.Errorf("Fetch on a full disk = %d, %w; want 10", len(ds), err)
	}
	if err := d.free(); err != nil {
		return err
	}
	if err := onceThereIsRoom(more); err != nil {
		return fmt.Errorf("Put with room again: %w", err)
	}
	for _, d := range ds {
		if err := settle(ctx, s, store.Done, d); err != nil {
			return fmt.Errorf("Settle with room again: %w", err)
		}
		delete(stored, d.ID)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if _, err := checkStore(d.dir); err != nil {
		return err
	}
	if s, err = openStore(d.dir, config); err != nil {
		return err
	}
	defer s.Close()
	all, err := fetch(ctx, s, 1<<20)
	if err != nil {
		return err
	}
	for _, d := range all {
		if !stored[d.ID] {
			return fmt.Errorf("delivery %s is in the store, although its Put failed or it was settled", d.ID)
		}
		delete(stored, d.ID)
	}
	if len(stored) > 0 {
		return fmt.Errorf("%d deliveries are lost, want 0", len(stored))
	}
	fmt.Printf("%d deliveries kept; the first failure: %v\n", len(all), first)
	return nil
}

// closeFull closes a store on a full disk. No stored delivery is lost.
func closeFull(d disk) error {
	ctx := context.Background()
	config := filequeue.Config{Logger: slog.New(slog.DiscardHandler)}
	s, err := openStore(d.dir, config)
	if err != nil {
		return err
	}
	stored := 0
	for ; stored < 10000; stored++ {
		if stored == 1 { // now the store has its reserve
			if err := d.fill(); err != nil {
				return err
			}
		}
		if _, err = put(ctx, s, webhook.Delivery{Destination: "a", ID: fmt.Sprint(stored), Body: make([]byte, 40_000), Due: time.Now()}); err != nil {
			break
		}
	}
	if err == nil || stored == 0 {
		return fmt.Errorf("%d puts of 40,000 bytes succeed on a full disk, the next one = %v; want some to succeed, and then an error", stored, err)
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("Close on a full disk: %w", err)
	}
	if err := d.free(); err != nil {
		return err
	}
	if r, err := checkStore(d.dir); err != nil || r.Waiting != stored {
		return fmt.Errorf("Check = %+v, %w; want %d waiting", r, err, stored)
	}
	return nil
}
