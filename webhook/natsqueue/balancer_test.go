package natsqueue

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// seize makes s the owner of a partition, whichever node owns it.
func seize(t *testing.T, s *Store, n int) {
	t.Helper()
	holdings, _, err := s.balancer.holdings(t.Context())
	if err == nil {
		err = s.balancer.take(t.Context(), n, holdings[n])
	}
	if err != nil {
		t.Fatal(err)
	}
	<-s.partitions.owned[n].ready
}

// openWithFixedPartitions opens a store that keeps its partitions: it takes over no others, and
// hands over none.
func openWithFixedPartitions(t *testing.T, s *testServer, c Config) *Store {
	t.Helper()
	q := ready(s.open(t, c))
	q.balancer.ruling.Lock()
	t.Cleanup(func() {
		q.balancer.ruling.Unlock()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q
}

// A node that is cut off from the server loses its partitions to the other node once its claim has
// expired. It gets some back when it is connected again.
func TestNodeCutOffLosesItsPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Claim: 10 * time.Second, Partitions: 16}
		var wire cable
		a := (&testServer{Server: s.Server, wrap: wire.wrap}).open(t, c)
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		const n = 40
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint("d", i))
			mustPut(t, b, deliveries(names[i], 0, 1)...)
		}
		var held []store.Delivery
		until(t, "a owns a partition with deliveries", func() (ok bool) {
			var err error
			held, err = a.tryFetch(t.Context(), 1, names...)
			return err == nil && len(held) > 0
		})
		wire.cut(true)
		buried := make(chan error, 1)
		go func() {
			_, err := a.Settle(t.Context(), settlements(store.Bury, held[0]))
			buried <- err
		}()
		var got []store.Delivery
		until(t, "b has fetched all deliveries", func() bool {
			more, err := b.tryFetch(t.Context(), 1, names...)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, more...)
			return len(got) == n
		})
		if _, err := a.tryFetch(t.Context(), 1, names...); err == nil {
			t.Error("Fetch of a after its claim has expired = nil error, want an error")
		}
		if _, err := a.Settle(t.Context(), settlements(store.Done, held[0])); err == nil {
			t.Error("Settle of a after its claim has expired = nil error, want an error")
		}
		if err := <-buried; err == nil {
			t.Error("Settle with Bury of a while it is cut off = nil error, want an error")
		}
		wire.cut(false)
		settle(t, b, store.Done, got...)
		until(t, "a is connected again and sees that nothing waits", func() bool {
			counts, err := a.Count(t.Context())
			_, fetched := a.tryFetch(t.Context(), 1, names...)
			return err == nil && fetched == nil && counts.Waiting == 0
		})
		if dead := list(t, a, store.Query{}); len(dead) > 0 {
			t.Errorf("got %+v; want nothing", dead)
		}
	})
}

// The server refuses the records of a node that does not know yet that another node owns the
// partition.
func TestServerRefusesRecordsOfFormerOwner(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for the mutex ruling stops its clock
	c := Config{Partitions: 1}
	a := openWithFixedPartitions(t, s, c)
	mustPut(t, a, append(deliveries("x", 0, 1), deliveries("y", 0, 2)...)...)
	late := fetch(t, a, 3, "x", "y")
	a.partitions.owned[0].end() // a reads no more messages of partition 0
	b := openWithFixedPartitions(t, s, c)
	seize(t, b, 0)
	got := fetch(t, b, 3, "x", "y")
	settle(t, a, store.Done, late[0])
	settle(t, a, store.Retry, late[1])
	settle(t, a, store.Bury, late[2])
	if a.partitions.owned[0] != nil {
		t.Error("a owns the partition after the server refused its records, want that it does not")
	}
	if counts, err := b.Count(t.Context()); err != nil || counts.Waiting != 3 || counts.Claimed != 3 || counts.Dead != 0 {
		t.Errorf("Count = %+v, %v; want 3 waiting, 3 claimed, 0 dead", counts, err)
	}
	// A node that owns the partition again hands out all deliveries. It does not mistake them for
	// duplicates of the ones that it read before.
	seize(t, a, 0)
	fetch(t, a, 3, "x", "y")
	settle(t, b, store.Done, got...)
	seize(t, b, 0)
	fetch(t, b, 3, "x", "y")
}

// A node whose heartbeat was late hands out nothing from a partition that another node has taken
// over, even if it has not read yet of the new owner. It keeps its other partitions.
func TestNodeWithLateHeartbeatHandsOutNothingTakenOver(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for the mutex ruling stops its clock
	c := Config{Partitions: 2}
	a := openWithFixedPartitions(t, s, c)
	var names [2]string // for each partition, one of its destinations
	for i := 0; names[0] == "" || names[1] == ""; i++ {
		name := fmt.Sprint("d", i)
		names[a.conn.config.partition(name)] = name
	}
	for _, name := range names {
		mustPut(t, a, deliveries(name, 0, 1)...)
	}
	a.partitions.owned[0].end() // a reads no more messages of partition 0
	b := openWithFixedPartitions(t, s, c)
	seize(t, b, 0)
	a.index.mu.Lock()
	a.lease.until = time.Now().Add(-time.Second)
	a.index.mu.Unlock()
	if err := a.node.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ds := fetch(t, a, 1, names[:]...); ds[0].Destination != names[1] {
		t.Errorf("Fetch after a late heartbeat = %v; want only the delivery of %s", ds, names[1])
	}
	if ds := fetch(t, b, 1, names[:]...); ds[0].Destination != names[0] {
		t.Errorf("Fetch of the node that took over = %v; want only the delivery of %s", ds, names[0])
	}
}

// A node that has missed a heartbeat of its own declares no other node dead. The servers may have
// been unreachable, and then the other nodes missed heartbeats too.
func TestNodeThatMissedHeartbeatDeclaresNobodyDead(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Claim: 10 * time.Second, Partitions: 1}
		a, b := s.open(t, c), s.open(t, c)
		defer a.Close()
		defer b.Close()
		a.abandon()
		b.abandon()
		heartbeat := func() { // stores a heartbeat of a, but a does not get the server's answer
			t.Helper()
			if err := a.conn.store(t.Context(), &parcel{messages: []*nats.Msg{{Subject: a.conn.config.heartbeat(a.conn.id), Data: []byte("{}"), Header: nats.Header{headerRollup: {"sub"}}}}}); err != nil {
				t.Fatal(err)
			}
		}
		set := func(steady, until time.Duration) {
			a.lease.mu.Lock()
			defer a.lease.mu.Unlock()
			a.lease.steady, a.lease.until = time.Now().Add(steady), time.Now().Add(until)
		}
		declaresDead := func() bool { // whether a no longer counts b among the nodes
			t.Helper()
			peers, _, err := a.node.peers(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			return len(peers) == 1
		}
		end := time.Now().Add(2 * c.Claim)
		until(t, "b has been silent for two claims", func() bool { return time.Now().After(end) })
		heartbeat()
		if set(-time.Hour, -time.Second); declaresDead() {
			t.Error("a, whose own heartbeats were not stored, declares b dead; want that it does not")
		}
		// After a gap in its heartbeats, a node waits for a whole claim again.
		if err := a.node.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if declaresDead() {
			t.Error("a, which has just missed a heartbeat, declares b dead; want that it does not")
		}
		set(-time.Hour, a.lease.trusted()-c.Claim*8/10) // a has missed a heartbeat, and its claim has not expired
		if err := a.node.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if declaresDead() {
			t.Error("a, which has missed a heartbeat, declares b dead; want that it does not")
		}
		set(-time.Hour, a.lease.trusted())
		if err := a.node.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !declaresDead() {
			t.Error("a, which has missed no heartbeat, does not declare b dead; want that it does")
		}
	})
}

// A node that joins gets a partition once no delivery of the partition is claimed. No delivery is
// handed out twice.
func TestJoiningNodeGetsPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 64}
		a := ready(s.open(t, c))
		defer a.Close()
		const n, each = 40, 3
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint("d", i))
			mustPut(t, a, deliveries(names[i], 0, each)...)
		}
		held := fetch(t, a, n*each, names...)
		b := s.open(t, c)
		defer b.Close()
		until(t, "a drains a partition that b is to own", func() bool {
			a.index.mu.Lock()
			defer a.index.mu.Unlock()
			for _, p := range a.partitions.owned {
				if p != nil && p.state == draining {
					return true
				}
			}
			return false
		})
		settle(t, a, store.Done, held[:n]...)
		fetch(t, b, 0, names...)
		settle(t, a, store.Return, held[n:]...)
		var got []store.Delivery
		var both [2]bool
		until(t, "all returned deliveries are handed out", func() bool {
			for i, q := range []*Store{a, b} {
				ds, err := q.tryFetch(t.Context(), each, names...)
				if err != nil {
					t.Fatal(err)
				}
				both[i] = both[i] || len(ds) > 0
				got = append(got, ds...)
			}
			return len(got) >= len(held)-n
		})
		seen := make(map[string]bool)
		for _, d := range got {
			if key := d.Destination + " " + d.ID; seen[key] {
				t.Errorf("%s is handed out twice, want once", key)
			} else {
				seen[key] = true
			}
		}
		if len(got) != len(held)-n || both != [2]bool{true, true} {
			t.Errorf("got %d deliveries, by a and by b: %v; want %d, by both", len(got), both, len(held)-n)
		}
	})
}

// The last record of a partition can name a live node that does not serve the partition. Either no
// answer to that record reached the node, or the node began to leave before the answer came. Then
// the node takes the partition again if it should own it, and otherwise gives it away.
func TestPartitionThatItsOwnerDoesNotServeIsServed(t *testing.T) {
	for name, leaves := range map[string]bool{"no answer reaches the owner": false, "the owner begins to leave": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *testServer) {
				c := Config{Partitions: 32}
				var held atomic.Bool
				var tap atomic.Pointer[func()] // called before a sends records
				s.wrap = func(conn net.Conn) (net.Conn, error) {
					return &tapConn{heldConn{conn, &held}, func(b []byte) []byte {
						if bytes.Contains(b, []byte(headerWrite)) {
							if f := tap.Swap(nil); f != nil {
								(*f)()
							}
						}
						return b
					}}, nil
				}
				a := ready(s.open(t, c))
				defer a.Close()
				s.wrap = nil
				divided := func(b *Store) bool { // whether a and b serve all partitions, each those that it should own
					mine := append(a.partitions.mine(), b.partitions.mine()...)
					if len(mine) < c.Partitions { // ask the server only if it is worth it
						return false
					}
					peers, _, err := b.node.peers(t.Context(), 0)
					if err != nil {
						t.Fatal(err)
					}
					return !slices.ContainsFunc(mine, func(p *partition) bool { return rightful(peers, p.n) != p.conn.id })
				}
				former := s.open(t, c)
				until(t, "the partitions are divided", func() bool { return divided(former) })
				if n := len(former.partitions.mine()); n == 0 || n == c.Partitions {
					t.Fatalf("the second node owns %d partitions of %d, want some", n, c.Partitions)
				}
				taking := func() { held.Store(true) }
				if leaves {
					taking = func() { a.partitions.leaving.Store(true) } // as Release does first
				}
				tap.Store(&taking)
				if err := former.Close(); err != nil {
					t.Fatal(err)
				}
				until(t, "a takes partitions", func() bool { return tap.Load() == nil })
				b := s.open(t, c) // a has not heard of it yet
				defer b.Close()
				until(t, "the records of all partitions name a node", func() bool {
					all, _, err := b.balancer.holdings(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					return !slices.ContainsFunc(all, func(h holding) bool { return h.node == "" })
				})
				if leaves {
					if err := a.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(callTimeout + time.Second) // so long a gets no answers
					if n := len(a.partitions.mine()) + len(b.partitions.mine()); n == c.Partitions {
						t.Fatal("a serves all partitions that its records name, want that it has given up some for lack of an answer")
					}
					held.Store(false)
				}
				until(t, "the partitions are divided between a and b", func() bool { return divided(b) })
				if n := len(b.partitions.mine()); n == 0 || leaves && n < c.Partitions {
					t.Errorf("b owns %d partitions of %d, want some, and all if a leaves", n, c.Partitions)
				}
			})
		})
	}
}

// A node that has read an outdated record does not give away a partition that it has taken since.
func TestOutdatedRecordGivesNothingAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		a := ready(s.open(t, Config{Partitions: 1}))
		defer a.Close()
		outdated, _, err := a.balancer.holdings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.index.mu.Lock()
		a.partitions.owned[0].lose()
		a.index.mu.Unlock()
		if err := a.balancer.oversee(t.Context()); err != nil { // a takes the partition again
			t.Fatal(err)
		}
		<-partitionOf(a).ready
		if err := a.balancer.disown(t.Context(), []int{0}, outdated); err != nil {
			t.Errorf("disown = %v, want nil", err)
		}
		mustPut(t, a, deliveries("d", 0, 1)...)
		settle(t, a, store.Done, fetch(t, a, 1, "d")...)
		if now, _, err := a.balancer.holdings(t.Context()); err != nil || now[0].node != a.conn.id || now[0].seq == outdated[0].seq {
			t.Errorf("holdings = %+v, %v; want a record of %s after %d", now, err, a.conn.id, outdated[0].seq)
		}
	})
}

// The other node takes over a dead node's partitions by the time that the last heartbeat is as old
// as Config.Claim.
func TestPartitionsAreTakenOverWithinClaim(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 64, Claim: 9 * time.Second}
		a := ready(s.open(t, c))
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		time.Sleep(3*c.Claim + time.Second) // so that both may declare other nodes dead
		if n := len(b.partitions.mine()); n == 0 || n == c.Partitions {
			t.Fatalf("b owns %d partitions of %d, want some", n, c.Partitions)
		}
		a.abandon()
		began := time.Now()
		until(t, "b owns all partitions", func() bool { return len(b.partitions.mine()) == c.Partitions })
		if took := time.Since(began); took > c.Claim+100*time.Millisecond {
			t.Errorf("taken over after %v, want at most %v", took, c.Claim)
		}
	})
}

// A node was silent for so long that another node may take over its partitions. If it stores a
// heartbeat just before the other node does so, it keeps them.
func TestNodeBackInTimeKeepsItsPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 16, Claim: 9 * time.Second}
		a := ready(s.open(t, c))
		defer a.Close()
		var tap atomic.Pointer[func([]byte)]
		s.wrap = func(conn net.Conn) (net.Conn, error) {
			return &tapConn{conn, func(b []byte) []byte {
				if f := tap.Load(); f != nil {
					(*f)(b)
				}
				return b
			}}, nil
		}
		log := new(lines)
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
		b := s.open(t, c)
		defer b.Close()
		time.Sleep(3*c.Claim + time.Second) // so that b may declare a dead
		var silent atomic.Bool
		a.Present(func() ([]byte, bool) { return nil, !silent.Load() })
		synctest.Wait() // until the heartbeat that Present asks for is stored
		last := time.Now()
		silent.Store(true)
		back := func(sent []byte) { // b reads who owns the partitions
			if bytes.Contains(sent, []byte("*."+kindOwn)) && time.Since(last) > c.Claim && silent.CompareAndSwap(true, false) {
				if err := a.node.beat(context.Background()); err != nil {
					t.Errorf("heartbeat of a = %v, want that it is stored", err)
				}
			}
		}
		tap.Store(&back)
		time.Sleep(3 * c.Claim)
		if silent.Load() {
			t.Fatal("b has not read the owners after the claim of a, want that it has")
		}
		if n := log.count("took over"); n > 0 {
			t.Errorf("b took over %d partitions of a, want none", n)
		}
	})
}

// A node that crashes again and again leaves heartbeats. The other nodes remove them, because the
// server refuses to return more than 1,024 at once, and then no node could take over partitions.
func TestHeartbeatsOfDeadNodesAreRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1, Claim: 10 * time.Second}))
		defer q.Close()
		for i := range 30 {
			for n := range 50 {
				if err := q.conn.store(t.Context(), one(q.conn.config.heartbeat(fmt.Sprint("x", i, "-", n)), []byte("?"))); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * q.conn.config.Claim)
		if nodes, err := q.Nodes(t.Context()); err != nil || len(nodes) != 1 {
			t.Errorf("Nodes = %d nodes, %v; want 1", len(nodes), err)
		}
		if all, err := q.conn.lasts(t.Context(), 0, q.conn.config.heartbeat("*")); err != nil || len(all) != 1 {
			t.Errorf("the stream has %d heartbeats, %v; want 1", len(all), err)
		}
	})
}

// A store ignores heartbeats, records, dead letters and settings that it cannot read, and still
// reads the others.
func TestUnreadableMessagesHideNoOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 64, Claim: 10 * time.Second}
		a := ready(s.open(t, c))
		defer a.Close()
		mustPut(t, a, deliveries("d", 0, 2)...)
		settle(t, a, store.Bury, fetch(t, a, 2, "d")...)
		for _, subject := range []string{"node.x", "x.log.own", "99.log.own", "dead.x.y", "dead.0.y", "dead.1.=y", "document.0.=", "document.0.x"} {
			if err := a.conn.store(t.Context(), one(DefaultStream+"."+subject, []byte("?"))); err != nil {
				t.Fatal(err)
			}
		}
		b := s.open(t, c)
		defer b.Close()
		until(t, "each node owns partitions, and together they own all", func() bool {
			n, m := len(a.partitions.mine()), len(b.partitions.mine())
			return n > 0 && m > 0 && n+m == c.Partitions
		})
		if n := len(list(t, b, store.Query{})); n != 2 {
			t.Errorf("List returns %d, want 2", n)
		}
		for s, err := range b.Documents(t.Context(), "x", "") {
			t.Errorf("Documents yields %v, %v; want nothing", s, err)
		}
		if nodes, err := b.Nodes(t.Context()); err != nil || len(nodes) != 2 {
			t.Errorf("Nodes = %v, %v; want 2 nodes", nodes, err)
		}
	})
}

// The next owner of a partition does not hand out a delivery that the previous owner settled and
// purged. This holds even if the next owner read the delivery before the purge, and never saw the
// record that settled it.
func TestPurgedDeliveryIsNotHandedOutAgain(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for the mutex ruling stops its clock
	c := Config{Partitions: 1}
	a := openWithFixedPartitions(t, s, c)
	mustPut(t, a, deliveries("d", 0, 3)...)
	settle(t, a, store.Done, fetch(t, a, 3, "d")...)
	mustPut(t, a, deliveries("d", 3, 2)...)
	settle(t, a, store.Done, fetch(t, a, 2, "d")[0])
	all := logMessages(t, a)
	if len(all) != 5 { // the first record of a, a put, a record, a put, a record
		t.Fatalf("the log has %d messages, want 5", len(all))
	}
	a.partitions.owned[0].end() // a reads no more messages of partition 0
	b := openWithFixedPartitions(t, s, c)
	p := b.partitions.new(0)
	p.epoch, p.last = all[4].Sequence+1, all[4].Sequence+1
	b.partitions.owned[0] = p
	read := func(m *jetstream.RawStreamMsg) { p.saw(m.Sequence, &nats.Msg{Subject: m.Subject, Data: m.Data}) }
	read(all[0])
	read(all[1])
	if err := a.cleaner.clean(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if rest := logMessages(t, a); len(rest) != 2 || rest[0].Sequence != all[3].Sequence {
		t.Fatalf("got %d messages after the purge, want the last two", len(rest))
	}
	read(all[3])
	read(all[4])
	r := record{node: b.conn.id}
	read(&jetstream.RawStreamMsg{Subject: p.prefix + kindOwn, Sequence: p.epoch, Data: r.append(nil)})
	if ds := fetch(t, b, 1, "d"); ds[0].ID != "4" {
		t.Errorf("Fetch = delivery %s, want 4, the only one that waits", ds[0].ID)
	}
}

// A node that gives a partition away while a question waits for its answer, or loses it before it has
// made a change, lets the next owner answer. A change that is in its last record is made.
func TestNextOwnerAnswersQuestions(t *testing.T) {
	const read, record = `$JS.API.DIRECT.GET.S `, "HPUB S.0." + kindOwn + " "
	for name, held := range map[string]struct {
		subject string // of the requests of the owner that reach no server until it has begun to give the partition away
		busy    bool   // another record is being stored, so that the last one has the change
	}{
		"while it reads":             {read, false},
		"before it makes the change": {record, false},
		"with the change":            {record, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *testServer) {
				var holds atomic.Bool
				s.wrap = func(conn net.Conn) (net.Conn, error) {
					return &tapConn{conn, func(b []byte) []byte {
						if holds.Load() && (held.subject == record || bytes.Contains(b, []byte(`{"seq":`))) {
							b = bytes.ReplaceAll(b, []byte(held.subject), []byte(held.subject[:5]+"NOBODY "))
						}
						return b
					}}, nil
				}
				c := Config{Partitions: 1, Stream: "S"}
				owner, next := s.open(t, c), s.open(t, c)
				defer owner.Close()
				defer next.Close()
				until(t, "the node that should own the partition does", func() bool {
					peers, _, err := owner.node.peers(t.Context(), 0)
					if err != nil {
						t.Fatal(err)
					}
					if rightful(peers, 0) == next.conn.id {
						owner, next = next, owner
					}
					return owner.partitions.ready(0) != nil
				})
				owner.index.mu.Lock()
				owner.index.cacheRoom = 0
				owner.index.mu.Unlock()
				mustPut(t, owner, append(deliveries("listed", 0, 3), deliveries("changed", 0, 3)...)...)
				var refs []store.Ref
				for _, r := range list(t, owner, store.Query{Destinations: []string{"changed"}}) {
					refs = append(refs, r.Ref())
				}
				done := make(chan string)
				questions := 0
				ask := func() {
					for _, q := range []*Store{owner, next} {
						questions++
						go func() {
							page, _, err := q.List(t.Context(), store.Query{Destinations: []string{"listed"}}, 0, 10)
							done <- fmt.Sprint("List: ", len(page), " ", err)
						}()
					}
					questions++
					go func() {
						n, claimed, err := next.Discard(t.Context(), refs...)
						done <- fmt.Sprint("Discard: ", n-claimed, " ", err)
					}()
					synctest.Wait()
				}
				holds.Store(true)
				if held.subject == read {
					ask()
				}
				if held.busy {
					go owner.recorder.write(t.Context(), writesOf(owner.partitions.mine(), false)...)
					synctest.Wait()
				}
				released := make(chan error, 1)
				go func() { released <- owner.Release(t.Context()) }()
				synctest.Wait()
				if held.subject == record {
					ask()
				} else {
					until(t, "the next node owns the partition", func() bool { return next.partitions.ready(0) != nil })
				}
				holds.Store(false)
				for range questions {
					if got := <-done; got != "List: 3 <nil>" && got != "Discard: 3 <nil>" {
						t.Error(got)
					}
				}
				if err := <-released; err != nil {
					t.Errorf("Release: %v", err)
				}
				counts, err := next.Count(t.Context())
				if err != nil || counts.Waiting != 3 {
					t.Errorf("Count = %+v, %v; want 3 waiting", counts, err)
				}
			})
		})
	}
}
