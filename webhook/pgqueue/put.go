package pgqueue

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

const (
	// writeTimeout bounds a transaction of this package.
	writeTimeout = 30 * time.Second
	// maxBatch bounds, approximately, how many bytes one transaction stores.
	maxBatch = 4 << 20
)

// lockWait is how long a transaction waits for another transaction that is adding one of the same
// keys. After that, and after a deadlock, each put is tried again in a transaction of its own, one at
// a time. So a put that has to wait hardly delays the others.
const lockWait = "100ms"

// A put is a call of Put.
type put struct {
	entries []*entry
	done    chan struct{} // closed when the transaction has ended; err is its error
	err     error
}

// Put implements store.Store. If ctx is cancelled during the transaction, Put waits for its end. If
// ctx reaches its deadline, Put returns at once, and its deliveries may be stored or not; put again,
// they are stored once. If an open transaction of PutTx has put one of ps, Put waits for the end of
// that transaction, for half a minute at most.
func (s *Store) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	return s.call(ctx, "storing", func() error {
		p := new(put)
		size := 0
		for i := range ps {
			e, err := newEntry(&ps[i])
			if err != nil {
				return fmt.Errorf("delivery %d: %w", i, err)
			}
			p.entries = append(p.entries, e)
			size += len(e.record)
		}
		for began, batcher := time.Now(), s.puts; ; batcher = s.alone {
			p.done = make(chan struct{})
			batcher.Add(p, size)
			select {
			case <-p.done:
			case <-ctx.Done():
				if batcher.Drop(p) {
					return ctx.Err()
				}
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					s.goroutines.Go(func() { s.disown(p) })
					return fmt.Errorf("no answer from the database in time: %w", ctx.Err())
				}
				<-p.done
			}
			if !hasCode(p.err, lockNotAvailable, deadlockDetected) || time.Since(began) >= writeTimeout {
				break
			}
		}
		if p.err != nil {
			return p.err
		}
		for i, e := range p.entries {
			out[i] = store.Result{Stored: !e.known, Claim: e.claim}
		}
		return nil
	})
}

// disown waits until p is stored, and ends its claims, which its caller does not know. Then Heads yields
// its destinations.
func (s *Store) disown(p *put) {
	<-p.done
	var names []string
	s.mu.Lock()
	for _, e := range p.entries {
		names = append(names, e.queue.destination)
		if it := s.claims[e.claim]; it != nil {
			s.takeBack(it)
		}
	}
	s.mu.Unlock()
	s.hear(names...)
}

// store stores puts in one transaction.
func (s *Store) store(puts []*put) {
	var all []*entry
	for _, p := range puts {
		all = append(all, p.entries...)
	}
	err := s.exchange(context.Background(), s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		drafts := draftsOf(all)
		node := s.claimDrafts(drafts)
		var b pgx.Batch
		b.Queue("SELECT set_config('lock_timeout', $1, true)", lockWait)
		r := s.queuePut(&b, drafts, &node)
		err := conn.SendBatch(ctx, &b).Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.report(drafts...)
			return err
		}
		s.stored(drafts, node, r)
		return nil
	})
	for _, p := range puts {
		p.err = err
		close(p.done)
	}
	s.trim(context.Background())
}

// claimDrafts sets the field mine of the drafts that this node claims: those that are due soon and fit
// into cacheBytes, if the database has no earlier unclaimed chunk of their queue. It returns the id of
// this node.
func (s *Store) claimDrafts(drafts []*draft) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.releasing.Load() || s.expired() != nil {
		return s.node // and no draft is mine
	}
	room := cacheBytes - s.bytes
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
	stored int     // how many deliveries are stored
	known  []int32 // the positions of deliveries with a known key, counted from 1
	chunks []int64 // the ids of the chunks, one for each draft
}

const putSQL = `SELECT stored, known, chunks FROM S.put($1::bigint, $2::bigint, $3::uuid[], $4::bytea[], $5::boolean[],
	$6::bigint[], $7::int[], $8::boolean[], $9::bytea[], $10::bytea[], $11::text)`

// queuePut queues the statement that stores drafts, if there are any. The statement sets the result.
func (s *database) queuePut(b *pgx.Batch, drafts []*draft, sender *int64) *putResult {
	r := new(putResult)
	if len(drafts) > 0 {
		b.Queue(s.in(putSQL), s.putArgs(drafts, sender)...).QueryRow(func(row pgx.Row) error { return row.Scan(&r.stored, &r.known, &r.chunks) })
	}
	return r
}

// putArgs returns the arguments of putSQL. The sender is this node, which claims the drafts whose field
// mine is set. PostgreSQL notifies all other nodes of the other drafts. In a transaction of a caller,
// sender is 0. For retries it is nil, and no node is notified.
func (s *database) putArgs(drafts []*draft, sender *int64) []any {
	var (
		names, reasons, items [][]byte
		retries, mine         []bool
		counts                []int32
		keys                  []pgtype.UUID
		dues                  []int64
	)
	for _, d := range drafts {
		names, retries, items = append(names, []byte(d.queue.destination)), append(retries, d.queue.retries), append(items, d.data)
		counts, mine, reasons = append(counts, int32(len(d.entries))), append(mine, d.mine), append(reasons, []byte(d.entries[0].reason))
		for _, e := range d.entries {
			dues, keys = append(dues, e.due), append(keys, pgtype.UUID{Bytes: e.key, Valid: e.dedup})
		}
	}
	return []any{int64(0), sender, keys, names, retries, dues, counts, mine, reasons, items, s.channel}
}

// stored adds the stored drafts to memory, and gives the callers their claims. The caller holds s.mu.
func (s *Store) stored(drafts []*draft, node int64, r *putResult) {
	place := int32(0)
	alive := s.expired() == nil // otherwise the database has answered late, and other nodes may claim
	for i, d := range drafts {
		done := make([]byte, len(d.entries))
		waiting := 0
		for j, e := range d.entries {
			place++
			if _, e.known = slices.BinarySearch(r.known, place); e.known {
				done[j] = '1'
			} else {
				waiting++
			}
		}
		switch {
		case waiting == 0: // the database has no such chunk
		case d.mine && node == s.node:
			c := &chunk{id: r.chunks[i], queue: d.queue, waiting: waiting}
			c.decode(d.data, string(done))
			for j, e := range d.entries {
				if e.keep && !e.known && alive {
					e.claim = s.hand(&c.items[j])
				}
			}
			s.install(c)
		default:
			s.report(d)
		}
	}
}

// An entry is a delivery to be stored. It shares no memory with the caller.
type entry struct {
	key    store.Key
	queue  queueKey
	due    int64
	record []byte
	reason store.Reason // why the last attempt failed
	dedup  bool         // the delivery is left out if its key is known; otherwise the key is remembered
	known  bool         // the key was known, or that of an earlier entry
	keep   bool         // the caller wants to claim it
	claim  uint64       // the caller's claim
}

// newEntry returns the entry of p, or the error of p.Check.
func newEntry(p *store.Put) (*entry, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	record, err := p.AppendBinary(make([]byte, 0, len(p.Body)+256))
	e := &entry{queue: queueKey{p.Destination, !p.Expires.IsZero()}, due: p.Due.UnixMicro(), record: record, dedup: !p.NoDedup, keep: p.Keep}
	if e.dedup {
		e.key = store.KeyOf(p.Destination, p.ID)
	}
	if n := len(p.Attempts); n > 0 {
		e.reason = p.Attempts[n-1].Reason
	}
	return e, err
}

// A draft is a chunk that is about to be stored.
type draft struct {
	queue   queueKey
	due     int64 // of the first entry
	data    []byte
	entries []*entry
	mine    bool // this node claims the chunk when it stores it
}

// draftsOf groups entries into chunks. It leaves out an entry that repeats an earlier one. The due times
// of a chunk differ little, because the node that claims it keeps all its deliveries in memory until they
// are due.
func draftsOf(all []*entry) (drafts []*draft) {
	now := time.Now().UnixMicro()
	seen := make(map[store.Key]bool)
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
		if d == nil || len(d.entries) == chunkItems || len(d.data)+len(e.record) > chunkBytes ||
			e.due-d.due > max(time.Second.Microseconds(), (d.due-now)/32) {
			d = &draft{queue: e.queue, due: e.due}
			open[e.queue] = d
			drafts = append(drafts, d)
		}
		d.data = append(binary.AppendUvarint(d.data, uint64(len(e.record))), e.record...)
		d.entries = append(d.entries, e)
	}
	return drafts
}
