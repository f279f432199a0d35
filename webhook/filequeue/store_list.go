package filequeue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/hookferry/analytics/webhook/store"
)

// page is how many deliveries of a list are read at once.
const page = 256

// read returns the deliveries of the entries that get returns. It leaves out those that were removed
// meanwhile or cannot be read. If the disk can read none of them, it returns an error.
func read(ctx context.Context, s *Store, get func(x *index) []entry) (all []store.Ended, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	s.index.mu.Lock()
	entries := get(s.index)
	pins := make([]pinned, len(entries))
	for i, e := range entries {
		pins[i] = s.index.segs.pin(e, i)
	}
	s.index.mu.Unlock()
	all = make([]store.Ended, len(entries))
	unread := 0
	s.reader.load(pins, func(p *pinned, _ *record, d *store.Ended, lerr error) {
		at := p.entry.rank()
		switch {
		case errors.Is(lerr, errDamaged): // Fetch finds a waiting delivery that cannot be read
			s.lose(d, at.seq, lerr, leaving(queueID{kind: kindDead}, at), leaving(queueID{kind: kindDelivered}, at))
		case lerr != nil:
			s.reader.complain("a delivery, or a dead letter, cannot be read now, and is missing from lists", p.entry.seq, d, lerr)
			unread, err = unread+1, fmt.Errorf("filequeue: %w", lerr)
		default:
			all[p.i], all[p.i].Key = *d, at.key()
		}
	})
	if err != nil && unread == len(entries) { // the whole disk may be failing
		return nil, err
	}
	return slices.DeleteFunc(all, func(d store.Ended) bool { return d.Key == "" }), nil
}

// pages yields the deliveries behind a rank. It reads them page by page: the function get returns
// the entries of the first page behind its argument from.
func (s *Store) pages(ctx context.Context, from rank, get func(x *index, from rank) []entry) iter.Seq2[store.Ended, error] {
	return store.Pages(from.key(), func(after string) (all []store.Ended, next string, err error) {
		all, err = read(ctx, s, func(x *index) []entry {
			entries := get(x, rankOf(after))
			if n := len(entries); n > 0 {
				next = entries[n-1].rank().key()
			}
			return entries
		})
		return all, next, err
	})
}

// list yields the dead letters or, with kindDelivered as k, the history.
func list(ctx context.Context, s *Store, k kind, filter *store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	first, last := firstRank, lastRank
	if !filter.From.IsZero() {
		first = rank{filter.From.UnixMicro() - 1, lastRank.seq - 1}
	}
	if !filter.To.IsZero() {
		last = rank{due: filter.To.UnixMicro()}
	}
	begin, next := first, (*queue).after
	if filter.NewestFirst {
		begin, next = last, (*queue).before
	}
	if p := rankOf(after); p != firstRank && begin.before(p) != filter.NewestFirst {
		begin = p
	}
	return func(yield func(store.Ended, error) bool) {
		for d, err := range s.pages(ctx, begin, func(x *index, from rank) []entry { return next(x.queue(queueID{kind: k}), from, page) }) {
			if at := rankOf(d.Key); err == nil && (!first.before(at) || !at.before(last)) {
				return
			}
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// Dead implements store.Inspector.
func (s *Store) Dead(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return list(ctx, s, kindDead, &filter, after)
}

// Delivered implements store.History.
func (s *Store) Delivered(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return list(ctx, s, kindDelivered, &filter, after)
}

// Keeps implements store.History.
func (s *Store) Keeps() bool { return s.config.HistoryAge != 0 }

// DeadLetter implements store.Inspector.
func (s *Store) DeadLetter(ctx context.Context, key string) (store.Ended, error) {
	all, err := read(ctx, s, func(x *index) []entry { return x.dead.named(key) })
	switch {
	case err != nil:
		return store.Ended{}, err
	case len(all) == 0:
		return store.Ended{}, store.ErrNoDeadLetter
	}
	return all[0], nil
}

// Waiting implements store.Inspector. The index does not have the IDs of deliveries. So to find where
// to begin, Waiting reads all deliveries up to the one with the ID after.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	get := func(x *index, from rank) []entry { return x.waitingAfter(destination, from) }
	return func(yield func(store.Delivery, error) bool) {
		from := firstRank
		if after != "" {
			for d, err := range s.pages(ctx, firstRank, get) {
				if err != nil {
					yield(store.Delivery{}, err)
					return
				}
				if d.ID == after {
					from = rankOf(d.Key)
					break
				}
			}
		}
		for d, err := range s.pages(ctx, from, get) {
			if !yield(d.Delivery, err) {
				return
			}
		}
	}
}
