package natsqueue

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/store"
)

// A question is a request from any node to the node that owns a partition. An answer may be only a
// page: then the same question gets the next page, with the Next of the answer as From.
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
	Next    string // where the next page begins; empty if there are no more
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

// An asker asks the owners of partitions, and answers for the partitions of this node.
type asker struct {
	conn       *conn
	life       *lifetime
	index      *index
	partitions *partitions
	loader     *loader
	recorder   *recorder
}

const (
	// answerLen is the most counts that an answer has, if their names fit; see answerRoom. Deliveries
	// take longer, because the owner may have to read each from the stream: an answer has or changes up
	// to pageLen of them.
	answerLen = 1000
	// askEvery is how often a question is repeated while no owner answers.
	askEvery = 500 * time.Millisecond
)

// ask returns a page of the answer to q by the owner of the partition. If this node is not the owner,
// ask repeats the question until an owner says that it is working on the answer. It asks the next
// owner if the owner loses the partition before it has done anything.
func (s *asker) ask(ctx context.Context, q question) (a answer, err error) {
	if err := s.life.calls.Enter(ctx); err != nil {
		return a, err
	}
	defer s.life.calls.Leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("natsqueue: no node has answered for partition %d: %w", q.Partition, context.DeadlineExceeded))
	defer cancel()
	sub, err := s.conn.nc.SubscribeSync(s.conn.nc.NewInbox())
	if err != nil {
		return a, err
	}
	defer sub.Unsubscribe()
	for {
		if p := s.partitions.ready(q.Partition); p != nil {
			if a, err = s.reply(ctx, p, &q); !a.Again {
				return a, err
			}
		}
		a = answer{}
		err := s.conn.nc.PublishRequest(s.conn.config.ask("owner"), sub.Subject, encode(q))
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
func (s *asker) asked(m *nats.Msg) {
	var q question
	if decode(m.Data, &q) != nil || s.life.calls.Enter(s.life.ctx) != nil {
		return
	}
	s.life.goroutines.Go(func() {
		defer s.life.calls.Leave()
		p := s.partitions.ready(q.Partition)
		if p == nil {
			return
		}
		m.Respond(nil)
		ctx, cancel := context.WithTimeout(s.life.ctx, callTimeout)
		defer cancel()
		a, err := s.reply(ctx, p, &q)
		if err != nil {
			a.Error = err.Error()
		}
		m.Respond(encode(a))
	})
}

// reply answers a question about p.
func (s *asker) reply(ctx context.Context, p *partition, q *question) (a answer, err error) {
	switch q.Kind {
	case askCounts:
		a = p.counts(q.From)
	case askWaiting:
		a, err = s.waiting(ctx, p, q)
	case askChange:
		a, err = s.change(ctx, p, q)
	}
	if err == nil && a.Changed == 0 && p.isLost() { // otherwise the whole change is made
		err = errLost
	}
	// The next owner has another order, and does not know a place in that of p.
	a.Again = err == errLost && a.Changed == 0 && (q.From == "" || q.Kind == askCounts)
	return a, err
}

// errLost is the error of an answer that may be incomplete, and of a change that may be made in part.
var errLost = errors.New("another node has taken over the partition")

// waiting returns the next waiting deliveries of the lane q.Destination, at first those after q.ID, if
// that waits.
func (s *asker) waiting(ctx context.Context, p *partition, q *question) (a answer, err error) {
	var all []*entry
	if all, a.Next, err = p.list(q); err != nil {
		return a, err
	}
	err = s.loader.load(ctx, all, func(ds []*store.Delivery) error {
		for _, d := range ds {
			if d != nil {
				record, _ := d.AppendBinary(nil) // no error: it was read from a record
				a.Waiting = append(a.Waiting, record)
			}
		}
		return nil
	})
	return a, err
}

// change makes q.Change to the next deliveries of p that q selects.
func (s *asker) change(ctx context.Context, p *partition, q *question) (a answer, err error) {
	var entries []*entry
	if entries, a.Next, err = p.list(q); err != nil {
		return a, err
	}
	w := newWrite(p)
	if err = s.loader.load(ctx, entries, func(ds []*store.Delivery) error {
		a.Claimed = s.begin(w, entries, ds, q)
		return nil
	}); err != nil || len(w.endings) == 0 {
		return a, err
	}
	err = s.recorder.write(ctx, w)
	if err == nil && w.begun {
		a.Changed = len(w.endings)
	}
	if err == nil && !w.whole {
		err = errLost
	}
	return a, err
}

// begin adds to w the endings of those entries that q changes, and returns how many it does not change
// because they are claimed. ds has their deliveries. The index is locked.
func (s *asker) begin(w *write, entries []*entry, ds []*store.Delivery, q *question) (claimed int) {
	filter, erase := q.WaitingFilter, q.Destination == ""
	for i, e := range entries {
		filter.Destination = e.lane.name
		if ds[i] == nil || !filter.Match(ds[i]) {
			continue
		}
		if e.claim != 0 {
			claimed++
			continue
		}
		by := store.Settlement{Verdict: store.Done, Delivery: *ds[i]}
		if q.Change == store.DueNow {
			if by.Verdict = store.Retry; !by.Delivery.Hasten(now()) {
				continue
			}
		}
		s.index.claim(e) // from here on nobody else can
		e.write = w
		end := s.recorder.ending(e, ds[i], &by)
		end.news, end.erase = true, erase
		w.endings = append(w.endings, end)
	}
	return claimed
}

// changeIn makes a change to the deliveries of one partition.
func (s *asker) changeIn(ctx context.Context, partition int, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
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
