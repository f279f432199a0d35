package boltqueue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// damaged returns the bytes of a store with something in every bucket: of one
// that was closed, and of one whose process is gone.
func damaged(t *testing.T) map[string][]byte {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := boltqueue.Open(path, &boltqueue.Config{CacheBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 40 {
		var ds []webhook.Delivery
		for j := range 10 {
			ds = append(ds, webhook.Delivery{
				Destination: fmt.Sprint("d", j), ID: fmt.Sprint(i, "-", j), Type: "track",
				Body: bytes.Repeat([]byte{'x'}, 100*j), Accepted: now, Due: now.Add(time.Duration(i-20) * time.Minute),
			})
		}
		if _, err := q.Put(t.Context(), ds...); err != nil {
			t.Fatal(err)
		}
	}
	ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 60, Until: now.Add(time.Hour)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		s := webhook.Settlement{Verdict: webhook.Verdict(1 + i%3), Delivery: d, At: now, Reason: webhook.ReasonExpired}
		if err := q.Settle(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Begin(t.Context(), "vip"); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Join(t.Context(), "vip", 1, []string{"a", "b"}, func(string) ([]webhook.Delivery, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	read := func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	files := map[string][]byte{"killed": read()}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	files["closed"] = read()
	return files
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
	for i, d := range ds {
		if i%7 == 0 {
			errs = append(errs, q.Settle(ctx, webhook.Settlement{Verdict: webhook.Verdict(1 + i%3), Delivery: d, At: now}))
		}
	}
	for d, err := range q.Dead(ctx, webhook.DeadFilter{}, "") {
		errs = append(errs, err)
		if err == nil {
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

func TestOpenTruncated(t *testing.T) {
	for name, whole := range damaged(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cut.db")
			noticed := 0
			for size := 1; size < len(whole); size += 3001 {
				if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
					t.Fatal(err)
				}
				q, err := boltqueue.Open(path, nil)
				if err == nil && size > len(whole)/2 {
					q.Close() // what was cut off was not in use yet
					if err := use(t, path); err != nil {
						t.Errorf("%d bytes of %d: %v", size, len(whole), err)
					}
					break
				}
				if !errors.Is(err, boltqueue.ErrDamaged) || !strings.Contains(err.Error(), path) {
					t.Fatalf("Open of %d bytes of %d: %v, want ErrDamaged and the file's name", size, len(whole), err)
				}
				if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, whole[:size]) {
					t.Fatalf("Open of %d bytes of %d changed the file", size, len(whole))
				}
				noticed++
			}
			if noticed < 10 {
				t.Fatalf("only %d sizes were tried", noticed)
			}
			os.WriteFile(path, whole, 0o600)
			if err := use(t, path); err != nil {
				t.Errorf("the whole file: %v", err)
			}
		})
	}
}

func TestUseDamagedPages(t *testing.T) {
	const pageSize = 4096
	for name, whole := range damaged(t) {
		for what, spoil := range map[string]func(page []byte){
			"zeros":  func(page []byte) { clear(page) },
			"ones":   func(page []byte) { copy(page, bytes.Repeat([]byte{0xff}, len(page))) },
			"header": func(page []byte) { page[8] ^= 0x07; page[10] ^= 0x55 },
			"count":  func(page []byte) { page[10], page[11] = 0xff, 0x7f },
			"over":   func(page []byte) { page[12], page[13], page[14] = 0xff, 0xff, 0xff },
			"middle": func(page []byte) { copy(page[len(page)/3:], "spoilt, for about this many bytes") },
			"moved":  func(page []byte) { copy(page, bytes.Clone(whole[3*pageSize:4*pageSize])) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "spoilt.db")
				noticed := 0
				for at := 0; at+pageSize <= len(whole); at += 2 * pageSize {
					b := bytes.Clone(whole)
					spoil(b[at : at+pageSize])
					if err := os.WriteFile(path, b, 0o600); err != nil {
						t.Fatal(err)
					}
					// Not to go down is what is asked. A page may be free.
					if err := use(t, path); err != nil {
						noticed++
						if !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "boltqueue") {
							t.Errorf("page %d: %v does not name the file", at/pageSize, err)
						}
					}
				}
				if noticed == 0 {
					t.Error("nothing was noticed")
				}
			})
		}
	}
}

// The file may also be spoilt while it is open.
func TestUseDamagedWhileOpen(t *testing.T) {
	const pageSize = 4096
	whole := damaged(t)["closed"]
	noticed := 0
	for at := 2 * pageSize; at+pageSize <= len(whole); at += 2 * pageSize {
		path := filepath.Join(t.TempDir(), "spoilt.db")
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		q, err := boltqueue.Open(path, &boltqueue.Config{CacheBytes: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, pageSize), int64(at)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := useOpen(t, q); err != nil {
			noticed++
		}
	}
	if noticed == 0 {
		t.Error("nothing was noticed")
	}
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
