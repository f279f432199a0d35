package pgqueue

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Fetch implements store.Store. It asks the database only if memory does not have enough
// deliveries. One query then serves many of wants.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	f := &fetch{claimer: s.claimer, wants: wants, maxBytes: maxBytes, taken: make([]int, len(wants))}
	err := s.db.call(ctx, "fetching", func() error {
		if err := s.claimer.fetching.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.claimer.fetching.Release(1)
		s.claimer.fetched.Store(time.Now().UnixMicro())
		if err := s.claimer.reconcile(ctx); err != nil {
			return err
		}
		err := f.run(ctx)
		dst = f.finish(dst, err)
		s.claimer.trim(ctx)
		return err
	})
	return dst, err
}

// Heads implements store.Store. It may yield destinations that this node itself has changed.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return store.Page(func() (heads []store.Head, err error) {
		began := time.Now()
		names, asked := s.memory.takeNews(all)
		var only [][]byte // nil for all
		if names != nil {
			only = bytesOf(slices.Collect(maps.Keys(names)))
		}
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		found, err := listed(ctx, s.db, "looking for due deliveries", scanHead, headsSQL, only)
		if err != nil {
			s.memory.hearAny() // the next call yields what this one did not
			return nil, err
		}
		return s.memory.learnHeads(found, names, asked, time.Since(began)), nil
	})
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (n int, err error) {
	for i := range ss {
		ss[i].Released = time.Time{}
	}
	err = s.db.call(ctx, "settling", func() (err error) {
		if err := s.claimer.settling.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.claimer.settling.Release(1)
		n, err = s.claimer.settleAll(ctx, ss, s.Keeps())
		s.claimer.trim(ctx)
		return err
	})
	return n, err
}

// Release implements store.Shared. A chunk with claimed deliveries is given back once they
// are settled.
func (s *Store) Release(ctx context.Context) error {
	return s.db.call(ctx, "giving back unclaimed deliveries", func() error {
		s.claimer.releasing.Store(true)
		return s.claimer.release(ctx, 0)
	})
}

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.memory.changed }
