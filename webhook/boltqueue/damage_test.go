package boltqueue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// A stored is the bytes of a store.
type stored struct {
	data    []byte
	journal []byte    // the file of the journal that has entries that count; nil: it was closed
	first   bool      // it is the first file
	other   []byte    // the other file
	older   [2][]byte // the files before the database was last written
	waiting int       // deliveries it holds
}

// write writes the store to files.
func (s stored) write(t *testing.T, path string) {
	t.Helper()
	files := [2][]byte{s.other, s.journal}
	if s.first {
		files = [2][]byte{s.journal, s.other}
	}
	writeFiles(t, path, s.data, files)
}

// writeFiles writes the files of a store; there is none of the journal that is nil.
func writeFiles(t *testing.T, path string, data []byte, journals [2][]byte) {
	t.Helper()
	err := os.WriteFile(path, data, 0o600)
	for i, b := range journals {
		name := path + [...]string{".journal", ".journal2"}[i]
		os.Remove(name)
		if err == nil && b != nil {
			err = os.WriteFile(name, b, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damaged returns the bytes of a store with something in every bucket: of one
// that was closed, and of one whose process is gone.
func damaged(t *testing.T) map[string]stored {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, &boltqueue.Config{CacheBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	put := func(first, last int) {
		for i := first; i < last; i++ {
			var ds []webhook.Delivery
			for j := range 10 {
				ds = append(ds, webhook.Delivery{
					Destination: fmt.Sprint("d", j), ID: fmt.Sprint(i, "-", j), Type: "track",
					Body: bytes.Repeat([]byte{'x'}, 100*j), Accepted: now, Due: now.Add(time.Duration(i-20) * time.Hour), // no test lasts until the next is due
				})
			}
			if _, err := q.Put(t.Context(), ds...); err != nil {
				t.Fatal(err)
			}
		}
	}
	settle := func(n int) {
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: now.Add(time.Hour)}, nil)
		if err != nil || len(ds) != n {
			t.Fatal(len(ds), err)
		}
		for i, d := range ds {
			s := webhook.Settlement{Verdict: webhook.Verdict(1 + i%3), Delivery: d, At: now, Reason: webhook.ReasonExpired}
			if err := q.Settle(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	put(0, 20)
	settle(60)
	if _, err := q.Begin(t.Context(), "vip"); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Join(t.Context(), "vip", 1, []string{"a", "b"}, func(string) ([]webhook.Delivery, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	put(40, 41)
	older := [2][]byte{read(path + ".journal"), read(path + ".journal2")}
	if _, err := q.Begin(t.Context(), "vip too"); err != nil {
		t.Fatal(err)
	}
	// The database holds all that. The journal gets something of everything.
	settle(60)
	put(20, 40)
	put(0, 1) // known
	settle(20)
	counts, err := q.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Every other time the database is written, the first file has what follows.
	killed := stored{read(path), read(path + ".journal"), true, read(path + ".journal2"), older, counts.Waiting}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{".journal", ".journal2"} {
		if _, err := os.Stat(path + end); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after Close: %v, want that there is none", end, err)
		}
	}
	return map[string]stored{"killed": killed, "closed": {data: read(path), waiting: counts.Waiting}}
}

// use does everything with a store whose file may be damaged. It returns an
// error if the store noticed.
func use(t *testing.T, path string) error {
	q, err := boltqueue.Open(path, &boltqueue.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	return useOpen(t, q)
}

func useOpen(t *testing.T, q *boltqueue.Queue) error {
	defer q.Close()
	ctx := t.Context()
	now := time.Now()
	_, err1 := q.Put(ctx, webhook.Delivery{Destination: "d0", ID: "new", Due: now})
	ds, _, err2 := q.Lease(ctx, webhook.LeaseRequest{Max: 1000, Until: now.Add(time.Hour)}, nil)
	var errs []error
	var ss []webhook.Settlement
	for i, d := range ds {
		if i%7 == 0 {
			ss = append(ss, webhook.Settlement{Verdict: webhook.Verdict(1 + i%3), Delivery: d, At: now})
		}
	}
	errs = append(errs, q.Settle(ctx, ss...))
	revived := 0
	for d, err := range q.Dead(ctx, webhook.DeadFilter{}, "") {
		errs = append(errs, err)
		if revived++; err == nil && revived%10 == 1 {
			_, err = q.Revive(ctx, d.Key)
			errs = append(errs, err)
		}
	}
	_, err3 := q.Begin(ctx, "vip")
	for _, err := range q.Members(ctx, "vip", "") {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, err1, err2, err3, q.Check(ctx))...)
}

const pageSize = 4096

// A damage is what may become of a page.
type damage struct {
	name  string
	spoil func(page []byte)
}

var damages = []damage{
	{"zeros", func(page []byte) { clear(page) }},
	{"ones", func(page []byte) { copy(page, bytes.Repeat([]byte{0xff}, len(page))) }},
	{"header", func(page []byte) { page[8] ^= 0x07; page[10] ^= 0x55 }},
	{"count", func(page []byte) { page[10], page[11] = 0xff, 0x7f }},
	{"over", func(page []byte) { page[12], page[13], page[14] = 0xff, 0xff, 0xff }},
	{"middle", func(page []byte) { copy(page[len(page)/3:], "spoilt, for about this many bytes") }},
}

// TestDamage spoils the files of a store, at places that the seed decides: pages of the
// database, before it is opened and while it is open, bytes of the journal, and the ends
// of both.
func TestDamage(t *testing.T) {
	for seed := range soak.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 4))
			stores := damaged(t)
			for _, name := range []string{"closed", "killed"} {
				t.Run(name+"/truncated", func(t *testing.T) { testTruncated(t, random, stores[name]) })
				t.Run(name+"/pages", func(t *testing.T) { testPages(t, random, stores[name]) })
			}
			t.Run("closed/open pages", func(t *testing.T) { testOpenPages(t, random, stores["closed"]) })
			t.Run("killed/journal", func(t *testing.T) { testJournal(t, random, stores["killed"]) })
			t.Run("killed/rescue", func(t *testing.T) { testRescue(t, random, stores["killed"]) })
		})
	}
}

func testTruncated(t *testing.T, random *rand.Rand, whole stored) {
	path := filepath.Join(t.TempDir(), "cut.db")
	noticed, all := 0, len(whole.data)
	for size := 1; size < all; size += 1 + random.IntN(20_000) {
		cut := whole
		cut.data = whole.data[:size]
		cut.write(t, path)
		q, err := boltqueue.Open(path, nil)
		if err == nil && size > all/2 {
			q.Close() // what was cut off was not in use yet
			if err := use(t, path); err != nil {
				t.Errorf("%d bytes of %d: %v", size, all, err)
			}
			break
		}
		if !errors.Is(err, boltqueue.ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Fatalf("Open of %d bytes of %d: %v, want ErrDamaged and the file's name", size, all, err)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, cut.data) {
			t.Fatalf("Open of %d bytes of %d changed the file", size, all)
		}
		noticed++
	}
	if noticed < 10 {
		t.Fatalf("only %d sizes were tried", noticed)
	}
	whole.write(t, path)
	if err := use(t, path); err != nil {
		t.Errorf("the whole file: %v", err)
	}
}

// testJournal spoils the journal: what was acknowledged is there, or Open says that the
// store is damaged.
func testJournal(t *testing.T, random *rand.Rand, whole stored) {
	end := len(bytes.TrimRight(whole.journal, "\x00"))
	path := filepath.Join(t.TempDir(), "queue.db")
	openWith := func(spoilt stored) (waiting int, err error) {
		spoilt.write(t, path)
		q, err := boltqueue.Open(path, nil)
		if err != nil {
			if !errors.Is(err, boltqueue.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("Open: %v, want ErrDamaged and the file's name", err)
			}
			return 0, err
		}
		defer q.Close()
		check(t, q)
		counts, err := q.Count(t.Context())
		if err != nil {
			t.Error(err)
		}
		return counts.Waiting, err
	}
	open := func(journal []byte) (int, error) {
		spoilt := whole
		spoilt.journal = journal
		return openWith(spoilt)
	}
	if n, err := open(whole.journal); n != whole.waiting || err != nil {
		t.Fatalf("the whole store has %d waiting, %v, want %d", n, err, whole.waiting)
	}
	if _, err := open(nil); err == nil {
		t.Error("Open without the journal is no error")
	}
	if _, err := open(make([]byte, len(whole.journal))); err == nil {
		t.Error("Open with zeros for a journal is no error")
	}
	older := whole
	older.journal, older.other = whole.older[0], whole.older[1]
	if _, err := openWith(older); err == nil {
		t.Error("Open with an older journal is no error")
	}
	alone := whole
	alone.other = nil
	if n, err := openWith(alone); n != whole.waiting || err != nil {
		t.Errorf("without the file that has nothing that counts, %d wait, %v, want %d", n, err, whole.waiting)
	}
	// The last entry is that of a retry of one delivery, so the number of those
	// that wait is the same without it.
	const tries = 40
	unnoticed := 0
	for range tries {
		at := random.IntN(end)
		b := bytes.Clone(whole.journal)
		b[at] ^= 1 << random.IntN(8)
		n, err := open(b)
		if err == nil {
			unnoticed++
			if n != whole.waiting {
				t.Fatalf("with byte %d of %d spoilt, %d wait of %d", at, end, n, whole.waiting)
			}
		}
		if at = random.IntN(end); at == 0 {
			continue
		}
		if n, err := open(whole.journal[:at]); err == nil && n != whole.waiting {
			t.Fatalf("cut at %d of %d, %d wait of %d", at, end, n, whole.waiting)
		}
	}
	if unnoticed > tries/4 {
		t.Errorf("of %d damages %d were not noticed", tries, unnoticed)
	}
}

// spoilPages calls use for some pages of a store, which spoils one and uses the store.
// Not to go down is what is asked: a page may be free. But some damage is noticed.
func spoilPages(t *testing.T, name string, random *rand.Rand, whole stored, use func(page int) error) {
	t.Helper()
	noticed := 0
	for n, page := range random.Perm(len(whole.data) / pageSize) {
		if n >= 6 && noticed > 0 {
			return
		}
		if err := use(page); err != nil {
			noticed++
			if !strings.Contains(err.Error(), "boltqueue") {
				t.Errorf("%s, page %d: %v does not name the file", name, page, err)
			}
		}
	}
	if noticed == 0 {
		t.Errorf("%s: nothing was noticed", name)
	}
}

// testPages spoils pages of a file that is opened then.
func testPages(t *testing.T, random *rand.Rand, whole stored) {
	path := filepath.Join(t.TempDir(), "spoilt.db")
	moved := damage{"move", func(page []byte) { copy(page, whole.data[3*pageSize:]) }}
	for _, d := range append(damages, moved) {
		spoilPages(t, d.name, random, whole, func(page int) error {
			spoilt := whole
			spoilt.data = bytes.Clone(whole.data)
			d.spoil(spoilt.data[page*pageSize : (page+1)*pageSize])
			spoilt.write(t, path)
			return use(t, path)
		})
	}
}

// testOpenPages spoils pages of a file that is open.
func testOpenPages(t *testing.T, random *rand.Rand, whole stored) {
	spoilPages(t, "zeros", random, whole, func(page int) error {
		path := filepath.Join(t.TempDir(), "spoilt.db")
		whole.write(t, path)
		q, err := boltqueue.Open(path, &boltqueue.Config{CacheBytes: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, pageSize), int64(page*pageSize)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		return useOpen(t, q)
	})
}

func TestOpenForeign(t *testing.T) {
	for _, tt := range []struct {
		name string
		file []byte
	}{
		{"text", bytes.Repeat([]byte("not a database\n"), 1000)},
		{"zeros", make([]byte, 64<<10)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "foreign")
			if err := os.WriteFile(path, tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := boltqueue.Open(path, nil); !errors.Is(err, boltqueue.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("Open: %v, want ErrDamaged and the file's name", err)
			}
		})
	}
}

func TestOpenLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = boltqueue.Open(path, &boltqueue.Config{LockTimeout: time.Millisecond})
	if !errors.Is(err, boltqueue.ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("the second Open: %v, want ErrLocked and the file's name", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, err = boltqueue.Open(path, nil)
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	q.Close()
}

func TestOpenIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && os.PathSeparator == '/' {
		t.Errorf("the file has mode %v, want none for others", mode)
	}
	if _, err := boltqueue.Open(filepath.Join(path, "below", "a", "file"), nil); err == nil {
		t.Error("Open of a path that cannot be is no error")
	}
}
