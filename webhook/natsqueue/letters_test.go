package natsqueue

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// buryMany makes dead letters of n deliveries of several destinations.
func buryMany(t *testing.T, q *Store, n int) (names []string) {
	t.Helper()
	for i := range 10 {
		names = append(names, fmt.Sprint("d", i))
		mustPut(t, q, deliveries(names[i], 1000*i, n/10)...)
	}
	var ds []store.Delivery
	until(t, "all deliveries are fetched", func() bool {
		more, err := q.tryFetch(t.Context(), n, names...)
		if ds = append(ds, more...); err != nil {
			t.Fatal(err)
		}
		return len(ds) == n
	})
	settle(t, q, store.Bury, ds...)
	return names
}

// The next owner knows the dead letters of an earlier one. Any node lists, retries and discards those
// of all owners.
func TestDeadLettersOfEarlierAndOtherOwners(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		const n = 2000
		c := Config{Partitions: 16, Claim: time.Minute}
		q := ready(s.open(t, c))
		buryMany(t, q, n)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		a := ready(s.open(t, c))
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		until(t, "each node owns partitions, and together they own all", func() bool {
			n, m := len(a.partitions.mine()), len(b.partitions.mine())
			return n > 0 && m > 0 && n+m == c.Partitions
		})
		all := list(t, b, store.Query{})
		counts, err := a.Count(t.Context())
		if err != nil || len(all) != n || counts.Dead != n {
			t.Fatalf("List returns %d, Count = %+v, %v; want %d dead letters", len(all), counts, err, n)
		}
		var refs []store.Ref
		for i, r := range all {
			counts.DeadBytes -= r.Size()
			if refs = append(refs, r.Ref()); i > 0 && r.Seq >= all[i-1].Seq {
				t.Fatalf("the number %d follows %d", r.Seq, all[i-1].Seq)
			}
		}
		if counts.DeadBytes != 0 || !counts.OldestDead.Equal(all[0].At) {
			t.Errorf("Count has %d bytes too many, and the oldest of %v; want that of %v", counts.DeadBytes, counts.OldestDead, all[0].At)
		}
		if n, err := b.Revive(t.Context(), refs[:n/2]...); n != len(refs)/2 || err != nil {
			t.Errorf("Revive = %d, %v; want %d", n, err, len(refs)/2)
		}
		if n, _, err := a.Discard(t.Context(), refs...); n != len(refs)/2 || err != nil {
			t.Errorf("Discard = %d, %v; want %d", n, err, len(refs)/2)
		}
		left := list(t, a, store.Query{})
		if len(left) != n/2 || slices.ContainsFunc(left, func(r store.Record) bool { return r.State != store.StateWaiting }) {
			t.Errorf("List returns %d, want %d that wait", len(left), n/2)
		}
	})
}

// A node learns which dead letters there are even if the last one is deleted before it is read.
func TestDeletedDeadLetterDelaysNoList(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var last atomic.Uint64 // to be deleted
		var q *Store
		c := Config{Partitions: 1, Claim: time.Minute}
		q = ready(s.open(t, c))
		buryMany(t, q, 20)
		next := list(t, q, store.Query{})
		q.index.mu.Lock()
		for _, l := range q.index.lanes {
			for _, x := range l.list {
				last.Store(max(last.Load(), x.letter.at))
			}
		}
		q.index.mu.Unlock()
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		js := q.conn.stream
		s.wrap = func(conn net.Conn) (net.Conn, error) {
			return &tapConn{conn, func(b []byte) []byte {
				if bytes.Contains(b, []byte(`"headers_only":true`)) {
					if seq := last.Swap(0); seq > 0 {
						js.DeleteMsg(t.Context(), seq)
					}
				}
				return b
			}}, nil
		}
		q = ready(s.open(t, c))
		defer q.Close()
		if left := list(t, q, store.Query{}); len(left) != len(next)-1 || last.Load() != 0 {
			t.Errorf("List returns %d, want %d", len(left), len(next)-1)
		}
	})
}

// Retry on a node that does not own the partition returns ErrQueueFull, and keeps the dead letters.
func TestRetryOnAFullStore(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1, MaxBytes: 1 << 20, Claim: time.Minute}
		a := ready(s.open(t, c))
		defer a.Close()
		buryMany(t, a, 20)
		b := s.open(t, c)
		defer b.Close()
		var refs []store.Ref
		for _, r := range list(t, b, store.Query{}) {
			refs = append(refs, r.Ref())
		}
		for i := 0; ; i++ {
			d := deliveries("full", i, 1)
			if _, err := a.tryPut(t.Context(), d...); errors.Is(err, store.ErrQueueFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []*Store{a, b} {
			if n, err := q.Revive(t.Context(), refs...); n != 0 || !errors.Is(err, store.ErrQueueFull) {
				t.Errorf("Revive = %d, %v; want 0, ErrQueueFull", n, err)
			}
		}
		if dead := list(t, b, store.Query{States: []store.State{store.StateDead}}); len(dead) != len(refs) {
			t.Errorf("List returns %d dead letters, want %d", len(dead), len(refs))
		}
	})
}
