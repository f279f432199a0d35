package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Count implements store.Inspector. It asks the owners of all partitions. If another node puts a
// delivery, the owner counts it as soon as it has read the delivery from the stream, usually within
// milliseconds.
func (s *Store) Count(ctx context.Context) (all store.Counts, err error) {
	for c, err := range s.CountByDestination(ctx) {
		if err != nil {
			return store.Counts{}, err
		}
		all.Waiting, all.Claimed, all.Behind = all.Waiting+c.Waiting, all.Claimed+c.Claimed, all.Behind+c.Behind
		if !c.Oldest.IsZero() && (all.Oldest.IsZero() || c.Oldest.Before(all.Oldest)) {
			all.Oldest = c.Oldest
		}
	}
	for n := range s.conn.config.Partitions {
		a, err := s.asker.ask(ctx, question{Kind: askDead, Partition: n})
		if err != nil {
			return store.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
		}
		all.Dead, all.DeadBytes = all.Dead+a.Dead, all.DeadBytes+a.DeadBytes
		if !a.OldestDead.IsZero() && (all.OldestDead.IsZero() || a.OldestDead.Before(all.OldestDead)) {
			all.OldestDead = a.OldestDead
		}
	}
	return all, nil
}

// CountByDestination implements store.Inspector. It asks the owners of the partitions, all of them
// unless only says which.
func (s *Store) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	return func(yield func(store.DestinationCounts, error) bool) {
		in := make(map[int][]string) // only, by partition
		for _, destination := range only {
			n := s.conn.config.partition(destination)
			in[n] = append(in[n], destination)
		}
		for n := range s.conn.config.Partitions {
			if len(only) > 0 && in[n] == nil {
				continue
			}
			for c, err := range store.Pages("", func(from string) ([]store.DestinationCounts, string, error) {
				a, err := s.asker.ask(ctx, question{Kind: askCounts, Partition: n, From: from, Only: in[n]})
				return a.Counts, a.Next, err
			}) {
				if err != nil {
					err = fmt.Errorf("natsqueue: counting: %w", err)
				}
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// List implements store.Inspector. It asks the owners of the partitions. The package comment says
// what a page costs.
func (s *Store) List(ctx context.Context, q store.Query, after uint64, max int) ([]store.Record, uint64, error) {
	l := store.Listing{Query: &q, After: after, Max: max}
	more, err := call(ctx, s.life, "listing deliveries", func() (bool, error) { return s.list(ctx, &l) })
	if err != nil {
		return nil, 0, err
	}
	if !more {
		l.Next = 0
	}
	return l.Page, l.Next, nil
}

// list makes the page l, and reports whether more may follow.
func (s *Store) list(ctx context.Context, l *store.Listing) (bool, error) {
	if err := l.Seek(func(after uint64) (uint64, time.Time, error) { return s.first(ctx, l.Query, after) }); err != nil {
		return false, err
	}
	m := s.asker.merge(l.Query, l.After, l.Max)
	for n := min(l.Max, pageLen); ; n = pageLen {
		refs, err := m.next(ctx, n)
		if err != nil || len(refs) == 0 {
			return false, err
		}
		found, err := s.asker.read(ctx, refs...)
		if err != nil {
			return false, err
		}
		for _, ref := range refs {
			if r, ok := found[ref]; ok && !l.Add(&r) {
				return l.Next != 0, nil
			}
		}
	}
}

// first returns the number of the first delivery behind the number after, of the destinations of q and
// in any state, and when it was accepted. If there is none, the number is 0.
func (s *Store) first(ctx context.Context, q *store.Query, after uint64) (uint64, time.Time, error) {
	m := s.asker.merge(&store.Query{Destinations: q.Destinations}, after, 1)
	for {
		refs, err := m.next(ctx, 1)
		if err != nil || len(refs) == 0 {
			return 0, time.Time{}, err
		}
		found, err := s.asker.read(ctx, refs...)
		if r, ok := found[refs[0]]; ok || err != nil {
			return r.Seq, r.Accepted, err
		}
	}
}

// Get implements store.Inspector.
func (s *Store) Get(ctx context.Context, ref store.Ref) (store.Record, error) {
	return call(ctx, s.life, "reading a delivery", func() (store.Record, error) {
		found, err := s.asker.read(ctx, ref)
		if _, ok := found[ref]; err == nil && !ok {
			err = store.ErrNoDelivery
		}
		return found[ref], err
	})
}

// Hasten implements store.Inspector.
func (s *Store) Hasten(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.change(ctx, "hastening deliveries", changeHasten, refs)
}

// Revive implements store.Inspector. It stores a dead letter as a fresh delivery before it deletes the
// dead letter. A crash between the two leaves both.
func (s *Store) Revive(ctx context.Context, refs ...store.Ref) (n int, err error) {
	n, _, err = s.change(ctx, "reviving dead letters", changeRevive, refs)
	return n, err
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.change(ctx, "discarding deliveries", changeDiscard, refs)
}

func (s *Store) change(ctx context.Context, what, change string, refs []store.Ref) (n, claimed int, err error) {
	seen := make(map[store.Ref]bool, len(refs))
	refs = slices.DeleteFunc(slices.Clone(refs), func(r store.Ref) bool {
		twice := seen[r]
		seen[r] = true
		return twice
	})
	sum, err := call(ctx, s.life, what, func() (answer, error) {
		return s.asker.changeAll(ctx, question{Kind: askChange, Change: change}, refs)
	})
	return sum.Changed, sum.Claimed, err
}

// Erase implements store.Inspector. When it returns, the bytes of erased deliveries may still be in
// the stream. The package comment says when the server erases them.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	_, err = call(ctx, s.life, "erasing deliveries", func() (struct{}, error) {
		for {
			sum, err := s.eraseOnce(ctx, user)
			erased, claimed = erased+sum.Changed, sum.Claimed
			if err != nil || sum.Missed == 0 {
				return struct{}{}, err
			}
			if err = sleep(ctx, behind); err != nil {
				return struct{}{}, err
			}
		}
	})
	return erased, claimed, err
}

// eraseOnce erases what is in the list of the user's deliveries. A dead letter that is revived meanwhile
// is a new delivery at the end of that list, maybe behind where this list has ended. Then the dead letter
// counts as Missed, and the caller has to erase once more.
func (s *Store) eraseOnce(ctx context.Context, user string) (sum answer, err error) {
	q := question{Kind: askChange, Change: changeErase, Query: store.Query{User: user, Oldest: true}}
	m := s.asker.merge(&q.Query, 0, pageLen)
	for {
		refs, err := m.next(ctx, pageLen)
		if err != nil || len(refs) == 0 {
			return sum, err
		}
		a, err := s.asker.changeAll(ctx, q, refs)
		sum.add(a)
		if err != nil {
			return sum, err
		}
	}
}
