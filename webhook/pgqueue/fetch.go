package pgqueue

import (
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// A fetcher claims what is due.
type fetcher struct{ *claimer }

// A fetch is a call of Fetch.
type fetch struct {
	s        *fetcher
	wants    []webhook.Want
	maxBytes int64
	now      time.Time // by the database's clock
	at       int64     // now
	node     int64
	items    []*item // what is handed out
	taken    []int   // how many of them for each want
	bytes    int64
	full     bool // maxBytes is reached
}

// Fetch implements webhook.Store. It asks the database once for many of wants, if they cannot be
// had from memory.
func (s *fetcher) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	for i := range wants {
		if wants[i].Max < 1 {
			return dst, fmt.Errorf("pgqueue: fetch of %d deliveries", wants[i].Max)
		}
	}
	if err := s.calls.Enter(ctx); err != nil {
		return dst, err
	}
	defer s.calls.Leave()
	if err := s.fetching.take(ctx); err != nil {
		return dst, err
	}
	defer s.fetching.give()
	s.fetched.Store(time.Now().UnixMicro())
	f := fetch{s: s, wants: wants, maxBytes: maxBytes, taken: make([]int, len(wants))}
	next, err := f.run(ctx)
	if err != nil {
		return dst, fmt.Errorf("pgqueue: fetching: %w", oneLine(err))
	}
	for i := range wants {
		wants[i].Next = next[i]
	}
	for _, it := range f.items {
		d, err := it.delivery()
		if err != nil {
			s.damaged(it, err)
			continue
		}
		dst = append(dst, d)
	}
	s.mu.Lock()
	overfull := s.cached > s.config.CacheBytes
	s.mu.Unlock()
	if overfull {
		if err := s.release(ctx, 0); err != nil {
			s.config.Logger.Debug("pgqueue: could not give chunks back; memory holds more than CacheBytes", "error", err)
		}
	}
	return dst, nil
}

// run takes what is wanted, and returns what Next of each want is to be. With an error nothing is
// claimed.
func (f *fetch) run(ctx context.Context) (next []time.Time, err error) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	f.node = s.node
	f.now = time.Now().Add(s.offset)
	f.at = f.now.UnixMicro()
	defer func() {
		if err == nil {
			return
		}
		for _, it := range f.items {
			if it.state == inHand {
				s.unhand(it)
				s.putFree(it)
			}
		}
	}()
	if err := s.expired(); err != nil {
		return nil, err
	}
	for i := range f.wants {
		for !f.full && !f.serve(i) {
			if err := f.ask(ctx, i, true); err != nil {
				return nil, err
			}
		}
	}
	for i := range f.wants { // those that were not served
		for !s.knows(f.line(i)) {
			if err := f.ask(ctx, i, false); err != nil {
				return nil, err
			}
		}
	}
	for i := range f.wants {
		next = append(next, f.line(i).next())
	}
	return next, nil
}

func (f *fetch) line(i int) *line {
	return f.s.lineOf(lineKey{f.wants[i].Destination, f.wants[i].Retries})
}

// serve takes what want i asks for from memory. It returns false if the database may have
// something earlier or more.
func (f *fetch) serve(i int) bool {
	l := f.line(i)
	for f.taken[i] < f.wants[i].Max && !f.full {
		it := l.first()
		if it == nil || it.due > f.at {
			return f.s.knows(l) && l.beyond > f.at
		}
		if !f.s.knows(l) || l.beyond < it.due {
			return false
		}
		if f.full = len(f.items) > 0 && f.bytes+int64(it.body) > f.maxBytes; f.full {
			break
		}
		heap.Pop(&l.free)
		f.s.hand(it, f.now)
		f.items = append(f.items, it)
		f.bytes += int64(it.body)
		f.taken[i]++
	}
	return true
}

// missing returns how many chunks of want i are to be claimed, -1 if the database need not be
// asked.
func (f *fetch) missing(i int) int {
	l := f.line(i)
	need := f.wants[i].Max - f.taken[i] - len(l.free)
	chunks := (max(need, 0) + l.per - 1) / l.per
	it := l.first()
	switch {
	case !f.s.knows(l):
		return chunks
	case l.beyond > f.at, it != nil && it.due <= l.beyond && need <= 0:
		return -1
	}
	return max(chunks, 1)
}

const (
	// maxAsk is how many queues and how many chunks the database is asked for at once.
	maxAsk = 64
	// contended is how long a queue is left alone whose due chunks others are claiming.
	contended = 10 * time.Millisecond
)

// ask asks the database for want i and those behind it that need it: for chunks if claim is
// set, and when the first chunk is due that is left. The store is locked, but not meanwhile.
func (f *fetch) ask(ctx context.Context, i int, claim bool) error {
	s := f.s
	var (
		names   [][]byte
		retries []bool
		most    []int32
		none    = make(map[lineKey]bool) // lines that chunks were asked for, and not got
	)
	for left := maxAsk; i < len(f.wants) && left > 0; i++ {
		n := f.missing(i)
		if n < 0 {
			continue
		}
		if n = min(n, left); !claim {
			n = 0
		}
		left -= max(n, 1)
		w := &f.wants[i]
		names, retries, most = append(names, []byte(w.Destination)), append(retries, w.Retries), append(most, int32(n))
		none[lineKey{w.Destination, w.Retries}] = n > 0
	}
	look := s.beginLook()
	s.mu.Unlock()
	var rows []row
	var heads []head
	err := s.claiming(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		var b pgx.Batch
		b.Queue(byIndex)
		b.Queue(s.in(claimSQL), f.node, names, retries, f.at, most).Query(func(rs pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(rs, scanRow)
			return err
		})
		b.Queue(s.in(headsSQL), names, retries).Query(func(rs pgx.Rows) (err error) {
			heads, err = pgx.CollectRows(rs, scanHead)
			return err
		})
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		for _, r := range rows {
			if r.outbox {
				s.firstClaims.Add(int64(r.held))
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.node != f.node {
			return errEnded
		}
		for _, r := range rows {
			s.install(&chunk{key: r.key, line: r.line, held: r.held, done: r.done}, r.items, f.now, nil)
		}
		return nil
	})
	s.mu.Lock()
	if err != nil {
		return err
	}
	for _, r := range rows {
		none[r.line] = false
	}
	for _, h := range heads {
		l := s.lineOf(h.line)
		if s.learn(l, h, look); none[h.line] && l.beyond <= f.at {
			l.beyond = f.now.Add(contended).UnixMicro()
		}
	}
	return nil
}

// A row is a chunk as it is stored.
type row struct {
	key    chunkKey
	line   lineKey
	node   int64
	held   int
	done   string
	outbox bool // of a transaction of a user, and claimed for the first time
	items  []byte
}

func scanRow(rs pgx.CollectableRow) (r row, err error) {
	var name []byte
	err = rs.Scan(&r.key.shelf, &r.key.id, &name, &r.line.retries, &r.held, &r.done, &r.outbox, &r.items)
	r.line.destination = string(name)
	return r, err
}

const claimSQL = `WITH picked AS MATERIALIZED (
	SELECT c.shelf, c.id, c.outbox FROM unnest($2::bytea[], $3::boolean[], $5::int[]) l (destination, retry, most),
	LATERAL (
		SELECT shelf, id, outbox FROM S.chunk
		WHERE node = 0 AND destination = l.destination AND retry = l.retry AND due <= $4 AND EXISTS (SELECT FROM S.node WHERE id = $1)
		ORDER BY due, id LIMIT l.most FOR UPDATE SKIP LOCKED
	) c
)
UPDATE S.chunk c SET node = $1, outbox = false FROM picked p
WHERE c.shelf = p.shelf AND c.id = p.id
RETURNING c.shelf, c.id, c.destination, c.retry, c.held, coalesce(c.done::text, ''), p.outbox, c.items`
