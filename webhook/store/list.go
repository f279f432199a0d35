package store

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"
)

// State says where in its life a delivery is.
type State string

const (
	StateBehind    State = "behind"    // another delivery with its Key
	StateWaiting   State = "waiting"   // for an attempt
	StateClaimed   State = "claimed"   // by a node that attempts it, or is about to
	StateDelivered State = "delivered" // and kept in the History
	StateDead      State = "dead"      // given up: a dead letter
)

// Pending returns the states of deliveries that may still be attempted.
func Pending() []State { return []State{StateBehind, StateWaiting, StateClaimed} }

// States returns all states.
func States() []State { return append(Pending(), StateDelivered, StateDead) }

// A Record is a delivery in any state. Its Attempts and Tries count the try that succeeded if the
// store keeps a History.
type Record struct {
	Delivery
	State  State
	Reason Reason    // why it was given up, if it is dead
	At     time.Time // when it was delivered or given up; for an Observer, when that was stored
}

// A Ref names a delivery of a store in any state. A dead letter that is retried is a new delivery,
// with another Seq.
type Ref struct {
	Destination string
	Seq         uint64
}

// ErrNoDelivery says that the store has no delivery with the Ref. It may have been retried,
// discarded, or delivered without a History.
var ErrNoDelivery = errors.New("webhook: no such delivery")

// A Query selects deliveries. A field that is zero selects all.
type Query struct {
	Destinations []string `json:"destination,omitempty"` // those to one of these
	States       []State  `json:"state,omitempty"`       // those in one of these states
	// Type is the type of the event, or the beginning of it and "*". So is Event for the event's name.
	Type   string `json:"type,omitempty"`
	Event  string `json:"event,omitempty"`
	ID     string `json:"id,omitempty"` // the ID or the MessageID
	User   string `json:"user,omitempty"`
	Reason Reason `json:"reason,omitempty"` // of dead letters
	// From and To bound Accepted: From <= Accepted < To.
	From   time.Time `json:"from,omitzero"`
	To     time.Time `json:"to,omitzero"`
	Oldest bool      `json:"-"` // a list begins with the oldest delivery, not with the newest one
}

// Match reports whether the query selects r.
func (q *Query) Match(r *Record) bool {
	return among(q.Destinations, r.Destination) && among(q.States, r.State) &&
		begins(q.Type, r.Type) && begins(q.Event, r.Event) && (matches(q.ID, r.ID) || q.ID == r.MessageID) &&
		matches(q.User, r.User) && matches(string(q.Reason), string(r.Reason)) &&
		(q.From.IsZero() || !r.Accepted.Before(q.From)) && (q.To.IsZero() || r.Accepted.Before(q.To))
}

// HasState reports whether the query may select deliveries in this state.
func (q *Query) HasState(s State) bool { return among(q.States, s) }

// HasDestination reports whether the query may select deliveries to this destination.
func (q *Query) HasDestination(id string) bool { return among(q.Destinations, id) }

// Ref returns the Ref of d.
func (d *Record) Ref() Ref { return Ref{d.Destination, d.Seq} }

// among reports whether v is one of these values, or there are none.
func among[T comparable](these []T, v T) bool { return len(these) == 0 || slices.Contains(these, v) }

// matches reports whether a field has the value that a query asks for, if it asks for one.
func matches(want, field string) bool { return want == "" || want == field }

// begins is matches for a want that may be a beginning and "*".
func begins(want, field string) bool {
	if beginning, ok := strings.CutSuffix(want, "*"); ok {
		return strings.HasPrefix(field, beginning)
	}
	return matches(want, field)
}

// Bounds of a page of List.
const (
	MaxListed   = 10_000  // deliveries that List looks at
	MaxListSize = 4 << 20 // the sum of the Sizes of a page, unless it is the size of one delivery
	// Of two deliveries, the one with the greater Seq may have been accepted earlier, but by at
	// most MaxSkew.
	MaxSkew = 10 * time.Second
)

// Records yields all deliveries that q selects. It reads pages of up to 256, and between two of them the
// loop may change the deliveries.
func Records(ctx context.Context, s Inspector, q Query) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for page, err := range PagesOf(ctx, s, q, 256) {
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
			if err != nil {
				yield(Record{}, err)
			}
		}
	}
}

// PagesOf yields the pages of a list, each of up to max deliveries. An error ends them.
func PagesOf(ctx context.Context, s Inspector, q Query, max int) iter.Seq2[[]Record, error] {
	return func(yield func([]Record, error) bool) {
		for after := uint64(0); ; {
			page, next, err := s.List(ctx, q, after, max)
			if !yield(page, err) || err != nil || next == 0 {
				return
			}
			after = next
		}
	}
}

// A Listing is the page that a List makes. Query, After and Max are the arguments of List.
type Listing struct {
	Query *Query
	After uint64
	Max   int

	Page   []Record
	Next   uint64 // the second result of List, once Add has returned false
	looked int
	size   int64
}

// Follows reports whether a delivery with the number seq comes behind After.
func (l *Listing) Follows(seq uint64) bool {
	return l.After == 0 || seq != l.After && seq > l.After == l.Query.Oldest
}

// Compare returns a negative number if a delivery with the number a comes before one with b.
func (l *Listing) Compare(a, b uint64) int {
	if (a < b) == l.Query.Oldest {
		return -1
	}
	return 1
}

// Add looks at the next delivery, in the order of the list, and adds it to the page if the query
// selects it. It reports whether List has to go on. If no delivery is left, List returns the Page and 0.
func (l *Listing) Add(r *Record) bool {
	if l.beyond(r.Accepted) {
		l.Next = 0
		return false
	}
	if l.Query.Match(r) {
		size := r.Size()
		if l.size += size; l.size > MaxListSize && len(l.Page) > 0 {
			return false // Next is that of the delivery before
		}
		l.Page = append(l.Page, *r)
	}
	l.looked++
	l.Next = r.Seq
	return len(l.Page) < l.Max && l.looked < MaxListed
}

// beyond reports whether neither a delivery that was accepted at this time, nor any behind it, is selected.
func (l *Listing) beyond(at time.Time) bool {
	if l.Query.Oldest {
		return !l.Query.To.IsZero() && at.Add(-MaxSkew).After(l.Query.To)
	}
	return !l.Query.From.IsZero() && at.Add(MaxSkew).Before(l.Query.From)
}

// Seek moves After, in a list that begins with the newest delivery, to where Query.To begins. It looks
// at about 40 deliveries. The function next returns the number of the first delivery behind after, of the
// destinations of the query and in any state, and when it was accepted. If there is none, seq is 0.
func (l *Listing) Seek(next func(after uint64) (seq uint64, at time.Time, err error)) error {
	if l.Query.To.IsZero() || l.Query.Oldest {
		return nil
	}
	last := l.Query.To.Add(MaxSkew)
	seq, at, err := next(l.After)
	if err != nil || seq == 0 || !at.After(last) {
		return err
	}
	low, high := uint64(0), seq // what is not behind high is too late, and what is behind low is not
	for low < high {
		middle := high - (high-low)/2
		switch seq, at, err = next(middle); {
		case err != nil:
			return err
		case seq == 0 || !at.After(last):
			low = middle
		default:
			high = seq
		}
	}
	l.After = high
	return nil
}
