package pgqueue

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A fetch is a call of Fetch. s.mu is held while it works, but not while it asks the database.
type fetch struct {
	s        *claimer
	wants    []store.Want
	maxBytes int64
	at       int64   // now by the database's clock, in microseconds
	began    uint64  // the latest event before Fetch
	items    []*item // handed out
	taken    []int   // for each want, how many items are handed out
	full     bool    // maxBytes is reached
}

// Fetch implements store.Store. It asks the database only if memory does not have enough
// deliveries. One query then serves many of wants.
func (s *claimer) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	f := &fetch{s: s, wants: wants, maxBytes: maxBytes, taken: make([]int, len(wants))}
	err := s.call(ctx, "fetching", func() error {
		if err := s.fetching.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.fetching.Release(1)
		s.fetched.Store(time.Now().UnixMicro())
		if err := s.reconcile(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		err := f.run(ctx)
		if err != nil {
			s.takeBack(f.items...)
			f.items = nil
		}
		for _, it := range f.items {
			dst = append(dst, it.d)
		}
		s.mu.Unlock()
		s.trim(ctx)
		return err
	})
	return dst, err
}

// run takes items for the wants and sets Next of each want.
func (f *fetch) run(ctx context.Context) error {
	f.at = time.Now().Add(f.s.offset).UnixMicro()
	if err := f.s.expired(); err != nil {
		return err
	}
	f.began = f.s.events
	for i := range f.wants {
		for f.take(i); f.missing(i) >= 0; f.take(i) {
			if err := f.ask(ctx, i); err != nil {
				return err
			}
		}
	}
	for i := range f.wants {
		f.wants[i].Next = f.queue(i).next()
	}
	return f.s.expired() // the database may have answered late
}

func (f *fetch) key(i int) queueKey { return queueKey{f.wants[i].Destination, f.wants[i].Retries} }

func (f *fetch) queue(i int) *queue { return f.s.queueOf(f.key(i)) }

// outdated says that the database must be asked about a queue: it is stale, and was not asked about
// during this Fetch.
func (f *fetch) outdated(q *queue) bool { return q.stale() && q.asked <= f.began }

// take takes due deliveries for want i from memory, unless the database may have earlier ones.
func (f *fetch) take(i int) {
	q := f.queue(i)
	for !f.outdated(q) && !f.full && f.taken[i] < f.wants[i].Max {
		it := q.first()
		if it == nil || it.due() > min(f.at, q.beyond) {
			return
		}
		body := int64(len(it.d.Body))
		if f.full = len(f.items) > 0 && body > f.maxBytes; f.full {
			return
		}
		f.s.hand(it)
		f.items = append(f.items, it)
		f.maxBytes -= body
		f.taken[i]++
	}
}

// missing returns how many chunks to claim for want i, or -1 if there is no need to ask the database.
// An outdated queue is asked about even if maxBytes is reached, so that Next is right.
func (f *fetch) missing(i int) int {
	q, left := f.queue(i), f.wants[i].Max-f.taken[i]
	if f.full {
		left = 0
	}
	need := max(left-len(q.free), 0)
	chunks := (need + q.per - 1) / max(q.per, 1)
	it := q.first()
	switch {
	case left > 0 && q.beyond <= f.at && (need > 0 || it == nil || q.beyond < it.due()):
		return max(chunks, 1)
	case f.outdated(q):
		return chunks
	}
	return -1
}

const (
	// maxAsk bounds the queues, and the chunks, that one query asks for.
	maxAsk = 64
	// contended is how long this node leaves a queue alone while other nodes claim its due chunks.
	contended = 10 * time.Millisecond
)

// ask claims chunks for want i and for the later wants that miss some. It also finds the first chunk of
// each queue that it does not claim. It releases s.mu meanwhile.
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
		none[f.key(i)] = n > 0
	}
	asked := s.event()
	s.mu.Unlock()
	var heads []head
	chunks, err := s.claim(ctx, func(b *pgx.Batch) {
		b.Queue(s.in(headsSQL), names).Query(into(&heads, scanHead))
	}, claimSQL, names, retries, f.at, most)
	s.mu.Lock()
	if err != nil {
		return err
	}
	for _, c := range chunks {
		none[c.queue] = false
	}
	for _, h := range heads {
		q := s.learn(h, asked)
		if none[h.queue] && q.beyond <= f.at {
			q.beyond = f.at + contended.Microseconds()
		}
	}
	return nil
}

const claimSQL = `WITH picked AS MATERIALIZED (
	SELECT c.* FROM unnest($2::bytea[], $3::boolean[], $5::int[]) q (destination, retry, most),
	LATERAL (
		SELECT part, id, node FROM S.chunk
		WHERE node = 0 AND destination = q.destination AND retry = q.retry AND due <= $4 AND EXISTS (SELECT FROM S.node WHERE id = $1)
		ORDER BY due, id LIMIT q.most FOR UPDATE SKIP LOCKED
	) c
)` + claimPicked

// Heads implements store.Store. It may yield destinations that this node itself has changed.
func (s *memory) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return store.Page(func() (heads []store.Head, err error) {
		began := time.Now()
		s.mu.Lock()
		names, only := s.news, [][]byte(nil) // nil for all
		if all = all || names == nil; all {
			names = make(map[string]bool)
		} else {
			only = bytesOf(slices.Collect(maps.Keys(names)))
		}
		s.news = make(map[string]bool)
		asked := s.event()
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		found, err := listed(ctx, s.database, "looking for due deliveries", scanHead, headsSQL, only)
		if err != nil {
			s.hearAny() // the next call yields what this one did not
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range found {
			if h.due != never || s.queues[h.queue] != nil { // otherwise the name may be made up
				s.learn(h, asked)
			}
		}
		if all {
			s.looked = time.Since(began)
			for key, q := range s.queues {
				names[key.destination] = true
				if q.asked < asked { // the database has no unclaimed chunk
					s.learn(head{key, never, chunkItems}, asked)
				}
			}
		}
		for name := range names {
			keys := queuesOf(name)
			if fresh, retry := s.queues[keys[0]], s.queues[keys[1]]; fresh != nil || retry != nil {
				heads = append(heads, store.Head{Destination: name, Fresh: fresh.next(), Retry: retry.next()})
			}
		}
		return heads, nil
	})
}

func scanHead(r pgx.CollectableRow) (h head, err error) {
	err = r.Scan((*text)(&h.queue.destination), &h.queue.retries, &h.due, &h.waiting)
	return h, err
}

// headsSQL finds the first unclaimed chunk of both queues of each destination in the array $1, or of
// all destinations if it is null. Where there is none, it returns never and chunkItems. It finds each
// next destination by an index, so it does not read all the chunks of a destination.
const headsSQL = `WITH RECURSIVE next AS (
	(SELECT destination FROM S.chunk WHERE node = 0 AND $1::bytea[] IS NULL ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > next.destination ORDER BY destination LIMIT 1)
	FROM next WHERE next.destination IS NOT NULL
)
SELECT d.destination, q.retry, coalesce(c.due, 9223372036854775807), coalesce(c.waiting, 256)
FROM (SELECT unnest($1::bytea[]) UNION ALL SELECT destination FROM next WHERE destination IS NOT NULL) d (destination)
CROSS JOIN (VALUES (false), (true)) q (retry) LEFT JOIN LATERAL (
	SELECT due, waiting FROM S.chunk WHERE node = 0 AND destination = d.destination AND retry = q.retry ORDER BY due, id LIMIT 1
) c ON true`
