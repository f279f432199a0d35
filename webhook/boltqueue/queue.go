// Package boltqueue keeps deliveries in one file of the local disk: a
// webhook.Queue that needs no server, and loses nothing it has accepted when
// the process or the machine goes down.
//
//	q, err := boltqueue.Open("hookferry.db", nil)
//	f, err := webhook.New(webhook.Config{Store: webhook.FromQueue(q), ...})
//
// All that concurrent callers store is gathered and written to a journal beside
// the file, by one write and one sync. What is still there after some 16 MB of that
// goes into the file; what was delivered by then never does. Meanwhile the journal
// goes on in a second file: they are hookferry.db.journal and hookferry.db.journal2,
// in turn. Put and Settle wait for the data file only when 32 MB more have come before
// it has what was to go there. Close leaves one file. After an end without a Close
// the three belong together: keep all, or copy all while no process has them open.
// They belong to one process at a time; a second Open is ErrLocked.
//
// A delivery that waits costs the disk its body and about 250 to 400 bytes, and
// no memory once it is not among the next to be handed out, but for 24 bytes a
// destination for each 8 MB or so of the file that hold something for it: of some 50
// of these, and beyond that for each 300 MB or so. The
// journal takes some 32 MB beside, and memory up to Config.CacheBytes, 16 MB of
// deliveries that are not in the file yet, up to 32 MB more while the file is written
// slower than they come, and the keys of Config.DedupMax. The
// file does not shrink by itself, what was used once is used again; Compact gives
// it back.
//
// While the disk is full or fails, what would have to be stored is an error, and
// what is stored is handed out; nothing that was accepted is lost, and the store
// works again by itself when the cause is gone. A store opens on a full disk too. A
// Settle that returns an error may be made again; if it is not, the delivery is
// handed out once more when its lease ends, or after the next Open.
package boltqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The defaults of Config.
const (
	DefaultCacheBytes  = 16 << 20
	DefaultDedupWindow = 24 * time.Hour
	DefaultDedupMax    = 1_000_000
	DefaultLockTimeout = time.Second
)

var (
	// ErrLocked is returned by Open if another process, or another Queue of
	// this one, has the file open.
	ErrLocked = errors.New("boltqueue: data file is in use by another process")
	// ErrDamaged is returned by Open and Check if the file or its journal is
	// not, or not whole, what this package wrote. The files are left as they are;
	// Rescue writes what can be read to new ones.
	ErrDamaged = errors.New("boltqueue: data file is damaged")
	// ErrVersion is returned by Open if the file was written by a version of this
	// package whose format is another.
	ErrVersion = errors.New("boltqueue: data file has an unknown version")
	// ErrLost is what calls return while the data file or its journal is not
	// where it was: removed, moved away or replaced. The store works again once
	// it is back. That one of the two files of the journal is removed while the data
	// file has all that was in it does no harm: it is made anew.
	ErrLost = errors.New("boltqueue: data file was removed or replaced while in use")
)

// Config configures a Queue. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the part of the file that is in use, with what is about to
	// be; pages that are free to be used again do not count, nor does the
	// journal. At the bound Put, Join and Leave return
	// webhook.ErrQueueFull, while what is stored may still be settled. Zero
	// means no bound but the disk's.
	MaxBytes int64
	// CacheBytes bounds the memory of deliveries that wait and have not been
	// handed out, each counted with 512 bytes beside its record. What does not
	// fit is read from the file when its turn comes, so this bounds no
	// backlog. Zero means DefaultCacheBytes, 16 MB of 1,048,576 bytes.
	CacheBytes int64
	// DedupWindow is how long a delivery that was put is recognised when it
	// is put again, also after a restart. Zero means DefaultDedupWindow, 24
	// hours.
	DedupWindow time.Duration
	// DedupMax bounds how many puts are remembered for that, at 16 bytes of
	// the file and about 32 of memory each; half as many are in any case
	// remembered for DedupWindow. Zero means DefaultDedupMax, 1,000,000.
	DedupMax int
	// LockTimeout is how long Open waits for another process to let go of the
	// file. Zero means DefaultLockTimeout, 1 second.
	LockTimeout time.Duration
	// Logger is told when the file fails and when it recovers, and of records
	// that cannot be read. Nil means slog.Default.
	Logger *slog.Logger
}

func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	if d.CacheBytes <= 0 {
		d.CacheBytes = DefaultCacheBytes
	}
	if d.DedupWindow <= 0 {
		d.DedupWindow = DefaultDedupWindow
	}
	if d.DedupMax <= 0 {
		d.DedupMax = DefaultDedupMax
	}
	if d.LockTimeout <= 0 {
		d.LockTimeout = DefaultLockTimeout
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	return d
}

// A Queue is a webhook.Queue, and webhook.DeadLetters, webhook.Counter,
// webhook.DestinationCounter, webhook.Roster, webhook.Rosters and webhook.Pauses too.
type Queue struct {
	config  Config
	path    string
	session []byte // is in the file, so that it is known again

	inbox   inbox         // of the committer
	errands inbox         // of the writer
	due     chan struct{} // has a value after something was sealed
	leasing chan struct{} // holds a value while a Lease is going on
	stop    chan struct{} // closed to end the committer, which closes stopped
	stopped chan struct{} // then the writer ends, and closes rested
	rested  chan struct{}
	commit1 func(*bolt.Tx) error // (*bolt.Tx).Commit, but in tests

	calls sync.WaitGroup // calls in progress

	// committing is held while an entry is written, and while the epoch ends.
	committing sync.Mutex
	journals   [2]*journal
	files      []fileID
	buf        []byte // serves the entries of the journal

	mu         sync.Mutex
	closed     bool
	file       *bolt.DB  // nil while it cannot be used
	failure    error     // why not
	failed     time.Time // when the database was last not written
	complained time.Time // when the log was told last
	unlogged   int       // failures since
	begun      bool      // the database names an epoch of the journal
	applied    int       // the transaction whose outcome memory shows
	landed     sync.Cond // a transaction has ended, or what is awaited may have come
	awaited    bool      // a Lease waits for more to hand out
	table      *lanes.Table
	seen       *storekit.Window
	count      counts
	cached     int64 // bytes of the items in table that count against CacheBytes
	used       int64 // bytes of the file in use
	retired    []*lanes.Lane
	// These change while committing is held too.
	journal *journal // the one that is written
	tail    *tail    // what it has
	written int64    // how far
	sealed  *tail    // what is to be written to the database, nil if nothing is
	unused  *tail    // the next tail

	// Of the writer alone.
	segment segment
	base    counts // what the database has
	turns   uint64 // seen.Turns when rows.newer began
	rows    struct{ newer, older uint64 }
	edits   uint64
	stamp   []byte // of the latest transaction
	doubt   *edit  // one whose outcome is not known yet
}

var _ webhook.SchedulingQueue = (*Queue)(nil)

// Open opens the store in the file path, which is made, readable by its owner
// alone, if it is not there. A nil Config is the zero Config.
func Open(path string, c *Config) (*Queue, error) {
	q := newQueue(path, c)
	if err := q.open(); err != nil {
		return nil, err
	}
	return q, nil
}

// newQueue returns a Queue that is not open yet.
func newQueue(path string, c *Config) *Queue {
	q := &Queue{
		config:  c.withDefaults(),
		path:    path,
		session: make([]byte, 16),
		leasing: make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		rested:  make(chan struct{}),
		due:     make(chan struct{}, 1),
		tail:    &tail{},
		commit1: (*bolt.Tx).Commit,
	}
	rand.Read(q.session)
	q.buf = make([]byte, entryHeader)
	q.inbox.wake, q.errands.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	for i, p := range journalPaths(path) {
		q.journals[i] = &journal{path: p}
	}
	q.journal = q.journals[0]
	q.landed.L = &q.mu
	q.table = lanes.New(q.retire)
	q.seen = storekit.NewWindow(q.config.DedupMax, q.config.DedupWindow)
	return q
}

func (q *Queue) open() error {
	db, info, err := openFile(q.path, q.config.LockTimeout)
	if err != nil {
		return err
	}
	if err := q.start(db, info); err != nil {
		q.closeJournals()
		db.Close()
		return err
	}
	go q.committer() // Close waits for them
	go q.writer()
	return nil
}

// enter begins a call; the caller ends it by q.calls.Done.
func (q *Queue) enter(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return webhook.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	q.calls.Add(1)
	return nil
}

// Put implements webhook.Queue.
func (q *Queue) Put(ctx context.Context, ds ...webhook.Delivery) (int, error) {
	return q.PutEach(ctx, ds, nil)
}

// PutEach implements webhook.SchedulingQueue.
func (q *Queue) PutEach(ctx context.Context, ds []webhook.Delivery, stored []bool) (int, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	if len(ds) == 0 {
		return 0, nil
	}
	r := &request{puts: make([]put, 0, len(ds))}
	if err := r.prepare(ds); err != nil {
		return 0, err
	}
	if err := q.do(ctx, r); err != nil {
		return 0, err
	}
	for i := range stored {
		stored[i] = r.puts[i].added
	}
	return r.stored, nil
}

// maxSettled is how many bytes of bodies the settlements in one entry of the journal have
// at most, or one settlement. A longer call of Settle becomes several entries.
const maxSettled = 16 << 20

// Settle implements webhook.Queue. A call of any size is stored.
func (q *Queue) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.calls.Done()
	for i := range ss {
		if v := ss[i].Verdict; v < webhook.Done || v > webhook.Bury {
			return fmt.Errorf("boltqueue: settlement with verdict %d", v)
		}
		if err := ss[i].Delivery.Check(); err != nil {
			return fmt.Errorf("boltqueue: %w", err)
		}
	}
	for len(ss) > 0 {
		n, bytes := 0, 0
		for n < len(ss) {
			if bytes += len(ss[n].Delivery.Body); n > 0 && bytes > maxSettled {
				break
			}
			n++
		}
		if err := q.settle(ctx, ss[:n]); err != nil {
			return err
		}
		ss = ss[n:]
	}
	return nil
}

// settle stores settlements in one entry.
func (q *Queue) settle(ctx context.Context, ss []webhook.Settlement) error {
	r := &request{ends: make([]end, len(ss))}
	var encode []int
	for i := range ss {
		s := &ss[i]
		r.ends[i] = end{lease: s.Delivery.Claim, verdict: s.Verdict, at: s.Delivery.Due.UnixMicro()}
		if s.Verdict == webhook.Retry || s.Verdict == webhook.Bury {
			encode = append(encode, i)
		}
	}
	if len(encode) > 0 {
		if err := q.encode(r, ss, encode); err != nil {
			return err
		}
	}
	return q.do(ctx, r)
}

// encode writes the records of what is retried and buried: what is stored, with
// the fields that the settlements change.
func (q *Queue) encode(r *request, ss []webhook.Settlement, which []int) error {
	stored := make([]webhook.DeadLetter, len(which))
	q.mu.Lock()
	for j, i := range which {
		if it := q.table.Leased(ss[i].Delivery.Claim); it != nil {
			stored[j].Delivery = it.Delivery
		}
	}
	q.mu.Unlock()
	for j, i := range which {
		s, d := &ss[i], &stored[j]
		if d.ID == "" {
			r.ends[i].lease = 0 // gone
			continue
		}
		d.Due, d.Expires, d.Tries = s.Delivery.Due, s.Delivery.Expires, s.Delivery.Tries
		d.Closed, d.Attempts = s.Delivery.Closed, s.Delivery.Attempts
		var err error
		if s.Verdict == webhook.Bury {
			d.Reason, d.Died = s.Reason, s.At
			r.ends[i].at = s.At.UnixMicro()
			r.ends[i].row, err = seal(d, len(d.Body))
		} else {
			r.ends[i].row, err = seal(&d.Delivery, len(d.Body))
		}
		if err != nil {
			return fmt.Errorf("boltqueue: %w", err)
		}
	}
	return nil
}

// Count implements webhook.Counter.
func (q *Queue) Count(ctx context.Context) (webhook.Counts, error) {
	if err := q.enter(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer q.calls.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	_, leased := q.table.Len(now)
	c := webhook.Counts{Waiting: int(q.count.waiting), Claimed: leased, Dead: int(q.count.dead)}
	if at, ok := q.table.Oldest(now); ok {
		c.Oldest = time.UnixMicro(at).UTC()
	}
	return c, nil
}

// CountByDestination implements webhook.DestinationCounter. It takes a pass over the
// destinations that something waits for, in memory.
func (q *Queue) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) { return q.countLanes(ctx) })
}

func (q *Queue) countLanes(ctx context.Context) ([]webhook.DestinationCounts, error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.table.Count(time.Now().UnixMicro(), func(l *lanes.Lane) int { return homeOf(l).away }), nil
}

// Close implements webhook.Queue.
func (q *Queue) Close() error {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.mu.Unlock()
	if !first {
		<-q.rested
		return nil
	}
	q.calls.Wait()
	close(q.stop)
	<-q.rested
	defer q.closeJournals()
	if q.file == nil {
		return nil // what failed was told to those who called
	}
	if err := q.file.Close(); err != nil {
		return fmt.Errorf("boltqueue: closing %s: %w", q.path, err)
	}
	return nil
}

func (q *Queue) closeJournals() {
	for _, j := range q.journals {
		j.close()
	}
}
