package boltqueue

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// However much is settled at once, an entry of the journal holds no more than a commit
// does, or one call.
func TestSettlementsShareEntries(t *testing.T) {
	for _, tt := range []struct {
		name         string
		calls, each  int // settlements of a call
		body         int
		verdict      webhook.Verdict
		entries, max int
	}{
		{"many rows", 40, 500, 0, webhook.Done, 3, maxGroupRows * 64},
		{"large rows", 10, 100, 8000, webhook.Retry, 2, maxGroupBytes},
		{"calls that are larger", 2, 600, 8000, webhook.Retry, 2, 600 * 8400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, err := Open(filepath.Join(t.TempDir(), "queue.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			now := time.Now()
			ds := make([]webhook.Delivery, tt.calls*tt.each)
			for i := range ds {
				ds[i] = webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Body: make([]byte, tt.body), Due: now}
			}
			for some := range slices.Chunk(ds, 500) {
				if _, err := q.Put(t.Context(), some...); err != nil {
					t.Fatal(err)
				}
			}
			ds, _, err = q.Lease(t.Context(), webhook.LeaseRequest{Max: len(ds), Until: now.Add(time.Hour)}, nil)
			if err != nil || len(ds) != tt.calls*tt.each {
				t.Fatalf("Lease = %d, %v", len(ds), err)
			}
			checkpointNow(t, q)
			entries := 0
			for _, j := range q.journals {
				write := j.write
				j.write = func(b []byte, off int64) (int, error) {
					if grows := len(bytes.TrimLeft(b, "\x00")) == 0; off >= entriesStart && !grows && len(b) > nextSize {
						if entries++; len(b) > entryHeader+tt.max {
							t.Errorf("an entry of %d bytes, want at most %d", len(b), tt.max)
						}
					}
					return write(b, off)
				}
			}
			var group []*request
			for some := range slices.Chunk(ds, tt.each) {
				ss := make([]webhook.Settlement, len(some))
				for i := range some {
					ss[i] = webhook.Settlement{Verdict: tt.verdict, Delivery: some[i]}
				}
				r := &request{done: make(chan struct{}), ends: make([]end, len(ss))}
				which := make([]int, len(ss))
				for i, s := range ss {
					which[i] = i
					r.ends[i] = end{lease: s.Delivery.Claim, verdict: s.Verdict, at: now.UnixMicro()}
				}
				if tt.verdict == webhook.Retry {
					if err := q.encode(r, ss, which); err != nil {
						t.Fatal(err)
					}
				}
				group = append(group, r)
			}
			q.inbox.mu.Lock()
			q.inbox.requests = append(q.inbox.requests, group...)
			q.inbox.mu.Unlock()
			q.inbox.wake <- struct{}{}
			for i, r := range group {
				if <-r.done; r.err != nil {
					t.Errorf("call %d: %v", i, r.err)
				}
			}
			if entries < tt.entries {
				t.Errorf("%d entries, want at least %d", entries, tt.entries)
			}
			want := 0
			if tt.verdict == webhook.Retry {
				want = len(ds)
			}
			if counts, err := q.Count(t.Context()); err != nil || counts.Waiting != want || counts.Claimed != 0 {
				t.Errorf("Count = %+v, %v, want %d waiting", counts, err, want)
			}
		})
	}
}

// A call that is too long for an entry becomes several.
func TestSettleOfAnySize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3*maxSettled>>20 + 1
	var ds []webhook.Delivery
	for i := range n {
		ds = append(ds, webhook.Delivery{Destination: "crm", ID: fmt.Sprint("m", i), Type: "track", Body: make([]byte, 1<<20), Due: time.Now()})
	}
	if stored, err := q.Put(t.Context(), ds...); stored != n || err != nil {
		t.Fatalf("Put = %d, %v", stored, err)
	}
	leased, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(leased) != n {
		t.Fatalf("Lease = %d deliveries, %v", len(leased), err)
	}
	var ss []webhook.Settlement
	for _, d := range leased {
		ss = append(ss, webhook.Settlement{Verdict: webhook.Bury, Delivery: d, Reason: webhook.ReasonExpired, At: time.Now()})
	}
	if err := q.Settle(t.Context(), ss...); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if q, err = Open(path, nil); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if c, err := q.Count(t.Context()); err != nil || c.Dead != n || c.Waiting != 0 {
		t.Errorf("Count = %+v, %v, want %d dead", c, err, n)
	}
}
