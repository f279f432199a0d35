package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// A store that has filled the disk refuses puts, but it still opens, and still fetches and settles
// its deliveries, for which a history gives way. Once they are done, it accepts puts again.
func TestFullDiskRefusesOnlyPuts(t *testing.T) {
	for _, size := range []int64{4 << 20, 16 << 20} {
		for _, reopen := range []bool{false, true} {
			for _, history := range []time.Duration{0, 24 * time.Hour} {
				t.Run(fmt.Sprintf("size=%d/reopen=%t/history=%s", size, reopen, history), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testFullDisk(t, size, reopen, history) })
				})
			}
		}
	}
}

func testFullDisk(t *testing.T, size int64, reopen bool, history time.Duration) {
	d := simdisk.New(1)
	d.SetCapacity(size)
	l := newLedger(t, rand.New(rand.NewPCG(1, 1)))
	defer l.close()
	open := func() {
		t.Helper()
		if err := l.open(d, filequeue.Config{HistoryAge: history}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	n := 0
	fill := func(most int) (stored int) {
		for stored < most {
			ps := make([]store.Put, 10)
			for i := range ps {
				ps[i].Delivery = store.Delivery{Destination: fmt.Sprint("d", n%10), ID: fmt.Sprint(n), Due: l.s.Now(), Body: make([]byte, 500)}
				n++
			}
			err := l.s.Put(t.Context(), ps, make([]store.Result, len(ps)))
			if errors.Is(err, store.ErrQueueFull) {
				return stored
			}
			if err != nil {
				t.Fatal(err)
			}
			stored += len(ps)
		}
		return stored
	}
	settle := func(verdict store.Verdict, most int) (settled int) {
		t.Helper()
		for settled < most {
			var wants []store.Want
			for i := range 10 {
				wants = append(wants, store.Want{Destination: fmt.Sprint("d", i), Max: 20}, store.Want{Destination: fmt.Sprint("d", i), Max: 20, Retries: true})
			}
			ds, err := l.s.Fetch(t.Context(), wants, 1<<30, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				return settled
			}
			ss := make([]store.Settlement, len(ds))
			for i, d := range ds {
				if verdict == store.Retry {
					d.Tries, d.Expires, d.Due = 1, d.Due.Add(time.Hour), l.s.Now().Add(time.Second)
				}
				ss[i] = store.Settlement{Verdict: verdict, Delivery: d, At: l.s.Now()}
			}
			if n, err := l.s.Settle(t.Context(), ss); n != len(ss) || err != nil {
				t.Fatalf("Settle on a full disk, after %d settled = %d, %v; want %d", settled, n, err, len(ss))
			}
			settled += len(ss)
		}
		return settled
	}
	kept := 0
	if history > 0 {
		for range 4 { // up to a third of the disk
			kept += settle(store.Done, fill(int(size/12/550)))
			time.Sleep(2 * time.Second)
		}
		if n := l.s.Unkept(); n != 0 {
			t.Fatalf("with space on the disk, %d of %d are not kept", n, kept)
		}
	}
	first := fill(math.MaxInt)
	if int64(first+kept)*550 < size/2 {
		t.Errorf("a disk of %d bytes took %d deliveries of 500 bytes, want more than half of its size", size, first)
	}
	if reopen {
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
		d = d.Reboot(simdisk.Power)
		open()
	}
	settle(store.Retry, 500)
	for reopen && slices.Contains(d.Names(), "reserve") { // until the settlements have used it up
		d.SetCapacity(d.Used())
		time.Sleep(2 * time.Second)
		settle(store.Retry, 20)
	}
	if reopen {
		d.Crash()
		l.s.Close()
		d = d.Reboot(simdisk.Process)
		d.SetCapacity(d.Used())
		open()
		time.Sleep(2 * time.Second)
		first -= settle(store.Done, 500)
		d.SetCapacity(size)
	}
	time.Sleep(2 * time.Second)
	if got := settle(store.Done, first); got != first {
		t.Errorf("got %d deliveries done, want %d", got, first)
	}
	synctest.Wait()
	time.Sleep(2 * time.Second)
	if n := l.s.Unkept(); reopen && history > 0 && n == 0 {
		t.Error("the history has not given way to the settlements")
	}
	if again := fill(math.MaxInt); again < first*8/10 && history == 0 {
		t.Errorf("once all %d deliveries were done, the disk took %d more, want at least 80%%", first, again)
	}
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
}

// The log says once that the disk is full, and once that puts are accepted again.
func TestFullDiskIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		var log bytes.Buffer
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		id := 0
		put := func() error {
			id++
			d := store.Delivery{Destination: "crm", ID: fmt.Sprint(id), Due: s.Now(), Body: make([]byte, 500)}
			return s.Put(t.Context(), []store.Put{{Delivery: d}}, make([]store.Result, 1))
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		d.SetCapacity(d.Used())
		for err == nil {
			err = put()
		}
		for range 3 {
			if err := put(); !errors.Is(err, store.ErrQueueFull) {
				t.Errorf("Put on a full disk = %v, want ErrQueueFull", err)
			}
		}
		d.SetCapacity(1 << 30)
		for range 2 {
			time.Sleep(2 * time.Minute)
			if err := put(); err != nil {
				t.Errorf("Put on a disk that has space again = %v", err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"the disk is full or fails", "the store can be written again"} {
			if n := strings.Count(log.String(), text); n != 1 {
				t.Errorf("the log says %d times %q, want once:\n%s", n, text, &log)
			}
		}
	})
}

// A store that opens on a full disk appends to its latest segment, and the next Open finds the
// settlements there. If a commit has failed, the store needs a new segment, and works again as soon
// as it can complete one.
func TestSettlementsAfterOpenAreFound(t *testing.T) {
	full := func(op simdisk.Op) error {
		if op.Kind == simdisk.Create {
			return syscall.ENOSPC
		}
		return nil
	}
	t.Run("the disk is full", func(t *testing.T) {
		testLatestSegment(t, func(d *simdisk.Disk) {
			d.Remove("reserve")
			d.OnOp(full)
		}, func(_ *simdisk.Disk, settle func() error) {
			if err := settle(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a new segment can be neither completed nor removed", func(t *testing.T) {
		testLatestSegment(t, func(d *simdisk.Disk) {}, func(d *simdisk.Disk, settle func() error) {
			d.OnOp(func(op simdisk.Op) error {
				if op.Kind == simdisk.Sync {
					return syscall.EIO
				}
				return nil
			})
			if err := settle(); err == nil {
				t.Error("Settle = nil, want an error: the sync fails")
			}
			// The first new segment is a new file, the second one is the reserve.
			for _, fault := range []func(simdisk.Op) error{func(simdisk.Op) error { return nil }, full} {
				var renames atomic.Int64
				d.OnOp(func(op simdisk.Op) error {
					if op.Kind == simdisk.SyncNames || op.Kind == simdisk.Rename && renames.Add(1) > 1 {
						return syscall.EIO
					}
					return fault(op)
				})
				if err := settle(); err == nil {
					t.Error("Settle = nil, want an error: the new segment is not durable")
				}
			}
			d.OnOp(nil)
			if err := settle(); err != nil {
				t.Error(err)
			}
		})
	})
}

// testLatestSegment opens a store in which one delivery waits. It calls before ahead of Open, and
// work after Open. work gets a function that settles the delivery.
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
		put := []store.Put{{Delivery: store.Delivery{Destination: "crm", ID: "1", Due: s.Now(), Body: make([]byte, 500)}}}
		if err := s.Put(t.Context(), put, make([]store.Result, 1)); err != nil {
			t.Fatal(err)
		}
		d.Crash()
		s.Close()
		d = d.Reboot(simdisk.Process)
		before(d)
		s = open()
		synctest.Wait()
		ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "crm", Max: 1}}, 1<<20, nil)
		if err != nil || len(ds) != 1 {
			t.Fatalf("Fetch = %d, %v; want 1", len(ds), err)
		}
		work(d, func() error {
			_, err := s.Settle(t.Context(), []store.Settlement{{Delivery: ds[0], Verdict: store.Done}})
			return err
		})
		synctest.Wait()
		d.Crash()
		s.Close()
		d = d.Reboot(simdisk.Process)
		s = open()
		defer s.Close()
		if c, err := s.Count(t.Context()); err != nil || c.Waiting != 0 {
			t.Errorf("after a crash %d deliveries wait, %v; want 0, as the one was settled", c.Waiting, err)
		}
	})
}

// The error of a Put says whether the bound is reached or the disk is full: one of them is a setting.
func TestPutBeyondMaxBytesNamesTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := filequeue.OpenOn(simdisk.New(1), filequeue.Config{Logger: quiet, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for n := 0; err == nil; n++ {
			p := store.Put{Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(n), Due: s.Now(), Body: make([]byte, 100<<10)}}
			err = s.Put(t.Context(), []store.Put{p}, make([]store.Result, 1))
		}
		if !errors.Is(err, store.ErrQueueFull) || !strings.Contains(err.Error(), "MaxBytes is reached") {
			t.Errorf("Put = %v, want ErrQueueFull that names the bound", err)
		}
	})
}

// The ids that the dedup window remembers do not count for MaxBytes.
func TestRememberedPutsDoNotFillStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		d.SetCapacity(8 << 20) // so that segments are short, and are removed during the test
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet, MaxBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		const each, rounds = 50, 200 // 160,000 bytes of ids
		for round := range rounds {
			ps, out, ss := make([]store.Put, each), make([]store.Result, each), make([]store.Settlement, each)
			for i := range ps {
				ps[i] = store.Put{Keep: true, Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(round, " ", i), Due: s.Now(), Body: make([]byte, 300)}}
			}
			if err := s.Put(t.Context(), ps, out); err != nil {
				t.Fatalf("Put after %d deliveries were done = %v, want nil", round*each, err)
			}
			for i := range ss {
				ss[i] = store.Settlement{Verdict: store.Done, Delivery: ps[i].Delivery}
				ss[i].Delivery.Claim = out[i].Claim
			}
			if n, err := s.Settle(t.Context(), ss); n != each || err != nil {
				t.Fatalf("Settle = %d, %v; want %d", n, err, each)
			}
			synctest.Wait()
		}
		out := make([]store.Result, 1)
		if err := s.Put(t.Context(), []store.Put{{Delivery: store.Delivery{Destination: "a", ID: "0 0", Due: s.Now()}}}, out); err != nil || out[0].Stored {
			t.Errorf("second Put of the first delivery: stored %v, %v; want a duplicate", out[0].Stored, err)
		}
	})
}

// Retry stores dead letters again. A full disk refuses that, and keeps them.
func TestFullDiskRefusesRetryOfDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		d.SetCapacity(4 << 20)
		l := newLedger(t, rand.New(rand.NewPCG(1, 1)))
		defer l.close()
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatal(err)
		}
		put := func(id string) error {
			p := store.Put{Delivery: store.Delivery{Destination: "d", ID: id, Due: l.s.Now(), Body: make([]byte, 5000)}}
			return l.s.Put(t.Context(), []store.Put{p}, make([]store.Result, 1))
		}
		if err := put("dead"); err != nil {
			t.Fatal(err)
		}
		ds, err := l.s.Fetch(t.Context(), []store.Want{{Destination: "d", Max: 1}}, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.s.Settle(t.Context(), []store.Settlement{{Verdict: store.Bury, Delivery: ds[0], At: l.s.Now()}}); err != nil {
			t.Fatal(err)
		}
		for i := 0; err == nil; i++ {
			err = put(fmt.Sprint(i))
		}
		for e, err := range store.Records(t.Context(), l.s, store.Query{States: []store.State{store.StateDead}}) {
			if err != nil {
				t.Fatal(err)
			}
			if n, err := l.s.Revive(t.Context(), e.Ref()); n != 0 || !errors.Is(err, store.ErrQueueFull) {
				t.Errorf("Revive on a full disk = %d, %v, want 0, ErrQueueFull", n, err)
			}
		}
		if c, err := l.s.Count(t.Context()); c.Dead != 1 || err != nil {
			t.Errorf("Count = %+v, %v, want the dead letter", c, err)
		}
	})
}

// When something else has filled the disk, and the reserve is used up, tables of the history make room
// for a new reserve and for puts.
func TestHistoryMakesRoomOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simdisk.New(1)
		d.SetCapacity(4 << 20)
		s, err := filequeue.OpenOn(d, filequeue.Config{HistoryAge: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n := 0
		put := func(count int) error {
			ps := make([]store.Put, count)
			for i := range ps {
				ps[i].Delivery = store.Delivery{Destination: "d", ID: fmt.Sprint(n), Due: s.Now(), Body: make([]byte, 500)}
				n++
			}
			return s.Put(t.Context(), ps, make([]store.Result, len(ps)))
		}
		settle := func(verdict store.Verdict) {
			ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "d", Max: 100}, {Destination: "d", Max: 100, Retries: true}}, 1<<30, nil)
			if err != nil {
				t.Fatal(err)
			}
			ss := make([]store.Settlement, len(ds))
			for i, d := range ds {
				if verdict == store.Retry {
					d.Tries, d.Expires, d.Due = 1, d.Due.Add(time.Hour), s.Now().Add(time.Second)
				}
				ss[i] = store.Settlement{Verdict: verdict, Delivery: d, At: s.Now()}
			}
			if _, err := s.Settle(t.Context(), ss); err != nil {
				t.Fatal(err)
			}
		}
		delivered := func() int {
			synctest.Wait() // what the janitor removes is counted as not kept a moment before it is gone
			c, err := s.Count(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c.Delivered
		}
		for range 40 {
			if err := put(100); err != nil {
				t.Fatal(err)
			}
			settle(store.Done)
			time.Sleep(time.Second)
		}
		if err := put(100); err != nil {
			t.Fatal(err)
		}
		for {
			d.SetCapacity(d.Used())
			if settle(store.Retry); !slices.Contains(d.Names(), "reserve") {
				break
			}
			time.Sleep(2 * time.Second)
		}
		for range 20 {
			time.Sleep(2 * time.Second)
			settle(store.Retry) // the writer makes a reserve when it commits
		}
		if err := put(10); err != nil {
			t.Errorf("with %d kept deliveries: %v", delivered(), err)
		}
		if now := delivered(); now == 4000 || s.Unkept() != int64(4000-now) {
			t.Errorf("the history has %d of 4000 deliveries; %d are counted as not kept", now, s.Unkept())
		}
	})
}
