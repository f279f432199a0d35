package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Count implements store.Inspector. It asks the owners of all partitions. If another node puts a
// delivery, the owner counts it as soon as it has read the delivery from the stream, usually within
// milliseconds. The number of dead letters may be as old.
func (s *Store) Count(ctx context.Context) (all store.Counts, err error) {
	all.DeadBytes = -1 // unknown: Count would have to read all dead letters
	for c, err := range s.CountByDestination(ctx) {
		if err != nil {
			return store.Counts{}, err
		}
		all.Waiting, all.Claimed = all.Waiting+c.Waiting, all.Claimed+c.Claimed
		if !c.Oldest.IsZero() && (all.Oldest.IsZero() || c.Oldest.Before(all.Oldest)) {
			all.Oldest = c.Oldest
		}
	}
	dead, err := s.conn.page(ctx, request{Batch: 1, Seq: 1, Next: s.conn.config.deadFilter("*", store.EndedFilter{})}, 0)
	if err != nil {
		return store.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	for _, m := range dead { // the first one says how many follow
		all.Dead, _ = strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
		all.Dead++
	}
	return all, nil
}

// CountByDestination implements store.Inspector. It asks the owners of all partitions.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[store.DestinationCounts, error] {
	return func(yield func(store.DestinationCounts, error) bool) {
		for n := range s.conn.config.Partitions {
			for c, err := range store.Pages("", func(from string) ([]store.DestinationCounts, string, error) {
				a, err := s.asker.ask(ctx, question{Kind: askCounts, Partition: n, From: from})
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

// Waiting implements store.Inspector. It may leave out deliveries that are settled or put back while
// it reads. It ends with an error if another node takes over the destination after the first page.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	filter := store.WaitingFilter{Destination: destination, ID: after}
	return store.Pages("", func(from string) ([]store.Delivery, string, error) {
		a, err := s.asker.ask(ctx, question{Kind: askWaiting, Partition: s.conn.config.partition(destination), WaitingFilter: filter, From: from})
		ds := make([]store.Delivery, len(a.Waiting))
		for i := 0; i < len(ds) && err == nil; i++ {
			err = ds[i].UnmarshalBinary(a.Waiting[i])
		}
		if err != nil {
			return nil, "", fmt.Errorf("natsqueue: listing waiting deliveries: %w", err)
		}
		return ds, a.Next, nil
	})
}

// Change implements store.Inspector. It asks the owner of the destination several times if many
// deliveries wait.
func (s *Store) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.asker.changeIn(ctx, s.conn.config.partition(filter.Destination), filter, to)
}

// Erase implements store.Inspector. When it returns, the bytes of erased deliveries may still be in
// the stream. The package comment says when the server erases them.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	for partition := range s.conn.config.Partitions {
		n, passed, err := s.asker.changeIn(ctx, partition, store.WaitingFilter{User: user}, store.Discarded)
		erased, claimed = erased+n, claimed+passed
		if err != nil {
			return erased, claimed, err
		}
	}
	var keys []string
	for d, err := range s.Dead(ctx, store.EndedFilter{User: user}, "") {
		if err != nil {
			return erased, claimed, err
		}
		keys = append(keys, d.Key)
	}
	n, err := s.Discard(ctx, keys...)
	return erased + n, claimed, err
}

// DeadLetter implements store.Inspector.
func (s *Store) DeadLetter(ctx context.Context, key string) (d store.Ended, err error) {
	found, err := s.letters.read(ctx, key)
	if err == nil && len(found) == 0 {
		err = store.ErrNoDeadLetter
	}
	if err != nil {
		return d, err
	}
	return found[0], nil
}

// Dead implements store.Inspector. It keeps the keys of one bucket at a time in memory.
func (s *Store) Dead(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return func(yield func(store.Ended, error) bool) {
		buckets, err := s.letters.buckets(ctx, filter, after)
		for i := 0; i < len(buckets) && err == nil; i++ {
			var keys []string
			keys, err = s.letters.bucket(ctx, buckets[i], filter, after)
			for some := range slices.Chunk(keys, pageLen) {
				var found []store.Ended
				if found, err = s.letters.read(ctx, some...); err != nil {
					break
				}
				for _, d := range found {
					if filter.Match(&d) && !yield(d, nil) {
						return
					}
				}
			}
		}
		if err != nil {
			yield(store.Ended{}, err)
		}
	}
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.letters.exhume(ctx, keys, func(store.Ended) error { return nil })
}

// Revive implements store.Inspector. It stores a delivery before it deletes the dead letter. A crash
// between the two leaves both.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.letters.exhume(ctx, keys, func(d store.Ended) error {
		key := d.Key
		d.Due, d.Expires, d.Tries, d.Closed = now(), time.Time{}, 0, nil
		p, err := s.putter.newPut(store.Put{Delivery: d.Delivery, NoDedup: true})
		if errors.Is(err, store.ErrTooLarge) { // there is no room for the attempts
			d.Attempts = nil
			p, err = s.putter.newPut(store.Put{Delivery: d.Delivery, NoDedup: true})
		}
		if err != nil {
			return err
		}
		p.once = "revived " + key
		return s.putter.put(ctx, p)
	})
}
