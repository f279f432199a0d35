package boltqueue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// A model is what a store ought to hold.
type model struct {
	waiting map[string]int    // tries, by delivery
	dead    map[string]string // delivery, by key
	known   map[string]bool   // was put
	members map[string]bool
}

// crash copies the files of a store as a process that is killed leaves them, to
// another folder, and returns the path there. The store may write the database at the
// time, and is not called.
func crash(t *testing.T, path string) string {
	t.Helper()
	read := func() (files [3][]byte) {
		for i, suffix := range []string{"", ".journal", ".journal2"} {
			b, err := os.ReadFile(path + suffix)
			if err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) {
				t.Fatal(err)
			}
			files[i] = b
		}
		return files
	}
	// What is the same twice was there all at once in between.
	files := read()
	for again := read(); !reflect.DeepEqual(files, again); again = read() {
		files = again
	}
	to := filepath.Join(t.TempDir(), "queue.db")
	for i, suffix := range []string{"", ".journal", ".journal2"} {
		if files[i] == nil {
			continue
		}
		if err := os.WriteFile(to+suffix, files[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// A disk fails when it is told to. The committer may be writing at the time.
type disk struct {
	mu      sync.Mutex
	journal string        // how entries fail
	ends    []int         // how the next transactions end
	hold    chan struct{} // if not nil, transactions wait until it is closed
	held    chan struct{} // closed when one does
}

// stop has the next transaction wait until release is called, and returns when it does.
func (k *disk) stop(q *Queue) (release func()) {
	hold, held := make(chan struct{}), make(chan struct{})
	k.mu.Lock()
	k.hold, k.held = hold, held
	k.mu.Unlock()
	q.mu.Lock()
	q.written = journalSize + 1 // enough for the next epoch to begin
	q.mu.Unlock()
	q.due <- struct{}{}
	<-held
	return func() { close(hold) }
}

// fail has the disk fail in some way until mend is called.
func (k *disk) fail(rnd *rand.Rand) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.journal = []string{"", "write", "short write", "sync"}[rnd.IntN(4)]
	for range rnd.IntN(4) {
		k.ends = append(k.ends, rnd.IntN(5))
	}
}

func (k *disk) mend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.journal, k.ends = "", nil
}

// spoil has the files of a store that was just opened be on the disk.
func (k *disk) spoil(q *Queue) {
	for _, j := range q.journals {
		k.spoilJournal(j)
	}
	q.commit1 = func(tx *bolt.Tx) error {
		k.mu.Lock()
		end := -1
		if len(k.ends) > 0 {
			end, k.ends = k.ends[0], k.ends[1:]
		}
		hold, held := k.hold, k.held
		k.hold = nil
		k.mu.Unlock()
		if hold != nil {
			close(held)
			<-hold
		}
		switch db := tx.DB(); end {
		case 0:
			tx.Rollback()
		case 1:
			tx.Commit()
		case 2:
			panic("page 7: invalid page type")
		case 3: // nobody can tell
			tx.Rollback()
			db.Close()
		case 4:
			tx.Commit()
			db.Close()
		default:
			return tx.Commit()
		}
		return errDisk
	}
}

func (k *disk) spoilJournal(j *journal) {
	write, sync := j.write, j.sync
	how := func() string {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.journal
	}
	j.write = func(b []byte, off int64) (int, error) {
		switch how() {
		case "write":
			return 0, errDisk
		case "short write":
			n, _ := write(b[:len(b)/2], off)
			return n, errDisk
		}
		return write(b, off)
	}
	j.sync = func() error {
		if how() == "sync" {
			return errDisk
		}
		return sync()
	}
}

// TestCrashModel does at random all that changes a store, has the disk fail now
// and then, and the process end, and compares what is there with a model.
func TestCrashModel(t *testing.T) {
	for seed := range soak.Seeds(t, 2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { crashModel(t, seed) })
		})
	}
}

func crashModel(t *testing.T, seed uint64) {
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(seed, 1))
	config := &Config{CacheBytes: 8 << 10, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { q.Close() }()
	var disk disk
	disk.spoil(q)
	m := model{map[string]int{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
	held := map[string]webhook.Delivery{}
	past := time.Now().Add(-time.Hour)
	ids := 0
	destinations := map[string]string{} // by delivery
	fresh := func() webhook.Delivery {
		ids++
		d := webhook.Delivery{
			Destination: fmt.Sprint("d", rnd.IntN(4)), ID: fmt.Sprint(ids), Body: make([]byte, rnd.IntN(400)),
			Due: past.Add(time.Duration(rnd.IntN(1e6)) * time.Microsecond),
		}
		destinations[d.ID] = d.Destination
		return d
	}
	put := func() error {
		var ds []webhook.Delivery
		for range 1 + rnd.IntN(5) {
			ds = append(ds, fresh())
		}
		if n, err := q.Put(ctx, ds...); err != nil {
			return err
		} else if n != len(ds) {
			t.Fatalf("Put = %d of %d new deliveries", n, len(ds))
		}
		for _, d := range ds {
			m.waiting[d.ID], m.known[d.Destination+" "+d.ID] = 0, true
		}
		return nil
	}
	settle := func() error {
		var ss []webhook.Settlement
		for _, id := range slices.Sorted(keysOf(held)) {
			if len(ss) == 10 || rnd.IntN(3) == 0 {
				break
			}
			d := held[id]
			s := webhook.Settlement{Verdict: webhook.Verdict(1 + rnd.IntN(3)), Delivery: d, At: time.Now(), Reason: webhook.ReasonExpired}
			switch s.Verdict {
			case webhook.Retry:
				s.Delivery.Due, s.Delivery.Tries = past.Add(time.Duration(rnd.IntN(1e6))*time.Microsecond), d.Tries+1
			}
			ss = append(ss, s)
		}
		if err := q.Settle(ctx, ss...); err != nil {
			return err
		}
		for _, s := range ss {
			switch s.Verdict {
			case webhook.Retry:
				m.waiting[s.Delivery.ID]++
			case webhook.Bury:
				m.dead[fmt.Sprint("?", s.Delivery.ID)] = s.Delivery.ID
				delete(m.waiting, s.Delivery.ID)
			default:
				delete(m.waiting, s.Delivery.ID)
			}
			delete(held, s.Delivery.ID)
		}
		return nil
	}
	lease := func() {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1 + rnd.IntN(20), Until: time.Now().Add(time.Hour)}, nil)
		if err != nil {
			t.Fatalf("Lease: %v", err)
		}
		for _, d := range ds {
			if tries, ok := m.waiting[d.ID]; !ok || tries != d.Tries {
				t.Fatalf("%s is handed out with %d tries, want %d, %t", d.ID, d.Tries, tries, ok)
			}
			if _, ok := held[d.ID]; ok {
				t.Fatalf("%s is handed out twice", d.ID)
			}
			held[d.ID] = d
		}
	}
	// What a call does that failed while nobody can tell whether it is stored.
	var maybe func()
	exhume := func() error {
		for d, err := range q.Dead(ctx, webhook.DeadFilter{}, "") {
			if err != nil {
				return err
			}
			do := q.Revive
			revive := rnd.IntN(2) == 0
			if !revive {
				do = q.Discard
			}
			happen := func() {
				if revive {
					m.waiting[d.ID] = 0
				}
				delete(m.dead, "?"+d.ID)
			}
			n, err := do(ctx, d.Key, d.Key)
			if err != nil {
				maybe = happen
				return err
			}
			if n != 1 {
				t.Fatalf("%d dead letters with the key of one", n)
			}
			happen()
			return nil
		}
		return nil
	}
	audience := func() error {
		user := fmt.Sprint("u", rnd.IntN(20))
		d := fresh()
		announce := func(string) ([]webhook.Delivery, error) { return []webhook.Delivery{d}, nil }
		happen := func() {
			// The ids of announcements are new, and are not remembered.
			m.members[user], m.waiting[d.ID] = true, 0
		}
		n, err := q.Join(ctx, "vip", 1, []string{user}, announce)
		if err != nil {
			if !m.members[user] {
				maybe = happen
			}
			return err
		}
		if (n == 1) == m.members[user] {
			t.Fatalf("%d joined, but %s is a member: %t", n, user, m.members[user])
		}
		if n == 1 {
			happen()
		}
		return nil
	}
	compare := func(q *Queue, all bool) {
		t.Helper()
		if err := q.Check(ctx); err != nil {
			t.Fatal(err)
		}
		counts, err := q.Count(ctx)
		if err != nil || counts.Waiting != len(m.waiting) || counts.Dead != len(m.dead) {
			t.Fatalf("Count = %+v, %v, want %d waiting and %d dead", counts, err, len(m.waiting), len(m.dead))
		}
		want, got := map[string]int{}, map[string]int{}
		for id := range m.waiting {
			want[destinations[id]]++
		}
		for c, err := range q.CountByDestination(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got[c.Destination] += c.Waiting
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("CountByDestination (-want +got)\n%s", diff)
		}
		if !all {
			return
		}
		there, latest := map[string]int{}, map[string]time.Time{}
		for {
			ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 1000, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				there[d.ID] = d.Tries
				if d.Due.Before(latest[d.Destination]) {
					t.Fatalf("%s is handed out after what is due later", d.ID)
				}
				latest[d.Destination] = d.Due
			}
		}
		for id, tries := range m.waiting {
			if got, ok := there[id]; !ok || got != tries {
				t.Fatalf("%s is there: %t, with %d tries, want %d", id, ok, got, tries)
			}
		}
		if len(there) != len(m.waiting) {
			t.Fatalf("%d wait, want %d", len(there), len(m.waiting))
		}
		dead := map[string]bool{}
		for d, err := range q.Dead(ctx, webhook.DeadFilter{}, "") {
			if err != nil || dead[d.ID] || m.dead["?"+d.ID] == "" {
				t.Fatalf("dead letter %s, %v, is there twice: %t", d.ID, err, dead[d.ID])
			}
			dead[d.ID] = true
		}
		n := 0
		for user, err := range q.Members(ctx, "vip", "") {
			if n++; err != nil || !m.members[user] {
				t.Fatalf("%s is a member, %v", user, err)
			}
		}
		if n != len(m.members) {
			t.Fatalf("%d members, want %d", n, len(m.members))
		}
		var again []webhook.Delivery
		for k := range m.known {
			var d webhook.Delivery
			fmt.Sscan(k, &d.Destination, &d.ID)
			again = append(again, d)
		}
		if n, err := q.Put(ctx, again...); n != 0 || err != nil {
			t.Fatalf("Put of what was put before = %d, %v, want 0", n, err)
		}
	}
	for step := range 120 {
		time.Sleep(time.Duration(rnd.IntN(3)) * time.Second / 2) // what failed is left alone for a second
		fails := rnd.IntN(6) == 0
		if fails {
			disk.fail(rnd)
		}
		if rnd.IntN(4) == 0 {
			endSegment(q)
		}
		if rnd.IntN(4) == 0 {
			foldNow(q)
		}
		var err error
		maybe = nil
		switch what := rnd.IntN(10); {
		case what < 3:
			err = put()
		case what < 6:
			err = settle()
		case what < 7:
			err = exhume()
		case what < 8:
			err = audience()
		case what < 9:
			err = q.do(ctx, &request{work: nothing})
		default:
			if !fails {
				lease()
			}
		}
		if !fails && rnd.IntN(6) == 0 {
			// What happens while the database is being written.
			if err := put(); err != nil {
				t.Fatal(err)
			}
			release := disk.stop(q)
			for range 4 {
				do := put
				if rnd.IntN(2) == 0 {
					do = settle
				}
				if err := do(); err != nil {
					t.Fatalf("step %d: while the database is being written: %v", step, err)
				}
			}
			ended := crash(t, path)
			p, err := Open(ended, config)
			if err != nil {
				t.Fatalf("step %d: Open after a crash while the database is being written: %v", step, err)
			}
			if rnd.IntN(2) == 0 {
				compare(p, true)
			}
			p.Close()
			release()
			if rnd.IntN(2) == 0 {
				checkpointNow(t, q)
			}
		}
		if fails {
			disk.mend()
			again := put()
			for range 3 {
				again = put()
			}
			if again != nil {
				t.Fatalf("step %d: Put once the disk works again: %v", step, again)
			}
			if counts, _ := q.Count(ctx); maybe != nil && (counts.Waiting != len(m.waiting) || counts.Dead != len(m.dead)) {
				maybe()
			}
		} else if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		switch {
		case fails && rnd.IntN(2) == 0, rnd.IntN(20) == 0:
			ended := crash(t, path)
			p, err := Open(ended, config)
			if err != nil {
				t.Fatalf("step %d: Open after a crash: %v", step, err)
			}
			compare(p, true)
			p.Close()
		case rnd.IntN(10) == 0:
			compare(q, false)
		}
		if rnd.IntN(20) == 0 {
			to := crash(t, path)
			if rnd.IntN(2) == 0 {
				to = path
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			if q, err = Open(to, config); err != nil {
				t.Fatal(err)
			}
			disk.spoil(q)
			path = to
			clear(held)
		}
	}
}

// The disk may go on failing while the database is opened again, so that more
// transactions are in doubt than the one.
func TestOpenAgainFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fail   []string
		stored bool
	}{
		{"written, then written", []string{"written", "written", "written"}, true},
		{"written, then not", []string{"written", "not written", "not written"}, true},
		{"not written, then written", []string{"not written", "written"}, false},
		{"not written, then written twice", []string{"not written", "written", "written"}, false},
		{"not written at all", []string{"not written", "not written", "not written"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOpenAgainFails(t, tt.fail, tt.stored) })
		})
	}
}

// testOpenAgainFails has transactions end in some ways, before the database is closed.
func testOpenAgainFails(t *testing.T, fail []string, stored bool) {
	ends := map[string]func(*bolt.Tx) error{"written": (*bolt.Tx).Commit, "not written": (*bolt.Tx).Rollback}
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	put := func(id string) error {
		_, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: time.Now()})
		return err
	}
	if err := put("in the journal"); err != nil {
		t.Fatal(err)
	}
	q.commit1 = func(tx *bolt.Tx) error {
		if len(fail) == 0 {
			return tx.Commit()
		}
		end := ends[fail[0]]
		fail = fail[1:]
		db := tx.DB()
		end(tx)
		db.Close() // nobody can tell
		return errDisk
	}
	if _, err := q.Begin(ctx, "vip"); !errors.Is(err, errDisk) {
		t.Errorf("Begin: %v, want %v", err, errDisk)
	}
	if len(fail) > 0 {
		if err := put("while it fails"); !errors.Is(err, errDisk) {
			t.Errorf("Put: %v, want %v", err, errDisk)
		}
	}
	if err := put("while it works again"); err != nil {
		t.Fatalf("Put once the disk works again: %v", err)
	}
	for _, at := range []string{crash(t, path), path} {
		if at == path {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Open(at, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if counts, err := p.Count(ctx); err != nil || counts.Waiting != 2 {
			t.Errorf("the store has %+v, %v, want the 2 that were acknowledged", counts, err)
		}
		gen, err := p.Begin(ctx, "vip")
		if want := uint64(1); err != nil || stored && gen != want+1 || !stored && gen != want {
			t.Errorf("the generation is %d, %v, want that the first is stored: %t", gen, err, stored)
		}
		if err := p.Check(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A database that has to be opened again and is not there is not made.
func TestOpenAgainIsLost(t *testing.T) { synctest.Test(t, testOpenAgainIsLost) }

func testOpenAgainIsLost(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	put := func(id string) error {
		_, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: id, Due: time.Now()})
		return err
	}
	if err := put("1"); err != nil {
		t.Fatal(err)
	}
	q.commit1 = func(tx *bolt.Tx) error {
		q.commit1 = (*bolt.Tx).Commit
		db := tx.DB()
		tx.Rollback()
		db.Close()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Error(err)
		}
		return errDisk
	}
	if _, err := q.Begin(ctx, "vip"); !errors.Is(err, errDisk) {
		t.Errorf("Begin: %v, want %v", err, errDisk)
	}
	if err := put("2"); !errors.Is(err, ErrLost) {
		t.Errorf("Put: %v, want ErrLost", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file that was moved away: %v, want that none is made", err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := put("2"); err != nil {
		t.Errorf("Put with the file back: %v", err)
	}
	if counts, err := q.Count(ctx); err != nil || counts.Waiting != 2 {
		t.Errorf("Count = %+v, %v, want 2 waiting", counts, err)
	}
}

// A process that ends again and again without a Close, while nothing is delivered,
// has no more in memory each time.
func TestMemoryAfterCrashes(t *testing.T) {
	const rounds, each = 20, 40
	config := &Config{CacheBytes: 64 << 10}
	path := filepath.Join(t.TempDir(), "queue.db")
	for round := range rounds {
		q, err := Open(path, config)
		if err != nil {
			t.Fatal(err)
		}
		if q.cached > config.CacheBytes {
			t.Errorf("%d bytes are in memory after %d ends, want at most %d", q.cached, round, config.CacheBytes)
		}
		var ds []webhook.Delivery
		for i := range each {
			ds = append(ds, webhook.Delivery{Destination: "a", ID: fmt.Sprint(round, "-", i), Body: make([]byte, 1000), Due: time.Now().Add(-time.Second)})
		}
		if _, err := q.Put(t.Context(), ds...); err != nil {
			t.Fatal(err)
		}
		path = crash(t, path)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	q, err := Open(path, config)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 10000, Until: time.Now().Add(time.Hour)}, nil); err != nil || len(ds) != rounds*each {
		t.Errorf("Lease = %d, %v, want %d", len(ds), err, rounds*each)
	}
}

// The power may fail between the mark of an epoch and the database that names it, at
// a checkpoint and at an Open: the entries of the epoch before count.
func TestCrashBesideMark(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for i := range 3 {
		if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	ended := map[string]string{}
	q.commit1 = func(tx *bolt.Tx) error {
		ended["a checkpoint that is not written"] = crash(t, path)
		err := tx.Commit()
		ended["a checkpoint that is written"] = crash(t, path)
		return err
	}
	if _, err := q.Begin(ctx, "vip"); err != nil {
		t.Fatal(err)
	}
	// An Open that ends before its database is written leaves its journal.
	for range 3 {
		name := fmt.Sprint(len(ended), ", an Open that is not written")
		unwritten := crash(t, ended["a checkpoint that is not written"])
		before, err := os.ReadFile(unwritten)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Open(unwritten, nil)
		if err != nil {
			t.Fatal(err)
		}
		ended[name] = crash(t, unwritten)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ended[name], before, 0o600); err != nil {
			t.Fatal(err)
		}
		ended["a checkpoint that is not written"] = crash(t, ended[name])
	}
	for name, at := range ended {
		p, err := Open(at, nil)
		if err != nil {
			t.Errorf("%s: Open: %v", name, err)
			continue
		}
		defer p.Close()
		if counts, err := p.Count(ctx); err != nil || counts.Waiting != 3 {
			t.Errorf("%s: Count = %+v, %v, want 3 waiting", name, counts, err)
		}
	}
}

// The space of the journal that could not be synced is not counted on.
func TestJournalGrowthFails(t *testing.T) { synctest.Test(t, testJournalGrowthFails) }

func testJournalGrowthFails(t *testing.T) {
	q, err := Open(filepath.Join(t.TempDir(), "queue.db"), &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	size := q.journal.size
	d := webhook.Delivery{Destination: "a", ID: "1", Due: time.Now(), Body: make([]byte, 2*journalStep)}
	mend := q.journal.spoil("sync")
	if _, err := q.Put(t.Context(), d); !errors.Is(err, errDisk) {
		t.Errorf("Put: %v, want %v", err, errDisk)
	}
	mend()
	if q.journal.size != size {
		t.Errorf("the journal counts on %d bytes, want %d", q.journal.size, size)
	}
	if n, err := q.Put(t.Context(), d); n != 1 || err != nil {
		t.Errorf("Put = %d, %v, want 1", n, err)
	}
}

// Where the journal cannot grow while the database has room, all goes on: what is
// stored, in calls that fill the journal and in one that is larger, and what settles.
func TestJournalCannotGrow(t *testing.T) { synctest.Test(t, testJournalCannotGrow) }

func testJournalCannotGrow(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, j := range q.journals {
		write, size := j.write, j.size
		j.write = func(b []byte, off int64) (int, error) {
			if off+int64(len(b)) > size {
				return 0, errDisk
			}
			return write(b, off)
		}
	}
	const n, each = 20, 200 << 10
	put := func(ids ...string) *request {
		var ds []webhook.Delivery
		for _, id := range ids {
			ds = append(ds, webhook.Delivery{Destination: "a", ID: id, Body: make([]byte, each), Due: time.Now().Add(-time.Second)})
		}
		r := &request{done: make(chan struct{})}
		if err := r.prepare(ds); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for i := range n {
		if err := q.do(ctx, put(fmt.Sprint(i))); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	leased, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(leased) != n {
		t.Fatal(len(leased), err)
	}
	for i, d := range leased[:n/2] {
		if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Retry, Delivery: d}); err != nil {
			t.Fatalf("retry %d: %v", i, err)
		}
	}
	// Of one commit, what fits is stored.
	large := put("l0", "l1", "l2", "l3", "l4", "l5", "l6")
	small := put("small")
	done := &request{done: make(chan struct{}), ends: []end{{lease: leased[n-1].Claim, verdict: webhook.Done}}}
	q.inbox.mu.Lock()
	q.inbox.requests = append(q.inbox.requests, large, small, done)
	q.inbox.mu.Unlock()
	q.inbox.wake <- struct{}{}
	for _, r := range []*request{large, small, done} {
		<-r.done
	}
	if !errors.Is(large.err, errDisk) || small.err != nil || done.err != nil {
		t.Errorf("what does not fit: %v, want %v; what fits: %v, %v", large.err, errDisk, small.err, done.err)
	}
	p, err := Open(crash(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for name, q := range map[string]*Queue{"the store": q, "the one after a crash": p} {
		if counts, err := q.Count(ctx); err != nil || counts.Waiting != n {
			t.Errorf("%s has %+v, %v, want %d waiting", name, counts, err, n)
		}
		if err := q.Check(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// When a checkpoint that a commit asked for leaves a doubt, the commit has to wait
// too: the entry it would write is of an epoch that may be over.
func TestDoubtBeforeEntry(t *testing.T) { synctest.Test(t, testDoubtBeforeEntry) }

func testDoubtBeforeEntry(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, &Config{MaxBytes: 1 << 30, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var ds []webhook.Delivery
	for i := range 3 {
		ds = append(ds, webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: time.Now().Add(-time.Second)})
	}
	if _, err := q.Put(ctx, ds...); err != nil {
		t.Fatal(err)
	}
	if err := q.do(ctx, &request{work: nothing}); err != nil {
		t.Fatal(err)
	}
	leased, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 3, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(leased) != 3 {
		t.Fatal(len(leased), err)
	}
	if err := q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: leased[0]}); err != nil {
		t.Fatal(err)
	}
	left := 2 // the checkpoint, and what opens the database again
	q.commit1 = func(tx *bolt.Tx) error {
		if left--; left < 0 {
			return tx.Commit()
		}
		db := tx.DB()
		tx.Commit()
		db.Close()
		return errDisk
	}
	q.used = 2 << 30 // at MaxBytes: room is made before the commit
	// Both are in one commit.
	put := &request{done: make(chan struct{})}
	if err := put.prepare([]webhook.Delivery{{Destination: "a", ID: "new", Due: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	done := &request{done: make(chan struct{}), ends: []end{{lease: leased[1].Claim, verdict: webhook.Done}}}
	q.inbox.mu.Lock()
	q.inbox.requests = append(q.inbox.requests, put, done)
	q.inbox.mu.Unlock()
	q.inbox.wake <- struct{}{}
	<-put.done
	<-done.done
	want := 2
	if done.err == nil {
		want--
	}
	if put.err == nil {
		want++
	}
	q.used = 0
	if _, err := q.Put(ctx, webhook.Delivery{Destination: "a", ID: "newer", Due: time.Now()}); err != nil {
		t.Fatalf("Put once the disk works again: %v", err)
	}
	p, err := Open(crash(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if counts, err := p.Count(ctx); err != nil || counts.Waiting != want+1 {
		t.Errorf("after a crash there are %+v, %v, want %d waiting", counts, err, want+1)
	}
	if err := p.Check(ctx); err != nil {
		t.Error(err)
	}
}

func keysOf(m map[string]webhook.Delivery) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
