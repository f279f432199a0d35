package webhook

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A question is what the forwarder asks a Directory: for one destination, or for those of a tenant.
type question struct {
	tenant bool
	key    string // the id of the destination, or the tenant
}

// An answer of a Directory. It does not change once done is closed.
type answer struct {
	destinations []Destination
	err          error
	begun        time.Time // when the question was asked
	size         int64     // in bytes, about
	cut          bool      // the asker ended before the answer came
	done         chan struct{}
}

// ask asks q of a Directory.
func (a *answer) ask(ctx context.Context, q question, of Directory) {
	err := noPanic("the Directory", func() (err error) {
		if q.tenant {
			a.destinations, err = of.Destinations(ctx, q.key)
			return err
		}
		d, err := of.Destination(ctx, q.key)
		a.destinations = []Destination{d}
		return err
	})
	if err != nil {
		a.destinations = nil
	}
	switch {
	case isFailure(err):
		a.err = &directoryError{err}
	case !q.tenant: // an unknown tenant has no destinations
		a.err = err
	}
	a.size = answerSize
	for i := range a.destinations {
		d := &a.destinations[i]
		if q.tenant {
			d.Tenant = q.key
		}
		a.size += d.size()
	}
}

// answers has answers of Config.Directory that are used for a while, within the bounds of Config.
// At half of a bound, the recent ones become the older ones. The older ones that were not used
// since the last such change are dropped.
type answers struct {
	config *Config
	live   atomic.Bool // the Directory reports its changes

	mu            sync.Mutex
	recent, older map[question]*answer // a question is in one of them
	size          int64                // of recent
	asking        map[question]*answer // not done; they will be kept
}

const (
	answerSize = 256                    // bytes of an answer without destinations, about
	noneAge    = time.Second            // how long an answer without destinations is used at most
	failedAge  = 100 * time.Millisecond // how long nobody asks again after an error
	liveAge    = 5 * time.Minute        // how long answers of a LiveDirectory are used by default

	maxKeptEach = 10 // destinations of a tenant; see keepEach
)

// find returns the answer to q, from memory or from the Directory. Callers with the same question
// wait for one answer, for at most Config.Timeout.
func (as *answers) find(ctx context.Context, q question) *answer {
	if a := as.kept(q); a != nil {
		return a
	}
	limited, cancel := context.WithTimeout(ctx, as.config.Timeout)
	defer cancel()
	for {
		a, mine := as.join(q)
		if mine {
			a.ask(limited, q, as.config.Directory)
			a.cut = ctx.Err() != nil
			as.answered(q, a)
			return a
		}
		select {
		case <-a.done:
			if !a.cut {
				return a
			}
		case <-limited.Done():
			return &answer{err: &directoryError{limited.Err()}}
		}
	}
}

// kept returns the answer to q that is kept, if it may still be used, or nil.
func (as *answers) kept(q question) *answer {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.recent[q]
	if a == nil {
		a = as.older[q]
	}
	if a == nil || time.Since(a.begun) >= as.age(a) {
		return nil
	}
	if as.recent[q] == nil {
		as.keep(q, a)
	}
	return a
}

// age returns for how long a may be used.
func (as *answers) age(a *answer) time.Duration {
	age, live := as.config.AnswerAge, as.live.Load()
	switch {
	case age == 0 && live:
		age = liveAge
	case age == 0:
		age = DefaultAnswerAge
	}
	switch {
	case isFailure(a.err):
		age = min(age, failedAge)
	case len(a.destinations) == 0 && !live:
		age = min(age, noneAge)
	}
	return age
}

// join returns the answer to q that another caller is asking for. If there is none, or if it has
// taken too long, join returns a new one, and mine says that the caller must ask for it.
func (as *answers) join(q question) (a *answer, mine bool) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a = as.asking[q]; a != nil && time.Since(a.begun) < as.config.Timeout {
		return a, false
	}
	if as.asking == nil {
		as.asking = make(map[question]*answer)
	}
	a = &answer{begun: time.Now(), done: make(chan struct{})}
	as.asking[q] = a
	return a, true
}

// answered ends the wait for a. It keeps a, unless a change was reported since the question.
func (as *answers) answered(q question, a *answer) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.asking[q] == a {
		delete(as.asking, q)
		if !a.cut {
			as.keep(q, a)
			as.keepEach(q, a)
		}
	}
	close(a.done)
}

// keepEach keeps the answer a about a tenant also as answers about its destinations, which are asked for
// next, when events are delivered to them. It does not do so for many destinations, because these could
// take the place of what other tenants need. The caller holds as.mu.
func (as *answers) keepEach(q question, a *answer) {
	if !q.tenant || len(a.destinations) > maxKeptEach {
		return
	}
	for i := range a.destinations {
		one := a.destinations[i : i+1 : i+1]
		of := question{key: one[0].ID}
		newer := func(b *answer) bool { return b != nil && b.begun.After(a.begun) }
		if as.asking[of] == nil && !newer(as.recent[of]) && !newer(as.older[of]) {
			as.keep(of, &answer{destinations: one, begun: a.begun, size: answerSize + one[0].size()})
		}
	}
}

// keep makes a the answer to q. The caller holds as.mu.
func (as *answers) keep(q question, a *answer) {
	as.remove(q)
	if as.recent == nil || 2*len(as.recent) >= as.config.MaxAnswers || 2*(as.size+a.size) > as.config.MaxAnswerBytes {
		as.recent, as.older, as.size = make(map[question]*answer), as.recent, 0
	}
	if 2*a.size <= as.config.MaxAnswerBytes {
		as.recent[q] = a
		as.size += a.size
	}
}

// remove removes the answer to q. Nobody begins to wait for an answer that is being asked for. The
// caller holds as.mu.
func (as *answers) remove(q question) {
	if a := as.recent[q]; a != nil {
		as.size -= a.size
	}
	delete(as.recent, q)
	delete(as.older, q)
	delete(as.asking, q)
}

// forget removes the answers about a tenant and about these destinations. An empty tenant stands
// for any tenant. Without destinations, forget removes the answers about all destinations of the
// tenant, and returns their ids.
func (as *answers) forget(tenant string, destinations ...string) (forgotten []string) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, id := range destinations {
		as.remove(question{key: id})
	}
	if as.remove(question{true, tenant}); tenant != "" && len(destinations) > 0 {
		return nil
	}
	ids := make(map[string]bool)
	for _, id := range destinations {
		ids[id] = true
	}
	concerned := func(d Destination) bool {
		return (tenant == "" || d.Tenant == tenant) && (len(ids) == 0 || ids[d.ID])
	}
	for _, m := range []map[question]*answer{as.recent, as.older} {
		for q, a := range m {
			if tenant == "" && len(ids) == 0 || slices.ContainsFunc(a.destinations, concerned) {
				as.remove(q)
				if tenant != "" && !q.tenant {
					forgotten = append(forgotten, q.key)
				}
			}
		}
	}
	clear(as.asking) // nobody knows yet what these answers have
	return forgotten
}

// size returns about how many bytes d takes.
func (d *Destination) size() int64 {
	n := 512 + len(d.ID) + len(d.Tenant) + len(d.Secret)
	for _, e := range d.Endpoints {
		n += 64 + len(e.URL)
		for name, value := range e.Headers {
			n += 64 + len(name) + len(value)
		}
	}
	for _, s := range d.StandardSecrets {
		n += 16 + len(s)
	}
	for _, p := range slices.Concat(d.Filter.Include, d.Filter.Exclude) {
		n += 16 + len(p)
	}
	if d.TLS != nil {
		n += 4096 * (1 + len(d.TLS.Certificates))
	}
	return int64(n)
}

// A directoryError is an error of Config.Directory.
type directoryError struct{ err error }

func (e *directoryError) Error() string { return "webhook: the Directory fails: " + e.err.Error() }

func (e *directoryError) Unwrap() error { return e.err }

// isFailure reports whether err, an error of a Directory, says nothing about the destination.
func isFailure(err error) bool {
	return err != nil && !errors.Is(err, ErrUnknownDestination) && !errors.Is(err, ErrTakesNothing)
}
