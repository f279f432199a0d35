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
)

// openFull opens stores on a disk without room: one whose process was killed, and one
// that was closed. What is in them is handed out, what cannot be stored is an error, and
// once there is room all goes on, with nothing lost.
func openFull(d disk) error {
	said := newKillLedger()
	if err := said.run(d.dir, 0, d.seed, 3000); err != nil {
		return err
	}
	if err := serveFull(d, said); err != nil {
		return fmt.Errorf("of a process that was killed: %w", err)
	}
	// serveFull has closed it.
	if err := serveFull(d, newKillLedger()); err != nil {
		return fmt.Errorf("of one that was closed: %w", err)
	}
	return nil
}

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
		return fmt.Errorf("Put without room, %d times: %v, want ENOSPC", n, err)
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
			return fmt.Errorf("Fetch without room = %d of %d, %w", len(ds), counts.Waiting, err)
		}
	}
	for _, d := range ds {
		there[d.ID] = true
	}
	if lost := said.lost(there); lost > 0 {
		return fmt.Errorf("%d of %d are not handed out without room", lost, len(said.stored))
	}
	if len(there) != len(ds) || len(ds) < fitted {
		return fmt.Errorf("%d deliveries are handed out, %d different ones", len(ds), len(there))
	}
	// Some settlements may fit; the others are made again once there is room.
	left := ds[:0]
	for _, d := range ds[:len(ds)/2] {
		if settle(ctx, s, webhook.Done, d) != nil {
			left = append(left, d)
		}
	}
	if err := d.free(); err != nil {
		return err
	}
	for _, d := range left {
		if err := settle(ctx, s, webhook.Done, d); err != nil {
			return fmt.Errorf("Settle with room again: %w", err)
		}
	}
	if err := onceThereIsRoom(more); err != nil {
		return fmt.Errorf("Put with room again: %w", err)
	}
	want := counts.Waiting - counts.Waiting/2 + 1
	if counts, err = s.Count(ctx); err != nil || counts.Waiting != want {
		return fmt.Errorf("Count = %+v, %w, want %d waiting", counts, err, want)
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
		return fmt.Errorf("Count after another Open = %+v, %w, want %d waiting", counts, err, want)
	}
	return nil
}
