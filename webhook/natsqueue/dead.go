package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// deadKey returns the key of a dead letter: its time of death in microseconds, then its sequence.
// Keys sort by the time of death.
func deadKey(died time.Time, seq uint64) string {
	return fmt.Sprintf("%016x%016x", uint64(died.UnixMicro())^1<<63, seq)
}

// parseKey is the inverse of deadKey. It rejects keys that deadKey does not return.
func parseKey(key string) (died time.Time, seq uint64, ok bool) {
	var micros uint64
	fmt.Sscanf(key, "%16x%16x", &micros, &seq)
	died = time.UnixMicro(int64(micros ^ 1<<63))
	return died, seq, deadKey(died, seq) == key
}

// letterOf decodes the dead letter in a message, and gives it its key.
func letterOf(m *jetstream.RawStreamMsg) (d store.Ended, err error) {
	err = d.UnmarshalBinary(m.Data)
	d.Key = deadKey(d.At, m.Sequence)
	return d, err
}

// deadBucket is the time span of a bucket of dead letters. Dead sorts one bucket at a time in
// memory.
const deadBucket = time.Hour

// deadSubject returns the subject of a dead letter: its bucket, its destination, and a part of the
// hash of its user, each as one token.
func (c *Config) deadSubject(d *store.Ended) string {
	return c.Stream + ".dead." + decimal(bucketOf(d.At)) + "." + token(d.Destination) + "." + deadUser(d.User)
}

// deadFilter returns a pattern of the subjects in a bucket, or in all buckets if bucket is "*". It
// matches the dead letters that f selects, and may match others.
func (c *Config) deadFilter(bucket string, f store.EndedFilter) string {
	destination, user := "*", "*"
	if f.Destination != "" {
		destination = token(f.Destination)
	}
	if f.User != "" {
		user = deadUser(f.User)
	}
	return c.Stream + ".dead." + bucket + "." + destination + "." + user
}

func deadUser(user string) string { return decimal(uint64(hash(user) % 64)) }

// bucketOf returns the bucket of a time. Times before 1970 are in the first bucket.
func bucketOf(t time.Time) uint64 { return uint64(max(0, t.UnixMicro()/deadBucket.Microseconds())) }

// DeadLetter implements store.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (d store.Ended, err error) {
	found, err := s.letters(ctx, key)
	if err == nil && len(found) == 0 {
		err = store.ErrNoDeadLetter
	}
	if err != nil {
		return d, err
	}
	return found[0], nil
}

// Dead implements store.Keeper. It keeps the keys of one bucket at a time in memory.
func (s *Store) Dead(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return func(yield func(store.Ended, error) bool) {
		buckets, err := s.buckets(ctx, filter, after)
		for i := 0; i < len(buckets) && err == nil; i++ {
			var keys []string
			keys, err = s.bucket(ctx, buckets[i], filter, after)
			for some := range slices.Chunk(keys, pageLen) {
				var found []store.Ended
				if found, err = s.letters(ctx, some...); err != nil {
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

// buckets returns, in the order of f, the buckets that may have dead letters which f selects. They
// begin with that of the dead letter whose key is the argument after, unless that is empty.
func (s *conn) buckets(ctx context.Context, f store.EndedFilter, after string) ([]uint64, error) {
	return call(ctx, s, "listing dead letters", func() (all []uint64, _ error) {
		died, _, ok := parseKey(after)
		if after != "" && !ok {
			return nil, fmt.Errorf("%q is not the key of a dead letter", after)
		}
		info, err := s.info(ctx, s.config.deadFilter("*", f))
		if err != nil {
			return nil, err
		}
		for subject := range info.State.Subjects {
			text, _, _ := strings.Cut(strings.TrimPrefix(subject, s.config.Stream+".dead."), ".")
			n, err := strconv.ParseUint(text, 10, 64)
			if err == nil && (after == "" || n == bucketOf(died) || n > bucketOf(died) != f.NewestFirst) &&
				(f.From.IsZero() || n >= bucketOf(f.From)) && (f.To.IsZero() || n <= bucketOf(f.To)) {
				all = append(all, n)
			}
		}
		slices.Sort(all)
		if all = slices.Compact(all); f.NewestFirst {
			slices.Reverse(all)
		}
		return all, nil
	})
}

// bucket returns the keys of the dead letters in the bucket n, in the order of f. If the argument
// after is not empty, it is a key, and bucket returns only the keys that follow this key.
func (s *conn) bucket(ctx context.Context, n uint64, f store.EndedFilter, after string) ([]string, error) {
	return call(ctx, s, "listing dead letters", func() (keys []string, _ error) {
		for m, err := range s.list(ctx, s.config.deadFilter(decimal(n), f)) {
			if err != nil {
				return nil, err
			}
			d, err := letterOf(m)
			if err != nil {
				s.config.Logger.Error("natsqueue: ignoring a dead letter that cannot be read; it stays in the stream", "sequence", m.Sequence, "error", err)
			} else if after == "" || d.Key != after && d.Key > after != f.NewestFirst {
				keys = append(keys, d.Key)
			}
		}
		if slices.Sort(keys); f.NewestFirst {
			slices.Reverse(keys)
		}
		return keys, nil
	})
}

// letters reads the dead letters with the given keys from the stream. It leaves out dead letters
// that no longer exist.
func (s *conn) letters(ctx context.Context, keys ...string) ([]store.Ended, error) {
	return call(ctx, s, "reading dead letters", func() (found []store.Ended, _ error) {
		var seqs []uint64
		for _, key := range keys {
			if _, seq, ok := parseKey(key); ok && seq > 0 {
				seqs = append(seqs, seq)
			}
		}
		messages, err := s.messages(ctx, seqs...)
		for _, m := range messages {
			if m == nil || !strings.HasPrefix(m.Subject, s.config.Stream+".dead.") {
				continue
			}
			if d, err := letterOf(m); err == nil && slices.Contains(keys, d.Key) {
				found = append(found, d)
			}
		}
		return found, err
	})
}

// Discard implements store.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, keys, func(store.Ended) error { return nil })
}

// Revive implements store.Keeper. It stores a delivery before it deletes the dead letter. A crash
// between the two leaves both.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, keys, func(d store.Ended) error {
		key := d.Key
		d.Due, d.Expires, d.Tries, d.Closed = now(), time.Time{}, 0, nil
		p, err := s.newPut(store.Put{Delivery: d.Delivery, NoDedup: true})
		if errors.Is(err, store.ErrTooLarge) { // there is no room for the attempts
			d.Attempts = nil
			p, err = s.newPut(store.Put{Delivery: d.Delivery, NoDedup: true})
		}
		if err != nil {
			return err
		}
		p.once = "revived " + key
		return s.put(ctx, p)
	})
}

// exhume calls the function before with each of the dead letters with these keys, and then deletes the
// letter. It stops at the first error, and returns how many it has deleted.
func (s *Store) exhume(ctx context.Context, keys []string, before func(store.Ended) error) (int, error) {
	return call(ctx, s.conn, "removing dead letters", func() (n int, err error) {
		keys = slices.Compact(slices.Sorted(slices.Values(keys)))
		for some := range slices.Chunk(keys, pageLen) {
			found, err := s.letters(ctx, some...)
			for i := 0; i < len(found) && err == nil; i++ {
				gone := false
				if err = before(found[i]); err == nil {
					_, seq, _ := parseKey(found[i].Key)
					gone, err = s.delete(ctx, seq)
				}
				if gone {
					n++
				}
			}
			if err != nil {
				return n, err
			}
		}
		return n, nil
	})
}
