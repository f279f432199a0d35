package boltqueue

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// A platter is the disk of a store, as a loss of power leaves it: of the files of the
// journal there is what was synced, and of what was written since any sectors, each as it
// was or as it is. The database has its own tests for that: here a transaction is there
// or not.
type platter struct {
	path string

	mu      sync.Mutex // held while the database is written
	rnd     *rand.Rand
	synced  [2][]byte
	pending [2][]sectors // written since
	state   accounts
	shots   []shot
	every   int // about how many events go by for each shot
}

// sectors are what one call has written.
type sectors struct {
	b   []byte
	off int64
}

// accounts say what a store ought to hold.
type accounts struct {
	stored map[string]string // by delivery: the tries of one that waits, or "dead"
	flight map[string]string // what the call in progress makes of some; "" is gone
}

// A shot is a store as it is left at one moment, by a loss of power, and by the end of
// its process alone.
type shot struct {
	accounts
	lost, ended [3][]byte // the files
	synced      [2][]byte
	pending     [2][]sectors
}

// open opens the store on the platter.
func (p *platter) open(t *testing.T, config *Config) *Queue {
	t.Helper()
	q := newQueue(p.path, config)
	q.commit1 = func(tx *bolt.Tx) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.event(t)
		err := tx.Commit()
		p.event(t)
		return err
	}
	for i, j := range q.journals {
		j.wrap = func() { p.wrap(t, i, j) }
	}
	if err := q.open(); err != nil {
		t.Fatalf("Open: %v", err)
	}
	return q
}

// wrap has the file of a journal be on the platter.
func (p *platter) wrap(t *testing.T, i int, j *journal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.synced[i] == nil {
		b, err := os.ReadFile(j.path)
		if err != nil {
			t.Error(err)
		}
		p.synced[i] = b
	}
	write := j.write
	j.write = func(b []byte, off int64) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		n, err := write(b, off)
		p.pending[i] = append(p.pending[i], sectors{bytes.Clone(b), off})
		p.event(t)
		return n, err
	}
	j.sync = func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.event(t)
		for _, s := range p.pending[i] {
			if end := s.off + int64(len(s.b)); end > int64(len(p.synced[i])) {
				p.synced[i] = append(p.synced[i], make([]byte, end-int64(len(p.synced[i])))...)
			}
			copy(p.synced[i][s.off:], s.b)
		}
		p.pending[i] = nil
		p.event(t)
		return nil
	}
}

// event is called where power may be lost.
func (p *platter) event(t *testing.T) {
	if p.rnd.IntN(p.every) == 0 {
		p.shoot(t)
	}
}

func (p *platter) shoot(t *testing.T) {
	s := shot{accounts: accounts{maps.Clone(p.state.stored), maps.Clone(p.state.flight)}}
	for i, name := range files(p.path) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		s.ended[i], s.lost[i] = b, b
		if i > 0 {
			s.lost[i] = p.lose(p.synced[i-1], p.pending[i-1])
			s.synced[i-1], s.pending[i-1] = bytes.Clone(p.synced[i-1]), slices.Clone(p.pending[i-1])
		}
	}
	p.shots = append(p.shots, s)
}

func files(path string) []string {
	journals := journalPaths(path)
	return append([]string{path}, journals[:]...)
}

// lose returns a file after a loss of power.
func (p *platter) lose(synced []byte, pending []sectors) []byte {
	b := bytes.Clone(synced)
	unit := []int64{sectorSize, 4096}[p.rnd.IntN(2)]
	chance := p.rnd.IntN(5) // of four
	for _, s := range pending {
		for at := s.off; at < s.off+int64(len(s.b)); {
			end := min(at/unit*unit+unit, s.off+int64(len(s.b)))
			if p.rnd.IntN(4) < chance {
				if end > int64(len(b)) {
					b = append(b, make([]byte, end-int64(len(b)))...)
				}
				copy(b[at:end], s.b[at-s.off:])
			}
			at = end
		}
	}
	return b
}

// begin notes what a call in progress makes of deliveries, end that it is back.
func (p *platter) begin(flight map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.flight = flight
}

func (p *platter) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = accounts{p.state.then(), nil}
}

// then is what is stored if the call in progress was.
func (a accounts) then() map[string]string {
	stored := maps.Clone(a.stored)
	for id, now := range a.flight {
		if now == "" {
			delete(stored, id)
		} else {
			stored[id] = now
		}
	}
	return stored
}

// check returns what a store holds, and fails if it is neither what it was before
// the call in progress nor what it is after that.
func (a accounts) check(t *testing.T, q *Queue) map[string]string {
	t.Helper()
	if err := q.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for {
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1000, Until: time.Now().Add(time.Hour)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			found[d.ID] = fmt.Sprint(d.Tries)
		}
	}
	for d, err := range q.Dead(t.Context(), webhook.DeadFilter{}, "") {
		if err != nil || found[d.ID] != "" {
			t.Fatalf("dead letter %s, which waits: %q; %v", d.ID, found[d.ID], err)
		}
		found[d.ID] = "dead"
	}
	if !maps.Equal(found, a.stored) && !maps.Equal(found, a.then()) {
		t.Fatalf("there is %v, want %v, or what %v makes of it", found, a.stored, a.flight)
	}
	return found
}

// save writes the files of a store to a new folder.
func save(t *testing.T, files [3][]byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "queue.db")
	for i, b := range files {
		name := path
		if i > 0 {
			name = journalPaths(path)[i-1]
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestPowerModel stores and settles at random, and opens what a loss of power at any
// moment leaves, or one after the end of the process. All that was acknowledged is there,
// each call wholly or not at all.
func TestPowerModel(t *testing.T) {
	for seed := range soak.Seeds(t, 2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { powerModel(t, seed) })
		})
	}
}

func powerModel(t *testing.T, seed uint64) {
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(seed, 2))
	config := &Config{CacheBytes: 16 << 10, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	newPlatter := func(path string, stored map[string]string) *platter {
		return &platter{path: path, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 3)), every: 20, state: accounts{stored: stored}}
	}
	p := newPlatter(filepath.Join(t.TempDir(), "queue.db"), map[string]string{})
	q := p.open(t, config)
	defer func() { q.Close() }()
	past := time.Now().Add(-time.Hour)
	ids := 0
	var held []webhook.Delivery
	put := func(q *Queue, p *platter) {
		t.Helper()
		flight := map[string]string{}
		var ds []webhook.Delivery
		for range 1 + rnd.IntN(4) {
			ids++
			d := webhook.Delivery{
				Destination: fmt.Sprint("d", rnd.IntN(3)), ID: fmt.Sprint(ids), Body: bytes.Repeat([]byte{byte(rnd.IntN(256))}, rnd.IntN(2000)),
				Due: past.Add(time.Duration(rnd.IntN(1e6)) * time.Microsecond),
			}
			ds, flight[d.ID] = append(ds, d), "0"
		}
		p.begin(flight)
		if n, err := q.Put(ctx, ds...); n != len(ds) || err != nil {
			t.Fatalf("Put = %d, %v, want %d", n, err, len(ds))
		}
		p.end()
	}
	settle := func() {
		n := rnd.IntN(len(held) + 1)
		flight := map[string]string{}
		ss := make([]webhook.Settlement, n)
		for i, d := range held[:n] {
			s := webhook.Settlement{Verdict: webhook.Done, Delivery: d, At: time.Now(), Reason: webhook.ReasonExpired}
			flight[d.ID] = ""
			switch rnd.IntN(3) {
			case 0:
				s.Verdict = webhook.Retry
				s.Delivery.Tries++
				flight[d.ID] = fmt.Sprint(s.Delivery.Tries)
			case 1:
				s.Verdict = webhook.Bury
				flight[d.ID] = "dead"
			}
			ss[i] = s
		}
		p.begin(flight)
		if err := q.Settle(ctx, ss...); err != nil {
			t.Fatalf("Settle: %v", err)
		}
		p.end()
		held = held[n:]
	}
	lease := func() {
		var err error
		if held, _, err = q.Lease(ctx, webhook.LeaseRequest{Max: 1 + rnd.IntN(10), Until: time.Now().Add(time.Hour)}, held); err != nil {
			t.Fatalf("Lease: %v", err)
		}
	}
	// follow opens what is left at a moment, and returns it.
	follow := func(s shot) *platter {
		t.Helper()
		left, stored := s.lost, s.stored
		if len(s.flight) > 0 && rnd.IntN(2) == 0 {
			// The process ends alone, and the next one may be asked for the same again: what
			// it finds it acknowledges, and so that is not lost with the power.
			after := newPlatter(save(t, s.ended), s.stored)
			after.synced, after.pending = s.synced, s.pending
			q := after.open(t, config)
			after.mu.Lock()
			after.shoot(t)
			left = after.shots[len(after.shots)-1].lost
			after.mu.Unlock()
			stored = s.accounts.check(t, q)
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			s.flight = nil
		}
		path := save(t, left)
		q, err := Open(path, config)
		if err != nil {
			t.Fatalf("Open after a loss of power: %v", err)
		}
		found := accounts{stored, s.flight}.check(t, q)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		return newPlatter(save(t, left), found)
	}
	for step := range 150 {
		switch what := rnd.IntN(12); {
		case what < 5:
			put(q, p)
		case what < 8:
			settle()
		case what < 10:
			lease()
		case what < 11:
			checkpointNow(t, q)
		default:
			// Commits go on beside a checkpoint.
			q.mu.Lock()
			q.written = journalSize + 1
			q.mu.Unlock()
			select {
			case q.due <- struct{}{}:
			default:
			}
		}
		p.mu.Lock()
		shots := p.shots
		p.shots = nil
		p.mu.Unlock()
		var next *platter
		for _, s := range shots {
			next = follow(s)
		}
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
		if rnd.IntN(10) > 0 {
			continue
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if p.synced = [2][]byte{}; next != nil {
			p = next
		}
		p.shots, held = nil, nil
		q = p.open(t, config)
	}
}
