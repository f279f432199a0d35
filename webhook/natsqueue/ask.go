package natsqueue

import (
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

// owners answers questions about partitions: of this node, or of those that own them.
type owners struct {
	*cleaner
}

// A question is one to the owner of a partition.
type question struct {
	// Lanes asks for the counts of lanes, from the one after After on; Waiting for what waits for
	// the lane Name, from the one after the ID After on, or after At; Erase to erase the user Name;
	// Change to change what waits for the lane Name, has the ID After, and is of User and
	// Event, unless these are empty, in the messages from the sequence From on.
	// Else the counts of the partition are asked for.
	Lanes   bool   `json:"lanes,omitempty"`
	Waiting bool   `json:"waiting,omitempty"`
	Erase   bool   `json:"erase,omitempty"`
	Name    []byte `json:"name,omitempty"`
	After   []byte `json:"after,omitempty"`
	At      *place `json:"at,omitempty"`

	Change webhook.Change `json:"change,omitempty"`
	User   []byte         `json:"user,omitempty"`
	Event  []byte         `json:"event,omitempty"`
	From   uint64         `json:"from,omitempty"`
}

// An answer is that of an owner.
type answer struct {
	Counts  []count `json:"counts,omitempty"`
	Waiting []place `json:"waiting,omitempty"`
	Changed int     `json:"changed,omitempty"` // or erased
	Claimed int     `json:"claimed,omitempty"`
	Next    uint64  `json:"next,omitempty"` // the From of the next question, 0 if there is none
	Error   string  `json:"error,omitempty"`
}

// A count is that of a lane, or of a partition.
type count struct {
	Lane    []byte `json:"lane,omitempty"`
	Waiting int    `json:"waiting,omitempty"`
	Claimed int    `json:"claimed,omitempty"`
	Oldest  int64  `json:"oldest,omitempty"` // in microseconds, 0 for none
}

// A place is where a delivery stands in its lane, and in the stream.
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
	// answerLen is how many counts, or places, an answer has at most.
	answerLen = 1000
	// askEvery is how often an owner is asked that does not answer: there may be none yet.
	askEvery = 500 * time.Millisecond
)

// ask asks the owner of a partition.
func (s *owners) ask(ctx context.Context, n int, q question) (answer, error) {
	if err := s.enter(ctx); err != nil {
		return answer{}, err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", n, context.DeadlineExceeded))
	defer cancel()
	text, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	for wait := behind; ; wait = min(2*wait, askEvery) {
		if a, ok := s.reply(ctx, n, q); ok {
			return a.checked()
		}
		asking, cancel := context.WithTimeout(ctx, askEvery)
		if q.Erase || q.Change != 0 { // reads and writes much
			cancel()
			asking, cancel = context.WithCancel(ctx)
		}
		m, err := s.nc.RequestWithContext(asking, s.config.ask("owner."+strconv.Itoa(n)), text)
		cancel()
		if err == nil {
			var a answer
			if err := json.Unmarshal(m.Data, &a); err != nil {
				return a, err
			}
			return a.checked()
		}
		if sleep(ctx, wait) != nil {
			return answer{}, context.Cause(ctx)
		}
	}
}

func (a answer) checked() (answer, error) {
	if a.Error != "" {
		return answer{}, errors.New(a.Error)
	}
	return a, nil
}

// asked answers another node, if this one is the owner.
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

// reply answers a question if this node is the owner of the partition n.
func (s *owners) reply(ctx context.Context, n int, q question) (a answer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n >= len(s.owned) || s.owned[n] == nil || s.lapsed() != nil {
		return answer{}, false
	}
	p := s.owned[n]
	select {
	case <-p.ready:
	default:
		return answer{}, false
	}
	switch {
	case q.Erase:
		s.mu.Unlock()
		changed, claimed, err := s.eraseOwned(ctx, p, string(q.Name))
		s.mu.Lock()
		if a.Changed, a.Claimed = changed, claimed; err != nil {
			a.Error = err.Error()
		}
	case q.Change != 0:
		s.mu.Unlock()
		changed, claimed, next, err := s.changeOwned(ctx, p, q)
		s.mu.Lock()
		if a.Changed, a.Claimed, a.Next = changed, claimed, next; err != nil {
			a.Error = err.Error()
		}
	case q.Waiting:
		a.Waiting = s.places(string(q.Name), string(q.After), q.At)
	default:
		a.Counts = s.counts(p, q)
	}
	return a, true
}

// counts returns the counts of p, or of some of its lanes. The store is locked.
func (s *index) counts(p *partition, q question) (all []count) {
	total := count{}
	for name, l := range s.lanes {
		if l.p != p || q.Lanes && name <= string(q.After) {
			continue
		}
		c := count{Waiting: l.waiting, Claimed: l.claimed, Oldest: l.oldest()}
		if q.Lanes {
			c.Lane = []byte(name)
			all = append(all, c)
		}
		total.add(c)
	}
	if !q.Lanes {
		return []count{total}
	}
	slices.SortFunc(all, func(a, b count) int { return strings.Compare(string(a.Lane), string(b.Lane)) })
	return all[:min(len(all), answerLen)]
}

func (c *count) add(d count) {
	c.Waiting += d.Waiting
	c.Claimed += d.Claimed
	if d.Oldest != 0 && (c.Oldest == 0 || d.Oldest < c.Oldest) {
		c.Oldest = d.Oldest
	}
}

// places returns where the deliveries of a lane stand that come after an ID, or a place. The store
// is locked.
func (s *index) places(name, after string, at *place) (all []place) {
	l := s.lanes[name]
	if l == nil {
		return nil
	}
	key := storekit.KeyOf(name, after)
	for _, b := range l.p.order {
		for i, e := range b.entries {
			if e == nil || e.lane != l {
				continue
			}
			x := place{e.due, e.order, b.seq, e.i}
			if at == nil && after != "" && b.keys[i] == key {
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

// Count implements webhook.Keeper: it asks the nodes that share the store. What one of
// them does is in the counts once the owner of the destination knows of it, in
// milliseconds.
func (s *owners) Count(ctx context.Context) (webhook.Counts, error) {
	var total count
	for n := range s.config.Partitions {
		a, err := s.ask(ctx, n, question{})
		if err != nil {
			return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
		}
		for _, c := range a.Counts {
			total.add(c)
		}
	}
	dead, err := countDead(ctx, s.conn)
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	return webhook.Counts{Waiting: total.Waiting, Claimed: total.Claimed, Oldest: dueTime(total.Oldest), Dead: dead, DeadBytes: -1}, nil
}

// CountByDestination implements webhook.Keeper: it asks the nodes that share the store.
func (s *owners) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		for n := range s.config.Partitions {
			q := question{Lanes: true}
			for {
				a, err := s.ask(ctx, n, q)
				if err != nil {
					yield(webhook.DestinationCounts{}, fmt.Errorf("natsqueue: counting: %w", err))
					return
				}
				for _, c := range a.Counts {
					if !yield(webhook.DestinationCounts{Destination: string(c.Lane), Waiting: c.Waiting, Claimed: c.Claimed, Oldest: dueTime(c.Oldest)}, nil) {
						return
					}
				}
				if len(a.Counts) < answerLen {
					break
				}
				q.After = a.Counts[answerLen-1].Lane
			}
		}
	}
}

// Waiting implements webhook.Keeper. What is settled or put back while it is read may be left out.
func (s *owners) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		q := question{Waiting: true, Name: []byte(destination), After: []byte(after)}
		for {
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
			}
			if err != nil {
				yield(webhook.Delivery{}, fmt.Errorf("natsqueue: what waits: %w", err))
				return
			}
			if len(a.Waiting) < answerLen {
				return
			}
			q.At = &a.Waiting[answerLen-1]
		}
	}
}

// Change implements webhook.Keeper: the owner of the destination does it, some messages at a time.
func (s *owners) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	q := question{Change: to, Name: []byte(filter.Destination), After: []byte(filter.ID), User: []byte(filter.User), Event: []byte(filter.Event)}
	for more := true; more; more = q.From > 0 {
		a, err := s.ask(ctx, s.config.partition(filter.Destination), q)
		if err != nil {
			return n, claimed, fmt.Errorf("natsqueue: changing what waits: %w", err)
		}
		n, claimed, q.From = n+a.Changed, claimed+a.Claimed, a.Next
	}
	return n, claimed, nil
}

// deliveries reads what is at places of a lane, and is still there.
func (s *owners) deliveries(ctx context.Context, places []place, lane string) (ds []webhook.Delivery, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	chunks := make(map[uint64]*chunk)
	var requests []request
	for _, x := range places {
		if _, ok := chunks[x.Seq]; !ok {
			chunks[x.Seq] = nil
			requests = append(requests, request{Seq: x.Seq, Batch: 1})
		}
	}
	pages, err := s.read(ctx, requests...)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		if len(page) > 0 {
			chunks[page[0].seq], _ = chunkOf(&page[0])
		}
	}
	for _, x := range places {
		c := chunks[x.Seq]
		var d webhook.Delivery
		if c != nil && int(x.I) < len(c.records) && d.UnmarshalBinary(c.records[x.I]) == nil && d.Destination == lane {
			ds = append(ds, d)
		}
	}
	return ds, nil
}

// chunkOf reads the chunk of a message of either kind.
func chunkOf(m *stored) (*chunk, error) {
	if strings.HasSuffix(m.subject, kindPut) {
		return parseChunk(m.data)
	}
	r, err := parseRecord(m.data)
	if err != nil {
		return nil, err
	}
	return &r.chunk, nil
}

// Erase implements webhook.Keeper. The bytes of the user leave the stream once what shares a message
// with them has been moved to another: within a second, mostly.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("natsqueue: erasure without a user")
	}
	for n := range s.config.Partitions {
		a, err := s.ask(ctx, n, question{Erase: true, Name: []byte(user)})
		if err != nil {
			return erased, claimed, fmt.Errorf("natsqueue: erasing: %w", err)
		}
		erased, claimed = erased+a.Changed, claimed+a.Claimed
	}
	dead, err := s.eraseDead(ctx, user)
	return erased + dead, claimed, err
}
