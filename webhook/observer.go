package webhook

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/event"
)

// An Observer is told of everything that happens to deliveries, such as to feed
// Prometheus or OpenTelemetry. Its methods are called concurrently, and from
// the goroutines that do the work: what they wait for, deliveries wait for. They
// may call Stats, and nothing else of the Forwarder. A panic in one is
// recovered, counted in Stats.ObserverPanics, and the first is logged. They must not
// end their goroutine in another way, as a test's FailNow would.
//
// What they are given holds no secrets, except what callers put into bodies. It is
// valid during the call: they copy what they keep, and change nothing.
//
// Further interfaces have methods which an Observer may implement: DisableObserver,
// EnableObserver, and what later versions add.
type Observer interface {
	// Accepted is called by Forward and ForwardEvents once events are durable, before they
	// return. Under load the first attempts of these events may come before it.
	Accepted(Accepted)
	// Attempted is called after each request to an endpoint. The outcome may
	// not be stored yet.
	Attempted(Attempted)
	// Ended is called once it is stored that a delivery was delivered, or given
	// up. After a crash that may be told again, as it may be delivered again.
	Ended(Ended)
}

// Accepted is what one call of Forward or ForwardEvents has stored.
type Accepted struct {
	// Deliveries are those of the call, with their Trace.
	Deliveries []Delivery
	// Stored is how many of them were stored. The store had seen the others
	// before; it does not say which.
	Stored int
}

// Outcome says what one request led to.
type Outcome string

// The outcomes.
const (
	// OutcomeDelivered: the endpoint took the delivery.
	OutcomeDelivered Outcome = "delivered"
	// OutcomeRetryable: it may be asked again.
	OutcomeRetryable Outcome = "retryable"
	// OutcomePermanent: it is not asked again with this delivery.
	OutcomePermanent Outcome = "permanent"
	// OutcomeCutOff: the request was cut off, because another endpoint had
	// taken the delivery, or because the Forwarder was stopped. Then the
	// attempt does not count, and will be repeated.
	OutcomeCutOff Outcome = "cut_off"
)

// Attempted is one request to one endpoint.
type Attempted struct {
	// These are those of the delivery.
	Destination, ID, MessageID, Source, User, Event, Type string
	Trace                                                 event.Trace
	// Attempt is the request. The Answer of one that was taken is not kept.
	Attempt
	// Outcome is what it led to.
	Outcome Outcome
	// Due is when the delivery is attempted again; zero if it is not.
	Due time.Time
}

// Ended is the end of a delivery.
type Ended struct {
	// Delivery is the delivery as it ended. Its Attempts are those that failed;
	// of one that was delivered, Tries does not count the last.
	Delivery Delivery
	// Reason is why it was given up, "" if it was delivered.
	Reason Reason
	// At is when that was stored.
	At time.Time
}

// outcomeOf names what a request led to.
func (r *result) outcomeOf() Outcome {
	switch {
	case r.outcome == delivered:
		return OutcomeDelivered
	case r.cut:
		return OutcomeCutOff
	case r.outcome == permanent:
		return OutcomePermanent
	}
	return OutcomeRetryable
}

// An observed calls the caller's Observer, and outlives what it does.
type observed struct {
	observer Observer
	logger   *slog.Logger
	panics   atomic.Int64
	once     sync.Once
}

func (o *observed) accepted(a Accepted) {
	defer o.caught()
	o.observer.Accepted(a)
}

func (o *observed) attempted(a Attempted) {
	defer o.caught()
	o.observer.Attempted(a)
}

func (o *observed) disabled(d Disabled) {
	defer o.caught()
	if of, ok := o.observer.(DisableObserver); ok {
		of.Disabled(d)
	}
}

func (o *observed) enabled(e Enabled) {
	defer o.caught()
	if of, ok := o.observer.(EnableObserver); ok {
		of.Enabled(e)
	}
}

func (o *observed) ended(e Ended) {
	defer o.caught()
	o.observer.Ended(e)
}

// caught recovers a panic of the observer. It is to be deferred.
func (o *observed) caught() {
	v := recover()
	if v == nil {
		return
	}
	o.panics.Add(1)
	o.once.Do(func() {
		o.logger.Error("webhook: the observer panics", "error", fmt.Sprint(v))
	})
}

// settled tells the observer of what a commit has ended.
func (o *observed) settled(ss []Settlement) {
	now := time.Now().UTC()
	for i := range ss {
		if s := &ss[i]; s.Verdict == Done || s.Verdict == Bury {
			o.ended(Ended{Delivery: s.Delivery, Reason: s.Reason, At: now})
		}
	}
}
