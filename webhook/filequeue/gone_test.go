package filequeue_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// reopen opens the store on a copy of the disk, as the process left it.
func (r *rig) reopen() {
	r.Helper()
	r.d = r.d.Reboot(simdisk.Process)
	r.open(filequeue.Config{})
}

func (r *rig) wantWaiting(want int) {
	r.Helper()
	if c, err := r.s.Count(r.Context()); c.Waiting != want || err != nil {
		r.Errorf("%d deliveries wait, %v; want %d", c.Waiting, err, want)
	}
}

// The first commit of a segment fails, the store stops cleanly, and the next process removes the empty
// segment and crashes. The folder still opens, with all deliveries.
func TestOpenWithoutSegmentThatNeverHadCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		r.put("a", 100, false)
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Sync {
				return syscall.EIO
			}
			return nil
		})
		for range 2 { // the second one begins another segment
			put := store.Put{Delivery: store.Delivery{Destination: "a", ID: "failed", Due: r.s.Now()}}
			if err := r.s.Put(t.Context(), []store.Put{put}, make([]store.Result, 1)); err == nil {
				t.Fatal("Put = nil, want an error of the disk")
			}
		}
		r.d.OnOp(nil)
		empty := r.latest()
		r.s.Close()
		r.d.WriteFile(empty, nil) // the commit that failed did not reach the disk
		r.reopen()
		synctest.Wait() // the janitor removes the segment
		r.put("a", 100, false)
		if slices.Contains(r.segments(), empty) {
			t.Fatalf("the store has %v; want %s removed", r.segments(), empty)
		}
		r.d.Crash()
		r.s.Close()
		r.reopen()
		defer r.s.Close()
		r.wantWaiting(2)
	})
}

// A bit flips in the latest segment, perhaps in the record which says that an older segment is not
// needed any more. The removed segment does not keep the store from opening.
func TestRemovedSegmentIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		first := r.latest
		done := func() { r.settle(store.Done, r.put("other", 3000, true)) }
		r.put("waits", 10, false)
		removed := first()
		r.fill(done)
		for range 3 {
			r.put("waits", 10, false)
		}
		synctest.Wait() // the janitor merges the first segment
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(r.segments(), removed) {
			t.Fatalf("the store has %v; want %s removed", r.segments(), removed)
		}
		latest := r.latest()
		b := bytes.TrimRight(r.d.ReadFile(latest), "\x00")
		for at := range len(b) {
			if at%7 != 0 && at%68 > 8 {
				continue
			}
			d := r.d.Reboot(simdisk.Process)
			spoiled := r.d.ReadFile(latest)
			spoiled[at] ^= 1
			d.WriteFile(latest, spoiled)
			var log bytes.Buffer
			s, err := filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatalf("with a bit of byte %d flipped, Open = %v, want nil", at, err)
			}
			s.Close()
			if b[at] != 0 && !strings.Contains(log.String(), "level=ERROR") {
				t.Errorf("with a bit of byte %d flipped, the log has no error, want one:\n%s", at, &log)
			}
		}
	})
}
