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

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// writeTimeout bounds a transaction of this package.
const writeTimeout = 30 * time.Second

// maxBatch is how many bytes of requests one transaction takes, about.
const maxBatch = 4 << 20

// maxName is how many bytes a destination and a member of an audience have at most.
const maxName = 255

// A put is a call of Put that waits for its transaction.
type put struct {
	ctx    context.Context
	began  time.Time
	news   []fresh
	stored int
	err    error
	done   chan struct{}
}

// fresh is a delivery to be stored, unless it was put before. It shares no memory with
// the caller's.
type fresh struct {
	key         storekit.Key
	destination string
	due         time.Time
	record      []byte
	added       bool // was not put before
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
		if err := d.Check(); err != nil {
			return nil, 0, fmt.Errorf("pgqueue: delivery %d: %w", i, err)
		}
		from := len(buf)
		if buf, err = d.AppendBinary(buf); err != nil {
			return nil, 0, fmt.Errorf("pgqueue: delivery %d: %w", i, err)
		}
		news[i] = fresh{storekit.KeyOf(d.Destination, d.ID), d.Destination, d.Due, buf[from:len(buf):len(buf)], false}
	}
	return news, len(buf), nil
}

// Put implements webhook.Queue. What is being stored when ctx is cancelled is waited for.
// After the deadline of ctx it returns at once: what is being stored then may be stored,
// and is recognised when it is put again.
// While a transaction of PutTx goes on that has put one of ds, Put waits for the end
// of that, or of ctx, for half a minute at most.
func (q *Queue) Put(ctx context.Context, ds ...webhook.Delivery) (int, error) {
	return q.PutEach(ctx, ds, nil)
}

// PutEach implements webhook.SchedulingQueue.
func (q *Queue) PutEach(ctx context.Context, ds []webhook.Delivery, stored []bool) (int, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	news, size, err := prepare(ds)
	if err != nil || len(news) == 0 {
		return 0, err
	}
	p := &put{ctx: ctx, began: time.Now(), news: news, done: make(chan struct{})}
	q.puts.Add(p, size)
	select {
	case <-p.done:
	case <-ctx.Done():
		if q.puts.Drop(p) || q.stuck.Drop(p) {
			return 0, fmt.Errorf("pgqueue: storing: %w", ctx.Err())
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return 0, fmt.Errorf("pgqueue: storing: no answer of the database in time: %w", ctx.Err())
		}
		<-p.done
	}
	for i := range stored {
		stored[i] = p.news[i].added
	}
	return p.stored, p.err
}

// How long a transaction waits for another that is adding one of its keys: one
// of many puts, and one of a put by itself.
const (
	busyWait  = "50ms"
	stuckWait = "500ms"
)

// store stores puts in one transaction, or in several if keys of some are being
// added by others for longer than wait: the others of the batch do not wait for that.
func (q *Queue) store(puts []*put, wait string) {
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
	err := q.storeAll(puts, wait)
	if hasCode(err, lockNotAvailable) {
		if half := len(puts) / 2; half > 0 {
			q.store(puts[:half:half], wait)
			q.store(puts[half:], wait)
			return
		}
		if p := puts[0]; time.Since(p.began) < writeTimeout {
			q.stuck.Add(p, 1)
			return
		}
	}
	for _, p := range puts {
		if err != nil {
			p.stored, p.err = 0, fmt.Errorf("pgqueue: storing: %w", oneLine(err))
		}
		close(p.done)
	}
}

// The codes of errors of PostgreSQL after which a transaction is tried again.
const (
	deadlockDetected = "40P01"
	uniqueViolation  = "23505"
	lockNotAvailable = "55P03"
)

func hasCode(err error, codes ...string) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && slices.Contains(codes, failed.Code)
}

var errTurned = errors.New("pgqueue: keys go to another generation by now")

// storeAll stores puts in one transaction. It tries again after the turn of a
// generation, and if another has added one of the keys meanwhile, or waits for one, as
// transactions of PutTx may have the keys in another order.
func (q *Queue) storeAll(puts []*put, wait string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	for range 10 {
		if err = q.storeOnce(ctx, puts, wait); err != errTurned && !hasCode(err, deadlockDetected, uniqueViolation) {
			break
		}
	}
	return err
}

func (q *Queue) storeOnce(ctx context.Context, puts []*put, wait string) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release(ctx, conn)

	var keys []storekit.Key
	unknown := make(map[storekit.Key]bool)
	for _, p := range puts {
		for i := range p.news {
			if k := p.news[i].key; !unknown[k] {
				unknown[k] = true
				keys = append(keys, k)
			}
		}
	}
	newest, certain, suspects, tables := q.window.split(keys)
	now := newest
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue("SELECT pg_advisory_xact_lock_shared($1)", q.lock)
	b.Queue(byIndex + ", set_config('lock_timeout', '" + wait + "', true)")
	b.Queue(q.sql.newest).QueryRow(func(r pgx.Row) error { return r.Scan(&now) })
	clear(unknown)
	sql, args := q.sql.remember[newest%generations], []any{newest, uuids(certain)}
	if len(suspects) > 0 {
		sql, args = q.sql.rememberAny[newest%generations], append(args, uuids(suspects), tables)
	}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error { return scanKeys(rows, unknown) })
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	if now != newest { // nothing was remembered
		q.turned(now)
		return errTurned
	}
	w := drafter{now: time.Now()}
	for _, p := range puts {
		p.stored = w.addUnknown(p.news, unknown)
	}
	return q.commit(ctx, conn, new(pgx.Batch), w.drafts, w.now)
}

// release gives a connection back to its pool, after a transaction on it that may
// have failed.
func release(ctx context.Context, conn *pgxpool.Conn) {
	if status := conn.Conn().PgConn().TxStatus(); status != 'I' && !conn.Conn().IsClosed() {
		conn.Exec(ctx, "ROLLBACK") // else the pool closes it
	}
	conn.Release()
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

func scanKeys(rows pgx.Rows, into map[storekit.Key]bool) error {
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
	return !q.releasing.Load() && time.Now().UnixMicro()-q.leased.Load() < (2*time.Second).Microseconds()
}

// claimDrafts marks those of the drafts that this node keeps for itself, because
// they are due soon and fit into its memory, and returns the node.
func (q *Queue) claimDrafts(drafts []*draft, now time.Time) int64 {
	if !q.delivers() {
		return 0
	}
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
		if d.due <= soon && size <= free && l.Beyond.At > d.due {
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
		q.install(l, row{key: chunkKey{d.shelf, d.id}, held: d.n, items: d.data}, now)
	}
	q.mu.Unlock()
	if told {
		q.told.ring()
	}
}
