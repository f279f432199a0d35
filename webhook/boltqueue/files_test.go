package boltqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// A content is what a store holds, by name.
type content struct {
	waiting, dead, members []string
}

// contents reads all that a store holds.
func contents(t *testing.T, path string) (c content) {
	t.Helper()
	q, err := boltqueue.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	check(t, q)
	counts, err := q.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Deliveries that are due later have to be taken out of the file in
	// another way: they are told by what a put of the same leaves out.
	ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1 << 20, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		c.waiting = append(c.waiting, fmt.Sprint(d.Destination, " ", d.ID, " ", len(d.Body), " ", d.Due.UnixMicro()))
	}
	c.waiting = append(c.waiting, fmt.Sprint(counts.Waiting))
	for d, err := range q.Dead(t.Context(), webhook.DeadFilter{}, "") {
		if err != nil {
			t.Fatal(err)
		}
		c.dead = append(c.dead, fmt.Sprint(d.Destination, " ", d.ID, " ", d.Reason, " ", d.Died.UnixMicro()))
	}
	for m, err := range q.Members(t.Context(), "vip", "") {
		if err != nil {
			t.Fatal(err)
		}
		c.members = append(c.members, m)
	}
	slices.Sort(c.waiting)
	slices.Sort(c.dead)
	return c
}

func sameContent(a, b content) bool {
	return slices.Equal(a.waiting, b.waiting) && slices.Equal(a.dead, b.dead) && slices.Equal(a.members, b.members)
}

func TestRescueOfWholeStore(t *testing.T) {
	for name, whole := range damaged(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "queue.db")
			whole.write(t, path)
			report, err := boltqueue.Check(path)
			if err != nil {
				t.Fatalf("Check: %v", err)
			}
			if report.Waiting != whole.waiting || report.Dead == 0 || (report.Journal == 0) != (whole.journal == nil) {
				t.Errorf("Check = %+v, want %d waiting", report, whole.waiting)
			}
			rescued := path + ".rescued"
			got, err := boltqueue.Rescue(path, rescued)
			if err != nil {
				t.Fatal(err)
			}
			want := boltqueue.Rescued{Waiting: report.Waiting, Dead: report.Dead, Members: 2}
			if got != want {
				t.Errorf("Rescue = %+v, want %+v", got, want)
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, whole.data) {
				t.Errorf("Rescue or Check changed the file, %v", err)
			}
			if _, err := boltqueue.Rescue(path, rescued); err == nil {
				t.Error("Rescue to a file that is there is no error")
			}
			if a, b := contents(t, path), contents(t, rescued); !sameContent(a, b) {
				t.Errorf("the store has\n%+v\nand the rescued one\n%+v", a, b)
			}
			// What was put once is known to the new store, too.
			q, err := boltqueue.Open(rescued, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			for i := range 40 {
				n, err := q.Put(t.Context(), webhook.Delivery{Destination: "d3", ID: fmt.Sprint(i, "-3"), Due: time.Now()})
				if n != 0 || err != nil {
					t.Errorf("Put of what was put before = %d, %v, want 0", n, err)
				}
			}
		})
	}
}

// testRescue spoils the files of a store: whatever is spoilt, Check says so or it does no
// harm, and Rescue gets the rest.
func testRescue(t *testing.T, random *rand.Rand, whole stored) {
	known := map[string]bool{}
	for i := range 41 {
		for j := range 10 {
			known[fmt.Sprint(i, "-", j)] = true
		}
	}
	dir := t.TempDir()
	rescue := func(what string, spoilt stored, least int) {
		t.Helper()
		path, to := filepath.Join(dir, "queue.db"), filepath.Join(dir, "rescued.db")
		spoilt.write(t, path)
		os.Remove(to)
		_, checked := boltqueue.Check(path)
		got, err := boltqueue.Rescue(path, to)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if checked == nil && got.Lost == 0 && got.Waiting != whole.waiting {
			t.Errorf("%s: nothing seems wrong, and Rescue has %v of %d", what, got, whole.waiting)
		}
		if zeros := len(bytes.Trim(spoilt.journal, "\x00")) == 0; zeros && (checked == nil || got.Lost == 0) {
			t.Errorf("%s: Check says %v, and Rescue that %d places are lost", what, checked, got.Lost)
		}
		if got.Waiting < least {
			t.Errorf("%s: Rescue has %v, want at least %d", what, got, least)
		}
		q, err := boltqueue.Open(to, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		defer q.Close()
		check(t, q)
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1 << 20, Until: time.Now().Add(time.Hour)}, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, d := range ds {
			if !known[d.ID] {
				t.Errorf("%s: %q was never put", what, d.ID)
			}
		}
	}
	for _, d := range damages {
		for range 2 {
			page := random.IntN(len(whole.data) / pageSize)
			spoilt := whole
			spoilt.data = bytes.Clone(whole.data)
			d.spoil(spoilt.data[page*pageSize : (page+1)*pageSize])
			// A page holds some deliveries, and a root leads to all.
			rescue(fmt.Sprint("page ", page, " ", d.name), spoilt, whole.waiting-150)
		}
	}
	end := len(bytes.TrimRight(whole.journal, "\x00"))
	for range 5 {
		at := random.IntN(end)
		spoilt := whole
		spoilt.journal = bytes.Clone(whole.journal)
		spoilt.journal[at] ^= 1 << random.IntN(8)
		rescue(fmt.Sprint("journal at ", at), spoilt, whole.waiting-20)
	}
	spoilt := whole
	spoilt.journal = nil
	rescue("no journal", spoilt, 100)
	spoilt.journal = make([]byte, len(whole.journal))
	rescue("zeros for a journal", spoilt, 100)
	spoilt = whole
	spoilt.data = whole.data[:len(whole.data)/2]
	rescue("half of the file", spoilt, 0)
}

func TestCompact(t *testing.T) {
	for name, whole := range damaged(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "queue.db")
			whole.write(t, path)
			before, after, err := boltqueue.Compact(path)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil || info.Size() != after {
				t.Errorf("Compact = %d, %d, and the file is %v, %v", before, after, info.Size(), err)
			}
			plain := filepath.Join(t.TempDir(), "plain.db")
			whole.write(t, plain)
			if a, b := contents(t, plain), contents(t, path); !sameContent(a, b) {
				t.Errorf("the store has\n%+v\nand the compacted one\n%+v", a, b)
			}
			if files, err := filepath.Glob(path + "?*"); err != nil || len(files) > 0 {
				t.Errorf("there are %v beside the store", files)
			}
		})
	}
}

// tenMegabytes makes a store of 5,000 deliveries.
func tenMegabytes(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ds := make([]webhook.Delivery, 5000)
	for i := range ds {
		ds[i] = webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Body: make([]byte, 2000), Due: time.Now()}
	}
	if _, err := q.Put(t.Context(), ds...); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// Reading all of a store tells how far it is, and can be stopped in each of its
// two passes.
func TestLongReadingIsToldAndStopped(t *testing.T) {
	path := tenMegabytes(t)
	want := contents(t, path)
	for name, read := range map[string]func(context.Context, string, func(read, of int64)) error{
		"CheckContext": func(ctx context.Context, _ string, progress func(int64, int64)) error {
			r, err := boltqueue.CheckContext(ctx, path, progress)
			if err == nil && r.Waiting != 5000 {
				t.Errorf("CheckContext = %+v", r)
			}
			return err
		},
		"RescueContext": func(ctx context.Context, to string, progress func(int64, int64)) error {
			r, err := boltqueue.RescueContext(ctx, path, to, progress)
			if err == nil && (r.Waiting != 5000 || r.Lost != 0) {
				t.Errorf("RescueContext = %+v", r)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var told []int64
			var total int64
			to := filepath.Join(t.TempDir(), "new.db")
			if err := read(t.Context(), to, func(read, of int64) { told, total = append(told, read), of }); err != nil {
				t.Fatal(err)
			}
			if len(told) < 10 || !slices.IsSorted(told) || told[len(told)-1] != total || total < 20_000_000 {
				t.Errorf("told %v of %d", told, total)
			}
			for _, at := range []int{0, 2, len(told) * 3 / 4} {
				ctx, cancel := context.WithCancel(t.Context())
				if at == 0 {
					cancel()
				}
				steps := 0
				folder := t.TempDir()
				err := read(ctx, filepath.Join(folder, "new.db"), func(int64, int64) {
					if steps++; steps == at {
						cancel()
					}
				})
				cancel()
				if !errors.Is(err, context.Canceled) || errors.Is(err, boltqueue.ErrDamaged) || steps != at {
					t.Errorf("cancelled at step %d of %d: %v after %d", at, len(told), err, steps)
				}
				if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
					t.Errorf("cancelled at step %d: there are %v, %v", at, left, err)
				}
			}
			if got := contents(t, path); !sameContent(got, want) {
				t.Errorf("the store has changed:\n%+v\nwas\n%+v", got, want)
			}
		})
	}
}

// What compacting is told to stop in the middle of stays as it was.
func TestCompactContext(t *testing.T) {
	path := tenMegabytes(t)
	want := contents(t, path)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	steps := 0
	before, after, err := boltqueue.CompactContext(ctx, path, func(written, of int64) {
		if steps++; steps == 1 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || before != after || steps != 1 {
		t.Errorf("CompactContext, cancelled at step 1 = %d, %d, %v after %d steps", before, after, err, steps)
	}
	if files, err := filepath.Glob(path + "?*"); err != nil || len(files) > 0 {
		t.Errorf("there are %v beside the store", files)
	}
	if got := contents(t, path); !sameContent(got, want) {
		t.Errorf("the store has changed:\n%+v\nwas\n%+v", got, want)
	}

	var told []int64
	var total int64
	_, after, err = boltqueue.CompactContext(t.Context(), path, func(written, of int64) {
		told, total = append(told, written), of
	})
	if err != nil {
		t.Fatal(err)
	}
	if limit := total + 128<<10; after > limit {
		t.Errorf("the compacted store has %d bytes, want at most %d", after, limit)
	}
	if len(told) < 3 || !slices.IsSorted(told) || told[len(told)-1] != total || total < 10_000_000 {
		t.Errorf("CompactContext of 10 MB told %v of %d", told, total)
	}
	if got := contents(t, path); !sameContent(got, want) {
		t.Errorf("the compacted store has\n%+v\nwant\n%+v", got, want)
	}
}

// Space that a backlog took is given back.
func TestCompactGivesSpaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, &boltqueue.Config{CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	const n = 4000
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		ds[i] = webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Body: make([]byte, 2000), Due: time.Now()}
	}
	if _, err := q.Put(t.Context(), ds...); err != nil {
		t.Fatal(err)
	}
	if _, _, err := boltqueue.Compact(path); !errors.Is(err, boltqueue.ErrLocked) {
		t.Errorf("Compact of a store in use: %v, want ErrLocked", err)
	}
	if _, err := boltqueue.Check(path); !errors.Is(err, boltqueue.ErrLocked) {
		t.Errorf("Check of a store in use: %v, want ErrLocked", err)
	}
	if _, err := boltqueue.Rescue(path, path+".new"); !errors.Is(err, boltqueue.ErrLocked) {
		t.Errorf("Rescue of a store in use: %v, want ErrLocked", err)
	}
	for left := n; left > 10; {
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: min(1000, left-10), Until: time.Now().Add(time.Hour)}, nil)
		if err != nil || len(ds) == 0 {
			t.Fatal(len(ds), err)
		}
		ss := make([]webhook.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: d}
		}
		if err := q.Settle(t.Context(), ss...); err != nil {
			t.Fatal(err)
		}
		left -= len(ds)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := boltqueue.Check(path)
	if err != nil || report.Waiting != 10 || report.Free < report.Bytes/2 {
		t.Errorf("Check = %+v, %v, want 10 waiting and most of the file free", report, err)
	}
	before, after, err := boltqueue.Compact(path)
	if err != nil || before < n*2000 || after > 1<<20 {
		t.Errorf("Compact = %d, %d, %v, want from over 8 MB to less than one", before, after, err)
	}
	if report, err = boltqueue.Check(path); err != nil || report.Waiting != 10 {
		t.Errorf("Check after Compact = %+v, %v, want 10 waiting", report, err)
	}
}
