package collector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// fill takes bytes one by one until take fails, and returns the number of bytes.
func fill(m *reservation) (n int) {
	for m.take(1) == nil {
		n++
	}
	return n
}

// TestMemoryIsShared shows that one holder alone gets half of the memory, and that two holders that
// want all of it get a third each. There is always room for one more holder.
func TestMemoryIsShared(t *testing.T) {
	for _, by := range []string{"address", "source"} {
		s := newShares(1200, 100, 1)
		open := func(n int) *reservation {
			if by == "address" {
				m := s.reserve(fmt.Sprintf("192.0.2.%d", n))
				m.join("all")
				m.source = &holder{} // only addresses count
				return m
			}
			m := s.reserve("192.0.2.1")
			m.client = &holder{} // only sources count
			m.join(fmt.Sprint(n))
			return m
		}
		one := open(1)
		if n := fill(one); n != 600 {
			t.Errorf("by %s: the first holder takes %d of 1200, want 600", by, n)
		}
		if err := one.take(1); !errors.Is(err, errNever) {
			t.Errorf("by %s: taking more than half: %v, want errNever", by, err)
		}
		if n := fill(open(1)); n != 0 {
			t.Errorf("by %s: another request of the first holder takes %d, want 0", by, n)
		}
		two := open(2)
		if n := fill(two); n != 300 {
			t.Errorf("by %s: the second holder takes %d of the other 600, want 300", by, n)
		}
		// The first holder gives its memory back byte by byte, and both take as much as they can.
		for range 300 {
			one.give(1)
			two.take(1)
			one.take(1)
		}
		if one.held != 400 || two.held != 400 {
			t.Errorf("by %s: two holders that want everything hold %d and %d, want 400 each", by, one.held, two.held)
		}
		if n := fill(open(3)); n != 200 {
			t.Errorf("by %s: a third holder takes %d, want 200", by, n)
		}
	}
}

// TestJoinCountsMemoryForTheSource shows that the memory of a request counts for its source as soon
// as the source is known.
func TestJoinCountsMemoryForTheSource(t *testing.T) {
	s := newShares(1200, 100, 1)
	one, two := s.reserve("192.0.2.1"), s.reserve("192.0.2.2")
	one.take(400)
	two.take(300)
	if err := one.join("shop"); err != nil {
		t.Errorf("the first request of a source: %v, want no error", err)
	}
	if err := two.join("shop"); !errors.Is(err, errMemory) {
		t.Errorf("a request that takes the source over its share: %v, want errMemory", err)
	}
	one.release()
	two.release()
	if shop := s.holders[holderKey{source: "shop"}]; s.held != 0 || shop.held != 0 || shop.requests != 0 {
		t.Errorf("after both requests, %d bytes are held, and the source has %+v, want none", s.held, shop)
	}
}

func TestNetworkOf(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1:2": "2001:db8::/64", "fe80::1%eth0": "fe80::/64",
		"": "invalid Prefix", "@": "invalid Prefix",
	} {
		if got := networkOf(ip).String(); got != want {
			t.Errorf("networkOf(%q) = %s, want %s", ip, got, want)
		}
	}
}

// TestIdleHoldersAreForgotten shows that the number of holders in memory does not grow with the
// number of addresses and sources.
func TestIdleHoldersAreForgotten(t *testing.T) {
	s := newShares(1200, 100, 1)
	for n := range 5000 {
		m := s.reserve(fmt.Sprintf("2001:db8:%x::1", n))
		if err := m.join(fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		m.release()
	}
	if n := len(s.holders); n != idleHolders {
		t.Errorf("%d addresses and sources are in memory, want %d", n, idleHolders)
	}
}

// A worker is a request in a bubble. The tests record when it gets its slot.
type worker struct {
	*reservation
	name string
	done chan struct{} // closed when work has returned
	err  error
}

// TestAddressesGetSlotsInTurn shows that addresses get slots in turn. The requests of one address
// get them in their order.
func TestAddressesGetSlotsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(1200, 100, 1)
		var order []string
		start := func(ctx context.Context, ip, name string) *worker {
			w := &worker{reservation: s.reserve(ip), name: name, done: make(chan struct{})}
			go func() {
				if w.err = w.work(ctx); w.err == nil {
					order = append(order, name)
				}
				close(w.done)
			}()
			synctest.Wait()
			return w
		}
		var all []*worker
		cancelled, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2", "c3"} {
			ctx := t.Context()
			if name == "a3" || name == "b1" {
				ctx = cancelled
			}
			all = append(all, start(ctx, fmt.Sprintf("192.0.2.%d", name[0]), name))
		}
		cancel()
		synctest.Wait()
		for range all {
			i := slices.IndexFunc(all, func(w *worker) bool { return w.slot })
			if i < 0 {
				break
			}
			all[i].release()
			all = slices.Delete(all, i, i+1)
			synctest.Wait()
		}
		if want := []string{"a1", "a2", "c1", "a4", "c2", "c3"}; !slices.Equal(order, want) {
			t.Errorf("slots went to %v, want %v", order, want)
		}
		if s.slots != 1 || len(all) != 2 || all[0].err == nil || all[1].err == nil {
			t.Errorf("%d slots are free, and %d requests got none, want 1 and the 2 cancelled requests with errors", s.slots, len(all))
		}
	})
}

// TestRequestsInProgressOfAnAddressAreBounded shows that the requests in progress of an address are
// bounded, with and without a slot. A request in progress goes on before new requests begin.
func TestRequestsInProgressOfAnAddressAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(1200, 2, 4)
		start := func(ip string) *worker {
			w := &worker{reservation: s.reserve(ip), done: make(chan struct{})}
			go func() {
				w.err = w.work(t.Context())
				close(w.done)
			}()
			synctest.Wait()
			return w
		}
		one, two, three := start("192.0.2.1"), start("192.0.2.1"), start("192.0.2.1")
		if !one.slot || !two.slot || three.slot {
			t.Fatalf("three requests have slots: %v, %v, %v, want true, true, false", one.slot, two.slot, three.slot)
		}
		one.rest(0) // the request waits for the store
		synctest.Wait()
		if other := start("192.0.2.2"); three.slot || !other.slot {
			t.Errorf("a third request has a slot: %v, a request of another address: %v, want false and true", three.slot, other.slot)
		}
		more := start("192.0.2.3")
		again := make(chan struct{})
		go func() { one.work(t.Context()); close(again) }()
		synctest.Wait()
		if !one.slot || !more.slot || s.slots != 0 {
			t.Errorf("the request in progress or the new one has no slot, or %d slots are free, want none free", s.slots)
		}
		// Now all slots are taken. The request in progress gets the next one.
		one.rest(0)
		blocker := start("192.0.2.4")
		go one.work(t.Context())
		synctest.Wait()
		two.release()
		synctest.Wait()
		if !one.slot || three.slot {
			t.Errorf("a free slot goes to the request in progress: %v, to a new one: %v, want true and false", one.slot, three.slot)
		}
		blocker.release()
		synctest.Wait()
		if !three.slot {
			t.Error("the third request has no slot, want the free one, as only one request of its address is in progress")
		}
	})
}

// TestRequestsWithManyBytesCountAsSeveral shows that a request with many bytes to store counts as
// several requests.
func TestRequestsWithManyBytesCountAsSeveral(t *testing.T) {
	s := newShares(1200, 10, 4)
	for _, tt := range []struct{ stored, running int }{{weightSize - 1, 1}, {weightSize, 3}, {7 * weightSize, 11}} {
		m := s.reserve("192.0.2.1")
		if err := m.work(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.rest(tt.stored)
		defer m.release()
		if n := m.client.running; n != tt.running {
			t.Errorf("with a request that stores %d bytes, %d requests are in progress, want %d", tt.stored, n, tt.running)
		}
	}
	m := s.reserve("192.0.2.1")
	defer m.release()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.work(done); err == nil {
		t.Error("another request begins beside 11 of 10, want an error")
	}
}

// TestCountsOfSharesAddUp shows that the counts of holders and slots are right after random
// operations.
func TestCountsOfSharesAddUp(t *testing.T) {
	for seed := range soakenv.Seeds(t, 10) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			const memory, perAddress, slots = 1000, 3, 4
			s := newShares(memory, perAddress, slots)
			var all []*worker     // workers outside of a call of work
			var working []*worker // workers in a call of work
			for range 1000 {
				working = slices.DeleteFunc(working, func(w *worker) bool {
					select {
					case <-w.done:
						all = append(all, w)
						return true
					default:
						return false
					}
				})
				if len(all) == 0 || rnd.IntN(5) == 0 {
					all = append(all, &worker{reservation: s.reserve(fmt.Sprintf("192.0.2.%d", rnd.IntN(4)))})
				}
				i := rnd.IntN(len(all))
				w := all[i]
				switch rnd.IntN(6) {
				case 0:
					if w.source == nil {
						w.join(fmt.Sprint(rnd.IntN(3)))
					}
				case 1:
					w.take(rnd.IntN(200))
				case 2:
					if w.held > 0 {
						w.give(rnd.IntN(int(w.held)) + 1)
					}
				case 3:
					if !w.slot {
						w.done = make(chan struct{})
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(50))*time.Millisecond)
						go func() { w.work(ctx); cancel(); close(w.done) }()
						all = slices.Delete(all, i, i+1)
						working = append(working, w)
					}
				case 4:
					if w.slot {
						w.rest(rnd.IntN(2 * weightSize))
					}
				case 5:
					w.release()
					all = slices.Delete(all, i, i+1)
				}
				synctest.Wait()
				time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
				synctest.Wait()

				s.mu.Lock()
				held, taken := int64(0), 0
				by := map[holderKey]holder{} // addresses
				for _, w := range slices.Concat(all, working) {
					held += w.held
					h := by[w.client.key]
					h.held += w.held
					h.requests++
					if w.slot {
						taken++
					}
					h.running += w.weight
					by[w.client.key] = h
				}
				if s.held != held || s.held > memory || s.slots+taken != slots || s.slots < 0 {
					t.Fatalf("seed %d: %d bytes are held of %d, and the requests have %d; %d slots are free and %d taken", seed, s.held, memory, held, s.slots, taken)
				}
				for key, h := range s.holders {
					if key.source != "" {
						continue
					}
					want := by[key]
					if h.held != want.held || h.requests != want.requests || h.running != want.running || h.running > perAddress+slots {
						t.Fatalf("seed %d: the address %v has %+v, want the sum of its requests, %+v", seed, key, h, want)
					}
					if s.slots > 0 && s.next(h) != nil {
						t.Fatalf("seed %d: a request of %v waits although a slot is free", seed, key)
					}
				}
				s.mu.Unlock()
			}
			for _, w := range all {
				w.release()
			}
			for _, w := range working {
				<-w.done
				w.release()
			}
			if s.held != 0 || s.slots != slots {
				t.Errorf("seed %d: at the end %d bytes are held, and %d slots are free, want 0 and %d", seed, s.held, s.slots, slots)
			}
		})
	}
}
