//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/storekit"
)

func keys(from, n int) []storekit.Key {
	all := make([]storekit.Key, n)
	for i := range all {
		all[i] = storekit.KeyOf("crm", fmt.Sprint(from+i))
	}
	return all
}

// A filter knows all keys that were added, and takes few others for known.
func TestFilter(t *testing.T) {
	const n = 100_000
	for _, size := range []int{0, 1, n} {
		f := newFilter(size)
		for _, k := range keys(0, size) {
			f.add(k)
		}
		for i, k := range keys(0, size) {
			if !f.has(k) {
				t.Fatalf("a filter of %d keys does not know number %d", size, i)
			}
		}
		wrong := 0
		for _, k := range keys(n, n) {
			if f.has(k) {
				wrong++
			}
		}
		if wrong > n/200 {
			t.Errorf("a filter of %d keys takes %d of %d others for known", size, wrong, n)
		}
	}
}

// The keys that no filter excludes are suspects.
func TestWindowSplit(t *testing.T) {
	all := keys(0, 40) // four of each generation
	of := func(g int64) filter {
		f := newFilter(1000) // large enough to take none of the others for known
		for _, k := range all[4*g : 4*g+4] {
			f.add(k)
		}
		return f
	}
	const newest = 9
	for _, tt := range []struct {
		name     string
		spoil    func(*window)
		suspects int
	}{
		{"all are read", func(*window) {}, 4 * (generations - 1)},
		{"one is not", func(w *window) { w.filters[5] = nil }, len(all)},
		{"one that is forgotten is learned late", func(w *window) { w.learn(newest-generations, of(1), 4) }, 4 * (generations - 1)},
		{"the newest is learned", func(w *window) { w.learn(newest, of(9), 4) }, 4 * (generations - 1)},
		{"another begins", func(w *window) { w.turn(newest + 1) }, len(all)},
		{"the database is an older one", func(w *window) { w.turn(newest - 1) }, len(all)},
		{"there are no older ones", func(w *window) { w.turn(0) }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w window
			w.turn(newest)
			for {
				g, _, ok := w.unread()
				if !ok {
					break
				}
				w.learn(g, of(g), 4)
			}
			tt.spoil(&w)
			if _, certain, suspects, _ := w.split(all); len(suspects) != tt.suspects || len(certain) != len(all)-tt.suspects {
				t.Errorf("%d keys are certain and %d suspects, want %d suspects of %d", len(certain), len(suspects), tt.suspects, len(all))
			}
		})
	}
}

// ask makes w believe that n keys were asked for.
func (w *window) ask(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = n
}

// turnOnce puts a delivery with that number, and begins the next generation.
func turnOnce(t *testing.T, q *Queue, number int) {
	t.Helper()
	putAll(t, q, deliveries("turns", number, 1)...)
	if err := q.upkeep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A delivery is recognised until all generations have been replaced: by processes that have
// read the generations, that have not, and that have not heard of the latest one.
func TestGenerations(t *testing.T) {
	for name, dedup := range map[string]int{"not read": generations, "read": 1000} { // a table of one page counts as 186 keys
		t.Run(name, func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir()), DedupMax: dedup}
			a, b := openWith(t, c), openWith(t, c)
			defer a.Close()
			defer b.Close()
			ds := deliveries("crm", 0, 10)
			putAll(t, a, ds...)
			for turn := range generations {
				if n, err := b.Put(t.Context(), ds...); n != 0 || err != nil {
					t.Fatalf("after %d turns: Put = %d, %v", turn, n, err)
				}
				turnOnce(t, a, turn)
				b.window.ask(1000)
				for more := true; more; {
					var err error
					if more, err = b.readKeys(); err != nil {
						t.Fatal(err)
					}
				}
			}
			putAll(t, b, ds...)
			if n, err := a.Put(t.Context(), ds...); n != 0 || err != nil {
				t.Errorf("Put = %d, %v", n, err)
			}
			newest, certain, _, _ := b.window.split(keys(1000, 1000))
			if newest != generations || (len(certain) > 0) != (name == "read") {
				t.Errorf("the newest generation is %d, and older ones exclude %d of 1000 keys", newest, len(certain))
			}
		})
	}
}

// A process reads a generation only if that pays.
func TestReadKeys(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), DedupMax: 10_000})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 5000)...)
	turnOnce(t, q, 0)
	q.window.turn(1)
	for _, tt := range []struct {
		asked int
		want  bool
	}{{5000/worthReading - 10, false}, {5000/worthReading + 10, true}, {5000, false}} {
		q.window.ask(tt.asked)
		if got, err := q.readKeys(); got != tt.want || err != nil {
			t.Errorf("after %d keys: readKeys = %t, %v", tt.asked, got, err)
		}
	}
	if _, certain, suspects, _ := q.window.split(keys(0, 10_000)); len(suspects) < 5000 || len(suspects) > 5100 {
		t.Errorf("%d of the keys are suspects, and %d certain", len(suspects), len(certain))
	}
}

// Reading a generation of a billion keys may take longer than a transaction: else each
// reading would be given up, and begun again.
func TestKeysTime(t *testing.T) {
	const keys = 1_000_000_000 / generations
	if got, least := keysTime(keys), keys*2*time.Microsecond; got < 5*least {
		t.Errorf("keysTime(%d) = %v; from a disk they may take %v", keys, got, least)
	}
}

// PutTx uses the newest generation. A transaction that reads as of an earlier one has to be
// tried again.
func TestPutTxGenerations(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir()), DedupMax: generations}
			a, b := openWith(t, c), openWith(t, c)
			defer a.Close()
			defer b.Close()
			begin := func() pgx.Tx {
				t.Helper()
				tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
				if err == nil {
					_, err = tx.Exec(t.Context(), "SELECT count(*) FROM pg_class") // reads as of now
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { tx.Rollback(context.Background()) })
				return tx
			}
			put := func(tx pgx.Tx, want int) {
				t.Helper()
				if n, err := b.PutTx(t.Context(), tx, deliveries("crm", 0, 10)...); n != want || err != nil {
					t.Fatalf("PutTx = %d, %v, want %d", n, err, want)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			turnOnce(t, a, 0) // b has not heard of it
			early := begin()
			put(begin(), 10)
			put(begin(), 0)
			turnOnce(t, a, 1)
			if level == pgx.ReadCommitted {
				put(early, 0)
			} else if n, err := b.PutTx(t.Context(), early, deliveries("crm", 0, 10)...); !hasCode(err, "40001") {
				t.Errorf("PutTx of a transaction from before the turn = %d, %v", n, err)
			}
			put(begin(), 0)
		})
	}
}

var remembered = flag.Int("remembered", 10_000, "how many puts are remembered in BenchmarkWindow")

// BenchmarkWindow prints what a put costs the database and this process while so many are
// remembered.
func BenchmarkWindow(b *testing.B) {
	q := openDefault(b, b.TempDir())
	defer q.Close()
	ctx := context.Background()
	for i := range generations {
		for left := *remembered / generations; left > 0; left -= 500_000 {
			if _, err := q.pool.Exec(ctx, fmt.Sprintf("INSERT INTO %s.seen_%d SELECT gen_random_uuid() k FROM generate_series(1, $1) ORDER BY k", q.schema, i), min(left, 500_000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	if _, err := q.pool.Exec(ctx, "UPDATE "+q.schema+".state SET generation = 7"); err != nil {
		b.Fatal(err)
	}
	if err := q.beat(ctx); err != nil {
		b.Fatal(err)
	}
	b.Log(bloat(b, q))
	q.window.ask(*remembered)
	for more := true; more; {
		var err error
		if more, err = q.readKeys(); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := q.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		b.Fatal(err)
	}
	var id atomic.Int64
	puts := func(n int) {
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(int64(n / 100))
		for w := range 16 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					to := fmt.Sprint("d", w)
					ds := make([]webhook.Delivery, 100)
					from := int(id.Add(100))
					for i := range ds {
						ds[i] = deliveries(to, from+i, 1)[0]
						ds[i].Body = bench.Body
					}
					if n, err := q.Put(ctx, ds...); n != len(ds) || err != nil {
						b.Errorf("Put = %d, %v", n, err)
					}
				}
			})
		}
		wg.Wait()
	}
	each := min(*remembered, 100_000)
	puts(each / 5)
	before := costs(b, q)
	n := 0
	for b.Loop() {
		puts(each)
		n += each
	}
	after := costs(b, q)
	b.ReportMetric((after.wal-before.wal)/float64(n), "WAL-B/put")
	b.ReportMetric((after.database-before.database)/float64(n), "db-cpu-µs/put")
	b.ReportMetric((after.process-before.process)/float64(n), "cpu-µs/put")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "puts/s")
	b.ReportMetric(0, "ns/op")
}
