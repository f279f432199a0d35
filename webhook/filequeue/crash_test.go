package filequeue_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The disk crashes at a random operation, with or without a loss of power. After the restart the
// store has all deliveries that were stored and none that were done. A call that failed took effect
// completely or not at all.
func TestCrash(t *testing.T) {
	for seed := range soakenv.Seeds(t, 30) {
		synctest.Test(t, func(t *testing.T) { testCrash(t, seed) })
	}
}

func testCrash(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	l.keeps = seed%2 == 0
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
			t.Fatalf("life %d: Open = %v, want nil or ErrCrashed", life, err)
		}
		loss := simdisk.Loss(rnd.IntN(2))
		if rnd.IntN(4) == 0 { // another crash while the store opens
			d = d.Reboot(loss)
			d.CrashAt(1 + rnd.IntN(60))
			if s, err := filequeue.OpenOn(d, l.config(filequeue.Config{})); err == nil {
				s.Close()
			}
		}
		d = d.Reboot(loss)
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatalf("life %d: Open after a crash = %v, want nil", life, err)
		}
		l.check()
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Operations of the disk fail at random, also during Open. The result of each call says truly what
// the store did. The store works again once the disk does, and a loss of power loses nothing.
func TestFailingDisk(t *testing.T) {
	for seed := range soakenv.Seeds(t, 30) {
		synctest.Test(t, func(t *testing.T) { testFailingDisk(t, seed) })
	}
}

func testFailingDisk(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	d := smallDisk(seed)
	l := newLedger(t, rnd)
	l.keeps = seed%2 == 0
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
		time.Sleep(2 * time.Second) // the store tries again by itself meanwhile
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

// Open makes durable all that it finds, even if the previous process ended between a write and its
// sync, or if the sync failed. So if Put answers that a delivery is a duplicate, the first copy
// survives a loss of power.
func TestOpenMakesWhatItFindsDurable(t *testing.T) {
	for _, syncFails := range []bool{false, true} {
		for seed := range uint64(8) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				d := smallDisk(seed)
				put := func(s store.Store, id string) (bool, error) {
					out := make([]store.Result, 1)
					at := s.Now()
					err := s.Put(ctx, []store.Put{{Delivery: store.Delivery{Destination: "a", ID: id, Type: "track", Body: bodyOf(id, 2000), Accepted: at, Due: at}}}, out)
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
					t.Fatal("Put with a failed sync = nil, want an error")
				}
				s.Close()
				d = d.Reboot(simdisk.Process)
				s = open()
				if stored, err := put(s, "second"); err != nil || stored {
					t.Fatalf("second Put of a delivery: stored %v, %v; want a duplicate", stored, err)
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

// Whichever disk operation of Open fails, Open either works or returns its error, and the next Open
// works.
func TestOpenOnFailingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, rand.New(rand.NewPCG(1, 5)))
		defer l.close()
		d := smallDisk(1)
		for n := 1; ; n++ {
			first := d.Ops()
			var failed atomic.Bool
			d.OnOp(func(op simdisk.Op) error {
				if op.N == first+n {
					failed.Store(true)
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
				t.Fatalf("Open with a failure of operation %d = %v, want nil or EIO", n, err)
			}
			if err := l.open(d, filequeue.Config{}); err != nil {
				t.Fatalf("Open after a failure of operation %d = %v, want nil", n, err)
			}
			l.check()
			for range 5 {
				l.step()
			}
			if n%2 == 0 { // otherwise the next Open finds a crashed store
				l.s.Close()
			} else {
				d.Crash()
				l.s.Close()
			}
			d = d.Reboot(simdisk.Power)
			if !failed.Load() && n > 40 {
				return
			}
		}
	})
}

// If the disk cannot read one delivery, the store leaves out that one for a while, and still hands
// out the others.
func TestUnreadableDeliveryHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := smallDisk(1)
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ps := make([]store.Put, 3)
		for i := range ps {
			ps[i].Delivery = store.Delivery{Destination: "crm", ID: fmt.Sprint(i), Due: s.Now().Add(time.Duration(i) * time.Microsecond), Body: make([]byte, 5000)}
		}
		if err := s.Put(t.Context(), ps, make([]store.Result, len(ps))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		var bad atomic.Int64
		d.OnOp(func(op simdisk.Op) error {
			if op.Kind != simdisk.Read {
				return nil
			}
			if bad.CompareAndSwap(0, op.Off); op.Off == bad.Load() {
				return syscall.EIO
			}
			return nil
		})
		fetch := func(want ...string) {
			t.Helper()
			var got []string
			ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "crm", Max: 1}}, 1<<20, nil)
			for _, d := range ds {
				got = append(got, d.ID)
			}
			if !slices.Equal(got, want) || (err != nil) != (want == nil) {
				t.Fatalf("Fetch = %q, %v; want %q, or an error if none are wanted", got, err, want)
			}
		}
		fetch() // returns the error: all of the disk may be unreadable
		fetch("1")
		fetch("2")
		time.Sleep(2 * time.Minute)
		fetch()
		d.OnOp(nil)
		time.Sleep(2 * time.Minute)
		select {
		case <-s.Changed():
		default:
			t.Error("Changed has no value, want one: the store tries the delivery again")
		}
		fetch("0")
	})
}
