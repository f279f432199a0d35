package boltqueue

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// A file may be replaced between the moment it is opened and that it is locked:
// the one that is there then is the one that counts.
func TestLockFileThatIsReplaced(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Log("a file that is open cannot be replaced here")
		return
	}
	for _, tt := range []struct {
		name     string
		replaced int // how often
		want     error
	}{
		{"never", 0, nil},
		{"a few times", 3, nil},
		{"until the timeout", math.MaxInt, berrors.ErrTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testLockFileThatIsReplaced(t, tt.replaced, tt.want) })
		})
	}
}

func testLockFileThatIsReplaced(t *testing.T, replaced int, want error) {
	path := filepath.Join(t.TempDir(), "queue.db")
	opened := 0
	options := bolt.Options{Timeout: time.Second, OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		if opened++; opened <= replaced {
			time.Sleep(100 * time.Millisecond) // of the bubble
			if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
				t.Error(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Error(err)
			}
		}
		return f, err
	}}
	db, f, info, err := lockFile(path, options)
	if !errors.Is(err, want) {
		t.Fatalf("lockFile: %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	defer db.Close()
	now, err := os.Stat(path)
	if err != nil || !os.SameFile(info, now) {
		t.Errorf("the file that is open is not the one that is there, %v", err)
	}
	if got, err := f.Stat(); err != nil || !os.SameFile(got, now) {
		t.Errorf("the file that is returned is not the one that is open, %v", err)
	}
}

// Whatever is stored while others compact the store is there.
func TestCompactBesideOpen(t *testing.T) {
	soak.Only(t, "file-compact")
	for range soak.Seeds(t, 1) {
		testCompactBesideOpen(t)
	}
}

func testCompactBesideOpen(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	const openers, rounds = 4, 6
	var wg sync.WaitGroup
	for o := range openers {
		wg.Go(func() {
			for i := range rounds {
				q, err := Open(path, &Config{LockTimeout: time.Minute})
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(o, "-", i), Due: time.Now()}); err != nil {
					t.Errorf("Put: %v", err)
				}
				if err := q.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if _, _, err := Compact(path); err != nil && !errors.Is(err, ErrLocked) {
					t.Errorf("Compact: %v", err)
				}
			}
		})
	}
	wg.Wait()
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if counts, err := q.Count(ctx); err != nil || counts.Waiting != openers*rounds {
		t.Errorf("Count = %+v, %v, want %d waiting", counts, err, openers*rounds)
	}
}

// A store that is opened by a symbolic link is compacted where it is.
func TestCompactSymlink(t *testing.T) {
	path, link := filepath.Join(t.TempDir(), "queue.db"), filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Logf("no symbolic links here: %v", err)
		return
	}
	q, err := Open(link, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Put(t.Context(), webhook.Delivery{Destination: "a", ID: "1", Due: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Compact(link); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v, want a link", info.Mode(), err)
	}
	if report, err := Check(path); err != nil || report.Waiting != 1 {
		t.Errorf("Check of what it leads to = %+v, %v, want 1 waiting", report, err)
	}
}

// The file of the journal that holds nothing which counts may be removed. It is not
// written over if another is put there.
func TestIdleJournalIsRemoved(t *testing.T) { synctest.Test(t, testIdleJournalIsRemoved) }

func testIdleJournalIsRemoved(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Log("a file that is open cannot be removed here")
		return
	}
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var disk disk
	disk.spoil(q)
	waiting := 0
	put := func() error {
		n, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(waiting), Due: time.Now()})
		waiting += n
		return err
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	there := func(what string) {
		t.Helper()
		p, err := Open(crash(t, path), nil)
		must("Open after a crash "+what, err)
		defer p.Close()
		if counts, err := p.Count(ctx); err != nil || counts.Waiting != waiting {
			t.Errorf("after a crash %s: Count = %+v, %v, want %d waiting", what, counts, err, waiting)
		}
	}
	must("Put", put())
	for range 3 {
		// It has the epoch before, which is in the database.
		checkpointNow(t, q)
		must("remove", os.Remove(q.other().path))
		must("Put without the idle file", put())
		checkpointNow(t, q)
		must("Put to the one that was made", put())
		there("once it is made")
	}

	// Commits go on while it is made.
	checkpointNow(t, q)
	must("Put", put())
	next, made := q.other(), error(nil)
	must("link", os.Link(next.path, next.path+".kept")) // so that the new one is another
	must("remove", os.Remove(next.path))
	next.wrap = func() { made = put() }
	checkpointNow(t, q)
	must("Put while it is made", made)
	next.wrap = nil
	there("once it is made, beside puts")

	const others = "somebody's own"
	idle := q.other().path
	must("remove", os.Remove(idle))
	must("write", os.WriteFile(idle, []byte(others), 0o600))
	if err := put(); !errors.Is(err, ErrLost) {
		t.Errorf("Put with another idle file: %v, want ErrLost", err)
	}
	if b, err := os.ReadFile(idle); string(b) != others {
		t.Errorf("the other file has %q, %v, want %q", b, err, others)
	}
	must("remove", os.Remove(idle))
	must("Put without the other file", put())

	// While the database has not what is in it, it counts.
	release := disk.stop(q)
	must("remove", os.Remove(q.other().path))
	if err := put(); !errors.Is(err, ErrLost) {
		t.Errorf("Put while what was sealed is nowhere else on the disk: %v, want ErrLost", err)
	}
	release()
	checkpointNow(t, q)
	must("Put once the database has it", put())
	there("once the database has it")

	// So it does when the database could not be written.
	disk.mu.Lock()
	disk.ends = []int{0}
	disk.mu.Unlock()
	if err := q.do(ctx, &request{work: nothing}); !errors.Is(err, errDisk) {
		t.Fatalf("a transaction: %v, want %v", err, errDisk)
	}
	must("remove", os.Remove(q.other().path))
	if err := put(); !errors.Is(err, ErrLost) {
		t.Errorf("Put while the database cannot be written: %v, want ErrLost", err)
	}
	checkpointNow(t, q)
	must("Put once it can", put())
	there("at the end")
}
