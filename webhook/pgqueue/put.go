package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// writeTimeout bounds a transaction of this package.
const writeTimeout = 30 * time.Second

// maxBatch is how many bytes of requests one transaction takes, about.
const maxBatch = 4 << 20

// A putter stores deliveries.
type putter struct {
	*claimer
	puts  *storekit.Batcher[put]
	stuck turn // of puts whose keys others are adding, in transactions that go on
}

// A put is a call of Put that waits for its transaction.
type put struct {
	ctx   context.Context
	news  []fresh
	done  chan struct{}
	err   error
	gone  bool // the caller has gone, and claims nothing; the store is locked for it
	ended bool // what is kept is claimed; the same
}

// Put implements webhook.Store. What is being stored when ctx is cancelled is waited for.
// After the deadline of ctx it returns at once: what is being stored then may be stored,
// and is recognised when it is put again.
// While a transaction of PutTx goes on that has put one of ps, Put waits for the end
// of that, or of ctx, for half a minute at most.
func (s *putter) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	return s.call(ctx, "storing", func() error {
		p := &put{ctx: ctx, news: make([]fresh, len(ps)), done: make(chan struct{})}
		total := 0
		for i := range ps {
			total += len(ps[i].Body) + 256
		}
		buf := make([]byte, 0, total)
		for i := range ps {
			f := &p.news[i]
			var err error
			if *f, buf, err = newFresh(&ps[i].Delivery, !ps[i].NoDedup, buf); err != nil {
				return fmt.Errorf("delivery %d: %w", i, err)
			}
			f.keep, f.put = ps[i].Keep, p
		}
		if len(ps) == 0 {
			return nil
		}
		began := time.Now()
		s.puts.Add(p, len(buf))
		select {
		case <-p.done:
		case <-ctx.Done():
			if err := s.abandonPut(p); err != nil {
				return err
			}
			<-p.done
		}
		for hasCode(p.err, lockNotAvailable) && time.Since(began) < writeTimeout {
			if err := s.stuck.take(ctx); err != nil {
				return err
			}
			p.err = s.store([]*put{p}, stuckWait)
			s.stuck.give()
			if err := ctx.Err(); err != nil && p.err != nil {
				p.err = err
			}
		}
		if p.err != nil {
			return p.err
		}
		for i := range out {
			out[i] = webhook.Result{Stored: !p.news[i].known, Claim: p.news[i].claim}
		}
		return nil
	})
}

// abandonPut has a put end whose context has ended. It returns nil if the caller is to wait for
// its transaction.
func (s *putter) abandonPut(p *put) error {
	err := p.ctx.Err()
	if s.puts.Drop(p) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.ended || !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	p.gone = true
	return fmt.Errorf("no answer of the database in time: %w", err)
}

// How long a transaction waits for another that is adding one of its keys: one
// of many puts, and one of a put by itself.
const (
	busyWait  = "50ms"
	stuckWait = "500ms"
)

// storePuts stores puts in one transaction, or in several if keys of some are being
// added by others for longer than busyWait: the others of the batch do not wait for that.
func (s *putter) storePuts(puts []*put) {
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
	err := s.store(puts, busyWait)
	if half := len(puts) / 2; half > 0 && hasCode(err, lockNotAvailable) {
		s.storePuts(puts[:half:half])
		s.storePuts(puts[half:])
		return
	}
	for _, p := range puts {
		p.err = err
		close(p.done)
	}
}

// store stores puts in one transaction. It tries again if that waits for a transaction of
// PutTx which has keys in another order.
func (s *putter) store(puts []*put, wait string) (err error) {
	var all, again []*fresh
	first := make(map[storekit.Key]bool)
	for _, p := range puts {
		for i := range p.news {
			if f := &p.news[i]; f.remembered && first[f.key] {
				again = append(again, f)
			} else {
				first[f.key] = true
				all = append(all, f)
			}
		}
	}
	for range 10 {
		err = s.claiming(context.Background(), func(ctx context.Context, conn *pgxpool.Conn) error {
			return s.storeOnce(ctx, conn, all, wait)
		})
		if !hasCode(err, deadlockDetected) {
			break
		}
	}
	for _, f := range again {
		f.known = true
	}
	return err
}

func (s *putter) storeOnce(ctx context.Context, conn *pgxpool.Conn, all []*fresh, wait string) error {
	now := time.Now()
	drafts := draftsOf(all, now)
	node := s.claimDrafts(drafts, now)
	var r stored
	var b pgx.Batch
	b.Queue("SELECT set_config('lock_timeout', $1, true)", wait)
	s.queuePut(&b, s.putArgs(node, drafts, false, !s.config.NoListen, s.nodeNow()), &r)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	s.stored(drafts, node, &r, now)
	return nil
}

// claimDrafts marks those of the drafts that this node claims, because they are due soon, fit
// into its memory, and are behind nothing that is not claimed. It returns the node.
func (s *putter) claimDrafts(drafts []*draft, now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.releasing.Load() || s.expired() != nil {
		return 0
	}
	room := s.config.CacheBytes - s.cached
	soon := now.Add(s.offset + time.Second).UnixMicro()
	delivers := now.UnixMicro()-s.fetched.Load() < (2 * time.Second).Microseconds() // else it only puts
	for _, d := range drafts {
		size := int64(len(d.data) + len(d.items)*itemBytes)
		l := s.lines[d.line]
		d.mine = d.due <= soon && size <= room && (l == nil || l.beyond > d.due) &&
			(delivers || slices.ContainsFunc(d.items, func(f *fresh) bool { return f.keep }))
		if d.mine {
			room -= size
		}
	}
	return s.node
}

// stored is what the function put returns.
type stored struct {
	n     *int
	known []int32 // places, from 1
	shelf int16
	ids   []int64
}

const putSQL = `SELECT stored, known, to_shelf, chunks FROM S.put($1::bigint, $2::bigint, $3::uuid[], $4::bytea[], $5::boolean[],
	$6::bigint[], $7::int[], $8::boolean[], $9::text[], $10::bytea[], $11::boolean, $12::text, $13::text)`

// queuePut queues the statement that stores drafts, unless there are none.
func (s *putter) queuePut(b *pgx.Batch, args []any, r *stored) {
	if len(args) > 0 {
		b.Queue(s.in(putSQL), args...).QueryRow(func(row pgx.Row) error { return row.Scan(&r.n, &r.known, &r.shelf, &r.ids) })
	}
}

// putArgs returns the arguments of putSQL, none without drafts. If tell is set, all nodes but
// from are notified of what this node does not claim.
func (s *putter) putArgs(node int64, drafts []*draft, outbox, tell bool, from int64) []any {
	if len(drafts) == 0 {
		return nil
	}
	var (
		n       = len(drafts)
		keys    []pgtype.UUID
		dues    []int64
		names   = make([][]byte, n)
		retries = make([]bool, n)
		counts  = make([]int32, n)
		mine    = make([]bool, n)
		whys    = make([]*string, n)
		items   = make([][]byte, n)
		told    = make(map[string]bool)
		text    string
	)
	remembered := false
	for i, d := range drafts {
		if tell && !d.mine {
			told[d.line.destination] = true
		}
		names[i], retries[i], counts[i], mine[i], items[i] = []byte(d.line.destination), d.line.retries, int32(len(d.items)), d.mine, d.data
		if why := &d.items[0].why; *why != "" {
			whys[i] = why
		}
		for _, f := range d.items {
			dues, keys = append(dues, f.due), append(keys, pgtype.UUID{Bytes: f.key, Valid: f.remembered})
			remembered = remembered || f.remembered
		}
	}
	if !remembered {
		keys = nil
	}
	if len(told) > 0 {
		text = payload(from, maps.Keys(told))
	}
	return []any{s.lock, node, keys, names, retries, dues, counts, mine, whys, items, outbox, s.channel(), text}
}

// stored tells memory what was stored of drafts.
func (s *putter) stored(drafts []*draft, node int64, r *stored, now time.Time) {
	place := int32(1)
	s.mu.Lock()
	for i, d := range drafts {
		var known []int
		d.due = never
		for j, f := range d.items {
			if _, f.known = slices.BinarySearch(r.known, place); f.known {
				known = append(known, j)
			} else {
				d.due = min(d.due, f.due)
			}
			place++
		}
		held := len(d.items) - len(known)
		switch {
		case held == 0:
		case d.mine && node == s.node:
			c := &chunk{key: chunkKey{r.shelf, r.ids[i]}, line: d.line, held: held}
			if len(known) > 0 {
				c.done = withSet("", len(d.items), known)
			}
			s.install(c, d.data, now, d.items)
		default:
			s.report(d.line, d.due, held)
		}
	}
	for _, d := range drafts {
		for _, f := range d.items {
			f.put.ended = true
		}
	}
	s.mu.Unlock()
}

// within runs fn in a transaction, and stores there the deliveries that it returns, whether they
// were put before or not. Then it tells the caller of Heads, and other nodes, of them.
func (s *putter) within(ctx context.Context, fn func(pgx.Tx) ([]webhook.Delivery, error)) error {
	var drafts []*draft
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		ds, err := fn(tx)
		if err != nil || len(ds) == 0 {
			return err
		}
		all, err := freshOf(ds, false)
		if err != nil {
			return err
		}
		drafts = draftsOf(all, time.Now())
		var b pgx.Batch
		s.queuePut(&b, s.putArgs(0, drafts, false, !s.config.NoListen, s.nodeNow()), new(stored))
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	s.mu.Lock()
	for _, d := range drafts {
		s.report(d.line, d.due, len(d.items))
		names[d.line.destination] = true
	}
	s.mu.Unlock()
	if len(names) > 0 {
		s.heard(maps.Keys(names))
	}
	return nil
}
