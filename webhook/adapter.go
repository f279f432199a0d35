package webhook

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
)

// A SchedulingQueue is a Queue with all the parts that FromQueue needs.
type SchedulingQueue interface {
	Queue
	DeadLetters
	Counter
	DestinationCounter
	Roster
	Rosters
	Pauses
}

// FromQueue returns a Store on a Queue, which has a schedule of its own. It mixes fresh
// deliveries and retries, as the Queue does: behind an open breaker fresh deliveries hide
// retries. Settings other than pauses, Waiting and Erase are not supported. If q is shared
// by several nodes, so is the Store.
func FromQueue(q SchedulingQueue) Store {
	a := &adapter{SchedulingQueue: q, most: maxAdapted, changed: make(chan struct{}, 1), closed: make(chan struct{})}
	a.timer = time.AfterFunc(time.Hour, a.signal)
	a.timer.Stop()
	if w, ok := q.(Waker); ok {
		a.waiting.Go(func() {
			for {
				select {
				case <-w.Wake():
					a.signal()
				case <-a.closed:
					return
				}
			}
		})
	}
	if s, ok := q.(sharedQueue); ok {
		return &sharedAdapter{a, s}
	}
	return a
}

type adapter struct {
	SchedulingQueue

	changed chan struct{}
	closed  chan struct{}
	once    sync.Once
	waiting sync.WaitGroup

	mu      sync.Mutex
	timer   *time.Timer // signals when something becomes due
	largest int64       // about the size of the largest recent body
	most    int         // settlements in the next call
	room    map[string]int
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

func (a *adapter) Changed() <-chan struct{} { return a.changed }
func (a *adapter) Now() time.Time           { return time.Now() }

func (a *adapter) Put(ctx context.Context, ps []Put, out []Result) error {
	ds := make([]Delivery, len(ps))
	for i := range ps {
		ds[i] = ps[i].Delivery
	}
	n, err := a.SchedulingQueue.Put(ctx, ds...)
	if err != nil {
		return err
	}
	// A Queue does not say which were left out.
	for i := range out {
		out[i] = Result{Stored: i < n}
	}
	if n > 0 && n < len(ps) {
		a.signal()
	}
	return nil
}

func (a *adapter) Fetch(ctx context.Context, wants []Want, maxBytes int64, dst []Delivery) ([]Delivery, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.room = make(map[string]int, len(wants))
	most := 0
	for i := range wants {
		a.room[wants[i].Destination] += wants[i].Max
		most += wants[i].Max
	}
	if a.largest > 0 {
		most = int(min(int64(most), max(maxBytes/a.largest, 1)))
	}
	before := len(dst)
	now := time.Now()
	dst, next, err := a.Lease(ctx, LeaseRequest{Max: most, Until: now.Add(adaptedLease), Room: func(d string) int { return a.room[d] }}, dst)
	if err != nil {
		return dst[:before], err
	}
	for i := range dst[before:] {
		d := &dst[before+i]
		a.room[d.Destination]--
		size := int64(len(d.Body))
		a.largest = max(size, a.largest-a.largest/1024)
	}
	for i := range wants {
		wants[i].Next = time.Time{}
		if a.room[wants[i].Destination] <= 0 || len(dst)-before == most {
			wants[i].Next = now // there may be more
		}
	}
	a.due(next)
	return dst, nil
}

// due has Changed signal at a time. a.mu is held.
func (a *adapter) due(next time.Time) {
	if !next.IsZero() {
		a.timer.Reset(max(time.Until(next), 20*time.Millisecond))
	}
}

// Heads asks for the room of every destination that has something due, and gives none.
func (a *adapter) Heads(ctx context.Context, _ bool) iter.Seq2[Head, error] {
	return func(yield func(Head, error) bool) {
		a.mu.Lock()
		var due []string
		now := time.Now()
		_, next, err := a.Lease(ctx, LeaseRequest{Max: 1, Until: now, Room: func(d string) int {
			due = append(due, strings.Clone(d))
			return 0
		}}, nil)
		if err == nil {
			a.due(next)
		}
		a.mu.Unlock()
		if err != nil {
			yield(Head{}, err)
			return
		}
		for _, d := range due {
			if !yield(Head{Destination: d, Fresh: now}, nil) {
				return
			}
		}
	}
}

func (a *adapter) Settle(ctx context.Context, ss []Settlement) (n int, err error) {
	for n < len(ss) {
		a.mu.Lock()
		most := a.most
		a.mu.Unlock()
		piece := slices.Clone(ss[n:min(n+most, len(ss))])
		for i := range piece {
			if piece[i].Verdict == Return {
				piece[i].Verdict = Retry
			}
		}
		if err = a.SchedulingQueue.Settle(ctx, piece...); err != nil {
			most = max(len(piece)/2, 1)
		} else {
			n += len(piece)
			most = min(2*most, maxAdapted)
		}
		a.mu.Lock()
		a.most = most
		a.mu.Unlock()
		if err != nil {
			return n, err
		}
	}
	return n, nil
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
	return 1, a.SetPaused(ctx, destination, s.Value != nil)
}

func (a *adapter) Close() error {
	a.once.Do(func() { close(a.closed) })
	a.mu.Lock()
	a.timer.Stop()
	a.mu.Unlock()
	a.waiting.Wait()
	return a.SchedulingQueue.Close()
}

type sharedQueue interface {
	Releaser
	Presenter
}

type sharedAdapter struct {
	*adapter
	shared sharedQueue
}

func (a *sharedAdapter) Present(note func() ([]byte, bool)) {
	a.shared.Present(func() []byte {
		n, _ := note() // a Queue's own heartbeat says that it is alive
		return n
	})
}

func (a *sharedAdapter) Release(ctx context.Context) error         { return a.shared.Release(ctx) }
func (a *sharedAdapter) Nodes(ctx context.Context) ([]Node, error) { return a.shared.Nodes(ctx) }

var (
	_ Store  = (*adapter)(nil)
	_ Roster = (*adapter)(nil)
	_ Shared = (*sharedAdapter)(nil)
)
