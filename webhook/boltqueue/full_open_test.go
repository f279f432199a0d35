//go:build unix

package boltqueue_test

import (
	"bufio"
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
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// openFull opens stores on a disk without room: one whose process was killed, and one
// that was closed. What is in them is handed out, what cannot be stored is an error, and
// once there is room all goes on, with nothing lost.
func openFull(dir string, fill, free func() error) error {
	dir = filepath.Join(dir, "open")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	stored, tried, err := killed(dir)
	if err != nil {
		return err
	}
	if err := serveFull(dir, stored, tried, fill, free); err != nil {
		return fmt.Errorf("of a process that was killed: %w", err)
	}
	// serveFull has closed it.
	if err := serveFull(dir, nil, nil, fill, free); err != nil {
		return fmt.Errorf("of one that was closed: %w", err)
	}
	return os.RemoveAll(dir)
}

// killed runs a process that puts and settles, and kills it. It returns what the process
// said that it had stored, and what it had begun to settle.
func killed(dir string) (stored, tried map[string]bool, err error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, err
	}
	stored, tried = map[string]bool{}, map[string]bool{}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		switch what, id, _ := strings.Cut(lines.Text(), " "); what {
		case "stored":
			stored[id] = true
		case "try":
			tried[id] = true
		}
		if n == 3000 {
			if err := cmd.Process.Kill(); err != nil {
				return nil, nil, err
			}
		}
	}
	cmd.Wait()
	if len(stored) < 100 {
		return nil, nil, fmt.Errorf("the process stored %d deliveries, too few to show anything", len(stored))
	}
	return stored, tried, nil
}

func serveFull(dir string, stored, tried map[string]bool, fill, free func() error) error {
	ctx := context.Background()
	path := filepath.Join(dir, "queue.db")
	config := &boltqueue.Config{CacheBytes: 128 << 10, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if err := fill(); err != nil {
		return err
	}
	q, err := boltqueue.Open(path, config)
	if err != nil {
		return fmt.Errorf("Open without room: %w", err)
	}
	defer func() { q.Close() }()
	n, began := 0, time.Now()
	put := func() error {
		n++
		_, err := q.Put(ctx, webhook.Delivery{Destination: "new", ID: fmt.Sprint(began.UnixNano(), "-", n), Body: make([]byte, 100_000), Due: time.Now()})
		return err
	}
	for err = nil; err == nil && n < 1000; {
		err = put()
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("Put without room, %d times: %v, want ENOSPC", n, err)
	}
	counts, err := q.Count(ctx)
	if err != nil {
		return err
	}
	there, fitted := map[string]bool{}, n-1
	var ds []webhook.Delivery
	for len(ds) < counts.Waiting {
		had := len(ds)
		if ds, _, err = q.Lease(ctx, webhook.LeaseRequest{Max: counts.Waiting - had, Until: time.Now().Add(time.Hour)}, ds); err != nil || len(ds) == had {
			return fmt.Errorf("Lease without room = %d of %d, %w", len(ds), counts.Waiting, err)
		}
	}
	for _, d := range ds {
		there[d.ID] = true
	}
	for id := range stored {
		if !there[id] && !tried[id] {
			return fmt.Errorf("%s of %d is not handed out without room", id, len(stored))
		}
	}
	if len(there) != len(ds) || len(ds) < fitted {
		return fmt.Errorf("%d deliveries are handed out, %d different ones", len(ds), len(there))
	}
	// Some settlements may fit; the others are made again once there is room.
	left := ds[:0]
	for _, d := range ds[:len(ds)/2] {
		if q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: d}) != nil {
			left = append(left, d)
		}
	}
	if err := free(); err != nil {
		return err
	}
	for _, d := range left {
		if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: d}); err != nil {
			return fmt.Errorf("Settle with room again: %w", err)
		}
	}
	if err := put(); err != nil {
		return fmt.Errorf("Put with room again: %w", err)
	}
	want := counts.Waiting - counts.Waiting/2 + 1
	if counts, err = q.Count(ctx); err != nil || counts.Waiting != want {
		return fmt.Errorf("Count = %+v, %w, want %d waiting", counts, err, want)
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
	if counts, err = q.Count(ctx); err != nil || counts.Waiting != want {
		return fmt.Errorf("Count after another Open = %+v, %w, want %d waiting", counts, err, want)
	}
	return q.Check(ctx)
}
