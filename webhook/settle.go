package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// A settler tells the store what became of claimed deliveries. While one report is
// being stored the next gathers, so that under load a commit holds many.
//
// A report goes to the store in pieces. What the store refuses is set aside and tried
// again later, so that it holds up no other.
type settler struct {
	store  Store
	logger *slog.Logger
	stored storedFunc  // called after each piece
	calm   func() bool // reports whether commits may be rarer
	bounds bounds      // of a piece

	// These belong to the goroutine of run.
	queued  settlements // what the store is given next
	aside   settlements // what it refused
	failure error       // of the latest call of Settle; nil if it succeeded
	refusal error       // why the latest of aside was refused
	trouble outage

	mu      sync.Mutex
	pending settlements
	bytes   int64         // of the bodies of everything that is not stored yet
	failing bool          // the store stores nothing
	late    bool          // behind has returned true since the last commit
	news    chan struct{} // capacity 1: has a value when pending is not empty
}

// bounds are how much one call of Store.Settle is given.
type bounds struct {
	count int
	bytes int64 // of the bodies; a single settlement may have more
}

// defaultBounds spread the cost of a commit over many settlements, and are small
// enough for any store.
var defaultBounds = bounds{count: 8192, bytes: 16 << 20}

// settlements have beside each one the account that it counts for: nil for a
// delivery that is given back.
type settlements struct {
	ss []Settlement
	of []*account
}

func (v *settlements) len() int { return len(v.ss) }

func (v *settlements) add(s Settlement, a *account) {
	v.ss = append(v.ss, s)
	v.of = append(v.of, a)
}

// take moves all of from to the end of v.
func (v *settlements) take(from *settlements) {
	v.ss = append(v.ss, from.ss...)
	v.of = append(v.of, from.of...)
	from.drop(from.len())
}

// drop takes out the first n, and keeps the arrays.
func (v *settlements) drop(n int) {
	left := copy(v.ss, v.ss[n:])
	copy(v.of, v.of[n:])
	clear(v.ss[left:])
	clear(v.of[left:])
	v.ss, v.of = v.ss[:left], v.of[:left]
}

// A storedFunc is called after settlements were stored, with the account of each, and
// whether behind has returned true since the call before. It keeps none of the
// slices.
type storedFunc func(ss []Settlement, of []*account, late bool)

// settlePause is the time between commits of settlements while a backlog drains
// beside fresh deliveries. A Put has to wait while the store is busy with a commit,
// and a commit of ten times as many settlements takes hardly longer.
const settlePause = 10 * time.Millisecond

func newSettler(store Store, logger *slog.Logger, stored storedFunc, calm func() bool) *settler {
	return &settler{store: store, logger: logger, stored: stored, calm: calm, bounds: defaultBounds,
		news: make(chan struct{}, 1)}
}

// add hands over what becomes of a delivery after an attempt, or instead of one. a
// is the account of its destination; nil for a delivery that is given back.
func (s *settler) add(v Settlement, a *account) {
	s.mu.Lock()
	s.pending.add(v, a)
	s.bytes += int64(len(v.Delivery.Body))
	first := s.pending.len() == 1
	s.mu.Unlock()
	if first {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// giveBack hands over a delivery that is to be fetched again, as it was, and
// empties it.
func (s *settler) giveBack(d *Delivery) {
	s.add(Settlement{Verdict: Return, Delivery: *d}, nil)
	*d = Delivery{}
}

// behind reports whether the store settles nothing, or more than limit settlements
// wait for it, or their bodies have maxBytes. If so, stored is told of it when the
// store has settled some. It returns the bytes of these bodies, too.
func (s *settler) behind(limit int, maxBytes int64) (behind bool, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	behind = s.failing || s.pending.len() > limit || s.bytes >= maxBytes
	s.late = s.late || behind
	return behind, s.bytes
}

// run stores what is added until stop is closed and all is stored. While the
// store fails it tries again; once stop is closed, until ctx is done.
func (s *settler) run(ctx context.Context, stop <-chan struct{}) error {
	again := time.NewTimer(longestPause) // when what was refused is tried again
	defer again.Stop()
	for stopping := false; ; {
		news, retry := s.news, true
		if s.queued.len() > 0 {
			news = nil // the store fails: it is given no more before again
		}
		select {
		case <-news:
			retry = false
		case <-again.C:
		case <-stop:
			stop, stopping = nil, true
		case <-ctx.Done():
			return cmp.Or(s.failure, ctx.Err())
		}
		if s.flush(ctx, retry) {
			again.Reset(s.trouble.pause)
		} else if stopping {
			return nil
		}
		if s.calm() && !stopping {
			select {
			case <-time.After(settlePause):
			case <-stop:
				stop, stopping = nil, true
				again.Reset(0)
			}
		}
	}
}

// flush stores what is pending and, if retry is set, what was set aside. It stops
// early when the store fails, and reports whether anything is left.
func (s *settler) flush(ctx context.Context, retry bool) (left bool) {
	s.mu.Lock()
	if s.queued.len() == 0 {
		s.queued, s.pending = s.pending, s.queued
	} else {
		s.queued.take(&s.pending)
	}
	s.mu.Unlock()
	if retry {
		s.queued.take(&s.aside)
	}
	at, row := 0, 0 // row counts refusals, one after the other
	progress := s.queued.len() == 0
	for at < s.queued.len() && row < 2 && ctx.Err() == nil {
		ss := s.piece(s.queued.ss[at:])
		var n int
		if n, s.failure = s.store.Settle(ctx, ss); n > 0 {
			s.finish(ss[:n], s.queued.of[at:at+n])
			progress, row = true, 0
			at += n
		}
		if s.failure != nil && ctx.Err() == nil {
			s.aside.add(s.queued.ss[at], s.queued.of[at])
			s.refusal = s.failure
			row++
			at++
		}
	}
	s.queued.drop(at)
	left = s.queued.len()+s.aside.len() > 0
	s.setFailing(!progress && left)
	switch {
	case !left && s.trouble.over():
		s.logger.Info("webhook: the store works again")
	case left && s.trouble.failed() && ctx.Err() == nil:
		if progress {
			s.logger.Error("webhook: the store refuses some outcomes, these deliveries may be repeated", "error", s.refusal)
		} else {
			s.logger.Error("webhook: the store fails, deliveries may be repeated", "error", s.failure)
		}
	}
	return left
}

// piece returns as many of ss, from the first on, as one call of Settle is given.
func (s *settler) piece(ss []Settlement) []Settlement {
	n, bytes := 0, int64(0)
	for n < min(len(ss), s.bounds.count) {
		if bytes += int64(len(ss[n].Delivery.Body)); n > 0 && bytes > s.bounds.bytes {
			break
		}
		n++
	}
	return ss[:n]
}

// finish notes that ss were stored.
func (s *settler) finish(ss []Settlement, of []*account) {
	bytes := int64(0)
	for i := range ss {
		bytes += int64(len(ss[i].Delivery.Body))
	}
	s.mu.Lock()
	s.bytes -= bytes
	late := s.late && !s.failing
	s.late = s.late && s.failing
	s.mu.Unlock()
	s.stored(ss, of, late)
}

// setFailing notes at the end of a flush whether the store stores nothing. The end of
// an outage is noted no earlier: claims may have ended while it lasted, and the
// deliveries whose outcome is not stored yet would be fetched and attempted again.
func (s *settler) setFailing(failing bool) {
	s.mu.Lock()
	late := s.late && s.failing && !failing
	s.late = s.late && !late
	s.failing = failing
	s.mu.Unlock()
	if late {
		s.stored(nil, nil, true)
	}
}

// An outage paces the attempts at something that fails. The zero value is
// ready to use.
type outage struct {
	pause time.Duration
}

const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 5 * time.Second
)

// failed notes a failure and reports whether it is the first in a row.
func (o *outage) failed() bool {
	first := o.pause == 0
	o.pause = min(max(2*o.pause, shortestPause), longestPause)
	return first
}

// over notes a success and reports whether it is the first after failures.
func (o *outage) over() bool {
	was := o.pause > 0
	o.pause = 0
	return was
}

// wait pauses after a failure, longer each time, at most until ctx is done.
func (o *outage) wait(ctx context.Context) {
	t := time.NewTimer(o.pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
