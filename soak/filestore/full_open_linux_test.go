package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// openFull opens a store on a full disk: first one whose process was killed, and then the same one
// after it was closed. The store hands out its deliveries, and Put returns an error. Once there is
// room, the store works again, and has lost nothing.
func openFull(d disk) error {
	said := newKillLedger()
	if err := said.run(d.dir, 0, d.seed, 3000); err != nil {
		return err
	}
	if err := serveFull(d, said); err != nil {
		return fmt.Errorf("store of a killed process: %w", err)
	}
	// serveFull has closed the store.
	if err := serveFull(d, newKillLedger()); err != nil {
		return fmt.Errorf("closed store: %w", err)
	}
	return nil
}

// serveFull uses the store in d while the disk is full, and afterwards. said has the deliveries
// that must be in it.
func serveFull(d disk, said *killLedger) error {
	ctx := context.Background()
	config := filequeue.Config{Logger: slog.New(slog.DiscardHandler)}
	if err := d.fill(); err != nil {
		return err
	}
	s, err := openStore(d.dir, config)
	if err != nil {
		return fmt.Errorf("Open without room: %w", err)
	}
	defer func() { s.Close() }()
	n, began := 0, time.Now()
	more := func() error {
		n++
		_, err := put(ctx, s, webhook.Delivery{Destination: "new", ID: fmt.Sprint(began.UnixNano(), "-", n), Body: make([]byte, 100_000), Due: time.Now()})
		return err
	}
	for err = nil; err == nil && n < 1000; {
		err = more()
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("Put number %d without room = %v, want ENOSPC", n, err)
	}
	counts, err := s.Count(ctx)
	if err != nil {
		return err
	}
	there, fitted := map[string]bool{}, n-1
	var ds []webhook.Delivery
	for len(ds) < counts.Waiting {
		some, err := fetch(ctx, s, counts.Waiting-len(ds))
		if ds = append(ds, some...); err != nil || len(some) == 0 {
			return fmt.Errorf("Fetch without room = %d, want %d: %w", len(ds), counts.Waiting, err)
		}
	}
	for _, d := range ds {
		there[d.ID] = true
	}
	if lost := said.lost(there); lost > 0 {
		return fmt.Errorf("without room %d of %d stored deliveries are not handed out, want 0", lost, len(said.stored))
	}
	if len(there) != len(ds) || len(ds) < fitted {
		return fmt.Errorf("%d deliveries are handed out, %d different ones, want equal numbers, at least %d", len(ds), len(there), fitted)
	}
	// Some settlements may fit on the disk. Repeat the others once there is room.
	left := ds[:0]
	for _, d := range ds[:len(ds)/2] {
		if settle(ctx, s, store.Done, d) != nil {
			left = append(left, d)
		}
	}
	if err := d.free(); err != nil {
		return err
	}
	for _, d := range left {
		if err := settle(ctx, s, store.Done, d); err != nil {
			return fmt.Errorf("Settle with room again: %w", err)
		}
	}
	if err := onceThereIsRoom(more); err != nil {
		return fmt.Errorf("Put with room again: %w", err)
	}
	want := counts.Waiting - counts.Waiting/2 + 1
	if counts, err = s.Count(ctx); err != nil || counts.Waiting != want {
		return fmt.Errorf("Count = %+v, %w; want %d waiting", counts, err, want)
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
	if counts, err = s.Count(ctx); err != nil || counts.Waiting != want {
		return fmt.Errorf("Count after another Open = %+v, %w; want %d waiting", counts, err, want)
	}
	return nil
}
