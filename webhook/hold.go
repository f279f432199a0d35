package webhook

import "time"

// A HoldKind says why the deliveries of a destination wait.
type HoldKind string

const (
	HoldPaused  HoldKind = "paused"  // Pause was called
	HoldUnknown HoldKind = "unknown" // there is no such destination
	HoldInvalid HoldKind = "invalid" // the Directory has a destination that is not valid
	HoldLookup  HoldKind = "lookup"  // the Directory fails
	HoldFailing HoldKind = "failing" // the destination only fails, and is probed; see Config.MaxConcurrent
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled the destination: then
	// Hold.Reason is not empty, and Resume enables the destination.
	HoldDisabled HoldKind = "disabled"
)

// A Hold says that the deliveries of a destination wait although they are due.
type Hold struct {
	Destination string    `json:"-"`
	Kind        HoldKind  `json:"hold"`
	Since       time.Time `json:"since,omitzero"` // when the hold began, zero if that is not known
	// Until is when the forwarder checks next whether the hold is over, zero for HoldPaused. For
	// HoldFailing the check is an attempt: Until is zero while one is in flight, or if nothing waits.
	Until  time.Time `json:"until,omitzero"`
	Reason Reason    `json:"reason,omitempty"` // why the latest attempt failed, for HoldFailing or if the forwarder has disabled it
}
