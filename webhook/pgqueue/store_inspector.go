package pgqueue

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// List implements store.Inspector. Deliveries in chunks of other nodes are claimed. It leaves out damaged
// deliveries. Of waiting deliveries it looks at each to find an ID. It ends after about 250 ms.
func (s *Store) List(ctx context.Context, q store.Query, after uint64, max int) ([]store.Record, uint64, error) {
	l := listing{Listing: store.Listing{Query: &q, After: after, Max: max}, store: s, until: time.Now().Add(listTime)}
	err := s.db.call(ctx, "listing deliveries", func() error {
		return pgx.BeginTxFunc(ctx, s.db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			l.tx = tx
			return l.run(ctx)
		})
	})
	if err != nil {
		return nil, 0, err
	}
	return l.Page, l.Next, nil
}

// Get implements store.Inspector.
func (s *Store) Get(ctx context.Context, ref store.Ref) (store.Record, error) {
	page, _, err := s.List(ctx, store.Query{Destinations: []string{ref.Destination}}, ref.Seq+1, 1)
	switch {
	case err != nil:
		return store.Record{}, err
	case len(page) == 0 || page[0].Seq != ref.Seq:
		return store.Record{}, store.ErrNoDelivery
	}
	return page[0], nil
}

// Hasten implements store.Inspector. Deliveries in chunks of other nodes count as claimed. It claims
// each chunk that it changes, for a moment.
func (s *Store) Hasten(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	now := s.Now()
	return s.each(ctx, "hastening deliveries", refs, func(x *some) (n, claimed int, err error) {
		sw := s.newSweep(x, func(d *store.Delivery) store.Verdict {
			if d.Hasten(now) {
				return store.Retry
			}
			return store.Return
		})
		err = s.sweep(ctx, x, sw)
		return sw.changed, len(sw.skipped), err
	})
}

// Revive implements store.Inspector. Damaged dead letters stay. While an open transaction of PutTx has
// put one with the same Key, Revive waits for the end of that transaction, for half a minute.
func (s *Store) Revive(ctx context.Context, refs ...store.Ref) (n int, err error) {
	n, _, err = s.each(ctx, "reviving dead letters", refs, func(x *some) (n, claimed int, err error) {
		n, err = s.revive(ctx, x)
		return n, 0, err
	})
	return n, err
}

// Discard implements store.Inspector. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Discard(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.each(ctx, "discarding deliveries", refs, func(x *some) (n, claimed int, err error) {
		sw := s.newSweep(x, func(*store.Delivery) store.Verdict { return store.Done })
		// In this order, because a delivery may be settled or buried meanwhile.
		if err = s.sweep(ctx, x, sw); err == nil {
			err = s.discardDead(ctx, sw, discardSQL, x.names, x.seqs)
		}
		if err == nil {
			err = s.discardKept(ctx, sw, func(r *store.Record) bool { return x.refs[r.Ref()] > 0 }, withKeptSQL, x.names, x.seqs)
		}
		return sw.changed, len(sw.skipped), err
	})
}

// discardDead removes the dead letters that a statement deletes, and which sw counts.
func (s *Store) discardDead(ctx context.Context, sw *sweep, sql string, args ...any) error {
	var seqs []int64
	err := afterDeadlock(func() (err error) {
		seqs, err = collect(ctx, s.db.pool, pgx.RowTo[int64], s.db.in(sql), args...)
		return err
	})
	for _, seq := range seqs {
		sw.removed(uint64(seq))
	}
	return err
}

// discardKept removes delivered deliveries, which sw counts, from the rows that a query finds.
func (s *Store) discardKept(ctx context.Context, sw *sweep, match func(*store.Record) bool, sql string, args ...any) error {
	lasts, err := collect(ctx, s.db.pool, pgx.RowTo[int64], s.db.in(sql), args...)
	if err != nil {
		return err
	}
	seqs, err := s.claimer.history.remove(ctx, lasts, match)
	for _, seq := range seqs {
		sw.removed(seq)
	}
	return err
}

// Erase implements store.Inspector. It reads every chunk whose bytes contain the user id. Deliveries in
// chunks of other nodes count as claimed. Afterwards no query and no dump has anything of what was
// erased, but its number and its time may stay as bounds of a row that has other deliveries.
//
// The files of PostgreSQL have the bytes until the space is used again, also after VACUUM. In the
// history that is until the partition is truncated, which is when History says. VACUUM FULL of the
// tables kept, chunk and dead removes them at once; what is settled meanwhile may not be kept. The
// log (WAL), and backups of files, have them for as long as they are kept.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	sw := s.claimer.newSweep(func(d *store.Delivery) store.Verdict {
		if d.User != user {
			return 0
		}
		return store.Done
	})
	eraseDead := func() error { return s.discardDead(ctx, sw, eraseDeadSQL, userKey(user), []byte(user)) }
	err = s.db.call(ctx, "erasing", func() error {
		var latest int64 // no chunk has a greater id
		if err := s.db.pool.QueryRow(ctx, s.db.in(`SELECT last_value * 4 + 3 FROM S.ids`)).Scan(&latest); err != nil {
			return err
		}
		for _, step := range []func() error{
			eraseDead, // so that none is revived behind the sweep
			func() error { return sw.user(ctx, user, 0) },
			eraseDead, // nodes may have buried deliveries before the sweep has seen them
			func() error { return sw.user(ctx, user, latest) }, // some of these may have been revived
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return s.discardKept(ctx, sw, func(r *store.Record) bool { return r.User == user }, eraseKeptSQL, userKey(user))
	})
	return sw.changed, len(sw.skipped), err
}

const (
	eraseDeadSQL = `DELETE FROM S.dead WHERE keys @> ARRAY[$1::int] AND user_id = $2 RETURNING seq`
	eraseKeptSQL = `SELECT last FROM S.kept WHERE keys @> ARRAY[$1::int] ORDER BY last`
)

// A some has the Refs of deliveries, also as arguments for SQL.
type some struct {
	refs  map[store.Ref]int // their places, from 1
	names [][]byte
	seqs  []int64
}

// each calls do with some of refs after the other, and adds up its results.
func (s *Store) each(ctx context.Context, what string, refs []store.Ref, do func(*some) (n, claimed int, err error)) (n, claimed int, err error) {
	seen := make(map[store.Ref]bool, len(refs))
	refs = slices.DeleteFunc(slices.Clone(refs), func(ref store.Ref) bool {
		again := seen[ref]
		seen[ref] = true
		return again
	})
	err = s.db.call(ctx, what, func() error {
		for part := range slices.Chunk(refs, chunkItems) {
			x := &some{refs: make(map[store.Ref]int, len(part))}
			for i, ref := range part {
				x.refs[ref] = i + 1
				x.names, x.seqs = append(x.names, []byte(ref.Destination)), append(x.seqs, int64(ref.Seq))
			}
			changed, skipped, err := do(x)
			if n, claimed = n+changed, claimed+skipped; err != nil {
				return err
			}
		}
		return nil
	})
	return n, claimed, err
}

// newSweep returns a sweep of those of x that wait.
func (s *Store) newSweep(x *some, f func(*store.Delivery) store.Verdict) *sweep {
	return s.claimer.newSweep(func(d *store.Delivery) store.Verdict {
		if x.refs[store.Ref{Destination: d.Destination, Seq: d.Seq}] == 0 {
			return 0
		}
		return f(d)
	})
}

// sweep runs sw. It looks again for deliveries that are in another chunk meanwhile, because they were
// attempted, or upkeep has moved them to another partition.
func (s *Store) sweep(ctx context.Context, x *some, sw *sweep) error {
	type row struct{ ID, Size int64 }
	for moved := true; moved; {
		moved = false
		rows, err := collect(ctx, s.db.pool, pgx.RowToStructByPos[row], s.db.in(withChunkSQL), x.names, x.seqs)
		for err == nil && len(rows) > 0 {
			var ids []int64
			for size := int64(0); len(rows) > 0 && size <= maxBatch; rows = rows[1:] {
				ids = append(ids, rows[0].ID)
				size += rows[0].Size
			}
			var gone bool
			gone, err = sw.worthwhile(ctx, ids)
			moved = moved || gone
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withSQL finds the rows of a table that have deliveries by their destinations $1 and numbers $2. Rows whose
// numbers are consecutive are found by each number. Of other rows there are fewer, and they overlap: all of
// those are read that may have one of the numbers.
const (
	wantedSQL   = `WITH wanted AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::bigint[]) w (destination, seq)) `
	eachWanted  = `wanted w WHERE c.destination = w.destination AND c.numbers IS NULL AND c.last >= w.seq AND c.last < w.seq / 256 * 256 + 256 AND c.first <= w.seq`
	amongWanted = `(SELECT destination, min(seq) AS low, max(seq) AS high, array_agg(seq) AS seqs FROM wanted GROUP BY destination) w
WHERE c.destination = w.destination AND c.numbers IS NOT NULL AND c.last >= w.low AND c.last < w.high + 4194304 AND c.first <= w.high
	AND EXISTS (SELECT FROM unnest(w.seqs) seq WHERE seq BETWEEN c.first AND c.last AND seq - c.first = ANY (c.numbers))`
	withChunkSQL = wantedSQL + `SELECT c.id, octet_length(c.items)::bigint FROM S.chunk c, ` + eachWanted +
		` UNION SELECT c.id, octet_length(c.items)::bigint FROM S.chunk c, ` + amongWanted + ` ORDER BY 1`
	withKeptSQL = wantedSQL + `SELECT c.last FROM S.kept c, ` + eachWanted + ` UNION SELECT c.last FROM S.kept c, ` + amongWanted + ` ORDER BY 1`
	discardSQL  = `DELETE FROM S.dead d USING unnest($1::bytea[], $2::bigint[]) w (destination, seq) WHERE d.destination = w.destination AND d.seq = w.seq RETURNING d.seq`
)

// scanDead reads the number and the record of a dead letter. If the record is damaged, the dead letter has
// nothing but its Seq.
func (s *Store) scanDead(r pgx.CollectableRow) (d store.Record, err error) {
	var seq int64
	var record []byte
	if err = r.Scan(&seq, &record); err != nil {
		return d, err
	}
	if damage := d.UnmarshalBinary(record); damage != nil {
		s.db.config.Logger.Error("pgqueue: ignoring a dead letter that is damaged; discard it by its number", "seq", seq, "error", damage)
		d = store.Record{}
	}
	d.State, d.Seq = store.StateDead, uint64(seq)
	return d, nil
}

// revive makes the dead letters of x fresh deliveries. While another transaction has a lock, such as
// the stripe of a Key, revive gives back its own locks every lockWait and tries again, for about
// writeTimeout.
func (s *Store) revive(ctx context.Context, x *some) (n int, err error) {
	for began := time.Now(); ; {
		n, err = s.reviveOnce(ctx, x)
		if !hasCode(err, lockNotAvailable, deadlockDetected) || time.Since(began) >= writeTimeout {
			return n, err
		}
	}
}

func (s *Store) reviveOnce(ctx context.Context, x *some) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var names []string
	err = pgx.BeginFunc(ctx, s.db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setLockWait, lockWait); err != nil {
			return err
		}
		letters, err := collect(ctx, tx, s.scanDead, s.db.in(deadSQL+` ORDER BY seq FOR UPDATE`), x.seqs)
		if err != nil {
			return err
		}
		var all []*entry
		var seqs []int64
		now := s.Now()
		slices.SortFunc(letters, func(a, b store.Record) int { return cmp.Compare(x.refs[a.Ref()], x.refs[b.Ref()]) })
		for _, r := range letters {
			if x.refs[r.Ref()] == 0 { // it is damaged, or another destination's
				continue
			}
			d := r.Delivery
			seqs, names = append(seqs, int64(d.Seq)), append(names, d.Destination)
			d.Seq, d.Accepted, d.Due, d.Expires, d.Tries, d.Closed = 0, now, now, time.Time{}, 0, nil
			e, err := newEntry(&store.Put{Delivery: d, NoDedup: true})
			if err != nil {
				return err
			}
			all = append(all, e)
		}
		if len(all) == 0 {
			return nil
		}
		node := s.memory.nodeNow()
		b := newBatch()
		b.Queue(s.db.in(`DELETE FROM S.dead WHERE seq = ANY ($1::bigint[])`), seqs)
		s.db.queuePut(b, draftsOf(all), &node)
		return tx.SendBatch(ctx, b).Close()
	})
	if len(names) > 0 {
		s.memory.hear(names...) // also after an error: the answer may be lost
	}
	if err != nil {
		return 0, err
	}
	return len(names), nil
}

// Count implements store.Inspector. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Count(ctx context.Context) (c store.Counts, err error) {
	for d, err := range s.CountByDestination(ctx) {
		if err != nil {
			return store.Counts{}, err
		}
		c.Waiting += d.Waiting
		c.Claimed += d.Claimed
		c.Behind += d.Behind
		if !d.Oldest.IsZero() && (c.Oldest.IsZero() || d.Oldest.Before(c.Oldest)) {
			c.Oldest = d.Oldest
		}
	}
	err = s.db.call(ctx, "counting", func() error {
		var died int64
		err := s.db.pool.QueryRow(ctx, s.db.in(countSQL), int64(never)).Scan(&c.Dead, &c.DeadBytes, &died, &c.Delivered, &c.DeliveredBytes)
		c.OldestDead = timeOf(died)
		return err
	})
	return c, err
}

const countSQL = `SELECT d.*, k.* FROM (
	SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(min(died), $1) FROM S.dead
) d, (
	SELECT coalesce(sum(coalesce(r.n, k.n)), 0)::bigint, coalesce(sum(coalesce(r.size, k.size)), 0)::bigint
	FROM S.ring r LEFT JOIN LATERAL (SELECT sum(n) AS n, sum(size) AS size FROM S.kept WHERE part = r.part) k ON r.n IS NULL
) k`

// CountByDestination implements store.Inspector. Deliveries in chunks of other nodes count as
// claimed.
func (s *Store) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	return store.Page(func() ([]store.DestinationCounts, error) {
		args, where := []any{s.memory.nodeNow(), int64(never)}, ""
		if len(only) > 0 {
			args, where = append(args, bytesOf(only)), "WHERE destination = ANY($3)"
		}
		counts, err := listed(ctx, s.db, "counting", func(r pgx.CollectableRow) (c store.DestinationCounts, err error) {
			var first int64
			err = r.Scan((*text)(&c.Destination), &c.Waiting, &c.Claimed, &c.Behind, &c.Bytes, &first)
			c.Oldest = timeOf(first)
			return c, err
		}, `SELECT destination, sum(waiting), coalesce(sum(waiting) FILTER (WHERE node > 0 AND node <> $1), 0),
	coalesce(sum(waiting) FILTER (WHERE node < 0), 0),
	coalesce(sum(octet_length(items)::float8 * waiting / coalesce(length(done), waiting)) FILTER (WHERE node <= 0 OR node = $1), 0)::bigint, coalesce(min(due) FILTER (WHERE node = 0), $2) FROM S.chunk `+where+` GROUP BY destination`, args...)
		if err != nil {
			return nil, err
		}
		s.memory.mu.Lock()
		defer s.memory.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.memory.claims {
			claimed[it.chunk.queue.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, key := range queuesOf(c.Destination) {
				if it := s.memory.queues[key].first(); it != nil && (c.Oldest.IsZero() || it.d.Due.Before(c.Oldest)) {
					c.Oldest = it.d.Due
				}
			}
		}
		return counts, nil
	})
}
