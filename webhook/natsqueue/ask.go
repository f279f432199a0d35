package natsqueue

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A question is a request from any node to the node that owns a partition. An answer may be only a
// part: then the same question with the From of the answer gets the next part.
type question struct {
	Kind                  string
	webhook.WaitingFilter // its use depends on the Kind
	Change                webhook.Change
	From                  place
}

// The kinds of questions.
const (
	askCounts  = "counts"  // count the deliveries of each destination, in the order of their names
	askWaiting = "waiting" // list the waiting deliveries of Destination, in the order of Due, after the delivery ID
	askChange  = "change"  // make the Change to the deliveries that the filter selects, message by message; an empty Destination stands for all destinations
)

// A place says where the next part of an answer begins.
type place struct {
	Destination string // counts: after this one
	Due         int64  // waiting deliveries: after this Due and this order
	Order       uint64
	Seq         uint64 // changes: at this place in the message with this sequence
	I           uint32
}

// An answer is the owner's reply to a question.
type answer struct {
	Counts  []webhook.DestinationCounts
	Waiting [][]byte // encoded deliveries
	Changed int
	Claimed int
	More    bool // there are more parts, and the next one begins at From
	From    place
	Error   string
}

// encode encodes a question, an answer or a heartbeat. JSON would change names that are not UTF-8.
func encode(v any) []byte {
	var b bytes.Buffer
	gob.NewEncoder(&b).Encode(v) // no error: gob can encode these types
	return b.Bytes()
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

const (
	// answerLen is the most counts that an answer has. Deliveries take longer, because the owner may have
	// to read each from the stream: an answer has or changes up to pageLen of them.
	answerLen = 1000
	// askEvery is how often a question is repeated while no owner answers.
	askEvery = 500 * time.Millisecond
)

// ask sends q to the node that owns the partition n, and yields the answer, part by part. An error
// ends it.
func (s *node) ask(ctx context.Context, n int, q question) iter.Seq2[answer, error] {
	return func(yield func(answer, error) bool) {
		for more := true; more; {
			a, err := s.askOnce(ctx, n, q)
			if !yield(a, err) || err != nil {
				return
			}
			more, q.From = a.More, a.From
		}
	}
}

// askOnce returns a part of the answer to q. If this node is the owner, it answers q itself. While
// no owner answers, askOnce repeats the question, until callTimeout.
func (s *node) askOnce(ctx context.Context, n int, q question) (a answer, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return a, err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", n, context.DeadlineExceeded))
	defer cancel()
	patience := askEvery
	if q.Kind == askChange { // a change reads and writes many messages
		patience = callTimeout
	}
	for {
		a, answered := s.reply(ctx, n, q)
		if !answered {
			asking, cancel := context.WithTimeout(ctx, patience)
			m, failed := s.nc.RequestWithContext(asking, s.config.ask("owner."+strconv.Itoa(n)), encode(q))
			cancel()
			if answered = failed == nil; answered {
				err = decode(m.Data, &a)
			}
			if q.Kind == askWaiting { // the owner may need longer to read the deliveries
				patience *= 2
			}
		}
		if answered {
			if a.Error != "" {
				err = errors.New(a.Error)
			}
			return a, err
		}
		if sleep(ctx, behind) != nil {
			return a, context.Cause(ctx)
		}
	}
}

// asked handles the question of another node. It answers if this node owns the partition.
func (s *node) asked(m *nats.Msg) {
	n, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	var q question
	if err != nil || decode(m.Data, &q) != nil || s.calls.Enter(s.background) != nil {
		return
	}
	s.goroutines.Go(func() {
		defer s.calls.Leave()
		ctx, cancel := context.WithTimeout(s.background, callTimeout)
		defer cancel()
		if a, ok := s.reply(ctx, n, q); ok {
			m.Respond(encode(a))
		}
	})
}

// reply answers a question if this node owns the partition n.
func (s *node) reply(ctx context.Context, n int, q question) (a answer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n >= len(s.owned) || s.owned[n] == nil || s.owned[n].state == reading || s.lapsed() != nil {
		return a, false
	}
	p := s.owned[n]
	var err error
	switch q.Kind {
	case askCounts:
		a = p.counts(&q)
	case askWaiting:
		a, err = p.waiting(ctx, &q)
	case askChange:
		a, err = s.change(ctx, p, &q)
	}
	if err == nil && p.state == lost {
		err = errLost
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a, true
}

// errLost is the error of a change that may be made in part.
var errLost = errors.New("another node has taken over the partition")

// counts returns the counts of up to answerLen lanes of p, sorted by name. The store is locked.
func (p *partition) counts(q *question) (a answer) {
	for name, l := range p.lanes {
		if l.p == p && name > q.From.Destination {
			a.Counts = append(a.Counts, webhook.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
	}
	slices.SortFunc(a.Counts, func(a, b webhook.DestinationCounts) int { return strings.Compare(a.Destination, b.Destination) })
	if a.More = len(a.Counts) > answerLen; a.More {
		a.Counts = a.Counts[:answerLen]
		a.From.Destination = a.Counts[answerLen-1].Destination
	}
	return a
}

// entries returns the entries that match, in the messages from the sequence from on. The store is
// locked.
func (p *partition) entries(from uint64, match func(*entry) bool) (all []*entry) {
	i, _ := p.search(from)
	for _, b := range p.order[i:] {
		for _, e := range b.entries {
			if e != nil && match(e) {
				all = append(all, e)
			}
		}
	}
	return all
}

// part returns as many of entries as an answer may have, and whether there are more.
func (p *partition) part(entries []*entry) (some []*entry, more bool) {
	room := min(pageBytes, p.nc.MaxPayload()/2)
	for i, e := range entries {
		if room -= e.bytes(); i > 0 && (room < 0 || i == pageLen) {
			return entries[:i], true
		}
	}
	return entries, false
}

// waiting returns the next waiting deliveries of the lane q.Destination. The first part begins
// after the delivery q.ID, if it waits. The caller holds the lock of the store; waiting releases it
// while it asks the server.
func (p *partition) waiting(ctx context.Context, q *question) (a answer, err error) {
	l := p.lanes[q.Destination]
	if l == nil {
		return a, nil
	}
	all := p.entries(0, func(e *entry) bool { return e.lane == l })
	var after *entry
	key := storekit.KeyOf(l.name, q.ID)
	if i := slices.IndexFunc(all, func(e *entry) bool { return e.key == key }); i >= 0 {
		after = all[i]
	}
	if q.From != (place{}) {
		after = &entry{due: q.From.Due, order: q.From.Order}
	}
	if after != nil {
		all = slices.DeleteFunc(all, func(e *entry) bool { return e.compare(after) <= 0 })
	}
	slices.SortFunc(all, (*entry).compare)
	if all, a.More = p.part(all); a.More {
		last := all[len(all)-1]
		a.From = place{Due: last.due, Order: last.order}
	}
	ds, err := p.load(ctx, all)
	for _, d := range ds {
		if d != nil {
			record, _ := d.AppendBinary(nil) // no error: it was read from a record
			a.Waiting = append(a.Waiting, record)
		}
	}
	return a, err
}

// change makes q.Change to the next deliveries of p that q selects. The caller holds the lock of the
// store; change releases it while it asks the server.
func (s *node) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	filter, erase, user, from := q.WaitingFilter, q.Destination == "", hash(q.User), q.From
	all := p.entries(from.Seq, func(e *entry) bool { // those that may match q, as far as the data in memory tells
		return (erase && e.user == user || e.lane.name == q.Destination) && (e.block.seq > from.Seq || e.i >= from.I)
	})
	entries, more := p.part(all)
	if a.More = more; more {
		next := all[len(entries)]
		a.From = place{Seq: next.block.seq, I: next.i}
	}
	ds, err := s.load(ctx, entries)
	if err != nil {
		return a, err
	}
	w := newWrite(p)
	erased := p.erased
	for i, e := range entries {
		if ds[i] == nil {
			continue
		}
		filter.Destination = e.lane.name
		if !filter.Match(ds[i]) {
			continue
		}
		if e.claim != 0 {
			a.Claimed++
			continue
		}
		by := webhook.Settlement{Verdict: webhook.Done, Delivery: *ds[i]}
		if q.Change == webhook.DueNow {
			if by.Verdict = webhook.Retry; !by.Delivery.Hasten(now()) {
				continue
			}
		}
		s.claim(e) // from here on nobody else can
		e.write = w
		end := s.ending(e, ds[i], &by)
		end.news = true
		w.endings = append(w.endings, end)
		erased = max(erased, e.block.seq)
	}
	if len(w.endings) == 0 {
		return a, nil
	}
	s.mu.Unlock()
	err = s.write(ctx, w)
	s.mu.Lock()
	if err != nil {
		return a, err
	}
	a.Changed = len(w.endings)
	if erase { // the cleaner then moves the other deliveries out of these messages, and purges these
		p.erased = max(p.erased, erased)
	}
	return a, nil
}

// Count implements webhook.Keeper. It asks the owners of all partitions. If another node puts a
// delivery, the owner counts it as soon as it has read the delivery from the stream, usually within
// milliseconds.
func (s *Store) Count(ctx context.Context) (all webhook.Counts, err error) {
	all.DeadBytes = -1 // unknown: Count would have to read all dead letters
	for c, err := range s.CountByDestination(ctx) {
		if err != nil {
			return webhook.Counts{}, err
		}
		all.Waiting, all.Claimed = all.Waiting+c.Waiting, all.Claimed+c.Claimed
		if !c.Oldest.IsZero() && (all.Oldest.IsZero() || c.Oldest.Before(all.Oldest)) {
			all.Oldest = c.Oldest
		}
	}
	dead, _, err := s.page(ctx, request{Batch: 1, Seq: 1, Next: s.config.dead("*", "*", "*")})
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	for _, m := range dead { // the first one says how many follow
		all.Dead, _ = strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
		all.Dead++
	}
	return all, nil
}

// CountByDestination implements webhook.Keeper. It asks the owners of all partitions.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		for n := range s.config.Partitions {
			for a, err := range s.ask(ctx, n, question{Kind: askCounts}) {
				if err != nil {
					yield(webhook.DestinationCounts{}, fmt.Errorf("natsqueue: counting: %w", err))
					return
				}
				for _, c := range a.Counts {
					if !yield(c, nil) {
						return
					}
				}
			}
		}
	}
}

// Waiting implements webhook.Keeper. It may leave out deliveries that are settled or put back while
// it reads.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		q := question{Kind: askWaiting, WaitingFilter: webhook.WaitingFilter{Destination: destination, ID: after}}
		for a, err := range s.ask(ctx, s.config.partition(destination), q) {
			for i := 0; i < len(a.Waiting) && err == nil; i++ {
				var d webhook.Delivery
				if err = d.UnmarshalBinary(a.Waiting[i]); err == nil && !yield(d, nil) {
					return
				}
			}
			if err != nil {
				yield(webhook.Delivery{}, fmt.Errorf("natsqueue: listing waiting deliveries: %w", err))
				return
			}
		}
	}
}

// Change implements webhook.Keeper. It asks the owner of the destination several times if many
// deliveries wait.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.changeIn(ctx, s.config.partition(filter.Destination), filter, to)
}

// changeIn makes a change to the deliveries of one partition.
func (s *node) changeIn(ctx context.Context, partition int, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	for a, err := range s.ask(ctx, partition, question{Kind: askChange, WaitingFilter: filter, Change: to}) {
		if err != nil {
			return n, claimed, fmt.Errorf("natsqueue: changing waiting deliveries: %w", err)
		}
		n, claimed = n+a.Changed, claimed+a.Claimed
	}
	return n, claimed, nil
}

// Erase implements webhook.Keeper. When it returns, the bytes of erased deliveries may still be in
// the stream. The package comment says when the server erases them.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	for partition := range s.config.Partitions {
		n, passed, err := s.changeIn(ctx, partition, webhook.WaitingFilter{User: user}, webhook.Discarded)
		erased, claimed = erased+n, claimed+passed
		if err != nil {
			return erased, claimed, err
		}
	}
	var keys []string
	for d, err := range s.Dead(ctx, webhook.DeadFilter{User: user}, "") {
		if err != nil {
			return erased, claimed, err
		}
		keys = append(keys, d.Key)
	}
	n, err := s.Discard(ctx, keys...)
	return erased + n, claimed, err
}
