//go:build unix

package pgqueue

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

var erasedFlag = flag.Int("kept", 2000, "how many deliveries are kept in BenchmarkErase, a multiple of 1000; 1000000 for figures")

// BenchmarkErase erases a user who has every hundredth of the deliveries that are kept, of 10,000
// destinations. Meanwhile another goroutine puts one delivery after the other. The benchmark reports the
// median, the p99.9 and the longest of these puts during the erasure (beside) and before it (alone), and how
// long the erasure takes. Afterwards a dump of the schema has nothing of the user.
// Nor have the files of the tables, once they were rewritten by VACUUM FULL; it reports how many of the
// user's rows they have before that, of up to 100.
func BenchmarkErase(b *testing.B) {
	for b.Loop() {
		benchErase(b, *erasedFlag)
	}
	b.ReportMetric(0, "ns/op")
}

func benchErase(b *testing.B, n int) {
	ctx := b.Context()
	q := openOn(b, pool(b), Config{Schema: schemaOf(b.TempDir()), History: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	defer q.Close()
	const user = "the-erased-user"
	keepFor(b, q, n, user)
	needles, err := collect(ctx, q.db.pool, pgx.RowTo[[]byte], q.db.in(`SELECT substr(items, 33, 64) FROM S.kept WHERE keys @> ARRAY[$1::int] ORDER BY last LIMIT 100`), userKey(user))
	if err != nil {
		b.Fatal(err)
	}
	if dumped := inDump(b, q, user); dumped != n/100 {
		b.Fatalf("the dump has the user in %d deliveries before the erasure, want %d", dumped, n/100)
	}
	if found := inFiles(b, q, needles); found != len(needles) {
		b.Fatalf("the files have %d of %d rows of the user before the erasure, want all", found, len(needles))
	}

	var alone, beside []time.Duration
	done := make(chan struct{})
	var took time.Duration
	putUntil(b, q, &alone, time.After(time.Second)) // warms up
	alone = nil
	putUntil(b, q, &alone, time.After(max(time.Second, time.Duration(n)*20*time.Microsecond))) // not afterwards, beside a vacuum
	go func() {
		defer close(done)
		began := time.Now()
		if erased, _, err := q.Erase(ctx, user); err != nil || erased != n/100 {
			b.Errorf("Erase = %d, %v; want %d", erased, err, n/100)
		}
		took = time.Since(began)
	}()
	putUntil(b, q, &beside, done)
	b.ReportMetric(took.Seconds(), "erase-s")
	for name, all := range map[string][]time.Duration{"beside": beside, "alone": alone} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2].Seconds()*1e3, name+"-p50-ms")
		b.ReportMetric(all[len(all)*999/1000].Seconds()*1e3, name+"-p99.9-ms")
		b.ReportMetric(all[len(all)-1].Seconds()*1e3, name+"-max-ms")
	}

	if dumped := inDump(b, q, user); dumped != 0 {
		b.Errorf("the dump has the user in %d deliveries, want none", dumped)
	}
	b.ReportMetric(float64(inFiles(b, q, needles)), "rows-in-files")
	exec(b, q.db.pool, q.db.config, "VACUUM S.kept, S.dead, S.chunk")
	b.ReportMetric(float64(inFiles(b, q, needles)), "rows-after-vacuum")
	began := time.Now()
	exec(b, q.db.pool, q.db.config, "VACUUM FULL S.kept")
	b.ReportMetric(time.Since(began).Seconds(), "vacuum-full-s")
	if found := inFiles(b, q, needles); found != 0 {
		b.Errorf("the files have %d rows of the user after VACUUM FULL, want none", found)
	}
	if c, err := q.Count(ctx); err != nil || c.Delivered != n-n/100 {
		b.Errorf("Count = %+v, %v; want %d delivered", c, err, n-n/100)
	}
}

// keepFor keeps n deliveries, as the transactions of settlements would. Every hundredth is the user's.
func keepFor(b *testing.B, q *Store, n int, user string) {
	now := q.Now()
	for i := 0; i < n; i += 1000 {
		var rs []store.Record
		for j := i; j < i+1000; j++ {
			d := store.Delivery{
				Destination: fmt.Sprint("d", j/100%10_000), ID: fmt.Sprint("kept-", j), Type: "track", User: fmt.Sprint("user-", j%1000), Body: bodies[j%1000],
				Accepted: now, Due: now, Seq: uint64(j/100*chunkItems + j%100), Tries: 1,
				Attempts: []store.Attempt{{At: now, Took: store.Millis(time.Millisecond), Try: 1, Endpoint: "https://example.com/hook", Status: 200}},
			}
			if j%100 == 0 {
				d.User, d.Body = user, bytes.Replace(d.Body, []byte(`"userId":"user-`), []byte(`"userId":"`+user+"-"), 1)
			}
			rs = append(rs, store.Record{Delivery: d, At: now})
		}
		batch := newBatch()
		lost := q.claimer.history.queue(batch, rs)
		if err := q.db.pool.SendBatch(context.Background(), batch).Close(); err != nil || *lost != 0 {
			b.Fatalf("%d not kept, %v", *lost, err)
		}
	}
	exec(b, q.db.pool, q.db.config, fmt.Sprintf("SELECT setval('S.ids', %d)", n))
}

// putUntil puts deliveries of others, one after the other, until a channel is closed or has a value.
func putUntil[T any](b *testing.B, q *Store, took *[]time.Duration, done <-chan T) {
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		default:
		}
		now := q.Now()
		began := time.Now()
		if n, err := putSome(b.Context(), q, store.Delivery{Destination: "put", ID: fmt.Sprint(began.UnixNano()), Body: bench.Body, Accepted: now, Due: now.Add(time.Hour)}); n != 1 || err != nil {
			b.Errorf("Put = %d, %v; want 1", n, err)
			return
		}
		*took = append(*took, time.Since(began))
	}
}

// inDump returns how many deliveries in a dump of the schema have a text, compressed or not.
func inDump(b *testing.B, q *Store, text string) (n int) {
	b.Helper()
	path, err := server.Dump(q.db.config.Schema)
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(path)
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		n += strings.Count(line, text)
		for _, field := range strings.Fields(line) {
			if digits, ok := strings.CutPrefix(field, `\\x`); ok {
				data, _ := hex.DecodeString(digits)
				plain, _ := io.ReadAll(flate.NewReader(bytes.NewReader(data)))
				for _, d := range [][]byte{data, plain} {
					n += bytes.Count(d, []byte(`"userId":"`+text))
				}
			}
		}
		if err == io.EOF {
			return n
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

// inFiles returns how many of the texts are in the files of the tables, after a checkpoint. The files of
// the log are left out: PostgreSQL removes them by its own rules.
func inFiles(b *testing.B, q *Store, texts [][]byte) (n int) {
	b.Helper()
	exec(b, q.db.pool, q.db.config, "CHECKPOINT")
	files, err := filepath.Glob(filepath.Join(server.Dir(), "data", "base", "*", "*"))
	if err != nil {
		b.Fatal(err)
	}
	found := make([]bool, len(texts))
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // it was removed meanwhile
		}
		for i, text := range texts {
			found[i] = found[i] || bytes.Contains(content, text)
		}
	}
	for _, is := range found {
		if is {
			n++
		}
	}
	return n
}
