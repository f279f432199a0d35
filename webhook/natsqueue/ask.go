package natsqueue

import (
	"bytes"
	"cmp"
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

// A question is a request from any node to the node that owns a partition.
type question struct {
	Kind                  string
	webhook.WaitingFilter // its use depends on the Kind
	Change                webhook.Change
	After                 *place
	From                  uint64
}

// The kinds of questions.
const (
	askCounts  = "counts"  // count the deliveries of each destination that sorts after Destination
	askWaiting = "waiting" // list the waiting deliveries of Destination after the place After or, if that is nil, after the delivery ID
	askChange  = "change"  // make the Change to the deliveries that the filter selects in messages from sequence From on; an empty Destination stands for all destinations
)

// An answer is the owner's reply to a question.
type answer struct {
	Counts  []webhook.DestinationCounts
	Waiting []place
	Changed int
	Claimed int
	Next    uint64 // the From of the next question, 0 if this was the last
	Error   string
}

// encode encodes a question, an answer or a heartbeat. JSON would change names that are not UTF-8.
func encode(v any) []byte {
	var b bytes.Buffer
	gob.NewEncoder(&b).Encode(v) // no error: gob can encode these types
	return b.Bytes()
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

// A place is the position of a delivery. Due and Order give its position in its lane. Seq is the
// sequence of its message in the stream, and I its index in that message.
type place struct {
	Due   int64
	Order uint64
	Seq   uint64
	I     uint32
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Order, b.Order))
}

const (
	// answerLen is the most counts or places that an answer has.
	answerLen = 1000
	// askEvery is how often a question is repeated while no owner answers.
	askEvery = 500 * time.Millisecond
)

// ask sends q to the node that owns the partition n and returns the answer. If this node is the
// owner, ask answers q itself. While no owner answers, ask repeats the question, until callTimeout.
func (s *node) ask(ctx context.Context, n int, q question) (a answer, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return a, err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", n, context.DeadlineExceeded))
	defer cancel()
	for wait := behind; ; wait = min(2*wait, askEvery) {
		a, answered := s.reply(ctx, n, q)
		if !answered {
			patience := askEvery
			if q.Kind == askChange { // a change reads and writes many messages
				patience = callTimeout
			}
			asking, cancel := context.WithTimeout(ctx, patience)
			m, failed := s.nc.RequestWithContext(asking, s.config.ask("owner."+strconv.Itoa(n)), encode(q))
			cancel()
			if answered = failed == nil; answered {
				err = decode(m.Data, &a)
			}
		}
		if answered {
			if a.Error != "" {
				err = errors.New(a.Error)
			}
			return a, err
		}
		if sleep(ctx, wait) != nil {
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
	switch q.Kind {
	case askWaiting:
		a.Waiting = p.places(&q)
	case askChange:
		var err error
		if a, err = s.change(ctx, p, &q); err != nil {
			a.Error = err.Error()
		}
	default:
		a.Counts = p.counts(&q)
	}
	return a, true
}

// counts returns the counts of up to answerLen lanes of p, sorted by name. The first one is the
// lane that follows q.Destination. The store is locked.
func (p *partition) counts(q *question) (all []webhook.DestinationCounts) {
	for name, l := range p.lanes {
		if l.p == p && name > q.Destination {
			all = append(all, webhook.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
	}
	slices.SortFunc(all, func(a, b webhook.DestinationCounts) int { return strings.Compare(a.Destination, b.Destination) })
	return all[:min(len(all), answerLen)]
}

// places returns, in order, the places of up to answerLen deliveries of the lane q.Destination. It
// begins after the place q.After or, if that is nil, after the delivery q.ID. The store is locked.
func (p *partition) places(q *question) (all []place) {
	l := p.lanes[q.Destination]
	if l == nil {
		return nil
	}
	key, after := storekit.KeyOf(l.name, q.ID), q.After
	for _, b := range p.order {
		for _, e := range b.entries {
			if e == nil || e.lane != l {
				continue
			}
			x := place{e.due, e.order, b.seq, e.i}
			if after == nil && q.ID != "" && e.key == key {
				after = &x
			}
			all = append(all, x)
		}
	}
	if after != nil {
		all = slices.DeleteFunc(all, func(x place) bool { return x.compare(*after) <= 0 })
	}
	slices.SortFunc(all, place.compare)
	return all[:min(len(all), answerLen)]
}

// errLost is the error of a change that may be made in part.
var errLost = errors.New("another node has taken over the partition")

// change reads up to loadBlocks messages of p, a partition of this node. It makes q.Change to the
// deliveries in them that q selects. a.Next is the field From of the question that continues, or 0
// at the end. The caller holds the lock of the store; change releases the lock while it asks the
// server.
func (s *node) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	filter, erase, user := q.WaitingFilter, q.Destination == "", hash(q.User)
	may := func(e *entry) bool { // whether e may match q, as far as the data in memory tells
		return e != nil && !e.damaged && (erase && e.user == user || e.lane.name == q.Destination)
	}
	var blocks []*block
	var entries [][]*entry
	for _, b := range p.order {
		if b.seq < q.From || !slices.ContainsFunc(b.entries, may) {
			continue
		}
		if len(blocks) == loadBlocks {
			a.Next = b.seq
			break
		}
		blocks, entries = append(blocks, b), append(entries, slices.Clone(b.entries))
	}
	s.mu.Unlock()
	contents, err := s.contents(ctx, blocks)
	s.mu.Lock()
	if err == nil && p.state == lost {
		err = errLost
	}
	if err != nil {
		return a, err
	}
	w := newWrite(p)
	for at, b := range contents {
		for i, e := range entries[at] {
			if !may(e) || e.block.entries[e.i] != e { // e has ended in the meantime
				continue
			}
			if e.block != b.block { // the cleaner has moved e in the meantime
				a.Next = cmp.Or(a.Next, e.block.seq)
				continue
			}
			d := new(webhook.Delivery)
			err := d.UnmarshalBinary(b.records[i])
			d.Destination, filter.Destination = e.lane.name, e.lane.name
			if err != nil || !filter.Match(d) {
				continue
			}
			if e.claim != 0 {
				a.Claimed++
				continue
			}
			by := webhook.Settlement{Verdict: webhook.Done, Delivery: *d}
			if q.Change == webhook.DueNow {
				if by.Verdict = webhook.Retry; !by.Delivery.Hasten(now()) {
					continue
				}
			}
			s.claim(e) // from here on nobody else can
			e.write = w
			end := s.ending(e, d, &by)
			end.news = true
			w.endings = append(w.endings, end)
		}
	}
	if len(w.endings) == 0 {
		return a, nil
	}
	s.mu.Unlock()
	err = s.write(ctx, w)
	s.mu.Lock()
	if err == nil && p.state == lost {
		err = errLost
	}
	if err != nil {
		return a, err
	}
	a.Changed = len(w.endings)
	if erase { // the cleaner then moves the other deliveries out of these messages, and purges these
		p.erased = max(p.erased, blocks[len(blocks)-1].seq)
	}
	return a, nil
}

// Count implements webhook.Keeper. It asks the owners of all partitions. If another node puts a
// delivery, the owner counts it as soon as it has read the delivery from the stream, usually within
// milliseconds.
func (s *Store) Count(ctx context.Context) (all webhook.Counts, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return all, err
	}
	defer s.calls.Leave()
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
	pages, err := s.read(ctx, request{Batch: 1, Seq: 1, Next: s.config.dead(-1, webhook.DeadFilter{})})
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	if len(pages[0]) > 0 {
		all.Dead = 1 + pages[0][0].pending
	}
	return all, nil
}

// CountByDestination implements webhook.Keeper. It asks the owners of all partitions.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		for n := range s.config.Partitions {
			for q, more := (question{Kind: askCounts}), true; more; {
				a, err := s.ask(ctx, n, q)
				if err != nil {
					yield(webhook.DestinationCounts{}, fmt.Errorf("natsqueue: counting: %w", err))
					return
				}
				for _, c := range a.Counts {
					if q.Destination = c.Destination; !yield(c, nil) {
						return
					}
				}
				more = len(a.Counts) == answerLen
			}
		}
	}
}

// Waiting implements webhook.Keeper. It may leave out deliveries that are settled or put back while
// it reads.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		q := question{Kind: askWaiting, WaitingFilter: webhook.WaitingFilter{Destination: destination, ID: after}}
		for more := true; more; {
			a, err := s.ask(ctx, s.config.partition(destination), q)
			for some := range slices.Chunk(a.Waiting, loadBlocks) {
				var ds []webhook.Delivery
				if ds, err = s.deliveries(ctx, some, destination); err != nil {
					break
				}
				for _, d := range ds {
					if !yield(d, nil) {
						return
					}
				}
				q.After = &some[len(some)-1]
			}
			if err != nil {
				yield(webhook.Delivery{}, fmt.Errorf("natsqueue: listing waiting deliveries: %w", err))
				return
			}
			more = len(a.Waiting) == answerLen
		}
	}
}

// deliveries reads the deliveries at the given places of a lane. It leaves out deliveries that are
// no longer there.
func (s *conn) deliveries(ctx context.Context, places []place, lane string) (ds []webhook.Delivery, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	records := make(map[uint64]*record)
	var requests []request
	for _, x := range places {
		if _, ok := records[x.Seq]; !ok {
			records[x.Seq] = nil
			requests = append(requests, request{Seq: x.Seq, Batch: 1})
		}
	}
	pages, err := s.read(ctx, requests...)
	if err != nil {
		return nil, err
	}
	for _, m := range slices.Concat(pages...) {
		records[m.seq], _ = parseRecord(m.data)
	}
	for _, x := range places {
		r := records[x.Seq]
		var d webhook.Delivery
		if r != nil && int(x.I) < len(r.records) && d.UnmarshalBinary(r.records[x.I]) == nil && d.Destination == lane {
			ds = append(ds, d)
		}
	}
	return ds, nil
}

// Change implements webhook.Keeper. It asks the owner of the destination several times if many
// deliveries wait, because the owner reads only loadBlocks messages for each question.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.changeAll(ctx, s.config.partition(filter.Destination), filter, to)
}

// changeAll asks the owner of the partition until the owner has processed all messages.
func (s *node) changeAll(ctx context.Context, partition int, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	q := question{Kind: askChange, WaitingFilter: filter, Change: to}
	for more := true; more; more = q.From > 0 {
		a, err := s.ask(ctx, partition, q)
		if err != nil {
			return n, claimed, fmt.Errorf("natsqueue: changing waiting deliveries: %w", err)
		}
		n, claimed, q.From = n+a.Changed, claimed+a.Claimed, a.Next
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
		n, passed, err := s.changeAll(ctx, partition, webhook.WaitingFilter{User: user}, webhook.Discarded)
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
