package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// writeTimeout bounds a transaction of this package.
const writeTimeout = 30 * time.Second

// maxName is how many bytes a destination and an id have at most.
const maxName = 255

// A put is a call of Put that waits for its transaction.
type put struct {
	ctx    context.Context
	news   []fresh
	stored int
	err    error
	done   chan struct{}
}

// fresh is a delivery to be stored, unless it was put before.
type fresh struct {
	key      seen.Key
	delivery *webhook.Delivery
	record   []byte
}

// prepare checks and encodes ds.
func prepare(ds []webhook.Delivery) (news []fresh, size int, err error) {
	news = make([]fresh, len(ds))
	total := 0
	for i := range ds {
		total += len(ds[i].Body) + 256
	}
	buf := make([]byte, 0, total)
	for i := range ds {
		d := &ds[i]
		if n := len(d.Destination); n < 1 || n > maxName {
			return nil, 0, fmt.Errorf("pgqueue: delivery %d: destination of %d bytes, not 1 to %d", i, n, maxName)
		}
		if n := len(d.ID); n < 1 || n > maxName {
			return nil, 0, fmt.Errorf("pgqueue: delivery %d: id of %d bytes, not 1 to %d", i, n, maxName)
		}
		from := len(buf)
		if buf, err = d.AppendBinary(buf); err != nil {
			return nil, 0, fmt.Errorf("pgqueue: delivery %d: %w", i, err)
		}
		news[i] = fresh{seen.KeyOf(d.Destination, d.ID), d, buf[from:len(buf):len(buf)]}
	}
	return news, len(buf), nil
}

// Put implements webhook.Queue.
func (q *Queue) Put(ctx context.Context, ds ...webhook.Delivery) (int, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	news, size, err := prepare(ds)
	if err != nil || len(news) == 0 {
		return 0, err
	}
	p := &put{ctx: ctx, news: news, done: make(chan struct{})}
	q.puts.add(p, size)
	<-p.done
	return p.stored, p.err
}

// store stores puts in one transaction.
func (q *Queue) store(puts []*put) {
	puts = slices.DeleteFunc(puts, func(p *put) bool {
		if p.err = p.ctx.Err(); p.err != nil {
			close(p.done)
			return true
		}
		return false
	})
	if len(puts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := q.storeAll(ctx, puts)
	for range 3 { // transactions of PutTx may have the keys in another order
		if !isDeadlock(err) {
			break
		}
		err = q.storeAll(ctx, puts)
	}
	for _, p := range puts {
		if err != nil {
			p.stored, p.err = 0, fmt.Errorf("pgqueue: storing: %w", err)
		}
		close(p.done)
	}
}

func isDeadlock(err error) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && failed.Code == "40P01"
}

func (q *Queue) storeAll(ctx context.Context, puts []*put) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which closes one that is within a transaction

	var keys [][16]byte
	asked := make(map[seen.Key]bool)
	for _, p := range puts {
		for i := range p.news {
			if k := p.news[i].key; !asked[k] {
				asked[k] = true
				keys = append(keys, k)
			}
		}
	}
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue(byIndex)
	b.Queue("SELECT pg_advisory_xact_lock_shared($1)", q.lock)
	clear(asked)
	b.Queue(q.sql.remember, keys).Query(func(rows pgx.Rows) error { return scanKeys(rows, asked) })
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}

	now := time.Now()
	w := drafter{now: now, keep: q.delivers()}
	for _, p := range puts {
		p.stored = 0
		for i := range p.news {
			if n := &p.news[i]; asked[n.key] {
				delete(asked, n.key) // the first of several is the one
				w.add(n.delivery, n.record)
				p.stored++
			}
		}
	}
	return q.commit(ctx, conn, new(pgx.Batch), w.drafts, now)
}

// commit ends a transaction: it inserts drafts, does what is in b, and tells memory of
// the drafts.
func (q *Queue) commit(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, drafts []*draft, now time.Time) error {
	q.claims.RLock()
	defer q.claims.RUnlock()
	node := q.claimDrafts(drafts, now)
	if err := q.insert(ctx, conn, b, node, drafts); err != nil {
		return err
	}
	b.Queue("COMMIT")
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		q.doubts()
		return err
	}
	q.stored(drafts, node)
	return nil
}

func scanKeys(rows pgx.Rows, into map[seen.Key]bool) error {
	for rows.Next() {
		var k [16]byte
		if err := rows.Scan(&k); err != nil {
			return err
		}
		into[k] = true
	}
	return rows.Err()
}

// delivers reports whether this process delivers what it puts.
func (q *Queue) delivers() bool {
	return time.Now().UnixMicro()-q.leased.Load() < (2 * time.Second).Microseconds()
}

// claimDrafts marks those of the drafts that this node keeps for itself, because
// they are due soon and fit into its memory, and returns the node.
func (q *Queue) claimDrafts(drafts []*draft, now time.Time) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Now().After(q.until) {
		return 0
	}
	free := q.config.CacheBytes - q.cached
	soon := now.Add(time.Second).UnixMicro()
	for _, d := range drafts {
		size := int64(len(d.data) + d.n*itemBytes)
		// Behind chunks that are not claimed it would wait for these.
		l := q.table.Lane(d.destination)
		if len(d.deliveries) == d.n && d.due <= soon && size <= free && l.Beyond.At > d.due {
			d.claim = true
			free -= size
		}
	}
	return q.node
}

// insert queues the statement that stores drafts.
func (q *Queue) insert(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, node int64, drafts []*draft) error {
	if len(drafts) == 0 {
		return nil
	}
	ids, err := q.newIDs(ctx, conn, len(drafts))
	if err != nil {
		return err
	}
	shelf := int16(q.shelf.Load())
	var (
		names, items = make([][]byte, len(drafts)), make([][]byte, len(drafts))
		dues, nodes  = make([]int64, len(drafts)), make([]int64, len(drafts))
		held         = make([]int16, len(drafts))
	)
	for i, d := range drafts {
		d.id, d.shelf = ids[i], shelf
		names[i], items[i], dues[i], held[i] = []byte(d.destination), d.data, d.due, int16(d.n)
		if d.claim {
			nodes[i] = node
		}
	}
	b.Queue(q.sql.insert, shelf, ids, names, dues, nodes, held, items)
	return nil
}

// idRun is how many ids a value of the sequence stands for.
const idRun = 256

// newIDs returns n ids in ascending order.
func (q *Queue) newIDs(ctx context.Context, conn *pgxpool.Conn, n int) ([]int64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ids) < n { // again if others take them meanwhile
		runs := (n - len(q.ids) + idRun - 1) / idRun
		q.mu.Unlock()
		rows, err := conn.Query(ctx, q.sql.ids, runs)
		var firsts []int64
		if err == nil {
			firsts, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		q.mu.Lock()
		if err != nil {
			return nil, err
		}
		for _, f := range firsts {
			for i := range int64(idRun) {
				q.ids = append(q.ids, f+i)
			}
		}
		slices.Sort(q.ids)
	}
	ids := slices.Clone(q.ids[:n])
	q.ids = q.ids[n:]
	return ids, nil
}

// stored tells memory, and others, what was inserted.
func (q *Queue) stored(drafts []*draft, node int64) {
	if len(drafts) == 0 {
		return
	}
	told := false
	q.mu.Lock()
	now := q.now()
	for _, d := range drafts {
		l := q.table.Lane(d.destination)
		if !d.claim || node != q.node {
			if o := (lanes.Order{At: d.due, Seq: uint64(d.id) << 8}); o.Before(l.Beyond) {
				homeOf(l).per = d.n
				q.report(l, o)
			}
			told = q.told.add(d.destination) || told
			continue
		}
		c := &chunk{key: chunkKey{d.shelf, d.id}, node: node, lane: l, held: d.n, n: d.n, items: make([]*lanes.Item, d.n)}
		for i := range d.deliveries {
			it := &lanes.Item{Delivery: lanes.Clone(&d.deliveries[i]), Index: i}
			it.Destination = l.Name
			it.Order = orderOf(it.Due, d.id, i)
			it.Size = int64(len(it.Body)) + itemBytes
			c.items[i] = it
		}
		q.hold(c, now)
	}
	q.mu.Unlock()
	if told {
		q.told.ring()
	}
}
