package webhook

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// A settler reports to the store what became of leased deliveries. While one
// report is being stored the next gathers, so that under load a commit holds
// many.
type settler struct {
	queue  Queue
	logger *slog.Logger
	stored storedFunc  // called after each commit
	calm   func() bool // reports whether commits may be rarer

	// The arrays that pending and accounts get at the next flush, which alone
	// uses them.
	spare       []Settlement
	spareOwners []*account

	mu       sync.Mutex
	pending  []Settlement
	accounts []*account    // whom pending counts for; nil for what is given back
	tally    tally         // of pending
	failing  bool          // the store fails
	retry    bool          // pending has a Retry
	late     bool          // behind has returned true since the last commit
	news     chan struct{} // capacity 1: has a value when pending is not empty
}

// A storedFunc is called after settlements were stored, with the account of each,
// their tally, whether one is a Retry, and whether behind has returned true since the
// commit before. It keeps none of the slices.
type storedFunc func(ss []Settlement, of []*account, t tally, retry, late bool)

// settlePause is the time between commits of settlements while a backlog drains
// beside fresh deliveries. A Put has to wait while the store is busy with a commit,
// and a commit of ten times as many settlements takes hardly longer.
const settlePause = 10 * time.Millisecond

func newSettler(q Queue, logger *slog.Logger, stored storedFunc, calm func() bool) *settler {
	return &settler{queue: q, logger: logger, stored: stored, calm: calm, news: make(chan struct{}, 1)}
}

// A tally counts attempts by what they led to.
type tally struct {
	delivered, retried int
	dead               [len(reasons)]int
}

// add hands over what becomes of a delivery after an attempt, or instead of one. a
// is the account of its destination.
func (s *settler) add(v Settlement, a *account) {
	s.mu.Lock()
	switch v.Verdict {
	case Done:
		s.tally.delivered++
	case Retry:
		s.tally.retried++
	case Bury:
		// A reason that a later version has stored is not in the list.
		if i := slices.Index(reasons[:], v.Reason); i >= 0 {
			s.tally.dead[i]++
		}
	}
	s.push(v, a)
}

// giveBack hands over a delivery that is to be leased again, as it was, and
// empties it.
func (s *settler) giveBack(d *Delivery) {
	s.mu.Lock()
	s.push(Settlement{Verdict: Retry, Delivery: *d}, nil)
	*d = Delivery{}
}

// push adds to pending, and unlocks s.mu.
func (s *settler) push(v Settlement, a *account) {
	s.pending = append(s.pending, v)
	s.accounts = append(s.accounts, a)
	s.retry = s.retry || v.Verdict == Retry
	first := len(s.pending) == 1
	s.mu.Unlock()
	if first {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// behind reports whether the store fails to settle, or more than limit
// settlements wait for it. If so, stored is told of it after the next commit.
func (s *settler) behind(limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	behind := s.failing || len(s.pending) > limit
	s.late = s.late || behind
	return behind
}

// run stores what is added until stop is closed and all is stored. While the
// store fails it tries again; once stop is closed, until ctx is done.
func (s *settler) run(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-s.news:
		case <-stop:
			return s.flush(ctx)
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
		if s.calm() {
			select {
			case <-time.After(settlePause):
			case <-stop:
			}
		}
	}
}

// flush stores what is pending.
func (s *settler) flush(ctx context.Context) error {
	s.mu.Lock()
	batch, of, done, retry := s.pending, s.accounts, s.tally, s.retry
	s.pending, s.accounts, s.tally, s.retry = s.spare[:0], s.spareOwners[:0], tally{}, false
	s.mu.Unlock()
	s.spare, s.spareOwners = batch, of
	if len(batch) == 0 {
		return nil
	}
	var trouble outage
	for {
		err := s.queue.Settle(ctx, batch...)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		if trouble.failed() {
			s.logger.Error("webhook: the store fails, deliveries may be repeated", "error", err)
		}
		s.setFailing(true)
		trouble.wait(ctx)
	}
	if trouble.over() {
		s.setFailing(false)
		s.logger.Info("webhook: the store works again")
	}
	s.mu.Lock()
	late := s.late
	s.late = false
	s.mu.Unlock()
	s.stored(batch, of, done, retry, late)
	clear(batch)
	clear(of)
	return nil
}

func (s *settler) setFailing(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
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
