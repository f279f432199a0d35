package webhook

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A settler stores the outcomes of claimed deliveries. While the store commits some, the next ones
// gather, so that under load one commit holds many. The settler sets aside an outcome that the
// store refuses, and offers it again later, so that it does not hold up the others.
type settler struct {
	config   *Config
	recorder *recorder
	schedule *scheduler
	wake     store.Signal // wakes the fetcher

	// Only the goroutine of run uses these fields.
	left    []store.Settlement // to be offered to the store again later
	spare   []store.Settlement // empty, space for pending
	down    bool               // the latest flush has given up
	failure error              // the latest error of Settle, nil once all is stored
	backoff storeBackoff

	mu      sync.Mutex // guards the fields below
	pending []store.Settlement
	failing bool         // the last flush could store nothing
	late    bool         // behind has returned true, so the fetcher is to be woken
	news    store.Signal // set when pending is not empty
}

// After a commit of at least busyOutcomes the settler waits for busyPause. Many outcomes take
// hardly more work than few: under load the pause saves 1.5 us of a delivery in a store of files.
const (
	busyOutcomes = 8
	busyPause    = time.Millisecond
)

// add queues the outcome of a delivery to be stored. It does not block.
func (s *settler) add(v store.Settlement) {
	s.mu.Lock()
	s.pending = append(s.pending, v)
	first := len(s.pending) == 1
	s.mu.Unlock()
	if first {
		s.news.Set()
	}
}

// addAll is add for the outcomes of a batch, which it does not keep.
func (s *settler) addAll(vs []store.Settlement) {
	s.mu.Lock()
	first := len(s.pending) == 0
	s.pending = append(s.pending, vs...)
	s.mu.Unlock()
	if first {
		s.news.Set()
	}
}

// giveBack settles d with Return, so that any node can claim it again, and empties d.
func (s *settler) giveBack(d *Delivery) {
	s.add(store.Settlement{Verdict: store.Return, Delivery: *d})
	*d = Delivery{}
}

// returnAll is giveBack for the deliveries of items. The store learns of the attempts of a Part.
func (s *settler) returnAll(items []item) {
	for i := range items {
		d := items[i].Value
		if items[i].Part {
			s.add(postpone(d, s.config.now()))
			*d = Delivery{}
		} else {
			s.giveBack(d)
		}
	}
}

// behind reports whether the store stores nothing at all, or more than limit outcomes wait for it.
// If so, the settler wakes the fetcher when that is over.
func (s *settler) behind(limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	behind := s.failing || len(s.pending) > limit
	s.late = s.late || behind
	return behind
}

// run stores outcomes until stop is closed and everything is stored. While the store fails, it
// keeps trying. It returns an error if not everything is stored Config.Timeout after stop was
// closed.
func (s *settler) run(ctx context.Context, stop <-chan struct{}) error {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	again := time.NewTimer(longestPause) // runs while s.left is not empty
	defer again.Stop()
	for stopping := false; ; {
		news, retry := s.news, true
		if s.down {
			news = nil // the store gets nothing until the timer fires
		}
		select {
		case <-news:
			retry = false
		case <-again.C:
		case <-stop:
			stop, stopping = nil, true
			defer time.AfterFunc(s.config.Timeout, giveUp).Stop()
		case <-ctx.Done():
			return cmp.Or(s.failure, ctx.Err())
		}
		first := len(s.left) == 0
		n := s.flush(ctx, retry)
		switch {
		case len(s.left) == 0 && stopping:
			return nil
		case len(s.left) > 0 && (first || retry): // further outcomes do not postpone the next retry
			again.Reset(s.backoff.pause)
		}
		if n >= busyOutcomes && !stopping {
			select {
			case <-time.After(busyPause):
			case <-stop:
			}
		}
	}
}

// flush stores the pending outcomes and, with retry, those left from before, and returns their
// number. It gives up when the store refuses two outcomes in a row.
func (s *settler) flush(ctx context.Context, retry bool) (n int) {
	s.mu.Lock()
	all := s.pending
	s.pending = s.spare
	s.mu.Unlock()
	if retry {
		all, s.left = append(all, s.left...), nil
	}
	var refused []store.Settlement
	ss, refusals, progress := all, 0, len(all) == 0
	for len(ss) > 0 && refusals < 2 && ctx.Err() == nil {
		n, err := s.config.Store.Settle(ctx, ss)
		if n > 0 {
			progress, refusals = true, 0
			s.stored(ss[:n], s.failure != nil)
			ss = ss[n:]
		} else if err == nil {
			err = errors.New("webhook: the store settled nothing and returned no error")
		}
		if err != nil && len(ss) > 0 && ctx.Err() == nil { // an error is about the first one left
			s.failure = err
			refusals++
			refused = append(refused, ss[0])
			ss = ss[1:]
		}
	}
	s.down = refusals == 2
	s.left = append(append(s.left, ss...), refused...)
	clear(all)
	s.spare = all[:0]
	// Only now may the fetcher go on after an outage. Claims may have ended during it, so that the
	// store hands out deliveries whose outcomes are not stored yet, to be attempted again.
	s.mu.Lock()
	s.failing = !progress && len(s.left) > 0
	goOn := s.late && !s.failing
	s.late = s.late && s.failing
	s.mu.Unlock()
	if goOn {
		s.wake.Set()
	}
	switch {
	case len(s.left) == 0:
		s.failure = nil
		s.backoff.over(s.config.Logger)
	case len(ss)+len(refused) > 0 && s.backoff.failed() && ctx.Err() == nil:
		text := "webhook: the store fails; deliveries may be sent again"
		if progress {
			text = "webhook: the store refuses some outcomes; these deliveries may be sent again"
		}
		s.config.Logger.Error(text, "error", s.failure)
	}
	return len(all)
}

// recordOf returns the record of a delivery that has ended.
func recordOf(v *store.Settlement, at time.Time) Record {
	r := Record{Delivery: v.Delivery, State: StateDelivered, Reason: v.Reason, At: at}
	if v.Verdict == store.Bury {
		r.State = StateDead
	}
	return r
}

// released returns when the delivery behind that of v is due, zero if there is none. If the store
// has failed, it may have released a delivery without saying so. Then released returns the present
// time.
func (s *settler) released(v *store.Settlement, failed bool) time.Time {
	if v.Released.IsZero() && v.Delivery.Key != "" && failed {
		return s.config.now()
	}
	return v.Released
}

// stored counts settlements that are stored. It tells the scheduler of the deliveries that wait
// again, or are due because another with their Key has ended, and the observer of those that have
// ended. fails reports whether an earlier outcome could not be stored.
func (s *settler) stored(ss []store.Settlement, fails bool) {
	now := time.Now()
	bytes := int64(0)
	for i := range ss {
		v := &ss[i]
		d := &v.Delivery
		bytes += int64(len(d.Body))
		if v.Verdict != store.Return {
			var failed time.Time
			s.recorder.countFor(d.Destination, func(a *account) {
				if since := a.settled(v); !since.IsZero() {
					failed = since
				}
			})
			if !failed.IsZero() && s.recorder.failures {
				s.recorder.failed(Failing{Destination: d.Destination, Stage: FailingEnded, Since: failed})
			}
		}
		switch {
		case v.Verdict == store.Done || v.Verdict == store.Bury:
			s.recorder.tell(func(o Observer) { o.Ended(recordOf(v, now.UTC())) })
			if due := s.released(v, fails); !due.IsZero() {
				s.schedule.Note(d.Destination, due, time.Time{})
			}
		case d.Expires.IsZero():
			s.schedule.Note(d.Destination, d.Due, time.Time{})
		default:
			s.schedule.Note(d.Destination, time.Time{}, d.Due)
		}
	}
	s.schedule.Settled(bytes)
}
