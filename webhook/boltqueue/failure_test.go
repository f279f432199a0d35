package boltqueue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
)

var errDisk = errors.New("the disk fails")

// spoil has the writing of entries fail, from how on, until mend is called.
func (j *journal) spoil(how string) (mend func()) {
	write, sync := j.write, j.sync
	switch how {
	case "write":
		j.write = func([]byte, int64) (int, error) { return 0, errDisk }
	case "short write":
		j.write = func(b []byte, off int64) (int, error) {
			n, _ := write(b[:len(b)/2], off)
			return n, errDisk
		}
	case "sync":
		j.sync = func() error { return errDisk }
	}
	return func() { j.write, j.sync = write, sync }
}

// block leaves the journal no room: the database has to be written before a commit.
func (q *Queue) block(t *testing.T) (unblock func()) {
	t.Helper()
	checkpointNow(t, q)
	q.journal.ready = false // as with entries
	if err := q.seal(); err != nil {
		t.Fatal(err)
	}
	j := q.journal
	off := j.off
	j.off, j.ready = maxJournal, false
	return func() {
		if q.journal == j {
			j.off, j.ready = off, true
		}
	}
}

// A transaction may fail before anything of it is to be seen in the file, or after
// all of it is: the sync of the last page fails. Either way the outcome that
// the callers are told is the one in the file. An entry of the journal that fails
// is not stored.
func TestCommitFails(t *testing.T) {
	before := func(tx *bolt.Tx) error {
		tx.Rollback()
		return errDisk
	}
	after := func(tx *bolt.Tx) error {
		tx.Commit()
		return errDisk
	}
	panics := func(tx *bolt.Tx) error { panic("page 7: invalid page type") }
	for _, tt := range []struct {
		name    string
		commit  func(*bolt.Tx) error
		journal string
		stored  bool
	}{
		{"nothing is written", before, "", false},
		{"all is written", after, "", true},
		{"bbolt panics", panics, "", false},
		{"the journal is not written", before, "write", false},
		{"the journal is written in part", before, "short write", false},
		{"the journal is not synced", before, "sync", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testCommitFails(t, tt.commit, tt.journal, tt.stored) })
		})
	}
}

func testCommitFails(t *testing.T, commit func(*bolt.Tx) error, journal string, stored bool) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	delivery := func(id string) webhook.Delivery {
		return webhook.Delivery{Destination: "a", ID: id, Due: time.Now().Add(-time.Second)}
	}
	expect := func(what string, err error) {
		t.Helper()
		if stored && err != nil || !stored && err == nil {
			t.Errorf("%s: %v, want an error: %t", what, err, !stored)
		}
	}
	var ds []webhook.Delivery
	for i := range 6 {
		ds = append(ds, delivery(fmt.Sprint(i)))
	}
	if _, err := q.Put(ctx, ds...); err != nil {
		t.Fatal(err)
	}
	leased, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 6, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(leased) != 6 {
		t.Fatal(len(leased), err)
	}
	ss := []webhook.Settlement{
		{Verdict: webhook.Done, Delivery: leased[0]},
		{Verdict: webhook.Retry, Delivery: leased[1]},
		{Verdict: webhook.Bury, Delivery: leased[2], At: time.Now()},
	}

	fail := func(do func()) {
		if journal == "" {
			defer q.block(t)()
		}
		mend := q.journal.spoil(journal)
		q.commit1 = func(tx *bolt.Tx) error {
			q.commit1 = (*bolt.Tx).Commit // opens the database again
			return commit(tx)
		}
		do()
		q.commit1 = (*bolt.Tx).Commit
		mend()
	}
	fail(func() {
		n, err := q.Put(ctx, delivery("new"), delivery("newer"))
		expect("Put", err)
		if stored && n != 2 || !stored && n != 0 {
			t.Errorf("Put = %d", n)
		}
	})
	fail(func() { expect("Settle", q.Settle(ctx, ss...)) })
	fail(func() {
		_, err := q.Join(ctx, "vip", 1, []string{"u"}, func(string) ([]webhook.Delivery, error) {
			return []webhook.Delivery{delivery("joined")}, nil
		})
		expect("Join", err)
	})

	// Afterwards all is as if it had never happened, or had succeeded.
	want := webhook.Counts{Waiting: 6, Claimed: 6}
	if stored {
		want = webhook.Counts{Waiting: 6 - 2 + 2 + 1, Claimed: 3, Dead: 1}
	}
	counted := func() {
		t.Helper()
		got, err := q.Count(ctx)
		got.Oldest = time.Time{}
		if err != nil || got != want {
			t.Errorf("Count = %+v, %v, want %+v", got, err, want)
		}
		if err := q.Check(ctx); err != nil {
			t.Error(err)
		}
	}
	counted()
	if !stored {
		if n, err := q.Put(ctx, delivery("new"), delivery("newer")); n != 2 || err != nil {
			t.Errorf("Put again = %d, %v, want 2", n, err)
		}
		if err := q.Settle(ctx, ss...); err != nil {
			t.Errorf("Settle again: %v", err)
		}
		want = webhook.Counts{Waiting: 6 - 2 + 2, Claimed: 3, Dead: 1}
		counted()
	} else if n, err := q.Put(ctx, delivery("new")); n != 0 || err != nil {
		t.Errorf("Put again = %d, %v, want 0", n, err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	q, err = Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	want.Claimed = 0
	counted()
}

// Another process may take the file while it is being opened again.
func TestCommitFailsAndFileIsTaken(t *testing.T) { synctest.Test(t, testCommitFailsAndFileIsTaken) }

func testCommitFailsAndFileIsTaken(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	q, err := Open(path, &Config{LockTimeout: time.Millisecond, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	put := func(q *Queue, id string) error {
		_, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: time.Now()})
		return err
	}
	if err := put(q, "1"); err != nil {
		t.Fatal(err)
	}
	var other *Queue
	unblock := q.block(t)
	q.commit1 = func(tx *bolt.Tx) error {
		db := tx.DB()
		tx.Rollback()
		db.Close()
		if other, err = Open(path, &Config{Logger: quiet}); err != nil {
			t.Error(err)
		}
		return errDisk
	}
	if err := put(q, "2"); !errors.Is(err, errDisk) {
		t.Errorf("Put: %v, want %v", err, errDisk)
	}
	q.commit1 = (*bolt.Tx).Commit
	unblock()
	if err := put(q, "3"); !errors.Is(err, ErrLocked) {
		t.Errorf("Put while another has the file: %v, want ErrLocked", err)
	}
	if err := put(other, "4"); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(q, "5"); err == nil {
		t.Error("Put after another had the file is no error")
	}
	q, err = Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 2 || ds[0].ID != "1" || ds[1].ID != "4" {
		t.Errorf("Lease = %v, %v, want 1 and 4", ds, err)
	}
}

func TestOpenUnknownVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(rowVersion, []byte{formatVersion + 1})
	}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(path, nil); !errors.Is(err, ErrVersion) {
		t.Errorf("Open: %v, want ErrVersion", err)
	}
	// A bbolt database of another program is left alone.
	path = filepath.Join(t.TempDir(), "other.db")
	if db, err = bolt.Open(path, 0o600, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("theirs"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(path, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open of another program's database: %v, want ErrDamaged", err)
	}
}

// A row that cannot be read is in nobody's way, and is told of.
func TestDamagedRowIsSetAside(t *testing.T) {
	ctx := t.Context()
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{CacheBytes: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	due := time.Now().Add(-time.Second)
	for i := range 6 {
		if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Body: make([]byte, 100), Due: due}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.do(ctx, &request{work: nothing}); err != nil {
		t.Fatal(err)
	}
	spoiled := ""
	if err := q.do(ctx, &request{work: func(e *edit, _ *request) error {
		b := e.bucket(bucketWaiting)
		k, v := b.Cursor().Last()
		spoiled = fmt.Sprintf("%x", k)
		v = append([]byte(nil), v...)
		v[len(v)-1] ^= 1
		return b.Put(k, v)
	}}); err != nil {
		t.Fatal(err)
	}
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 5 {
		t.Errorf("Lease = %d, %v, want the 5 that can be read", len(ds), err)
	}
	if err := q.Check(ctx); !errors.Is(err, ErrDamaged) {
		t.Errorf("Check: %v, want ErrDamaged for %s", err, spoiled)
	}
	if got, err := q.Count(ctx); err != nil || got.Waiting != 5 {
		t.Errorf("Count = %+v, %v, want 5 waiting", got, err)
	}
}

// A row that cannot be read is counted off once, also if it cannot be set aside at
// first and is read again.
func TestDamagedRowIsCountedOnce(t *testing.T) { synctest.Test(t, testDamagedRowIsCountedOnce) }

func testDamagedRowIsCountedOnce(t *testing.T) {
	ctx := t.Context()
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{CacheBytes: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	now := time.Now()
	put := func(id string, due time.Duration) {
		t.Helper()
		if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: now.Add(due)}); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(want string) webhook.Delivery {
		t.Helper()
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
		if err != nil || len(ds) != 1 || ds[0].ID != want {
			t.Fatalf("Lease = %v, %v, want %s", ds, err, want)
		}
		// What was found to be damaged is set aside before this.
		if err := q.await(&request{}); err != nil {
			t.Fatal(err)
		}
		return ds[0]
	}
	counted := func(want int) {
		t.Helper()
		counts, err := q.Count(ctx)
		if err != nil || counts.Waiting != want {
			t.Errorf("Count = %+v, %v, want %d waiting", counts, err, want)
		}
		for c, err := range q.CountByDestination(ctx) {
			if err != nil || c.Waiting != want {
				t.Errorf("CountByDestination = %+v, %v, want %d waiting", c, err, want)
			}
		}
	}
	put("first", -3*time.Second)
	put("damaged", -time.Second)
	put("far", time.Hour)
	checkpointNow(t, q)
	if err := q.do(ctx, &request{work: func(e *edit, _ *request) error {
		b := e.bucket(bucketWaiting)
		c := b.Cursor()
		c.First()
		k, v := c.Next()
		v = append([]byte(nil), v...)
		v[len(v)-1] ^= 1
		return b.Put(k, v)
	}}); err != nil {
		t.Fatal(err)
	}
	q.commit1 = func(tx *bolt.Tx) error {
		q.commit1 = (*bolt.Tx).Commit
		tx.Rollback()
		return errDisk
	}
	first := lease("first")
	counted(3) // it could not be set aside
	if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: first}); err != nil {
		t.Fatal(err)
	}
	checkpointNow(t, q)
	put("second", -2*time.Second)
	checkpointNow(t, q)
	lease("second")
	counted(2)
}

// A store with a row that cannot be without is refused, and none of it is changed.
func TestDamagedRowIsLeftByOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Put(t.Context(), webhook.Delivery{Destination: "a", ID: "1", Due: time.Now().Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketBlocks)
		k, v := b.Cursor().First()
		v = append([]byte(nil), v...)
		v[len(v)-1] ^= 1
		return b.Put(k, v)
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open: %v, want ErrDamaged", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("Open has changed the file, %v", err)
	}
	if beside, err := filepath.Glob(path + "?*"); err != nil || len(beside) > 0 {
		t.Errorf("Open has made %v, %v", beside, err)
	}
}

// After a Close that could not write the database, all calls say that it is closed.
func TestCloseFails(t *testing.T) { synctest.Test(t, testCloseFails) }

func testCloseFails(t *testing.T) {
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Put(t.Context(), webhook.Delivery{Destination: "a", ID: "1", Due: time.Now()}); err != nil {
		t.Fatal(err)
	}
	ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 {
		t.Fatal(len(ds), err)
	}
	if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Bury, Delivery: ds[0], At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	q.commit1 = func(tx *bolt.Tx) error {
		tx.Rollback()
		return errDisk
	}
	q.Close()
	if _, err := q.DeadLetter(t.Context(), "key"); !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("DeadLetter: %v, want ErrClosed", err)
	}
	err = nil
	for _, err = range q.Dead(t.Context(), webhook.DeadFilter{}, "") {
	}
	if !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("Dead: %v, want ErrClosed", err)
	}
}
