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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook"
)

var _ webhook.DeadLetters = (*Queue)(nil)

// deadPage is how many dead letters are read at a time.
const deadPage = 256

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

// deadSubject is the subject of a dead letter: the hour in which it died, and its
// destination.
func (q *Queue) deadSubject(d *webhook.DeadLetter) string {
	return q.config.dead() + "." + bucketOf(d.Died) + "." + token(d.Destination)
}

func bucketOf(t time.Time) string {
	return strconv.FormatInt(floor(t), 10)
}

func floor(t time.Time) int64 {
	micros, width := t.UnixMicro(), deadBucket.Microseconds()
	n := micros / width
	if micros%width < 0 {
		n--
	}
	return n
}

// at returns the dead letter at a sequence, or webhook.ErrNoDeadLetter.
func (q *Queue) at(ctx context.Context, id deadID) (d webhook.DeadLetter, err error) {
	s, err := q.js.Stream(ctx, q.config.dead())
	if err != nil {
		return d, err
	}
	m, err := s.GetMsg(ctx, id.seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return d, webhook.ErrNoDeadLetter
	}
	if err != nil {
		return d, err
	}
	if err := d.UnmarshalBinary(m.Data); err != nil {
		return d, err
	}
	if d.Died.UnixMicro() != id.died {
		return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
	}
	d.Key = id.key()
	return d, nil
}

// DeadLetter implements webhook.DeadLetters.
func (q *Queue) DeadLetter(ctx context.Context, key string) (d webhook.DeadLetter, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return d, err
	}
	defer q.calls.Leave()
	id, ok := parseKey(key)
	if !ok || id.seq == 0 {
		return d, webhook.ErrNoDeadLetter
	}
	if d, err = q.at(ctx, id); err != nil {
		return webhook.DeadLetter{}, fmt.Errorf("natsqueue: dead letter %s: %w", key, err)
	}
	return d, nil
}

// Dead implements webhook.DeadLetters. It keeps a few bytes of each dead letter of an
// hour in memory.
func (q *Queue) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return func(yield func(webhook.DeadLetter, error) bool) {
		fail := func(err error) { yield(webhook.DeadLetter{}, err) }
		from := deadID{died: -1 << 63}
		if after != "" {
			var ok bool
			if from, ok = parseKey(after); !ok {
				fail(fmt.Errorf("natsqueue: %q is not the key of a dead letter", after))
				return
			}
		}
		buckets, err := q.buckets(ctx, filter, from)
		if err != nil {
			fail(err)
			return
		}
		for _, bucket := range buckets {
			ids, err := q.bucket(ctx, bucket, filter, from)
			if err != nil {
				fail(err)
				return
			}
			for page := range slices.Chunk(ids, deadPage) {
				letters, err := q.letters(ctx, page)
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

// buckets returns the buckets that may have what a filter selects, in their order.
func (q *Queue) buckets(ctx context.Context, f webhook.DeadFilter, from deadID) ([]int64, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	s, err := q.js.Stream(ctx, q.config.dead())
	if err != nil {
		return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
	}
	to := "*"
	if f.Destination != "" {
		to = token(f.Destination)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(q.config.dead()+".*."+to))
	if err != nil {
		return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
	}
	var buckets []int64
	for subject := range info.State.Subjects {
		text, _, _ := strings.Cut(subject[len(q.config.dead())+1:], ".")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
		}
		if (from.seq == 0 || n >= floor(time.UnixMicro(from.died))) &&
			(f.From.IsZero() || n >= floor(f.From)) && (f.To.IsZero() || n <= floor(f.To)) {
			buckets = append(buckets, n)
		}
	}
	slices.Sort(buckets)
	return slices.Compact(buckets), nil
}

// bucket returns the dead letters of a bucket after from, in their order.
func (q *Queue) bucket(ctx context.Context, n int64, f webhook.DeadFilter, from deadID) ([]deadID, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	to := "*"
	if f.Destination != "" {
		to = token(f.Destination)
	}
	subject := q.config.dead() + "." + strconv.FormatInt(n, 10) + "." + to
	var ids []deadID
	for next := uint64(1); ; {
		pages, err := q.reader.read(ctx, q.config.dead(), request{Batch: deadPage, MaxBytes: fetchBytes, Seq: next, Next: subject})
		if err != nil {
			return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
		}
		if len(pages[0]) == 0 {
			break
		}
		for _, m := range pages[0] {
			next = m.seq + 1
			died, err := strconv.ParseInt(m.header.Get(headerDied), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("natsqueue: dead letter of sequence %d: %w", m.seq, err)
			}
			if id := (deadID{died, m.seq}); from.compare(id) < 0 {
				ids = append(ids, id)
			}
		}
	}
	slices.SortFunc(ids, deadID.compare)
	return ids, nil
}

// headerDied is when a dead letter died, in microseconds.
const headerDied = "Hookferry-Died"

// letters reads dead letters. Those that are gone are left out.
func (q *Queue) letters(ctx context.Context, ids []deadID) (letters []webhook.DeadLetter, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	requests := make([]request, len(ids))
	for i, id := range ids {
		requests[i] = request{Seq: id.seq, Batch: 1}
	}
	pages, err := q.reader.read(ctx, q.config.dead(), requests...)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: dead letters: %w", err)
	}
	for i, page := range pages {
		if len(page) == 0 || page[0].seq != ids[i].seq {
			continue
		}
		var d webhook.DeadLetter
		if err := d.UnmarshalBinary(page[0].data); err != nil {
			return letters, fmt.Errorf("natsqueue: dead letter %s: %w", ids[i].key(), err)
		}
		d.Key = ids[i].key()
		letters = append(letters, d)
	}
	return letters, nil
}

// Discard implements webhook.DeadLetters.
func (q *Queue) Discard(ctx context.Context, keys ...string) (int, error) {
	return q.remove(ctx, "discarding", keys, func(deadID, webhook.DeadLetter) error { return nil })
}

// Revive implements webhook.DeadLetters. A crash in the middle of it may leave a dead letter
// that was revived.
func (q *Queue) Revive(ctx context.Context, keys ...string) (int, error) {
	return q.remove(ctx, "reviving", keys, func(id deadID, d webhook.DeadLetter) error {
		d.Due, d.Expires, d.Tries, d.Closed = time.Now().UTC().Truncate(time.Microsecond), time.Time{}, 0, nil
		all, err := q.prepare([]webhook.Delivery{d.Delivery})
		if err != nil && len(d.Attempts) > 0 { // there may be no room for them
			d.Attempts = nil
			all, err = q.prepare([]webhook.Delivery{d.Delivery})
		}
		if err != nil {
			return err
		}
		// Of several who revive it at once, one does.
		all[0].header = nats.Header{headerID: {"revived " + decimal(id.seq)}}
		_, err = q.put(q.background, all)
		return err
	})
}

// remove deletes the dead letters of keys that are there, each after before has
// returned nil for it. It returns how many it has deleted.
func (q *Queue) remove(ctx context.Context, doing string, keys []string, before func(deadID, webhook.DeadLetter) error) (n int, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	for _, key := range keys {
		id, ok := parseKey(key)
		if !ok || id.seq == 0 {
			continue
		}
		// The key tells the sequence; that it is the one, the time of death.
		d, err := q.at(ctx, id)
		if errors.Is(err, webhook.ErrNoDeadLetter) {
			continue
		}
		gone := false
		if err == nil {
			err = before(id, d)
		}
		if err == nil {
			gone, err = q.delete(ctx, q.config.dead(), id.seq)
		}
		if err != nil {
			return n, fmt.Errorf("natsqueue: %s %s: %w", doing, key, err)
		}
		if gone {
			n++
		}
	}
	return n, nil
}
