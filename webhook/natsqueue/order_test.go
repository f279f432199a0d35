package natsqueue

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hookferry/analytics/webhook/store"
)

// keyed does the same as deliveries, with a key.
func keyed(destination, key string, from, n int) []store.Delivery {
	ds := deliveries(destination, from, n)
	for i := range ds {
		ds[i].Key = key
	}
	return ds
}

// drainKey fetches deliveries of a key one by one, and settles them. It returns their ids.
func drainKey(t *testing.T, s *Store, n int, destination string) (ids []string) {
	t.Helper()
	for range n {
		ds := fetch(t, s, 1, destination)
		ids = append(ids, ds[0].ID)
		settle(t, s, store.Done, ds...)
	}
	return ids
}

func ids(ds []store.Delivery) (ids []string) {
	for _, d := range ds {
		ids = append(ids, d.ID)
	}
	return ids
}

// apart opens two nodes, until the end of the test, and returns a destination that the second owns.
func apart(t *testing.T, s *testServer) (other, owner *Store, name string) {
	c := Config{Partitions: 16, Claim: time.Minute}
	other = ready(s.open(t, c))
	owner = s.open(t, c)
	t.Cleanup(func() {
		other.Close()
		owner.Close()
	})
	until(t, "each node owns partitions, and together they own all", func() bool {
		n, m := len(other.partitions.mine()), len(owner.partitions.mine())
		return n > 0 && m > 0 && n+m == c.Partitions
	})
	all := deliveries("", 0, 100)
	i := slices.IndexFunc(all, func(d store.Delivery) bool { return ready(owner).partitions.ready(c.partition(d.ID)) != nil })
	return other, owner, all[i].ID
}

// The next owner finds the order of a key, though a retry and the cleaner have stored deliveries again
// behind others.
func TestNextOwnerFindsOrder(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1, Claim: time.Minute}
		q := ready(s.open(t, c))
		ds := keyed("d", "one", 0, 8)
		mustPut(t, q, ds[:4]...)
		mustPut(t, q, ds[4:6]...)
		first := fetch(t, q, 1, "d")
		first[0].Expires = time.Now().Add(time.Hour)
		settle(t, q, store.Retry, first...) // now the first one is behind the others in the log
		p := partitionOf(q)
		w, err := q.cleaner.moving(t.Context(), p, p.order[:2]) // and some more are
		if err == nil {
			err = q.recorder.write(t.Context(), w)
		}
		if err != nil || len(w.endings) < 3 {
			t.Fatalf("moved %d deliveries, %v; want at least 3", len(w.endings), err)
		}
		mustPut(t, q, ds[6:]...)
		fetch(t, q, 1, "d")
		q.abandon()
		defer q.Close()
		next := s.open(t, c)
		defer next.Close()
		until(t, "the next node owns the partition", func() bool { return partitionOf(next) != nil })
		if counts, err := ready(next).Count(t.Context()); err != nil || counts.Waiting != len(ds) || counts.Behind != len(ds)-1 {
			t.Errorf("Count = %+v, %v; want %d waiting, %d of them behind", counts, err, len(ds), len(ds)-1)
		}
		if got := drainKey(t, next, len(ds), "d"); !slices.Equal(got, ids(ds)) {
			t.Errorf("the order is %v, want %v", got, ids(ds))
		}
	})
}

// If a call of Settle has timed out, Heads yields what its settlements release later.
func TestLateReleaseIsNews(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		ds := keyed("d", "one", 0, 2)
		mustPut(t, q, ds...)
		first := fetch(t, q, 1, "d")
		deaf.Store(true)
		if n, err := q.Settle(t.Context(), settlements(store.Done, first...)); err == nil {
			t.Fatalf("Settle = %d, want an error", n)
		}
		for range q.Heads(t.Context(), false) {
		}
		deaf.Store(false)
		until(t, "Heads yields the destination with a fresh delivery", func() bool {
			for h, err := range q.Heads(t.Context(), false) {
				if err == nil && h.Destination == "d" && !h.Fresh.IsZero() {
					return true
				}
			}
			return false
		})
		if got := drainKey(t, q, 1, "d"); got[0] != ds[1].ID {
			t.Errorf("released %v, want %v", got[0], ds[1].ID)
		}
	})
}

// If the first delivery of a key cannot be read, the next one is released, and Heads yields it.
func TestDamagedDeliveryReleasesNext(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		ds := keyed("d", "one", 0, 2)
		ds[0].Due = time.Now().Add(2 * cacheAhead) // so its message is read again
		mustPut(t, q, ds[0])
		mustPut(t, q, ds[1])
		if err := q.conn.stream.DeleteMsg(t.Context(), partitionOf(q).order[1].seq); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * cacheAhead)
		for range q.Heads(t.Context(), false) {
		}
		fetch(t, q, 0, "d")
		heads := 0
		for h := range q.Heads(t.Context(), false) {
			if h.Destination == "d" && !h.Fresh.IsZero() {
				heads++
			}
		}
		if got := drainKey(t, q, 1, "d"); got[0] != ds[1].ID || heads != 1 {
			t.Errorf("released %v, which Heads yields %d times; want %v, once", got[0], heads, ds[1].ID)
		}
	})
}

// Keys cost no memory for deliveries that have none.
func TestEntryIsSmall(t *testing.T) {
	if got := unsafe.Sizeof(entry{}); got > 112 { // a size class of the allocator
		t.Errorf("an entry has %d bytes, want at most 112", got)
	}
}

// Many dead letters of a key, revived at once on another node, follow in the order of the refs.
func TestRevivedLettersKeepOrder(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		const n = 100
		other, q, name := apart(t, s)
		for _, d := range keyed(name, "one", 0, n) {
			mustPut(t, q, d)
			settle(t, q, store.Bury, fetch(t, q, 1, name)...)
		}
		var refs []store.Ref
		var want []string
		for _, r := range list(t, other, store.Query{}) { // the newest first
			refs, want = append(refs, r.Ref()), append(want, r.ID)
		}
		if changed, err := other.Revive(t.Context(), refs...); changed != n || err != nil {
			t.Fatalf("Revive = %d, %v; want %d", changed, err, n)
		}
		if got := drainKey(t, q, n, name); !slices.Equal(got, want) {
			t.Errorf("the order is\n%v, want\n%v", got, want)
		}
	})
}

// A Put on a node that does not own the destination says which deliveries are behind others.
func TestOwnerTellsWhatIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q, owner, name := apart(t, s)
		var ps []store.Put
		for i := range 9 {
			ps = append(ps, store.Put{Delivery: keyed(name, fmt.Sprint(i%3), i, 1)[0]})
		}
		ps = append(ps, ps[3], store.Put{Delivery: deliveries(name, 9, 1)[0]})
		out := make([]store.Result, len(ps))
		if err := q.Put(t.Context(), ps, out); err != nil {
			t.Fatal(err)
		}
		for i, got := range out {
			if want := (store.Result{Stored: i != 9, Behind: i >= 3 && i < 9}); got != want {
				t.Errorf("result %d is %+v, want %+v", i, got, want)
			}
		}
		fetch(t, owner, 4, name)
	})
}
