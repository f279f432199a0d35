package webhook

import (
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An Observer is told everything that happens to deliveries. Its methods are called concurrently,
// and deliveries wait until they return. A method may call Forwarder.Stats, but no other method of
// the Forwarder. A panic in it is recovered and counted in Stats.ObserverPanics, and the first one
// is logged. It must not call runtime.Goexit, as FailNow of a test does.
//
// The arguments hold no secrets, except those that callers put into bodies. A method must not
// change them, and must copy what it keeps. An Observer may also be a DisableObserver or
// a FailureObserver.
type Observer interface {
	// Accepted is called when events are durable, before Forward or ForwardEvents returns, but under
	// load perhaps after Attempted for these events.
	Accepted(Accepted)
	// Attempted is called after each request to an endpoint. The outcome may not be stored yet.
	Attempted(Attempted)
	// Ended is called after it is stored that a delivery was delivered or given up. After a crash the
	// delivery may be attempted again, and then Ended is called for it again.
	Ended(Record)
}

// Accepted describes what one call of Forward or ForwardEvents has stored.
type Accepted struct {
	Puts    []store.Put    // all deliveries of the call, with their Trace
	Results []store.Result // of the Puts; a Put that was not stored has an ID that the store remembers
	Stored  int            // how many of the Puts were stored
}

// Outcome is the result of one request.
type Outcome string

const (
	OutcomeDelivered Outcome = "delivered" // the endpoint took the delivery
	OutcomeRetryable Outcome = "retryable" // the endpoint may be asked again
	// OutcomePermanent: the endpoint gets no further request for this delivery. But a batch that it
	// refuses by a 4xx is divided, and comes again in two requests.
	OutcomePermanent Outcome = "permanent"
	// OutcomeCutOff: another endpoint had taken the delivery or the Forwarder was stopped. After such a
	// stop the attempt does not count, and is repeated.
	OutcomeCutOff Outcome = "cut_off"
)

// Attempted is one request to one endpoint.
type Attempted struct {
	Delivery // as it was before the request; of a batch the first one
	// Batch has all deliveries of a batch, in their order, as they were before the request. They are
	// valid until the method returns. Nil if the Delivery was sent alone.
	Batch   []*Delivery
	Attempt // the request; it has no Answer if the endpoint took the delivery
	Outcome Outcome
	Due     time.Time // when the Delivery is attempted again, zero if it is not
}

// A FailureObserver is an Observer that is told how a destination fails, before it is disabled.
type FailureObserver interface {
	// Failing is called once for each stage of a series of failures. Each node tells what it has seen
	// itself since its start, so several nodes may tell the same.
	Failing(Failing)
}

// FailingStage says how far a series of failures has come.
type FailingStage string

const (
	FailingBegan FailingStage = "began" // the first failure, or the first one after a success
	FailingHalf  FailingStage = "half"  // half of Config.DisableAfter is over without a success
	FailingEnded FailingStage = "ended" // a delivery succeeded, which is stored
)

// Failing is a stage of a series of failed attempts of a destination, without a success in between.
// Disabling the destination ends the series, too; see DisableObserver.
type Failing struct {
	Destination string
	Stage       FailingStage
	Since       time.Time // of the first failure
	Reason      Reason    // of the latest failure, "" with FailingEnded
	Status      int       // of its answer, 0 if there was none
}
