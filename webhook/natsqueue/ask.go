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

	"github.com/hookferry/analytics/webhook/store"
)

// A question is a request from any node to the node that owns a partition. An answer may be only a
// part: then the same question gets the next part, with the Next of the answer as From.
type question struct {
	Kind                string
	Partition           int
	store.WaitingFilter // its use depends on the Kind
	Change              store.Change
	From                string
}

// The kinds of questions.
const (
	askCounts  = "counts"  // count the deliveries of each destination, in the order of their names
	askWaiting = "waiting" // list the waiting deliveries of Destination, in the order of Due, after the delivery ID
	askChange  = "change"  // make the Change to the deliveries that the filter selects; an empty Destination stands for all destinations
)

// An answer is the owner's reply to a question.
type answer struct {
	Counts  []store.DestinationCounts
	Waiting [][]byte // encoded deliveries
	Changed int
	Claimed int
	Next    string // where the next part begins; empty if there are no more
	Error   string
	Again   bool // another node has taken over the partition before anything was done: ask that node
}

// encode encodes a question, an answer or a heartbeat. JSON would change names that are not UTF-8.
func encode(v any) []byte {
	var b bytes.Buffer
	gob.NewEncoder(&b).Encode(v) // no error: gob can encode these types
	return b.Bytes()
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

const (
	// answerLen is the most counts that an answer has, if their names fit; see answerRoom. Deliveries
	// take longer, because the owner may have to read each from the stream: an answer has or changes up
	// to pageLen of them.
	answerLen = 1000
	// askEvery is how often a question is repeated while no owner answers.
	askEvery = 500 * time.Millisecond
)

// ask returns a part of the answer to q by the owner of the partition. If this node is not the owner,
// ask repeats the question until an owner says that it is working on the answer. It asks the next
// owner if the owner loses the partition before it has done anything.
func (s *node) ask(ctx context.Context, q question) (a answer, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return a, err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", q.Partition, context.DeadlineExceeded))
	defer cancel()
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	if err != nil {
		return a, err
	}
	defer sub.Unsubscribe()
	for {
		if p := s.ready(q.Partition); p != nil {
			if a, err = s.reply(ctx, p, &q); !a.Again {
				return a, err
			}
		}
		a = answer{}
		err := s.nc.PublishRequest(s.config.ask("owner"), sub.Subject, encode(q))
		for patience := askEvery; err == nil && !a.Again; patience = callTimeout {
			var m *nats.Msg
			hearing, cancel := context.WithTimeout(ctx, patience)
			m, err = sub.NextMsgWithContext(hearing)
			cancel()
			if err == nil && len(m.Data) > 0 { // an empty message says that the owner is working
				if err = decode(m.Data, &a); err == nil && a.Error != "" {
					err = errors.New(a.Error)
				}
				if !a.Again {
					return a, err
				}
			}
		}
		if sleep(ctx, behind) != nil {
			return answer{}, context.Cause(ctx)
		}
	}
}

// asked handles the question of another node. It answers if this node owns the partition.
func (s *node) asked(m *nats.Msg) {
	var q question
	if decode(m.Data, &q) != nil || s.calls.Enter(s.background) != nil {
		return
	}
	s.goroutines.Go(func() {
		defer s.calls.Leave()
		p := s.ready(q.Partition)
		if p == nil {
			return
		}
		m.Respond(nil)
		ctx, cancel := context.WithTimeout(s.background, callTimeout)
		defer cancel()
		a, err := s.reply(ctx, p, &q)
		if err != nil {
			a.Error = err.Error()
		}
		m.Respond(encode(a))
	})
}

// ready returns the partition n if this node owns it and can answer questions about it, otherwise
// nil.
func (s *index) ready(n int) *partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n >= len(s.owned) || s.owned[n] == nil || s.owned[n].state == reading || s.lapsed() != nil {
		return nil
	}
	return s.owned[n]
}

// reply answers a question about p.
func (s *node) reply(ctx context.Context, p *partition, q *question) (a answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch q.Kind {
	case askCounts:
		a = p.counts(q)
	case askWaiting:
		a, err = p.waiting(ctx, q)
	case askChange:
		a, err = s.change(ctx, p, q)
	}
	if err == nil && p.state == lost && a.Changed == 0 { // otherwise the whole change is made
		err = errLost
	}
	// The next owner has another order, and does not know a place in that of p.
	a.Again = err == errLost && a.Changed == 0 && (q.From == "" || q.Kind == askCounts)
	return a, err
}

// errLost is the error of an answer that may lack a part, and of a change that may be made in part.
var errLost = errors.New("another node has taken over the partition")

// answerRoom returns how many bytes an answer may have, so that the server takes it.
func (s *conn) answerRoom() int64 { return min(pageBytes, s.nc.MaxPayload()/2) }

// counts returns the counts of up to answerLen lanes of p, sorted by name. The store is locked.
func (p *partition) counts(q *question) (a answer) {
	for name, l := range p.lanes {
		if l.p == p && name > q.From {
			a.Counts = append(a.Counts, store.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
	}
	slices.SortFunc(a.Counts, func(a, b store.DestinationCounts) int { return strings.Compare(a.Destination, b.Destination) })
	room := p.answerRoom()
	for i, c := range a.Counts {
		if room -= int64(len(c.Destination)) + 64; i > 0 && (room < 0 || i == answerLen) {
			a.Counts, a.Next = a.Counts[:i], a.Counts[i-1].Destination
			break
		}
	}
	return a
}

// part returns the entries that match, in the order of Due, as many as an answer may have, and the
// place where the next part begins, if any. The first place is "". The store is locked.
func (p *partition) part(from string, match func(*entry) bool) (some []*entry, next string, err error) {
	after, epoch := new(entry), p.epoch
	if from != "" {
		fmt.Sscan(from, &epoch, &after.due, &after.order) // no error: behind has written it
	}
	if epoch != p.epoch { // an earlier owner had the entries in another order
		return nil, "", errLost
	}
	var most *entry // the part ends before it: sorting all entries would take too long
	for _, b := range p.order {
		for _, e := range b.entries {
			if e == nil || from != "" && e.compare(after) <= 0 || most != nil && e.compare(most) > 0 || !match(e) {
				continue
			}
			if some = append(some, e); len(some) == 4*pageLen {
				slices.SortFunc(some, (*entry).compare)
				some, most = some[:pageLen+1], some[pageLen]
			}
		}
	}
	slices.SortFunc(some, (*entry).compare)
	room := p.answerRoom()
	for i, e := range some {
		if room -= e.bytes(); i > 0 && (room < 0 || i == pageLen) {
			return some[:i], p.behind(some[i-1]), nil
		}
	}
	return some, "", nil
}

// behind returns the place behind an entry.
func (p *partition) behind(e *entry) string { return fmt.Sprint(p.epoch, e.due, e.order) }

// waiting returns the next waiting deliveries of the lane q.Destination, at first those after q.ID, if
// that waits. The store is locked; waiting unlocks it while it asks the server.
func (p *partition) waiting(ctx context.Context, q *question) (a answer, err error) {
	l := p.lanes[q.Destination]
	if l == nil {
		return a, nil
	}
	from := q.From
	if from == "" && q.ID != "" {
		key := store.KeyOf(l.name, q.ID)
		if after, _, _ := p.part("", func(e *entry) bool { return e.lane == l && e.key == key }); len(after) > 0 {
			from = p.behind(after[0])
		}
	}
	all, next, err := p.part(from, func(e *entry) bool { return e.lane == l })
	if err != nil {
		return a, err
	}
	a.Next = next
	ds, err := p.load(ctx, all)
	for _, d := range ds {
		if d != nil {
			record, _ := d.AppendBinary(nil) // no error: it was read from a record
			a.Waiting = append(a.Waiting, record)
		}
	}
	return a, err
}

// change makes q.Change to the next deliveries of p that q selects. The store is locked; change
// unlocks it while it asks the server.
func (s *node) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	filter, erase, user := q.WaitingFilter, q.Destination == "", hash(q.User)
	entries, next, err := p.part(q.From, func(e *entry) bool { // those that may match q, as far as the data in memory tells
		return erase && e.user == user || e.lane.name == q.Destination
	})
	if err != nil {
		return a, err
	}
	a.Next = next
	ds, err := s.load(ctx, entries)
	if err != nil {
		return a, err
	}
	w := newWrite(p)
	for i, e := range entries {
		filter.Destination = e.lane.name
		if ds[i] == nil || !filter.Match(ds[i]) {
			continue
		}
		if e.claim != 0 {
			a.Claimed++
			continue
		}
		by := store.Settlement{Verdict: store.Done, Delivery: *ds[i]}
		if q.Change == store.DueNow {
			if by.Verdict = store.Retry; !by.Delivery.Hasten(now()) {
				continue
			}
		}
		s.claim(e) // from here on nobody else can
		e.write = w
		end := s.ending(e, ds[i], &by)
		end.news, end.erase = true, erase
		w.endings = append(w.endings, end)
	}
	if len(w.endings) == 0 {
		return a, nil
	}
	s.mu.Unlock()
	err = s.write(ctx, w)
	s.mu.Lock()
	if err == nil && w.begun {
		a.Changed = len(w.endings)
	}
	if err == nil && !w.whole {
		err = errLost
	}
	return a, err
}

// Count implements store.Keeper. It asks the owners of all partitions. If another node puts a
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
	dead, err := s.page(ctx, request{Batch: 1, Seq: 1, Next: s.config.deadFilter("*", store.EndedFilter{})}, 0)
	if err != nil {
		return store.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	for _, m := range dead { // the first one says how many follow
		all.Dead, _ = strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
		all.Dead++
	}
	return all, nil
}

// CountByDestination implements store.Keeper. It asks the owners of all partitions.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[store.DestinationCounts, error] {
	return func(yield func(store.DestinationCounts, error) bool) {
		for n := range s.config.Partitions {
			for c, err := range store.Pages("", func(from string) ([]store.DestinationCounts, string, error) {
				a, err := s.ask(ctx, question{Kind: askCounts, Partition: n, From: from})
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

// Waiting implements store.Keeper. It may leave out deliveries that are settled or put back while
// it reads. It ends with an error if another node takes over the destination after the first part.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	filter := store.WaitingFilter{Destination: destination, ID: after}
	return store.Pages("", func(from string) ([]store.Delivery, string, error) {
		a, err := s.ask(ctx, question{Kind: askWaiting, Partition: s.config.partition(destination), WaitingFilter: filter, From: from})
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

// Change implements store.Keeper. It asks the owner of the destination several times if many
// deliveries wait.
func (s *Store) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.changeIn(ctx, s.config.partition(filter.Destination), filter, to)
}

// changeIn makes a change to the deliveries of one partition.
func (s *node) changeIn(ctx context.Context, partition int, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	q := question{Kind: askChange, Partition: partition, WaitingFilter: filter, Change: to}
	for more := true; more; more = q.From != "" {
		a, err := s.ask(ctx, q)
		n, claimed, q.From = n+a.Changed, claimed+a.Claimed, a.Next
		if err != nil {
			return n, claimed, fmt.Errorf("natsqueue: changing waiting deliveries: %w", err)
		}
	}
	return n, claimed, nil
}

// Erase implements store.Keeper. When it returns, the bytes of erased deliveries may still be in
// the stream. The package comment says when the server erases them.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	for partition := range s.config.Partitions {
		n, passed, err := s.changeIn(ctx, partition, store.WaitingFilter{User: user}, store.Discarded)
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
