package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/store"
)

// checkReturnsInTime checks that each call returns within five seconds. With timeout, each call
// must return context.DeadlineExceeded.
func checkReturnsInTime(t *testing.T, timeout bool, calls map[string]func() error) {
	t.Helper()
	for name, call := range calls {
		begin := time.Now()
		err := call()
		if took := time.Since(begin); took > 5*time.Second || timeout && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v after %v, want a return within 5s; with DeadlineExceeded: %v", name, err, took, timeout)
		}
	}
}

// While the server is silent, each call times out within five seconds. When the server answers
// again, the store finds out which of the timed out calls took effect.
func TestCallsTimeOutWhileServerIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := ready(s.open(t, Config{Partitions: 4}))
		defer q.Close()
		mustPut(t, q, deliveries("crm", 0, 2)...)
		held := fetch(t, q, 2, "crm")
		deaf.Store(true)
		checkReturnsInTime(t, true, map[string]func() error{
			"Put":    func() error { _, err := q.tryPut(t.Context(), deliveries("crm", 2, 1)...); return err },
			"Settle": func() error { _, err := q.Settle(t.Context(), settlements(store.Done, held[0])); return err },
			"Bury":   func() error { _, err := q.Settle(t.Context(), settlements(store.Bury, held[1])); return err },
			"SetDocument": func() error {
				_, err := q.SetDocument(t.Context(), store.Document{Folder: "a", Name: "a", Value: []byte("b")})
				return err
			},
			"UpdateAudience": func() error {
				return NewRoster(q).UpdateAudience(t.Context(), "vip", func(*audience.Record, audience.Members) error { return nil })
			},
			"Documents": func() error {
				for _, err := range q.Documents(t.Context(), "a", "") {
					return err
				}
				return nil
			},
		})
		deaf.Store(false)
		until(t, "the settlements are recorded", func() bool {
			n, err := q.Settle(t.Context(), settlements(store.Done, held...))
			return n == 2 && err == nil
		})
		if c, err := q.Count(t.Context()); err != nil || c.Claimed != 0 || c.Dead != 1 {
			t.Errorf("Count = %+v, %v; want 0 claimed, 1 dead", c, err)
		}
	})
}

// A node leaves a server that does not answer its heartbeats, long before the driver would.
func TestNodeLeavesSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		var connections atomic.Int32
		s.wrap = func(conn net.Conn) (net.Conn, error) {
			if connections.Add(1) > 1 {
				return conn, nil
			}
			return deafConn{conn, &deaf}, nil
		}
		c := Config{Claim: 12 * time.Second, Partitions: 2}
		q := s.open(t, c)
		defer q.Close()
		began := time.Now()
		deaf.Store(true)
		until(t, "a delivery is stored by another connection", func() bool {
			_, err := q.tryPut(t.Context(), deliveries("crm", 0, 1)...)
			return err == nil
		})
		if took := time.Since(began); took > c.Claim {
			t.Errorf("it took %v, want at most %v", took, c.Claim)
		}
	})
}

// A message is sent again each second, so it is stored although the server is silent most of the time.
func TestMessageIsSentAgainEachSecond(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		for _, hears := range []time.Duration{0, time.Second, 2 * time.Second} { // a little after these times
			deaf.Store(true)
			time.AfterFunc(hears+resend/2, func() { deaf.Store(false) })
			time.AfterFunc(hears+3*resend/2, func() { deaf.Store(true) })
			if err := q.conn.store(t.Context(), one(DefaultStream+".test", nil)); err != nil {
				t.Errorf("with a server that hears %v to %v after the call: %v", hears+resend/2, hears+3*resend/2, err)
			}
			time.Sleep(callTimeout)
			deaf.Store(false)
		}
	})
}

// A question is answered if a node becomes the owner shortly before the time limit.
func TestLateOwnerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		p := partitionOf(q)
		own := func(p *partition) {
			q.index.mu.Lock()
			q.partitions.owned[0] = p
			q.index.mu.Unlock()
		}
		synctest.Wait() // until the node has checked the owners
		own(nil)
		time.AfterFunc(callTimeout-3*askEvery/2, func() { own(p) })
		if _, err := q.Count(t.Context()); err != nil {
			t.Errorf("Count = %v, want no error", err)
		}
	})
}

// A change, too, is made if a node becomes the owner before the time limit.
func TestLateOwnerMakesChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		mustPut(t, q, deliveries("d", 0, 1)...)
		p := partitionOf(q)
		own := func(p *partition) {
			q.index.mu.Lock()
			q.partitions.owned[0] = p
			q.index.mu.Unlock()
		}
		synctest.Wait() // until the node has checked the owners
		ref := list(t, q, store.Query{})[0].Ref()
		own(nil)
		time.AfterFunc(time.Second, func() { own(p) })
		if n, _, err := q.Discard(t.Context(), ref); n != 1 || err != nil {
			t.Errorf("Discard = %d, %v; want 1", n, err)
		}
	})
}

// An owner may need longer than askEvery to read the deliveries that it lists.
func TestSlowOwnerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		synctest.Wait() // until the node has checked the owners
		q.index.mu.Lock()
		q.partitions.owned[0] = nil
		q.index.mu.Unlock()
		d := store.Record{Delivery: deliveries("d", 0, 1)[0]}
		d.Seq = 1
		b, _ := d.AppendBinary(nil)
		a := answer{Refs: []store.Ref{d.Ref()}, Records: []found{{store.StateWaiting, b}}, Done: 1}
		if _, err := s.connect(t).Subscribe(q.conn.config.ask("owner"), func(m *nats.Msg) {
			time.AfterFunc(3*askEvery/2, func() { m.Respond(encode(a)) })
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until the server knows of the subscription
		if n := len(list(t, q, store.Query{})); n != 1 {
			t.Errorf("List returned %d deliveries, want 1", n)
		}
	})
}

// Close waits for a silent server as long as any other call does, even if Config.Claim is longer.
func TestCloseGivesUpOnSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var deaf atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return deafConn{conn, &deaf}, nil }
		q := s.open(t, Config{Partitions: 2})
		deaf.Store(true)
		began := time.Now()
		if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want context.DeadlineExceeded", err)
		}
		// Close also waits a second for the server to delete the consumers.
		if took := time.Since(began); took < callTimeout || took > callTimeout+2*time.Second {
			t.Errorf("Close took %v with a Claim of an hour, want %v to %v", took, callTimeout, callTimeout+2*time.Second)
		}
	})
}

// Put stores either all of its deliveries or none. A Put that needs more messages than an atomic
// batch may have returns ErrTooLarge.
func TestPutIsAtomic(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 8}))
		defer q.Close()
		var ds []store.Delivery
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprint("d", i))
			ds = append(ds, deliveries(names[i], 0, 2)...)
		}
		bad := append(ds, store.Delivery{Destination: "d0", Due: time.Now()})
		if n, err := q.tryPut(t.Context(), bad...); n != 0 || err == nil {
			t.Errorf("Put with a delivery without an ID = %d, %v; want 0 and an error", n, err)
		}
		fetch(t, q, 0, names...)
		mustPut(t, q, ds...)
		fetch(t, q, len(ds), names...)

		big := deliveries("d0", 0, maxBatch+1)
		for i := range big {
			big[i].ID, big[i].Body = fmt.Sprint("big", i), make([]byte, blockBytes/2+1)
		}
		if n, err := q.tryPut(t.Context(), big...); n != 0 || !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("Put of more messages than a batch may have = %d, %v; want 0, ErrTooLarge", n, err)
		}
		fetch(t, q, 0, names...)
	})
}

// Concurrent puts share messages, but the deliveries of one put are all in the same message.
func TestConcurrentPutsShareMessages(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		var all []*put
		for i := range 3 {
			ds := deliveries("d", 10*i, 2)
			for j := range ds {
				ds[j].Body = make([]byte, blockBytes/6)
			}
			p, err := q.putter.newPut(store.Put{Delivery: ds[0]}, store.Put{Delivery: ds[1]})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		q.putter.storePuts(all)
		var sizes []int
		for _, m := range logMessages(t, q) {
			if r, err := parseRecord(m.Data); err == nil && strings.HasSuffix(m.Subject, kindPut) {
				sizes = append(sizes, len(r.records))
			}
		}
		slices.Sort(sizes) // the messages are sent concurrently
		if !slices.Equal(sizes, []int{2, 4}) {
			t.Errorf("the messages have %v deliveries, want 2 and 4", sizes)
		}
	})
}

// Put stores deliveries for a partition that has no owner. The next owner recognizes duplicates.
func TestPutWithoutOwner(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1, Claim: time.Minute}
		a := ready(s.open(t, c))
		a.abandon()
		b := s.open(t, c)
		defer b.Close()
		defer a.Close()
		for range 2 {
			mustPut(t, b, deliveries("d", 0, 3)...) // without an owner, Put does not see that the second three are duplicates
		}
		until(t, "b owns the partition", func() bool { return partitionOf(b) != nil })
		fetch(t, ready(b), 3, "d")
		if n, err := b.tryPut(t.Context(), deliveries("d", 0, 4)...); n != 1 || err != nil {
			t.Errorf("Put of three duplicates and a new delivery = %d, %v; want 1", n, err)
		}
	})
}

// The answer of the server to a put comes so late that the node sends the put again. Each delivery
// is stored once, even if the dedup window ignores it.
func TestPutWithNoDedupIsStoredOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var held atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) { return heldConn{conn, &held}, nil }
		q := ready(s.open(t, Config{Partitions: 8}))
		defer q.Close()
		for n, name := range map[int]string{1: "one message", 40: "a batch"} {
			var ps []store.Put
			var names []string
			for i := range n {
				names = append(names, fmt.Sprint("d", n, i))
				ps = append(ps, store.Put{Delivery: deliveries(names[i], 0, 1)[0], NoDedup: true})
			}
			held.Store(true)
			time.AfterFunc(3*resend/2, func() { held.Store(false) })
			out := make([]store.Result, len(ps))
			if err := q.Put(t.Context(), ps, out); err != nil {
				t.Errorf("%s: Put = %v, want nil", name, err)
			}
			time.Sleep(2 * resend)
			fetch(t, q, n, names...)
		}
	})
}

// The next owner of a partition does not remember a put with NoDedup either, even if the delivery
// has been retried, or moved to the end of the log.
func TestNextOwnerForgetsPutWithNoDedup(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1, Claim: time.Minute}
		q := ready(s.open(t, c))
		ds := deliveries("d", 0, 4)
		ps, out := make([]store.Put, len(ds)), make([]store.Result, len(ds))
		for i, d := range ds {
			ps[i] = store.Put{Delivery: d, NoDedup: i%2 == 0}
		}
		if err := q.Put(t.Context(), ps, out); err != nil {
			t.Fatal(err)
		}
		again := fetch(t, q, len(ds), "d")[:2] // the other two stay claimed
		for i := range again {
			again[i].Expires = time.Now().Add(time.Hour)
		}
		settle(t, q, store.Retry, again...)
		if err := q.cleaner.clean(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q = ready(s.open(t, c))
		defer q.Close()
		fetch(t, q, len(ds), "d")
		if n, err := q.tryPut(t.Context(), ds...); n != 2 || err != nil {
			t.Errorf("Put of all deliveries again = %d, %v; want 2, those that were put with NoDedup", n, err)
		}
		fetch(t, q, 2, "d")
	})
}

// After the stream was deleted, each call still returns in time. The store goes on once another
// node opens the store, which creates the stream again.
func TestStoreGoesOnAfterStreamWasDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 2, Claim: 10 * time.Second}
		a := ready(s.open(t, c))
		defer a.Close()
		mustPut(t, a, deliveries("d", 0, 2)...)
		held := fetch(t, a, 2, "d")
		old := logMessages(t, a)
		if err := a.conn.js.DeleteStream(t.Context(), DefaultStream); err != nil {
			t.Fatal(err)
		}
		checkReturnsInTime(t, false, map[string]func() error{
			"Put":    func() error { _, err := a.tryPut(t.Context(), deliveries("d", 2, 1)...); return err },
			"Settle": func() error { _, err := a.Settle(t.Context(), settlements(store.Done, held[0])); return err },
			"Count":  func() error { _, err := a.Count(t.Context()); return err },
		})
		b := s.open(t, c)
		defer b.Close()
		until(t, "a delivery is put, fetched and settled", func() bool {
			if _, err := b.tryPut(t.Context(), deliveries("d", 10, 1)...); err != nil {
				return false
			}
			for _, q := range []*Store{a, b} {
				if ds, err := q.tryFetch(t.Context(), 1, "d"); err == nil && len(ds) == 1 {
					n, err := q.Settle(t.Context(), settlements(store.Done, ds[0]))
					return n == 1 && err == nil
				}
			}
			return false
		})
		if all := logMessages(t, b); len(all) == 0 || all[0].Sequence <= old[len(old)-1].Sequence {
			t.Errorf("got %d messages in the log of partition 0, want some, all with sequences above the old stream's", len(all))
		}
	})
}
