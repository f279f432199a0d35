package filequeue_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// Erase removes the bodies of the user's deliveries from all files, in every state but claimed. The
// deliveries of other users survive a crash.
func TestEraseRemovesBytes(t *testing.T) { synctest.Test(t, testEraseRemovesBytes) }

func testEraseRemovesBytes(t *testing.T) {
	d := simdisk.New(1)
	d.SetCapacity(8 << 20)
	c := filequeue.Config{Logger: quiet, HistoryAge: time.Hour}
	s, err := filequeue.OpenOn(d, c)
	if err != nil {
		t.Fatal(err)
	}
	const n = 400
	secret, held := []byte("a secret of ann, "), 0
	for i := range n {
		if i == n/2 { // the history so far goes to a table
			time.Sleep(5 * time.Minute)
			synctest.Wait()
		}
		p := store.Put{Keep: i%5 != 0, Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: s.Now(), User: []string{"ann", "bob"}[i%2]}}
		p.Body = bytes.Repeat([]byte("others' text. "), 20)
		if p.User == "ann" {
			p.Body = bytes.Repeat(secret, 20)
		}
		out := make([]store.Result, 1)
		if err := s.Put(t.Context(), []store.Put{p}, out); err != nil {
			t.Fatal(err)
		}
		p.Claim = out[0].Claim
		p.Expires = p.Due.Add(time.Hour)
		p.Attempts = []store.Attempt{{At: p.Due, Try: 1, Answer: string(p.Body[:50])}}
		verdict := []store.Verdict{store.Return, store.Done, store.Retry, store.Bury, 0}[i%5]
		if i == 4 {
			held++ // stays claimed
		} else if verdict == 0 {
			verdict = store.Done
		}
		if i != 4 {
			if _, err := s.Settle(t.Context(), []store.Settlement{{Verdict: verdict, Delivery: p.Delivery, At: s.Now(), Reason: store.ReasonExpired}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	erased, claimed, err := s.Erase(t.Context(), "ann")
	if erased != n/2-held || claimed != held || err != nil {
		t.Errorf("Erase = %d, %d, %v; want %d, %d", erased, claimed, err, n/2-held, held)
	}
	found := 0
	after := d.Reboot(simdisk.Power)
	s.Close()
	for _, name := range after.Names() {
		found += bytes.Count(after.ReadFile(name), secret)
	}
	if found != 20*held {
		t.Errorf("the files have the user's text %d times, want %d, all of the claimed delivery", found, 20*held)
	}
	if s, err = filequeue.OpenOn(after, c); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if c, err := s.Count(t.Context()); err != nil || c.Waiting+c.Dead+c.Delivered != n/2+held || s.Lost() != 0 {
		t.Errorf("Count after a crash = %+v, %v, and %d lost; want %d in all, 0 lost", c, err, s.Lost(), n/2+held)
	}
}

// A damaged part of a table is no reason not to erase. It is left out of the new table, and all other
// deliveries are found there, also if the damaged part had only their paths.
func TestEraseInDamagedTable(t *testing.T) {
	for _, tt := range []struct {
		name string
		path string // its first occurrence is in the damaged block
		lost bool   // deliveries are lost
	}{{"records", "digest 600", true}, {"paths of a destination", "d\x02d1", false}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 4000
				r := newRig(t, keepsAll)
				r.d.SetCapacity(16 << 20)
				r.s.KeepInTables(1000)
				keepMany(t, r.s, n)
				synctest.Wait()
				if err := r.s.Close(); err != nil {
					t.Fatal(err)
				}
				name := r.tables()[0]
				b := r.d.ReadFile(name)
				b[bytes.Index(b, []byte(tt.path))] ^= 1
				r.d.WriteFile(name, b)
				r.open(keepsAll)
				defer r.s.Close()
				if erased, _, err := r.s.Erase(t.Context(), "user 17"); erased != 1 || err != nil {
					t.Errorf("Erase = %d, %v; want 1", erased, err)
				}
				c, err := r.s.Count(t.Context())
				listed, size := 0, int64(0)
				for _, destination := range []string{"d0", "d1"} {
					for d, err := range store.Records(t.Context(), r.s, store.Query{Destinations: []string{destination}}) {
						if listed, size = listed+1, size+d.Size(); err != nil || d.User == "user 17" {
							t.Errorf("List yields %s, %v", d.ID, err)
						}
					}
				}
				if lost := n - 1 - listed; c.Delivered != listed || c.DeliveredBytes != size || lost < 0 || lost > 100 || (lost > 0) != tt.lost || err != nil {
					t.Errorf("Count = %+v, %v, and %d with %d bytes are listed; want the same of %d, a few of them lost: %v", c, err, listed, size, n-1, tt.lost)
				}
				if len(r.tables()) != 1 || r.tables()[0] == name {
					t.Errorf("tables: %v; want one, and not %s", r.tables(), name)
				}
			})
		})
	}
}

// While Erase works, others claim, return and retry the deliveries of the user. Each delivery is
// erased, or Erase counts it as claimed and it can still be read.
func TestEraseFindsDeliveriesThatMove(t *testing.T) {
	s, err := filequeue.OpenOn(simdisk.New(1), filequeue.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 10_000 // more than Erase looks at without releasing the lock
	ps, out := make([]store.Put, n), make([]store.Result, n)
	for i := range ps {
		ps[i].Delivery = store.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: s.Now(), User: []string{"ann", "bob"}[i%2], Body: []byte("text")}
	}
	if err := s.Put(t.Context(), ps, out); err != nil {
		t.Fatal(err)
	}
	move := func(retries bool) {
		ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "a", Retries: retries, Max: 100}}, 1<<20, nil)
		if err != nil {
			t.Error(err)
		}
		ss := make([]store.Settlement, len(ds))
		for i := range ds {
			ss[i] = store.Settlement{Verdict: store.Return, Delivery: ds[i]}
			if i%2 == 0 {
				ss[i].Verdict, ss[i].Delivery.Expires = store.Retry, ds[i].Due.Add(time.Hour)
			}
		}
		if _, err := s.Settle(t.Context(), ss); err != nil {
			t.Error(err)
		}
	}
	var moving sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		moving.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					move(i%2 == 0)
				}
			}
		})
	}
	erased, claimed, err := s.Erase(t.Context(), "ann")
	close(done)
	moving.Wait()
	if err != nil || erased+claimed != n/2 {
		t.Errorf("Erase = %d, %d, %v; want %d together", erased, claimed, err, n/2)
	}
	left := map[string]int{}
	for d, err := range store.Records(t.Context(), s, store.Query{}) {
		if err != nil || string(d.Body) != "text" {
			t.Fatalf("List yields the body %q, %v", d.Body, err)
		}
		left[d.User]++
	}
	if left["ann"] != claimed || left["bob"] != n/2 || s.Lost() != 0 {
		t.Errorf("left: %v, and %d lost; want %d of ann, %d of bob, none lost", left, s.Lost(), claimed, n/2)
	}
}

// HistoryAge and HistoryBytes bound the history, to a sixteenth. The store removes the oldest deliveries
// first.
func TestHistoryIsBounded(t *testing.T) { synctest.Test(t, testHistoryIsBounded) }

func testHistoryIsBounded(t *testing.T) {
	d := simdisk.New(1)
	d.SetCapacity(8 << 20)
	s, err := filequeue.OpenOn(d, filequeue.Config{Logger: quiet, HistoryAge: time.Hour, HistoryBytes: 50_000})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	deliver := func(id int) {
		p := store.Put{Keep: true, Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint(id), Due: s.Now(), Body: make([]byte, 998)}}
		out := make([]store.Result, 1)
		if err := s.Put(t.Context(), []store.Put{p}, out); err != nil {
			t.Fatal(err)
		}
		p.Claim = out[0].Claim
		if _, err := s.Settle(t.Context(), []store.Settlement{{Verdict: store.Done, Delivery: p.Delivery, At: s.Now()}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
	wantDelivered := func(when string, least, most int) {
		t.Helper()
		if c, err := s.Count(t.Context()); err != nil || c.Delivered < least || c.Delivered > most || c.DeliveredBytes != 1000*int64(c.Delivered) {
			t.Errorf("%s: Count = %+v, %v; want %d to %d delivered, of 1,000 bytes", when, c, err, least, most)
		}
	}
	for i := range 80 {
		deliver(10 + i)
		time.Sleep(time.Second)
	}
	wantDelivered("after 80", 46, 50)
	for e, err := range store.Records(t.Context(), s, store.Query{States: []store.State{store.StateDelivered}}) {
		if err != nil || e.ID < "40" {
			t.Errorf("List yields %s, %v; want the latest 50, from 40 on", e.ID, err)
		}
	}
	time.Sleep(time.Hour - 20*time.Second)
	synctest.Wait()
	wantDelivered("20 seconds before the hour is over", 19, 23)
	time.Sleep(4 * time.Minute)
	synctest.Wait()
	wantDelivered("after a sixteenth of an hour more", 0, 0)
}

// While a large file is freed, all syncs may have to wait. So before a file is removed, it is shortened by
// an eighth of a segment at a time, with a sync after each.
func TestSpaceIsFreedBitByBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, keepsAll)
		const step = 64 << 10 / 8 // of the smallest segment
		var mu sync.Mutex
		sizes, unsynced, removed := make(map[string]int64), make(map[string]int64), make(map[string]int)
		r.d.OnOp(func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			kind, _, _ := strings.Cut(op.Name, "-")
			table := kind == "history"
			switch op.Kind {
			case simdisk.Write:
				sizes[op.Name] = max(sizes[op.Name], op.Off+int64(op.Len))
			case simdisk.Sync:
				unsynced[op.Name] = 0
			case simdisk.Truncate:
				unsynced[op.Name] += sizes[op.Name] - op.Off
				if sizes[op.Name] = op.Off; table && unsynced[op.Name] > step {
					t.Errorf("%d bytes of %s are freed at once, want at most %d", unsynced[op.Name], op.Name, step)
				}
			case simdisk.Remove:
				removed[kind]++
				if table || kind == "segment" {
					if n := sizes[op.Name] + unsynced[op.Name]; n > step {
						t.Errorf("to remove %s frees %d bytes, want at most %d", op.Name, n, step)
					}
				}
			}
			return nil
		})
		r.keepSome(60)
		r.s.KeepInTables(60_000)
		for range 60 {
			r.settle(store.Done, r.put("ab", 2000, true))
		}
		time.Sleep(time.Minute)
		for range 100 {
			r.settle(store.Done, r.put("a", 5000, false))
			synctest.Wait()
		}
		if _, _, err := r.s.Erase(t.Context(), "ab"); err != nil {
			t.Fatal(err)
		}
		if err := r.s.Close(); err != nil {
			t.Fatal(err)
		}
		if removed["history"] == 0 || removed["segment"] == 0 {
			t.Errorf("%v files were removed, want tables and segments among them", removed)
		}
	})
}
