package pgqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// writeTimeout bounds a transaction of this package.
	writeTimeout = 30 * time.Second
	// maxBatch bounds, approximately, how many bytes one transaction stores.
	maxBatch = 4 << 20
)

// batchWait and aloneWait are how long a transaction waits for another transaction that is adding
// one of the same keys. batchWait applies to a transaction with many puts, aloneWait to a single
// put. If two transactions add the same keys in different orders, PostgreSQL ends one of them
// because of the deadlock. The store tries that transaction again. It does the same with a
// transaction that has waited too long.
const (
	batchWait = "50ms"
	aloneWait = "500ms"
)

// A putter stores deliveries, and claims those that this node delivers itself.
type putter struct {
	*claimer
	puts  *storekit.Batcher[put] // the calls of Put that wait for a transaction
	alone semaphore              // held by a single put that waits for a transaction which is adding its keys
}

// A put is a call of Put.
type put struct {
	entries []entry
	done    chan struct{} // closed when the put is stored, or err is set
	err     error
	gone    bool // the caller has stopped waiting, so nothing may be claimed for it; guarded by heartbeat.mu
	ended   bool // its result is in memory; guarded by heartbeat.mu
}

// Put implements webhook.Store. If ctx is cancelled during the transaction, Put waits for the end
// of the transaction. If ctx reaches its deadline, Put returns at once, and its deliveries may be
// stored or not. If they are stored and put again, Put recognises them as duplicates. If an open
// transaction of PutTx has put one of ps, Put waits for the end of that transaction, for half a
// minute at most.
func (s *putter) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	return s.call(ctx, "storing", func() error {
		p := &put{entries: make([]entry, len(ps)), done: make(chan struct{})}
		size := 0
		for i := range ps {
			e, err := newEntry(&ps[i].Delivery, !ps[i].NoDedup)
			if err != nil {
				return fmt.Errorf("delivery %d: %w", i, err)
			}
			e.keep, e.put = ps[i].Keep, p
			p.entries[i] = e
			size += len(e.record)
		}
		began := time.Now()
		s.puts.Add(p, size)
		select {
		case <-p.done:
		case <-ctx.Done():
			if err := s.abandonPut(p, ctx.Err()); err != nil {
				return err
			}
			<-p.done
		}
		for hasCode(p.err, lockNotAvailable, deadlockDetected) && time.Since(began) < writeTimeout {
			if err := s.alone.acquire(ctx); err != nil {
				return err
			}
			p.err = s.store([]*put{p}, aloneWait)
			s.alone.release()
			if err := ctx.Err(); err != nil && p.err != nil {
				p.err = err
			}
		}
		if p.err != nil {
			return p.err
		}
		for i := range out {
			out[i] = webhook.Result{Stored: !p.entries[i].known, Claim: p.entries[i].claim}
		}
		return nil
	})
}

// abandonPut handles a put whose context has ended with err. It returns nil if the caller must wait
// for the transaction, and otherwise the error for the caller.
func (s *putter) abandonPut(p *put, err error) error {
	if s.puts.Drop(p) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.ended || !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	p.gone = true
	return fmt.Errorf("no answer from the database in time: %w", err)
}

// storeBatch stores puts in one transaction. If another transaction is adding keys of some puts, it
// uses several transactions, so that the other puts do not wait.
func (s *putter) storeBatch(puts []*put) {
	err := s.store(puts, batchWait)
	if half := len(puts) / 2; half > 0 && hasCode(err, lockNotAvailable, deadlockDetected) {
		s.storeBatch(puts[:half:half])
		s.storeBatch(puts[half:])
		return
	}
	for _, p := range puts {
		p.err = err
		close(p.done)
	}
}

// store stores puts in one transaction. The argument wait is the lock_timeout of the transaction.
func (s *putter) store(puts []*put, wait string) error {
	var all []*entry
	for _, p := range puts {
		for i := range p.entries {
			all = append(all, &p.entries[i])
		}
	}
	return s.exchange(context.Background(), s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		drafts := draftsOf(all)
		node := s.claimDrafts(drafts)
		var b pgx.Batch
		b.Queue("SELECT set_config('lock_timeout', $1, true)", wait)
		r := s.queuePut(&b, drafts, &node)
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reportAll(drafts) // the answer may be lost
			return err
		}
		s.stored(drafts, node, r)
		return nil
	})
}

// claimDrafts sets the field mine of the drafts that this node claims. Such a draft is due soon and
// fits into CacheBytes, and the database has no earlier unclaimed chunk of its queue. claimDrafts
// returns the id of this node.
func (s *putter) claimDrafts(drafts []*draft) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.releasing.Load() || s.expired() != nil {
		return s.node // and no draft is mine
	}
	room := s.config.CacheBytes - s.bytes
	now := time.Now()
	soon := now.Add(s.offset + time.Second).UnixMicro()
	delivers := now.UnixMicro()-s.fetched.Load() < (2 * time.Second).Microseconds() // otherwise this node only puts
	for _, d := range drafts {
		size := int64(len(d.data) + len(d.entries)*itemBytes)
		q := s.queues[d.queue]
		d.mine = d.due <= soon && size <= room && (q == nil || q.beyond > d.due) &&
			(delivers || slices.ContainsFunc(d.entries, func(e *entry) bool { return e.keep }))
		if d.mine {
			room -= size
		}
	}
	return s.node
}

// A putResult is the result of the SQL function put.
type putResult struct {
	known  []int32 // the positions of deliveries with a known key, counted from 1
	chunks []int64 // the ids of the chunks, one for each draft
}

const putSQL = `SELECT known, chunks FROM ` + putCall

const putCall = `S.put($1::bigint, $2::bigint, $3::uuid[], $4::bytea[], $5::boolean[],
	$6::bigint[], $7::int[], $8::boolean[], $9::text[], $10::bytea[], $11::text)`

// queuePut queues the statement that stores drafts, unless there are none. The statement sets the
// result.
func (s *database) queuePut(b *pgx.Batch, drafts []*draft, sender *int64) *putResult {
	r := new(putResult)
	if len(drafts) > 0 {
		b.Queue(s.in(putSQL), s.putArgs(drafts, sender)...).QueryRow(func(row pgx.Row) error { return row.Scan(&r.known, &r.chunks) })
	}
	return r
}

// putArgs returns the arguments of putCall. The argument sender is the id of this node, which claims
// the drafts whose field mine is set. PostgreSQL notifies the other nodes of the other drafts. In a
// transaction of a caller, sender is 0. For retries it is nil, and no node is notified.
func (s *database) putArgs(drafts []*draft, sender *int64) []any {
	n := len(drafts)
	var (
		keys    []pgtype.UUID
		dues    []int64
		names   = make([][]byte, n)
		retries = make([]bool, n)
		counts  = make([]int32, n)
		mine    = make([]bool, n)
		reasons = make([]string, n)
		items   = make([][]byte, n)
	)
	dedup := false
	for i, d := range drafts {
		names[i], retries[i], counts[i], mine[i] = []byte(d.queue.destination), d.queue.retries, int32(len(d.entries)), d.mine
		reasons[i], items[i] = d.entries[0].reason, d.data
		for _, e := range d.entries {
			dues, keys = append(dues, e.due), append(keys, pgtype.UUID{Bytes: e.key, Valid: e.dedup})
			dedup = dedup || e.dedup
		}
	}
	if !dedup {
		keys = nil
	}
	return []any{s.lock, sender, keys, names, retries, dues, counts, mine, reasons, items, s.channel()}
}

// stored adds the stored drafts to memory, and gives the callers their claims.
func (s *putter) stored(drafts []*draft, node int64, r *putResult) {
	place := int32(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range drafts {
		row := row{id: r.chunks[i], queue: d.queue, items: d.data}
		due, bits := int64(never), make([]byte, len(d.entries))
		for j, e := range d.entries {
			place++
			if _, e.known = slices.BinarySearch(r.known, place); e.known {
				bits[j] = '1'
				continue
			}
			due = min(due, e.due)
			row.waiting++
		}
		row.done = string(bits)
		switch {
		case row.waiting == 0:
		case d.mine && node == s.node:
			c := s.read(&row)
			for j, e := range d.entries {
				if e.keep && !e.known && !e.put.gone {
					e.claim = s.hand(&c.items[j])
				}
			}
			s.install(c)
		default:
			s.report(d.queue, due, row.waiting)
		}
		for _, e := range d.entries {
			e.put.ended = true
		}
	}
}

// An entry is a delivery to be stored. It shares no memory with the caller.
type entry struct {
	key    storekit.Key
	queue  queueKey
	due    int64
	body   int
	record []byte
	reason string // why the last attempt failed
	dedup  bool   // the delivery is left out if its key is known; otherwise the key is remembered
	known  bool   // the key was known, or that of an earlier entry
	keep   bool   // the caller wants to claim it
	claim  uint64 // the caller's claim
	put    *put
}

// newEntry returns the entry of d, or the error of d.Check.
func newEntry(d *webhook.Delivery, dedup bool) (e entry, err error) {
	if err := d.Check(); err != nil {
		return e, err
	}
	record, err := d.AppendBinary(make([]byte, 0, len(d.Body)+256))
	if err != nil {
		return e, err
	}
	e = entry{queue: queueKey{d.Destination, !d.Expires.IsZero()}, due: d.Due.UnixMicro(), body: len(d.Body), record: record, dedup: dedup}
	if dedup {
		e.key = storekit.KeyOf(d.Destination, d.ID)
	}
	if n := len(d.Attempts); n > 0 {
		e.reason = string(d.Attempts[n-1].Reason)
	}
	return e, nil
}

// entriesOf returns the entries of ds.
func entriesOf(ds []webhook.Delivery, dedup bool) (all []*entry, err error) {
	for i := range ds {
		e, err := newEntry(&ds[i], dedup)
		if err != nil {
			return nil, fmt.Errorf("delivery %d: %w", i, err)
		}
		all = append(all, &e)
	}
	return all, nil
}

// A draft is a chunk that is about to be stored.
type draft struct {
	queue   queueKey
	due     int64 // of the first entry
	data    []byte
	entries []*entry
	mine    bool // this node claims the chunk when it stores it
}

// tolerance returns by how much the deliveries of a chunk may differ in their due times. The
// argument d is the time until the first of them is due. Both are in microseconds. The result is
// small, because the node that claims the chunk for its first delivery keeps all others in memory
// until they are due.
func tolerance(d int64) int64 { return max(time.Second.Microseconds(), d/32) }

// draftsOf groups entries into chunks. It leaves out an entry that repeats an earlier one.
func draftsOf(all []*entry) (drafts []*draft) {
	now := time.Now().UnixMicro()
	seen := make(map[storekit.Key]bool)
	all = slices.DeleteFunc(all, func(e *entry) bool {
		if e.known = e.dedup && seen[e.key]; e.dedup {
			seen[e.key] = true
		}
		return e.known
	})
	slices.SortStableFunc(all, func(x, y *entry) int { return cmp.Compare(x.due, y.due) })
	open := make(map[queueKey]*draft) // the last draft of each queue
	for _, e := range all {
		d := open[e.queue]
		if d == nil || len(d.entries) == chunkItems || len(d.data)+len(e.record) > chunkBytes || e.due-d.due > tolerance(d.due-now) {
			d = &draft{queue: e.queue, due: e.due}
			open[e.queue] = d
			drafts = append(drafts, d)
		}
		d.data = appendItem(d.data, e.due, e.body, e.record)
		d.entries = append(d.entries, e)
	}
	return drafts
}
