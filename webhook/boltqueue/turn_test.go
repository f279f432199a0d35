package boltqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
)

// While the database is being written, puts and settlements go on, until there is as much
// as memory may take: then puts wait, and are stored.
func TestPutsGoOnWhileDatabaseIsWritten(t *testing.T) {
	synctest.Test(t, testPutsGoOn)
}

func testPutsGoOn(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	q.commit1 = func(tx *bolt.Tx) error {
		held <- struct{}{}
		<-hold
		return tx.Commit()
	}
	const size, puts = 2 << 20, 40
	var stored atomic.Int64
	put := func() error {
		d := webhook.Delivery{Destination: "a", ID: fmt.Sprint(stored.Load()), Body: make([]byte, size), Due: time.Now().Add(-time.Second)}
		_, err := q.Put(ctx, d)
		stored.Add(1)
		return err
	}
	for range 1 + tailBytes/size {
		if err := put(); err != nil {
			t.Fatal(err)
		}
	}
	<-held
	// What is being written may be settled.
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 {
		t.Fatalf("Lease = %d, %v", len(ds), err)
	}
	if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: ds[0]}); err != nil {
		t.Fatal(err)
	}
	all := make(chan error, 1)
	go func() {
		var err error
		for err == nil && stored.Load() < puts {
			err = put()
		}
		all <- err
	}()
	synctest.Wait()
	if q.errands.len() == 0 {
		t.Fatalf("after %d puts of %d bytes none waits", stored.Load(), size)
	}
	first := stored.Load()
	if want := int64((tailBytes + maxTail) / size); first < want-2 || first > want+2 {
		t.Errorf("%d puts are stored before one waits, want about %d", first, want)
	}
	p, err := Open(crash(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	close(hold)
	if err := <-all; err != nil {
		t.Error(err)
	}
	for q, want := range map[*Queue]int{p: int(first) - 1, q: puts - 1} {
		counts, err := q.Count(ctx)
		if err != nil || counts.Waiting != want {
			t.Errorf("Count = %+v, %v, want %d waiting", counts, err, want)
		}
		if err := q.Check(ctx); err != nil {
			t.Error(err)
		}
	}
}

// While the database cannot be written, and puts have to wait for it, what is put fails
// and what is settled with it does not.
func TestSettlementsPassPutsThatWait(t *testing.T) { synctest.Test(t, testSettlementsPassPutsThatWait) }

func testSettlementsPassPutsThatWait(t *testing.T) {
	ctx := t.Context()
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var disk disk
	disk.spoil(q)
	prepared := func(id string) *request {
		r := &request{done: make(chan struct{})}
		if err := r.prepare([]webhook.Delivery{{Destination: "a", ID: id, Due: time.Now().Add(-time.Second)}}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := q.do(ctx, prepared("1")); err != nil {
		t.Fatal(err)
	}
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 {
		t.Fatal(len(ds), err)
	}
	disk.mu.Lock()
	disk.ends = make([]int, 100)
	disk.mu.Unlock()
	if err := q.do(ctx, &request{work: nothing}); !errors.Is(err, errDisk) {
		t.Fatalf("a transaction: %v, want %v", err, errDisk)
	}
	crowd := func(bytes int64) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.tail.bytes += bytes // as if so much was put
	}
	crowd(2 * maxTail)
	put := prepared("2")
	done := &request{done: make(chan struct{}), ends: []end{{lease: ds[0].Claim, verdict: webhook.Done}}}
	q.inbox.mu.Lock()
	q.inbox.requests = append(q.inbox.requests, put, done)
	q.inbox.mu.Unlock()
	q.inbox.wake <- struct{}{}
	<-put.done
	<-done.done
	if !errors.Is(put.err, errDisk) || done.err != nil {
		t.Errorf("the put: %v, want %v; the settlement: %v", put.err, errDisk, done.err)
	}
	crowd(-2 * maxTail)
	disk.mend()
	if err := q.do(ctx, prepared("2")); err != nil {
		t.Errorf("the put once the disk works again: %v", err)
	}
	if counts, err := q.Count(ctx); err != nil || counts.Waiting != 1 {
		t.Errorf("Count = %+v, %v, want 1 waiting", counts, err)
	}
}

// A Lease that wants what is being moved to the database hands out what else becomes due
// meanwhile, and ends with its context.
func TestLeaseGoesOnWhileDatabaseIsWritten(t *testing.T) {
	synctest.Test(t, testLeaseGoesOn)
}

func testLeaseGoesOn(t *testing.T) {
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	q.commit1 = func(tx *bolt.Tx) error {
		held <- struct{}{}
		<-hold
		return tx.Commit()
	}
	defer close(hold)
	const size = 2 << 20
	put := func(destination string, id int, due time.Time, body int) {
		d := webhook.Delivery{Destination: destination, ID: fmt.Sprint(id), Body: make([]byte, body), Due: due}
		if _, err := q.Put(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Second)
	for i := range 1 + tailBytes/size {
		put("moved", i, past, size)
	}
	<-held
	type result struct {
		ds  []webhook.Delivery
		err error
	}
	lease := func(ctx context.Context) <-chan result {
		c := make(chan result, 1)
		go func() {
			ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
			c <- result{ds, err}
		}()
		synctest.Wait() // it has begun
		return c
	}
	for i, due := range []time.Duration{-time.Second, 50 * time.Millisecond} {
		c := lease(t.Context())
		put("other", i, time.Now().Add(due), 1)
		time.Sleep(due)
		synctest.Wait()
		select {
		case r := <-c:
			if r.err != nil || len(r.ds) != 1 || r.ds[0].Destination != "other" {
				t.Fatalf("Lease = %d deliveries, %v, want the one that is not being moved", len(r.ds), r.err)
			}
		default:
			t.Fatalf("Lease waits for the database with a delivery that is due in %v", due)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := lease(ctx)
	cancel()
	synctest.Wait()
	select {
	case r := <-c:
		if !errors.Is(r.err, context.Canceled) {
			t.Errorf("Lease = %v, want that it was canceled", r.err)
		}
	default:
		t.Error("Lease waits for the database after its context has ended")
	}
}
