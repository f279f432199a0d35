package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A home is what the Queue knows of a lane.
type home struct {
	// per is how many deliveries the first unclaimed chunk has, as far as that
	// is known: the next will be alike.
	per int
	// reported is the first chunk that was reported to be unclaimed while the
	// lane was being looked at.
	reported lanes.Order
	// looked is the number of the look at the lane that began last.
	looked uint64
}

func homeOf(l *lanes.Lane) *home {
	h, _ := l.Home.(*home)
	if h == nil {
		h = &home{per: chunkItems, reported: lanes.Last}
		l.Home = h
	}
	return h
}

// report notes that a lane has an unclaimed chunk. The queue is locked.
func (q *Queue) report(l *lanes.Lane, o lanes.Order) {
	h := homeOf(l)
	if o.Before(h.reported) {
		h.reported = o
	}
	if o.Before(l.Beyond) {
		l.Beyond = o
		q.table.Refresh(l, q.now().UnixMicro())
	}
}

// contended is how long a lane is left alone whose due chunks are being claimed
// by others.
const contended = 10 * time.Millisecond

// claim claims chunks of the lanes that take wants. The queue is locked, but not
// while it asks the database.
func (q *Queue) claim(ctx context.Context, take *lanes.Take, now time.Time) error {
	wants := take.Wants
	names, most := make([][]byte, len(wants)), make([]int32, len(wants))
	q.looks++
	for i, l := range wants {
		h := homeOf(l)
		h.reported, h.looked = lanes.Last, q.looks
		names[i] = []byte(l.Name)
		want := min(take.Want(l), max(1, int((q.config.CacheBytes-q.cached)/itemBytes/int64(len(wants)))))
		most[i] = int32(max(1, (want+h.per/2)/h.per))
	}
	node := q.node
	q.mu.Unlock()
	claimed, firsts, err := q.fetch(ctx, node, names, most, now.UnixMicro())
	if err == nil {
		defer q.claims.RUnlock()
	}
	q.mu.Lock()
	if err != nil {
		return fmt.Errorf("pgqueue: claiming: %w", oneLine(err))
	}
	got := make(map[*lanes.Lane]int, len(wants))
	for _, r := range claimed {
		l := q.table.Lane(r.destination)
		got[l]++
		if q.node == node {
			q.install(l, r, now)
		}
	}
	next := make(map[string]first, len(firsts))
	for _, f := range firsts {
		next[f.destination] = f
	}
	for _, l := range wants {
		h := homeOf(l)
		first := lanes.Last
		h.per = chunkItems
		if f, ok := next[l.Name]; ok {
			first, h.per = f.order, max(1, f.held)
		}
		if h.reported.Before(first) {
			first = h.reported
		}
		if got[l] == 0 && first.At <= now.UnixMicro() {
			first.At = now.Add(contended).UnixMicro()
		}
		l.Beyond = first
		q.table.Refresh(l, now.UnixMicro())
	}
	return nil
}

// A row is a chunk as it is stored.
type row struct {
	key         chunkKey
	destination string
	held        int
	done, items []byte
}

// A first is the first unclaimed chunk of a destination.
type first struct {
	destination string
	order       lanes.Order
	held        int
}

// fetch claims chunks, and returns the first of what is left. Unless it fails,
// q.claims is held for reading.
func (q *Queue) fetch(ctx context.Context, node int64, names [][]byte, most []int32, now int64) (claimed []row, firsts []first, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Release()
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(q.sql.claim, node, names, now, most).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var (
				r    row
				name []byte
				held int16
			)
			if err := rows.Scan(&r.key.shelf, &r.key.id, &name, &held, &r.done, &r.items); err != nil {
				return err
			}
			r.destination, r.held = string(name), int(held)
			claimed = append(claimed, r)
		}
		return rows.Err()
	})
	b.Queue(q.sql.next, names).Query(func(rows pgx.Rows) (err error) {
		firsts, err = scanFirsts(rows)
		return err
	})
	q.claims.RLock()
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		q.claims.RUnlock()
		q.doubts()
		return nil, nil, err
	}
	return claimed, firsts, nil
}

func scanFirsts(rows pgx.Rows) ([]first, error) {
	defer rows.Close()
	var firsts []first
	for rows.Next() {
		var (
			name    []byte
			due, id int64
			held    int16
		)
		if err := rows.Scan(&name, &due, &id, &held); err != nil {
			return nil, err
		}
		firsts = append(firsts, first{string(name), lanes.Order{At: due, Seq: uint64(id) << 8}, int(held)})
	}
	return firsts, rows.Err()
}

// install puts a claimed chunk into memory. The queue is locked.
func (q *Queue) install(l *lanes.Lane, r row, now time.Time) {
	items, err := decode(l, r.key.id, r.items, r.done)
	if err != nil {
		q.chunks[r.key] = &chunk{key: r.key, node: q.node, lane: l}
		q.config.Logger.Error("pgqueue: a chunk cannot be read and is left alone", "shelf", r.key.shelf, "chunk", r.key.id, "error", err)
		return
	}
	q.hold(&chunk{key: r.key, node: q.node, lane: l, held: r.held, done: r.done, n: len(items), items: items}, now)
}

// hold adds a chunk with its items. The queue is locked.
func (q *Queue) hold(c *chunk, now time.Time) {
	c.used = now
	q.chunks[c.key] = c
	for _, it := range c.items {
		if it != nil {
			it.Home = c
			c.size += it.Size
			q.table.Add(c.lane, it, now.UnixMicro())
		}
	}
	q.cached += c.size
}

// discover looks for all destinations that have something unclaimed.
func (q *Queue) discover(ctx context.Context) error {
	q.mu.Lock()
	q.looks++
	look := q.looks
	q.mu.Unlock()
	rows, err := q.pool.Query(ctx, q.sql.discover)
	if err != nil {
		return err
	}
	firsts, err := scanFirsts(rows)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	due := false
	for _, f := range firsts {
		l := q.table.Lane(f.destination)
		if homeOf(l).looked > look {
			continue // it was seen to be as it is now
		}
		if f.order.Before(l.Beyond) {
			due = true
			homeOf(l).per = max(1, f.held)
		}
		q.report(l, f.order)
	}
	if due {
		q.awake()
	}
	return nil
}

// awake tells who waits that there may be something to lease.
func (q *Queue) awake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
