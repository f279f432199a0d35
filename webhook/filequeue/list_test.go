package filequeue_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The state record of a fresh delivery, which was made due now, is damaged. Discard finds the delivery
// where it is, and discards it, instead of counting it as claimed.
func TestDiscardOfFreshDeliveryWithDamagedState(t *testing.T) {
	r := newRig(t, filequeue.Config{})
	defer func() { r.s.Close() }()
	later := store.Delivery{Destination: "a", ID: "1", Body: []byte("{}"), Due: r.s.Now().Add(time.Hour)}
	if err := r.s.Put(t.Context(), []store.Put{{Delivery: later}}, make([]store.Result, 1)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := r.s.Hasten(t.Context(), r.refs()...); n != 1 || err != nil {
		t.Fatalf("Hasten = %d, %v; want 1", n, err)
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	name := r.latest()
	b := r.d.ReadFile(name)
	b[len(bytes.TrimRight(b, "\x00"))-1] ^= 1 // in the last record, which has the state
	r.d.WriteFile(name, b)
	r.reopen()
	n, held, err := r.s.Discard(t.Context(), r.refs()...)
	if n != 1 || held != 0 || err != nil {
		t.Errorf("Discard = %d, %d claimed, %v; want 1 discarded, 0 claimed", n, held, err)
	}
}

// refs returns the deliveries of the store.
func (r *rig) refs() (refs []store.Ref) {
	r.Helper()
	for d, err := range store.Records(r.Context(), r.s, store.Query{}) {
		if err != nil {
			r.Fatal(err)
		}
		refs = append(refs, d.Ref())
	}
	return refs
}

// keepMany delivers n deliveries at once, to two destinations. Number 17 alone has the type "rare".
func keepMany(t *testing.T, s *filequeue.Store, n int) {
	t.Helper()
	ps, out, ss := make([]store.Put, n), make([]store.Result, n), make([]store.Settlement, n)
	for i := range ps {
		kind := "often"
		if i == 17 {
			kind = "rare"
		}
		ps[i] = store.Put{Keep: true, Delivery: store.Delivery{
			Destination: fmt.Sprint("d", i%2), ID: fmt.Sprint("digest ", i), MessageID: fmt.Sprint("message ", i), User: fmt.Sprint("user ", i), Type: kind, Due: s.Now(), Body: bodyOf(fmt.Sprint(i), 450),
		}}
	}
	if err := s.Put(t.Context(), ps, out); err != nil {
		t.Fatal(err)
	}
	for i := range ss {
		ps[i].Claim = out[i].Claim
		ss[i] = store.Settlement{Verdict: store.Done, Delivery: ps[i].Delivery, At: s.Now()}
	}
	if _, err := s.Settle(t.Context(), ss); err != nil {
		t.Fatal(err)
	}
}

// A list by an id or by a user finds deliveries in tables without reading the others there, also if their
// destination is named, and in segments without reading another page.
func TestListByTextReadsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		d := simdisk.New(1)
		d.SetCapacity(16 << 20)
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet, HistoryAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.KeepInTables(1 << 30) // not yet
		keepMany(t, s, n)
		synctest.Wait()
		var read atomic.Int64
		d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Read {
				read.Add(int64(op.Len))
			}
			return nil
		})
		for _, in := range []struct {
			name string
			most int64 // bytes read
		}{{"segments", 5 << 20}, {"tables", 100 << 10}} {
			for _, q := range []store.Query{
				{ID: "digest 17"}, {ID: "message 17"}, {User: "user 17"}, {ID: "digest 17", Destinations: []string{"d1"}, Oldest: true}, {User: "user 17", Destinations: []string{"d1"}},
			} {
				read.Store(0)
				page, next, err := s.List(t.Context(), q, 0, 50)
				if len(page) != 1 || page[0].ID != "digest 17" || next != 0 || err != nil {
					t.Errorf("in %s: List(%+v) = %v, %d, %v; want digest 17 alone", in.name, q, page, next, err)
				}
				if n := read.Load(); n > in.most {
					t.Errorf("in %s: List(%+v) read %d bytes, want at most %d", in.name, q, n, in.most)
				}
			}
			if page, next, err := s.List(t.Context(), store.Query{Type: "rare"}, 0, 50); len(page) != 1 || page[0].ID != "digest 17" || next != 0 || err != nil {
				t.Errorf("in %s: List of a rare type = %v, %d, %v; want digest 17 alone", in.name, page, next, err)
			}
			if page, next, err := s.List(t.Context(), store.Query{ID: "digest 17", Destinations: []string{"d0"}}, 0, 50); len(page) != 0 || next != 0 || err != nil {
				t.Errorf("in %s: List of another destination = %v, %d, %v; want nothing", in.name, page, next, err)
			}
			time.Sleep(5 * time.Minute) // the history goes to a table
			synctest.Wait()
		}
	})
}

// A list that selects few deliveries finds them behind more bytes than it reads at once.
func TestListFindsBehindManyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		d := simdisk.New(1)
		d.SetCapacity(64 << 20)
		s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range n {
			p := store.Put{Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(i), Type: "often", Due: s.Now(), Body: make([]byte, 100<<10)}}
			if i == 0 {
				p.Type = "rare"
			}
			if err := s.Put(t.Context(), []store.Put{p}, make([]store.Result, 1)); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []store.Query{{Type: "rare"}, {ID: "0"}} {
			page, _, err := s.List(t.Context(), q, 0, 50)
			if err != nil || len(page) != 1 || page[0].ID != "0" {
				t.Errorf("List(%+v) = %d deliveries, %v; want the first one put", q, len(page), err)
			}
		}
	})
}
