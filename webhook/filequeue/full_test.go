package filequeue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// On a disk that the store itself has filled, only puts are refused. Stored deliveries are fetched, retried,
// buried and done, and the store opens. Then it accepts puts again.
func TestFullDisk(t *testing.T) {
	for _, size := range []int64{4 << 20, 16 << 20} {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d/reopen=%t", size, reopen), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testFullDisk(t, size, reopen) })
			})
		}
	}
}

func testFullDisk(t *testing.T, size int64, reopen bool) {
	d := simdisk.New(1)
	d.SetCapacity(size)
	l := newLedger(t, rand.New(rand.NewPCG(1, 1)))
	defer l.close()
	open := func() {
		t.Helper()
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	n := 0
	fill := func() (stored int) {
		for {
			ps := make([]webhook.Put, 10)
			for i := range ps {
				ps[i].Delivery = webhook.Delivery{Destination: fmt.Sprint("d", n%10), ID: fmt.Sprint(n), Due: l.s.Now(), Body: make([]byte, 500)}
				n++
			}
			err := l.s.Put(t.Context(), ps, make([]webhook.Result, len(ps)))
			if errors.Is(err, webhook.ErrQueueFull) {
				return stored
			}
			if err != nil {
				t.Fatal(err)
			}
			stored += len(ps)
		}
	}
	settle := func(verdict webhook.Verdict, most int) (settled int) {
		t.Helper()
		for settled < most {
			var wants []webhook.Want
			for i := range 10 {
				wants = append(wants, webhook.Want{Destination: fmt.Sprint("d", i), Max: 20}, webhook.Want{Destination: fmt.Sprint("d", i), Max: 20, Retries: true})
			}
			ds, err := l.s.Fetch(t.Context(), wants, 1<<30, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				return settled
			}
			ss := make([]webhook.Settlement, len(ds))
			for i, d := range ds {
				if verdict == webhook.Retry {
					d.Tries, d.Expires, d.Due = 1, d.Due.Add(time.Hour), l.s.Now().Add(time.Second)
				}
				ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d, At: l.s.Now()}
			}
			if n, err := l.s.Settle(t.Context(), ss); n != len(ss) || err != nil {
				t.Fatalf("Settle on a full disk, after %d = %d, %v", settled, n, err)
			}
			settled += len(ss)
		}
		return settled
	}
	first := fill()
	if int64(first)*550 < size/2 {
		t.Errorf("a disk of %d bytes took %d deliveries of 500", size, first)
	}
	if reopen {
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
		d = d.Reboot(simdisk.Power)
		open()
	}
	settle(webhook.Retry, 500)
	for reopen && slices.Contains(d.Names(), "reserve") { // until what is settled has taken it
		d.SetCapacity(d.Used())
		time.Sleep(2 * time.Second)
		settle(webhook.Retry, 20)
	}
	if reopen {
		d.Crash()
		l.s.Close()
		d = d.Reboot(simdisk.Process)
		d.SetCapacity(d.Used())
		open()
		time.Sleep(2 * time.Second)
		first -= settle(webhook.Done, 500)
		d.SetCapacity(size)
	}
	time.Sleep(2 * time.Second)
	if got := settle(webhook.Done, first); got != first {
		t.Errorf("%d of %d are done", got, first)
	}
	synctest.Wait()
	time.Sleep(2 * time.Second)
	if again := fill(); again < first*8/10 {
		t.Errorf("the disk took %d deliveries, and once these were done %d", first, again)
	}
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A store that finds the disk full when it opens appends to its latest segment. The settlements there are
// found again, even if a segment was being made, or a hint file written, that does not know of them.
func TestLatestSegmentGoesOn(t *testing.T) {
	full := func(op simdisk.Op) error {
		if op.Kind == simdisk.Create && op.Name != "hint" {
			return syscall.ENOSPC
		}
		return nil
	}
	t.Run("segment that can be neither finished nor undone", func(t *testing.T) {
		testLatestSegment(t, func(d *simdisk.Disk) {}, func(d *simdisk.Disk, settle func() error) {
			// First a new file becomes a segment, and then the reserve does.
			for _, fault := range []func(simdisk.Op) error{func(simdisk.Op) error { return nil }, full} {
				renames := 0
				d.OnOp(func(op simdisk.Op) error {
					if op.Kind == simdisk.Rename {
						renames++
					}
					if op.Kind == simdisk.SyncNames || op.Kind == simdisk.Rename && renames > 1 {
						return syscall.EIO
					}
					return fault(op)
				})
				if err := settle(); err == nil {
					t.Error("settled, though the segment was not durable")
				}
			}
			d.OnOp(full)
			if err := settle(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("hint that is being written", func(t *testing.T) {
		var hint chan struct{}
		testLatestSegment(t, func(d *simdisk.Disk) {
			hint = make(chan struct{})
			d.Remove("reserve")
			d.OnOp(func(op simdisk.Op) error {
				if op.Kind == simdisk.Rename && op.Name == "hint" {
					<-hint
				}
				return full(op)
			})
		}, func(_ *simdisk.Disk, settle func() error) {
			if err := settle(); err != nil {
				t.Error(err)
			}
			close(hint)
		})
	})
}

// testLatestSegment opens a store in which one delivery waits. It calls before before that, and work with a
// function that settles the delivery.
func testLatestSegment(t *testing.T, before func(*simdisk.Disk), work func(d *simdisk.Disk, settle func() error)) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		open := func() *filequeue.Store {
			s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		put := []webhook.Put{{Delivery: webhook.Delivery{Destination: "crm", ID: "1", Due: s.Now(), Body: make([]byte, 500)}}}
		if err := s.Put(t.Context(), put, make([]webhook.Result, 1)); err != nil {
			t.Fatal(err)
		}
		d.Crash()
		s.Close()
		d = d.Reboot(simdisk.Process)
		before(d)
		s = open()
		synctest.Wait()
		ds, err := s.Fetch(t.Context(), []webhook.Want{{Destination: "crm", Max: 1}}, 1<<20, nil)
		if err != nil || len(ds) != 1 {
			t.Fatalf("fetched %d, %v", len(ds), err)
		}
		work(d, func() error {
			_, err := s.Settle(t.Context(), []webhook.Settlement{{Delivery: ds[0], Verdict: webhook.Done}})
			return err
		})
		synctest.Wait()
		d.Crash()
		s.Close()
		d = d.Reboot(simdisk.Process)
		s = open()
		defer s.Close()
		if c, err := s.Count(t.Context()); err != nil || c.Waiting != 0 {
			t.Errorf("%d wait, %v; want what was settled to stay so", c.Waiting, err)
		}
	})
}
