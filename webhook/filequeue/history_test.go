package filequeue_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

var keepsAll = filequeue.Config{HistoryAge: store.Unlimited}

// keepSome delivers n deliveries to each of two destinations, which are kept in tables of a few.
func (r *rig) keepSome(n int) {
	r.Helper()
	r.s.KeepInTables(3000)
	for range n {
		for _, destination := range []string{"a", "ab"} {
			r.settle(store.Done, r.put(destination, 500, true))
			synctest.Wait()
		}
	}
}

// kept lists the deliveries of a destination that are kept.
func (r *rig) kept(destination string) (ids []string) {
	r.Helper()
	q := store.Query{Destinations: []string{destination}, States: []store.State{store.StateDelivered}, Oldest: true}
	for d, err := range store.Records(r.Context(), r.s, q) {
		if err != nil || d.Destination != destination || !bytes.Equal(d.Body, bodyOf(destination+d.ID, len(d.Body))) {
			r.Fatalf("List yields %s of %s with the body %.20q, %v", d.ID, d.Destination, d.Body, err)
		}
		if got, err := r.s.Get(r.Context(), d.Ref()); err != nil || got.ID != d.ID {
			r.Fatalf("Get(%v) = %s, %v; want %s", d.Ref(), got.ID, err, d.ID)
		}
		ids = append(ids, d.ID)
	}
	return ids
}

// tables returns the names of the tables of the history.
func (r *rig) tables() (names []string) {
	for _, name := range r.d.Names() {
		if strings.HasPrefix(name, "history-") {
			names = append(names, name)
		}
	}
	return names
}

// The segments that list the tables go, as those with the deliveries do, and no other table is written
// meanwhile. The next Open knows the tables still.
func TestTablesOutliveSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, keepsAll)
		r.keepSome(50)
		for range 20 {
			d := r.put("c", 20_000, true)
			r.settle(store.Bury, d)
			if n, _, err := r.s.Discard(t.Context(), r.refsOf("c")...); n != 1 || err != nil {
				t.Fatalf("Discard = %d, %v; want 1", n, err)
			}
			synctest.Wait()
		}
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(keepsAll)
		defer r.s.Close()
		if a, ab := r.kept("a"), r.kept("ab"); len(a) != 50 || len(ab) != 50 || len(r.tables()) < 10 {
			t.Errorf("%d and %d are kept, in the tables %v; want 50 each in 10 or more", len(a), len(ab), r.tables())
		}
	})
}

// refsOf returns the deliveries of a destination.
func (r *rig) refsOf(destination string) (refs []store.Ref) {
	for d, err := range store.Records(r.Context(), r.s, store.Query{Destinations: []string{destination}}) {
		if err != nil {
			r.Fatal(err)
		}
		refs = append(refs, d.Ref())
	}
	return refs
}

// While no table can be written, deliveries go on. What is then too much to be kept is counted.
func TestHistoryThatFailsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, keepsAll)
		defer func() { r.s.Close() }()
		r.keepSome(20)
		var fails atomic.Bool
		fails.Store(true)
		r.d.OnOp(func(op simdisk.Op) error {
			if fails.Load() && (op.Kind == simdisk.Write || op.Kind == simdisk.Remove) && strings.HasPrefix(op.Name, "history-") {
				return syscall.ENOSPC
			}
			return nil
		})
		check := func(when string, unkept bool) {
			t.Helper()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			c, err := r.s.Count(t.Context())
			if n := int(r.s.Unkept()); err != nil || c.Waiting != 0 || c.Delivered+n != r.n || (n > 0) != unkept || c.Delivered != len(r.kept("a"))+len(r.kept("ab")) {
				t.Errorf("%s: Count = %+v, %v, and %d are not kept; want %d together, and some not kept: %v", when, c, err, n, r.n, unkept)
			}
		}
		r.keepSome(5)
		check("with a few", false)
		for range 50 {
			r.settle(store.Done, r.put("a", 10_000, true))
			synctest.Wait()
		}
		check("with too many", true)
		fails.Store(false)
		time.Sleep(3 * time.Second) // the janitor tries again
		r.keepSome(20)
		check("at the end", true)
		if n := r.s.Unkept(); n > 50 {
			t.Errorf("%d are not kept, want none from before and after the disk failed", n)
		}
		left := r.tables()
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := filequeue.OpenOn(r.d, keepsAll)
		if err != nil {
			t.Fatal(err)
		}
		r.s = s
		synctest.Wait()
		if diff := cmp.Diff(r.tables(), left); diff != "" {
			t.Errorf("tables before a restart, which removes those that nothing needs (-after +before):\n%s", diff)
		}
	})
}

// However much the history may have, it leaves room within MaxBytes for new deliveries.
func TestHistoryLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := filequeue.Config{MaxBytes: 1 << 20, HistoryAge: time.Hour, HistoryBytes: store.Unlimited}
		r := newRig(t, c)
		defer func() { r.s.Close() }()
		for range 300 {
			r.settle(store.Done, r.put("a", 10_000, true))
			synctest.Wait()
		}
		if n := len(r.kept("a")); n < 20 || n > 60 {
			t.Errorf("%d deliveries are kept, want about half of MaxBytes", n)
		}
	})
}

// A damaged block of a table hides no other. It is logged, Check reports it, and Rescue copies the rest.
func TestDamagedTableHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, keepsAll)
		r.keepSome(50)
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		name := r.tables()[2]
		b := r.d.ReadFile(name)
		b[100] ^= 1
		r.d.WriteFile(name, b)
		var log bytes.Buffer
		c := keepsAll
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s, err := filequeue.OpenOn(r.d, c)
		if err != nil {
			t.Fatal(err)
		}
		r.s = s
		listed := len(r.kept("a")) + len(r.kept("ab"))
		if listed < 80 || listed > 99 || strings.Count(log.String(), "a part of the history cannot be read") != 1 {
			t.Errorf("%d of 100 are listed, want a few less than all, and one error in the log:\n%s", listed, &log)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		from, to := t.TempDir(), filepath.Join(t.TempDir(), "rescued")
		for _, name := range r.d.Names() {
			if err := os.WriteFile(filepath.Join(from, name), r.d.ReadFile(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		report, err := filequeue.Rescue(t.Context(), from, to, nil)
		if err != nil || report.Delivered != listed || !strings.Contains(fmt.Sprint(report.Missing), name) {
			t.Errorf("Rescue = %+v, %v; want %d delivered, and %s reported", report, err, listed, name)
		}
		if r.s, err = filequeue.Open(to, keepsAll); err != nil {
			t.Fatal(err)
		}
		defer r.s.Close()
		if n := len(r.kept("a")) + len(r.kept("ab")); n != listed {
			t.Errorf("the rescued store lists %d, want %d", n, listed)
		}
		if n, _, err := r.s.Erase(t.Context(), "a"); err != nil || len(r.kept("a")) != 0 || n+len(r.kept("ab")) != listed {
			t.Errorf("Erase = %d, %v, and it left %d and %d; want all of a erased", n, err, len(r.kept("a")), len(r.kept("ab")))
		}
	})
}
