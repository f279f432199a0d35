package pgqueue

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A fetch is a call of Fetch. s.mu is held while it works, but not while it asks the database.
type fetch struct {
	s        *claimer
	wants    []webhook.Want
	maxBytes int64
	at       int64   // now by the database's clock, in microseconds
	items    []*item // handed out
	taken    []int   // for each want, how many items are handed out
	bytes    int64
	full     bool // maxBytes is reached
}

// Fetch implements webhook.Store. It asks the database only if memory does not have enough
// deliveries. One query then serves many of wants.
func (s *claimer) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	f := &fetch{s: s, wants: wants, maxBytes: maxBytes, taken: make([]int, len(wants))}
	err := s.call(ctx, "fetching", func() error {
		if err := s.fetching.acquire(ctx); err != nil {
			return err
		}
		defer s.fetching.release()
		s.fetched.Store(time.Now().UnixMicro())
		return f.run(ctx)
	})
	if err != nil {
		return dst, err
	}
	for _, it := range f.items {
		d, err := it.delivery()
		if err != nil { // the item stays claimed, and so does its chunk
			s.config.Logger.Error("pgqueue: a delivery is damaged; it stays in the table until somebody deletes its chunk",
				"chunk", it.chunk.id, "index", it.index, "destination", it.chunk.queue.destination, "error", err)
			continue
		}
		dst = append(dst, d)
	}
	s.mu.Lock()
	overfull := s.bytes > s.config.CacheBytes
	s.mu.Unlock()
	if overfull {
		if err := s.release(ctx, 0); err != nil {
			s.config.Logger.Debug("pgqueue: could not give chunks back; memory holds more than CacheBytes", "error", err)
		}
	}
	return dst, nil
}

// run takes items for the wants and sets Next of each want. If it returns an error, it has ended
// the claims again.
func (f *fetch) run(ctx context.Context) (err error) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	f.at = time.Now().Add(s.offset).UnixMicro()
	defer func() {
		if err != nil {
			s.takeBack(f.items)
		}
	}()
	if err := s.expired(); err != nil {
		return err
	}
	began := s.events
	for i := range f.wants { // so that Next is right even for wants that are not served
		if q := f.queue(i); q.stale() && q.asked <= began {
			if err := f.ask(ctx, i); err != nil {
				return err
			}
		}
	}
	for i := range f.wants {
		for !f.full && !f.serve(i) {
			if err := f.ask(ctx, i); err != nil {
				return err
			}
		}
	}
	for i := range f.wants {
		f.wants[i].Next = f.queue(i).next()
	}
	return nil
}

func (f *fetch) queue(i int) *queue {
	return f.s.queueOf(queueKey{f.wants[i].Destination, f.wants[i].Retries})
}

// serve takes deliveries for want i from memory. It returns false if the database must be asked,
// because the database may have due deliveries that come before those in memory, or that the want
// still lacks.
func (f *fetch) serve(i int) bool {
	q := f.queue(i)
	for f.taken[i] < f.wants[i].Max {
		it := q.first()
		if it == nil || it.due > min(f.at, q.beyond) {
			return q.beyond > f.at
		}
		if len(f.items) > 0 && f.bytes+int64(it.body) > f.maxBytes {
			f.full = true
			return true
		}
		q.pop()
		f.s.hand(it)
		f.items = append(f.items, it)
		f.bytes += int64(it.body)
		f.taken[i]++
	}
	return true
}

// missing returns how many chunks to claim for want i, or -1 if there is no need to ask the
// database.
func (f *fetch) missing(i int) int {
	q := f.queue(i)
	need := max(f.wants[i].Max-f.taken[i]-len(q.free), 0)
	chunks := (need + q.per - 1) / q.per
	it := q.first()
	switch {
	case q.beyond <= f.at && (need > 0 || it == nil || q.beyond < it.due):
		return max(chunks, 1)
	case q.stale():
		return chunks
	}
	return -1
}

const (
	// maxAsk bounds the queues, and the chunks, that one query asks for.
	maxAsk = 64
	// contended is how long this node leaves a queue alone while other nodes are claiming its due
	// chunks.
	contended = 10 * time.Millisecond
)

// ask runs one query for want i and for the later wants that need a query. The query claims chunks. It
// also finds the due time of the first chunk that it does not claim. ask releases s.mu during the
// query.
func (f *fetch) ask(ctx context.Context, i int) error {
	s := f.s
	var (
		names   [][]byte
		retries []bool
		most    []int32
		none    = make(map[queueKey]bool) // queues that were asked for chunks and gave none
	)
	for left := maxAsk; i < len(f.wants) && left > 0; i++ {
		n := f.missing(i)
		if n < 0 {
			continue
		}
		n = min(n, left)
		left -= max(n, 1)
		w := &f.wants[i]
		names, retries, most = append(names, []byte(w.Destination)), append(retries, w.Retries), append(most, int32(n))
		none[queueKey{w.Destination, w.Retries}] = n > 0
	}
	asked, node := s.event(), s.node
	s.mu.Unlock()
	var rows []row
	var heads []head
	err := s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		var b pgx.Batch
		b.Queue(byIndex)
		b.Queue(s.in(claimSQL), node, names, retries, f.at, most).Query(func(rs pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(rs, scanRow)
			return err
		})
		b.Queue(s.in(headsSQL), names).Query(func(rs pgx.Rows) (err error) {
			heads, err = pgx.CollectRows(rs, scanHead)
			return err
		})
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		return s.adopt(rows, node)
	})
	s.mu.Lock()
	if err != nil {
		return err
	}
	for i := range rows {
		none[rows[i].queue] = false
	}
	for _, h := range heads {
		s.learn(h, asked)
		if q := s.queueOf(h.queue); none[h.queue] && q.beyond <= f.at {
			q.beyond = f.at + contended.Microseconds()
		}
	}
	return nil
}

const claimSQL = `WITH picked AS MATERIALIZED (
	SELECT c.* FROM unnest($2::bytea[], $3::boolean[], $5::int[]) q (destination, retry, most),
	LATERAL (
		SELECT part, id, node, outbox FROM S.chunk
		WHERE node = 0 AND destination = q.destination AND retry = q.retry AND due <= $4 AND EXISTS (SELECT FROM S.node WHERE id = $1)
		ORDER BY due, id LIMIT q.most FOR UPDATE SKIP LOCKED
	) c
)` + claimPicked

// Heads implements webhook.Store. It may yield destinations that this node itself has changed. If it
// reads all heads, it also removes empty queues from memory.
func (s *memory) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return storekit.Page(func() (heads []webhook.Head, err error) {
		began := time.Now()
		s.mu.Lock()
		all := all || s.allNew
		names := slices.Collect(maps.Keys(s.news))
		clear(s.news)
		s.allNew = false
		asked := s.event()
		s.mu.Unlock()
		sql, args := headsAllSQL, []any(nil)
		if !all {
			sql, args = headsSQL, []any{bytesOf(names)}
		}
		var found []head
		err = s.call(ctx, "looking for due deliveries", func() error {
			if !all && len(names) == 0 {
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			defer cancel()
			found, err = indexed(ctx, s.pool, scanHead, s.in(sql), args...)
			return err
		})
		if err != nil {
			s.hearAny() // the next call yields what this one did not
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range found {
			s.learn(h, asked)
		}
		if all {
			rest := make(map[string]bool)
			for key, q := range s.queues {
				if q.asked < asked { // the database has no unclaimed chunk
					s.learn(head{queue: key}, asked)
				}
				if len(q.free) == 0 && q.beyond == never && !q.stale() {
					delete(s.queues, key)
				} else {
					rest[key.destination] = true
				}
			}
			names = slices.Collect(maps.Keys(rest))
			s.looked = time.Since(began)
		}
		for _, name := range names {
			fresh, retries := s.queueOf(queueKey{name, false}), s.queueOf(queueKey{name, true})
			heads = append(heads, webhook.Head{Destination: name, Fresh: fresh.next(), Retry: retries.next()})
		}
		return heads, nil
	})
}

func scanHead(r pgx.CollectableRow) (h head, err error) {
	var name []byte
	err = r.Scan(&name, &h.queue.retries, &h.due, &h.waiting)
	h.queue.destination = string(name)
	return h, err
}

const headsSQL = `WITH d AS (SELECT unnest($1::bytea[]) AS destination) ` + headsOfD

// headsAllSQL returns the heads of all destinations. It looks each next destination up in an
// index, so it does not read all the chunks of a destination.
const headsAllSQL = `WITH RECURSIVE d AS (
	(SELECT destination FROM S.chunk WHERE node = 0 ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > d.destination ORDER BY destination LIMIT 1)
	FROM d WHERE d.destination IS NOT NULL
) ` + headsOfD

// headsOfD finds the first unclaimed chunk of both queues of each destination of d.
const headsOfD = `SELECT d.destination, q.retry, coalesce(c.due, 0), coalesce(c.waiting, 0)
FROM d CROSS JOIN (VALUES (false), (true)) q (retry) LEFT JOIN LATERAL (
	SELECT due, waiting FROM S.chunk WHERE node = 0 AND destination = d.destination AND retry = q.retry ORDER BY due, id LIMIT 1
) c ON true WHERE d.destination IS NOT NULL`
