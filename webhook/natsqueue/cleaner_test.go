package natsqueue

import (
	"bytes"
	"errors"
	"fmt"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// logMessages returns the messages in the log of partition 0.
func logMessages(t *testing.T, s *Store) (all []*jetstream.RawStreamMsg) {
	t.Helper()
	for m, err := range s.conn.list(t.Context(), s.conn.config.prefix(0)+"log.*", 1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// The store delivers and purges all other deliveries if it cannot read a delivery, a message or a
// record. It sets the unreadable bytes aside in the stream.
func TestDamagedMessagesAreSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1, Claim: time.Minute}))
		p := partitionOf(q)
		mustPut(t, q, deliveries("d", 0, 3)...)
		good, err := deliveries("d", 3, 1)[0].AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		mixed := record{records: []stored{{data: []byte("?")}, {data: good}, {}}}
		damaged := []*parcel{one(p.prefix+kindPut, []byte("?")), one(p.prefix+kindPut, mixed.append(nil))}
		if err := q.conn.store(t.Context(), damaged...); err != nil {
			t.Fatal(err)
		}
		mustPut(t, q, deliveries("d", 4, 3)...)
		settle(t, q, store.Done, fetch(t, q, 7, "d")[:5]...)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		// The log gets an unreadable record before the first record of the next owner.
		q = ready(s.open(t, Config{Partitions: 1, Claim: time.Minute}))
		defer func() { q.Close() }()
		q.abandon()
		if err := q.conn.store(t.Context(), one(p.prefix+kindOwn, []byte("?"))); err != nil {
			t.Fatal(err)
		}
		broken := q
		defer broken.Close()
		q = s.open(t, Config{Partitions: 1, Claim: time.Minute})
		until(t, "a node owns the partition", func() bool { return partitionOf(q) != nil })
		settle(t, ready(q), store.Done, fetch(t, q, 2, "d")...)
		ready(q).cleaner.clean(t.Context(), true)
		until(t, "the log has only the last record", func() bool { return len(logMessages(t, q)) == 1 })
		var aside []string
		for m, err := range q.conn.list(t.Context(), p.prefix+kindDamaged, 1) {
			if err != nil {
				t.Fatal(err)
			}
			aside = append(aside, string(m.Data))
		}
		slices.Sort(aside)
		if diff := cmp.Diff([]string{"", "?", "?", "?"}, aside); diff != "" {
			t.Errorf("set aside (-want +got)\n%s", diff)
		}
		if counts, err := q.Count(t.Context()); err != nil || counts.Waiting != 0 {
			t.Errorf("Count = %+v, %v; want nothing", counts, err)
		}
	})
}

// A message with more damaged deliveries than an atomic batch has messages is set aside in several
// batches.
func TestManyDamagedDeliveriesAreSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		p := partitionOf(q)
		const n = maxBatch + 200
		damaged := record{records: slices.Repeat([]stored{{data: []byte("?")}}, n)}
		if err := q.conn.store(t.Context(), one(p.prefix+kindPut, damaged.append(nil))); err != nil {
			t.Fatal(err)
		}
		mustPut(t, q, deliveries("d", 0, 1)...)
		settle(t, q, store.Done, fetch(t, q, 1, "d")...)
		if err := q.cleaner.clean(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		until(t, "the log has only the last record", func() bool { return len(logMessages(t, q)) == 1 })
		aside := 0
		for _, err := range q.conn.list(t.Context(), p.prefix+kindDamaged, 1) {
			if aside++; err != nil {
				t.Fatal(err)
			}
		}
		if aside != n {
			t.Errorf("%d deliveries were set aside, want %d", aside, n)
		}
	})
}

// Erase removes the bytes of the user's deliveries from the stream. It keeps the other deliveries
// of the same messages.
func TestEraseLeavesNoBytes(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		ds := deliveries("d", 0, 20)
		for i := range ds {
			if ds[i].User = "bob"; i%5 == 0 {
				ds[i].User, ds[i].Body = "ann", []byte("a secret of ann")
			}
		}
		mustPut(t, q, ds...)
		if n, claimed, err := q.Erase(t.Context(), "ann"); n != 4 || claimed != 0 || err != nil {
			t.Errorf("Erase = %d, %d, %v; want 4, 0", n, claimed, err)
		}
		until(t, "the stream has no bytes of the user ann", func() bool {
			for _, m := range logMessages(t, q) {
				if bytes.Contains(m.Data, []byte("secret")) {
					return false
				}
			}
			return true
		})
		fetch(t, q, 16, "d")
	})
}

// If a node closes the store right after Erase, the next owner of the partition removes the bytes of
// the user.
func TestEraseIsFinishedByNextOwner(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1, Claim: time.Minute}
		q := ready(s.open(t, c))
		ds := deliveries("d", 0, 4)
		ds[2].User, ds[2].Body = "ann", []byte("a secret of ann")
		mustPut(t, q, ds...)
		if n, claimed, err := q.Erase(t.Context(), "ann"); n != 1 || claimed != 0 || err != nil {
			t.Errorf("Erase = %d, %d, %v; want 1, 0", n, claimed, err)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q = ready(s.open(t, c))
		defer q.Close()
		time.Sleep(10 * cleanEvery)
		for _, m := range logMessages(t, q) {
			if bytes.Contains(m.Data, []byte("secret")) {
				t.Errorf("message %d has bytes of the user ann, want none", m.Sequence)
			}
		}
		fetch(t, q, 3, "d")
	})
}

// Clean shrinks a log in which few deliveries wait, even if one of them is in the first message.
// The dedup window still has the ids of purged deliveries.
func TestCleanShrinksLogWithFewWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1}
		q := ready(s.open(t, c))
		const n, each = 10, 20
		var names []string
		size := func() (n int) {
			for _, m := range logMessages(t, q) {
				n += len(m.Data)
			}
			return n
		}
		for i := range n {
			names = append(names, fmt.Sprint("d", i))
			ds := deliveries(names[i], 0, each)
			for j := range ds {
				ds[j].Body = bytes.Repeat([]byte("x"), 20_000)
			}
			mustPut(t, q, ds...)
			settle(t, q, store.Done, fetch(t, q, each, names[i])[1:]...)
		}
		until(t, "the log shrinks by itself", func() bool { return size() < 4*n*20_000+slack+slack/2 })
		if err := q.cleaner.clean(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		until(t, "the log has little more than the waiting deliveries", func() bool { return size() < 2*n*20_000 })
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q = ready(s.open(t, c))
		defer q.Close()
		for _, name := range names {
			if n, err := q.tryPut(t.Context(), deliveries(name, 0, each)...); n != 0 || err != nil {
				t.Errorf("Put of purged deliveries = %d, %v; want 0", n, err)
			}
		}
		fetch(t, q, n, names...)
	})
}

// The stream keeps at most about DedupMax keys of purged deliveries for a partition, the latest ones.
func TestKeysAreBoundedByCount(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		const n, most = 50, 200
		c := Config{Partitions: 1, DedupMax: most}
		q := ready(s.open(t, c))
		defer q.Close()
		p := partitionOf(q)
		for round := range 20 {
			mustPut(t, q, deliveries("d", n*round, n)...)
			settle(t, q, store.Done, fetch(t, q, n, "d")...)
			if err := q.cleaner.clean(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			keys, last := 0, uint64(0)
			for m, err := range q.conn.list(t.Context(), p.prefix+kindKey, 1) {
				if err != nil {
					t.Fatal(err)
				}
				keys, last = keys+len(m.Data)/16, m.Sequence
			}
			if want := min(n*(round+1), most); keys != want {
				t.Fatalf("after %d deliveries the stream has %d keys, want %d", n*(round+1), keys, want)
			}
			until(t, "the owner has read the keys", func() bool {
				q.index.mu.Lock()
				defer q.index.mu.Unlock()
				return p.read >= last
			})
		}
		q.Close()
		q = ready(s.open(t, c))
		defer q.Close()
		if stored, err := q.tryPut(t.Context(), deliveries("d", 18*n, 2*n)...); stored != 0 || err != nil {
			t.Errorf("the next owner stored %d of the latest deliveries again, %v; want none", stored, err)
		}
	})
}

// Fetch reads deliveries from the stream if the cache had no room for them.
func TestFetchReadsWhatCacheHasNoRoomFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 2, Logger: slog.New(slog.DiscardHandler)}))
		q.index.cacheRoom = 10_000
		defer q.Close()
		for i := range 20 {
			mustPut(t, q, append(deliveries("a", 100*i, 10), deliveries("b", 100*i, 10)...)...)
		}
		q.index.mu.Lock()
		if q.index.cacheRoom < 0 || q.index.cacheRoom > 5_000 {
			t.Errorf("the cache has room for %d bytes of 10,000, want less than half, as two lanes share it", q.index.cacheRoom)
		}
		q.index.mu.Unlock()
		ds := fetch(t, q, 400, "a", "b")
		for i := range ds {
			if string(ds[i].Body) != ds[i].ID {
				t.Fatalf("delivery %s has the body %q, want its ID", ds[i].ID, ds[i].Body)
			}
		}
		settle(t, q, store.Return, ds...)
		settle(t, q, store.Done, fetch(t, q, 400, "a", "b")...)
		fetch(t, q, 0, "a", "b")
		if q.index.cacheRoom != 10_000 {
			t.Errorf("with no deliveries left, the cache has room for %d bytes, want 10,000", q.index.cacheRoom)
		}
	})
}

// The largest delivery that Put takes can also be retried, buried and retried again, even though its
// attempts make it larger.
func TestLargestDeliveryCanBeRetriedAndBuried(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		d := deliveries("d", 0, 1)[0]
		d.Body = make([]byte, maxPayload/2)
		record, err := d.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Body = make([]byte, len(d.Body)+maxPayload-headerRoom-len(record)+1)
		if n, err := q.tryPut(t.Context(), d); err == nil {
			t.Fatalf("Put of a delivery that is one byte too large = %d, nil; want an error", n)
		}
		d.Body = d.Body[1:]
		mustPut(t, q, d)
		d = fetch(t, q, 1, "d")[0]
		d.Tries, d.Expires = 1<<53, time.Now().Add(time.Hour)
		for range store.MaxEndpoints {
			d.Closed = append(d.Closed, store.Closed{Endpoint: 1 << 63, Until: d.Expires})
		}
		for range store.MaxAttempts {
			d.Attempts = append(d.Attempts, store.Attempt{At: time.Now(), Endpoint: strings.Repeat("x", 1000), Error: strings.Repeat("x", 256), Answer: strings.Repeat("x", 256)})
		}
		settle(t, q, store.Retry, d)
		again := fetch(t, q, 1, "d")[0]
		if again.Tries != d.Tries || len(again.Closed) != len(d.Closed) || len(again.Body) != len(d.Body) {
			t.Errorf("after the retry: got %d tries, %d endpoints closed and %d bytes; want %d, %d and %d", again.Tries, len(again.Closed), len(again.Body), d.Tries, len(d.Closed), len(d.Body))
		}
		again.Attempts = d.Attempts
		settle(t, q, store.Bury, again)
		for _, dead := range list(t, q, store.Query{}) {
			if len(dead.Body) != len(d.Body) {
				t.Fatalf("the dead letter has a body of %d bytes; want %d", len(dead.Body), len(d.Body))
			}
			if n, err := q.Revive(t.Context(), dead.Ref()); n != 1 || err != nil {
				t.Fatalf("Revive = %d, %v; want 1", n, err)
			}
		}
		fetch(t, q, 1, "d")
	})
}

// A step of the cleaner that keeps failing is a warning, and Failing has it. The partitions behind a
// partition that cannot be cleaned are cleaned nevertheless.
func TestFailingCleanerIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveUpTo(t, 0, &server.User{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.PURGE.>"}},
		}})
		log := new(lines)
		q := openOn(t, connect(t, "", nats.InProcessServer(s), nats.UserInfo("u", "p")), Config{Partitions: 1, Claim: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))})
		ready(q)
		if n := len(q.Failing()); n != 0 {
			t.Errorf("%d steps fail at the beginning, want none", n)
		}
		mustPut(t, q, deliveries("d", 0, 1)...)
		settle(t, q, store.Done, fetch(t, q, 1, "d")...)
		time.Sleep(2 * time.Minute)
		if _, ok := q.Failing()["clean"]; !ok || log.count("a maintenance step keeps failing") != 1 {
			t.Errorf("Failing = %v, log %s; want the step clean, and one warning", q.Failing(), &log.text)
		}
		q.abandon()
		q.end()
	})
}

// If the servers lose a message, the store still delivers the rest of the lane, and cleans the log.
func TestLostMessageHidesNoOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		q.index.cacheRoom = 0
		defer q.Close()
		for i := range 5 {
			mustPut(t, q, deliveries("d", 10*i, 10)...)
		}
		lost := logMessages(t, q)[2]
		if _, err := q.conn.delete(t.Context(), lost.Sequence); err != nil || !strings.HasSuffix(lost.Subject, kindPut) {
			t.Fatalf("deleting message %s: %v; want a put, and no error", lost.Subject, err)
		}
		settle(t, q, store.Done, fetch(t, q, 40, "d")...)
		for range 2 { // the first one sets the lost message aside, the second one purges the rest
			if err := q.cleaner.clean(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		if all := logMessages(t, q); len(all) != 1 {
			t.Errorf("got %d messages in the log, want only the last record", len(all))
		}
	})
}

// Fetch and Erase find a delivery at its new place if it is moved in the stream while they read.
func TestMovedDeliveryIsFound(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		q.index.cacheRoom = 0
		defer q.Close()
		const n = 300
		ds := deliveries("d", 0, n+n/10)
		for i := range ds[n:] {
			ds[n+i].User = "ann"
		}
		mustPut(t, q, ds...)
		p := partitionOf(q)
		var mover sync.WaitGroup
		defer mover.Wait()
		mover.Go(func() {
			for range 20 {
				q.index.mu.Lock()
				moving := slices.DeleteFunc(slices.Clone(p.order), func(b *block) bool { return b.left == 0 })
				q.index.mu.Unlock()
				w, err := q.cleaner.moving(t.Context(), p, moving)
				if err == nil && w != nil {
					err = q.recorder.write(t.Context(), w)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		if erased, claimed, err := q.Erase(t.Context(), "ann"); erased != n/10 || claimed != 0 || err != nil {
			t.Errorf("Erase = %d, %d, %v; want %d", erased, claimed, err, n/10)
		}
		for range 50 {
			settle(t, q, store.Return, fetch(t, q, n, "d")...)
		}
		for _, d := range fetch(t, q, n, "d") {
			if string(d.Body) != d.ID {
				t.Errorf("delivery %s has the body %q, want its ID", d.ID, d.Body)
			}
		}
	})
}

// A change that needs several parts counts a claimed delivery once, even if it is moved between two
// parts.
func TestChangeCountsMovedDeliveryOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		const n, held = pageLen + 50, 10
		mustPut(t, q, deliveries("d", 0, n)...)
		if ds, err := q.tryFetch(t.Context(), held, "d"); len(ds) != held || err != nil {
			t.Fatalf("Fetch = %d, %v; want %d", len(ds), err, held)
		}
		p := partitionOf(q)
		ask := question{Kind: askChange, Change: changeDiscard}
		for _, r := range list(t, q, store.Query{}) {
			ask.Refs = append(ask.Refs, r.Ref())
		}
		changed, claimed := 0, 0
		for len(ask.Refs) > 0 {
			a, err := q.asker.ask(t.Context(), ask)
			if err != nil {
				t.Fatal(err)
			}
			changed, claimed, ask.Refs = changed+a.Changed, claimed+a.Claimed, ask.Refs[a.Done:]
			w, err := q.cleaner.moving(t.Context(), p, slices.DeleteFunc(slices.Clone(p.order), func(b *block) bool { return b.left == 0 }))
			if err == nil {
				err = q.recorder.write(t.Context(), w)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if changed != n-held || claimed != held {
			t.Errorf("Discard = %d, %d; want %d, %d", changed, claimed, n-held, held)
		}
	})
}

// Two writes that move the same messages move each delivery once.
func TestTwoWritesMoveADeliveryOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		const n = 3
		mustPut(t, q, deliveries("d", 0, n)...)
		p := partitionOf(q)
		var both []*write
		for range 2 {
			w, err := q.cleaner.moving(t.Context(), p, slices.DeleteFunc(slices.Clone(p.order), func(b *block) bool { return b.left == 0 }))
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, w)
		}
		q.recorder.storeWrites(both)
		moved := 0
		for _, m := range logMessages(t, q) {
			if r, err := parseRecord(m.Data); err == nil && strings.HasSuffix(m.Subject, kindOwn) {
				moved += len(r.records)
			}
		}
		if moved != n {
			t.Errorf("%d deliveries were moved, want %d", moved, n)
		}
		settle(t, q, store.Done, fetch(t, q, n, "d")...)
	})
}

// MaxBytes bounds Put, but not Settle. Settled deliveries make room for new ones.
func TestMaxBytesBoundsPutsOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 2, MaxBytes: 1 << 20}))
		defer q.Close()
		fill := func(from int) (n int) {
			t.Helper()
			for ; ; n++ {
				d := deliveries("d", from+n, 1)[0]
				d.Body = make([]byte, 50_000)
				switch _, err := q.tryPut(t.Context(), d); {
				case errors.Is(err, store.ErrQueueFull):
					return n
				case err != nil || n > 100:
					t.Fatalf("Put number %d = %v, want ErrQueueFull", n, err)
				}
			}
		}
		n := fill(0)
		ds := fetch(t, q, n, "d")
		for i := range ds {
			ds[i].Expires = time.Now().Add(time.Hour)
		}
		settle(t, q, store.Retry, ds...) // writes their bodies again
		if more := fill(1000); more > 1 {
			t.Errorf("a full store took %d puts, want at most 1", more)
		}
		settle(t, q, store.Done, fetch(t, q, n, "d")[:n/2]...)
		more := 0 // what the node has not read yet of its own log cannot be purged
		until(t, "the store takes as many puts as half of the deliveries that are done", func() bool {
			more += fill(2000 + more)
			return more >= n/4
		})
	})
}

// When the server's storage is full, Put returns an error, and the store still hands out and
// settles the waiting deliveries.
func TestServerFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveUpTo(t, 4<<20)
		q := ready(s.open(t, Config{Partitions: 2}))
		defer q.Close()
		until(t, "the store has its reserve", q.conn.reserve.Load)
		n := 0
		for ; ; n++ {
			d := deliveries("d", n, 1)[0]
			d.Body = make([]byte, 50_000)
			_, err := q.tryPut(t.Context(), d)
			if errors.Is(err, store.ErrQueueFull) {
				break
			}
			if err != nil || n > 100 {
				t.Fatalf("Put number %d = %v, want ErrQueueFull", n, err)
			}
		}
		for i := 0; ; i++ { // with small deliveries to the last byte
			if _, err := q.tryPut(t.Context(), deliveries("d", 10_000+i, 1)...); err != nil {
				break
			}
			n++
		}
		ds := fetch(t, q, n, "d")
		settle(t, q, store.Done, ds[0])
		settle(t, q, store.Done, ds[1:]...)
		until(t, "the server has room for a put", func() bool {
			_, err := q.tryPut(t.Context(), deliveries("d", 20_000, 1)...)
			return err == nil
		})
	})
}

// Erase purges a record that contains a delivery of the user. The store keeps the settlements of
// other deliveries in that record: the next owner does not hand out a settled delivery.
func TestEraseKeepsSettlementsOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1, Claim: time.Minute}))
		ds := deliveries("d", 0, 3)
		for i := range ds {
			ds[i].User = fmt.Sprint("u-", i)
			mustPut(t, q, ds[i]) // the first one waits at the beginning of the log
		}
		got := fetch(t, q, 3, "d")
		settle(t, q, store.Return, got[0])
		got[2].Due, got[2].Expires = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		ss := append(settlements(store.Done, got[1]), settlements(store.Retry, got[2])...) // in one record
		if n, err := q.Settle(t.Context(), ss); n != 2 || err != nil {
			t.Fatalf("Settle = %d, %v; want 2", n, err)
		}
		if erased, claimed, err := q.Erase(t.Context(), "u-2"); erased != 1 || claimed != 0 || err != nil {
			t.Fatalf("Erase = %d, %d, %v; want 1, 0", erased, claimed, err)
		}
		until(t, "no record names the user", func() bool {
			return !slices.ContainsFunc(logMessages(t, q), func(m *jetstream.RawStreamMsg) bool {
				return strings.HasSuffix(m.Subject, kindOwn) && bytes.Contains(m.Data, []byte("u-2"))
			})
		})
		for range 2 {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			q = ready(s.open(t, Config{Partitions: 1, Claim: time.Minute}))
			if d := fetch(t, q, 1, "d"); d[0].ID != "0" {
				t.Errorf("Fetch = delivery %s, want 0, the only one that waits", d[0].ID)
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
