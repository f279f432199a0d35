package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
)

// A SchedulingQueue is a Queue with all the parts that FromQueue needs.
type SchedulingQueue interface {
	Queue
	// PutEach is Put, and sets stored[i] if ds[i] was stored. stored is as long as ds, or nil.
	PutEach(ctx context.Context, ds []Delivery, stored []bool) (n int, err error)
	DeadLetters
	Counter
	DestinationCounter
	Roster
	Rosters
	Pauses
}

// FromQueue returns a Store on a Queue, which has a schedule of its own. It mixes fresh
// deliveries and retries, as the Queue does: behind an open breaker fresh deliveries hide
// retries. Settings other than pauses, Waiting and Erase are not supported.
func FromQueue(q SchedulingQueue) Store {
	a := &adapter{SchedulingQueue: q, most: maxAdapted, changed: make(chan struct{}, 1), claimed: make(map[uint64]Delivery)}
	a.timer = time.AfterFunc(time.Hour, a.signal)
	a.timer.Stop()
	return a
}

type adapter struct {
	SchedulingQueue

	changed chan struct{}

	timer *time.Timer // signals when something becomes due

	mu      sync.Mutex
	largest int64               // about the size of the largest recent body
	most    int                 // settlements in the next call
	claimed map[uint64]Delivery // by Claim
}

// maxAdapted is how many settlements a Queue is given at once.
const maxAdapted = 8192

// adaptedLease is how long a Queue leases to an adapter: the claims of a Store do not end by
// time.
const adaptedLease = 10 * 365 * 24 * time.Hour

func (a *adapter) signal() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Unwrap returns the Queue, for tests.
func (a *adapter) Unwrap() SchedulingQueue { return a.SchedulingQueue }

func (a *adapter) Changed() <-chan struct{} { return a.changed }
func (a *adapter) Now() time.Time           { return time.Now().Truncate(time.Microsecond) }

func (a *adapter) Put(ctx context.Context, ps []Put, out []Result) error {
	ds := make([]Delivery, len(ps))
	for i := range ps {
		ds[i] = ps[i].Delivery
	}
	stored := make([]bool, len(ps))
	if _, err := a.PutEach(ctx, ds, stored); err != nil {
		return err
	}
	for i := range out {
		out[i] = Result{Stored: stored[i]}
	}
	return nil
}

func (a *adapter) Fetch(ctx context.Context, wants []Want, maxBytes int64, dst []Delivery) ([]Delivery, error) {
	room := make(map[string]int, len(wants))
	most := 0
	for i := range wants {
		room[wants[i].Destination] += wants[i].Max
		most += wants[i].Max
	}
	now := a.Now()
	before, more := len(dst), true
	for more && most > 0 {
		a.mu.Lock()
		n, largest := most, a.largest
		a.mu.Unlock()
		if maxBytes < largest && len(dst) > before {
			break
		}
		if largest > 0 {
			n = int(min(int64(n), max(maxBytes/largest, 1)))
		}
		got, next, err := a.Lease(ctx, LeaseRequest{Max: n, Until: now.Add(adaptedLease), Room: func(d string) int { return room[d] }}, dst)
		if err != nil {
			if len(dst) > before {
				break // what came before is claimed
			}
			return dst, err
		}
		a.due(next)
		more = len(got)-len(dst) == n
		at := len(dst)
		for ; at < len(got); at++ {
			size := int64(len(got[at].Body))
			largest = max(size, largest-largest/1024)
			if maxBytes -= size; maxBytes < 0 && at > before {
				break
			}
		}
		if at < len(got) && a.putBack(ctx, got[at:]) == nil {
			got, more = got[:at], true
		}
		a.mu.Lock()
		a.largest = largest
		for _, d := range got[len(dst):] {
			room[d.Destination]--
			most--
			a.claimed[d.Claim] = d
		}
		a.mu.Unlock()
		dst = got
	}
	for i := range wants {
		wants[i].Next = time.Time{}
		if more || room[wants[i].Destination] <= 0 {
			wants[i].Next = now // there may be more
		}
	}
	return dst, nil
}

// putBack ends the leases of ds, which were not handed out.
func (a *adapter) putBack(ctx context.Context, ds []Delivery) error {
	ss := make([]Settlement, len(ds))
	for i, d := range ds {
		ss[i] = Settlement{Verdict: Retry, Delivery: d}
	}
	return a.SchedulingQueue.Settle(ctx, ss...)
}

// due has Changed signal at a time.
func (a *adapter) due(next time.Time) {
	if !next.IsZero() {
		a.timer.Reset(max(time.Until(next), 20*time.Millisecond))
	}
}

// Heads asks for the room of every destination that has something due, and gives none.
func (a *adapter) Heads(ctx context.Context, _ bool) iter.Seq2[Head, error] {
	return func(yield func(Head, error) bool) {
		var due []string
		now := a.Now()
		_, next, err := a.Lease(ctx, LeaseRequest{Max: 1, Until: now, Room: func(d string) int {
			due = append(due, strings.Clone(d))
			return 0
		}}, nil)
		if err != nil {
			yield(Head{}, err)
			return
		}
		a.due(next)
		for _, d := range due {
			if !yield(Head{Destination: d, Fresh: now}, nil) {
				return
			}
		}
	}
}

// Settle gives the Queue what was leased, with what the verdict changes. When the Queue
// fails, the next call gives it half as many at once, so that an error is soon about one.
func (a *adapter) Settle(ctx context.Context, ss []Settlement) (n int, err error) {
	valid := len(ss)
	var refused error
	for i := range ss {
		if refused = ss[i].check(); refused != nil {
			valid = i
			break
		}
	}
	var piece []Settlement
	for n < valid {
		a.mu.Lock()
		end := min(n+a.most, valid)
		piece = piece[:0]
		for _, s := range ss[n:end] {
			d, ok := a.claimed[s.Delivery.Claim]
			switch {
			case !ok:
				continue // the claim does not hold any more
			case s.Verdict == Return:
				s.Verdict = Retry
			case s.Verdict != Done:
				d.Due, d.Expires, d.Tries, d.Closed, d.Attempts = s.Delivery.Due, s.Delivery.Expires, s.Delivery.Tries, s.Delivery.Closed, s.Delivery.Attempts
			}
			s.Delivery = d
			piece = append(piece, s)
		}
		a.mu.Unlock()
		if err = a.SchedulingQueue.Settle(ctx, piece...); err == nil {
			n = end
		}
		a.mu.Lock()
		a.most = min(2*a.most, maxAdapted)
		if err != nil {
			a.most = max(len(piece)/2, 1)
		} else {
			for i := range piece {
				delete(a.claimed, piece[i].Delivery.Claim)
			}
		}
		a.mu.Unlock()
		if err != nil {
			return n, err
		}
	}
	return n, refused
}

// check returns an error for a settlement that no Queue stores.
func (s *Settlement) check() error {
	switch s.Verdict {
	case Retry, Bury:
		return s.Delivery.Check()
	case Done, Return:
		return nil
	}
	return fmt.Errorf("webhook: settlement with verdict %d", s.Verdict)
}

func (a *adapter) Revive(ctx context.Context, keys ...string) (int, error) {
	defer a.signal()
	return a.SchedulingQueue.Revive(ctx, keys...)
}

func (a *adapter) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(user string) ([]Delivery, error)) (int, error) {
	defer a.signal()
	return a.SchedulingQueue.Join(ctx, audience, generation, users, announce)
}

func (a *adapter) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(user string) ([]Delivery, error)) (string, int, error) {
	defer a.signal()
	return a.SchedulingQueue.Leave(ctx, audience, generation, after, max, announce)
}

func (a *adapter) Count(ctx context.Context) (Counts, error) {
	c, err := a.SchedulingQueue.Count(ctx)
	c.DeadBytes = -1
	return c, err
}

func (a *adapter) Waiting(context.Context, string, string) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) { yield(Delivery{}, ErrUnsupported) }
}

func (a *adapter) Erase(context.Context, string) (int, int, error) { return 0, 0, ErrUnsupported }

func (a *adapter) Settings(ctx context.Context, prefix string) iter.Seq2[Setting, error] {
	return func(yield func(Setting, error) bool) {
		paused, err := a.Paused(ctx)
		if err != nil {
			yield(Setting{}, err)
			return
		}
		var all []Setting
		for d, since := range paused {
			value, _ := json.Marshal(pause{Since: since}) // a time of a store can be encoded
			all = append(all, Setting{Name: pausePrefix + d, Value: value, Version: 1})
		}
		slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
		for _, s := range all {
			if strings.HasPrefix(s.Name, prefix) && !yield(s, nil) {
				return
			}
		}
	}
}

func (a *adapter) Set(ctx context.Context, s Setting) (uint64, error) {
	destination, ok := strings.CutPrefix(s.Name, pausePrefix)
	if !ok {
		return 0, ErrUnsupported
	}
	paused, err := a.Paused(ctx)
	if err != nil {
		return 0, err
	}
	if _, is := paused[destination]; is != (s.Version != 0) {
		return 0, ErrConflict
	}
	return s.Version + 1, a.SetPaused(ctx, destination, s.Value != nil)
}

func (a *adapter) Close() error {
	a.timer.Stop()
	return a.SchedulingQueue.Close()
}

var (
	_ Store  = (*adapter)(nil)
	_ Roster = (*adapter)(nil)
)
