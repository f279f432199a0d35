package pgqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A fetch is a call of Fetch. It locks memory.mu while it works, but not while it asks the database.
type fetch struct {
	claimer  *claimer
	wants    []store.Want
	maxBytes int64
	at       int64   // now by the database's clock, in microseconds
	began    uint64  // the latest event before Fetch
	items    []*item // handed out
	taken    []int   // for each want, how many items are handed out
	full     bool    // maxBytes is reached
	want     int     // the wants before this one are served
}

// run takes items for the wants and sets Next of each want.
func (f *fetch) run(ctx context.Context) error {
	f.at = f.claimer.heartbeat.now().UnixMicro()
	for {
		q, err := f.serve()
		if err != nil || q == nil {
			return err
		}
		if err := f.ask(ctx, q); err != nil {
			return err
		}
	}
}

// serve takes items from memory for one want after the other, until it has to ask the database. It
// returns the question, or nil if all wants are served. Then it has set Next of each want.
func (f *fetch) serve() (*question, error) {
	f.claimer.memory.mu.Lock()
	defer f.claimer.memory.mu.Unlock()
	if err := f.claimer.heartbeat.expired(); err != nil { // the database may have answered late
		return nil, err
	}
	if f.began == 0 {
		f.began = f.claimer.memory.events
	}
	for ; f.want < len(f.wants); f.want++ {
		if f.take(f.want); f.missing(f.want) >= 0 {
			return f.question(), nil
		}
	}
	for i := range f.wants {
		f.wants[i].Next = f.queue(i).next()
	}
	return nil, nil
}

// finish appends the deliveries that are handed out to dst, or after an error puts them back into memory.
func (f *fetch) finish(dst []store.Delivery, err error) []store.Delivery {
	f.claimer.memory.mu.Lock()
	defer f.claimer.memory.mu.Unlock()
	if err != nil {
		f.claimer.memory.takeBack(f.items...)
		return dst
	}
	for _, it := range f.items {
		dst = append(dst, it.d)
	}
	return dst
}

func (f *fetch) key(i int) queueKey { return queueKey{f.wants[i].Destination, f.wants[i].Retries} }

func (f *fetch) queue(i int) *queue { return f.claimer.memory.queueOf(f.key(i)) }

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
		f.claimer.memory.hand(it)
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
		return max(chunks, chunkItems/max(q.per, 1)) // of small chunks as many as have the deliveries of a large one
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

// A question asks the database for due chunks of queues. The slices have an element for each queue.
type question struct {
	asked   uint64 // the event of the question
	names   [][]byte
	retries []bool
	most    []int32           // how many chunks to claim
	none    map[queueKey]bool // queues that were asked for chunks and gave none
}

// question returns what to ask for the present want, and for the later wants that miss deliveries.
func (f *fetch) question() *question {
	q := &question{asked: f.claimer.memory.event(), none: make(map[queueKey]bool)}
	for i, left := f.want, maxAsk; i < len(f.wants) && left > 0; i++ {
		n := f.missing(i)
		if n < 0 {
			continue
		}
		n = min(n, left)
		left -= max(n, 1)
		w := &f.wants[i]
		q.names, q.retries, q.most = append(q.names, []byte(w.Destination)), append(q.retries, w.Retries), append(q.most, int32(n))
		q.none[f.key(i)] = n > 0
	}
	return q
}

// ask claims the chunks that q asks for. It also finds the first chunk of each queue that it does not
// claim. It locks memory.mu once the database has answered.
func (f *fetch) ask(ctx context.Context, q *question) error {
	var heads []head
	chunks, err := f.claimer.claim(ctx, func(b *pgx.Batch) {
		b.Queue(f.claimer.db.in(headsSQL), q.names).Query(into(&heads, scanHead))
	}, claimSQL, q.names, q.retries, f.at, q.most)
	if err != nil {
		return err
	}
	for _, c := range chunks {
		q.none[c.queue] = false
	}
	f.claimer.memory.mu.Lock()
	defer f.claimer.memory.mu.Unlock()
	for _, h := range heads {
		learned := f.claimer.memory.learn(h, q.asked)
		if q.none[h.queue] && learned.beyond <= f.at {
			learned.beyond = f.at + contended.Microseconds()
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
