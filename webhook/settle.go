package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// A settler stores the outcomes of claimed deliveries. While the store commits some outcomes, the
// next ones gather, so that under load one commit holds many. The settler sets aside an outcome
// that the store refuses, and offers it again later, so that it does not hold up the others.
type settler struct {
	store  Store
	logger *slog.Logger
	// stored is called after each commit, with the settlements that were stored, and must not keep
	// them. The argument late says that the fetcher waits and can go on: behind has returned true
	// since the previous call with late set, and the store works now.
	stored func(ss []Settlement, late bool)
	calm   func() bool // reports whether run pauses after each commit
	limits settleLimits

	// Only the goroutine of run uses these fields.
	queued  []Settlement // next for the store
	refused []Settlement // to be offered again later
	failure error        // the latest error of Settle, nil once all is stored
	trouble outage

	mu      sync.Mutex // guards the fields below
	pending []Settlement
	bytes   int64         // of the bodies of all outcomes that are not stored yet
	failing bool          // the last flush could store nothing
	late    bool          // behind has returned true since the last call of stored with late set
	news    chan struct{} // capacity 1: has a value when pending is not empty
}

// settleLimits bound the settlements of one call of Store.Settle.
type settleLimits struct {
	count int
	bytes int64 // of the bodies; a single settlement may have more
}

// defaultSettleLimits are so large that the cost of a commit is spread over many settlements, and
// small enough for any store.
var defaultSettleLimits = settleLimits{count: 8192, bytes: 16 << 20}

// settlePause is the time between commits of outcomes while a backlog drains beside fresh
// deliveries. A Put waits while the store commits outcomes. So fewer commits let more Puts through:
// a commit of ten times as many outcomes takes hardly longer.
const settlePause = 10 * time.Millisecond

// errNothingSettled is the error of a store that breaks its contract.
var errNothingSettled = errors.New("webhook: the store settled nothing and returned no error")

func newSettler(store Store, logger *slog.Logger, stored func([]Settlement, bool), calm func() bool) *settler {
	return &settler{store: store, logger: logger, stored: stored, calm: calm, limits: defaultSettleLimits,
		news: make(chan struct{}, 1)}
}

// add queues the outcome of a delivery to be stored. It does not block.
func (s *settler) add(v Settlement) {
	s.mu.Lock()
	s.pending = append(s.pending, v)
	s.bytes += int64(len(v.Delivery.Body))
	first := len(s.pending) == 1
	s.mu.Unlock()
	if first {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// giveBack settles d with Return, so that any node can claim it again, and empties d.
func (s *settler) giveBack(d *Delivery) {
	s.add(Settlement{Verdict: Return, Delivery: *d})
	*d = Delivery{}
}

// behind reports whether the store stores nothing at all, more than limit outcomes wait for the
// store, or the bodies of the waiting outcomes have at least maxBytes. If behind returns true, the
// caller can wait: the settler calls stored with late set when the store works.
func (s *settler) behind(limit int, maxBytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	behind := s.failing || len(s.pending) > limit || s.bytes >= maxBytes
	s.late = s.late || behind
	return behind
}

// run stores outcomes until the channel stop is closed and everything is stored. While the store
// fails, run keeps trying. If ctx is done before everything is stored, run returns an error.
func (s *settler) run(ctx context.Context, stop <-chan struct{}) error {
	again := time.NewTimer(longestPause) // ends the wait after a failure
	defer again.Stop()
	for stopping := false; ; {
		news, retry := s.news, true
		if len(s.queued) > 0 {
			news = nil // the store fails: it gets nothing until the timer fires
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

// flush stores the pending outcomes and, with retry, also those that the store has refused before.
// It stops when the store refuses two outcomes in a row. It reports whether any outcome is left.
func (s *settler) flush(ctx context.Context, retry bool) (left bool) {
	s.mu.Lock()
	if len(s.queued) == 0 {
		s.queued, s.pending = s.pending, s.queued
	} else {
		s.queued, s.pending = move(s.queued, s.pending)
	}
	s.mu.Unlock()
	if retry {
		s.queued, s.refused = move(s.queued, s.refused)
	}
	at, refusals := 0, 0
	progress := len(s.queued) == 0
	for at < len(s.queued) && refusals < 2 && ctx.Err() == nil {
		ss := s.piece(s.queued[at:])
		n, err := s.store.Settle(ctx, ss)
		if n > 0 {
			s.finish(ss[:n])
			progress, refusals = true, 0
			at += n
		} else if err == nil {
			err = errNothingSettled
		}
		if err != nil && ctx.Err() == nil {
			s.refused = append(s.refused, s.queued[at])
			s.failure = err
			refusals++
			at++
		}
	}
	s.queued = slices.Delete(s.queued, 0, at)
	left = len(s.queued)+len(s.refused) > 0
	s.setFailing(!progress && left)
	if !left {
		s.failure = nil
		if s.trouble.over() {
			s.logger.Info("webhook: the store works again")
		}
		return false
	}
	if s.trouble.failed() && ctx.Err() == nil {
		text := "webhook: the store fails; deliveries may be sent again"
		if progress {
			text = "webhook: the store refuses some outcomes; these deliveries may be sent again"
		}
		s.logger.Error(text, "error", s.failure)
	}
	return true
}

// move moves all elements of the argument from to the end of the argument to. It returns both
// slices, the destination first. Both keep their arrays.
func move(to, from []Settlement) (_, _ []Settlement) {
	to = append(to, from...)
	clear(from)
	return to, from[:0]
}

// piece returns the first settlements of ss: as many as one call of Settle may get.
func (s *settler) piece(ss []Settlement) []Settlement {
	n, bytes := 0, int64(0)
	for n < min(len(ss), s.limits.count) {
		if bytes += int64(len(ss[n].Delivery.Body)); n > 0 && bytes > s.limits.bytes {
			break
		}
		n++
	}
	return ss[:n]
}

// finish counts ss as stored, and calls stored.
func (s *settler) finish(ss []Settlement) {
	bytes := int64(0)
	for i := range ss {
		bytes += int64(len(ss[i].Delivery.Body))
	}
	s.mu.Lock()
	s.bytes -= bytes
	late := s.late && !s.failing
	s.late = s.late && s.failing
	s.mu.Unlock()
	s.stored(ss, late)
}

// setFailing records, at the end of a flush, whether the store stores nothing at all. Recording the
// end of an outage earlier would let the fetcher go on too early. Claims may have ended during the
// outage. So the fetcher could get deliveries whose outcomes are not stored yet, and workers would
// attempt them again.
func (s *settler) setFailing(failing bool) {
	s.mu.Lock()
	late := s.late && s.failing && !failing
	s.late = s.late && !late
	s.failing = failing
	s.mu.Unlock()
	if late {
		s.stored(nil, true)
	}
}

// An outage makes the callers of a failing store wait longer after each failure.
type outage struct {
	pause time.Duration // zero: the latest call succeeded
}

const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 5 * time.Second
)

// failed records a failure, and reports whether it is the first in a row.
func (o *outage) failed() bool {
	first := o.pause == 0
	o.pause = min(max(2*o.pause, shortestPause), longestPause)
	return first
}

// over records a success, and reports whether it is the first one after failures.
func (o *outage) over() bool {
	was := o.pause > 0
	o.pause = 0
	return was
}
