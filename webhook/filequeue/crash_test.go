package filequeue_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// The disk crashes at any operation, with or without a loss of power. Then everything that was stored is
// there, nothing that was done is there, and a call that failed was done completely or not at all.
func TestCrash(t *testing.T) {
	for seed := range soak.Seeds(t, 30) {
		synctest.Test(t, func(t *testing.T) { testCrash(t, seed) })
	}
}

func testCrash(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	defer l.close()
	for life := range 12 {
		d.CrashAt(1 + rnd.IntN(1+rnd.IntN(600)))
		err := l.open(d, filequeue.Config{})
		if err == nil {
			for range 200 {
				if l.step(); d.Crashed() {
					break
				}
			}
			if rnd.IntN(3) == 0 {
				d.CrashAt(0)
			}
			l.s.Close()
		} else if !errors.Is(err, simdisk.ErrCrashed) {
			t.Fatalf("life %d: Open: %v", life, err)
		}
		loss := simdisk.Loss(rnd.IntN(2))
		if rnd.IntN(4) == 0 { // another crash while the store opens
			d = d.Reboot(loss)
			d.CrashAt(1 + rnd.IntN(60))
			if s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet}); err == nil {
				s.Close()
			}
		}
		d = d.Reboot(loss)
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatalf("life %d: Open after a crash: %v", life, err)
		}
		l.check()
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Operations of the disk fail at random, also while the store opens. The result of each call is true. The
// store works again once the disk does, and nothing is missing after a loss of power.
func TestFailingDisk(t *testing.T) {
	for seed := range soak.Seeds(t, 30) {
		synctest.Test(t, func(t *testing.T) { testFailingDisk(t, seed) })
	}
}

func testFailingDisk(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	defer l.close()
	faults := rand.New(rand.NewPCG(seed, 3))
	var mu sync.Mutex // guards faults
	for range 6 {
		rate := 2 + rnd.IntN(40)
		fault := func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Changes() && faults.IntN(rate) == 0 {
				return []error{syscall.EIO, syscall.ENOSPC}[faults.IntN(2)]
			}
			return nil
		}
		if rnd.IntN(2) == 0 {
			d.OnOp(fault)
		}
		err := l.open(d, filequeue.Config{})
		for ; err != nil; err = l.open(d, filequeue.Config{}) {
			if synctest.Wait(); rnd.IntN(4) == 0 {
				d.OnOp(nil)
			}
		}
		d.OnOp(fault)
		for range 60 {
			l.step()
		}
		d.OnOp(nil)
		time.Sleep(2 * time.Second) // until the store tries again by itself
		for range 20 {
			l.step()
		}
		if rnd.IntN(2) == 0 {
			d.Crash()
		}
		l.s.Close()
		d = d.Reboot(simdisk.Loss(rnd.IntN(2)))
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatal(err)
		}
		l.check()
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Everything that Open finds is durable from then on, even if the previous process ended between a write
// and its sync, or the sync failed. So a put that is answered as a duplicate survives a loss of power.
func TestWhatOpenFindsIsDurable(t *testing.T) {
	for _, syncFails := range []bool{false, true} {
		for seed := range uint64(8) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				d := smallDisk(seed)
				put := func(s webhook.Store, id string) (bool, error) {
					out := make([]webhook.Result, 1)
					at := s.Now()
					err := s.Put(ctx, []webhook.Put{{Delivery: webhook.Delivery{Destination: "a", ID: id, Type: "track", Body: bodyOf(id, 2000), Accepted: at, Due: at}}}, out)
					return out[0].Stored, err
				}
				open := func() *filequeue.Store {
					s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s := open()
				if _, err := put(s, "first"); err != nil {
					t.Fatal(err)
				}
				d.OnOp(func(op simdisk.Op) error {
					if op.Kind != simdisk.Sync {
						return nil
					}
					if d.Crash(); syncFails {
						return syscall.EIO
					}
					return nil
				})
				if _, err := put(s, "second"); err == nil {
					t.Fatal("a put returned nil though its sync failed")
				}
				s.Close()
				d = d.Reboot(simdisk.Process)
				s = open()
				if stored, err := put(s, "second"); err != nil || stored {
					t.Fatalf("put again: stored %v, %v; want a duplicate", stored, err)
				}
				d.Crash()
				s.Close()
				d = d.Reboot(simdisk.Power)
				s = open()
				if c, err := s.Count(ctx); err != nil || c.Waiting != 2 {
					t.Errorf("seed %d, sync fails %v: after a loss of power %d wait, %v; want 2", seed, syncFails, c.Waiting, err)
				}
				s.Close()
			})
		}
	}
}

// If any operation of Open fails, Open works or returns an error, and the next Open works.
func TestOpenOnFailingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, rand.New(rand.NewPCG(1, 5)))
		defer l.close()
		d := smallDisk(1)
		for n := 1; ; n++ {
			first := d.Ops()
			failed := false
			d.OnOp(func(op simdisk.Op) error {
				if failed = failed || op.N == first+n; op.N == first+n {
					return syscall.EIO
				}
				return nil
			})
			err := l.open(d, filequeue.Config{})
			synctest.Wait()
			d.OnOp(nil)
			if err == nil {
				l.s.Close()
			} else if !errors.Is(err, syscall.EIO) {
				t.Fatalf("operation %d fails: Open: %v", n, err)
			}
			if err := l.open(d, filequeue.Config{}); err != nil {
				t.Fatalf("Open after operation %d failed: %v", n, err)
			}
			l.check()
			for range 5 {
				l.step()
			}
			if n%2 == 0 { // otherwise the next Open reads what a crash leaves
				l.s.Close()
			} else {
				d.Crash()
				l.s.Close()
			}
			d = d.Reboot(simdisk.Power)
			if !failed && n > 40 {
				return
			}
		}
	})
}

// A place of the disk that cannot be read hides one delivery for a while, and no other one.
func TestUnreadablePlaceHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := smallDisk(1)
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ps := make([]webhook.Put, 3)
		for i := range ps {
			ps[i].Delivery = webhook.Delivery{Destination: "crm", ID: fmt.Sprint(i), Due: s.Now().Add(time.Duration(i) * time.Microsecond), Body: make([]byte, 5000)}
		}
		if err := s.Put(t.Context(), ps, make([]webhook.Result, len(ps))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		var bad int64
		d.OnOp(func(op simdisk.Op) error {
			if bad == 0 && op.Kind == simdisk.Read {
				bad = op.Off
			}
			if op.Kind == simdisk.Read && op.Off == bad {
				return syscall.EIO
			}
			return nil
		})
		fetch := func(want ...string) {
			t.Helper()
			var got []string
			ds, err := s.Fetch(t.Context(), []webhook.Want{{Destination: "crm", Max: 1}}, 1<<20, nil)
			for _, d := range ds {
				got = append(got, d.ID)
			}
			if !slices.Equal(got, want) || (err != nil) != (want == nil) {
				t.Fatalf("Fetch = %q, %v, want %q", got, err, want)
			}
		}
		fetch() // the disk may be all that fails
		fetch("1")
		fetch("2")
		time.Sleep(2 * time.Minute)
		fetch()
		d.OnOp(nil)
		time.Sleep(2 * time.Minute)
		select {
		case <-s.Changed():
		default:
			t.Error("nobody is told that the delivery is tried again")
		}
		fetch("0")
	})
}
