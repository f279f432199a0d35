package natsqueue

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// letters are the dead letters. They are in the stream alone, so that every node reads them.
type letters struct {
	*putter
}

// A deadID is where a dead letter stands among them: by the time it died and its
// sequence. Its key is that in hexadecimal digits.
type deadID struct {
	died int64 // in microseconds
	seq  uint64
}

func (d deadID) key() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.died))
	return hex.EncodeToString(binary.BigEndian.AppendUint64(b, d.seq))
}

func parseKey(key string) (deadID, bool) {
	b, err := hex.DecodeString(key)
	if err != nil || len(b) != 16 || hex.EncodeToString(b) != key {
		return deadID{}, false
	}
	return deadID{int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])}, true
}

func (d deadID) compare(e deadID) int {
	return cmp.Or(cmp.Compare(d.died, e.died), cmp.Compare(d.seq, e.seq))
}

// deadBucket is how long a bucket of dead letters is: those that died within it are
// sorted in memory.
const deadBucket = time.Hour

// deadSubject is the subject of a dead letter: the hour in which it died, its destination, and a part
// of the hash of its user.
func (c *Config) deadSubject(d *webhook.DeadLetter) string {
	return c.dead(strconv.FormatInt(bucketOf(d.Died), 10), token(d.Destination), deadUser(d.User))
}

func (c *Config) dead(bucket, destination, user string) string {
	return c.Stream + ".dead." + bucket + "." + destination + "." + user
}

func deadUser(user string) string { return strconv.Itoa(int(hash(user) % 64)) }

func bucketOf(t time.Time) int64 {
	micros, width := t.UnixMicro(), deadBucket.Microseconds()
	n := micros / width
	if micros%width < 0 {
		n--
	}
	return n
}

// countDead returns how many dead letters there are.
func countDead(ctx context.Context, s *conn) (int, error) {
	pages, err := s.read(ctx, request{Batch: 1, Seq: 1, Next: s.config.dead("*", "*", "*")})
	if err != nil || len(pages[0]) == 0 {
		return 0, err
	}
	return 1 + pages[0][0].pending, nil
}

// DeadLetter implements webhook.Keeper.
func (s *letters) DeadLetter(ctx context.Context, key string) (d webhook.DeadLetter, err error) {
	if err := s.enter(ctx); err != nil {
		return d, err
	}
	defer s.calls.Leave()
	id, ok := parseKey(key)
	if !ok {
		return d, webhook.ErrNoDeadLetter
	}
	letters, err := s.get(ctx, []deadID{id})
	if err != nil {
		return d, err
	}
	if len(letters) == 0 {
		return d, webhook.ErrNoDeadLetter
	}
	return letters[0], nil
}

// Dead implements webhook.Keeper. It keeps a few bytes of each dead letter of an
// hour in memory.
func (s *letters) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return func(yield func(webhook.DeadLetter, error) bool) {
		fail := func(err error) { yield(webhook.DeadLetter{}, err) }
		var from deadID
		if after != "" {
			var ok bool
			if from, ok = parseKey(after); !ok {
				fail(fmt.Errorf("natsqueue: %q is not the key of a dead letter", after))
				return
			}
		}
		buckets, err := s.buckets(ctx, filter, from)
		if err != nil {
			fail(err)
			return
		}
		if filter.NewestFirst {
			slices.Reverse(buckets)
		}
		for _, bucket := range buckets {
			ids, err := s.bucket(ctx, bucket, filter, from)
			if err != nil {
				fail(err)
				return
			}
			for page := range slices.Chunk(ids, pageLen) {
				letters, err := s.get(ctx, page)
				for _, d := range letters {
					if filter.Match(&d) && !yield(d, nil) {
						return
					}
				}
				if err != nil {
					fail(err)
					return
				}
			}
		}
	}
}

// deadFilter returns the subject of what a filter selects in a bucket, or in all if that is "*".
func (c *Config) deadFilter(bucket string, f webhook.DeadFilter) string {
	destination, user := "*", "*"
	if f.Destination != "" {
		destination = token(f.Destination)
	}
	if f.User != "" {
		user = deadUser(f.User)
	}
	return c.dead(bucket, destination, user)
}

// buckets returns the buckets that may have what a filter selects, in their order.
func (s *letters) buckets(ctx context.Context, f webhook.DeadFilter, from deadID) ([]int64, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	info, err := s.info(ctx, s.config.deadFilter("*", f))
	if err != nil {
		return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
	}
	var buckets []int64
	for subject := range info.State.Subjects {
		text, _, _ := strings.Cut(strings.TrimPrefix(subject, s.config.Stream+".dead."), ".")
		n, err := strconv.ParseInt(text, 10, 64)
		last := bucketOf(time.UnixMicro(from.died))
		if err == nil && (from.seq == 0 || n >= last && !f.NewestFirst || n <= last && f.NewestFirst) &&
			(f.From.IsZero() || n >= bucketOf(f.From)) && (f.To.IsZero() || n <= bucketOf(f.To)) {
			buckets = append(buckets, n)
		}
	}
	slices.Sort(buckets)
	return slices.Compact(buckets), nil
}

// bucket returns the dead letters of a bucket after from, in their order.
func (s *letters) bucket(ctx context.Context, n int64, f webhook.DeadFilter, from deadID) (ids []deadID, _ error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	for m, err := range s.list(ctx, s.config.deadFilter(strconv.FormatInt(n, 10), f)) {
		if err != nil {
			return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
		}
		var d webhook.DeadLetter
		if err := d.UnmarshalBinary(m.data); err != nil {
			s.config.Logger.Error("natsqueue: a dead letter cannot be read and is left out", "sequence", m.seq, "error", err)
			continue
		}
		if id := (deadID{d.Died.UnixMicro(), m.seq}); from.seq == 0 || from != id && from.compare(id) < 0 != f.NewestFirst {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, deadID.compare)
	if f.NewestFirst {
		slices.Reverse(ids)
	}
	return ids, nil
}

// get reads dead letters. Those that are gone are left out.
func (s *letters) get(ctx context.Context, ids []deadID) (letters []webhook.DeadLetter, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	requests := make([]request, len(ids))
	for i, id := range ids {
		requests[i] = request{Seq: max(id.seq, 1), Batch: 1}
	}
	pages, err := s.read(ctx, requests...)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
	}
	for i, page := range pages {
		var d webhook.DeadLetter
		if len(page) == 0 || page[0].seq != ids[i].seq || !strings.HasPrefix(page[0].subject, s.config.Stream+".dead.") ||
			d.UnmarshalBinary(page[0].data) != nil || d.Died.UnixMicro() != ids[i].died {
			continue
		}
		d.Key = ids[i].key()
		letters = append(letters, d)
	}
	return letters, nil
}

// Discard implements webhook.Keeper.
func (s *letters) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, "discarding", keys, func(deadID, webhook.DeadLetter) error { return nil })
}

// Revive implements webhook.Keeper. A crash in the middle of it may leave a dead letter
// that was revived.
func (s *letters) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, "reviving", keys, func(id deadID, d webhook.DeadLetter) error {
		d.Due, d.Expires, d.Tries, d.Closed = now(), time.Time{}, 0, nil
		p, err := s.newPut(webhook.Put{Delivery: d.Delivery, NoDedup: true})
		if errors.Is(err, webhook.ErrTooLarge) { // there is no room for the attempts
			d.Attempts = nil
			p, err = s.newPut(webhook.Put{Delivery: d.Delivery, NoDedup: true})
		}
		if err != nil {
			return err
		}
		p.once = "revived " + decimal(id.seq)
		return s.put(ctx, p)
	})
}

// exhume deletes the dead letters of keys that are there, each after before has
// returned nil for it. It returns how many it has deleted.
func (s *letters) exhume(ctx context.Context, doing string, keys []string, before func(deadID, webhook.DeadLetter) error) (n int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	var ids []deadID
	for _, key := range keys {
		if id, ok := parseKey(key); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for some := range slices.Chunk(ids, pageLen) {
		letters, err := s.get(ctx, some)
		for _, d := range letters {
			id, _ := parseKey(d.Key)
			gone := false
			if err = before(id, d); err == nil {
				gone, err = s.delete(ctx, id.seq)
			}
			if gone {
				n++
			}
			if err != nil {
				break
			}
		}
		if err != nil {
			return n, fmt.Errorf("natsqueue: %s: %w", doing, err)
		}
	}
	return n, nil
}

// eraseDead deletes the dead letters of a user.
func (s *letters) eraseDead(ctx context.Context, user string) (n int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	for m, err := range s.list(ctx, s.config.dead("*", "*", deadUser(user))) {
		var d webhook.DeadLetter
		gone := false
		if err == nil && d.UnmarshalBinary(m.data) == nil && d.User == user {
			gone, err = s.delete(ctx, m.seq)
		}
		if gone {
			n++
		}
		if err != nil {
			return n, fmt.Errorf("natsqueue: erasing dead letters: %w", err)
		}
	}
	return n, nil
}
