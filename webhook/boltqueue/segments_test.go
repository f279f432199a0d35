package boltqueue

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// endSegment has the next checkpoint begin a segment.
func endSegment(q *Queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.segment.bytes = segmentBytes
}

func checkpointNow(t *testing.T, q *Queue) {
	t.Helper()
	if err := q.do(t.Context(), &request{work: nothing}); err != nil {
		t.Fatal(err)
	}
}

var unexported = cmp.AllowUnexported(part{}, change{})

func TestDirectoryMerge(t *testing.T) {
	at := func(n int64) lanes.Order { return lanes.Order{At: n, Seq: uint64(n)} }
	gone := func(lane uint32) change { return change{part: part{lane, -1, lanes.Last}} }
	put := func(lane uint32, rows, first int64) change { return change{part: part{lane, rows, at(first)}} }
	was := directory{{2, 1, at(20)}, {4, 2, at(40)}}
	for _, tt := range []struct {
		name    string
		changes []change
		want    directory
		err     error
	}{
		{"nothing", nil, was, nil},
		{"new lanes", []change{put(1, 5, 3), put(3, 6, 4), put(9, 7, 5)},
			directory{{1, 5, at(3)}, {2, 1, at(20)}, {3, 6, at(4)}, {4, 2, at(40)}, {9, 7, at(5)}}, nil},
		{"earlier and later rows", []change{put(2, 1, 10), put(4, 1, 50)}, directory{{2, 2, at(10)}, {4, 3, at(40)}}, nil},
		{"the last row", []change{gone(2)}, directory{{4, 2, at(40)}}, nil},
		{"all rows", []change{gone(2), gone(4), gone(4)}, directory{}, nil},
		{"one goes and one comes", []change{gone(2), put(2, 1, 30)}, directory{{2, 1, at(20)}, {4, 2, at(40)}}, nil},
		{"more than there are", []change{gone(2), gone(2)}, nil, errRow},
		{"of a lane that is not there", []change{gone(3)}, nil, errRow},
	} {
		got, err := was.merge(tt.changes)
		if diff := cmp.Diff(tt.want, got, unexported); diff != "" || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %s", tt.name, err, diff)
		}
	}
}

// FuzzDirectory reads rows of segments. What is accepted is written the same way.
func FuzzDirectory(f *testing.F) {
	for _, d := range []directory{
		{{1, 1, lanes.Order{}}},
		{{1, 3, lanes.Order{At: -5, Seq: 9}}, {2, 1, lanes.Order{At: 1 << 50, Seq: 3}}, {math.MaxUint32, math.MaxInt64, lanes.Last}},
	} {
		b, err := d.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		var got directory
		if err := got.UnmarshalBinary(b); err != nil || !slices.Equal(got, d) {
			f.Fatalf("%v, %v, want %v", got, err, d)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, again directory
		if d.UnmarshalBinary(b) != nil {
			return
		}
		c, _ := d.AppendBinary(nil)
		if err := again.UnmarshalBinary(c); err != nil || !slices.Equal(again, d) {
			t.Errorf("read again: %v, %v, want %v", again, err, d)
		}
	})
}

// foldNow has the spans of all lanes be as few as they can, at a time when nothing is
// read or written.
func foldNow(q *Queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for l := range q.table.All {
		if h := homeOf(l); !h.moving && len(h.spans) >= nearSpans {
			h.folded = len(h.spans) - foldSpans
			h.fold(q.segment.number)
		}
	}
}

// A lane's rows are in many segments, in no order, and come out in theirs.
func TestSegmentsAreReadInOrder(t *testing.T) {
	for seed := range soak.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed, "/as fast as they come"), func(t *testing.T) { testSegments(t, seed, 80) })
		t.Run(fmt.Sprint("seed=", seed, "/once there are many"), func(t *testing.T) { testSegments(t, seed, 10) })
	}
}

func testSegments(t *testing.T, seed uint64, most int) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	config := &Config{CacheBytes: 1}
	q, err := Open(path, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { q.Close() }()
	past := time.Now().Add(-time.Hour).UTC().Truncate(time.Microsecond)
	future := time.Now().Add(time.Hour)
	waiting := map[string]map[string]time.Time{"a": {}, "b": {}, "c": {}} // by destination and id
	id := 0
	compare := func() {
		t.Helper()
		var want, got []webhook.DestinationCounts
		for name, ds := range waiting {
			if c := (webhook.DestinationCounts{Destination: name, Waiting: len(ds)}); len(ds) > 0 {
				for _, due := range ds {
					if c.Oldest.IsZero() || due.Before(c.Oldest) {
						c.Oldest = due
					}
				}
				want = append(want, c)
			}
		}
		for c, err := range q.CountByDestination(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c)
		}
		byName := func(x, y webhook.DestinationCounts) int { return strings.Compare(x.Destination, y.Destination) }
		slices.SortFunc(want, byName)
		slices.SortFunc(got, byName)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("CountByDestination (-want +got)\n%s", diff)
		}
	}
	const puts = 60 // rounds; then what waits is leased to the last
	left := func() (n int) {
		for _, ds := range waiting {
			n += len(ds)
		}
		return n
	}
	for round := 0; round < puts || left() > 0; round++ {
		for range 3 {
			if round >= puts {
				break
			}
			var ds []webhook.Delivery
			for range 20 {
				id++
				d := webhook.Delivery{Destination: string("abc"[rnd.IntN(3)]), ID: fmt.Sprint(id), Due: past.Add(time.Duration(rnd.IntN(1e6)) * time.Microsecond)}
				waiting[d.Destination][d.ID] = d.Due
				ds = append(ds, d)
			}
			if n, err := q.Put(ctx, ds...); n != len(ds) || err != nil {
				t.Fatalf("Put = %d, %v", n, err)
			}
			if rnd.IntN(3) > 0 {
				endSegment(q)
			}
			checkpointNow(t, q)
		}
		compare()
		for l := range q.table.All {
			if n, bound := len(homeOf(l).spans), nearSpans+2*foldSpans; n > bound && round < puts {
				t.Errorf("%d spans in memory for %d segments, want at most %d", n, q.segment.number, bound)
			}
		}
		if round == puts {
			most = 200
		}
		if rnd.IntN(10) == 0 {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			if q, err = Open(path, config); err != nil {
				t.Fatal(err)
			}
			compare()
		}
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1 + rnd.IntN(most), Until: future}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 && round >= puts {
			t.Fatalf("%d are never handed out", left())
		}
		var ss []webhook.Settlement
		for _, d := range ds {
			delete(waiting[d.Destination], d.ID)
			for other, due := range waiting[d.Destination] {
				if due.Before(d.Due) {
					t.Fatalf("%s of %s is handed out before %s, which is due before", d.ID, d.Destination, other)
				}
			}
			s := webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			if rnd.IntN(5) == 0 {
				s.Verdict, s.Delivery.Due = webhook.Retry, past.Add(time.Duration(rnd.IntN(1e6))*time.Microsecond)
			}
			ss = append(ss, s)
		}
		if err := q.Settle(ctx, ss...); err != nil {
			t.Fatal(err)
		}
		for _, s := range ss {
			if s.Verdict == webhook.Retry {
				waiting[s.Delivery.Destination][s.Delivery.ID] = s.Delivery.Due
			}
		}
	}
	compare()
	if err := q.Check(ctx); err != nil {
		t.Error(err)
	}
}

// What many lanes have wait is written, and deleted, in few pages.
func TestManyLanesShareThePages(t *testing.T) {
	ctx := t.Context()
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const destinations, body = 2000, 450
	past := time.Now().Add(-time.Hour)
	allocated := func() int64 {
		stats := q.file.Stats()
		return stats.TxStats.GetPageAlloc()
	}
	pages := func(what string, limit int64, do func()) {
		t.Helper()
		before := allocated()
		do()
		checkpointNow(t, q)
		if n := allocated() - before; n > limit {
			t.Errorf("%s one delivery of each of %d destinations writes %d bytes, want at most %d", what, destinations, n, limit)
		}
	}
	for round := range 10 {
		ds := make([]webhook.Delivery, destinations)
		for i := range ds {
			ds[i] = webhook.Delivery{Destination: fmt.Sprint("destination-", i), ID: fmt.Sprint(round, "-", i), Body: make([]byte, body), Due: past}
		}
		pages("putting", 2*destinations*body, func() {
			endSegment(q)
			if n, err := q.Put(ctx, ds...); n != len(ds) || err != nil {
				t.Fatalf("Put = %d, %v", n, err)
			}
		})
	}
	for range 9 {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: destinations, Until: past.Add(3 * time.Hour)}, nil)
		if err != nil || len(ds) != destinations {
			t.Fatalf("Lease = %d, %v", len(ds), err)
		}
		ss := make([]webhook.Settlement, len(ds))
		for i := range ds {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: ds[i]}
		}
		pages("settling", destinations*body/2, func() {
			if err := q.Settle(ctx, ss...); err != nil {
				t.Fatal(err)
			}
		})
	}
}
