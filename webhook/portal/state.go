package portal

import (
	"time"

	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// stats returns what is known of endpoints, by their ids in the directory. An endpoint of which
// nothing is known is left out.
func (q *request) stats(ids ...string) (map[string]webhook.DestinationStats, error) {
	all, err := q.h.config.Forwarder.StatsOf(q.r.Context(), ids...)
	of := make(map[string]webhook.DestinationStats, len(all))
	for _, s := range all {
		of[s.Destination] = s
	}
	return of, err
}

// A state says how an endpoint is, and what happens next.
type state struct {
	State   string         `json:"state"`
	Since   time.Time      `json:"since,omitzero"` // when its deliveries began to wait, if it is held
	Until   time.Time      `json:"until,omitzero"` // when it is tried again, if it is held
	Reason  webhook.Reason `json:"reason,omitempty"`
	Waiting int            `json:"waiting"`       // deliveries, including those that are attempted
	Next    time.Time      `json:"next,omitzero"` // when the next delivery is attempted
	Failure *lastFailure   `json:"failure,omitempty"`
}

// A lastFailure is the latest attempt that failed.
type lastFailure struct {
	attempt
	Due time.Time `json:"due,omitzero"` // when the delivery is attempted again
}

// The states that are no webhook.HoldKind.
const (
	stateRefusing = "refusing" // it refuses deliveries for good
	stateRetrying = "retrying" // some attempts fail, and are repeated
	stateOK       = "ok"
	stateWaiting  = "waiting" // for the first attempt
	stateIdle     = "idle"    // nothing was sent to it since the start
)

func stateOf(d *tenants.Destination, s webhook.DestinationStats) state {
	st := state{State: stateName(d, &s), Waiting: s.Waiting, Next: s.Oldest}
	if h := s.Held; h != nil {
		st.Since, st.Until, st.Reason = h.Since, h.Until, h.Reason
		if h.Until.After(st.Next) {
			st.Next = h.Until
		}
	}
	if d.Disabled || s.Held != nil && s.Held.Until.IsZero() {
		st.Next = time.Time{}
	}
	if f := s.Failure; f != nil && s.Outcome != webhook.OutcomeDelivered {
		st.Failure = &lastFailure{attemptOf(&f.Attempt), f.Due}
	}
	return st
}

// stateName returns the first state that applies.
func stateName(d *tenants.Destination, s *webhook.DestinationStats) string {
	held := s.Held
	switch {
	case d.Disabled:
		return string(webhook.HoldDisabled)
	case held != nil && held.Kind == webhook.HoldDisabled && held.Reason == "":
		return string(webhook.HoldPaused) // not by the customer: the tenant is disabled
	case held != nil:
		return string(held.Kind)
	case s.Refusing:
		return stateRefusing
	case s.Outcome == webhook.OutcomeRetryable && s.Waiting > 0:
		return stateRetrying
	case s.Outcome == webhook.OutcomeRetryable:
		return string(webhook.HoldFailing)
	case s.Delivered > 0:
		return stateOK
	case s.Waiting > 0:
		return stateWaiting
	}
	return stateIdle
}
