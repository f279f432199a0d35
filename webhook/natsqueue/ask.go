package natsqueue

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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

// owners sends questions to the nodes that own partitions, and answers the questions of other nodes
// about the partitions of this node.
type owners struct {
	*cleaner
}

// A question is a request from any node to the node that owns a partition. Names are byte slices
// because they need not be valid UTF-8, as strings in JSON must be.
type question struct {
	Kind        string         `json:"kind"`
	Destination []byte         `json:"destination,omitempty"`
	ID          []byte         `json:"id,omitempty"`
	User        []byte         `json:"user,omitempty"`
	Event       []byte         `json:"event,omitempty"`
	Change      webhook.Change `json:"change,omitempty"`
	At          *place         `json:"at,omitempty"`
	From        uint64         `json:"from,omitempty"`
}

// The kinds of questions.
const (
	askCounts  = "counts"  // count the deliveries of each destination that sorts after Destination
	askWaiting = "waiting" // list the waiting deliveries of Destination, after the delivery ID or the place At
	askChange  = "change"  // apply Change to the deliveries that match the filter, in messages from sequence From on
	askErase   = "erase"   // erase the deliveries of User, in messages from sequence From on
)

// An answer is the owner's reply to a question.
type answer struct {
	Counts  []count `json:"counts,omitempty"`
	Waiting []place `json:"waiting,omitempty"`
	Changed int     `json:"changed,omitempty"` // deliveries that were changed or erased
	Claimed int     `json:"claimed,omitempty"`
	Next    uint64  `json:"next,omitempty"` // the From of the next question, 0 if this was the last
	Error   string  `json:"error,omitempty"`
}

// A count says how many deliveries of one destination wait, and how many of them are claimed.
type count struct {
	Destination []byte `json:"destination,omitempty"`
	Waiting     int    `json:"waiting,omitempty"`
	Claimed     int    `json:"claimed,omitempty"`
	Oldest      int64  `json:"oldest,omitempty"` // when the earliest unclaimed delivery is due, in microseconds; 0 if there is none
}

// A place is the position of a delivery: Due and Order in its lane, Seq and I in the stream.
type place struct {
	Due   int64  `json:"due"`
	Order uint64 `json:"order"`
	Seq   uint64 `json:"seq,omitempty"`
	I     uint32 `json:"i,omitempty"`
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
func (s *owners) ask(ctx context.Context, n int, q question) (a answer, err error) {
	if err := s.enter(ctx); err != nil {
		return a, err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", n, context.DeadlineExceeded))
	defer cancel()
	text, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	for wait := behind; ; wait = min(2*wait, askEvery) {
		var answered bool
		if a, answered = s.reply(ctx, n, q); !answered {
			patience := askEvery
			if q.Kind == askErase || q.Kind == askChange { // these read and write many messages
				patience = callTimeout
			}
			asking, cancel := context.WithTimeout(ctx, patience)
			m, err := s.nc.RequestWithContext(asking, s.config.ask("owner."+strconv.Itoa(n)), text)
			cancel()
			if answered = err == nil; answered {
				if err := json.Unmarshal(m.Data, &a); err != nil {
					return a, err
				}
			}
		}
		if answered {
			if a.Error != "" {
				return answer{}, errors.New(a.Error)
			}
			return a, nil
		}
		if sleep(ctx, wait) != nil {
			return a, context.Cause(ctx)
		}
	}
}

// asked handles the question of another node. It answers if this node owns the partition.
func (s *owners) asked(m *nats.Msg) {
	n, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	var q question
	if err != nil || json.Unmarshal(m.Data, &q) != nil || s.enter(s.background) != nil {
		return
	}
	s.goroutines.Go(func() {
		defer s.calls.Leave()
		ctx, cancel := context.WithTimeout(s.background, callTimeout)
		defer cancel()
		if a, ok := s.reply(ctx, n, q); ok {
			if text, err := json.Marshal(a); err == nil {
				m.Respond(text)
			}
		}
	})
}

// reply answers a question if this node owns the partition n.
func (s *owners) reply(ctx context.Context, n int, q question) (a answer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n >= len(s.owned) || s.owned[n] == nil || s.owned[n].state == reading || s.lapsed() != nil {
		return a, false
	}
	p := s.owned[n]
	switch q.Kind {
	case askWaiting:
		a.Waiting = p.places(&q)
	case askChange, askErase:
		s.mu.Unlock()
		var err error
		if a, err = s.change(ctx, p, &q); err != nil {
			a.Error = err.Error()
		}
		s.mu.Lock()
	default:
		a.Counts = p.counts(&q)
	}
	return a, true
}

// counts returns up to answerLen counts of the lanes of p, sorted by name, that come after
// q.Destination. The store is locked.
func (p *partition) counts(q *question) (all []count) {
	for name, l := range p.lanes {
		if l.p == p && name > string(q.Destination) {
			all = append(all, count{Destination: []byte(name), Waiting: l.waiting, Claimed: l.claimed, Oldest: l.oldest()})
		}
	}
	slices.SortFunc(all, func(a, b count) int { return bytes.Compare(a.Destination, b.Destination) })
	return all[:min(len(all), answerLen)]
}

// places returns up to answerLen places of the deliveries of a lane, in order. They come after
// q.At, or after the delivery q.ID if q.At is nil. The store is locked.
func (p *partition) places(q *question) (all []place) {
	l := p.lanes[string(q.Destination)]
	if l == nil {
		return nil
	}
	key, at := storekit.KeyOf(l.name, string(q.ID)), q.At
	for _, b := range p.order {
		for _, e := range b.entries {
			if e == nil || e.lane != l {
				continue
			}
			x := place{e.due, e.order, b.seq, e.i}
			if at == nil && len(q.ID) > 0 && e.key == key {
				at = &x
			}
			all = append(all, x)
		}
	}
	if at != nil {
		all = slices.DeleteFunc(all, func(x place) bool { return x.compare(*at) <= 0 })
	}
	slices.SortFunc(all, place.compare)
	return all[:min(len(all), answerLen)]
}

// change changes or erases the deliveries that q selects in up to loadBlocks messages of p, which
// this node owns. a.Next says where the next question continues; it is 0 at the end.
func (s *owners) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	filter := webhook.WaitingFilter{Destination: string(q.Destination), ID: string(q.ID), User: string(q.User), Event: string(q.Event)}
	may := func(e *entry) bool { // whether e may match q, as far as the data in memory tells
		return e != nil && !e.damaged && (q.Kind == askErase && e.user == hash(filter.User) || e.lane.name == filter.Destination)
	}
	var blocks []*block
	var entries [][]*entry
	s.mu.Lock()
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
	if err != nil {
		return a, err
	}
	w := newWrite(p)
	s.mu.Lock()
	for at, b := range contents {
		for i, e := range entries[at] {
			if !may(e) || e.gone {
				continue
			}
			if e.block != b.block { // the cleaner has moved it in the meantime
				a.Next = cmp.Or(a.Next, e.block.seq)
				continue
			}
			d := new(webhook.Delivery)
			if d.UnmarshalBinary(b.records[i]) != nil || q.Kind == askErase && d.User != filter.User || q.Kind == askChange && !filter.Match(d) {
				continue
			}
			d.Destination = e.lane.name
			by := webhook.Settlement{Verdict: webhook.Done, Delivery: *d}
			if q.Change == webhook.DueNow {
				by.Verdict = webhook.Retry
				if !by.Delivery.Hasten(now()) && e.claim == 0 {
					continue
				}
			}
			if e.claim != 0 {
				a.Claimed++
				continue
			}
			w.endings = append(w.endings, s.ending(e, d, &by))
		}
	}
	s.mu.Unlock()
	if len(w.endings) == 0 {
		return a, nil
	}
	if err := s.write(ctx, w); err != nil {
		return a, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range w.endings {
		if !e.done {
			a.Claimed++
			continue
		}
		a.Changed++
		s.tell(e.lane.name)
	}
	if q.Kind == askErase { // the cleaner moves the waiting deliveries out of these messages
		p.erased = max(p.erased, blocks[len(blocks)-1].seq)
	}
	return a, nil
}

// Count implements webhook.Keeper. It asks the owners of all partitions. If another node puts a
// delivery, the owner counts it as soon as it has read the delivery from the stream, usually within
// milliseconds.
func (s *owners) Count(ctx context.Context) (all webhook.Counts, err error) {
	all.DeadBytes = -1 // unknown: it would have to read all dead letters
	for c, err := range s.CountByDestination(ctx) {
		if err != nil {
			return webhook.Counts{}, err
		}
		all.Waiting, all.Claimed = all.Waiting+c.Waiting, all.Claimed+c.Claimed
		if !c.Oldest.IsZero() && (all.Oldest.IsZero() || c.Oldest.Before(all.Oldest)) {
			all.Oldest = c.Oldest
		}
	}
	if err = s.enter(ctx); err == nil {
		all.Dead, err = s.countDead(ctx)
		s.calls.Leave()
	}
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	return all, nil
}

// CountByDestination implements webhook.Keeper. It asks the owners of all partitions.
func (s *owners) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		for n := range s.config.Partitions {
			q := question{Kind: askCounts}
			for more := true; more; {
				a, err := s.ask(ctx, n, q)
				if err != nil {
					yield(webhook.DestinationCounts{}, fmt.Errorf("natsqueue: counting: %w", err))
					return
				}
				for _, c := range a.Counts {
					q.Destination = c.Destination
					if !yield(webhook.DestinationCounts{Destination: string(c.Destination), Waiting: c.Waiting, Claimed: c.Claimed, Oldest: timeOf(c.Oldest)}, nil) {
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
func (s *owners) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		q := question{Kind: askWaiting, Destination: []byte(destination), ID: []byte(after)}
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
				q.At = &some[len(some)-1]
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
func (s *owners) deliveries(ctx context.Context, places []place, lane string) (ds []webhook.Delivery, err error) {
	if err := s.enter(ctx); err != nil {
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
	for _, page := range pages {
		if len(page) > 0 {
			records[page[0].seq], _ = parseRecord(page[0].data)
		}
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

// Change implements webhook.Keeper. The owner of the destination changes a limited number of
// messages for each request.
func (s *owners) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.changeAll(ctx, s.config.partition(filter.Destination), question{
		Kind: askChange, Change: to,
		Destination: []byte(filter.Destination), ID: []byte(filter.ID), User: []byte(filter.User), Event: []byte(filter.Event),
	})
}

// changeAll repeats q until the owner of the partition has processed all messages.
func (s *owners) changeAll(ctx context.Context, partition int, q question) (n, claimed int, err error) {
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
// the stream, because the log of a partition is purged from its beginning. First the cleaner moves
// the other waiting deliveries out of the messages up to the last one with erased deliveries. Then
// it purges these messages. This takes up to a second, or longer if many deliveries wait.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	for partition := range s.config.Partitions {
		n, passed, err := s.changeAll(ctx, partition, question{Kind: askErase, User: []byte(user)})
		erased, claimed = erased+n, claimed+passed
		if err != nil {
			return erased, claimed, err
		}
	}
	n, err := s.eraseDead(ctx, user)
	return erased + n, claimed, err
}
