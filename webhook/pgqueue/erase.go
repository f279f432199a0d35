package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// sweepPage is how many chunks are read in one go.
const sweepPage = 16

// An eraser changes what waits, and erases what is stored of a user.
type eraser struct{ *settler }

// Erase implements webhook.Store. It reads every chunk in which the name of the user
// occurs. What is in chunks of other nodes is claimed.
func (s *eraser) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	dead := 0
	erased, claimed, err = s.sweep(ctx, "erasing", func() error {
		tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		dead = int(tag.RowsAffected())
		return err
	}, sweep{where: `position($3::bytea IN items) > 0`, text: user, match: func(d *webhook.Delivery) bool { return d.User == user }})
	return erased + dead, claimed, err
}

// Change implements webhook.Store. It reads every chunk of the destination.
func (s *eraser) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	w := sweep{where: `destination = $3`, text: filter.Destination, match: filter.Match}
	if to == webhook.DueNow {
		w.due = s.Now()
	}
	return s.sweep(ctx, "changing what waits", func() error { return nil }, w)
}

// A sweep goes through chunks, and removes deliveries that are not claimed or has them due.
type sweep struct {
	where string // selects chunks by text, $3
	text  string
	match func(*webhook.Delivery) bool
	due   time.Time // zero: they are removed
}

// sweep calls before and then goes through the chunks. It returns how many deliveries it has
// changed, and how many it passed over because they are claimed.
func (s *eraser) sweep(ctx context.Context, what string, before func() error, w sweep) (changed, claimed int, err error) {
	err = s.call(ctx, what, func() error {
		// Meanwhile this node claims nothing but what it puts, and settles nothing.
		for _, t := range []turn{s.fetching, s.settling} {
			if err := t.take(ctx); err != nil {
				return err
			}
			defer t.give()
		}
		defer s.heardAny()
		err := s.verify(ctx)
		if err == nil {
			err = before()
		}
		for after, more := (chunkKey{}), true; more && err == nil; {
			var n, passed int
			n, passed, more, err = s.sweepPage(ctx, &w, &after)
			changed, claimed = changed+n, claimed+passed
		}
		return err
	})
	return changed, claimed, err
}

// sweepPage changes n deliveries of the next chunks, and passes over those that are claimed. It
// reports whether there may be more chunks.
func (s *eraser) sweepPage(ctx context.Context, w *sweep, after *chunkKey) (n, passed int, more bool, err error) {
	var mine, free []*progress
	var again []*fresh
	var drafts []*draft
	node := s.nodeNow()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := collect(ctx, tx, func(rs pgx.CollectableRow) (r row, err error) {
			err = rs.Scan(&r.key.shelf, &r.key.id, &r.node, &r.held, &r.done, &r.items)
			return r, err
		}, s.in(`SELECT shelf, id, node, held, coalesce(done::text, ''), items FROM S.chunk
WHERE (shelf, id) > ($1, $2) AND `+w.where+` ORDER BY shelf, id LIMIT $4 FOR UPDATE`), after.shelf, after.id, []byte(w.text), sweepPage)
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
				d, err := it.delivery()
				if err != nil || !w.match(&d) || it.state == settled {
					continue
				}
				if r.node != 0 && (s.chunks[r.key] != c || it.state == inHand) {
					passed++
					continue
				}
				if !w.due.IsZero() {
					if !d.Hasten(w.due) {
						continue
					}
					f, _, err := newFresh(&d, false, nil)
					if err != nil {
						continue // it was put once, so there is no such
					}
					again = append(again, &f)
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
		more = len(rows) == sweepPage
		var b pgx.Batch
		s.queueProgress(&b, node, mine)
		s.queueProgress(&b, 0, free)
		s.queueRelease(&b, 0, left)
		drafts = draftsOf(again, time.Now())
		s.queuePut(&b, s.putArgs(0, drafts, false, false, 0), new(stored))
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
		return 0, 0, false, err
	}
	for _, d := range drafts {
		s.report(d.line, d.due, len(d.items))
	}
	return n, passed, more, nil
}
