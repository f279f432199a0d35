package pgqueue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// erasePage is how many chunks are read in one go.
const erasePage = 16

// An eraser erases what is stored of a user.
type eraser struct{ *settler }

// Erase implements webhook.Store. It reads every chunk in which the name of the user
// occurs. What is in chunks of other nodes is claimed.
func (s *eraser) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	err = s.call(ctx, "erasing", func() error {
		// Meanwhile this node claims nothing but what it puts, and settles nothing.
		for _, t := range []turn{s.fetching, s.settling} {
			if err := t.take(ctx); err != nil {
				return err
			}
			defer t.give()
		}
		defer s.heardAny()
		if err := s.verify(ctx); err != nil {
			return err
		}
		tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		erased = int(tag.RowsAffected())
		for after, more := (chunkKey{}), true; more && err == nil; {
			var n, passed int
			n, passed, more, err = s.erasePage(ctx, user, &after)
			erased, claimed = erased+n, claimed+passed
		}
		return err
	})
	return erased, claimed, err
}

// erasePage erases n deliveries of the next chunks, and passes over those that are claimed. It
// reports whether there may be more chunks.
func (s *eraser) erasePage(ctx context.Context, user string, after *chunkKey) (n, passed int, more bool, err error) {
	var mine, free []*progress
	node := s.nodeNow()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := collect(ctx, tx, func(rs pgx.CollectableRow) (r row, err error) {
			err = rs.Scan(&r.key.shelf, &r.key.id, &r.node, &r.held, &r.done, &r.items)
			return r, err
		}, s.in(`SELECT shelf, id, node, held, coalesce(done::text, ''), items FROM S.chunk
WHERE (shelf, id) > ($1, $2) AND position($3::bytea IN items) > 0 ORDER BY shelf, id LIMIT $4 FOR UPDATE`), after.shelf, after.id, []byte(user), erasePage)
		if err != nil {
			return err
		}
		var left []*chunk
		s.mu.Lock()
		for _, r := range rows {
			*after = r.key
			c, p := s.chunks[r.key], (*progress)(nil)
			if r.node != node || c == nil {
				c = &chunk{key: r.key, held: r.held, done: r.done}
				c.items, c.n, _ = parse(r.items, r.done) // what cannot be read stays
			}
			p = &progress{chunk: c}
			for i := range c.items {
				it := &c.items[i]
				if d, err := it.delivery(); err != nil || d.User != user || it.state == settled {
					continue
				}
				if r.node != 0 && (s.chunks[r.key] != c || it.state == inHand) {
					passed++
					continue
				}
				p.set = append(p.set, it.index)
			}
			n += len(p.set)
			switch {
			case len(p.set) == 0:
			case r.node != 0:
				mine = append(mine, p)
			default:
				free = append(free, p)
				for _, i := range p.set {
					c.settle(i)
				}
				if len(p.set) < c.held {
					left = append(left, c)
				}
			}
		}
		s.mu.Unlock()
		more = len(rows) == erasePage
		var b pgx.Batch
		s.queueProgress(&b, node, mine)
		s.queueProgress(&b, 0, free)
		s.queueRelease(&b, 0, left)
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range mine {
		if err != nil {
			s.unsure[p.chunk] = true
			continue
		}
		for _, i := range p.set {
			p.chunk.settle(i)
		}
		s.lineOf(p.chunk.line).tidy()
		if p.chunk.held, p.chunk.done = p.held, p.done; p.held == 0 {
			s.forget(p.chunk)
		}
	}
	if err != nil {
		n, passed = 0, 0
	}
	return n, passed, more, err
}
