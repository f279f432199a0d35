package natsqueue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// letters are the dead letters in the stream.
type letters struct {
	conn *conn
	life *lifetime
}

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

func deadUser(user string) string { return decimal(uint64(hash(user) % 64)) }

// bucketOf returns the bucket of a time. Times before 1970 are in the first bucket.
func bucketOf(t time.Time) uint64 { return uint64(max(0, t.UnixMicro()/deadBucket.Microseconds())) }

// buckets returns, in the order of f, the buckets that may have dead letters which f selects. They
// begin with that of the dead letter whose key is the argument after, unless that is empty.
func (s *letters) buckets(ctx context.Context, f store.EndedFilter, after string) ([]uint64, error) {
	return call(ctx, s.life, "listing dead letters", func() (all []uint64, _ error) {
		died, _, ok := parseKey(after)
		if after != "" && !ok {
			return nil, fmt.Errorf("%q is not the key of a dead letter", after)
		}
		info, err := s.conn.info(ctx, s.conn.config.deadFilter("*", f))
		if err != nil {
			return nil, err
		}
		for subject := range info.State.Subjects {
			text, _, _ := strings.Cut(strings.TrimPrefix(subject, s.conn.config.Stream+".dead."), ".")
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
func (s *letters) bucket(ctx context.Context, n uint64, f store.EndedFilter, after string) ([]string, error) {
	return call(ctx, s.life, "listing dead letters", func() (keys []string, _ error) {
		for m, err := range s.conn.list(ctx, s.conn.config.deadFilter(decimal(n), f), 1) {
			if err != nil {
				return nil, err
			}
			d, err := letterOf(m)
			if err != nil {
				s.conn.config.Logger.Error("natsqueue: ignoring a dead letter that cannot be read; it stays in the stream", "sequence", m.Sequence, "error", err)
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

// read reads the dead letters with the given keys from the stream. It leaves out dead letters
// that no longer exist.
func (s *letters) read(ctx context.Context, keys ...string) ([]store.Ended, error) {
	return call(ctx, s.life, "reading dead letters", func() (found []store.Ended, _ error) {
		var seqs []uint64
		for _, key := range keys {
			if _, seq, ok := parseKey(key); ok && seq > 0 {
				seqs = append(seqs, seq)
			}
		}
		messages, err := s.conn.messages(ctx, seqs...)
		for _, m := range messages {
			if m == nil || !strings.HasPrefix(m.Subject, s.conn.config.Stream+".dead.") {
				continue
			}
			if d, err := letterOf(m); err == nil && slices.Contains(keys, d.Key) {
				found = append(found, d)
			}
		}
		return found, err
	})
}

// exhume calls the function before with each of the dead letters with these keys, and then deletes the
// letter. It stops at the first error, and returns how many it has deleted.
func (s *letters) exhume(ctx context.Context, keys []string, before func(store.Ended) error) (int, error) {
	return call(ctx, s.life, "removing dead letters", func() (n int, err error) {
		keys = slices.Compact(slices.Sorted(slices.Values(keys)))
		for some := range slices.Chunk(keys, pageLen) {
			found, err := s.read(ctx, some...)
			for i := 0; i < len(found) && err == nil; i++ {
				gone := false
				if err = before(found[i]); err == nil {
					_, seq, _ := parseKey(found[i].Key)
					gone, err = s.conn.delete(ctx, seq)
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
