package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
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

// A rig is a store on a simulated disk on which segments have 64 KB.
type rig struct {
	*testing.T
	d *simdisk.Disk
	s *filequeue.Store
	n int // how many deliveries were put
}

func newRig(t *testing.T, c filequeue.Config) *rig {
	r := &rig{T: t, d: simdisk.New(1)}
	r.d.SetCapacity(2 << 20)
	r.open(c)
	return r
}

func (r *rig) open(c filequeue.Config) {
	r.Helper()
	c.Logger = quiet
	s, err := filequeue.OpenOn(r.d, c)
	if err != nil {
		r.Fatal(err)
	}
	r.s = s
}

// put stores a delivery with a body of its own.
func (r *rig) put(destination string, length int, keep bool) store.Delivery {
	r.Helper()
	r.n++
	p := store.Put{Keep: keep, Delivery: store.Delivery{Destination: destination, User: destination, ID: fmt.Sprint(r.n), Due: r.s.Now()}}
	p.Body = bodyOf(fmt.Sprint(destination, r.n), length)
	out := make([]store.Result, 1)
	if err := r.s.Put(r.Context(), []store.Put{p}, out); err != nil {
		r.Fatalf("Put = %v, want nil", err)
	}
	p.Claim = out[0].Claim
	return p.Delivery
}

func (r *rig) settle(verdict store.Verdict, d store.Delivery) {
	r.Helper()
	if n, err := r.s.Settle(r.Context(), []store.Settlement{{Verdict: verdict, Delivery: d, Reason: store.ReasonExpired, At: r.s.Now()}}); n != 1 || err != nil {
		r.Fatalf("Settle = %d, %v; want 1", n, err)
	}
}

// segments returns the names of the segments, the oldest first.
func (r *rig) segments() []string {
	return slices.DeleteFunc(r.d.Names(), func(name string) bool { return !strings.HasSuffix(name, ".log") })
}

// fill calls the function do until the store has begun another segment.
func (r *rig) fill(do func()) {
	for latest := r.latest(); r.latest() == latest; {
		do()
	}
}

func (r *rig) latest() string {
	all := r.segments()
	return all[len(all)-1]
}

// unreadable makes reads of the bytes of a body fail, as if they were in a bad sector. It returns how
// many such reads there were.
func (r *rig) unreadable(body []byte) *atomic.Int32 {
	r.Helper()
	var reads atomic.Int32
	for _, name := range r.segments() {
		if at := int64(bytes.Index(r.d.ReadFile(name), body)); at >= 0 {
			r.d.OnOp(func(op simdisk.Op) error {
				if op.Kind == simdisk.Read && op.Name == name && op.Off <= at && at < op.Off+int64(op.Len) {
					reads.Add(1)
					return syscall.EIO
				}
				return nil
			})
			return &reads
		}
	}
	r.Fatal("no segment has the body")
	return nil
}

// A delivery is claimed while a merge copies it to another segment, and so stays where it was. Once
// it is done, it does not come back after a restart, whatever the order in which the segments are
// removed.
func TestDeliveryClaimedDuringMergeDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		done := func() { r.settle(store.Done, r.put("other", 500, true)) }
		const length = 3000
		r.put("slow", length, false)
		var copying, fetched atomic.Bool
		var claimed []store.Delivery
		r.d.OnOp(func(op simdisk.Op) error {
			switch {
			case op.Kind == simdisk.Write && length < op.Len && op.Len < length+500:
				copying.Store(true)
			case op.Kind == simdisk.Sync && copying.Load() && fetched.CompareAndSwap(false, true):
				var err error
				if claimed, err = r.s.Fetch(t.Context(), []store.Want{{Destination: "slow", Max: 1}}, 1<<20, nil); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		r.fill(done) // the first segment is sealed, and the janitor merges it
		synctest.Wait()
		r.d.OnOp(nil)
		if len(claimed) != 1 {
			t.Fatalf("the merge wrote %v, and %d deliveries were claimed meanwhile; want 1", copying.Load(), len(claimed))
		}
		waiting := 0
		r.fill(func() { r.put("waits", 500, false); waiting++ }) // the segment with the copy stays
		r.settle(store.Done, claimed[0])
		r.fill(done) // the segment that says so is removed
		time.Sleep(5 * time.Second)
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(filequeue.Config{})
		defer r.s.Close()
		if c, err := r.s.Count(t.Context()); c.Waiting != waiting || err != nil {
			t.Errorf("after a restart %d deliveries wait, %v; want %d", c.Waiting, err, waiting)
		}
	})
}

// While the disk cannot read one delivery, the store gives the space of all other segments back.
func TestUnreadableDeliveryKeepsNoOtherSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer func() { r.s.Close() }()
		r.unreadable(r.put("slow", 600, false).Body)
		first := r.latest()
		for range 60 { // with twice what the disk has space for
			for range 100 {
				r.settle(store.Done, r.put("other", 500, true))
			}
			time.Sleep(5 * time.Second)
		}
		all := r.segments()
		if all[0] != first || len(all) > 5 {
			t.Errorf("the store has the segments %v; want the first, which cannot be read, and few others", all)
		}
		r.d.OnOp(nil)
		time.Sleep(2 * time.Minute)
		if r.segments()[0] == first {
			t.Errorf("the store has the segments %v after the disk can read them again; want them merged", r.segments())
		}
		if ds, err := r.s.Fetch(t.Context(), []store.Want{{Destination: "slow", Max: 1}}, 1<<20, nil); len(ds) != 1 || err != nil {
			t.Errorf("Fetch = %d, %v; want the delivery that could not be read before", len(ds), err)
		}
	})
}

// Lists leave out a dead letter that the disk cannot read, and have all others. If it can read none,
// a list yields an error.
func TestUnreadableDeadLetterHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer func() { r.s.Close() }()
		var all []store.Delivery
		for range 3 {
			d := r.put("crm", 5000, true)
			r.settle(store.Bury, d)
			all = append(all, d)
		}
		list := func() (ids []string, err error) {
			for d, derr := range store.Records(t.Context(), r.s, store.Query{States: []store.State{store.StateDead}}) {
				if err = derr; err == nil {
					ids = append(ids, d.ID)
				}
			}
			return ids, err
		}
		r.unreadable(all[1].Body)
		if ids, err := list(); !slices.Equal(ids, []string{"3", "1"}) || err != nil {
			t.Errorf("List yields %q, %v; want those that can be read, 3 and 1", ids, err)
		}
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Read {
				return syscall.EIO
			}
			return nil
		})
		if ids, err := list(); len(ids) != 0 || !errors.Is(err, syscall.EIO) {
			t.Errorf("Dead yields %q, %v; want the error of the disk", ids, err)
		}
		r.d.OnOp(nil)
		if ids, err := list(); len(ids) != 3 || err != nil {
			t.Errorf("Dead yields %q, %v; want all", ids, err)
		}
	})
}

// Erase returns an error if the disk cannot read a delivery that may be the user's. It erases a
// damaged one.
func TestEraseOfUnreadableDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer func() { r.s.Close() }()
		body := r.put("ann", 600, false).Body
		for range 2 { // so that the first segment gets a hint
			r.fill(func() { r.put("waits", 500, false) })
		}
		synctest.Wait()
		r.unreadable(body)
		if erased, _, err := r.s.Erase(t.Context(), "ann"); !errors.Is(err, syscall.EIO) {
			t.Errorf("Erase of what cannot be read = %d, %v; want the error of the disk", erased, err)
		}
		r.d.OnOp(nil)
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		flip(t, r.d, string(body))
		r.open(filequeue.Config{})
		if erased, _, err := r.s.Erase(t.Context(), "ann"); erased != 1 || err != nil {
			t.Errorf("Erase of a damaged delivery = %d, %v; want 1", erased, err)
		}
		for _, name := range r.segments() {
			if bytes.Contains(r.d.ReadFile(name), body[:100]) {
				t.Errorf("%s has the body of the erased delivery", name)
			}
		}
	})
}

// A failed sync of Erase does not hide that the disk has lost a commit of Put.
func TestFailedSyncOfEraseLosesNoPut(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, filequeue.Config{})
			r.d = simdisk.New(seed)
			r.s.Close()
			r.open(filequeue.Config{})
			r.settle(store.Done, r.put("ann", 500, true))
			erase, put := make(chan struct{}), make(chan struct{})
			var step atomic.Int32
			r.d.OnOp(func(op simdisk.Op) error {
				switch {
				case op.Kind == simdisk.Write && step.CompareAndSwap(0, 1): // the zeros of Erase
					<-erase
				case op.Kind == simdisk.Sync && step.CompareAndSwap(1, 2): // the commit of Put
					<-put
				case op.Kind == simdisk.Sync && step.CompareAndSwap(2, 3):
					return syscall.EIO
				}
				return nil
			})
			erased := make(chan error, 1)
			go func() {
				_, _, err := r.s.Erase(t.Context(), "ann")
				erased <- err
			}()
			synctest.Wait()
			stored := make(chan error, 1)
			go func() {
				d := store.Delivery{Destination: "crm", ID: "last", Due: r.s.Now(), Body: make([]byte, 500)}
				stored <- r.s.Put(t.Context(), []store.Put{{Delivery: d}}, make([]store.Result, 1))
			}()
			synctest.Wait()
			close(erase)
			synctest.Wait()
			close(put)
			if err := <-erased; !errors.Is(err, syscall.EIO) {
				t.Errorf("Erase with a failed sync = %v, want its error", err)
			}
			want := 0
			if err := <-stored; err == nil {
				want = 1
			}
			r.d.OnOp(nil)
			d := r.d.Reboot(simdisk.Power)
			r.s.Close()
			r.d = d
			r.open(filequeue.Config{})
			defer r.s.Close()
			if c, err := r.s.Count(t.Context()); c.Waiting < want || err != nil {
				t.Errorf("seed %d: after a loss of power %d deliveries wait, %v; Put had stored %d", seed, c.Waiting, err, want)
			}
		})
	}
}

// The janitor reads a segment at most once a minute while the disk cannot read a part of it.
func TestUnreadableSegmentIsReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer func() { r.s.Close() }()
		reads := r.unreadable(r.put("slow", 600, false).Body)
		for range 2 {
			r.fill(func() { r.put("waits", 500, false) })
		}
		time.Sleep(10*time.Minute - time.Second)
		if n := reads.Load(); n != 10 {
			t.Errorf("the janitor has tried to read the unreadable part %d times in ten minutes, want 10 times", n)
		}
	})
}

// While the commit of a settlement takes long, the delivery counts as claimed. No list is without it.
func TestDeliveryIsClaimedUntilItsSettlementIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		defer func() { r.s.Close() }()
		d := r.put("crm", 500, true)
		d.Due, d.Expires, d.Tries = d.Due.Add(time.Second), d.Due.Add(time.Hour), 1
		release := make(chan struct{})
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Sync {
				<-release
			}
			return nil
		})
		settled := make(chan error, 1)
		go func() {
			_, err := r.s.Settle(t.Context(), []store.Settlement{{Verdict: store.Retry, Delivery: d}})
			settled <- err
		}()
		check := func(when string, claimed int) {
			t.Helper()
			synctest.Wait()
			if c, err := r.s.Count(t.Context()); c.Waiting != 1 || c.Claimed != claimed || err != nil {
				t.Errorf("%s: Count = %+v, %v; want 1 waiting, %d claimed", when, c, err, claimed)
			}
			n := 0
			for range store.Records(t.Context(), r.s, store.Query{}) {
				n++
			}
			if n != 1 {
				t.Errorf("%s: List yields %d deliveries, want 1", when, n)
			}
		}
		check("during the commit", 1)
		close(release)
		if err := <-settled; err != nil {
			t.Error(err)
		}
		check("after the commit", 0)
	})
}

// With the largest DedupMax, the store still recognises a delivery after a restart.
func TestLargestDedupMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := filequeue.Config{DedupMax: math.MaxInt}
		r := newRig(t, c)
		d := r.put("crm", 500, false)
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(c)
		defer r.s.Close()
		out := make([]store.Result, 1)
		if err := r.s.Put(t.Context(), []store.Put{{Delivery: d}}, out); err != nil || out[0].Stored {
			t.Errorf("second Put of a delivery: stored %v, %v; want a duplicate", out[0].Stored, err)
		}
	})
}

// With HistoryAge zero, Open removes the history that an earlier HistoryAge has kept.
func TestNoHistoryAgeRemovesHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{HistoryAge: time.Hour})
		r.settle(store.Done, r.put("crm", 500, true))
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(filequeue.Config{})
		defer r.s.Close()
		time.Sleep(time.Second)
		if c, err := r.s.Count(t.Context()); c.Delivered != 0 || err != nil {
			t.Errorf("Count = %+v, %v; want no delivered deliveries", c, err)
		}
	})
}

// A Change that fails at its second page has changed the deliveries of the first one. Changed says so,
// or nobody would know that they are due.
func TestFailedChangeIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		ps := make([]store.Put, 300)
		for i := range ps {
			ps[i].Delivery = store.Delivery{Destination: "crm", ID: fmt.Sprint(i), Body: []byte("{}"), Due: r.s.Now().Add(time.Hour)}
		}
		if err := r.s.Put(t.Context(), ps, make([]store.Result, len(ps))); err != nil {
			t.Fatal(err)
		}
		refs := r.refs()
		var wrote atomic.Bool
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Read && wrote.Load() {
				return syscall.EIO
			}
			wrote.Store(wrote.Load() || op.Kind == simdisk.Write)
			return nil
		})
		n, _, err := r.s.Hasten(t.Context(), refs...)
		if n == 0 || n == len(ps) || err == nil {
			t.Fatalf("Hasten = %d, %v; want some changed, and an error", n, err)
		}
		select {
		case <-r.s.Changed():
		default:
			t.Errorf("%d deliveries are due now, and Changed has no value", n)
		}
		r.d.OnOp(nil)
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Disk space that cannot be freed is one warning an hour, and a failing maintenance step until the
// disk works again.
func TestFailingMaintenanceIsWarned(t *testing.T) {
	for _, kind := range []simdisk.Kind{simdisk.Remove, simdisk.Read} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				r := &rig{T: t, d: simdisk.New(1)}
				r.d.SetCapacity(2 << 20)
				s, err := filequeue.OpenOn(r.d, filequeue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				r.s = s
				r.d.OnOp(func(op simdisk.Op) error {
					if op.Kind == kind && strings.HasSuffix(op.Name, ".log") {
						return syscall.EIO
					}
					return nil
				})
				done := func() { r.settle(store.Done, r.put("crm", 500, true)) }
				done()
				for range 2 {
					r.fill(done)
				}
				check := func(warnings int, failing bool) {
					t.Helper()
					synctest.Wait()
					if n := strings.Count(log.String(), "level=WARN"); n != warnings || (len(s.Failing()) > 0) != failing {
						t.Errorf("%d warnings, and Failing() = %v; want %d, and a failing step: %t\n%s", n, s.Failing(), warnings, failing, &log)
					}
				}
				time.Sleep(time.Minute - 2*time.Second)
				check(0, false)
				time.Sleep(time.Minute)
				check(1, true)
				time.Sleep(30 * time.Minute)
				check(1, true)
				r.d.OnOp(nil)
				time.Sleep(2 * time.Minute)
				check(1, false)
			})
		})
	}
}
