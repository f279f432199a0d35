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

// A readConn calls read with what the server sends, before the client gets it.
type readConn struct {
	net.Conn
	read func([]byte)
}

func (c *readConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read(b[:n])
	return n, err
}

// Another call revives a dead letter after Erase has listed it. Erase finds the fresh delivery.
func TestEraseFindsWhatIsRevivedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var during atomic.Pointer[func([]byte)]
		s.wrap = func(conn net.Conn) (net.Conn, error) {
			return &readConn{conn, func(b []byte) {
				if f := during.Load(); f != nil {
					(*f)(b)
				}
			}}, nil
		}
		other, owner, _ := apart(t, s)
		name := "a name that nothing else has"
		for owner.partitions.ready(owner.conn.config.partition(name)) == nil {
			name += "."
		}
		d := deliveries(name, 0, 1)
		d[0].User = "ann"
		mustPut(t, owner, d...)
		settle(t, owner, store.Bury, fetch(t, owner, 1, name)...)
		dead := list(t, other, store.Query{})[0]
		revive := func(b []byte) {
			// The first message with the name is the answer with the list.
			if bytes.Contains(b, []byte(name)) && during.Swap(nil) != nil {
				if n, err := owner.Revive(t.Context(), dead.Ref()); n != 1 || err != nil {
					t.Errorf("Revive = %d, %v; want 1", n, err)
				}
			}
		}
		during.Store(&revive)
		if n, claimed, err := other.Erase(t.Context(), "ann"); n != 1 || claimed != 0 || err != nil || during.Load() != nil {
			t.Errorf("Erase = %d, %d, %v; want 1, 0", n, claimed, err)
		}
		if left := list(t, owner, store.Query{}); len(left) > 0 {
			t.Errorf("after Erase, %d deliveries of the user are %v", len(left), left[0].State)
		}
	})
}

// Erase waits for another call that is reviving a dead letter, because its fresh delivery may not be in
// the list yet. Revive leaves alone what another call is erasing.
func TestEraseWaitsForARevival(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		d := deliveries("d", 0, 1)
		d[0].User = "ann"
		mustPut(t, q, d...)
		settle(t, q, store.Bury, fetch(t, q, 1, "d")...)
		ref := list(t, q, store.Query{})[0].Ref()
		p := partitionOf(q)
		q.index.mu.Lock()
		x := p.letter(ref)
		q.index.mu.Unlock()
		if !p.take(ref, x) {
			t.Fatal("the dead letter cannot be taken")
		}
		if n, err := q.Revive(t.Context(), ref); n != 0 || err != nil {
			t.Errorf("Revive of a dead letter that another call has taken = %d, %v; want 0", n, err)
		}
		erased := make(chan int)
		go func() {
			n, _, err := q.Erase(t.Context(), "ann")
			if err != nil {
				t.Error(err)
			}
			erased <- n
		}()
		select {
		case <-erased:
			t.Fatal("Erase has not waited")
		case <-time.After(time.Second): // of the bubble's time
		}
		p.give(x)
		if n := <-erased; n != 1 {
			t.Errorf("Erase = %d, want 1", n)
		}
	})
}
